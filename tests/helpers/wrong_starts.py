"""The table of wrong starts in ``docs/troubleshooting.md``, as values that a test can run.

Within the chapter of the tables, a block of Python whose first line is ``# NAME.py`` is a file of the folder that the
commands are typed in; a block of bash is typed before each command of its section; a line of a table whose second
cell is code is a wrong start.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.jobs import free_port

__all__ = ["Seen", "WrongStart", "files", "play", "wrong_starts"]

_PORTS = ("9000", "9001", "9002")
"""The document's ports; each run replaces them by free ones."""
_PREFIX = re.compile(r"^(?:\[[^\]]+\] )?(?:[\d:.,-]+ )*(?:[A-Z]+ byteps [^:]+: )?")
"""What a message is shown without: who printed the line, when, and how bad it is."""
_SECONDS = 10.0
_PATIENCE = 3.0
"""A machine with much else to do may take so many times longer."""


@dataclass(frozen=True)
class WrongStart:
    """One row.

    Attributes:
        title: what is wrong.
        setup: lines of bash that are typed first.
        command: as typed.
        messages: each is a whole line; ``...`` stands for any text.
        status: the exit status of the command.
        seconds: how long it may take on a machine with little else to do.
    """

    title: str
    setup: str
    command: str
    messages: tuple[str, ...]
    status: int
    seconds: float

    @property
    def name(self) -> str:
        """For test ids: ``no-command``."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.title).strip("-").lower()


@dataclass(frozen=True)
class Seen:
    """What a command did; a ``status`` of None means that it was still running when its time was over."""

    status: int | None
    output: str
    ports: dict[str, str]

    def shows(self, message: str) -> bool:
        """Whether a line of the output is this message."""
        for documented, real in self.ports.items():
            message = re.sub(rf"\b{documented}\b", real, message)
        pattern = re.compile(".*".join(re.escape(part) for part in message.split("...")))
        lines = self.output.splitlines()
        return any(pattern.fullmatch(line) or pattern.fullmatch(_PREFIX.sub("", line, count=1)) for line in lines)


def files(chapter: str) -> dict[str, str]:
    """The files of the folder, by name."""
    found = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", chapter, re.MULTILINE | re.DOTALL)
    return dict(found)


def wrong_starts(chapter: str) -> Iterator[WrongStart]:
    """The rows of all tables, in the order of the document."""
    for section in re.split(r"^### ", chapter, flags=re.MULTILINE):
        setup = "".join(re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
        for line in section.splitlines():
            cells = [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) == 5 and cells[1].startswith("`"):
                status, _, seconds = cells[3].partition(", up to ")
                yield WrongStart(
                    cells[0],
                    setup,
                    _code(cells[1])[0],
                    tuple(_code(cells[2])),
                    int(status),
                    float(seconds.removesuffix(" s") or _SECONDS),
                )


def play(row: WrongStart, folder: Path, output: Path) -> Seen:
    """Type the command in ``folder``; its output, and that of what it leaves in the background, goes to ``output``."""
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    script = f"{row.setup}\n{row.command}\nstatus=$?\nwait\nexit $status\n"
    for documented, real in ports.items():
        script = re.sub(rf"\b{documented}\b", real, script)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with output.open("wb") as stream:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = shell.wait(row.seconds * _PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait(10)
    return Seen(status, output.read_text(encoding="utf-8", errors="replace"), ports)


def _free_ports(count: int) -> list[str]:
    """In ascending order, as the document's are: some rows have a range of them."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return [str(port) for port in sorted(found)]


def _code(cell: str) -> list[str]:
    """The texts in backticks of a cell."""
    return [each.strip().replace("\\|", "|") for each in re.findall(r"(`+)(.+?)\1", cell) for each in each[1:]]
