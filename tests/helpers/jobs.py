"""Jobs of real processes, started by ``DMLC_*`` variables as on many machines."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREAMBLE = "import os, sys, time, signal\nimport numpy as np\nimport byteps_py as bps\nbps.init()\n"


_turns = itertools.count()


def free_port() -> int:
    """A port that nothing listens at, and that nobody else takes soon.

    It is below those that the system hands out, and each process of a test run goes through others: tests run beside
    one another, and there is time between asking for a port and listening at it.
    """
    while True:
        port = 10_000 + (os.getpid() * 64 + next(_turns)) % 20_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def has_version_six() -> bool:
    """Whether this machine can talk to itself over IPv6; many containers cannot."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def free_range(count: int) -> tuple[int, int]:
    """First and last of ``count`` ports in a row that nobody has right now, below those that the kernel hands out."""
    start = 21000 + os.getpid() % 1000 * 5  # where other test runs on this machine do not look first
    for first in range(start, 30000, count):
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first, first + count - 1
    raise AssertionError(f"there are no {count} free ports in a row")


class Job:
    """Processes of one job, each with its output in a file.

    Attributes:
        processes: by name: ``scheduler``, ``server0``, ``worker1`` ...
    """

    def __init__(self, folder: Path, workers: int, servers: int, **environ: str) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
        self._environ |= {
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **environ,
        }

    def scheduler(self) -> None:
        """Start the scheduler."""
        self._start("scheduler", ["-m", "byteps_py", "scheduler"])

    def server(self, index: int = 0) -> None:
        """Start a server."""
        self._start(f"server{index}", ["-m", "byteps_py", "server"])

    def worker(self, index: int, body: str, **environ: str) -> None:
        """Start a worker that joins the job and then runs ``body``."""
        environ = {"DMLC_WORKER_ID": str(index), **environ}
        self._start(f"worker{index}", ["-c", PREAMBLE + body], DMLC_ROLE="worker", **environ)

    def script(self, index: int, script: Path, *arguments: str, **environ: str) -> None:
        """Start a worker that runs a script."""
        environ = {"DMLC_WORKER_ID": str(index), **environ}
        self._start(f"worker{index}", [str(script), *arguments], DMLC_ROLE="worker", **environ)

    def change(self, workers: int, servers: int) -> None:
        """Processes that are started from now on are of a job of these numbers."""
        self._environ |= {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers)}

    def launch(self, index: int, *command: str, **environ: str) -> None:
        """Start the workers of a machine by bpslaunch."""
        arguments = ["-m", "byteps_py.launcher", *command]
        self._start(f"worker{index}", arguments, DMLC_ROLE="worker", DMLC_WORKER_ID=str(index), **environ)

    def torchrun(self, processes: int, script: Path) -> None:
        """Start worker processes by torchrun, which tells them nothing of the job."""
        arguments = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), str(script)]
        self._start("worker0", arguments, DMLC_ROLE="", DMLC_NUM_WORKER="")

    def _start(self, name: str, arguments: list[str], **environ: str) -> None:
        role = {"DMLC_ROLE": name.rstrip("0123456789")}
        with (self.folder / name).open("wb") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                env={**self._environ, **role, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output(self, name: str) -> str:
        """What a process has printed so far, both streams."""
        return (self.folder / name).read_text(errors="replace")

    def wait_for(self, name: str, text: str, timeout: float = 60.0) -> None:
        """Wait until a process has printed ``text``."""
        deadline = time.monotonic() + timeout
        while text not in self.output(name):
            assert time.monotonic() < deadline, f"{name} did not print {text!r}:\n{self.everything()}"
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill -9, and reap."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(10)

    def wait(self, timeout: float = 100.0) -> dict[str, int]:
        """Exit status of every process; all must end within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for name, process in self.processes.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} is still running:\n{self.everything()}") from None
        return {name: process.returncode for name, process in self.processes.items()}

    def everything(self) -> str:
        """All output, for messages."""
        return "\n".join(f"--- {name}\n{self.output(name)}" for name in self.processes)

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(10)


@contextmanager
def job(folder: Path, workers: int = 2, servers: int = 1, **environ: str) -> Iterator[Job]:
    """A job whose processes the caller starts; whatever is left at the end is killed."""
    made = Job(folder, workers, servers, **environ)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def running(folder: Path, body: str, workers: int = 2, servers: int = 1, **environ: str) -> Iterator[Job]:
    """A job with all its processes started, the workers running ``body``."""
    with job(folder, workers, servers, **environ) as made:
        made.scheduler()
        for index in range(servers):
            made.server(index)
        for index in range(workers):
            made.worker(index, body)
        yield made
