"""How the scheduler says who is missing: people count machines, or processes where there is one machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from byteps_py.core.absence import counts, describe_missing, is_vouched_for
from byteps_py.core.places import Place, node_key
from byteps_py.core.roster import Member, Roster
from tests.helpers.registrations import process, server, worker


def filled(members: Sequence[Member], num_worker: int = 2, num_server: int = 1) -> Roster:
    roster = Roster(num_worker, num_server)
    for member in members:
        assert roster.add(member) is None
    return roster


def place(worker_id: int | None, local_rank: int = 0, local_size: int = 1, pid: int = 4242) -> Place:
    node = node_key(worker_id, "launch-of-host-b")
    return Place(node, worker_id, local_rank, local_size, process(pid, "host-b"))


class TestMachines:
    def test_who_is_missing(self) -> None:
        roster = Roster(2, 2)
        assert describe_missing(roster, []) == "2 of 2 workers; servers 0/2"
        roster.add(server(8, num_server=2))
        roster.add(server(9, num_server=2))
        assert describe_missing(roster, []) == "2 of 2 workers; servers 2/2"
        roster.add(worker(1, worker_id=0, num_server=2))
        assert describe_missing(roster, []) == "1 of 2 workers: missing DMLC_WORKER_ID=1; servers 2/2"
        roster.remove(b"s9")
        assert describe_missing(roster, []) == "1 of 2 workers: missing DMLC_WORKER_ID=1; servers 1/2"
        roster.add(worker(2, worker_id=1, num_server=2))
        assert describe_missing(roster, []) == "1 of 2 servers; workers 2/2"
        assert counts(roster) == "workers 2/2, servers 1/2"

    def test_machines_with_several_processes(self) -> None:
        roster = filled([worker(2, worker_id=1, local_rank=1, local_size=3)])
        assert describe_missing(roster, []) == (
            "2 of 2 worker machines: missing DMLC_WORKER_ID=0, BYTEPS_LOCAL_RANK=0, 2 of DMLC_WORKER_ID=1; servers 0/1"
        )
        assert counts(roster) == "worker machines 0/2, servers 0/1"

    def test_missing_processes_of_a_machine_without_an_id(self) -> None:
        roster = filled([worker(2, local_rank=1, local_size=2)])
        expected = "2 of 2 worker machines: missing BYTEPS_LOCAL_RANK=0 of host-a; servers 0/1"
        assert describe_missing(roster, []) == expected

    def test_ids_are_not_called_missing_where_workers_have_none(self) -> None:
        roster = filled([worker(1, worker_id=0, num_worker=3), worker(2, num_worker=3)], 3)
        assert describe_missing(roster, []) == "1 of 3 workers; servers 0/1"

    def test_long_lists_are_cut(self) -> None:
        roster = filled([worker(1, worker_id=0, local_size=2**31 - 1, num_worker=1000)], 1000)
        text = describe_missing(roster, [])
        assert text.startswith("1000 of 1000 worker machines: missing DMLC_WORKER_ID=1, DMLC_WORKER_ID=2, ")
        assert "and 992 more; servers 0/1" in text


class TestOneMachine:
    def test_processes_are_counted(self) -> None:
        roster = filled([worker(1, worker_id=0, local_rank=2, local_size=4, num_worker=1), server(9, num_worker=1)], 1)
        expected = "3 of 4 workers: missing worker 0, worker 1, worker 3; servers 1/1"
        assert describe_missing(roster, []) == expected
        assert counts(roster) == "workers 1/4, servers 1/1"

    def test_before_the_first_one_nobody_knows_how_many(self) -> None:
        roster = filled([server(9, num_worker=1)], 1)
        assert describe_missing(roster, []) == "the first worker: none has called init() yet; servers 1/1"
        assert counts(roster) == "workers 0, servers 1/1"
        assert describe_missing(roster, [place(0, 0, 1)]).startswith("1 of 1 worker: missing worker 0; servers 1/1; ")
        assert describe_missing(roster, [place(0, 1, 2)]) == (
            "2 of 2 workers: missing worker 0, worker 1; servers 1/1; "
            "worker 1 runs on host-b (pid 4242) but has not called init() yet"
        )

    def test_a_server_is_missing(self) -> None:
        roster = filled([worker(1, worker_id=0, num_worker=1)], 1)
        assert describe_missing(roster, []) == "1 of 1 server; workers 1/1"

    def test_a_number_from_the_network_is_not_counted_to(self) -> None:
        roster = filled([worker(1, worker_id=0, local_size=2**31 - 1, num_worker=1)], 1)
        text = describe_missing(roster, [])
        assert text.startswith("2147483646 of 2147483647 workers: missing worker 1, worker 2, ")
        assert text.endswith("worker 8 and 2147483638 more; servers 0/1")
        assert not is_vouched_for(roster, [place(0, 1, 2**31 - 1)])


class TestLiving:
    def test_one(self) -> None:
        roster = filled([worker(1, worker_id=0), server(9)])
        assert describe_missing(roster, [place(1)]) == (
            "1 of 2 workers: missing DMLC_WORKER_ID=1; servers 1/1; "
            "worker DMLC_WORKER_ID=1 runs on host-b (pid 4242) but has not called init() yet"
        )

    def test_several(self) -> None:
        places = [place(1, 0, 2, 4242), place(1, 1, 2, 4243)]
        assert describe_missing(Roster(2, 1), places) == (
            "2 of 2 worker machines: missing DMLC_WORKER_ID=0, DMLC_WORKER_ID=1; servers 0/1; "
            "these run but have not called init() yet: worker DMLC_WORKER_ID=1 BYTEPS_LOCAL_RANK=0 (pid 4242 on "
            "host-b), worker DMLC_WORKER_ID=1 BYTEPS_LOCAL_RANK=1 (pid 4243 on host-b)"
        )

    @pytest.mark.parametrize(
        ("members", "unjoined", "expected"),
        [
            ([], [], False),
            ([worker(1, worker_id=0), server(9)], [], False),
            ([worker(1, worker_id=0), server(9)], [place(1)], True),
            ([worker(1, worker_id=0), server(9)], [place(0)], False),
            ([worker(1, worker_id=0)], [place(1)], False),
            ([server(9)], [place(0), place(1)], True),
            ([server(9)], [place(0), place(None)], True),
            ([worker(1, worker_id=0), server(9)], [place(1, 0, 2)], False),
            ([worker(1, worker_id=0), server(9)], [place(1, 0, 2), place(1, 1, 2)], True),
            ([worker(1, worker_id=0), worker(2, worker_id=1, local_size=2), server(9)], [place(1, 1, 2)], True),
            ([worker(1, worker_id=0), worker(2, worker_id=1, local_size=2), server(9)], [], False),
        ],
    )
    def test_everyone_who_is_missing_lives(self, members: list[Member], unjoined: list[Place], expected: bool) -> None:
        assert is_vouched_for(filled(members), unjoined) is expected
