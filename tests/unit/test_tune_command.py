"""``bps ab``: what it does with what was asked for. No run is made here."""

from __future__ import annotations

import errno
import io
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from byteps_py.errors import SettingsError
from byteps_py.tune import command, factors, report, running
from byteps_py.tune.experiment import Outcome
from byteps_py.tune.journal import Journal, load, open_journal
from byteps_py.tune.model import Design, Run
from byteps_py.tune.results import Analysis
from byteps_py.tune.screen import Screen

WORDS = ["--vary", "omp-wait-policy=active,passive", "--repeats", "2", "--steps", "5", "--out"]
COMMAND = ["--", "sh", "-c", "true"]


@pytest.fixture(autouse=True)
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "check_cells", lambda design, cells, folder, environ, say: [])


def pretend(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome | OSError, *, failing: int | None = None, after: int = 0
) -> None:
    """Let every run have been made, those of one cell without success; before an OSError ``after`` of them."""

    def run(book: Journal, environ: Mapping[str, str], screen: Screen) -> Outcome:
        for block, cell in factors.order(book.design)[: after if isinstance(outcome, OSError) else None]:
            problem = "it failed" if cell == failing else ""
            value = 0.0 if problem else 10.0 + cell + block
            book.append(Run(cell=cell, block=block, value=value, problem=problem, started=time.time()))
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "run", run)


def ab(folder: Path) -> int:
    return command.main([*WORDS, str(folder), *COMMAND], {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize(
    ("outcome", "failing", "status", "told"),
    [
        (Outcome(), None, 0, ""),
        (Outcome(), 1, 1, ""),
        (Outcome(number=2), None, 130, "interrupted: the same command goes on from here (--out "),
        (Outcome(number=15), 0, 143, "interrupted"),
        (Outcome(hopeless=True), 0, 1, "given up: every combination has failed"),
    ],
)
def test_how_an_experiment_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: Outcome,
    failing: int | None,
    status: int,
    told: str,
) -> None:
    pretend(monkeypatch, outcome, failing=failing)
    assert ab(tmp_path / "out") == status
    out, err = capsys.readouterr()
    assert told in err
    assert "written: " in out
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_disk_that_is_full_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, OSError(28, "No space left on device", "/out/runs.jsonl"))
    assert ab(tmp_path / "out") == 1
    assert "bps ab: /out/runs.jsonl: No space left on device: the same command goes on" in capsys.readouterr().err


def test_what_was_made_is_reported_also_if_the_disk_is_full_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, OSError(28, "No space left on device", "/out/runs"), after=3)
    assert ab(tmp_path / "out") == 1
    out, err = capsys.readouterr()
    assert "bps ab: /out/runs: No space left on device: the same command goes on" in err
    assert "3 of 4 runs" in out
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("outcome", "status"), [(Outcome(), 1), (Outcome(number=2), 130), (OSError(5, "Input/output error"), 1)]
)
def test_a_report_that_cannot_be_written_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcome: Outcome | OSError,
    status: int,
) -> None:
    def write(analysis: Analysis, folder: Path) -> tuple[Path, ...]:
        raise OSError(28, "No space left on device", str(folder / "report.json"))

    pretend(monkeypatch, outcome, after=4)
    monkeypatch.setattr(report, "write", write)
    assert ab(tmp_path / "out") == status
    out, err = capsys.readouterr()
    assert f"bps ab: {tmp_path}/out/report.json: No space left on device: the report cannot be written" in err
    assert "baseline" in out, "the table can be read all the same"
    assert "written: " not in out


