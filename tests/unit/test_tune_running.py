"""One run: its environment and words, how far its workers are, and what is made of how it ended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from byteps_py.tune import factors, running
from byteps_py.tune.model import Design, Run
from byteps_py.tune.running import as_shell_line, environment
from byteps_py.tune.watch import Watch


def design(*varied: str, **more: object) -> Design:
    words = varied or ("omp-wait-policy=active,passive", "LEVEL=1,two words")
    asked = {"command": ["python", "t.py", "--save={run_dir}/x", "{run_dir}"], "repeats": 2, "num_workers": 2, **more}
    return factors.design(factors.factors(words), **asked)  # type: ignore[arg-type]


class TestEnvironment:
    def test_a_run_is_told_where_and_what_it_is(self, tmp_path: Path) -> None:
        place = tmp_path / "runs" / "2-LEVEL=two-words"
        cell = [each.slug for each in design().cells].index("LEVEL=two-words")
        assert environment(design(warmup_steps=3, steps=7), cell, 1, tmp_path, {}) == {
            "BYTEPS_AB_RECORD": str(place / "records"),
            "BYTEPS_AB_CELL": "LEVEL=two-words",
            "BYTEPS_AB_BLOCK": "1",
            "BYTEPS_AB_WARMUP_STEPS": "3",
            "BYTEPS_AB_STEPS": "7",
            "BYTEPS_RUN_DIR": str(place / "files"),
            "BYTEPS_GRACE_PERIOD": "1",
            "OMP_DISPLAY_ENV": "TRUE",
            "LEVEL": "two words",
        }

    def test_the_users_goes_on_without_another_job(self, tmp_path: Path) -> None:
        users = {"HOME": "/home/me", "LEVEL": "9", "BYTEPS_GRACE_PERIOD": "5", "DMLC_ROLE": "worker"}
        found = environment(design(), 0, 0, tmp_path, {**users, "BYTEPS_AB_STEPS": "1", "BYTEPS_AB_OTHER": "1"})
        assert found["HOME"] == "/home/me"
        assert found["LEVEL"] == "1"
        assert found["BYTEPS_GRACE_PERIOD"] == "5"
        assert found["BYTEPS_AB_STEPS"] == "100"
        assert not {"DMLC_ROLE", "BYTEPS_AB_OTHER"} & found.keys()

    def test_each_run_has_files_of_its_own(self, tmp_path: Path) -> None:
        asked = design()
        places = {
            environment(asked, cell, block, tmp_path, {})["BYTEPS_RUN_DIR"] for block, cell in factors.order(asked)
        }
        assert len(places) == 8


def test_a_dry_run_shows_what_would_be_started(tmp_path: Path) -> None:
    line = as_shell_line(design("omp-wait-policy=active,passive"), 1, 0, tmp_path, {"OMP_DISPLAY_ENV": "TRUE"})
    place = tmp_path / "runs" / "1-omp-wait-policy=passive"
    assert line.endswith(
        f" bpslaunch --num-workers=2 --omp-wait-policy=passive --log-dir={place}/log -- "
        f"python t.py --save={place}/files/x {place}/files"
    )
    assert f"BYTEPS_RUN_DIR={place}/files " in line
    assert "OMP_DISPLAY_ENV" not in line


def test_a_dry_run_escapes_what_does_not_print(tmp_path: Path) -> None:
    asked = design("A=1,2", command=["sh", "-c", "a\nb", "\x1b'\\"])
    line = as_shell_line(asked, 0, 0, tmp_path, {})
    assert line.endswith(" -- sh -c 'a\nb' $'\\033\\'\\\\'")


class TestCheck:
    def launcher(self, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        """Let ``script`` stand for the launcher; it gets the words."""
        monkeypatch.setattr(
            running, "_command", lambda design, cell, place, *more: ["sh", "-c", script, "sh", *more, cell.label]
        )

    def check(self, *cells: int, said: list[str] | None = None) -> list[str]:
        return running.check_cells(design("A=1,2,3"), cells, Path("nowhere"), {}, ([] if said is None else said).append)

    def test_objections_are_told_with_their_cells(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launcher(
            monkeypatch,
            'echo "usage: x" >&2; echo "bpslaunch: error: no" >&2; [ "$2" = "+ A=3" ] && exit 7; exit 0',
        )
        said: list[str] = []
        assert self.check(0, 1, said=said) == []
        assert self.check(0, 2, said=said) == ["no [+ A=3]"]
        assert self.check(2, said=said) == ["no"]
        assert self.check(said=said) == []
        assert said == []

    def test_one_that_hangs_is_a_problem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launcher(monkeypatch, "exec sleep 60")
        monkeypatch.setattr(running, "_CHECK_SECONDS", 0.2)
        monkeypatch.setattr(running, "_SILENT_SECONDS", 0.0)
        said: list[str] = []
        (problem,) = self.check(0, 1, said=said)
        assert problem.startswith("bpslaunch --dry-run has not ended after 0.2 s")
        assert said == ["checking the settings of 2 combinations ..."]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, None),
        (3, "the job ended with exit status 3"),
        (127, "the job ended with exit status 127"),
        (137, "the job was ended by SIGKILL"),
        (-15, "the job was ended by SIGTERM"),
        (255, "the job ended with exit status 255"),
    ],
)
def test_how_an_end_is_described(status: int, text: str | None) -> None:
    assert running._describe_end(status) == text


@pytest.mark.parametrize(
    ("steps", "mend"),
    [
        (80, "it ended after 80 of 120 steps (20 warm-up + 100): give --steps 60 or fewer"),
        (21, "it ended after 21 of 120 steps (20 warm-up + 100): give --steps 1 or fewer"),
        (
            20,
            "it ended after 20 of 120 steps (20 warm-up + 100): give --warmup-steps below 20, and --steps for the rest",
        ),
        (0, "it ended before every worker had made a step"),
    ],
)
def test_how_many_steps_a_short_script_may_be_asked_for(steps: int, mend: str) -> None:
    assert running._lacking(design(), Run(cell=0, block=0), steps).startswith(mend)


@pytest.mark.parametrize(
    ("removed", "gone"),
    [("", ""), ("files", ""), ("records", "records"), (".", "1-a"), ("..", "1-a"), ("../..", "out")],
)
def test_what_was_removed_is_named(tmp_path: Path, removed: str, gone: str) -> None:
    place = tmp_path / "out" / "runs" / "1-a"
    for name in ("files", "records"):
        (place / name).mkdir(parents=True)
    if removed:
        shutil.rmtree((place / removed).resolve())
    text = running._missing(Watch(place / "records", 1), place)
    assert bool(text) is bool(gone)
    assert text.partition(" was removed")[0].endswith(gone)
