"""What the entry point makes of errors: a line, and an exit status."""

from __future__ import annotations

import pytest

from byteps_py.errors import SettingsError
from byteps_py.launcher import main as entry
from byteps_py.launcher.processes import CommandError


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (SettingsError(["one", "two"]), 2, "bpslaunch: one\nbpslaunch: two\n"),
        (CommandError(126, "cannot be run"), 126, "bpslaunch: cannot be run\n"),
        (OSError(28, "No space left on device"), 1, "bpslaunch: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(entry, "run_job", fail)
    assert entry.main(["true"]) == status
    assert capsys.readouterr().err == text
