"""``bpslaunch`` is told to end, to pause and to go on: by signals, and by the keys of a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers.launches import FOR_EVER, PYTHON, Launch, launches, running, still_there, until

pytestmark = pytest.mark.timeout(120)

SAVE = """
import os, signal, sys, time
import numpy as np
import byteps_py as bps

def save(*_):
    print("told", flush=True)
    time.sleep(float(sys.argv[1]))
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
bps.init()
step = 0
while True:
    bps.push_pull(np.ones(3), name="a")
    step += 1
    if step == 1:
        print("first", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    with launches(tmp_path) as start:
        yield start


def script(folder: Path, last: str) -> str:
    (folder / "save.py").write_text(SAVE)
    (folder / "train.sh").write_text(f"cd {folder}\n{last}\n")
    return str(folder / "train.sh")


# SIGTERM.


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_workers_have_the_grace_period_to_save(
    tmp_path: Path, launch: Callable[..., Launch], number: signal.Signals, status: int
) -> None:
    (tmp_path / "save.py").write_text(SAVE)
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, str(tmp_path / "save.py"), "1")
    running(launched)
    launched.signal(number)
    assert launched.wait() == status
    assert launched.out.count("saved") == 2
    text = f"bpslaunch: {number.name}: ending the job; its workers have 20 s to save (BYTEPS_GRACE_PERIOD)"
    assert text in launched.err.splitlines()
    assert launched.processes() == {}


def test_who_saves_is_not_ended_because_of_who_has_nothing_to_save(
    tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    """The others die of the signal at once, which ends the job, long before the first has saved."""
    only_first = SAVE.replace("signal.signal(", "if os.environ['BYTEPS_LOCAL_RANK'] == '0': signal.signal(")
    (tmp_path / "save.py").write_text(only_first)
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, str(tmp_path / "save.py"), "6")
    running(launched)
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 143
    assert launched.out.count("saved") == 1
    assert launched.processes() == {}


def test_what_a_shell_leaves_behind_has_the_grace_period_too(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """bash ends at SIGTERM without a word to the program that it runs."""
    words = ("-n", "2", "-s", "1", "--", "bash", script(tmp_path, f"{PYTHON} save.py 2"))
    launched = launch(*words)
    running(launched)
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 143
    assert launched.out.count("saved") == 2
    assert launched.processes() == {}


def test_helpers_are_not_told_before_the_worker_has_ended(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    helper = "import signal; signal.signal(15, lambda *_: print('helper told', flush=True)); signal.pause()"
    (tmp_path / "helper.py").write_text(helper)
    (tmp_path / "lead.py").write_text(
        "import signal, subprocess, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(1)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"subprocess.Popen([sys.executable, {str(tmp_path / 'helper.py')!r}])\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    launched = launch("-n", "1", "--no-prefix", PYTHON, str(tmp_path / "lead.py"))
    until(lambda: len(launched.processes()) == 3 and "up" in launched.out)
    time.sleep(0.5)  # The helper has nothing to say before its handler is set.
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 143
    assert launched.out.split("\n") == ["up", "saved", "helper told", ""]


def test_a_worker_that_takes_longer_is_killed(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    words = ("-n", "2", "-s", "1", "--", "bash", script(tmp_path, f"{PYTHON} save.py 1000"))
    launched = launch(*words, env={"BYTEPS_GRACE_PERIOD": "2"})
    running(launched)
    launched.signal(signal.SIGTERM)
    assert launched.wait(15) == 143
    assert launched.out.count("told") == 2
    assert "saved" not in launched.out
    assert launched.processes() == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_scheduler_is_told_to_end(launch: Callable[..., Launch], number: signal.Signals) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER, env={"BYTEPS_GRACE_PERIOD": "1"})
    scheduler = running(launched)["scheduler"]
    scheduler.send_signal(number)
    assert launched.wait() == 128 + number
    name = rf"bpslaunch: scheduler \(pid {scheduler.pid}\) exited with status {128 + number} \(as by {number.name}\)"
    assert re.search(name, launched.err), launched.err


# Who is stopped.


def test_a_stopped_worker_does_not_hold_up_the_end(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER)
    processes = running(launched)
    processes["worker 0"].suspend()
    processes["worker 1"].kill()
    decided = time.monotonic()
    assert launched.wait() == 137
    assert time.monotonic() - decided < 10
    assert still_there(processes) == []


def test_a_stopped_worker_takes_notice_of_a_signal(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER)
    processes = running(launched)
    processes["worker 0"].suspend()
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 143
    assert "still running" not in launched.err


def test_a_job_that_was_paused_goes_on(launch: Callable[..., Launch]) -> None:
    """Longer than the time after which a silent process counts as lost."""
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER, env={"BYTEPS_LOST_TIMEOUT": "5"})
    processes = running(launched)
    watched = [process for name, process in processes.items() if name != "guard"]
    launched.signal(signal.SIGTSTP)
    until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in watched))
    until(lambda: psutil.Process(launched.process.pid).status() == psutil.STATUS_STOPPED)
    time.sleep(7)
    used = [each.cpu_times().user for each in watched[-2:]]
    launched.signal(signal.SIGCONT)
    # For dozens of steps.
    until(lambda: all(each.cpu_times().user > earlier + 0.3 for each, earlier in zip(watched[-2:], used, strict=True)))
    assert still_there(processes) == list(processes), launched.err
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 143
    assert "SIGTSTP: the processes of the job are stopped too, until fg, bg or SIGCONT" in launched.err


