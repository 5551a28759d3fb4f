"""How much memory a server takes at most: eight workers with 256 MB each, one of them late."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

WORKERS = 8
MODEL = 256_000_000
"""Bytes that each worker pushes a round."""
SLACK = 200_000_000
"""For the interpreter, libraries, and pages that the allocator keeps."""

WORKER = f"""
import time
import numpy as np
import byteps_py as bps
bps.init()
arrays = [np.full({MODEL} // 64 // 4, 1.0, np.float32) for _ in range(64)]
for round_ in range(2):
    bps.barrier()
    if bps.rank() == {WORKERS - 1}:
        time.sleep(1.5)
    handles = [bps.push_pull_async(each, f't{{index}}', out=each) for index, each in enumerate(arrays)]
    for handle in handles:
        bps.synchronize(handle)
assert all(each.min() == each.max() == {WORKERS}.0 ** 2 for each in arrays)
bps.shutdown()
"""

BOUNDS = {
    # A contribution of each worker, and the results: a worker may push all it has before the last one comes.
    "tcp": ("pss", (WORKERS + 1) * MODEL + SLACK),
    # Two results of each key; contributions stay in the memory of the workers.
    "shm": ("uss", 2 * MODEL + SLACK),
}


def server_below(launcher: psutil.Process) -> psutil.Process | None:
    for each in launcher.children(recursive=True):
        try:
            if each.environ().get("DMLC_ROLE") == "server":
                return each
        except psutil.Error:
            continue
    return None


@pytest.mark.parametrize("transport", BOUNDS)
def test_a_server_takes_no_more_than_it_must(transport: str) -> None:
    if psutil.virtual_memory().available < 2 * (2 * WORKERS + 2) * MODEL:
        pytest.skip("there is not enough memory for eight workers with 256 MB")
    command = [sys.executable, "-m", "byteps_py.launcher", "-n", str(WORKERS), "-s", "1", "--", sys.executable]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    environ["BYTEPS_TRANSPORT"] = transport
    kind, bound = BOUNDS[transport]
    peak = 0
    with subprocess.Popen([*command, "-c", WORKER], env=environ, stderr=subprocess.PIPE, text=True) as job:
        launcher, server = psutil.Process(job.pid), None
        deadline = time.monotonic() + 100
        while job.poll() is None and time.monotonic() < deadline:
            try:
                server = server or server_below(launcher)
                if server is not None:
                    peak = max(peak, getattr(server.memory_full_info(), kind))
            except psutil.Error:
                pass
            time.sleep(0.1)
        if job.poll() is None:
            job.terminate()
        assert job.stderr is not None
        errors = job.stderr.read()
    assert job.returncode == 0, errors
    assert 0 < peak <= bound
    if transport == "tcp":  # else the late worker was not late enough to show anything
        assert peak > 2 * MODEL
