"""tune/records.py: files as processes leave them, the window, interpolation, and experiments that nobody planned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byteps_py.errors import SettingsError
from byteps_py.tune.analysis import analyse
from byteps_py.tune.model import ProcessUse, Run, StageSum
from byteps_py.tune.records import Job, from_records, read, to_run

JOB = "00000000deadbeef"
START: dict[str, Any] = {
    "kind": "start",
    "version": 1,
    "role": "worker",
    "rank": 0,
    "job": JOB,
    "cell": "baseline",
    "block": None,
    "host": "one",
    "pid": 17,
    "cores": 2,
    "team": 1,
    "policy": "passive",
    "engines": 0,
    "num_worker": 1,
    "num_server": 0,
    "warmup": 10,
    "steps": 20,
    "wall": 1000.0,
    "monotonic": 0.0,
}


def start(**fields: Any) -> dict[str, Any]:
    return START | fields


def sample(at: float, steps: int = 0, cpu: float = 0.0, samples: int = 0, **stages: Sequence[float]) -> dict[str, Any]:
    """A sample ``at`` seconds after both clocks' start."""
    return {
        "kind": "sample",
        "wall": 1000.0 + at,
        "monotonic": at,
        "cpu": cpu,
        "steps": steps,
        "samples": samples,
        "stages": stages,
    }


STEADY = tuple(sample(float(step), step, cpu=step / 2, samples=step * 8) for step in range(0, 41, 5))
"""One step and eight samples a second."""


def write(folder: Path, about: dict[str, Any], *samples: dict[str, Any], end: str = "") -> Path:
    path = folder / about["cell"] / about["job"] / f"{about['role']}-{about['rank']}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in (about, *samples)) + end)
    return path


def job(folder: Path) -> Job:
    (found,) = read([folder])
    return found


def run_of(folder: Path) -> Run:
    return to_run(job(folder), 3, 4)


def process(run: Run, role: str, rank: int = 0) -> ProcessUse:
    (found,) = (each for each in run.processes if (each.role, each.rank) == (role, rank))
    return found


