"""What holds for every test: it leaves no process, socket file, shared memory or temporary file of ours behind, nor
the log set up in another way, and nothing depends on how fast the machine is."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.helpers import leftovers

_GRACE_SECONDS = 30.0
"""The project promises that every process of a job ends within 5 s of the decision. A machine that is busy with other
tests gets more: what is looked for here is what stays."""

_TOGETHER = ("test_install.py::TestInstalled::",)
"""Parts of names of tests that one process runs one after the other."""

_WATCHED_FOLDERS = frozenset({"fault", "integration", "mxnet", "network"})
"""Tests in these folders start processes and are checked one by one; all others once, at the end of the run."""

hypothesis.settings.register_profile(
    "byteps_py", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("few", hypothesis.settings.get_profile("byteps_py"), max_examples=20)
hypothesis.settings.load_profile("byteps_py")


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Each test is for the next process that is free, except those that share something expensive."""

    def _split_scope(self, nodeid: str) -> str:
        return next((each for each in _TOGETHER if each in nodeid), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling:
    """Where tests run beside one another (``-n 4``), this says which process runs which."""
    return _Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def run_mark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Marks this run's processes, gives them a temporary folder of their own, and looks around at the end."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(leftovers.RUN_MARK, mark)
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp", numbered=False)))
        patch.setattr(tempfile, "tempdir", None)
        # COLUMNS and LINES, the size of no terminal, come from pytest-xdist.
        for name in [name for name in os.environ if name.startswith(("DMLC_", "BYTEPS_", "OMP_", "COLUMNS", "LINES"))]:
            patch.delenv(name)
        before = leftovers.look(mark)
        yield mark
        _check(mark, before)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, run_mark: str) -> Iterator[None]:
    """Fails an integration test that leaves something behind, by name."""
    if _WATCHED_FOLDERS.isdisjoint(request.path.parts):
        yield
        return
    before = leftovers.look(run_mark)
    yield
    _check(run_mark, before)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A test that runs a program's main function in this process leaves no handler of it behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A session that is a job of its own."""
    from byteps_py import session  # late: what is loaded first, torch or our kernels, is for the tests to say

    for name in list(os.environ):
        if name.startswith(("DMLC_", "BYTEPS_")):
            monkeypatch.delenv(name)
    session.init()
    yield
    session.shutdown()


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A test that sets up the package's log, as every role does, does so for itself alone."""
    logger = logging.getLogger("byteps_py")
    before = logger.level, logger.propagate, [*logger.handlers]
    yield
    logger.setLevel(before[0])
    logger.propagate = before[1]
    logger.handlers[:] = before[2]


def _check(mark: str, before: leftovers.Leftovers) -> None:
    left = leftovers.wait_until_gone(mark, before, _GRACE_SECONDS)
    if left:
        leftovers.end_processes(mark, before)
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)
