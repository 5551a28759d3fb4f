"""SIGTERM is taken note of."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from byteps_py.roles.termination import TERMINATED, Termination


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_first_one_is_a_request_and_a_later_one_is_urgent(clock: list[float]) -> None:
    woken = threading.Semaphore(0)
    with Termination(woken.release) as termination:
        assert not termination.requested
        signal.raise_signal(signal.SIGTERM)
        assert woken.acquire(timeout=10)
        assert (termination.requested, termination.urgent) == (True, False)
        clock[0] += 0.5
        signal.raise_signal(signal.SIGTERM)
        assert not termination.urgent, "the same one, delivered twice"
        clock[0] += 0.5
        signal.raise_signal(signal.SIGTERM)
        assert termination.urgent


def test_one_that_interrupts_the_handler_does_not_start_over(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is being started holds a lock that its starter cannot take once more."""
    started: list[object] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            started.append(self)
            if len(started) < 3:
                signal.raise_signal(signal.SIGTERM)

    with Termination(lambda: None) as termination:
        monkeypatch.setattr(threading, "Thread", Interrupted)
        signal.raise_signal(signal.SIGTERM)
        assert len(started) == 1
        assert (termination.requested, termination.urgent) == (True, False)


def test_afterwards_all_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Termination(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Termination(lambda: None) as termination:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not termination.requested
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_handles_no_signals() -> None:
    failures: list[BaseException] = []

    def enter() -> None:
        try:
            with Termination(lambda: None):
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)
    assert failures == []


def test_the_status_is_that_of_a_shell() -> None:
    assert TERMINATED == 143
