"""One run: its environment and words, how far its workers are, and what is made of how it ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from byteps_py.tune import factors, running
from byteps_py.tune.model import Design
from byteps_py.tune.running import Watch, as_shell_line, environment


def design(*varied: str, **more: object) -> Design:
    words = varied or ("omp-wait-policy=active,passive", "LEVEL=1,two words")
    asked = {"command": ["python", "t.py", "--save={run_dir}/x", "{run_dir}"], "repeats": 2, "num_workers": 2, **more}
    return factors.design(factors.factors(words), **asked)  # type: ignore[arg-type]


def sample(steps: int) -> str:
    return json.dumps({"kind": "sample", "steps": steps, "wall": 1.0}) + "\n"


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


class TestWatch:
    def test_the_slowest_worker_counts(self, tmp_path: Path) -> None:
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

    def test_lines_may_arrive_in_pieces(self, tmp_path: Path) -> None:
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

    def test_workers_of_two_jobs_are_not_put_together(self, tmp_path: Path) -> None:
        for job, worker in (("a", 0), ("b", 1)):
            (tmp_path / "cell" / job).mkdir(parents=True)
            (tmp_path / "cell" / job / f"worker-{worker}.jsonl").write_text(sample(7))
        assert Watch(tmp_path, 2).steps() == 0
        assert Watch(tmp_path, 1).steps() == 7


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