def test_without_a_good_run_the_report_tells_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(book: Journal, environ: Mapping[str, str], screen: Screen) -> Outcome:
        for cell in (0, 1):
            book.append(Run(cell=cell, block=0, problem="it failed", log="these are the last words"))
        return Outcome(hopeless=True)

    monkeypatch.setattr(command, "run", run)
    assert ab(tmp_path / "out") == 1
    assert capsys.readouterr().out.count("  | these are the last words") == 2
    assert "these are the last words" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_an_experiment_has_its_environment_and_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, Outcome())
    environ = {"PATH": "/usr/bin:/bin", "BYTEPS_SERVER_OMP_NUM_THREADS": "2"}
    words = [*WORDS, str(tmp_path / "out"), *COMMAND]
    monkeypatch.setattr(command, "_machine", lambda: "a fast one")
    assert command.main(words, environ) == 0
    there = load(tmp_path / "out")[0]
    assert (there.environment, there.machine) == ({"BYTEPS_SERVER_OMP_NUM_THREADS": "2"}, "a fast one")
    with pytest.raises(SettingsError, match="BYTEPS_SERVER_OMP_NUM_THREADS was '2' in its runs, and is '3' now"):
        command.main(words, {**environ, "BYTEPS_SERVER_OMP_NUM_THREADS": "3"})
    # A report that is made elsewhere names the machine of the runs.
    monkeypatch.setattr(command, "_machine", lambda: "another one")
    capsys.readouterr()
    assert command.main(["report", str(tmp_path / "out")], {}) == 0
    out = capsys.readouterr().out
    assert "\na fast one\nEnvironment of all runs: BYTEPS_SERVER_OMP_NUM_THREADS=2\n" in out
    assert "another one" not in out


def test_a_variable_that_is_no_text_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"OMP_PLACES=.udcff' is not UTF-8"):
        command.main([*WORDS, str(tmp_path / "out"), *COMMAND], {"PATH": "/bin", "OMP_PLACES": "\udcff"})
    assert not (tmp_path / "out").exists()


def test_runs_of_an_attempt_that_was_given_up_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = factors.design(factors.factors(["A=1,2"]), command=["train"], repeats=1, num_workers=2)
    with open_journal(asked, tmp_path, print) as book:
        for cell, value, attempt in ((0, 1.0, 0), (1, 9.0, 0), (0, 2.0, 1)):
            book.append(Run(cell=cell, block=0, value=value, attempt=attempt))
    assert command.main(["report", str(tmp_path)], {}) == 1
    out = capsys.readouterr().out
    assert "not run" in out
    assert "1 of 2 runs" in out


def test_a_seed_is_drawn_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Outcome())
    seeds = set()
    for name in ("a", "b", "c"):
        ab(tmp_path / name)
        seeds.add(load(tmp_path / name)[0].seed)
    assert len(seeds) > 1
    before = load(tmp_path / "a")[0]
    ab(tmp_path / "a")
    assert load(tmp_path / "a")[0] == before


def test_a_report_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = factors.design(factors.factors(["A=1,2"]), command=["train"], repeats=2, num_workers=2)
    with open_journal(asked, tmp_path / "e", print) as book:
        for cell in (0, 1):
            book.append(Run(cell=cell, block=0, value=1.0 + cell))
    assert command.main(["report", str(tmp_path / "e")], {}) == 0
    assert "+ A=2" in capsys.readouterr().out
    assert (tmp_path / "e" / "report.json").is_file()
    assert command.main(["report", str(tmp_path / "e"), "--out", str(tmp_path / "x" / "y")], {}) == 0
    assert (tmp_path / "x" / "y" / "report.json").is_file()
    with pytest.raises(SettingsError, match="a report is of one experiment"):
        command.main(["report", str(tmp_path / "e"), str(tmp_path)], {})
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="the report cannot be written"):
        command.main(["report", str(tmp_path / "e"), "--out", str(tmp_path / "file")], {})


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    words = [*WORDS, str(tmp_path / "out"), "no-such-command"]
    with pytest.raises(SettingsError, match="there is no command 'no-such-command'"):
        command.main(words, {"PATH": "/usr/bin:/bin"})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_command_of_bpslaunch_is_refused(tmp_path: Path, more: tuple[str, ...]) -> None:
    words = [*WORDS, str(tmp_path / "out"), *more, "--", "bpslaunch", "-n", "2", "--", "python", "x.py"]
    with pytest.raises(SettingsError, match="give the command without bpslaunch; its options stand before --"):
        command.main(words, {"PATH": "/bin"})
    assert not (tmp_path / "out").exists()
    assert "without bpslaunch" in " ".join(command.arguments.help_text().split())


