"""Futures that a thread completes."""

from __future__ import annotations

import gc
import os
import threading

import pytest

torch = pytest.importorskip("torch")

from byteps_py.torch import futures  # noqa: E402
from byteps_py.torch.futures import Completer  # noqa: E402

SECONDS = 60


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "byteps-futures"}


def test_results_and_errors_come_in_the_order_of_asking() -> None:
    completer, go, order = Completer(), threading.Event(), []

    def fail() -> None:
        order.append("second")
        raise KeyError("broken")

    first = completer.future(lambda: (go.wait(SECONDS), order.append("first")), lambda: torch.ones(2))
    second = completer.future(fail, lambda: order.append("never"))
    third = completer.future(lambda: order.append("third"), lambda: 3)
    assert not first.done()
    go.set()
    assert third.wait() == 3
    assert first.wait().tolist() == [1.0, 1.0]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            second.wait()
    assert order == ["first", "second", "third"]
    completer.close()


def test_a_callback_may_ask_for_another_future_and_wait_for_that() -> None:
    completer = Completer()

    def ask(depth: int):
        return completer.future(lambda: None, lambda: ask(depth - 1).wait() + 1 if depth else 0)

    assert ask(3).wait() == 3
    completer.close()


def test_a_callback_may_wait_for_futures_that_were_asked_for_before() -> None:
    completer, go = Completer(), threading.Event()
    first = completer.future(lambda: go.wait(SECONDS), lambda: 1)
    later = []
    chained = first.then(lambda _: sum(each.wait() for each in later))
    later += [completer.future(lambda: None, lambda value=value: value) for value in (10, 20)]
    nested = later[0].then(lambda _: completer.future(lambda: None, lambda: 5).wait() + later[1].wait())
    done = threading.Event()
    torch.futures.collect_all([chained, nested]).then(lambda _: done.set())
    go.set()
    assert done.wait(SECONDS)
    assert (chained.value(), nested.value()) == (30, 25)
    completer.close()


def test_the_end_of_the_interpreter_waits_once_for_all_and_not_after_an_error(monkeypatch) -> None:
    monkeypatch.setattr(futures, "_EXIT_SECONDS", 0.2)
    go = threading.Event()
    completers = [Completer() for _ in range(30)]
    for each in completers:
        each.future(lambda: go.wait(SECONDS), lambda: None)
    waited = []
    monkeypatch.setattr(futures._Crew, "join", lambda crew, until: waited.append(until))
    with monkeypatch.context() as patch:
        patch.setattr(futures.last_words, "cause", lambda: "failed: KeyError")
        futures._close_all()
        assert not waited
    futures._close_all()
    assert len(waited) >= 30
    assert len(set(waited)) == 1
    go.set()


def test_the_threads_end_with_their_completer_and_by_close() -> None:
    before = threads()
    completer = Completer()
    completer.future(lambda: None, lambda: None).wait()
    started = threads() - before  # one, or two, by how quickly the first comes back from the callback
    completer.close()
    assert started
    assert not any(each.is_alive() for each in started)
    assert completer.future(lambda: None, lambda: 5).wait() == 5  # and there is another when it is needed
    started = threads() - before
    del completer
    gc.collect()
    assert started
    for each in started:
        each.join(SECONDS)
    assert not any(each.is_alive() for each in started)


def test_a_forked_child_has_a_thread_of_its_own() -> None:
    completer = Completer()
    completer.future(lambda: None, lambda: None).wait()
    child = os.fork()
    if child == 0:
        os._exit(completer.future(lambda: None, lambda: 7).wait())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    completer.close()
