"""The file of a trace: written whole or not at all, and read in pieces; damage is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from byteps_py.errors import TraceError
from byteps_py.telemetry.trace_file import FORMAT, Event, TraceReader, process_number, write_trace
from tests.helpers import traces

ABOUT = {
    "byteps_py": FORMAT,
    "role": "worker",
    "rank": 0,
    "num_worker": 2,
    "num_server": 1,
    "first_step": 10,
    "last_step": 20,
    "dropped": 0,
    "written": 1.5,
    "clock": {"error_us": None},
}
EVENTS = [
    Event("M", 9, 0, "process_name", args={"name": "worker 0"}),
    Event("M", 9, 1, "thread_name", args={"name": "lane 0"}),
    Event("X", 9, 1, 'Comm.ü"\n', "Comm", 5, 0, args={"name": 'Comm.ü"\n', "step": 10}),
    Event("X", 9, 1, "Comm.b", "Comm", 6, 3, args={"name": "Comm.b"}),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "0" / "comm.json"
    assert write_trace(found, ABOUT, EVENTS) == 4
    return found


def test_what_is_written_is_read(path: Path) -> None:
    reader = TraceReader(path)
    assert reader.about == ABOUT
    assert list(reader.events()) == EVENTS
    assert traces.check(path)[2] == {
        "ph": "X",
        "pid": 9,
        "tid": 1,
        "name": 'Comm.ü"\n',
        "cat": "Comm",
        "ts": 5,
        "dur": 0,
        "args": {"name": 'Comm.ü"\n', "step": 10},
    }


def test_without_events(tmp_path: Path) -> None:
    assert write_trace(tmp_path / "t.json", ABOUT, []) == 0
    assert traces.load(tmp_path / "t.json")["traceEvents"] == []
    assert list(TraceReader(tmp_path / "t.json").events()) == []


def test_many_events_are_written_in_pieces(tmp_path: Path) -> None:
    count = 30_000
    assert write_trace(tmp_path / "t.json", ABOUT, (EVENTS[3] for _ in range(count))) == count
    assert sum(1 for _ in TraceReader(tmp_path / "t.json").events()) == count


def test_a_write_that_fails_leaves_what_was_there(path: Path) -> None:
    def events() -> Iterator[Event]:
        yield EVENTS[0]
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    with pytest.raises(OSError, match="No space"):
        write_trace(path, ABOUT, events())
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_every_cut_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"comm\.json: "):
            list(TraceReader(path).events())


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b'"traceEvents":[\n', b'"traceEvents":[', "no trace that byteps_py has written"),
        (b'"byteps_py":1', b'"byteps_py":2', "not of format 1"),
        (b'"rank":0', b'"rank":', "first line is damaged"),
        (b'"role":"worker"', b'"role":"scheduler"', "does not say whose trace"),
        (b'"role":"worker"', b'"role":"job"', "does not say whose trace"),
        (b'"role":"worker"', b'"role":"job","processes":[{"role":"server"}]', "no rank, num_worker, num_server"),
        (b'"rank":0', b'"rank":"0"', "no rank"),
        (b'"clock":{"error_us":null}', b'"clock":5', "no clock"),
        (b'"written":1.5', b'"written":null', "no written"),
        (b'"pid":9,"tid":1,"name":"Comm.b"', b'"pid":"9","tid":1,"name":"Comm.b"', "line 5 is damaged"),
        (b'"ts":6', b'"ts":6.5', "line 5 is damaged"),
        (b"Comm.b", b"Comm.\xff", "line 5 is damaged"),
    ],
)
def test_damage_is_named(path: Path, old: bytes, new: bytes, text: str) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(TraceError, match=text):
        list(TraceReader(path).events())


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        TraceReader(tmp_path / "comm.json")


def test_processes_have_the_numbers_of_ps_lite() -> None:
    assert [process_number(role, rank) for role in ("server", "worker") for rank in (0, 1)] == [8, 10, 9, 11]