class TestReading:
    def test_what_the_first_line_says(self, tmp_path: Path) -> None:
        write(tmp_path, start(block=2, num_server=1), *STEADY)
        write(tmp_path, start(role="server", team=4, engines=2, pid=18, num_server=1, wall=999.0), sample(0.0))
        found = job(tmp_path)
        assert (found.job, found.cell, found.block, found.started) == (JOB, "baseline", 2, 999.0)
        assert [(each.start.role, len(each.samples)) for each in found.records] == [("worker", 9), ("server", 1)]
        assert process(to_run(found, 0, 0), "server") == ProcessUse("server", 0, "one", 18, 0.0, 4, "passive", 2, 2, {})

    def test_jobs_are_in_the_order_of_their_start(self, tmp_path: Path) -> None:
        for number, at in enumerate((30.0, 10.0, 20.0)):
            write(tmp_path, start(job=f"{number:016x}", wall=at))
        assert [each.started for each in read([tmp_path])] == [10.0, 20.0, 30.0]

    def test_a_last_line_that_was_cut_off_is_passed_over(self, tmp_path: Path) -> None:
        write(tmp_path, start(), *STEADY, end='{"kind":"sample","wall":12')
        assert len(job(tmp_path).records[0].samples) == len(STEADY)

    def test_what_comes_after_a_broken_line_is_too(self, tmp_path: Path) -> None:
        write(tmp_path, start(), *STEADY[:2], end='{"kind":"sample"}\n' + json.dumps(STEADY[2]) + "\n")
        assert len(job(tmp_path).records[0].samples) == 2

    def test_lines_and_fields_of_other_kinds_are_passed_over(self, tmp_path: Path) -> None:
        write(tmp_path, start(colour="red"), {"kind": "remark", "text": "x"}, STEADY[0] | {"more": 1})
        assert len(job(tmp_path).records[0].samples) == 1

    @pytest.mark.parametrize(
        "text", ["", "\n", "{}", "{}\n", "[1]\n", "no\n", '{"kind":"sample"}\n', '{"kind":"start","ver']
    )
    def test_files_that_are_no_records_are_passed_over(self, tmp_path: Path, text: str) -> None:
        write(tmp_path, start(), *STEADY)
        (tmp_path / "worker-7.jsonl").write_text(text)
        (tmp_path / "runs.jsonl").write_text(json.dumps(start(rank=8)) + "\n")
        (tmp_path / "worker-8.jsonl").mkdir()
        (tmp_path / "notes.txt").write_text("x")
        assert len(job(tmp_path).records) == 1

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.binary(max_size=200), st.integers(0, 3000))
    def test_any_bytes_do_no_harm(self, tmp_path: Path, noise: bytes, cut: int) -> None:
        path = write(tmp_path, start(), *STEADY)
        whole = path.read_bytes()
        path.write_bytes(whole[:cut] + noise)
        assert all(to_run(each, 0, 0).cell == 0 for each in read([tmp_path]))

    def test_one_job_may_lie_in_several_folders(self, tmp_path: Path) -> None:
        write(tmp_path / "here", start(num_worker=2), *STEADY)
        write(tmp_path / "there", start(num_worker=2, rank=1, host="two"), *STEADY)
        (found,) = read([tmp_path / "there", tmp_path / "here"])
        assert [each.start.rank for each in found.records] == [0, 1]

    def test_a_record_may_be_found_twice(self, tmp_path: Path) -> None:
        path = write(tmp_path / "one", start(), *STEADY)
        write(tmp_path / "copied too early", start(), *STEADY[:2])
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        (found,) = read([tmp_path, tmp_path / "one", path])
        assert [len(each.samples) for each in found.records] == [len(STEADY)]

    def test_a_process_that_was_started_again_replaces_the_first(self, tmp_path: Path) -> None:
        write(tmp_path / "one", start(pid=1), *STEADY)
        write(tmp_path / "two", start(pid=2, wall=1001.0), *STEADY[:1])
        assert [each.start.pid for each in job(tmp_path).records] == [2]

    def test_a_file_that_was_begun_again_is_about_the_later_process(self, tmp_path: Path) -> None:
        write(tmp_path, start(pid=1), *STEADY, start(pid=2), STEADY[0])
        (record,) = job(tmp_path).records
        assert (record.start.pid, len(record.samples)) == (2, 1)

    def test_all_problems_are_told_at_once(self, tmp_path: Path) -> None:
        path = write(tmp_path, start(version=2), *STEADY)
        with pytest.raises(SettingsError) as caught:
            read([tmp_path, tmp_path / "nowhere"])
        first, second = caught.value.problems
        assert first.startswith(f"{path} cannot be read: it is a record of version 2, not 1")
        assert second.startswith(f"{tmp_path / 'nowhere'} does not exist")


