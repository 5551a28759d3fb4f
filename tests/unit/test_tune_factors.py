"""tune/factors.py: the words after --vary, the grid of cells, the order of the runs."""

from __future__ import annotations

import pytest

from byteps_py.errors import SettingsError
from byteps_py.tune import factors
from byteps_py.tune.factors import factor, launch_options, notes, order, slug, unique, variables
from byteps_py.tune.model import Cell, Design, Factor


def design(*words: str, repeats: int = 5, num_workers: int = 2, seed: int = 0, metric: str = "") -> Design:
    return factors.design(
        factors.factors(words),
        command=["python", "train.py"],
        repeats=repeats,
        num_workers=num_workers,
        seed=seed,
        metric=metric,
    )


def problems(*words: str, **more: object) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        design(*words, **more)  # type: ignore[arg-type]
    return caught.value.problems


class TestOneWord:
    @pytest.mark.parametrize(
        ("word", "levels"),
        [
            ("omp-wait-policy=passive,active", ("passive", "active")),
            ("omp-wait-policy=Active, PASSIVE", ("active", "passive")),
            ("num-servers=1,02,3", ("1", "2", "3")),
            ("omp-num-threads=1,1024", ("1", "1024")),
            ("worker-omp-wait-policy=passive,active", ("passive", "active")),
            ("worker-omp-num-threads=1,2", ("1", "2")),
            ("num-workers=2,4", ("2", "4")),
        ],
    )
    def test_an_option(self, word: str, levels: tuple[str, ...]) -> None:
        name = word.partition("=")[0]
        assert factor(word) == Factor(name, levels, f"--{name}")

    @pytest.mark.parametrize(
        ("word", "levels"),
        [
            ("LR=0.1,0.2", ("0.1", "0.2")),
            ("_x1=a,b", ("a", "b")),
            ("LR=0.1, 0.2 ", ("0.1", "0.2")),
            ("FLAG=,1", ("", "1")),
            ("FLAG=1,", ("1", "")),
            ("FLAG=a=b,c", ("a=b", "c")),
            (r"CORES=0\,1,2\,3", ("0,1", "2,3")),
            ('CORES="0,1",2', ("0,1", "2")),
            ("X=' a ', \"it's\" ,b c", (" a ", "it's", "b c")),
            ('X=say "hi",b', ('say "hi"', "b")),
            (r"X=C:\new,\\,b", (r"C:\new", "\\", "b")),
            ("OMP_WAIT_POLICY=passive,active", ("passive", "active")),
            ("BYTEPS_PARTITION_BYTES=4096,8192", ("4096", "8192")),
            ("BYTEPS_STAGE_TIMES=0,1", ("0", "1")),
        ],
    )
    def test_a_variable(self, word: str, levels: tuple[str, ...]) -> None:
        assert factor(word) == Factor(word.partition("=")[0], levels)

    @pytest.mark.parametrize(
        ("word", "problem"),
        [
            ("omp-wait-polcy=a,b", "did you mean omp-wait-policy?"),
            ("omp_wait_policy=passive,active", "did you mean omp-wait-policy?"),
            ("num_server=1,2", "did you mean num-servers?"),
            ("--num-servers=1,2", "did you mean num-servers?"),
            ("num-server", "must be NAME=VALUE,VALUE"),
            ("num-server", "did you mean num-servers?"),
            ("=1,2", "must be NAME=VALUE,VALUE"),
            ("9X=1,2", "nor a variable's name"),
            ("DMLC_NUM_SERVER=1,2", "vary num-servers instead"),
            ("BYTEPS_LOCAL_SIZE=1,2", "vary num-workers instead"),
            ("DMLC_ROLE=worker,server", "is set for each run by `bps ab` or bpslaunch"),
            ("BYTEPS_AB_STEPS=1,2", "is set for each run"),
            ("BYTEPS_RUN_DIR=a,b", "is set for each run"),
            ("BYTEPS_LAUNCH_ID=a,b", "is set for each run"),
            ("omp-wait-policy=passive,sometimes", "'sometimes' must be one of passive, active"),
            ("omp-wait-policy=passive,", "'' must be one of passive, active"),
            ("num-servers=1,two", "'two' must be a whole number from 1 to 65535, or 0 for a single worker"),
            ("omp-num-threads=0,1", "'0' must be a whole number from 1 to 1024"),
            ("num-servers=1", "a single value has nothing to be compared with"),
            ("X=", "a single value has nothing to be compared with"),
            ("X=1,2,1", "'1' is the same as '1'"),
            ("num-servers=1,01", "'01' is the same as '1'"),
            ("BYTEPS_KERNELS=native,NATIVE", "'NATIVE' is the same as 'native'"),
            ("BYTEPS_PARTITION_BYTES=1,4096", "'1' must be a whole number from 64 to"),
            ("X=a\nb,c", "all of them printable"),
            (f"X={'a' * 256},c", "at most 255 characters"),
        ],
    )
    def test_a_mistake_is_explained(self, word: str, problem: str) -> None:
        with pytest.raises(SettingsError) as caught:
            factor(word)
        assert problem in str(caught.value)
        assert repr(word) in str(caught.value)

    def test_all_problems_are_told_at_once(self) -> None:
        with pytest.raises(SettingsError) as caught:
            factors.factors(["num-servers=x,y", "9X=1,2", "LR=1,2"])
        assert len(caught.value.problems) == 3

    def test_a_right_name_alone_is_not_suggested(self) -> None:
        with pytest.raises(SettingsError) as caught:
            factor("num-servers")
        assert "did you mean" not in str(caught.value)


