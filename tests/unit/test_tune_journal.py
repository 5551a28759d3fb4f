"""An experiment on the disk: begun, interrupted, gone on with, and taken for another one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
import pytest

from byteps_py.errors import SettingsError
from byteps_py.tune import factors, journal
from byteps_py.tune.journal import Journal, load, open_journal
from byteps_py.tune.model import Design, Factor, ProcessUse, Run, StageSum

USE = ProcessUse("worker", 1, "here", 42, 1.5, 2, "passive", 0, 2, {"pull": StageSum(3, 0.25)})


def design(**changed: object) -> Design:
    varied = (factors.factor("omp-wait-policy=active,passive"), factors.factor("LEVEL=1,2"))
    made = factors.design(varied, command=["python", "train.py"], repeats=3, num_workers=2, seed=7)
    return msgspec.structs.replace(made, **changed)


def begin(folder: Path, asked: Design, *runs: Run, any_seed: bool = False) -> tuple[Design, list[Run], list[str]]:
    """Open the experiment, add runs, and close it; returns what was in force and there before, and what was said."""
    said: list[str] = []
    with open_journal(asked, folder, said.append, any_seed=any_seed) as book:
        before = list(book.runs)
        for run in runs:
            book.append(run)
        return book.design, before, said


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    first = Run(cell=1, block=0, value=41.25, seconds=2.0, steps=100, processes=(USE,), started=1e9)
    second = Run(cell=0, block=0, problem="it failed", log="a\n\u00e9")
    begin(folder, design(), first)
    assert begin(folder, design(), second) == (design(), [first], [])
    assert load(folder) == (design(), [first, second])
    assert journal.holds_experiment(folder)
    assert not journal.holds_experiment(tmp_path)


def test_a_run_that_is_made_again_comes_after_the_one_that_failed(tmp_path: Path) -> None:
    failed, good = Run(cell=1, block=0, problem="it failed"), Run(cell=1, block=0, value=2.0)
    begin(tmp_path, design(), failed, good)
    assert load(tmp_path)[1] == [failed, good]


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_that_was_cut_short_is_passed_over_and_removed(tmp_path: Path, cut: int) -> None:
    first, second = Run(cell=1, block=0, value=1.5), Run(cell=0, block=0, value=2.5)
    begin(tmp_path, design(), first, second)
    path = tmp_path / journal.RUNS
    os.truncate(path, path.stat().st_size - cut)
    assert load(tmp_path)[1] == [first]
    assert begin(tmp_path, design(), second)[1] == [first]
    assert load(tmp_path)[1] == [first, second]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{}\n", ["line 1", "cell", "made again"]),
        (b"nonsense\n", ["line 1", "made again"]),
        (b'{"cell":9,"block":0}\n', ["line 1", "cell 9"]),
    ],
)
def test_a_line_that_is_no_run_is_named(tmp_path: Path, line: bytes, words: list[str]) -> None:
    begin(tmp_path, design())
    (tmp_path / journal.RUNS).write_bytes(line)
    with pytest.raises(SettingsError) as caught:
        load(tmp_path)
    assert all(word in str(caught.value) for word in [str(tmp_path / journal.RUNS), *words])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 50}, ["steps 100 there, 50 here"]),
        ({"command": ("python", "other.py")}, ["command python train.py there, python other.py here"]),
        ({"metric": "(.)", "num_workers": 3}, ["metric '' there, '(.)' here", "num_workers 2 there, 3 here"]),
        ({"repeats": 2}, ["repeats 3 there, 2 here"]),
        ({"seed": 8}, ["seed 7 there, 8 here"]),
        ({"factors": (), "cells": ()}, ["factors omp-wait-policy=active,passive LEVEL=1,2 there, nothing here"]),
    ],
)
def test_another_experiment_is_refused_with_the_difference(
    tmp_path: Path, changed: dict[str, object], words: list[str]
) -> None:
    begin(tmp_path, design(), Run(cell=0, block=0))
    with pytest.raises(SettingsError, match="holds another experiment") as caught:
        begin(tmp_path, design(**changed))
    assert all(word in str(caught.value) for word in words)
    assert load(tmp_path) == (design(), [Run(cell=0, block=0)])


@pytest.mark.parametrize(
    "changed", [{"steps": 50}, {"repeats": 2}, {"environment": {"OMP_A": "2"}}, {"directory": "/b", "metric": "(.)"}]
)
def test_without_a_good_run_another_experiment_takes_its_place(tmp_path: Path, changed: dict[str, object]) -> None:
    old = design(machine="m", directory="/a")
    begin(tmp_path, old, Run(cell=0, block=0, problem="it failed"), Run(cell=1, block=0, problem="it failed"))
    place = tmp_path / "runs" / "1-baseline"
    place.mkdir(parents=True)
    new = design(machine="m2", **changed)
    told = ["no run of the experiment that was there is good: this one takes its place"]
    # What is refused leaves all as it was.
    with pytest.raises(SettingsError, match="refused"), open_journal(new, tmp_path, print, check=refuse):
        pass
    assert load(tmp_path)[0] == old
    assert place.is_dir()
    assert begin(tmp_path, new, Run(cell=1, block=0, value=2.0)) == (new, [], told)
    assert not place.exists()
    assert load(tmp_path) == (new, [Run(cell=1, block=0, value=2.0)])


def refuse(design: Design, runs: list[Run]) -> None:
    raise SettingsError("refused")


def test_the_same_experiment_keeps_its_failed_runs(tmp_path: Path) -> None:
    failed = Run(cell=0, block=0, problem="it failed")
    begin(tmp_path, design(directory="/a"), failed)
    # Without a good run it goes on where it is asked for.
    assert begin(tmp_path, design(directory="/b"), Run(cell=0, block=0)) == (design(directory="/b"), [failed], [])


def test_the_working_folder_of_good_runs_is_kept(tmp_path: Path) -> None:
    begin(tmp_path, design(directory="/a"), Run(cell=0, block=0))
    assert begin(tmp_path, design(directory="/b")) == (
        design(directory="/a"),
        [Run(cell=0, block=0)],
        ["runs are made in /a, where the others were, not in /b"],
    )
    assert load(tmp_path)[0].directory == "/a"


def test_that_of_an_older_version_is_unknown(tmp_path: Path) -> None:
    begin(tmp_path, design(), Run(cell=0, block=0))
    assert begin(tmp_path, design(directory="/b"))[2] == []
    assert load(tmp_path)[0].directory == "/b"


BAD_DESIGNS = [
    ({"repeats": 0}, "--repeats 0 must be"),
    ({"steps": -5}, "--steps -5 must be"),
    ({"timeout": 0.0}, "--timeout 0.0 must be"),
    ({"metric": "("}, "is no regular expression"),
    ({"command": ()}, "the training command is missing"),
    ({"cells": design().cells[:3]}, "its cells are not the combinations of its factors"),
    ({"cells": (msgspec.structs.replace(design().cells[0], slug="../x"), *design().cells[1:])}, "names that cannot be"),
    ({"cells": (design().cells[0],) * 4}, "its cells are not the combinations"),
    ({"factors": (Factor("num-workers", ("many",), "--num-workers"),)}, "'many' must be a whole number"),
    ({"factors": (Factor("A", ()),)}, "A: no value"),
    ({"factors": (Factor("A", ("1", "1")),)}, "levels must differ"),
    ({"factors": (Factor("A", ("1", "2"), "--evil"),)}, "'A' is set by '--evil'"),
]


@pytest.mark.parametrize(("changed", "text"), BAD_DESIGNS)
@pytest.mark.parametrize("has_runs", [False, True])
def test_a_design_that_cannot_be_is_refused(
    tmp_path: Path, changed: dict[str, object], text: str, has_runs: bool
) -> None:
    begin(tmp_path, design(), Run(cell=0, block=0))
    if has_runs:
        (tmp_path / "runs").mkdir()
    content = msgspec.json.encode(design(**changed))
    (tmp_path / journal.DESIGN).write_bytes(content)
    for use in (load, lambda folder: begin(folder, design())):
        with pytest.raises(SettingsError) as caught:
            use(tmp_path)
        (problem,) = caught.value.problems
        assert text in problem
        assert "choose another folder" in problem
        assert (f"`bps ab report {tmp_path}/runs` shows" in problem) is has_runs
    assert (tmp_path / journal.DESIGN).read_bytes() == content


def test_runs_that_were_removed_are_told(tmp_path: Path) -> None:
    with open_journal(design(), tmp_path, print) as book:
        (tmp_path / journal.RUNS).unlink()
        for _ in range(2):
            with pytest.raises(OSError, match=r"removed during the run.*runs\.jsonl"):
                book.append(Run(cell=0, block=0))
            (tmp_path / journal.RUNS).write_text("")
        assert book.runs == []


@pytest.mark.parametrize("changed", [{"repeats": 4}, {"timeout": 5.0}, {"repeats": 10, "timeout": 9.0}])
def test_more_repeats_and_another_timeout_go_on_with_it(tmp_path: Path, changed: dict[str, object]) -> None:
    begin(tmp_path, design(), Run(cell=0, block=0))
    assert begin(tmp_path, design(**changed))[:2] == (design(**changed), [Run(cell=0, block=0)])
    assert load(tmp_path)[0] == design(**changed)


def test_a_seed_that_nobody_chose_is_the_one_that_is_there(tmp_path: Path) -> None:
    assert begin(tmp_path, design(), any_seed=True)[0].seed == 7
    assert begin(tmp_path, design(seed=99), any_seed=True)[0].seed == 7
    assert load(tmp_path)[0].seed == 7


class TestEnvironment:
    def test_another_one_is_refused_by_each_name_and_how_to_go_on(self, tmp_path: Path) -> None:
        before = design(environment={"OMP_A": "1", "OMP_B": "x y", "OMP_C": "same"}, machine="m")
        now = design(environment={"OMP_A": "2", "OMP_C": "same", "OMP_D": ""}, machine="m")
        begin(tmp_path, before, Run(cell=0, block=0))
        with pytest.raises(SettingsError) as caught:
            begin(tmp_path, now)
        assert caught.value.problems == (
            f"--out {tmp_path}: OMP_A was '1' in its runs, and is '2' now",
            f"--out {tmp_path}: OMP_B was 'x y' in its runs, and is not set now",
            f"--out {tmp_path}: OMP_D was not set in its runs, and is '' now",
            "runs of two environments cannot be compared: `unset OMP_D; export OMP_A=1; export OMP_B='x y'` goes on, "
            "another --out begins anew",
        )
        assert load(tmp_path)[0] == before

    def test_without_runs_it_may_change(self, tmp_path: Path) -> None:
        begin(tmp_path, design(environment={"OMP_A": "1"}, machine="old"))
        new = design(environment={"OMP_A": "2"}, machine="new")
        assert begin(tmp_path, new) == (new, [], [])
        assert load(tmp_path)[0] == new

    def test_another_machine_is_told_and_the_first_one_kept(self, tmp_path: Path) -> None:
        begin(tmp_path, design(machine="old"), Run(cell=0, block=0))
        asked, _, said = begin(tmp_path, design(machine="new"))
        assert asked.machine == load(tmp_path)[0].machine == "old"
        assert said == ["this experiment was begun on another machine or version (old), which its reports name"]

    def test_a_design_that_was_written_before_there_was_one_is_read(self, tmp_path: Path) -> None:
        begin(tmp_path, design(), Run(cell=0, block=0))
        path = tmp_path / journal.DESIGN
        old = msgspec.json.decode(path.read_bytes())
        del old["environment"], old["machine"]
        path.write_bytes(msgspec.json.encode(old))
        assert load(tmp_path)[0] == design()
        new = design(environment={"OMP_A": "1"}, machine="m")
        assert begin(tmp_path, new) == (new, [Run(cell=0, block=0)], [])


class TestCheck:
    def refuse(self, asked: Design, runs: list[Run]) -> None:
        raise SettingsError(f"{asked.seed}, {len(runs)} runs")

    def test_it_is_asked_before_anything_is_written(self, tmp_path: Path) -> None:
        with (
            pytest.raises(SettingsError, match="7, 0 runs"),
            open_journal(design(), tmp_path / "a" / "b", print, check=self.refuse),
        ):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_was_there_stays(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for folder in (tmp_path / "empty", tmp_path / "empty" / "new"):
            with pytest.raises(SettingsError), open_journal(design(), folder, print, check=self.refuse):
                pass
        assert [each.name for each in tmp_path.rglob("*")] == ["empty", "lock"]
        assert begin(tmp_path / "empty", design())[1] == []

    def test_it_knows_what_is_there(self, tmp_path: Path) -> None:
        begin(tmp_path, design(), Run(cell=0, block=0))
        with (
            pytest.raises(SettingsError, match="7, 1 runs"),
            open_journal(design(seed=3), tmp_path, print, any_seed=True, check=self.refuse),
        ):
            pass
        assert load(tmp_path) == (design(), [Run(cell=0, block=0)])


def test_a_design_that_was_half_written_is_no_file_of_others(tmp_path: Path) -> None:
    (tmp_path / ".design.json.4711").write_text("{")
    assert begin(tmp_path, design())[1] == []


def test_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    for name in ("thesis.tex", "a", "b", "c"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(SettingsError, match=r"holds files of others \(a, b, c \.\.\.\): choose an empty folder"):
        begin(tmp_path, design())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b", "c", "thesis.tex"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file/inner: Not a directory: choose another folder"):
        begin(tmp_path / "file" / "inner", design())


def test_a_design_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / journal.DESIGN).write_text('{"steps": 3}')
    with pytest.raises(SettingsError, match=r"design\.json is no design of an experiment"):
        begin(tmp_path, design())
    with pytest.raises(SettingsError, match="no experiment was begun there"):
        load(tmp_path / "nowhere")


def test_two_do_not_work_in_one_folder(tmp_path: Path) -> None:
    def begin_inside(book: Journal) -> None:
        with pytest.raises(SettingsError, match=rf"another bps ab \(pid {os.getpid()}\) works there"):
            begin(tmp_path, design())
        book.append(Run(cell=0, block=0))

    with open_journal(design(), tmp_path, print) as book:
        begin_inside(book)
    assert begin(tmp_path, design())[1] == [Run(cell=0, block=0)]


def test_what_a_killed_one_has_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, design())
    held = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.ftruncate(held, 0)
    os.pwrite(held, b"4194305\n", 0)  # more than a process id can be
    turns: list[float] = []

    def sleep(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            os.close(held)

    monkeypatch.setattr(journal.time, "sleep", sleep)
    assert begin(tmp_path, design())[2] == ["waiting until the run has ended that bps ab (pid 4194305) was killed in"]
    assert len(turns) == 3
