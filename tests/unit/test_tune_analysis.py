"""tune/analysis.py and tune/circumstances.py: comparisons, effects, stages, and what the reader is told."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import pytest

from byteps_py.telemetry import stages
from byteps_py.tune import factors
from byteps_py.tune.analysis import STAGES, analyse, stage_seconds
from byteps_py.tune.model import Design, ProcessUse, Run, Stages, StageSum
from byteps_py.tune.results import Analysis, Effect
from byteps_py.tune.statistics import combine, interval


def design(*words: str, repeats: int = 3, steps: int = 100) -> Design:
    return factors.design(
        factors.factors(words), command=["python", "train.py"], repeats=repeats, num_workers=2, steps=steps
    )


def process(
    role: str = "server",
    rank: int = 0,
    *,
    cpu: float = 0.0,
    team: int = 2,
    policy: str = "",
    engines: int = 0,
    stages: Stages | None = None,
) -> ProcessUse:
    return ProcessUse(role, rank, "host", 1, cpu, team, policy, engines, 2, stages or {})


def runs_of(grid: Design, values: Sequence[Sequence[float]]) -> list[Run]:
    """One run for each value, by block and cell."""
    return [
        Run(cell, block, value=value, seconds=10.0, steps=grid.steps)
        for block, row in enumerate(values)
        for cell, value in enumerate(row)
    ]


def with_processes(grid: Design, *by_cell: Sequence[ProcessUse]) -> Analysis:
    """Three blocks of good runs, the processes of each cell being given."""
    runs = [
        Run(cell, block, value=100.0 + block + cell, seconds=10.0, steps=100, processes=tuple(processes))
        for block, (cell, processes) in itertools.product(range(3), enumerate(by_cell))
    ]
    return analyse(grid, runs)


def only(result: Analysis) -> Effect:
    (effect,) = result.effects
    return effect


class TestCells:
    def test_each_is_compared_with_the_baseline_within_blocks(self) -> None:
        grid = design("A=1,2")
        result = analyse(grid, runs_of(grid, [(100, 121), (50, 60), (10, 11.9)]), "a machine")
        baseline, other = result.cells
        assert (baseline.done, baseline.failed, baseline.values, baseline.median) == (3, 0, (100, 50, 10), 50)
        assert baseline.against_baseline is None
        assert other.against_baseline == interval([(100, 121), (50, 60), (10, 11.9)])
        assert other.against_baseline.verdict == "more"
        assert (result.machine, result.finished, result.design) == ("a machine", True, grid)

    def test_values_are_in_the_order_of_blocks_whatever_that_of_the_runs(self) -> None:
        grid = design("A=1,2")
        forth = runs_of(grid, [(1, 2), (3, 4), (5, 7)])
        back = analyse(grid, forth[::-1])
        assert back.cells[0].values == (1, 3, 5)
        assert msgspec.structs.replace(back, runs=tuple(forth)) == analyse(grid, forth)

    def test_a_block_without_one_of_the_two_is_left_out(self) -> None:
        grid = design("A=1,2")
        runs = runs_of(grid, [(100, 110), (100, 130), (100, 120)])
        runs[2] = Run(0, 1, problem="worker 1 exited with status 3", log="Traceback")
        result = analyse(grid, runs)
        assert result.cells[1].against_baseline == interval([(100, 110), (100, 120)])
        assert (result.cells[0].done, result.cells[0].failed) == (2, 1)
        assert result.cells[0].problems == ("worker 1 exited with status 3",)
        assert result.cells[0].log == "Traceback"
        assert any("1 of 3 runs failed; it is compared in at most 2 blocks" in note for note in result.notes)
        assert result.finished

    def test_a_cell_that_always_fails_hides_no_other(self) -> None:
        grid = design("A=1,2,3")
        runs = [
            msgspec.structs.replace(run, problem="no") if run.cell == 1 else run
            for run in runs_of(grid, [(100, 0, 110), (100, 0, 112), (100, 0, 111)])
        ]
        result = analyse(grid, runs)
        assert result.cells[1].against_baseline is None
        assert (result.cells[1].median, result.cells[1].unit, result.cells[1].values) == (None, "", ())
        assert result.cells[2].against_baseline is not None
        assert [each.interval is None for each in result.effects] == [True, False]

    def test_reasons_are_told_once_the_most_frequent_first(self) -> None:
        grid = design("A=1,2")
        runs = [Run(0, 0, problem="rare"), Run(0, 1, problem="often"), Run(0, 2, problem="often")]
        assert analyse(grid, runs).cells[0].problems == ("often", "rare")

    def test_a_run_made_again_replaces_the_failed_one_and_no_good_one(self) -> None:
        grid = design("A=1,2", repeats=1)
        bad = Run(1, 0, problem="no")
        runs = [Run(0, 0, value=1.0), bad, Run(1, 0, value=2.0), bad, Run(1, 0, value=3.0), bad]
        result = analyse(grid, runs)
        assert result.cells[1].values == (3.0,)
        assert (result.cells[1].done, result.cells[1].failed) == (1, 0)
        assert "3 runs failed and were made again" in result.notes

    def test_of_failed_runs_the_last_counts(self) -> None:
        grid = design("A=1,2", repeats=1)
        result = analyse(grid, [Run(0, 0, problem="first", log="a"), Run(0, 0, problem="second", log="b")])
        assert (result.cells[0].failed, result.cells[0].problems, result.cells[0].log) == (1, ("second",), "b")

    def test_different_units_are_not_compared(self) -> None:
        grid = design("A=1,2")
        runs = [
            msgspec.structs.replace(run, unit="samples/s") if (run.cell, run.block) != (1, 2) else run
            for run in runs_of(grid, [(100, 110), (100, 120), (100, 3)])
        ]
        result = analyse(grid, runs)
        assert result.cells[1].against_baseline == interval([(100, 110), (100, 120)])
        assert (result.cells[1].unit, result.cells[1].values) == ("samples/s", (110, 120))
        assert any("different units (samples/s, steps/s)" in note for note in result.notes)

    @pytest.mark.parametrize("value", [0.0, -2.0, math.inf, math.nan])
    def test_a_value_without_a_ratio_is_told_and_left_out(self, value: float) -> None:
        grid = design("A=1,2")
        result = analyse(grid, runs_of(grid, [(100, 110), (100, 120), (100, value)]))
        assert result.cells[1].against_baseline == interval([(100, 110), (100, 120)])
        assert any("1 run of a value that is not above 0" in note for note in result.notes)

    def test_an_experiment_that_was_interrupted(self) -> None:
        grid = design("A=1,2")
        result = analyse(grid, [Run(0, 0, value=1.0)])
        assert not result.finished
        assert "5 of 6 runs are missing" in result.notes
        assert result.cells[1].against_baseline is None

    def test_without_any_run(self) -> None:
        result = analyse(design("A=1,2", "B=1,2"), [])
        assert [cell.done for cell in result.cells] == [0, 0, 0, 0]
        assert all(effect.interval is None and not effect.inert for effect in result.effects)

    def test_one_block_has_no_interval(self) -> None:
        grid = design("A=1,2", repeats=1)
        result = analyse(grid, runs_of(grid, [(100, 110)]))
        assert result.cells[1].against_baseline is not None
        assert result.cells[1].against_baseline.verdict == "unknown"
        assert any("no interval from a single block" in note for note in result.notes)

    def test_short_runs_and_those_made_again_are_told(self) -> None:
        grid = design("A=1,2")
        runs = runs_of(grid, [(1, 2)] * 3)
        runs[0] = msgspec.structs.replace(runs[0], seconds=0.4, processes=(process(),))
        notes = analyse(grid, [*runs, runs[1]]).notes
        assert any(note.startswith("1 run measured for less than 1 s: ") for note in notes)
        assert "1 run was made again although good: the last one counts" in notes


class TestEffects:
    def test_each_averages_over_the_levels_of_the_others(self) -> None:
        grid = design("A=1,2", "B=1,2")
        rows = [(100, 140, 106, 149), (90, 125, 96, 133), (110, 155, 115, 161)]
        result = analyse(grid, runs_of(grid, rows))
        first, second = result.effects
        assert (first.factor, first.level, first.baseline) == ("A", "2", "1")
        assert first.interval == combine([[(row[0], row[1]), (row[2], row[3])] for row in rows])
        assert second.interval == combine([[(row[0], row[2]), (row[1], row[3])] for row in rows])

    def test_every_level_but_the_baselines_has_one(self) -> None:
        grid = design("A=1,2,3", "B=1,2")
        found = [(each.factor, each.level) for each in analyse(grid, []).effects]
        assert found == [("A", "2"), ("A", "3"), ("B", "2")]

    def test_a_block_counts_only_if_it_has_all_pairs(self) -> None:
        grid = design("A=1,2", "B=1,2")
        rows = [(100, 140, 106, 149), (90, 125, 96, 133), (110, 155, 115, 161)]
        runs = [run for run in runs_of(grid, rows) if (run.block, run.cell) != (1, 3)]
        first = analyse(grid, runs).effects[0]
        assert first.interval == combine([[(row[0], row[1]), (row[2], row[3])] for row in (rows[0], rows[2])])

    def test_a_cell_that_never_works_is_left_out_of_them(self) -> None:
        grid = design("A=1,2", "B=1,2")
        rows = [(100, 140, 106, 0), (90, 125, 96, 0), (110, 155, 115, 0)]
        runs = [msgspec.structs.replace(run, problem="no" if run.cell == 3 else "") for run in runs_of(grid, rows)]
        result = analyse(grid, runs)
        assert result.effects[0].interval == interval([(row[0], row[1]) for row in rows])
        assert any("leave out the comparisons with 1 of 4 cells" in note for note in result.notes)

    def test_the_number_of_comparisons_is_told(self) -> None:
        grid = design("A=1,2", "B=1,2")
        result = analyse(grid, runs_of(grid, [(1, 2, 3, 4), (1, 2, 3, 5), (1, 3, 3, 4)]))
        assert "5 comparisons: where there is no difference, one in twenty shows one by chance" in result.notes
        grid = design("A=1,2")
        result = analyse(grid, runs_of(grid, [(1, 2), (1, 3), (1, 2)]))
        assert any(note.startswith("1 comparison: ") for note in result.notes)


class TestInert:
    def test_a_team_of_one_has_no_wait_policy(self) -> None:
        found = with_processes(
            design("omp-wait-policy=passive,active"),
            [process(team=1, policy="passive"), process("worker", team=2)],
            [process(team=1, policy="active"), process("worker", team=2)],
        )
        assert only(found).inert == "the team of every server is one thread, which never waits for another"
        assert only(found).interval is not None

    def test_a_larger_team_has_one(self) -> None:
        found = with_processes(
            design("omp-wait-policy=passive,active"),
            [process(team=1, policy="passive"), process(rank=1, policy="passive")],
            [process(team=1, policy="active"), process(rank=1, policy="active")],
        )
        assert only(found).inert == ""
        assert not any("was asked for" in note for note in found.notes)

    def test_without_a_server_nothing_of_servers_matters(self) -> None:
        for word in ("omp-wait-policy=passive,active", "omp-num-threads=1,2"):
            found = with_processes(design(word), [process("worker")], [process("worker")])
            assert only(found).inert == "no server takes part"

    def test_a_workers_policy_is_about_workers(self) -> None:
        """A framework may have teams of its own there, so that nothing is known to be inert."""
        word = "worker-omp-wait-policy=passive,active"
        for team in (1, 2):
            processes = [process("worker", team=team), process(team=1)]
            assert only(with_processes(design(word), processes, processes)).inert == ""

    def test_a_general_variable_is_about_both(self) -> None:
        word = "OMP_WAIT_POLICY=passive,active"
        mixed = [process("worker", team=2), process(team=1)]
        assert only(with_processes(design(word), mixed, mixed)).inert == ""
        ones = [process("worker", team=1), process(team=1)]
        assert only(with_processes(design(word), ones, ones)).inert == ""
        assert "every process is one thread" in only(with_processes(design(word), ones[1:], ones[1:])).inert

    @pytest.mark.parametrize(
        ("word", "processes", "reason"),
        [
            ("omp-wait-policy=passive,active", [process(policy="passive")], "wait policy passive at both levels"),
            ("omp-num-threads=2,4", [process(team=2)], "every server had a team of 2 at both levels"),
            ("worker-omp-num-threads=2,4", [process("worker")], "every worker had a team of 2 at both levels"),
            ("BYTEPS_SERVER_ENGINE_THREAD=1,2", [process(engines=1)], "had 1 engine threads at both levels"),
            ("num-servers=1,2", [process(), process("worker")], "the number of servers was 1 at both levels"),
        ],
    )
    def test_levels_that_led_to_the_same(self, word: str, processes: list[ProcessUse], reason: str) -> None:
        found = with_processes(design(word), processes, processes)
        assert reason in only(found).inert
        assert any("was asked for, but" in note for note in found.notes)

    @pytest.mark.parametrize("word", ["omp-wait-policy=passive,active", "omp-num-threads=2,4", "LR=1,2"])
    def test_what_is_unknown_is_not_called_inert(self, word: str) -> None:
        unknown = [process(team=0)]
        for processes in ([], unknown):
            found = with_processes(design(word), processes, processes)
            assert only(found).inert == ""
            assert not any("was asked for" in note for note in found.notes)

    def test_levels_that_led_to_something_else_are_not(self) -> None:
        found = with_processes(design("omp-num-threads=1,2"), [process(team=1)], [process(team=2)])
        assert only(found).inert == ""
        assert not any("was asked for" in note for note in found.notes)

    def test_an_inert_factor_is_no_comparison(self) -> None:
        ones = [process(team=1)]
        found = with_processes(design("omp-wait-policy=passive,active", "LR=1,2"), ones, ones, ones, ones)
        assert any(note.startswith("4 comparisons") for note in found.notes)

    def test_one_that_matters_in_some_cells_is_told_of(self) -> None:
        grid = design("omp-wait-policy=passive,active", "omp-num-threads=1,2")
        one, two = [process(team=1)], [process(team=2)]
        found = with_processes(grid, one, one, two, two)
        assert found.effects[0].inert == ""
        (note,) = [each for each in found.notes if "cannot matter in" in each]
        assert note.startswith(
            "omp-wait-policy cannot matter in baseline (omp-wait-policy=passive, omp-num-threads=1); "
        )

    def test_what_was_not_as_asked_is_told(self) -> None:
        found = with_processes(
            design("omp-wait-policy=passive,active"),
            [process(policy="passive"), process(rank=1, policy="active")],
            [process(policy="active"), process(rank=1, policy="active")],
        )
        assert (
            "omp-wait-policy=passive was asked for, but the wait policy of a server was active in 3 of 3 runs"
            in found.notes
        )
        assert not any(note.startswith("omp-wait-policy=active") for note in found.notes)

    def test_what_differs_beside_the_factors_is_told(self) -> None:
        found = with_processes(
            design("A=1,2"), [process(team=2), process("worker")], [process(team=1), process("worker")]
        )
        assert "the cells also differ in what no factor sets: the team of a server was 1 and 2" in found.notes
        asked = with_processes(design("omp-num-threads=1,2"), [process(team=1)], [process(team=2)])
        assert not any("also differ" in note for note in asked.notes)

    def test_a_smaller_team_than_asked_for_is_told(self) -> None:
        found = with_processes(design("omp-num-threads=1,4"), [process(team=1)], [process(team=2)])
        assert only(found).inert == ""
        assert "omp-num-threads=4 was asked for, but the team of a server was 2 in 3 of 3 runs" in found.notes


def sums(**stages: tuple[int, float]) -> Stages:
    return {name.replace("_", " "): StageSum(*each) for name, each in stages.items()}


WORKER = sums(
    queue=(100, 1.0), copy_in=(100, 2.0), push=(60, 3.6), pull=(100, 16.4), answer=(40, 6.0), copy_out=(100, 4.0)
)
"""Of each of two workers: 60 partitions were accepted after 0.06 s each, and 40 answered after 0.15 s each."""
SERVER = sums(
    accept=(120, 1.2),
    wait_for_others=(200, 6.0),
    server_queue=(100, 1.0),
    sum=(100, 2.0),
    held=(200, 13.0),
    direct=(80, 2.0),
)
"""Of the only server: each round's queue and sum are in two contributions' ``held``, and 1 s more until the reply."""
OF_ONE = SERVER | sums(accept=(60, 0.6), held=(100, 6.5), direct=(40, 1.0))
"""The same, had there been one worker, but for the sums."""


class TestStages:
    def test_they_are_those_that_processes_record(self) -> None:
        assert {*STAGES, "accept", "held", "direct", "answer"} == {*stages.WORKER_STAGES, *stages.SERVER_STAGES}

    def run(self, *processes: ProcessUse, steps: int = 10) -> Run:
        return Run(0, 0, value=1.0, seconds=5.0, steps=steps, processes=processes)

    def test_the_parts_add_up_to_what_workers_measured(self) -> None:
        found = stage_seconds(
            self.run(process("worker", 0, stages=WORKER), process("worker", 1, stages=WORKER), process(stages=SERVER))
        )
        assert tuple(found) == STAGES
        # 40 s from sending to receiving, 13 of them in the server. Of what was accepted, 7.2 - 1.2 = 6 s were on the
        # way there, and 32.8 - 12 - (13 - 2 - 1.2) = 11 s on the way back; 12 - 2 = 10 s are divided like that.
        assert found == pytest.approx(
            {
                "queue": 2.0 / 20,
                "copy in": 4.0 / 20,
                "push": (6.0 + 10.0 * 6 / 17) / 20,
                "wait for others": 6.0 / 20,
                "server queue": 3.0 / 20,
                "sum": 4.0 / 20,
                "pull": (11.0 + 10.0 * 11 / 17) / 20,
                "copy out": 8.0 / 20,
            }
        )
        assert sum(found[name] for name in STAGES[2:7]) == pytest.approx(40.0 / 20)

    def test_without_acceptances_both_ways_take_as_long(self) -> None:
        silent = WORKER | sums(push=(0, 0.0), pull=(100, 20.0), answer=(100, 20.0))
        other = OF_ONE | sums(accept=(0, 0.0), held=(100, 6.0), direct=(100, 6.0))
        found = stage_seconds(self.run(process("worker", stages=silent), process(stages=other)))
        assert (found["push"], found["pull"]) == (pytest.approx(0.7), pytest.approx(0.7))

    def test_servers_that_tell_of_another_time_say_nothing(self) -> None:
        for count in (80, 120):
            other = OF_ONE | sums(held=(count, 12.0))
            assert stage_seconds(self.run(process("worker", stages=WORKER), process(stages=other))) == {}

    def test_a_way_back_of_nothing_is_explained(self) -> None:
        fast = WORKER | sums(pull=(100, 11.0))
        processes = (process("worker", stages=fast), process(stages=OF_ONE))
        runs = [self.run(*processes), msgspec.structs.replace(self.run(*processes), cell=1)]
        assert any("take both as one time on the way" in note for note in analyse(design("A=1,2"), runs).notes)
        usual = tuple(msgspec.structs.replace(run, processes=(process("worker", stages=WORKER),)) for run in runs)
        assert not any("one time on the way" in note for note in analyse(design("A=1,2"), usual).notes)

    def test_none_is_negative(self) -> None:
        late = OF_ONE | sums(accept=(60, 50.0), held=(100, 99.0), direct=(40, 30.0))
        found = stage_seconds(self.run(process("worker", stages=WORKER), process(stages=late)))
        assert (found["push"], found["pull"]) == (0.0, 0.0)

    @pytest.mark.parametrize(
        "processes",
        [(), (process("worker"),), (process(stages=SERVER),), (process("worker", stages=sums(push=(0, 0))),)],
    )
    def test_what_says_nothing_has_none(self, processes: tuple[ProcessUse, ...]) -> None:
        assert stage_seconds(self.run(*processes)) == {}
        assert stage_seconds(self.run(process("worker", stages=WORKER), steps=0)) == {}

    def test_a_cell_has_the_medians_of_its_runs(self) -> None:
        grid = design("A=1,2")
        runs = [
            Run(0, block, value=1.0, seconds=5.0, steps=steps, processes=(process("worker", stages=WORKER),))
            for block, steps in enumerate((10, 20, 40))
        ]
        found = analyse(grid, runs).cells[0].stages
        assert [each.name for each in found] == list(STAGES)
        assert found[0].seconds_per_step == pytest.approx(1.0 / 20)
        assert sum(each.share for each in found) == pytest.approx(1.0)
        assert found[0].share == pytest.approx(1.0 / 27)


class TestProcesses:
    def test_cpu_time_is_by_role(self) -> None:
        found = with_processes(
            design("A=1,2"),
            [
                process("scheduler", cpu=0.1),
                process(cpu=2.0),
                process("worker", cpu=5.0),
                process("worker", 1, cpu=3.0),
            ],
            [],
        )
        assert [(each.role, each.processes) for each in found.cells[0].cpu] == [
            ("worker", 2),
            ("server", 1),
            ("scheduler", 1),
        ]
        assert [each.seconds_per_step for each in found.cells[0].cpu] == pytest.approx([0.08, 0.02, 0.001])
        assert [each.cores for each in found.cells[0].cpu] == pytest.approx([0.8, 0.2, 0.01])
        assert found.cells[1].cpu == ()

    def test_teams_and_policies_are_as_most_processes_had_them(self) -> None:
        found = with_processes(
            design("A=1,2"),
            [
                process(team=4, policy="passive", engines=2),
                process(rank=1, team=4, policy="passive", engines=2),
                process(rank=2, team=1, policy="active", engines=1),
                process("worker", team=3, policy="active"),
            ],
            [],
        ).cells
        assert (found[0].server_team, found[0].server_engines, found[0].server_policy) == (4, 2, "passive")
        assert (found[0].worker_team, found[0].worker_policy) == (3, "active")
        assert (found[1].server_team, found[1].server_engines, found[1].server_policy) == (0, 0, "")


def test_a_result_is_json_and_back() -> None:
    grid = design("omp-wait-policy=passive,active", "LR=1,2")
    result = analyse(grid, runs_of(grid, [(1, 2, 3, 4), (1, 2, 3, 5), (1, 3, 3, 4)]), "here")
    assert msgspec.json.decode(msgspec.json.encode(result), type=Analysis) == result