class TestNotes:
    def test_a_general_openmp_variable_is_for_both_roles(self) -> None:
        (line,) = notes([factor("OMP_WAIT_POLICY=passive,active")])
        assert "servers and workers alike" in line
        assert "worker-omp-wait-policy for workers" in line

    def test_a_variable_like_an_option_may_be_meant_for_it(self) -> None:
        (line,) = notes([factor("NUM_WORKERS=1,2")])
        assert line == "NUM_WORKERS is taken for an environment variable of the command; the option is num-workers"

    def test_a_misspelt_variable_is_told(self) -> None:
        (line,) = notes([factor("BYTEPS_PARTITION_BYTE=4096,8192")])
        assert "did you mean BYTEPS_PARTITION_BYTES?" in line

    def test_a_variable_without_effect_is_told(self) -> None:
        assert any("no effect here" in line for line in notes([factor("BYTEPS_SERVER_ENABLE_SCHEDULE=0,1")]))

    def test_others_are_no_news(self) -> None:
        assert notes([factor("num-servers=1,2"), factor("LR=1,2"), factor("BYTEPS_KERNELS=native,reference")]) == []


class TestCells:
    def test_the_founding_table(self) -> None:
        found = design("omp-wait-policy=active,passive", "num-servers=1,2").cells
        assert found == (
            Cell(("active", "1"), "baseline (omp-wait-policy=active, num-servers=1)", "baseline"),
            Cell(("passive", "1"), "+ omp-wait-policy=passive", "omp-wait-policy=passive"),
            Cell(("active", "2"), "+ num-servers=2", "num-servers=2"),
            Cell(("passive", "2"), "+ both", "omp-wait-policy=passive_num-servers=2"),
        )

    def test_with_more_levels_both_values_are_named(self) -> None:
        found = [cell.label for cell in design("A=1,2", "B=x,y,z").cells]
        assert found == ["baseline (A=1, B=x)", "+ A=2", "+ B=y", "+ B=z", "+ A=2, B=y", "+ A=2, B=z"]

    def test_three_factors_are_in_order_of_distance(self) -> None:
        found = [cell.label for cell in design("A=1,2", "B=1,2", "C=1,2").cells]
        assert found[1:4] == ["+ A=2", "+ B=2", "+ C=2"]
        assert found[-1] == "+ A=2, B=2, C=2"

    def test_values_that_would_mislead_are_quoted(self) -> None:
        found = [cell.label for cell in design(r"A=,a b,c\,d").cells]
        assert found == ['baseline (A="")', '+ A="a b"', '+ A="c,d"']

    def test_labels_and_slugs_are_unique_safe_and_short(self) -> None:
        long = "x" * 250
        cells = design(f"A=a/b,a:b,a?b,A:B,../..,{long}1,{long}2", "num-servers=1,2").cells
        assert len({cell.label for cell in cells}) == len({cell.slug.lower() for cell in cells}) == 14
        for cell in cells:
            assert len(cell.slug) <= 90
            assert not set(cell.slug) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._=")
            assert not cell.slug.startswith(".")

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ([], []),
            (["a", "b"], ["a", "b"]),
            (["a", "a", "A"], ["a", "a.2", "A.3"]),
            (["a", "a.2", "a"], ["a", "a.2", "a.3"]),
            (["a", "a", "a.2"], ["a", "a.2", "a.2.2"]),
        ],
    )
    def test_names_are_made_unique(self, names: list[str], expected: list[str]) -> None:
        assert unique(names) == expected

    @pytest.mark.parametrize(
        ("text", "expected"), [("", "cell"), ("..", "cell"), ("a b", "a-b"), ("-x", "x"), ("é", "cell"), ("A=1", "A=1")]
    )
    def test_a_slug_is_a_file_name(self, text: str, expected: str) -> None:
        assert slug(text) == expected

    def test_what_makes_a_cell(self) -> None:
        grid = design("num-servers=1,2", "LR=0.1,0.2", "FLAG=,1")
        assert launch_options(grid, grid.cells[0]) == ("--num-workers=2", "--num-servers=1")
        assert variables(grid, grid.cells[0]) == {"LR": "0.1", "FLAG": ""}
        assert launch_options(grid, grid.cells[-1]) == ("--num-workers=2", "--num-servers=2")
        assert variables(grid, grid.cells[-1]) == {"LR": "0.2", "FLAG": "1"}

    def test_what_all_runs_inherit(self) -> None:
        environ = {
            "OMP_NUM_THREADS": "2",
            "BYTEPS_PARTITION_BYTES": "4096",
            "GOMP_SPINCOUNT": "0",
            "KMP_BLOCKTIME": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        others = {
            "HOME": "/",
            "DMLC_ROLE": "worker",
            "BYTEPS_AB_CELL": "x",
            "BYTEPS_RUN_DIR": "/x",
            "BYTEPS_LOCAL_SIZE": "1",
            "OMP_DISPLAY_ENV": "VERBOSE",
            "OMP_PROC_BIND": "varied",
            "BYTEPS_SERVER_OMP_WAIT_POLICY": "overruled",
        }
        varied = factors.factors(["OMP_PROC_BIND=true,false", "omp-wait-policy=active,passive"])
        assert factors.inherited(varied, {**others, **environ}) == environ
        assert list(factors.inherited(varied, environ)) == sorted(environ)

    def test_varied_workers_replace_those_of_the_design(self) -> None:
        grid = design("num-workers=1,4", num_workers=3)
        assert [launch_options(grid, cell) for cell in grid.cells] == [("--num-workers=1",), ("--num-workers=4",)]


class TestDesign:
    def test_nothing_varied(self) -> None:
        assert problems() == (
            "nothing is varied: name a setting and its values, as in --vary omp-wait-policy=passive,active",
        )

    def test_a_factor_given_twice(self) -> None:
        assert "is given 2 times" in problems("A=1,2", "A=3,4")[0]

    def test_an_option_beside_the_variable_that_it_overrules(self) -> None:
        found = problems("omp-wait-policy=passive,active", "BYTEPS_SERVER_OMP_WAIT_POLICY=passive,active")
        assert "would do nothing beside omp-wait-policy" in found[0]

    def test_too_many_cells(self) -> None:
        words = [f"{name}=1,2,3,4,5" for name in "ABC"]
        assert "5 x 5 x 5 = 125 cells are more than 64" in problems(*words)[0]

    def test_workers_without_a_server(self) -> None:
        assert "without a server nobody sums" in problems("num-servers=0,1", num_workers=2)[0]
        assert "without a server nobody sums" in problems("num-servers=0,1", "num-workers=1,2", num_workers=1)[0]
        assert len(design("num-servers=0,1", num_workers=1).cells) == 2

    @pytest.mark.parametrize(("metric", "problem"), [("loss=(", "no regular expression"), ("loss=", "has no group")])
    def test_a_bad_metric(self, metric: str, problem: str) -> None:
        assert problem in problems("A=1,2", metric=metric)[0]

    def test_all_problems_are_told_at_once(self) -> None:
        with pytest.raises(SettingsError) as caught:
            factors.design(
                (), command=[], repeats=0, num_workers=0, warmup_steps=-1, steps=-1, metric="(", timeout=float("nan")
            )
        assert len(caught.value.problems) == 8


class TestOrder:
    def test_every_block_has_every_cell_once(self) -> None:
        grid = design("A=1,2,3", "B=1,2", repeats=7)
        runs = order(grid)
        assert [block for block, _ in runs] == [block for block in range(7) for _ in range(6)]
        for block in range(7):
            assert sorted(cell for each, cell in runs if each == block) == list(range(6))

    def test_it_follows_from_the_seed_in_every_version(self) -> None:
        grid = design("A=1,2", "B=1,2", repeats=3, seed=0)
        expected = [(0, 3), (0, 2), (0, 1), (0, 0), (1, 3), (1, 1), (1, 0), (1, 2), (2, 0), (2, 3), (2, 1), (2, 2)]
        assert order(grid) == expected

    def test_another_seed_gives_another_order(self) -> None:
        assert order(design("A=1,2", "B=1,2", seed=1)) != order(design("A=1,2", "B=1,2", seed=2))

    def test_every_cell_comes_first_about_equally_often(self) -> None:
        runs = order(design("A=1,2", repeats=1000))
        assert sum(cell for _, cell in runs[::2]) == pytest.approx(500, abs=65)
