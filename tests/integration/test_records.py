"""The records of whole jobs of real processes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from byteps_py.telemetry.stages import SERVER_STAGES, WORKER_STAGES
from tests.helpers.jobs import running
from tests.helpers.launches import PYTHON, launches

pytestmark = pytest.mark.timeout(90)

WARMUP, STEPS, MORE = 3, 10, 2
TRAIN = f"""
import json
import numpy as np
import byteps_py as bps
bps.init()
large, small = np.ones(250_000, np.float32), np.ones(10, np.float32)
for _ in range({WARMUP + STEPS + MORE}):
    handles = [bps.push_pull_async(large, "large"), bps.push_pull_async(small, "small")]
    for handle in handles:
        bps.synchronize(handle)
    bps.step(samples=32)
print(json.dumps(bps.stats()))
"""
PARTITIONS = 3 + 1  # of 100_000, 100_000 and 50_000 elements, and the small one
OPERATIONS = 2


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of each process, by its name; there is one run of one cell."""
    (job,) = folder.glob("*/*")
    return {each.stem: [json.loads(line) for line in each.read_text().splitlines()] for each in job.iterdir()}


def total(lines: list[list[dict[str, Any]]], stage: str) -> tuple[int, float]:
    """Over several processes, at their ends."""
    found = [each[-1]["stages"][stage] for each in lines]
    return sum(count for count, _ in found), sum(seconds for _, seconds in found)


def test_a_launched_job(tmp_path: Path) -> None:
    environ = {
        "BYTEPS_AB_RECORD": str(tmp_path / "records"),
        "BYTEPS_AB_CELL": "passive, 2 servers",
        "BYTEPS_AB_BLOCK": "1",
        "BYTEPS_AB_WARMUP_STEPS": str(WARMUP),
        "BYTEPS_AB_STEPS": str(STEPS),
        "BYTEPS_PARTITION_BYTES": "400000",
        "BYTEPS_SERVER_OMP_NUM_THREADS": "2",
        "BYTEPS_SERVER_OMP_WAIT_POLICY": "passive",
    }
    with launches(tmp_path) as start:
        launched = start("-n", "2", "-s", "2", "--", PYTHON, "-c", TRAIN, env=environ)
        assert launched.wait(60) == 0, launched.err
    assert [each.name for each in (tmp_path / "records").iterdir()] == ["passive,-2-servers"]
    found = read(tmp_path / "records")
    assert sorted(found) == ["scheduler-0", "server-0", "server-1", "worker-0", "worker-1"]
    workers, servers = ([found[f"{role}-{rank}"] for rank in range(2)] for role in ("worker", "server"))
    for lines in found.values():
        check_common(lines)
    assert {each[0]["job"] for each in found.values()} == {next((tmp_path / "records").glob("*/*")).name}
    assert [(each[0]["team"], each[0]["policy"], each[0]["engines"]) for each in servers] == [(2, "passive", 1)] * 2
    check_marks(workers)
    check_workers(workers)
    check_servers(workers, servers)
    for line in launched.out_lines:
        stats = json.loads(line.split("] ", 1)[1])
        last = found[f"worker-{stats['rank']}"][-1]
        assert (stats["steps"], stats["samples"]) == (last["steps"], last["samples"])
        assert {name: each["count"] for name, each in stats["stages"].items()} == {
            name: count for name, (count, _) in last["stages"].items()
        }


def check_common(lines: list[dict[str, Any]]) -> None:
    start, *samples = lines
    assert start["kind"] == "start"
    assert (start["cell"], start["block"], start["warmup"], start["steps"]) == ("passive, 2 servers", 1, WARMUP, STEPS)
    assert (start["num_worker"], start["num_server"]) == (2, 2)
    assert samples
    assert {each["kind"] for each in samples} == {"sample"}
    for name in ("monotonic", "cpu", "steps", "samples"):
        values = [each[name] for each in samples]
        assert values == sorted(values)
        assert values[0] >= 0
    for stage in samples[0]["stages"]:
        for index in range(2):
            values = [each["stages"][stage][index] for each in samples]
            assert values == sorted(values)
            assert values[0] >= 0


