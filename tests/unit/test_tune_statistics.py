"""tune/statistics.py: Student's t against printed tables, intervals by hand, and rates against simulation."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import ModuleType

import pytest

from byteps_py.tune import statistics
from byteps_py.tune.statistics import blocks_needed, combine, detectable, interval, power, t_quantile

NORMAL = 1.959964

TABLE = (
    # degrees of freedom, then the quantiles for 0.90, 0.95, 0.975, 0.995 as tables print them
    (1, 3.078, 6.314, 12.706, 63.657),
    (2, 1.886, 2.920, 4.303, 9.925),
    (3, 1.638, 2.353, 3.182, 5.841),
    (4, 1.533, 2.132, 2.776, 4.604),
    (5, 1.476, 2.015, 2.571, 4.032),
    (6, 1.440, 1.943, 2.447, 3.707),
    (7, 1.415, 1.895, 2.365, 3.499),
    (8, 1.397, 1.860, 2.306, 3.355),
    (9, 1.383, 1.833, 2.262, 3.250),
    (10, 1.372, 1.812, 2.228, 3.169),
    (19, 1.328, 1.729, 2.093, 2.861),
    (30, 1.310, 1.697, 2.042, 2.750),
    (120, 1.289, 1.658, 1.980, 2.617),
)


@pytest.fixture(scope="module")
def honesty() -> ModuleType:
    module: ModuleType = pytest.importorskip("benchmarks.ab_honesty", reason="the benchmarks are not beside the tests")
    return module


class TestQuantiles:
    @pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row[0]))
    def test_they_are_those_of_the_tables(self, row: tuple[float, ...]) -> None:
        found = [t_quantile(p, int(row[0])) for p in (0.90, 0.95, 0.975, 0.995)]
        assert found == pytest.approx(row[1:], abs=0.0006)

    def test_with_one_degree_of_freedom_it_is_a_tangent(self) -> None:
        assert t_quantile(0.83, 1) == pytest.approx(math.tan(math.pi * 0.33), rel=1e-12)

    def test_with_two_it_is_algebraic(self) -> None:
        share = 2 * 0.83 - 1
        assert t_quantile(0.83, 2) == pytest.approx(share * math.sqrt(2 / (1 - share * share)), rel=1e-12)

    def test_with_very_many_it_is_the_normal_one(self) -> None:
        assert t_quantile(0.975, 100_000) == pytest.approx(NORMAL, abs=1e-4)

    def test_it_is_symmetric(self) -> None:
        assert t_quantile(0.025, 4) == pytest.approx(-t_quantile(0.975, 4), rel=1e-12)
        assert t_quantile(0.5, 3) == pytest.approx(0.0, abs=1e-12)

    @pytest.mark.parametrize(("p", "dof"), [(0.0, 3), (1.0, 3), (-0.1, 3), (math.nan, 3), (0.9, 0)])
    def test_what_has_none_is_refused(self, p: float, dof: int) -> None:
        with pytest.raises(ValueError, match="no quantile"):
            t_quantile(p, dof)


class TestInterval:
    def test_it_is_students_on_the_log_ratios(self) -> None:
        logs = [0.1, 0.2, 0.3]
        found = interval([(50.0, 50.0 * math.exp(each)) for each in logs])
        reach = 4.302653 * 0.1 / math.sqrt(3)
        assert found.blocks == 3
        assert found.ratio == pytest.approx(math.exp(0.2))
        assert found.low == pytest.approx(math.exp(0.2 - reach), rel=1e-6)
        assert found.high == pytest.approx(math.exp(0.2 + reach), rel=1e-6)
        assert found.median == pytest.approx(math.exp(0.2))
        assert found.verdict == "none"

    def test_what_slows_a_block_down_cancels(self) -> None:
        quiet = interval([(100.0, 121.0), (100.0, 119.0), (100.0, 120.0)])
        noisy = interval([(100.0, 121.0), (10.0, 11.9), (1.0, 1.2)])
        assert (noisy.low, noisy.high) == pytest.approx((quiet.low, quiet.high))
        assert noisy.verdict == "more"

    def test_the_other_way_round_it_is_the_inverse(self) -> None:
        pairs = [(1.0, 1.3), (1.0, 1.1), (2.0, 2.5), (3.0, 3.1)]
        there, back = interval(pairs), interval([(second, first) for first, second in pairs])
        assert None not in (there.low, there.high, back.low, back.high)
        assert (back.ratio, back.low, back.high) == pytest.approx(
            (1 / there.ratio, 1 / (there.high or 0), 1 / (there.low or 0))
        )
        assert back.detectable == pytest.approx(there.detectable)

    def test_its_median_is_that_of_the_ratios(self) -> None:
        assert interval([(1.0, 2.0), (1.0, 3.0), (1.0, 100.0)]).median == pytest.approx(3.0)

    def test_one_pair_has_a_ratio_and_no_interval(self) -> None:
        found = interval([(2.0, 3.0)])
        assert (found.blocks, found.ratio, found.median) == (1, pytest.approx(1.5), pytest.approx(1.5))
        assert (found.low, found.high, found.detectable, found.verdict) == (None, None, None, "unknown")

    def test_without_any_noise_it_is_a_point(self) -> None:
        found = interval([(2.0, 3.0)] * 4)
        assert found.low == found.high == found.ratio == pytest.approx(1.5)
        assert found.detectable == 1.0
        assert found.verdict == "more"

    def test_equal_values_are_no_difference(self) -> None:
        found = interval([(0.1, 0.1), (0.3, 0.3), (0.7, 0.7)])
        assert (found.low, found.ratio, found.high, found.verdict) == (1.0, 1.0, 1.0, "none")

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    @pytest.mark.parametrize("place", [0, 1])
    def test_what_has_no_logarithm_is_refused(self, bad: float, place: int) -> None:
        pair = (bad, 1.0) if place == 0 else (1.0, bad)
        with pytest.raises(ValueError, match="finite numbers above 0"):
            interval([(1.0, 1.0), pair])

    def test_no_pairs_are_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one block"):
            interval([])


class TestCombine:
    def test_the_mean_of_the_combinations(self) -> None:
        """Each has the variance 0.01, so that of their mean over 5 blocks is 0.001, with 8 degrees of freedom."""
        logs = [math.sqrt(0.01 / 2.5) * each for each in (-2, -1, 0, 1, 2)]
        blocks = [
            [(1.0, math.exp(0.1 + one)), (3.0, 3 * math.exp(0.3 + other))]
            for one, other in zip(logs, logs[2:] + logs[:2], strict=True)
        ]
        found = combine(blocks)
        assert (found.blocks, found.ratio) == (5, pytest.approx(math.exp(0.2)))
        assert found.high == pytest.approx(math.exp(0.2 + 2.306 * math.sqrt(0.001)), rel=1e-4)
        assert found.low == pytest.approx(math.exp(0.2 - 2.306 * math.sqrt(0.001)), rel=1e-4)

    def test_a_combination_that_alone_is_noisy_lends_no_certainty(self) -> None:
        pairs = [(1.0, 1.1), (1.0, 1.2), (1.0, 1.3)]
        blocks = [[pair, (1.0, 1.2)] for pair in pairs]
        half = interval([(1.0, math.sqrt(other * 1.2)) for _, other in pairs])
        found = combine(blocks)
        assert (found.low, found.high) == pytest.approx((half.low, half.high))

    def test_with_more_than_two_pairs_a_block_counts_once(self) -> None:
        logs = (0.1, 0.3, 0.2)
        found = combine([[(1.0, math.exp(log)), (5.0, 5 * math.exp(log)), (2.0, 2 * math.exp(log))] for log in logs])
        same = interval([(1.0, math.exp(log)) for log in logs])
        assert (found.ratio, found.low, found.high) == pytest.approx((same.ratio, same.low, same.high))

    def test_no_noise_at_all(self) -> None:
        found = combine([[(1.0, 2.0), (1.0, 8.0)]] * 3)
        assert (found.ratio, found.low, found.high) == pytest.approx((4.0, 4.0, 4.0))

    @pytest.mark.parametrize("blocks", [[], [[]], [[(1.0, 2.0)], []], [[(1.0, 2.0)], [(1.0, 2.0), (1.0, 2.0)]]])
    def test_blocks_without_pairs_or_with_different_ones_are_refused(
        self, blocks: list[list[tuple[float, float]]]
    ) -> None:
        with pytest.raises(ValueError, match="at least one block"):
            combine(blocks)


class TestPower:
    def test_no_difference_is_shown_on_one_side_once_in_forty(self) -> None:
        for blocks in (2, 3, 5, 10, 50):
            assert power(1.0, 0.05, blocks) == pytest.approx(0.025, abs=1e-6)

    def test_five_blocks_of_two_cells(self) -> None:
        assert power(1.1, 0.05 * math.sqrt(2), 5) == pytest.approx(0.623, abs=0.001)
        assert power(1.1, 0.05, 5) == pytest.approx(0.883, abs=0.001)

    def test_it_is_the_same_for_less_as_for_more(self) -> None:
        assert power(1 / 1.1, 0.05, 5) == pytest.approx(power(1.1, 0.05, 5))

    def test_with_many_blocks_it_is_that_of_the_normal_test(self) -> None:
        shift = NORMAL + 1.281552
        assert power(math.exp(0.1 * shift / math.sqrt(1000)), 0.1, 1000) == pytest.approx(0.9, abs=0.002)

    @pytest.mark.parametrize("blocks", [2, 3, 5, 8])
    def test_the_detectable_ratio_is_the_one_with_that_power(self, blocks: int) -> None:
        ratio = detectable(0.05, blocks)
        assert power(ratio, 0.05, blocks) == pytest.approx(statistics.SURE, abs=1e-6)
        assert power(1 + (ratio - 1) * 0.9, 0.05, blocks) < statistics.SURE

    def test_the_least_number_of_blocks(self) -> None:
        needed = blocks_needed(1.1, 0.05 * math.sqrt(2))
        assert needed == 8
        assert power(1.1, 0.05 * math.sqrt(2), needed) >= 0.9 > power(1.1, 0.05 * math.sqrt(2), needed - 1)

    def test_what_no_number_of_blocks_shows_is_refused(self) -> None:
        with pytest.raises(ValueError, match="1000 blocks"):
            blocks_needed(1.001, 0.5)

    @pytest.mark.parametrize("blocks", [2, 3, 5])
    def test_simulated_experiments_find_it_as_often(self, blocks: int) -> None:
        draw = random.Random(blocks).gauss
        middle = math.log(detectable(0.05, blocks))
        found = sum(
            interval([(1.0, math.exp(draw(middle, 0.05))) for _ in range(blocks)]).verdict == "more"
            for _ in range(1500)
        )
        # Four standard errors of a rate of 0.9.
        assert found / 1500 == pytest.approx(0.9, abs=0.031)


class TestHonesty:
    """benchmarks/ab_honesty.py with few experiments: seeded, so the rates are always the same."""

    def test_false_differences_are_rare(self, honesty: ModuleType) -> None:
        rows = honesty.synthetic(400, 1)
        assert len([row for row in rows if not row.difference]) == 6
        assert honesty.passes(rows), [(row.name, row.rate) for row in rows]

    def test_true_ones_are_found_as_often_as_promised(self, honesty: ModuleType) -> None:
        rows = [row for row in honesty.synthetic(400, 2) if row.difference]
        assert [row.rate for row in rows] == [pytest.approx(row.expected, abs=4 * row.error) for row in rows]
        assert sum(row.expected >= 0.9 for row in rows) == 2

    def test_one_seed_gives_one_result(self, honesty: ModuleType) -> None:
        assert honesty.synthetic(20, 7) == honesty.synthetic(20, 7) != honesty.synthetic(20, 8)

    def test_the_command_prints_a_table_and_writes_it(
        self, honesty: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        file = tmp_path / "honesty.json"
        assert honesty.main(["--experiments", "400", "--seed", "1", "--json", str(file)]) == 0
        printed = capsys.readouterr().out
        assert all(case.name in printed for case in honesty.cases())
        assert '"synthetic"' in file.read_text()

    def test_too_many_false_differences_fail(
        self, honesty: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(honesty, "MOST_FALSE", 0.0)
        assert honesty.main(["--experiments", "100"]) == 1
        assert "show a difference that is none" in capsys.readouterr().err
