"""Where results are written that workers read where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_py.roles.results import Results
from byteps_py.transport.base import Endpoint
from tests.helpers.rounds_stage import RecordingEndpoint


@pytest.fixture
def endpoint() -> RecordingEndpoint:
    return RecordingEndpoint()


@pytest.fixture
def results(endpoint: RecordingEndpoint) -> Results:
    given: Endpoint = endpoint  # type: ignore[assignment]
    return Results(given)


def test_rounds_take_turns(results: Results, endpoint: RecordingEndpoint) -> None:
    rooms = [results.room(5, round_, 8) for round_ in range(1, 6)]
    assert [endpoint.lies_in(each) for each in rooms] == [0, 1, 0, 1, 0]
    assert endpoint.renewed == [0, 1, 0]


def test_keys_have_their_own(results: Results, endpoint: RecordingEndpoint) -> None:
    rooms = [results.room(key, 1, 8) for key in (5, 6, 5 << 32)]
    assert [endpoint.lies_in(each) for each in rooms] == [0, 1, 2]
    assert endpoint.renewed == []


def test_another_size_is_made_anew_and_the_old_one_let_go(results: Results, endpoint: RecordingEndpoint) -> None:
    results.room(5, 1, 8)
    room = results.room(5, 3, 16)
    assert (endpoint.lies_in(room), room.nbytes) == (1, 16)
    assert endpoint.renewed == []
    results.room(5, 5, 16)
    assert endpoint.renewed == [1]


def test_it_is_writable_bytes(results: Results) -> None:
    room = results.room(5, 1, 8)
    assert (room.readonly, room.format, room.nbytes) == (False, "B", 8)
    np.frombuffer(room, np.uint8)[:] = 7
    assert bytes(results.room(5, 3, 8)) == bytes([7] * 8)
