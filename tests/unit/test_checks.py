"""Lists in messages."""

from __future__ import annotations

import pytest

from byteps_py.types import Participant, ServerInfo
from byteps_py.wire.checks import list_problem, local_rank_problem


def participant(rank: int, local_size: int = 1, incarnation: int = 5) -> Participant:
    return Participant(rank, rank, 0, local_size, "host-a", 7, incarnation)


def test_whoever_is_listed_has_its_place_as_rank() -> None:
    assert list_problem("participant", [participant(0), participant(1)]) is None
    assert list_problem("server", [ServerInfo(0, "tcp://a:1", "a", 1, 2**64 - 1)]) is None
    assert (list_problem("participant", [participant(1)]) or "").startswith(
        "participant 0 cannot be Participant(rank=1"
    )


@pytest.mark.parametrize("one", [participant(0, incarnation=2**64), participant(0, incarnation=-1)])
def test_numbers_that_cannot_be(one: Participant) -> None:
    assert "cannot be" in (list_problem("participant", [one]) or "")


def test_a_machine_without_processes() -> None:
    assert list_problem("participant", [participant(0, local_size=0)]) == (
        "participant 0 is one of 0 processes of its machine"
    )


def test_local_ranks() -> None:
    assert local_rank_problem(2, []) is None
    assert local_rank_problem(3, [2, 0]) is None
    assert local_rank_problem(2, [2]) == "2 workers of one machine cannot have the local ranks [2]"
    assert local_rank_problem(2, [1, 1]) is not None
