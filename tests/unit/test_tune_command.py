"""``bps ab``: what it does with what was asked for. No run is made here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from byteps_py.errors import SettingsError
from byteps_py.tune import command, factors, running
from byteps_py.tune.experiment import Outcome, Screen
from byteps_py.tune.journal import Journal, load, open_journal
from byteps_py.tune.model import Run

WORDS = ["--vary", "omp-wait-policy=active,passive", "--repeats", "2", "--steps", "5", "--out"]
COMMAND = ["--", "sh", "-c", "true"]


@pytest.fixture(autouse=True)
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "check_cells", lambda design, folder, environ: [])


def pretend(monkeypatch: pytest.MonkeyPatch, outcome: Outcome | OSError, *, failing: int | None = None) -> None:
    """Let every run have been made, those of one cell without success."""

    def run(book: Journal, environ: Mapping[str, str], screen: Screen) -> Outcome:
        if isinstance(outcome, OSError):
            raise outcome
        for block, cell in factors.order(book.design):
            problem = "it failed" if cell == failing else ""
            book.append(Run(cell=cell, block=block, value=0.0 if problem else 10.0 + cell + block, problem=problem))
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


def test_what_the_launcher_objects_to_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "check_cells", lambda design, folder, environ: ["one", "two"])
    with pytest.raises(SettingsError) as caught:
        ab(tmp_path / "out")
    assert caught.value.problems == ("one", "two")
    assert not (tmp_path / "out").exists()


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
