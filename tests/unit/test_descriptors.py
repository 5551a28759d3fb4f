"""The limit of open files."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import pytest

from byteps_py.errors import TransportError
from byteps_py.transport.descriptors import context, need, raise_limit

UNLIMITED = resource.RLIM_INFINITY


class Limits:
    """A process with 20 open files, and its limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits = (64, 64)
        monkeypatch.setattr(resource, "getrlimit", lambda kind: self.limits)
        monkeypatch.setattr(resource, "setrlimit", self._set)
        monkeypatch.setattr(os, "listdir", lambda path: ["0"] * 21)  # one of them for looking

    def _set(self, kind: int, limits: tuple[int, int]) -> None:
        self.limits = limits


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Limits:
    return Limits(monkeypatch)


@pytest.mark.parametrize("limits", [(64, 64), (UNLIMITED, UNLIMITED)])
def test_enough_is_left_alone(process: Limits, limits: tuple[int, int]) -> None:
    process.limits = limits
    need(44)
    assert process.limits == limits


def test_too_few_are_named_with_the_limit(process: Limits) -> None:
    with pytest.raises(TransportError) as caught:
        need(45)
    assert str(caught.value) == (
        "the limit of open files is too low: 20 are open, 45 more are needed, and `ulimit -n` is 64: raise it where "
        "this job is started"
    )


def test_each_further_io_thread_counts() -> None:
    """As many as libzmq opens, looked at in a process of its own."""
    script = """
import os, sys, zmq
count = lambda: len(os.listdir("/proc/self/fd"))
before = count()
context = zmq.Context(int(sys.argv[1]))
opened = context.socket(zmq.DEALER)
print(count() - before)
"""
    opened = [
        int(subprocess.run([sys.executable, "-c", script, each], capture_output=True, text=True, check=True).stdout)
        for each in ("1", "4")
    ]
    assert context(4) - context(1) == opened[1] - opened[0]


@pytest.mark.parametrize("hard", [65, UNLIMITED])
def test_the_soft_limit_is_raised_where_that_helps(process: Limits, hard: int) -> None:
    process.limits = (64, hard)
    need(45)
    assert process.limits == (65, hard)


@pytest.mark.parametrize(("hard", "raised"), [(64, 64), (4096, 4096), (1 << 30, 65536), (UNLIMITED, 65536)])
def test_who_listens_takes_what_it_can_get(process: Limits, hard: int, raised: int) -> None:
    process.limits = (64, hard)
    raise_limit()
    assert process.limits == (raised, hard)


def test_a_higher_limit_is_not_lowered(process: Limits) -> None:
    process.limits = (100_000, 100_000)
    raise_limit()
    assert process.limits == (100_000, 100_000)


@pytest.mark.parametrize(("number", "fails"), [(errno.EMFILE, True), (errno.ENOENT, False)])
def test_what_cannot_be_counted(process: Limits, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool) -> None:
    def listdir(path: str) -> list[str]:
        raise OSError(number, "x")

    monkeypatch.setattr(os, "listdir", listdir)
    if fails:
        with pytest.raises(TransportError, match="64 are open"):
            need(1)
    else:
        need(1)
