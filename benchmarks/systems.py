"""The jobs that push_pull compares: how the processes of byteps_py, gloo and MXNet are started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import arguments
from benchmarks.environment import ROOT
from benchmarks.side import Program, Side

GLOO_IN_FLIGHT = (1, 10)
"""Operations at a time with which gloo is measured; the better one counts."""


@dataclass(frozen=True)
class Work:
    """What is summed, and by how many.

    Attributes:
        workers, servers: processes; gloo has no servers.
        tensors: of one step.
        count: elements of one tensor.
        dtype: a NumPy dtype's name.
        arena: whether our tensors come from ``bps.empty``.
    """

    workers: int
    servers: int
    tensors: int
    count: int
    dtype: str
    arena: bool = False

    @property
    def step_bytes(self) -> int:
        """Bytes of gradient that one worker has summed in a step."""
        return self.tensors * self.count * np.dtype(self.dtype).itemsize

    def fused(self) -> Work:
        """The same bytes as a single tensor."""
        return Work(self.workers, self.servers, 1, self.tensors * self.count, self.dtype)


def one_thread() -> dict[str, str]:
    """``OMP_NUM_THREADS=1`` for every process of every side, unless the caller's environment says something else."""
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def ours_environment(transport: str) -> dict[str, str]:
    """Variables that our side gets beside the caller's, and before them."""
    return {**one_thread(), "BYTEPS_FORCE_DISTRIBUTED": "1", arguments.TRANSPORT: transport}


def bpslaunch(workers: int, servers: int, module: str, environ: dict[str, str]) -> Program:
    """A whole job of ours, whose workers run ``python -m MODULE FOLDER``."""
    launcher = (sys.executable, "-m", "byteps_py.launcher", "-n", str(workers), "-s", str(servers))
    return Program((*launcher, "--", sys.executable, "-m", module, "{folder}"), environ)


def ours(work: Work, transport: str) -> Side:
    """A job of byteps_py, started by bpslaunch."""
    program = bpslaunch(work.workers, work.servers, "benchmarks.bps_worker", ours_environment(transport))
    return Side("byteps_py", [program], work.workers, asdict(work))


def gloo_environment() -> dict[str, str]:
    """Variables of a process that uses gloo: over the loopback interface, as the others."""
    return {**one_thread(), "GLOO_SOCKET_IFNAME": "lo", "DMLC_ROLE": "worker"}


def gloo(work: Work) -> Side:
    """Processes that call torch.distributed's all_reduce."""
    command = (sys.executable, "-m", "benchmarks.gloo_worker", "{folder}")
    programs = [Program((*command, str(rank)), gloo_environment()) for rank in range(work.workers)]
    return Side("gloo", programs, work.workers, asdict(work))


def mxnet(work: Work, python: str) -> Side:
    """A job of MXNet's parameter server; ``python`` has MXNet."""
    shared = {
        **one_thread(),
        "DMLC_NUM_WORKER": str(work.workers),
        "DMLC_NUM_SERVER": str(work.servers),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    roles = ["scheduler", *["server"] * work.servers, *["worker"] * work.workers]
    command = (python, "-m", "benchmarks.mxnet_process", "{folder}")
    return Side(
        "MXNet", [Program(command, {**shared, "DMLC_ROLE": role}) for role in roles], work.workers, asdict(work)
    )


def lacks_mxnet(python: str) -> str | None:
    """Why MXNet does not run on the Python at ``python``, in a line; None if it does. Starts it to see."""
    try:
        done = subprocess.run(
            [python, "-c", "import mxnet"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else None


def in_flights(peer: str, work: Work, asked: int) -> tuple[int, ...]:
    """How many operations at a time a peer is measured with; the best one counts."""
    if work.tensors == 1:
        return (1,)
    return GLOO_IN_FLIGHT if peer == "gloo" else (asked,)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def elements(size: int, dtype: str) -> int:
    """Elements of a tensor of ``size`` bytes, which is a multiple of their length."""
    return size // np.dtype(dtype).itemsize


def summary(work: Work) -> dict[str, Any]:
    """For the JSON file."""
    return {**asdict(work), "step_bytes": work.step_bytes}
