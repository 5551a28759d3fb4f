"""Nodes and ranks follow from what the processes are, not from when they arrived."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import msgspec
import pytest

from byteps_py.core.places import node_key
from byteps_py.core.roster import Member, Problem, Roster, is_same_process
from byteps_py.types import Role
from tests.helpers.registrations import process, server, worker


def with_counts(member: Member, num_worker: int, num_server: int) -> Member:
    counted = msgspec.structs.replace(member.register, num_worker=num_worker, num_server=num_server)
    return Member(member.peer, counted)


def filled(members: Sequence[Member], num_worker: int = 2, num_server: int = 1) -> Roster:
    roster = Roster(num_worker, num_server)
    for member in members:
        assert roster.add(member) is None
    return roster


def problem_of(roster: Roster, member: Member) -> Problem:
    before = list(roster)
    problem = roster.add(member)
    assert problem is not None
    assert list(roster) == before
    return problem


def worker_order(members: Sequence[Member], num_worker: int) -> list[tuple[int, int, int, int]]:
    """``(pid, node, local rank, local size)`` of the participants in order of rank."""
    roster = filled([with_counts(each, num_worker, 0) for each in members], num_worker, 0)
    assert roster.is_complete
    seating = roster.seating()
    assert [each.rank for each in seating.participants] == list(range(len(members)))
    assert list(seating.worker_ranks.values()) == list(range(len(members)))
    for peer, rank in seating.worker_ranks.items():
        assert peer == f"w{seating.participants[rank].pid}".encode()
    return [(each.pid, each.node, each.local_rank, each.local_size) for each in seating.participants]


class TestShares:
    def test_by_machine(self) -> None:
        members = [worker(1, "host-a", worker_id=0), worker(2, "host-b", worker_id=1), worker(3, "host-c", worker_id=2)]
        servers = [server(7, "host-a"), server(8, "host-b"), server(9, "host-d")]
        members = [with_counts(each, 3, 3) for each in (*members, *servers)]
        seating = filled(members, 3, 3).seating()
        assert seating.weights == pytest.approx((2 / 7, 2 / 7, 3 / 7))
        assert seating.senders == 3

    def test_equal_ones_where_that_is_wanted(self) -> None:
        roster = Roster(1, 1, by_machine=False)
        for member in (worker(1, worker_id=0), server(9)):
            assert roster.add(with_counts(member, 1, 1)) is None
        assert roster.seating().weights is None

    @pytest.mark.parametrize(("choice", "senders"), [("auto", 1), ("off", 2)])
    def test_processes_that_do_not_sum_send_each_for_itself(self, choice: str, senders: int) -> None:
        members = [
            worker(pid, worker_id=0, local_rank=pid - 1, local_size=2, local_reduce=choice, num_worker=1)
            for pid in (1, 2)
        ]
        assert filled([*members, with_counts(server(9, "host-b"), 1, 1)], 1, 1).seating().senders == senders


class TestRanks:
    def test_by_worker_id_and_local_rank(self) -> None:
        members = [
            worker(10, "host-z", worker_id=0, local_rank=0, local_size=2),
            worker(11, "host-z", worker_id=0, local_rank=1, local_size=2),
            worker(12, "host-a", worker_id=1),
            worker(13, "host-m", worker_id=2, local_rank=0, local_size=3),
            worker(14, "host-m", worker_id=2, local_rank=1, local_size=3),
            worker(15, "host-m", worker_id=2, local_rank=2, local_size=3),
        ]
        expected = [(10, 0, 0, 2), (11, 0, 1, 2), (12, 1, 0, 1), (13, 2, 0, 3), (14, 2, 1, 3), (15, 2, 2, 3)]
        for seed in range(20):
            arrived = random.Random(seed).sample(members, len(members))
            assert worker_order(arrived, 3) == expected

    def test_without_ids_by_host_and_process(self) -> None:
        members = [worker(30, "host-b"), worker(7, "host-c"), worker(200, "host-a"), worker(31, "host-b")]
        for arrived in itertools.permutations(members):
            assert [row[0] for row in worker_order(arrived, 4)] == [200, 30, 31, 7]

    def test_nodes_with_an_id_come_first(self) -> None:
        members = [worker(1, "host-a"), worker(2, "host-b", worker_id=1)]
        for arrived in itertools.permutations(members):
            assert [row[0] for row in worker_order(arrived, 2)] == [2, 1]

    def test_processes_that_were_launched_together_are_one_node(self) -> None:
        def launched(pid: int, launch_id: str, local_rank: int) -> Member:
            return worker(pid, launch_id=launch_id, local_rank=local_rank, local_size=2)

        members = [launched(4, "x", 1), launched(9, "x", 0), launched(5, "y", 0), launched(6, "y", 1)]
        for arrived in itertools.permutations(members):
            assert worker_order(arrived, 2) == [(9, 0, 0, 2), (4, 0, 1, 2), (5, 1, 0, 2), (6, 1, 1, 2)]

    def test_a_worker_id_is_stronger_than_a_common_launch(self) -> None:
        members = [
            worker(1, worker_id=1, launch_id="x"),
            worker(2, worker_id=0, launch_id="x"),
        ]
        assert [row[:2] for row in worker_order(members, 2)] == [(2, 0), (1, 1)]

    def test_single_processes_on_one_host_are_nodes_of_their_own(self) -> None:
        members = [worker(2), worker(1)]
        assert [row[:2] for row in worker_order(members, 2)] == [(1, 0), (2, 1)]

    def test_several_processes_on_one_host_are_one_node(self) -> None:
        members = [worker(pid, local_rank=3 - pid, local_size=3) for pid in (1, 2, 3)]
        assert worker_order(members, 1) == [(3, 0, 0, 3), (2, 0, 1, 3), (1, 0, 2, 3)]

    def test_servers_by_host_and_port(self) -> None:
        members = [server(1, "host-b", 9999), server(2, "host-b", 10000), server(3, "host-a", 50000)]
        for arrived in itertools.permutations(with_counts(each, 1, 3) for each in members):
            seating = filled(arrived, 1, 3).seating()
            assert [each.pid for each in seating.servers] == [3, 1, 2]
            assert [each.address for each in seating.servers][1] == "tcp://host-b:9999"
            assert seating.server_ranks == {b"s3": 0, b"s1": 1, b"s2": 2}

    def test_an_address_without_a_port_is_ordered_too(self) -> None:
        members = [server(1, address="ipc://b", num_server=2), server(2, address="ipc://a", num_server=2)]
        assert [each.pid for each in filled(members, 2, 2).seating().servers] == [2, 1]

    def test_what_a_participant_and_a_server_are(self) -> None:
        seating = filled(
            [worker(1, "host-w", incarnation=77, num_worker=1), server(2, "host-s", num_worker=1)], 1
        ).seating()
        assert seating.participants[0].describe() == "worker 0 (pid 1 on host-w)"
        assert seating.participants[0].incarnation == 77
        assert seating.servers[0].describe() == "server 0 (pid 2 on host-s)"


class TestCompleteness:
    def test_every_process_of_every_node_and_every_server(self) -> None:
        roster = Roster(2, 2)
        members = [
            worker(1, worker_id=0, local_size=2, num_server=2),
            server(9, num_server=2),
            worker(2, worker_id=0, local_rank=1, local_size=2, num_server=2),
            worker(3, worker_id=1, num_server=2),
        ]
        for member in members:
            assert roster.add(member) is None
            assert not roster.is_complete
        assert roster.add(server(8, num_server=2)) is None
        assert roster.is_complete

    def test_partition_bytes(self) -> None:
        roster = Roster(2, 1)
        assert roster.partition_bytes is None
        roster.add(server(9))
        assert roster.partition_bytes is None
        roster.add(worker(2, worker_id=1, partition_bytes=0))
        assert roster.partition_bytes is None
        roster.remove(b"w2")
        roster.add(worker(1, partition_bytes=512))
        assert roster.partition_bytes == 512


class TestMembers:
    def test_lookups(self) -> None:
        one, two = worker(1), server(2)
        roster = filled([one, two])
        assert len(roster) == 2
        assert list(roster) == [one, two]
        assert roster.get(b"w1") is one
        assert roster.get(b"x") is None
        assert roster.find(process(2)) is two
        assert roster.find(process(3)) is None
        assert roster.find(process(2, "host-b")) is None

    def test_the_worker_of_a_place_in_a_launch(self) -> None:
        one = worker(1, launch_id="x", local_rank=1, local_size=2, num_worker=1)
        roster = filled([one, server(2, launch_id="x", num_worker=1)], 1)
        assert roster.find_child("x", 1) is one
        assert roster.find_child("x", 0) is None
        assert roster.find_child("y", 1) is None
        assert filled([worker(1)]).find_child("", 0) is None

    def test_places(self) -> None:
        roster = filled([worker(1, worker_id=1, local_rank=1, local_size=2), worker(2, launch_id="x")])
        assert roster.is_taken(node_key(1, "anything"), 1)
        assert not roster.is_taken(node_key(1, ""), 0)
        assert not roster.is_taken(node_key(0, ""), 1)
        assert roster.is_taken(node_key(None, "x"), 0)

    @pytest.mark.parametrize("member", [worker(1, worker_id=0), worker(1), server(1)])
    def test_a_removed_member_leaves_no_trace(self, member: Member) -> None:
        roster = filled([member])
        roster.remove(member.peer)
        assert len(roster) == 0
        assert (roster.nodes, roster.servers, roster.has_workers) == ({}, 0, False)
        assert roster.add(member) is None

    def test_a_removed_process_leaves_its_node(self) -> None:
        roster = filled([worker(1, worker_id=0, local_size=2), worker(2, worker_id=0, local_size=2, local_rank=1)])
        assert roster.complete_nodes == 1
        roster.remove(b"w1")
        assert roster.complete_nodes == 0
        assert [list(node) for node in roster.nodes.values()] == [[1]]

    @pytest.mark.parametrize(
        ("member", "text"),
        [
            (worker(1), "worker (pid 1 on host-a)"),
            (worker(1, worker_id=3), "worker DMLC_WORKER_ID=3 (pid 1 on host-a)"),
            (
                worker(1, worker_id=3, local_rank=1, local_size=2),
                "worker DMLC_WORKER_ID=3 BYTEPS_LOCAL_RANK=1 (pid 1 on host-a)",
            ),
            (worker(1, worker_id=0, local_rank=1, local_size=2, num_worker=1), "worker 1 (pid 1 on host-a)"),
            (server(1), "server (pid 1 on host-a)"),
        ],
    )
    def test_description(self, member: Member, text: str) -> None:
        assert member.describe() == text


class TestDisagreement:
    """What must be equal everywhere; everybody is told."""

    def test_number_of_workers(self) -> None:
        problem = problem_of(Roster(2, 1), worker(1, worker_id=0, num_worker=3))
        assert problem.for_all
        assert problem.text == (
            "DMLC_NUM_WORKER is 2 at the scheduler and 3 on worker DMLC_WORKER_ID=0 (pid 1 on host-a): "
            "set the same value everywhere"
        )

    def test_number_of_servers(self) -> None:
        problem = problem_of(Roster(2, 1), server(1, num_server=2))
        assert problem.for_all
        assert problem.text.startswith("DMLC_NUM_SERVER is 1 at the scheduler and 2 on server (pid 1 on host-a)")

    def test_partition_bytes(self) -> None:
        roster = filled([server(9), worker(1, worker_id=0, partition_bytes=4096000)])
        problem = problem_of(roster, worker(2, "host-b", worker_id=1, partition_bytes=1024000))
        assert problem.for_all
        assert problem.text == (
            "BYTEPS_PARTITION_BYTES is 4096000 on worker DMLC_WORKER_ID=0 (pid 1 on host-a) and 1024000 on "
            "worker DMLC_WORKER_ID=1 (pid 2 on host-b): set the same value everywhere"
        )

    @pytest.mark.parametrize(
        ("first", "second", "text"),
        [
            ({"local_reduce": "on"}, {"local_reduce": "auto"}, "BYTEPS_LOCAL_REDUCE is 'on' on {} and 'auto' on {}"),
            ({"local_reduce": "off"}, {"local_reduce": "auto"}, "BYTEPS_LOCAL_REDUCE is 'off' on {} and 'auto' on {}"),
            (
                {"local_reduce": "auto", "transport": "tcp"},
                {"local_reduce": "auto", "transport": "shm"},
                "BYTEPS_TRANSPORT is 'tcp' on {} and 'shm' on {}",
            ),
        ],
    )
    def test_processes_of_a_node_sum_together_or_not_at_all(
        self, first: dict[str, str], second: dict[str, str], text: str
    ) -> None:
        node = {"worker_id": 0, "local_size": 2}
        roster = filled([worker(1, local_rank=0, **node, **first)])
        problem = problem_of(roster, worker(2, local_rank=1, **node, **second))
        assert problem.for_all
        names = [f"worker DMLC_WORKER_ID=0 BYTEPS_LOCAL_RANK={rank} (pid {rank + 1} on host-a)" for rank in (0, 1)]
        assert problem.text == f"{text.format(*names)}, which are on one machine: set the same value for both"

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ({"local_reduce": "off", "transport": "auto"}, {"local_reduce": "auto", "transport": "tcp"}),
            ({"local_reduce": "on", "transport": "auto"}, {"local_reduce": "on", "transport": "shm"}),
        ],
    )
    def test_settings_of_a_node_that_come_to_the_same(self, first: dict[str, str], second: dict[str, str]) -> None:
        node = {"worker_id": 0, "local_size": 2}
        filled([worker(1, local_rank=0, **node, **first), worker(2, local_rank=1, **node, **second)])

    def test_two_machines_with_one_place_are_not_called_one(self) -> None:
        node = {"worker_id": 0, "local_size": 2}
        roster = filled([worker(1, local_rank=0, local_reduce="on", **node)])
        problem = problem_of(roster, worker(2, "host-b", local_rank=1, local_reduce="off", **node))
        assert problem.for_all
        assert problem.text == (
            "BYTEPS_LOCAL_REDUCE is 'on' on worker DMLC_WORKER_ID=0 BYTEPS_LOCAL_RANK=0 (pid 1 on host-a) and 'off' on "
            "worker DMLC_WORKER_ID=0 BYTEPS_LOCAL_RANK=1 (pid 2 on host-b), which say to be of one machine: set "
            "the same value for both, or give every machine its DMLC_WORKER_ID"
        )

    def test_machines_may_sum_differently(self) -> None:
        filled([worker(1, worker_id=0, local_reduce="on"), worker(2, "host-b", worker_id=1, local_reduce="off")])

    def test_no_shared_memory_with_a_server_that_has_none(self) -> None:
        both = [worker(1, worker_id=0, transport="shm"), server(9, transport="tcp")]
        names = ["worker DMLC_WORKER_ID=0 (pid 1 on host-a)", "server (pid 9 on host-a)"]
        for first, second, values in ((0, 1, ("shm", "tcp")), (1, 0, ("tcp", "shm"))):
            problem = problem_of(filled([both[first]]), both[second])
            assert problem.for_all
            assert problem.text == (
                f"BYTEPS_TRANSPORT is {values[0]!r} on {names[first]} and {values[1]!r} on {names[second]}: "
                "set the same value on servers and workers, or auto"
            )

    @pytest.mark.parametrize(("one", "other"), [("shm", "auto"), ("auto", "tcp"), ("tcp", "shm"), ("tcp", "auto")])
    def test_transports_that_go_together(self, one: str, other: str) -> None:
        filled([worker(1, worker_id=0, transport=one), server(9, transport=other)])

    def test_servers_have_no_partition_bytes(self) -> None:
        filled([worker(1, partition_bytes=64), server(9, partition_bytes=0)])


class TestObjections:
    """What concerns only the one that registers."""

    def test_a_place_that_is_taken(self) -> None:
        roster = filled([worker(1, worker_id=0)])
        problem = problem_of(roster, worker(2, "host-b", worker_id=0))
        assert not problem.for_all
        assert problem.text.startswith(
            "worker DMLC_WORKER_ID=0 (pid 2 on host-b) claims the place of worker DMLC_WORKER_ID=0 (pid 1 on host-a)"
        )

    @pytest.mark.parametrize("name", ["local_reduce", "transport"])
    def test_a_place_that_is_taken_is_not_compared_with_its_holder(self, name: str) -> None:
        values = {"local_reduce": ("on", "off"), "transport": ("auto", "tcp")}[name]
        roster = filled([worker(1, worker_id=0, **{name: values[0]})])
        problem = problem_of(roster, worker(2, "host-b", worker_id=0, **{name: values[1]}))
        assert not problem.for_all
        assert "claims the place of" in problem.text

    def test_a_local_rank_that_is_taken(self) -> None:
        roster = filled([worker(1, launch_id="x", local_rank=1, local_size=2)])
        problem = problem_of(roster, worker(2, launch_id="x", local_rank=1, local_size=2))
        assert "BYTEPS_LOCAL_RANK=1 (pid 2 on host-a) claims the place of" in problem.text

    def test_one_node_with_two_sizes(self) -> None:
        roster = filled([worker(1, worker_id=0, local_rank=0, local_size=2)])
        problem = problem_of(roster, worker(2, worker_id=0, local_rank=1, local_size=3))
        assert problem.text == (
            "BYTEPS_LOCAL_SIZE is 2 on worker DMLC_WORKER_ID=0 BYTEPS_LOCAL_RANK=0 (pid 1 on host-a) and 3 on "
            "worker DMLC_WORKER_ID=0 BYTEPS_LOCAL_RANK=1 (pid 2 on host-a), which are on one machine: "
            "set the same value for both"
        )

    def test_too_many_workers(self) -> None:
        roster = filled([worker(1), worker(2)])
        problem = problem_of(roster, worker(3))
        assert problem.text == (
            "worker (pid 3 on host-a) is one too many for DMLC_NUM_WORKER=2: there are worker (pid 1 on host-a), "
            "worker (pid 2 on host-a)"
        )

    def test_an_incomplete_node_counts(self) -> None:
        roster = filled([worker(1, worker_id=0, local_size=2), worker(2)])
        assert "one too many" in problem_of(roster, worker(3)).text
        assert roster.add(worker(4, worker_id=0, local_rank=1, local_size=2)) is None

    def test_too_many_servers(self) -> None:
        problem = problem_of(filled([server(1)]), server(2))
        assert problem.text.startswith(
            "server (pid 2 on host-a) is one too many for DMLC_NUM_SERVER=1: there are server"
        )

    def test_one_address_twice(self) -> None:
        roster = filled([server(1, port=80, num_server=2)], 2, 2)
        problem = problem_of(roster, server(2, port=80, num_server=2))
        assert "announces tcp://host-a:80, the address of server (pid 1 on host-a)" in problem.text

    @pytest.mark.parametrize(
        ("member", "words"),
        [
            (server(1, address=""), "no address"),
            (worker(1, worker_id=2), "DMLC_WORKER_ID=2 of worker DMLC_WORKER_ID=2 (pid 1 on host-a) must be below"),
            (worker(1, local_rank=2, local_size=2), "BYTEPS_LOCAL_RANK=2 of worker"),
            (worker(1, role=Role.SCHEDULER), "has its scheduler"),
        ],
    )
    def test_what_cannot_be(self, member: Member, words: str) -> None:
        problem = problem_of(Roster(2, 1), member)
        assert words in problem.text
        assert not problem.for_all


class TestSameProcess:
    def test_all_that_identifies(self) -> None:
        one = process(1)
        assert is_same_process(one, process(1))
        assert not is_same_process(one, process(2))
        assert not is_same_process(one, process(1, "host-b"))

    def test_a_pid_that_was_used_again(self) -> None:
        earlier = msgspec.structs.replace(process(1), started=5)
        assert not is_same_process(process(1), earlier)

    def test_an_unknown_start(self) -> None:
        unknown = msgspec.structs.replace(process(1), started=0)
        assert is_same_process(process(1), unknown)
        assert is_same_process(unknown, process(1))
