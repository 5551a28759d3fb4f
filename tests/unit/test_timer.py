"""A deadline that one thread sets for another."""

from __future__ import annotations

import os
import select

from byteps_py.transport.timer import Timer


def test_it_becomes_readable_and_is_read_once() -> None:
    timer = Timer()
    poller = select.poll()
    poller.register(timer.fileno(), select.POLLIN)
    assert poller.poll(0) == []
    timer.set(0.001)
    assert poller.poll(10_000)
    timer.read()
    assert poller.poll(20) == []
    timer.read()
    timer.close()


def test_the_last_setting_counts() -> None:
    timer = Timer()
    poller = select.poll()
    poller.register(timer.fileno(), select.POLLIN)
    timer.set(0.0)
    timer.set(3600.0)
    assert poller.poll(50) == []
    timer.set(0.0)
    assert poller.poll(10_000)
    timer.close()
    assert not os.path.exists(f"/proc/self/fd/{timer.fileno()}")
