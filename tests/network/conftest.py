"""Hosts for the tests of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.namespaces import Network, network, why_not


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[int], Network]]:
    """Makes networks of so many hosts, each with a folder of its own; skips the test where that is not possible."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    numbers = itertools.count()

    def make(count: int) -> Network:
        folder = tmp_path / f"network-{next(numbers)}"
        folder.mkdir()
        return stack.enter_context(network(folder, count))

    with ExitStack() as stack:
        yield make
