"""The jobs of the network benchmark: their processes on hosts, each with the variables that users set and no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.side import SideError
from byteps_py.core.shares import Machine
from tests.helpers.namespaces import Network, network

__all__ = ["LAYOUTS", "Hosts", "Plan", "made"]

LAYOUTS = ("separate", "colocated", "mixed")
_PORT = "9000"
_GLOO_PORT = 9100
_GOODPUT_PORT = 9200
_GOODPUT = """
import sys
from byteps_py.plan import link
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
say = lambda text: print(text, flush=True)
print(link.measure(host, port, seconds=seconds) if host else link.listen(port, say, seconds=seconds))
"""
_LIMIT_SECONDS = 300.0
_LAST_CHARACTERS = 2000
_OF_JOBS = ("DMLC_", "BYTEPS_", "OMP_")


@dataclass(frozen=True)
class Plan:
    """Who is where.

    Attributes:
        layout: ``separate``: all servers on machines of their own; ``colocated``: each beside a worker; ``mixed``: one
            beside each worker, and ``servers`` more on machines of their own.
        workers: machines with one worker.
        servers: see above.
    """

    layout: str
    workers: int
    servers: int

    @property
    def apart(self) -> int:
        """Servers on machines of their own."""
        return 0 if self.layout == "colocated" else self.servers

    @property
    def beside(self) -> int:
        """Servers on machines of workers."""
        return {"separate": 0, "colocated": self.servers, "mixed": self.workers}[self.layout]

    def machines(self) -> list[Machine]:
        """As :func:`byteps_py.core.shares.balance` takes them."""
        each = self.beside // self.workers, self.beside % self.workers
        beside = [Machine(1, each[0] + (index < each[1])) for index in range(self.workers)]
        return beside + [Machine(0, 1)] * self.apart


class Hosts:
    """Hosts for a plan, with links of one speed: the scheduler on one of its own, then the workers', then the servers'.

    Args:
        plan: who is where.
        hosts: as many as that needs.
        folder: for output.
    """

    def __init__(self, plan: Plan, hosts: Network, folder: Path) -> None:
        self._plan = plan
        self._network = hosts
        self._folder = folder
        names = list(hosts.hosts)
        self._scheduler, self._workers = names[0], names[1 : 1 + plan.workers]
        beside = [self._workers[index % plan.workers] for index in range(plan.beside)]
        self._servers = beside + names[1 + plan.workers :]
        self._runs = 0

    def goodput(self, seconds: float) -> float:
        """Bytes per second of a TCP connection between two hosts, each way, with traffic both ways."""
        one, other = self._workers[:2]
        program = [sys.executable, "-c", _GOODPUT]
        outputs = self._folder / "goodput-a", self._folder / "goodput-b"
        words = [self._network[one].ipv4, str(_GOODPUT_PORT), f"{seconds:g}"]
        listening = self._network.run(one, [*program, "", *words[1:]], _environment(), outputs[0])
        deadline = time.monotonic() + 30.0
        while b"listening" not in outputs[0].read_bytes():
            if time.monotonic() > deadline or listening.poll() is not None:
                raise SideError(f"goodput: {outputs[0].read_text()}")
            time.sleep(0.02)
        connecting = self._network.run(other, [*program, *words], _environment(), outputs[1])
        _wait({"goodput-a": listening, "goodput-b": connecting}, self._folder)
        return float(outputs[1].read_text().split()[-1])

    def ours(self, sizes: Sequence[int], steps: int) -> list[float]:
        """Seconds of each push_pull of all tensors but the first; every result was compared.

        Args:
            sizes: elements of each tensor.
            steps: how many, the first included.

        Raises:
            SideError: a process has failed, or a result was wrong.
        """
        plan, folder = self._plan, self._next("ours")
        job = {
            "DMLC_NUM_WORKER": str(plan.workers),
            "DMLC_NUM_SERVER": str(len(self._servers)),
            "DMLC_PS_ROOT_URI": self._network[self._scheduler].ipv4,
            "DMLC_PS_ROOT_PORT": _PORT,
        }
        launch = [sys.executable, "-m", "byteps_py.launcher"]
        script = [sys.executable, "-m", "benchmarks.network_worker", _work("ours", sizes, steps, folder)]
        places = [("scheduler", self._scheduler, launch, {})]
        places += [(f"server-{index}", host, launch, {}) for index, host in enumerate(self._servers)]
        places += [
            (f"worker-{index}", host, [*launch, "--", *script], {"DMLC_WORKER_ID": str(index)})
            for index, host in enumerate(self._workers)
        ]
        _wait(
            {
                name: self._network.run(
                    host, argv, _environment(job, {"DMLC_ROLE": name.partition("-")[0]}, own), folder / name
                )
                for name, host, argv, own in places
            },
            folder,
        )
        return _times(folder, plan.workers, "ours")

    def gloo(self, sizes: Sequence[int], steps: int) -> list[float]:
        """The same by torch's all_reduce of one buffer, on the hosts of the workers."""
        folder, workers = self._next("gloo"), self._plan.workers
        meeting = f"tcp://{self._network[self._workers[0]].ipv4}:{_GLOO_PORT}"
        script = [sys.executable, "-m", "benchmarks.network_worker"]
        running = {}
        for rank, host in enumerate(self._workers):
            word = _work("gloo", sizes, steps, folder, rank=rank, workers=workers, meeting=meeting)
            environ = _environment({"GLOO_SOCKET_IFNAME": "eth0"})
            name = f"worker-{rank}"
            running[name] = self._network.run(host, [*script, word], environ, folder / name)
        _wait(running, folder)
        return _times(folder, workers, "gloo")

    def _next(self, kind: str) -> Path:
        self._runs += 1
        folder = self._folder / f"{kind}-{self._runs}"
        folder.mkdir()
        return folder


