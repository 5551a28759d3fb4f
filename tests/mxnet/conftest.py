"""What holds for every test of the MXNet plugin: nothing failed that nobody was told of."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def all_is_told() -> Iterator[None]:
    yield
    if find_spec("mxnet") is not None:
        from byteps_py.mxnet.engine import engine

        is_drained = engine.drain(30)
        if not is_drained:
            engine.reset()  # for the tests that follow
        assert is_drained, "works are still on their way"
        assert engine.take_failure() is None