def check_marks(workers: list[list[dict[str, Any]]]) -> None:
    for lines in workers:
        steps = Counter(each["steps"] for each in lines[1:])
        assert steps[WARMUP] >= 1
        assert steps[WARMUP + STEPS] >= 1
        assert (lines[-1]["steps"], lines[-1]["samples"]) == (WARMUP + STEPS + MORE, 32 * (WARMUP + STEPS + MORE))
        counts = {each["steps"]: each["stages"]["pull"][0] for each in lines[1:]}
        assert counts[WARMUP + STEPS] - counts[WARMUP] == STEPS * PARTITIONS


def check_workers(workers: list[list[dict[str, Any]]]) -> None:
    steps = WARMUP + STEPS + MORE
    for lines in workers:
        stages = lines[-1]["stages"]
        assert list(stages) == list(WORKER_STAGES)
        counts = {name: count for name, (count, _) in stages.items()}
        assert counts.pop("push") + counts.pop("answer") == steps * PARTITIONS
        assert counts == {
            "queue": steps * PARTITIONS,
            "copy in": steps * OPERATIONS,
            "pull": steps * PARTITIONS,
            "copy out": steps * PARTITIONS,
        }


def check_servers(workers: list[list[dict[str, Any]]], servers: list[list[dict[str, Any]]]) -> None:
    """A contribution is held while it waits for others, then for the sum, and is on its way for longer than that."""
    rounds = (WARMUP + STEPS + MORE) * PARTITIONS
    assert [list(each[-1]["stages"]) for each in servers] == [list(SERVER_STAGES)] * 2
    told, (waits, wait), (queued, queue), (sums, sum_), (replies, held), direct = (
        total(servers, name) for name in SERVER_STAGES
    )
    assert told[0] + direct[0] == replies
    assert told[1] + direct[1] <= held + 1e-6
    assert (told[0], direct[0]) == (total(workers, "push")[0], total(workers, "answer")[0])
    assert (waits, queued, sums, replies) == (2 * rounds, rounds, rounds, 2 * rounds)
    way = total(workers, "push")[1] + total(workers, "pull")[1]
    rounding = 1e-6
    assert wait + 2 * (queue + sum_) <= held + rounding
    assert held <= way + rounding


def test_without_stage_times_there_are_steps_and_cpu_time(tmp_path: Path) -> None:
    environ = {"BYTEPS_AB_RECORD": str(tmp_path / "records"), "BYTEPS_STAGE_TIMES": "0"}
    with launches(tmp_path) as start:
        launched = start("-n", "2", "-s", "1", "--", PYTHON, "-c", TRAIN, env=environ)
        assert launched.wait(60) == 0, launched.err
    found = read(tmp_path / "records")
    assert found["worker-0"][-1]["steps"] == WARMUP + STEPS + MORE
    for lines in found.values():
        assert all(each == [0, 0.0] for each in lines[-1]["stages"].values())
        assert lines[-1]["cpu"] > 0


def test_an_aborted_job_has_its_last_samples(tmp_path: Path) -> None:
    body = (
        "for step in range(5):\n"
        "    bps.push_pull(np.ones(10), 'x')\n"
        "    bps.step()\n"
        "print('ready', flush=True)\n"
        "if bps.rank() == 1: time.sleep(60)\n"
        "bps.push_pull(np.ones(10), 'x')\n"
    )
    records = tmp_path / "records"
    with running(tmp_path, body, BYTEPS_AB_RECORD=str(records)) as made:
        for name in ("worker0", "worker1"):
            made.wait_for(name, "ready")
        made.kill("worker1")
        statuses = made.wait()
    assert statuses == {"scheduler": 1, "server0": 1, "worker0": 1, "worker1": -9}
    found = read(records)
    assert found["worker-0"][-1]["steps"] == 5
    assert found["worker-0"][-1]["stages"]["pull"][0] == 5
    assert found["server-0"][-1]["stages"]["held"][0] == 10
    times = {name: lines[-1]["wall"] for name, lines in found.items()}
    assert min(times["scheduler-0"], times["server-0"], times["worker-0"]) >= times["worker-1"]


def test_a_folder_that_cannot_be_made_ends_every_role_with_status_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with running(tmp_path, "pass", workers=1, BYTEPS_AB_RECORD=str(tmp_path / "file")) as made:
        assert made.wait() == dict.fromkeys(("scheduler", "server0", "worker0"), 2), made.everything()
        for name in made.processes:
            (line,) = made.output(name).splitlines()
            assert "BYTEPS_AB_RECORD=" in line
            assert line.endswith("Not a directory")
