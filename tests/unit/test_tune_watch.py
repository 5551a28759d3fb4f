"""How far a run is: what its workers' records say, whole or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from byteps_py.tune.watch import Watch


def sample(steps: int) -> str:
    return json.dumps({"kind": "sample", "steps": steps, "wall": 1.0}) + "\n"


def test_the_slowest_worker_counts(tmp_path: Path) -> None:
    folder = tmp_path / "cell" / "job"
    watch = Watch(tmp_path, 2)
    assert watch.steps() == 0
    folder.mkdir(parents=True)
    (folder / "worker-0.jsonl").write_text('{"kind":"start"}\n' + sample(5))
    (folder / "server-0.jsonl").write_text(sample(99))
    assert watch.steps() == 0, "the other one has no record yet"
    (folder / "worker-1.jsonl").write_text('{"kind":"start"}\n')
    assert watch.steps() == 0
    with (folder / "worker-1.jsonl").open("a") as file:
        for steps in (1, 2, 3):
            file.write(sample(steps))
    assert watch.steps() == 3


def test_lines_may_arrive_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "cell" / "job").mkdir(parents=True)
    watch = Watch(tmp_path, 1)
    text = sample(1) + "garbage\n" + "[1]\n" + sample(2)
    with (tmp_path / "cell" / "job" / "worker-0.jsonl").open("w") as file:
        seen = []
        for each in text:
            file.write(each)
            file.flush()
            seen.append(watch.steps())
    assert seen == [0] * (len(sample(1)) - 1) + [1] * (len(text) - len(sample(1))) + [2]


def test_workers_of_two_jobs_are_not_put_together(tmp_path: Path) -> None:
    for job, worker in (("a", 0), ("b", 1)):
        (tmp_path / "cell" / job).mkdir(parents=True)
        (tmp_path / "cell" / job / f"worker-{worker}.jsonl").write_text(sample(7))
    assert Watch(tmp_path, 2).steps() == 0
    assert Watch(tmp_path, 1).steps() == 7


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ({}, ""),
        ({0: 0, 1: 0, 2: 0}, ""),
        ({0: 5, 1: 1, 2: 3}, ""),
        ({0: 5, 1: 0, 2: 3}, "worker 1 has counted no step, though others have: every worker must call bps.step()"),
        ({0: 5, 1: 0}, "workers 1, 2 have counted no step"),
        ({2: 5}, "workers 0, 1 have counted no step"),
    ],
)
def test_workers_that_count_no_steps_are_named(tmp_path: Path, steps: dict[int, int], text: str) -> None:
    (tmp_path / "cell" / "job").mkdir(parents=True)
    for rank, made in steps.items():
        (tmp_path / "cell" / "job" / f"worker-{rank}.jsonl").write_text(
            '{"kind":"start"}\n' + (sample(made) if made else "")
        )
    watch = Watch(tmp_path, 3)
    watch.steps()
    found = watch.describe_silent()
    assert found.startswith(text)
    assert bool(found) is bool(text)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "records", 1)
    (tmp_path / "records").mkdir()
    assert watch.is_there
    shutil.rmtree(tmp_path / "records")
    assert not watch.is_there
    assert watch.steps() == 0
