"""Who sums what for a node."""

from __future__ import annotations

import dataclasses

import pytest

from byteps_py.errors import SettingsError, TransportError
from byteps_py.roles.lacking import Lacking
from byteps_py.roles.neighbours import Neighbours, connect, find_neighbours, may_have_neighbours
from byteps_py.settings import WorkerSettings, read
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import Participant, Partition, ServerInfo, make_key
from byteps_py.wire.control import Placement, Welcome

SETTINGS = WorkerSettings(num_worker=2, num_server=2, root_uri="127.0.0.1", root_port=9, local_size=2)
WORKERS = (
    Participant(0, 0, 0, 2, "host-a", 10, 500),
    Participant(1, 0, 1, 2, "host-a", 11, 501),
    Participant(2, 1, 0, 1, "host-b", 12, 502),
)
SERVERS = (ServerInfo(0, "tcp://a:1", "host-a", 20, 600), ServerInfo(1, "tcp://c:1", "host-c", 21, 601))


def found(rank: int = 0, workers: tuple[Participant, ...] = WORKERS, **changed: str | int) -> Neighbours | None:
    settings = dataclasses.replace(SETTINGS, **changed)  # type: ignore[arg-type]
    return find_neighbours(Welcome(77, 1, rank, workers, SERVERS), settings)


def test_servers_of_other_hosts_get_one_contribution_of_the_node() -> None:
    for rank in (0, 1):
        assert found(rank) == Neighbours(WORKERS[:2], frozenset({1}), 2)


def test_all_servers_do_where_that_is_asked_for() -> None:
    assert found(local_reduce="on") == Neighbours(WORKERS[:2], frozenset({0, 1}), 2)


def test_nobody_is_needed() -> None:
    assert found(2, local_size=1) is None
    assert found(local_reduce="off") is None
    assert found(transport="tcp") is None
    one_host = tuple(Participant(rank, 0, rank, 2, "host-a", 10 + rank, 500 + rank) for rank in range(2))
    here = Welcome(77, 1, 0, one_host, SERVERS[:1])
    assert find_neighbours(here, SETTINGS) is None


def test_processes_of_a_node_on_several_hosts_share_no_memory() -> None:
    apart = (WORKERS[0], dataclass_like(WORKERS[1], "host-x"), WORKERS[2])
    assert found(workers=apart) is None


def dataclass_like(worker: Participant, host: str) -> Participant:
    return Participant(worker.rank, worker.node, worker.local_rank, worker.local_size, host, worker.pid, 501)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [({}, True), ({"local_size": 1}, False), ({"local_reduce": "off"}, False), ({"transport": "tcp"}, False)],
)
def test_who_listens_for_others(changed: dict[str, str], expected: bool) -> None:
    assert may_have_neighbours(dataclasses.replace(SETTINGS, **changed)) is expected  # type: ignore[arg-type]


def test_partitions_are_shared_out() -> None:
    neighbours = Neighbours(WORKERS[:2], frozenset({1}), 2)
    pieces = tuple(Partition(make_key(3, index), index * 9, 9, server) for index, server in enumerate((1, 0, 1, 1)))
    routed = neighbours.route(Placement("w", 3, pieces), 4 * 36)
    assert [each.server for each in routed.partitions] == [3, 0, 3, 2]
    assert [each.key for each in routed.partitions] == [each.key for each in pieces]


@pytest.mark.parametrize(("nbytes", "server"), [(0, 1), (65535, 1), (65536, 3)])
def test_what_travels_with_others_goes_to_its_server(nbytes: int, server: int) -> None:
    neighbours = Neighbours(WORKERS[:2], frozenset({1}), 2)
    placement = Placement("w", 3, (Partition(make_key(3, 0), 0, nbytes, 1),))
    assert neighbours.route(placement, nbytes).partitions[0].server == server


def test_a_process_of_the_node_that_cannot_be_reached() -> None:
    network = LoopbackNetwork()
    me = network.endpoint(b"worker-%016x" % 500)
    me.listen_lanes()
    welcome = Welcome(77, 1, 0, WORKERS, SERVERS)
    with pytest.raises(TransportError, match=r"worker 1 \(pid 11 on host-a\) sums .* must be equal in all processes"):
        connect(me, welcome, Neighbours(WORKERS[:2], frozenset({1}), 2))


def test_a_server_that_is_told_whom_a_node_waits_for_names_these_only() -> None:
    lacking = Lacking(WORKERS)
    assert lacking.narrow(7, 1, (0, 1, 2)) == (0, 1, 2)
    lacking.note(0, 7, 1, [1, 2, 99])
    assert list(lacking.narrow(7, 1, (0, 1, 2))) == [1, 2]
    assert list(lacking.narrow(7, 2, (0, 1, 2))) == [0, 1, 2]
    assert lacking.narrow(8, 1, (0, 1)) == (0, 1)
    lacking.note(2, 7, 1, [0])
    assert list(lacking.narrow(7, 1, (0, 2))) == [2]


def test_sums_in_a_node_cannot_be_asked_for_without_shared_memory() -> None:
    environ = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "9000",
        "BYTEPS_LOCAL_REDUCE": "on",
    }
    assert read(WorkerSettings, environ).local_reduce == "on"
    with pytest.raises(SettingsError, match="BYTEPS_LOCAL_REDUCE=on needs shared memory, which BYTEPS_TRANSPORT=tcp"):
        read(WorkerSettings, environ | {"BYTEPS_TRANSPORT": "tcp"})