@contextmanager
def made(plan: Plan, mbit: float) -> Iterator[Hosts]:
    """Hosts that exist inside the with statement.

    Args:
        plan: who is where.
        mbit: of each link, each way, in Mbit/s.
    """
    folder = Path(tempfile.mkdtemp(prefix="bps-network-"))
    try:
        with network(folder, 1 + plan.workers + plan.apart) as hosts:
            hosts.limit_rate(mbit)
            yield Hosts(plan, hosts, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(*added: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process: those of this one that say nothing of jobs, and those added."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_OF_JOBS)}
    for each in added:
        environ |= each
    return environ


def _work(kind: str, sizes: Sequence[int], steps: int, folder: Path, **more: object) -> str:
    return json.dumps({"kind": kind, "sizes": list(sizes), "steps": steps, "output": f"{folder}/times", **more})


def _wait(running: Mapping[str, subprocess.Popen[bytes]], folder: Path) -> None:
    """Until all have ended well.

    Raises:
        SideError: one has not, or not in time; with the end of what it printed.
    """
    deadline = time.monotonic() + _LIMIT_SECONDS
    for name, process in running.items():
        try:
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SideError(f"{name} runs for more than {_LIMIT_SECONDS:g} s: {_end_of(folder / name)}") from None
        if status:
            raise SideError(f"{name} has ended with status {status}: {_end_of(folder / name)}", status)


def _end_of(path: Path) -> str:
    return "\n" + path.read_text(errors="replace")[-_LAST_CHARACTERS:].strip()


def _times(folder: Path, workers: int, kind: str) -> list[float]:
    """From the first worker that began a step to the last that ended it, for all steps but the first."""
    found = [json.loads((folder / f"times-{rank}.json").read_text()) for rank in range(workers)]
    if not all(each["verified"] for each in found):
        raise SideError(f"a result of {kind} was wrong")
    steps = zip(*(each["times"] for each in found), strict=True)
    return [max(end for _, end in step) - min(begin for begin, _ in step) for step in steps][1:]
