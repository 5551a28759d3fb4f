"""How a job stands, for one who asks from outside."""

from __future__ import annotations

from byteps_py.core.census import take_census
from byteps_py.core.roster import Roster
from byteps_py.types import Role
from byteps_py.wire.control import Inquiry, Status, encode_control
from byteps_py.wire.inquiry import MAX_SOFTWARE, Software
from tests.helpers.registrations import server, worker


def test_nobody() -> None:
    census = take_census("gathering", Roster(2, 1), ())
    assert (census.machines, census.workers, census.servers, census.software) == (0, 0, 0, ())
    assert census.missing == "2 of 2 workers; servers 0/1"


def test_equal_software_is_one_entry() -> None:
    roster = Roster(2, 2)
    for member in (
        worker(1, "host-a", worker_id=0, num_server=2, software="torch 2"),
        worker(2, "host-b", worker_id=1, num_server=2, software="torch 2"),
        server(3, "host-c", num_server=2),
        server(4, "host-d", num_server=2, version="0.2.0"),
    ):
        assert roster.add(member) is None
    census = take_census("running", roster, ())
    assert census.software == (
        Software(Role.WORKER, "0.1.0", "torch 2", 2, "host-b"),
        Software(Role.SERVER, "0.1.0", "", 1, "host-c"),
        Software(Role.SERVER, "0.2.0", "", 1, "host-d"),
    )
    assert (census.machines, census.workers, census.servers, census.missing) == (2, 2, 2, "")


def test_the_answer_does_not_grow_with_the_job() -> None:
    count = 3 * MAX_SOFTWARE
    roster = Roster(count, 1)
    for index in range(count):
        odd = {"version": "v" * 4000 + str(index), "software": f"{index}" + "ü" * 200}
        assert roster.add(worker(index + 1, "h" * 64, worker_id=index, num_worker=count, **odd)) is None
    census = take_census("gathering", roster, ())
    own = Software(Role.SCHEDULER, "1", "", 1, "host")
    status = Status(
        1,
        "job",
        census.state,
        (own, *census.software),
        1,
        census.num_worker,
        census.num_server,
        census.machines,
        census.workers,
        census.servers,
        "m" * 10_000,
        0,
        0,
    )
    assert len(census.software) == MAX_SOFTWARE
    assert len(encode_control(status)) < 20_000
    assert len(encode_control(Inquiry(1))) < 40
