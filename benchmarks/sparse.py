"""What a sparse gradient costs as rows, and what it costs dense: bytes on the way, and seconds.

    python -m benchmarks.sparse [--rows 1000000] [--width 64] [--density 0.01] [--rounds 5] [--json FILE]

A gradient of so many rows of float32, of which each worker has others, is averaged in turn dense and as rows, in one
job of two workers and one server on this machine.  The bytes are those of all frames that the workers hand to their
endpoints for the server and get from there, with headers, whether they go over TCP or through shared memory; the
seconds are those of the slowest worker, from the call to the result.  Both results are compared, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import arguments, environment, figures
from benchmarks.side import SideError, perform
from benchmarks.systems import one_thread

WORKERS = 2
_LIMIT_SECONDS = 900


class Traffic:
    """Counts the bytes of data messages of this process: of every frame that an endpoint sends or gives out."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Count from now on; before ``init()``."""
        from byteps_py.roles.member import SCHEDULER
        from byteps_py.transport.host import HostEndpoint

        send, receive, receive_lanes = HostEndpoint.send, HostEndpoint.receive, HostEndpoint.receive_lanes

        def counting_send(endpoint: Any, peer: bytes, frames: Sequence[Any]) -> bool:
            if peer != SCHEDULER:
                with self._lock:
                    self.sent += sum(memoryview(each).nbytes for each in frames)
            return send(endpoint, peer, frames)

        def counting(found: list[Any]) -> list[Any]:
            with self._lock:
                self.received += sum(frame.nbytes for each in found if each.peer != SCHEDULER for frame in each.frames)
            return found

        HostEndpoint.send = counting_send  # type: ignore[method-assign]
        HostEndpoint.receive = lambda endpoint, timeout: counting(receive(endpoint, timeout))  # type: ignore[method-assign]
        HostEndpoint.receive_lanes = lambda endpoint: counting(receive_lanes(endpoint))  # type: ignore[method-assign]

    def take(self) -> tuple[int, int]:
        """Bytes sent and received since the last call."""
        with self._lock:
            found, self.sent, self.received = (self.sent, self.received), 0, 0
        return found


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = arguments.parser("sparse", (__doc__ or "").partition("\n\n")[0])
    for name, default, text in (("rows", 1_000_000, "of the gradient"), ("width", 64, "elements of a row")):
        found.add_argument(f"--{name}", type=arguments.natural, default=default, help=f"{text} (default: %(default)s)")
    found.add_argument("--density", type=_density, default=0.01, help="rows that a worker has (default: %(default)s)")
    found.add_argument("--rounds", type=arguments.whole(1, 10_000), default=5, help="of both (default: %(default)s)")
    found.add_argument(
        "--transport",
        choices=arguments.TRANSPORTS,
        default=os.environ.get(arguments.TRANSPORT, "auto"),
        help="(default: $BYTEPS_TRANSPORT, or auto)",
    )
    found.add_argument("--json", type=arguments.json_file, metavar="FILE", help="(default: nowhere)")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the ratios, write the JSON file; returns the exit status."""
    options = parser().parse_args(words)

    def body() -> None:
        found = measure(options.rows, options.width, options.density, options.rounds, options.transport)
        for kind in ("dense", "rows"):
            each = found[kind]
            print(
                f"{kind}: {each['sent']} bytes pushed and {each['received']} pulled by a worker in a round, "
                f"{each['seconds'] * 1e3:.1f} ms (median of {options.rounds})"
            )
        print(
            f"rows over dense: {found['bytes_ratio'] * 100:.3f} % of the bytes, "
            f"{found['seconds_ratio'] * 100:.1f} % of the time; the results are equal, bit for bit"
        )
        figures.write(options.json, found | {"environment": environment.describe()})

    return perform("sparse", body)


def measure(rows: int, width: int, density: float, rounds: int, transport: str) -> dict[str, Any]:
    """Bytes of a worker in a round (the mean of all) and seconds (the median of the slowest), of each kind.

    Raises:
        SideError: the job has failed, or the results differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        task = json.dumps({"rows": rows, "width": width, "density": density, "rounds": rounds, "folder": folder})
        launch = [sys.executable, "-m", "byteps_py.launcher", "-n", str(WORKERS), "-s", "1", "--"]
        command = [*launch, sys.executable, "-m", "benchmarks.sparse", "--worker", task]
        environ = {**os.environ, **one_thread(), arguments.TRANSPORT: transport}
        try:
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SideError(f"the job took more than {_LIMIT_SECONDS} seconds") from error
        if done.returncode:
            raise SideError(f"the job has failed:\n{done.stderr[-2000:]}")
        workers = [json.loads(each.read_text()) for each in sorted(Path(folder).glob("worker-*.json"))]
    found: dict[str, Any] = {"rows_of_tensor": rows, "width": width, "density": density, "rounds": rounds}
    for kind in ("dense", "rows"):
        slowest = [max(each) for each in zip(*(worker[kind]["seconds"] for worker in workers), strict=True)]
        found[kind] = {
            name: round(statistics.fmean(each for worker in workers for each in worker[kind][name]))
            for name in ("sent", "received")
        }
        found[kind] |= {"seconds": statistics.median(slowest), "all_seconds": slowest}
    dense, sparse = (found[kind]["sent"] + found[kind]["received"] for kind in ("dense", "rows"))
    found["bytes_ratio"] = sparse / dense
    found["seconds_ratio"] = found["rows"]["seconds"] / found["dense"]["seconds"]
    return found


def work(task: dict[str, Any]) -> None:
    """Be a worker: average the same gradient dense and as rows, in turn, and write down what that took."""
    import byteps_py as bps

    traffic = Traffic()
    traffic.watch()
    bps.init()
    rows, width = task["rows"], task["width"]
    generator = np.random.default_rng(bps.rank())
    indices = np.sort(generator.choice(rows, max(1, round(rows * task["density"])), replace=False))
    values = generator.standard_normal((len(indices), width), np.float32)
    dense, average = np.zeros((rows, width), np.float32), np.empty((rows, width), np.float32)
    dense[indices] = values
    found: dict[str, dict[str, list[float]]] = {
        kind: {"seconds": [], "sent": [], "received": []} for kind in ("dense", "rows")
    }
    calls: dict[str, Callable[[], Any]] = {
        "dense": lambda: bps.push_pull(dense, "dense", bps.AVG, out=average),
        "rows": lambda: bps.push_pull_rows(indices, values, rows, "rows", bps.AVG),
    }
    for number in range(-1, task["rounds"]):
        for kind in ("dense", "rows") if number % 2 else ("rows", "dense"):
            bps.barrier()
            traffic.take()
            begun = time.perf_counter()
            result = calls[kind]()
            taken = time.perf_counter() - begun
            bps.barrier()  # what is still on its way belongs to this round
            if number >= 0:  # the first declares the tensors
                for name, each in zip(("sent", "received"), traffic.take(), strict=True):
                    found[kind][name].append(each)
                found[kind]["seconds"].append(taken)
            if kind == "rows":
                which, some = result
    spread = np.zeros_like(average)
    spread[which] = some
    if spread.tobytes() != average.tobytes():
        sys.exit("the result of rows is not that of the dense gradient")
    (Path(task["folder"]) / f"worker-{bps.rank()}.json").write_text(json.dumps(found))
    bps.shutdown()


def _density(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0, at most 1, not {word!r}")
    return number


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
