"""The session of a process that is a job of its own: what it counts, and its record."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import byteps_py as bps
from byteps_py import session
from byteps_py.errors import NotInitializedError, SettingsError, UnsupportedError
from byteps_py.roles.rows import Rows
from byteps_py.telemetry.recorder import Recorder
from byteps_py.telemetry.stages import WORKER_STAGES
from byteps_py.types import DType, Operation, TensorSpec


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing describes a job here, and there is no session afterwards."""
    for name in list(os.environ):
        if name.startswith(("DMLC_", "BYTEPS_")):
            monkeypatch.delenv(name)
    yield
    bps.shutdown()


def record(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("*/*/worker-0.jsonl")
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_stats_count_steps_samples_and_cpu_time() -> None:
    bps.init()
    bps.push_pull(np.ones(3), "x")
    bps.step(samples=16)
    bps.step()
    before = time.process_time()
    found = bps.stats()
    assert before <= found.pop("cpu_seconds") <= time.process_time()
    assert found == {
        "role": "worker",
        "rank": 0,
        "steps": 2,
        "samples": 16,
        "messages": {"sent": 0, "received": 0},
        "transport": {"shm": 0, "tcp": 0},
        "stages": {name: {"count": 0, "seconds": 0.0} for name in WORKER_STAGES},
        "staleness": {"count": 0, "mean": 0.0, "max": 0},
    }
    json.dumps(found)


@pytest.mark.parametrize(
    ("samples", "counted"), [(np.int64(3), 3), (np.float32(0.5), 0.5), (np.array(4), 4), (True, 1), (0, 0)]
)
def test_samples_may_be_numbers_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: Any, counted: float
) -> None:
    monkeypatch.setenv("BYTEPS_AB_RECORD", str(tmp_path))
    bps.init()
    bps.step(samples=samples)
    found = bps.stats()["samples"]
    assert (found, type(found)) == (counted, type(counted))
    bps.shutdown()
    assert record(tmp_path)[-1]["samples"] == counted


@pytest.mark.parametrize(
    ("samples", "error"),
    [("many", TypeError), ([1], TypeError), (-1, ValueError), (np.nan, ValueError), (1e999, ValueError)],
)
def test_samples_that_cannot_be_count_nothing(samples: Any, error: type[Exception]) -> None:
    bps.init()
    with pytest.raises(error, match="takes"):
        bps.step(samples=samples)
    assert (bps.stats()["steps"], bps.stats()["samples"]) == (0, 0)


def test_a_record_that_cannot_be_ended_does_not_hold_the_goodbye(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Recorder.close

    def fail(self: Recorder) -> None:
        close(self)
        raise KeyboardInterrupt

    monkeypatch.setenv("BYTEPS_AB_RECORD", str(tmp_path))
    bps.init()
    said: list[str] = []
    monkeypatch.setattr(session.current()._worker, "close", said.append)
    monkeypatch.setattr(Recorder, "close", fail)
    with pytest.raises(KeyboardInterrupt):
        bps.shutdown()
    assert said == [""]


def test_a_script_that_marks_its_steps_knows_better_than_an_optimizer() -> None:
    bps.init()
    for _ in range(3):
        session.current().mark_step(automatic=True)
    assert bps.stats()["steps"] == 3
    for _ in range(2):
        session.current().mark_step(automatic=True)
        bps.step(samples=16)
    assert (bps.stats()["steps"], bps.stats()["samples"]) == (2, 32)


@pytest.mark.parametrize("operation", [Operation.BROADCAST, Operation.SEED, Operation.DIFFERENCE])
def test_rows_are_summed_or_averaged_and_nothing_else(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    bps.init()
    monkeypatch.setattr(session.current()._worker.asynchrony, "is_on", True)
    rows = Rows(np.array([1]), np.ones((1, 2), np.float32))
    with pytest.raises(UnsupportedError, match=f"'table': rows can be summed or averaged, .* by {operation.name}"):
        session.current().submit(TensorSpec("table", DType.FLOAT32, (3, 2)), rows, None, operation)


def test_stats_need_a_session() -> None:
    with pytest.raises(NotInitializedError):
        bps.stats()


def test_a_process_that_is_a_job_of_its_own_has_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_AB_RECORD", str(tmp_path))
    monkeypatch.setenv("BYTEPS_AB_WARMUP_STEPS", "0")
    monkeypatch.setenv("BYTEPS_AB_STEPS", "2")
    bps.init()
    for _ in range(3):
        bps.step(samples=5)
    bps.shutdown()
    start, *samples = record(tmp_path)
    assert (start["rank"], start["num_worker"], start["num_server"], start["team"]) == (0, 1, 0, 1)
    assert {0, 2} <= {each["steps"] for each in samples}
    assert (samples[-1]["steps"], samples[-1]["samples"]) == (3, 15)
    assert list(samples[-1]["stages"]) == list(WORKER_STAGES)


def test_every_run_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_AB_RECORD", str(tmp_path))
    for _ in range(2):
        bps.init()
        bps.shutdown()
    assert len(list(tmp_path.glob("cell/*/worker-0.jsonl"))) == 2


def test_one_that_is_a_job_of_its_own_says_that_there_is_nothing_to_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BYTEPS_TRACE_ON", "1")
    bps.init()
    bps.push_pull(np.ones(3, np.float32), name="a")
    bps.shutdown()
    assert "BYTEPS_TRACE_ON=1: this process is a job of its own" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_fails_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BYTEPS_AB_RECORD", str(tmp_path / "file"))
    with pytest.raises(SettingsError, match="BYTEPS_AB_RECORD"):
        bps.init()
    assert not bps.is_initialized()