# Ctrl-C at a terminal.

INTERRUPTED = """
import os, sys, time
import byteps_py as bps

place = sys.argv[1 + int(os.environ["BYTEPS_LOCAL_RANK"])]
if place == "before":
    print("up", flush=True)
    time.sleep(1000)
if place == "loads":
    import torch
    from torch.utils.data import DataLoader

    class Slow(torch.utils.data.Dataset):
        def __len__(self): return 10**6
        def __getitem__(self, index):
            time.sleep(0.05)
            return index

    for index, _ in enumerate(DataLoader(Slow(), num_workers=2)):
        if index == 1: print("up", flush=True)
if place == "joins":
    print("up", flush=True)
bps.init()
step = 0
while True:
    bps.push_pull([1.0], name="a")
    step += 1
    if step == 2: print("up", flush=True)
"""


TAKE_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execvp(sys.argv[1], sys.argv[1:])"
"""A terminal that the first process of a session opens is its own from then on."""


LAUNCHER = (PYTHON, "-m", "byteps_py.launcher")


class Terminal:
    """A command with a terminal of its own, and what can be read there."""

    def __init__(self, *command: str) -> None:
        self.shown = ""
        self._fd, end = pty.openpty()
        command = (PYTHON, "-c", TAKE_TERMINAL, *command)
        self._process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True)
        os.close(end)

    def read(self, seconds: float = 0.05) -> bool:
        """Read for a moment; False at the end."""
        if self._fd in select.select([self._fd], [], [], seconds)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            self.shown += data.decode()
        return True

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def read_until(self, text: str, count: int = 1) -> None:
        """Read until ``text`` is shown so often."""
        deadline = time.monotonic() + 60
        while self.shown.count(text) < count:
            assert self.read(), self.shown
            assert time.monotonic() < deadline, self.shown

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def wait(self) -> int:
        """Read to the end; returns the exit status."""
        deadline = time.monotonic() + 60
        while self.read():
            assert time.monotonic() < deadline, self.shown
        return self.close()

    def close(self) -> int:
        """Hang up; returns the exit status."""
        os.close(self._fd)
        return self._process.wait(30)


@pytest.mark.parametrize("prefix", [(), ("--no-prefix",)])
@pytest.mark.parametrize("places", [("joins", "loads", "before"), ("trains", "trains", "trains")])
def test_ctrl_c_is_one_line(tmp_path: Path, places: tuple[str, ...], prefix: tuple[str, ...]) -> None:
    if "loads" in places:
        pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "train.py").write_text(INTERRUPTED)
    words = (*prefix, "-n", "3", "-s", "1", "--", PYTHON, str(tmp_path / "train.py"), *places)
    with Terminal(*LAUNCHER, *words) as terminal:
        terminal.read_until("up\r\n", 3)
        terminal.press(b"\x03")
        assert terminal.wait() == 130
    after = terminal.shown.rpartition("up\r\n")[2]
    # On a busy machine a worker may take too long to end by itself.
    lines = [line for line in after.splitlines() if line and "still running" not in line]
    assert lines == ["^Cbpslaunch: SIGINT: ending the job"]


def test_other_errors_are_shown_after_ctrl_c(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    (tmp_path / "train.py").write_text(
        "import time\nprint('up', flush=True)\ntry: time.sleep(1000)\nexcept KeyboardInterrupt: raise OSError('disk')\n"
    )
    launched = launch("-n", "1", PYTHON, str(tmp_path / "train.py"))
    until(lambda: "up" in launched.out)
    launched.signal(signal.SIGINT)
    assert launched.wait() == 130
    assert launched.err.splitlines()[-1] == "[worker 0] OSError: disk"
    assert "[worker 0] KeyboardInterrupt" in launched.err


def test_the_terminal_is_closed(tmp_path: Path) -> None:
    """Workers save, and are not disturbed because what they print reaches nobody."""
    (tmp_path / "train.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    for _ in range(100): print('saving'); time.sleep(0.01)\n"
        f"    pathlib.Path({str(tmp_path / 'saved')!r}).touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up')\n"
        "while True: signal.pause()\n"
    )
    with Terminal(*LAUNCHER, "-n", "1", "--", PYTHON, str(tmp_path / "train.py")) as terminal:
        terminal.read_until("up")
        assert terminal.close() == 129
    assert (tmp_path / "saved").exists()


def test_ctrl_z_at_a_terminal() -> None:
    """The terminal stops the launcher, and with it the job; the shell says so, and ``fg`` goes on."""
    code = "import sys; print('u' + 'p', flush=True); sys.stdin.readline(); print('d' + 'one')"
    # Without editing it reads line by line, and leaves the rest to what it runs.
    with Terminal("bash", "--norc", "--noediting", "-i") as shell:
        shell.press(f'{PYTHON} -m byteps_py.launcher -n 1 {PYTHON} -c "{code}"\n'.encode())
        shell.read_until("[worker 0] up")
        shell.press(b"\x1a")
        shell.read_until("Stopped")
        shell.press(b"fg\n")
        shell.press(b"now\n")
        shell.read_until("[worker 0] done")
        shell.press(b"exit\n")
        assert shell.wait() == 0