class TestWindow:
    def test_it_is_from_the_warmup_to_the_last_counted_step(self, tmp_path: Path) -> None:
        write(tmp_path, start(), *STEADY)
        found = run_of(tmp_path)
        assert (found.cell, found.block, found.problem, found.started) == (3, 4, "", 1000.0)
        assert (found.value, found.unit, found.seconds, found.steps) == (8.0, "samples/s", 20.0, 20)
        assert process(found, "worker").cpu_seconds == pytest.approx(10.0)

    def test_without_samples_steps_are_counted(self, tmp_path: Path) -> None:
        write(tmp_path, start(), *(each | {"samples": 0} for each in STEADY))
        found = run_of(tmp_path)
        assert (found.value, found.unit) == (1.0, "steps/s")

    def test_of_samples_at_one_step_the_first_counts(self, tmp_path: Path) -> None:
        write(tmp_path, start(), sample(0.0), sample(3.0, 10), sample(4.0, 10), sample(8.0, 30), sample(9.0, 30))
        assert (run_of(tmp_path).seconds, run_of(tmp_path).value) == (5.0, 4.0)

    def test_without_warmup_it_begins_at_init(self, tmp_path: Path) -> None:
        write(tmp_path, start(warmup=0), sample(2.0), sample(4.0, 20), sample(5.0, 30))
        assert (run_of(tmp_path).seconds, run_of(tmp_path).steps) == (2.0, 20)

    def test_without_a_number_of_steps_it_ends_before_the_end(self, tmp_path: Path) -> None:
        # The last sample is taken when the process ends: three seconds of saving are no training.
        end = sample(7.0, 41) | {"stepped": 4.0}
        write(tmp_path, start(steps=0), sample(0.0), sample(1.0, 10), sample(3.95, 40), end)
        assert (run_of(tmp_path).seconds, run_of(tmp_path).steps) == (3.0, 31)

    def test_a_run_that_ended_early_counts_for_what_it_has(self, tmp_path: Path) -> None:
        write(tmp_path, start(), sample(0.0), sample(1.0, 10), sample(3.0, 20), sample(4.0, 22))
        assert (run_of(tmp_path).problem, run_of(tmp_path).steps, run_of(tmp_path).value) == ("", 12, 4.0)

    def test_two_samples_are_enough(self, tmp_path: Path) -> None:
        write(tmp_path, start(), sample(1.0, 10), sample(3.0, 20))
        assert (run_of(tmp_path).steps, run_of(tmp_path).seconds) == (10, 2.0)

    @pytest.mark.parametrize(
        ("samples", "problem"),
        [
            ((), "no step was counted: the script must call bps.step()"),
            ((sample(0.0), sample(9.0)), "no step was counted"),
            ((sample(0.0), sample(5.0, 7)), "worker 0 made 7 steps, and 10 are for the warm-up"),
            ((sample(0.0), sample(5.0, 10)), "worker 0 made 10 steps, and 10 are for the warm-up"),
            ((sample(5.0, 10), sample(5.0, 30)), "in no time"),
        ],
    )
    def test_a_job_without_one_says_why(
        self, tmp_path: Path, samples: tuple[dict[str, Any], ...], problem: str
    ) -> None:
        write(tmp_path, start(), *samples)
        found = run_of(tmp_path)
        assert problem in found.problem
        assert (found.cell, found.block, found.value, found.processes) == (3, 4, 0.0, ())

    def test_without_worker_0_there_is_none(self, tmp_path: Path) -> None:
        write(tmp_path, start(rank=1, num_worker=2), *STEADY)
        assert "no record of worker 0" in run_of(tmp_path).problem


