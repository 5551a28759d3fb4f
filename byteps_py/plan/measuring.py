"""What sums, copies, bytes and messages cost on this machine: seconds of measuring for each.

Rates are the best of several turns, because whatever else runs makes turns slower and none faster.  They are those of a
core while all others do the same, since all share the memory, and in a job all are at work.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps_py.errors import BytePSError
from byteps_py.kernels import Kernels, select
from byteps_py.plan import message_probe
from byteps_py.plan.costs import Costs
from byteps_py.plan.link import Clock
from byteps_py.types import DType

__all__ = ["best_seconds", "copy_rate", "measure_costs", "message_seconds", "sum_rate", "wire_seconds"]

_Array = npt.NDArray[Any]

_BYTES: Final = 4 << 20
"""Of a buffer: the largest partition; all of them together are more than caches hold."""
_SOURCES: Final = 4
_TURNS: Final = 5
_CALLS: Final = 4
_WIRE_BYTES: Final = 256 << 20
_CHUNK: Final = 1 << 20
_JOB_SECONDS: Final = 60.0
"""After which a job that takes about three has failed."""
_LEAST_SECONDS: Final = 1e-6
_ROOT: Final = str(Path(__file__).resolve().parents[2])


def measure_costs(environ: Mapping[str, str], say: Callable[[str], object], clock: Clock = time.perf_counter) -> Costs:
    """Measure all of them; takes about five seconds.

    Args:
        environ: of the job that measures messages.
        say: gets a line before each part.
        clock: for sums and copies.

    Raises:
        BytePSError: there are no kernels, or that job failed.
    """
    kernels = select("native")
    threads = len(os.sched_getaffinity(0))
    say("measuring 1 of 4: sums")
    summed = sum_rate(kernels, threads, clock)
    say("measuring 2 of 4: copies")
    copied = copy_rate(kernels, threads, clock)
    say("measuring 3 of 4: bytes through TCP")
    wire = wire_seconds()
    say("measuring 4 of 4: messages, in a job of one worker and one server")
    return Costs(summed, copied, wire, message_seconds(environ, summed, copied))


def best_seconds(work: Callable[[], object], clock: Clock) -> float:
    """Of one call, in the best of several turns, after one that does not count."""
    work()
    best = float("inf")
    for _ in range(_TURNS):
        begin = clock()
        work()
        best = min(best, clock() - begin)
    return max(best, _LEAST_SECONDS)


def sum_rate(kernels: Kernels, threads: int, clock: Clock) -> float:
    """Bytes per second of contributions in float32 that each of ``threads`` sums at the same time."""
    count = _BYTES // 4
    buffers = [[np.ones(count, np.float32) for _ in range(_SOURCES + 1)] for _ in range(threads)]

    def work(own: list[_Array]) -> None:
        for _ in range(_CALLS):
            kernels.sum_groups(own[0], own[1:], [1] * _SOURCES, DType.FLOAT32, count, 1, 1)

    return _CALLS * _SOURCES * _BYTES / _together(work, buffers, clock)


def copy_rate(kernels: Kernels, threads: int, clock: Clock) -> float:
    """Bytes per second that each of ``threads`` copies at the same time."""
    buffers = [[np.ones(_BYTES, np.uint8) for _ in range(2 * _SOURCES)] for _ in range(threads)]

    def work(own: list[_Array]) -> None:
        for _ in range(_CALLS):
            for index in range(_SOURCES):
                kernels.copy(own[index], own[_SOURCES + index], _BYTES, 1)

    return _CALLS * _SOURCES * _BYTES / _together(work, buffers, clock)


def _together(work: Callable[[list[_Array]], None], buffers: list[list[_Array]], clock: Clock) -> float:
    """Seconds of a call when a thread for each of the buffers makes it."""
    with ThreadPoolExecutor(len(buffers)) as pool:
        return best_seconds(lambda: list(pool.map(work, buffers)), clock)


def wire_seconds(nbytes: int = _WIRE_BYTES, cpu_clock: Clock = time.process_time) -> float:
    """CPU seconds of a byte at one end of a TCP connection, over loopback: half of what both ends take."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sending = socket.create_connection(server.getsockname(), _JOB_SECONDS)
        receiving, _ = server.accept()
    with sending, receiving:
        receiving.settimeout(_JOB_SECONDS)
        chunk, room = bytes(_CHUNK), bytearray(_CHUNK)

        def send() -> None:
            for _ in range(-(-nbytes // _CHUNK)):
                sending.sendall(chunk)
            sending.shutdown(socket.SHUT_WR)

        begin = cpu_clock()
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        count = 0
        while got := receiving.recv_into(room):
            count += got
        sender.join()
        return max(cpu_clock() - begin, 0.0) / (2 * count)


def message_seconds(environ: Mapping[str, str], summed: float, copied: float) -> float:
    """CPU seconds of a partition in a process that handles it, from a job on this machine, bytes not counted.

    Args:
        environ: what the job inherits; variables of another one do not reach it.
        summed, copied: rates, by which the time of the bytes is taken out.

    Raises:
        BytePSError: the job has failed, with the end of what it said.
    """
    own = {name: text for name, text in environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    own |= {"BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_PARTITION_BYTES": str(message_probe.PARTITION_BYTES)}
    # -P is younger than our oldest Python: not from the working folder, where another byteps_py may lie.
    run = f"import sys; sys.path[:1] = []; sys.path.append({_ROOT!r}); import runpy; runpy.run_module"
    launcher = f"{run}('byteps_py.launcher', run_name='__main__', alter_sys=True)"
    probe = f"{run}('byteps_py.plan.message_probe', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", launcher, "-n", "1", "-s", "1", "--no-prefix", "--", sys.executable, "-c", probe]
    with subprocess.Popen(
        command, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            out, err = job.communicate(timeout=_JOB_SECONDS)
        except subprocess.TimeoutExpired:
            job.terminate()
            out, err = job.communicate()
            err += f"\nit was ended after {_JOB_SECONDS:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith(message_probe.PREFIX)]
    if job.returncode or not lines:
        said = " / ".join((out + err).strip().splitlines()[-3:])
        raise BytePSError(f"the job that measures messages ended with status {job.returncode}: {said}")
    found = float(lines[-1].removeprefix(message_probe.PREFIX))
    nbytes = message_probe.PARTITION_BYTES
    return max(found - nbytes * (2 / copied + 1 / summed), _LEAST_SECONDS)
