"""Settings of asynchronous training: contradictions, and processes that mean different kinds of it."""

from __future__ import annotations

import pytest

from byteps_py.core.roster import Roster
from byteps_py.errors import SettingsError
from byteps_py.roles.asynchrony import Asynchrony
from byteps_py.roles.neighbours import may_have_neighbours
from byteps_py.settings import ServerSettings, WorkerSettings, read
from byteps_py.types import Operation
from tests.helpers.registrations import server, worker

JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"BYTEPS_ENABLE_ASYNC": "1"}, True),
        ({"BYTEPS_ENABLE_ASYNC": "1", "BYTEPS_ASYNC_MAX_STALENESS": "4"}, True),
        ({"BYTEPS_ENABLE_ASYNC": "1", "BYTEPS_ASYNC_MAX_STALENESS": "0"}, False),
        ({"BYTEPS_ASYNC_MAX_STALENESS": "0"}, False),
        ({"BYTEPS_ENABLE_ASYNC": "1", "BYTEPS_ASYNC_MAX_STALENESS": "0", "BYTEPS_LOCAL_REDUCE": "on"}, False),
    ],
)
def test_whether_servers_hold_the_parameters(environ: dict[str, str], expected: bool) -> None:
    settings = read(WorkerSettings, {**JOB, **environ, "BYTEPS_LOCAL_SIZE": "2"})
    assert settings.is_asynchronous is expected
    assert Asynchrony(settings).is_on is expected
    assert (Asynchrony(settings).objection(Operation.SEED) is None) is expected
    assert Asynchrony(settings).objection(Operation.SUM) is None
    assert may_have_neighbours(settings) is not expected
    assert read(ServerSettings, {**JOB, **environ}).is_asynchronous is expected


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"BYTEPS_ASYNC_MAX_STALENESS": "3"}, "BYTEPS_ASYNC_MAX_STALENESS=3 is about asynchronous training: set"),
        ({"BYTEPS_ENABLE_ASYNC": "1", "BYTEPS_LOCAL_REDUCE": "on"}, "BYTEPS_LOCAL_REDUCE=on has workers of a machine"),
        ({"BYTEPS_ENABLE_ASYNC": "maybe"}, "BYTEPS_ENABLE_ASYNC='maybe' must be"),
        ({"BYTEPS_ENABLE_ASYNC": "1", "BYTEPS_ASYNC_MAX_STALENESS": "-1"}, "BYTEPS_ASYNC_MAX_STALENESS='-1' must be"),
    ],
)
def test_contradictions_are_told(environ: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        read(WorkerSettings, {**JOB, **environ})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"enable_async": True}, "BYTEPS_ENABLE_ASYNC is 0 on {} and 1 on {}: set the same"),
        ({"async_max_staleness": 0}, "BYTEPS_ASYNC_MAX_STALENESS is not set on {} and 0 on {}: set the same"),
    ],
)
@pytest.mark.parametrize("first", ["worker", "server"])
@pytest.mark.parametrize("second", ["worker", "server"])
def test_processes_that_differ_are_both_named(first: str, second: str, fields: dict[str, object], text: str) -> None:
    roster = Roster(2, 2)
    one = server(1, num_server=2) if first == "server" else worker(1, worker_id=0, num_server=2)
    other = worker(2, "host-b", worker_id=1, num_server=2, **fields)
    if second == "server":
        other = server(2, "host-b", num_server=2, **fields)
    assert roster.add(one) is None
    problem = roster.add(other)
    assert problem is not None
    assert problem.for_all
    assert problem.text.startswith(text.format(one.describe(), other.describe()))
    assert roster.get(other.peer) is None