class TestOtherProcesses:
    def test_workers_are_taken_between_the_same_steps(self, tmp_path: Path) -> None:
        write(tmp_path, start(num_worker=2), *STEADY)
        slow = (sample(0.0), sample(50.0, 8, cpu=1.0, samples=80), sample(60.0, 12, cpu=2.0, samples=120))
        write(tmp_path, start(num_worker=2, rank=1), *slow, sample(70.0, 30, cpu=9.5, samples=300))
        found = run_of(tmp_path)
        assert process(found, "worker", 1).cpu_seconds == pytest.approx(9.5 - 1.5)
        assert found.value == pytest.approx((160 + 200) / 20.0)

    def test_servers_are_interpolated_at_the_ends(self, tmp_path: Path) -> None:
        write(tmp_path, start(num_server=1), *STEADY)
        write(
            tmp_path,
            start(role="server", num_server=1),
            sample(0.0),
            sample(5.0, cpu=1.0, sum=(50, 0.5)),
            sample(15.0, cpu=3.0, sum=(150, 1.5), held=(10, 1.0)),
            sample(40.0, cpu=3.0, sum=(400, 4.0), held=(10, 1.0)),
        )
        found = process(run_of(tmp_path), "server")
        # The window is from 10 to 30.
        assert found.cpu_seconds == pytest.approx(3.0 - 2.0)
        assert found.stages["sum"].count == 200
        assert found.stages["sum"].seconds == pytest.approx(3.0 - 1.0)
        assert found.stages["held"] == StageSum(5, 0.5)

    def test_a_server_that_ended_earlier_has_what_it_had(self, tmp_path: Path) -> None:
        write(tmp_path, start(num_server=1), *STEADY)
        write(tmp_path, start(role="server", num_server=1), sample(12.0, cpu=1.0), sample(20.0, cpu=4.0))
        assert process(run_of(tmp_path), "server").cpu_seconds == pytest.approx(3.0)

    @pytest.mark.parametrize(("host", "apart"), [("two", 7.0), ("two", 5000.0), ("one", 5000.0)])
    def test_on_another_host_the_wall_clock_counts(self, tmp_path: Path, host: str, apart: float) -> None:
        write(tmp_path, start(), *STEADY)
        shifted = [sample(at, cpu=at) | {"monotonic": at + apart} for at in (0.0, 50.0)]
        write(tmp_path, start(role="scheduler", host=host, monotonic=apart), *shifted)
        assert process(run_of(tmp_path), "scheduler").cpu_seconds == pytest.approx(20.0)

    def test_on_the_same_host_the_monotonic_clock_counts(self, tmp_path: Path) -> None:
        write(tmp_path, start(), *STEADY)
        # The wall clock is set back by half a minute in between.
        back = [sample(0.0), sample(20.0, cpu=20.0), sample(50.0, cpu=50.0) | {"wall": 1020.0}]
        write(tmp_path, start(role="scheduler"), *back)
        assert process(run_of(tmp_path), "scheduler").cpu_seconds == pytest.approx(20.0)

    def test_a_process_without_samples_has_nothing(self, tmp_path: Path) -> None:
        write(tmp_path, start(), *STEADY)
        write(tmp_path, start(role="scheduler"))
        assert process(run_of(tmp_path), "scheduler").cpu_seconds == 0.0

    def test_workers_stages_are_between_the_steps(self, tmp_path: Path) -> None:
        write(tmp_path, start(), sample(1.0, 10, push=(5, 0.5)), sample(2.0, 30, push=(25, 1.5), pull=(20, 2.0)))
        found = process(run_of(tmp_path), "worker").stages
        assert found == {"push": StageSum(20, 1.0), "pull": StageSum(20, 2.0)}

    @pytest.mark.parametrize("missing", [{"num_server": 2}, {"num_worker": 2}])
    def test_stages_need_the_records_of_all(self, tmp_path: Path, missing: dict[str, int]) -> None:
        whole = {"num_server": 1} | missing
        write(tmp_path, start(**whole), sample(1.0, 10), sample(2.0, 30, push=(25, 1.5)))
        write(tmp_path, start(role="server", **whole), sample(0.0), sample(3.0, cpu=3.0, sum=(30, 3.0)))
        found = run_of(tmp_path)
        assert (found.problem, found.value) == ("", 20.0)
        assert [each.stages for each in found.processes] == [{}, {}]
        assert process(found, "server").cpu_seconds == pytest.approx(1.0)

    def test_samples_need_the_records_of_all_workers(self, tmp_path: Path) -> None:
        write(tmp_path, start(num_worker=3), *STEADY)
        assert "records of 2 of 3 workers are missing" in run_of(tmp_path).problem


