"""Traces of whole jobs inside this process: every way that a tensor goes, and every way that a job ends."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteps_py import cli
from byteps_py.errors import JobAborted
from byteps_py.session import Session
from byteps_py.telemetry.stages import Held, SumTimes, WorkerTimes
from byteps_py.telemetry.trace import Trace
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import DType, Operation, TensorSpec
from tests.helpers import traces
from tests.helpers.cluster import cluster

LARGE = TensorSpec("large", DType.FLOAT32, (60_000,))
LIGHT = [TensorSpec(f"light.{index}", DType.FLOAT32, (50,)) for index in range(3)]


def settings(folder: Path, first: int = 2, last: int = 3) -> dict[str, Any]:
    return {"trace_on": True, "trace_start_step": first, "trace_end_step": last, "trace_dir": str(folder)}


def train(session: Session, steps: int = 4) -> None:
    """``LARGE`` has two partitions; a light tensor contributes nothing, another one is a broadcast."""
    for step in range(steps):
        waiting = [session.submit(LARGE, np.ones(LARGE.shape, np.float32), None, Operation.SUM, step=step)]
        for index, spec in enumerate(LIGHT):
            source = None if index == 1 else np.ones(spec.shape, np.float32)
            operation = Operation.BROADCAST if index == 2 else Operation.AVERAGE
            waiting.append(session.submit(spec, source, None, operation, step=step))
        for each in waiting:
            each.wait()


def merged(folder: Path) -> list[dict[str, Any]]:
    assert cli.main(["trace", "merge", str(folder)]) == 0
    return traces.check(folder / "trace.json")


def test_a_job_of_two_machines(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with cluster(2, 2, partition_bytes=160_000, server=chosen, **chosen) as job:
        job.each(train)
        group = job.each(lambda session: session.form_group([0, 1]))
        assert group == [0, 0]
    files = sorted(str(each.parent.relative_to(tmp_path)) for each in tmp_path.rglob("comm.json"))
    assert files[0] == "0"
    assert files[1:3] == ["server-0", "server-1"]
    assert files[3] in ("worker-0", "worker-1"), "the folder is shared: it was to come second"
    events = merged(tmp_path)
    spans = [each for each in events if each["ph"] == "X"]
    assert {each["args"]["step"] for each in spans} == {2, 3}
    count = Counter((each["pid"], each["name"]) for each in spans)
    for worker in (9, 11):
        for spec in (LARGE, *LIGHT):
            assert count[worker, f"Comm.{spec.name}"] == 2
        for stage in ("QUEUE", "COPY_OUT"):
            assert count[worker, f"Comm.large.{stage}"] == 4
            assert count[worker, f"Comm.light.0.{stage}"] == 2
        assert count[worker, "Comm.large.PULL"] + count[worker, "Comm.large.PUSH_PULL"] == 4
        assert count[worker, "Comm.large.PUSH"] == count[worker, "Comm.large.PULL"]
        assert count[worker, "Comm.light.2.QUEUE"] == 2, "a broadcast goes the way of large tensors"
    by_servers = Counter(name for (pid, name), number in count.items() if pid in (8, 10) for _ in range(number))
    assert by_servers["Comm.large.SUM"] == by_servers["Comm.large.WAIT"] == by_servers["Comm.large"] == 4
    assert by_servers["Comm.large.RECEIVE"] == 8
    assert by_servers["Comm.light.2.REPLY"] == 2
    together = [each for each in spans if "tensors" in each["args"]]
    assert sum(len(each["args"]["tensors"]) for each in together) == 4
    arrows = Counter((each["name"], each["pid"]) for each in events if each["ph"] == "s")
    assert {name for name, _ in arrows} == {"push", "result"}
    assert all(
        each["clock"]["of"] == "scheduler" for each in traces.load(tmp_path / "trace.json")["otherData"]["processes"]
    )


def test_workers_that_sum_for_their_node(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    with cluster(3, 1, sizes=(2, 1), partition_bytes=160_000, local_reduce="on", server=chosen, **chosen) as job:
        job.each(train)
    spans = [each for each in merged(tmp_path) if each["ph"] == "X" and each["args"]["name"] == "Comm.large"]
    stages = Counter((each["pid"], each["name"].removeprefix("Comm.large.")) for each in spans)
    for worker in (9, 11):  # each sums one partition for both, in both steps
        for stage in ("REDUCE", "REDUCE_WAIT", "REDUCE_SUM", "REDUCE_QUEUE", "BROADCAST", "REDUCE_REPLY"):
            assert stages[worker, stage] == 2, stage
        assert stages[worker, "REDUCE_RECEIVE"] == 4
        assert stages[worker, "REDUCE_PULL"] + stages[worker, "REDUCE_PUSH_PULL"] == 2
    assert not stages[13, "REDUCE"]
    senders = Counter(
        each["args"]["worker"] for each in spans if each["pid"] == 8 and each["name"].endswith(".RECEIVE")
    )
    assert senders == {0: 2, 1: 2, 2: 4}


def test_a_group_of_workers_is_traced_by_name(tmp_path: Path) -> None:
    chosen = settings(tmp_path, 1, 2)

    def run(session: Session) -> None:
        if session.rank == 2:
            return
        spec = TensorSpec("pair", DType.FLOAT32, (100,), session.form_group([0, 1]))
        for step in range(2):
            session.submit(spec, np.ones(100, np.float32), None, Operation.SUM, step=step).wait()

    with cluster(3, 1, server=chosen, **chosen) as job:
        job.each(run)
    spans = [each for each in merged(tmp_path) if each["ph"] == "X"]
    assert Counter(each["pid"] for each in spans if each["name"] == "Comm.pair") == {8: 2, 9: 2, 11: 2}
    waits = [each for each in spans if each["name"] == "Comm.pair.WAIT"]
    assert len(waits) == 2
    assert {each["args"]["last"] for each in waits} <= {0, 1}


def test_what_is_under_way_when_the_job_ends_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = settings(tmp_path, 1, 5)

    def run(session: Session) -> None:
        train(session, 2)
        if session.rank == 0:
            session.submit(LARGE, np.ones(LARGE.shape, np.float32), None, Operation.SUM, step=2)

    with cluster(2, 1, server=chosen, **chosen) as job:
        job.each(run)
    spans = [each for each in merged(tmp_path) if each["ph"] == "X"]
    large = [each for each in spans if each["name"] == "Comm.large" and each["pid"] == 9]
    assert [each["args"]["step"] for each in large] == [1, 2]
    lost = [each for each in spans if each["args"].get("unfinished")]
    assert {each["args"]["step"] for each in lost} == {3}
    assert {(each["pid"], each["name"]) for each in lost} >= {(8, "Comm.large"), (9, "Comm.large.PULL")}
    capsys.readouterr()
    assert cli.main(["trace", "summary", str(tmp_path)]) == 0
    assert "Not over when the trace ended" in capsys.readouterr().out


def test_an_abort_is_told_before_the_trace_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, told = Trace.finish, []
    chosen = settings(tmp_path, 1, 5)

    with contextlib.suppress(JobAborted), cluster(2, 1, server=chosen, **chosen) as job:  # it may end with it, too
        job.each(lambda session: train(session, 2))

        def noted(trace: Trace) -> None:
            if trace._owner is not None and (trace._owner.role, trace._owner.rank) == ("worker", 0):
                told.append(len(job.aborts))
            finish(trace)

        monkeypatch.setattr(Trace, "finish", noted)
        job.sessions[1].close("was ended by the test")
        with pytest.raises(JobAborted, match="was ended by the test"):
            train(job.sessions[0])
    assert told == [1]
    written = [each for each in tmp_path.rglob("comm.json") if traces.load(each)["otherData"]["role"] == "worker"]
    assert len(written) == 2
    assert all(traces.spans(each) for each in written)


def test_a_scheduler_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    class Deaf(LoopbackNetwork):
        def deliver(self, receiver: Any, message: Any) -> None:
            if b"clock" not in bytes(message.frames[0]):
                super().deliver(receiver, message)

    chosen = settings(tmp_path)
    with cluster(2, 1, network=Deaf(), server=chosen, **chosen) as job:
        job.each(train)
    merged(tmp_path)
    processes = traces.load(tmp_path / "trace.json")["otherData"]["processes"]
    assert [each["clock"]["of"] for each in processes] == ["itself"] * 3


def test_without_a_trace_there_is_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with cluster(2, 1) as job:
        job.each(train)
        calls: Any = job.sessions[0]._worker
        assert type(calls._times) is WorkerTimes
        assert calls._tracing is None
    assert not list(tmp_path.iterdir())
    assert {each.__module__ for each in (Held, SumTimes, WorkerTimes)} == {"byteps_py.telemetry.stages"}
