"""What callers wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from byteps_py.errors import JobAborted
from byteps_py.roles.pending import Pending, Signal, is_done_by
from byteps_py.types import DType, TensorSpec

SPEC = TensorSpec("w", DType.BFLOAT16, (2, 3))


def test_a_signal_wakes_every_waiter() -> None:
    signal = Signal()
    threads = [threading.Thread(target=signal.wait) for _ in range(3)]
    for each in threads:
        each.start()
    assert not signal.done()
    signal.complete()
    for each in threads:
        each.join(10)
        assert not each.is_alive()


def test_a_forked_child_does_not_wait_for_its_parents_operation() -> None:
    """In a process of its own: this one may have threads, and must not be forked then."""
    script = """
import os
from byteps_py.errors import NotInitializedError
from byteps_py.roles.pending import Signal
signal = Signal()
if not os.fork():
    try:
        signal.wait()
    except NotInitializedError:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "7\n", done.stderr


def test_the_first_outcome_counts() -> None:
    signal = Signal()
    signal.fail(JobAborted("first"))
    signal.fail(JobAborted("second"))
    signal.complete()
    for _ in range(2):
        with pytest.raises(JobAborted, match="first"):
            signal.wait()
    done = Signal()
    done.complete()
    done.fail(JobAborted("too late"))
    done.wait()


def test_without_an_output_one_is_made_in_the_storage_dtype() -> None:
    pending = Pending(SPEC, None)
    assert pending.output.shape == (2, 3)
    assert pending.output.dtype == np.uint16


def test_wait_returns_the_output_itself() -> None:
    output = np.zeros((2, 3), np.uint16)
    pending = Pending(SPEC, output)
    assert not pending.done()
    pending.complete(absent=True)
    assert pending.done()
    assert pending.wait() is output
    assert pending.absent


def test_a_callback_is_called_once_whoever_comes_first() -> None:
    calls: list[str] = []
    late, early, failing = Pending(SPEC, None), Pending(SPEC, None), Pending(SPEC, None)
    late.call_when_done(lambda: calls.append("late"))
    failing.call_when_done(lambda: calls.append("failing"))
    assert calls == []
    late.complete(absent=False)
    failing.fail(JobAborted("lost"))
    failing.fail(JobAborted("again"))
    early.complete(absent=False)
    early.call_when_done(lambda: calls.append("early"))
    assert calls == ["late", "failing", "early"]


def test_a_callback_and_the_end_that_cross_are_one_call() -> None:
    for _ in range(200):
        calls: list[int] = []
        pending = Pending(SPEC, None)
        thread = threading.Thread(target=pending.complete, args=(False,))
        thread.start()
        pending.call_when_done(lambda calls=calls: calls.append(1))
        thread.join(10)
        assert calls == [1]


def test_until_when_somebody_sleeps() -> None:
    pending = Pending(TensorSpec("t", DType.FLOAT32, (1,)), None)
    assert not is_done_by(pending, time.monotonic())
    assert not is_done_by(pending, time.monotonic() + 0.01)
    threading.Timer(0.05, pending.complete, [False]).start()
    assert is_done_by(pending, None)
    assert is_done_by(pending, time.monotonic() - 1)