class TestUnplannedExperiments:
    def make(self, folder: Path, *jobs: tuple[str, int | None, float]) -> list[Job]:
        """Jobs of (cell, block, speed), one after the other."""
        for number, (cell, block, speed) in enumerate(jobs):
            about = start(job=f"{number:016x}", cell=cell, block=block, wall=1000.0 + number)
            write(folder, about, sample(0.0, 10), sample(20.0 / speed, 30))
        return read([folder])

    def test_cells_are_in_order_of_appearance_with_the_baseline_first(self, tmp_path: Path) -> None:
        made = [("two servers", None, 3.0), ("Baseline", None, 1.0), ("passive", None, 2.0)]
        design, runs = from_records(self.make(tmp_path, *made)[::-1])
        assert [cell.label for cell in design.cells] == ["Baseline", "two servers", "passive"]
        assert [cell.slug for cell in design.cells] == ["Baseline", "two-servers", "passive"]
        assert [(factor.name, factor.levels, factor.option) for factor in design.factors] == [
            ("cell", ("Baseline", "two servers", "passive"), "")
        ]
        assert [(run.cell, run.block, run.value) for run in runs] == [(1, 0, 3.0), (0, 0, 1.0), (2, 0, 2.0)]
        assert (design.repeats, design.num_workers, design.warmup_steps, design.steps) == (1, 1, 10, 20)

    def test_without_a_baseline_it_is_the_first(self, tmp_path: Path) -> None:
        design, _ = from_records(self.make(tmp_path, ("b", None, 1.0), ("a", None, 1.0)))
        assert design.factors[0].levels == ("b", "a")

    def test_blocks_are_those_that_were_told(self, tmp_path: Path) -> None:
        made = [("a", 9, 1.0), ("b", 5, 4.0), ("a", 5, 2.0), ("b", 9, 3.0)]
        design, runs = from_records(self.make(tmp_path, *made))
        assert design.repeats == 2
        assert [(run.cell, run.block, run.value) for run in runs] == [
            (0, 1, 1.0),
            (1, 0, 4.0),
            (0, 0, 2.0),
            (1, 1, 3.0),
        ]

    def test_if_one_tells_none_they_are_by_order(self, tmp_path: Path) -> None:
        made = [("a", 9, 1.0), ("b", 5, 4.0), ("b", None, 2.0), ("a", 9, 3.0), ("a", 9, 5.0)]
        design, runs = from_records(self.make(tmp_path, *made))
        assert design.repeats == 3
        assert [(run.cell, run.block) for run in runs] == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2)]

    def test_a_job_without_a_window_is_a_failed_run(self, tmp_path: Path) -> None:
        write(tmp_path, start(cell="a"), sample(0.0))
        _, runs = from_records(read([tmp_path]))
        assert "no step was counted" in runs[0].problem

    def test_blocks_that_are_told_twice_are_by_order(self, tmp_path: Path) -> None:
        made = [("a", 0, 1.0), ("b", 0, 4.0), ("a", 0, 2.0), ("b", 0, 3.0)]
        _, runs = from_records(self.make(tmp_path, *made))
        assert [(run.cell, run.block) for run in runs] == [(0, 0), (1, 0), (0, 1), (1, 1)]

    def test_a_job_that_ended_early_is_a_failed_run(self, tmp_path: Path) -> None:
        write(tmp_path, start(cell="a"), *STEADY[:5])
        _, runs = from_records(read([tmp_path]))
        assert runs[0].problem.startswith("10 of 20 steps (BYTEPS_AB_STEPS)")

    def test_no_job_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="no records were found"):
            from_records(read([tmp_path]))

    def test_it_can_be_analysed(self, tmp_path: Path) -> None:
        made = [("a", None, 1.0), ("b", None, 2.0), ("a", None, 1.1), ("b", None, 2.1)]
        found = analyse(*from_records(self.make(tmp_path, *made)))
        against = found.cells[1].against_baseline
        assert against is not None
        assert (against.blocks, against.verdict) == (2, "more")
        assert found.finished

    def test_slugs_differ(self, tmp_path: Path) -> None:
        design, _ = from_records(self.make(tmp_path, ("a b", None, 1.0), ("a-b", None, 1.0)))
        assert [cell.slug for cell in design.cells] == ["a-b", "a-b.2"]
