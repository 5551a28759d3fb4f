"""Groups of workers as the scheduler gives them out, and as a worker remembers them."""

from __future__ import annotations

import pytest

from byteps_py.core.actions import Send
from byteps_py.core.groups import Groups
from byteps_py.roles.groups import KnownGroups
from byteps_py.types import MAX_GROUP, DType, Operation, TensorSpec
from byteps_py.wire.control import FormGroup, Group, GroupFormed

SERVERS = [b"s0", b"s1"]


def groups(size: int = 4) -> Groups:
    return Groups(size, SERVERS)


def told(group: int, *ranks: int) -> list[Send]:
    return [Send(server, Group(group, ranks)) for server in SERVERS]


class TestGroups:
    """The scheduler's side."""

    def test_who_asks_is_answered_when_all_servers_know_the_group(self) -> None:
        made = groups()
        assert made.form(b"w0", 0, FormGroup(5, (0, 2))) == told(1, 0, 2)
        assert made.form(b"w2", 2, FormGroup(9, (0, 2))) == []
        assert made.known(b"s1", 1) == []
        assert made.known(b"s1", 1) == []
        assert made.known(b"s0", 1) == [Send(b"w0", GroupFormed(5, 1)), Send(b"w2", GroupFormed(9, 1))]
        assert made.known(b"s0", 1) == []
        assert made.form(b"w2", 2, FormGroup(9, (0, 2))) == [Send(b"w2", GroupFormed(9, 1))]
        assert made.form(b"w0", 0, FormGroup(6, (0, 2))) == [Send(b"w0", GroupFormed(6, 1))]

    def test_a_question_that_comes_again_is_put_to_the_servers_that_have_not_answered(self) -> None:
        made = groups()
        made.form(b"w0", 0, FormGroup(1, (0, 1)))
        made.known(b"s0", 1)
        assert made.form(b"w0", 0, FormGroup(1, (0, 1))) == [Send(b"s1", Group(1, (0, 1)))]
        assert made.known(b"s1", 1) == [Send(b"w0", GroupFormed(1, 1))]

    def test_each_set_of_ranks_has_an_id_of_its_own(self) -> None:
        made = groups()
        assert made.form(b"w0", 0, FormGroup(1, (0, 1))) == told(1, 0, 1)
        assert made.form(b"w1", 1, FormGroup(1, (1, 2))) == told(2, 1, 2)
        assert made.form(b"w1", 1, FormGroup(2, (1,))) == told(3, 1)
        for server in SERVERS:
            last = made.known(server, 2)
        assert last == [Send(b"w1", GroupFormed(1, 2))]

    @pytest.mark.parametrize("group", [0, 2, MAX_GROUP])
    def test_word_of_a_group_that_there_is_not(self, group: int) -> None:
        made = groups()
        made.form(b"w0", 0, FormGroup(1, (0, 1)))
        assert made.known(b"s0", group) == []

    @pytest.mark.parametrize(
        ("ranks", "words"), [((0, 4), "there is no worker 4: ranks are 0 to 3"), ((1, 2), "worker 0 is not one of")]
    )
    def test_impossible_ranks(self, ranks: tuple[int, ...], words: str) -> None:
        (answer,) = groups().form(b"w0", 0, FormGroup(1, ranks))
        assert isinstance(answer.message, GroupFormed)
        assert (answer.peer, answer.message.group) == (b"w0", 0)
        assert words in answer.message.problem

    def test_there_are_only_so_many(self) -> None:
        made = Groups(MAX_GROUP + 2, [b"s0"])
        for other in range(1, MAX_GROUP + 1):
            made.form(b"w0", 0, FormGroup(other, (0, other)))
            made.known(b"s0", other)
        (answer,) = made.form(b"w0", 0, FormGroup(0, (0, MAX_GROUP + 1)))
        assert isinstance(answer.message, GroupFormed)
        assert "8191 groups" in answer.message.problem
        assert made.form(b"w0", 0, FormGroup(0, (0, 1))) == [Send(b"w0", GroupFormed(0, 1))]


class TestKnownGroups:
    """A worker's side."""

    def test_the_same_set_is_asked_for_once(self) -> None:
        asked: list[tuple[int, ...]] = []
        known = KnownGroups(2, 4)
        for ranks in ([3, 2], (2, 3), range(2, 4)):
            assert known.form(ranks, lambda ranks: asked.append(ranks) or 7) == 7  # type: ignore[func-returns-value]
        assert asked == [(2, 3)]

    def test_all_workers_are_group_zero(self) -> None:
        assert KnownGroups(1, 3).form([2, 0, 1], lambda ranks: 7) == 0

    @pytest.mark.parametrize(
        ("ranks", "words"),
        [
            ([], "at least one rank"),
            ([1, 4], r"ranks \(1, 4\): ranks are 0 to 3"),
            ([-1, 1], "ranks are 0 to 3"),
            ([1, 1, 2], r"each of its ranks once, not \(1, 1, 2\)"),
            ([0, 2], "worker 1 cannot form the group"),
        ],
    )
    def test_impossible_ranks(self, ranks: list[int], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            KnownGroups(1, 4).form(ranks, lambda ranks: 7)

    def test_ranks_must_be_whole_numbers(self) -> None:
        with pytest.raises(TypeError):
            KnownGroups(1, 4).form([1, 2.5], lambda ranks: 7)  # type: ignore[list-item]

    def test_tensors_of_groups_are_checked(self) -> None:
        known = KnownGroups(1, 4)
        spec = TensorSpec("w", DType.FLOAT32, (3,), 7)
        with pytest.raises(ValueError, match="'w' is of group 7, which this process has not formed"):
            known.check(spec)
        known.form([1, 2], lambda ranks: 7)
        known.check(spec)
        known.check(spec, Operation.BROADCAST, 2)
        known.check(spec, Operation.SUM, 0)
        with pytest.raises(ValueError, match=r"root 0 is not one of the ranks of group 7: \[1, 2\]"):
            known.check(spec, Operation.BROADCAST, 0)