class Broken(io.StringIO):
    """Standard output that cannot be written."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def flush(self) -> None:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("output", "status", "told"),
    [
        (None, 0, ""),
        (Broken(errno.EPIPE), 0, ""),
        (Broken(errno.ENOSPC), 1, "bps ab: standard output: No space left on device\n"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_output_that_nobody_reads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: Broken | None,
    status: int,
    told: str,
    again: bool,
) -> None:
    pretend(monkeypatch, Outcome())
    if again:
        ab(tmp_path / "out")
        (tmp_path / "out" / "report.html").unlink()
    capsys.readouterr()
    monkeypatch.setattr("sys.stdout", output)
    found = command.main(["report", str(tmp_path / "out")], {}) if again else ab(tmp_path / "out")
    assert found == status
    assert capsys.readouterr().err.endswith(told)
    assert (tmp_path / "out" / "report.html").is_file()
    assert command.main(["-h"], {}) == status


def test_runs_go_on_in_the_folder_where_they_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    (there / "train").write_text("#!/bin/sh\n")
    (there / "train").chmod(0o755)
    words = [*WORDS, str(tmp_path / "out"), "./train"]
    monkeypatch.chdir(there)
    pretend(monkeypatch, Outcome(number=2), failing=1)
    assert command.main(words, {"PATH": "/bin"}) == 130
    monkeypatch.chdir(here)
    assert command.main(words, {"PATH": "/bin"}) == 130
    assert load(tmp_path / "out")[0].directory == str(there)
    assert f"runs are made in {there}, where the others were, not in {here}" in capsys.readouterr().err
    (there / "train").unlink()
    with pytest.raises(SettingsError, match=r"there is no command '\./train'"):
        command.main(words, {"PATH": "/bin"})
    there.rmdir()
    with pytest.raises(SettingsError, match="the working folder of the runs is gone"):
        command.main(words, {"PATH": "/bin"})


def test_everything_that_was_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(book: Journal, environ: Mapping[str, str], screen: Screen) -> Outcome:
        shutil.rmtree(book.folder)
        book.append(Run(cell=0, block=0, value=1.0))
        return Outcome()

    monkeypatch.setattr(command, "run", run)
    assert ab(tmp_path / "out") == 1
    assert "runs.jsonl: it was removed during the run: begin again with another --out" in capsys.readouterr().err


def test_what_the_launcher_objects_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "check_cells", lambda design, cells, folder, environ, say: ["one\x1b[2J", "two"])
    with pytest.raises(SettingsError) as caught:
        ab(tmp_path / "out")
    assert caught.value.problems == ("one?[2J", "two")
    assert not (tmp_path / "out").exists()


def test_only_what_is_still_to_be_made_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[list[int]] = []

    def check(design: Design, cells: list[int], folder: Path, environ: Mapping[str, str], say: object) -> list[str]:
        checked.append(list(cells))
        return []

    monkeypatch.setattr(running, "check_cells", check)
    for failing in (1, None, None):
        pretend(monkeypatch, Outcome(), failing=failing)
        ab(tmp_path / "out")
    assert checked == [[0, 1], [1], []]


def test_a_dry_run_shows_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*WORDS, str(tmp_path / "out"), "--dry-run", *COMMAND], {"PATH": "/usr/bin:/bin"}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("# block ")] == lines[::2]
    assert len(lines) == 8
    assert not (tmp_path / "out").exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["-h"], {}) == 0
    assert command.main(["report", "-h"], {}) == 0
    assert capsys.readouterr().out.count("usage: bps ab") == 2
