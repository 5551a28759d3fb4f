"""What is shown, and told to others, of the exception that ends a program."""

from __future__ import annotations

import subprocess
import sys

import pytest

from byteps_py.errors import JobRefused
from byteps_py.roles import last_words

pytestmark = pytest.mark.timeout(60)

BEGIN = "from byteps_py.errors import *\nfrom byteps_py.roles import last_words\nimport atexit, sys\n"
TOLD = "atexit.register(lambda: print(last_words.cause()))\n"


def run(body: str, *, launched: bool = False) -> subprocess.CompletedProcess[str]:
    code = f"{BEGIN}{TOLD}last_words.watch(launched={launched})\n{body}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)


def test_an_error_of_the_script_is_shown_by_python_and_told_to_the_others() -> None:
    result = run("raise ValueError('x\\ny')")
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stdout == "failed: ValueError: x\ny\n"


def test_wrong_settings_are_their_problems() -> None:
    result = run("raise SettingsError(['one', 'two'])")
    assert (result.returncode, result.stderr) == (2, "byteps_py: one\nbyteps_py: two\n")


def test_wrong_settings_leave_the_program_its_exit() -> None:
    body = (
        "import threading\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), print('saved'))).start()\n"
        "raise SettingsError('one')"
    )
    result = run(body)
    assert (result.returncode, result.stderr) == (2, "byteps_py: one\n")
    assert result.stdout == "saved\nfailed: byteps_py.errors.SettingsError: one\n"


def test_an_error_of_the_start_is_its_text() -> None:
    result = run("error = JobRefused('not you')\nlast_words.note_failed_start(error)\nraise error")
    assert (result.returncode, result.stderr) == (1, "byteps_py: not you\n")


def test_a_later_error_of_the_same_kind_keeps_its_traceback() -> None:
    result = run("last_words.note_failed_start(JobRefused('not you'))\nraise JobRefused('later')")
    assert "Traceback" in result.stderr
    assert "later" in result.stderr


@pytest.mark.parametrize("launched", [True, False])
def test_ctrl_c_is_silent_where_the_launcher_speaks(launched: bool) -> None:
    result = run("raise KeyboardInterrupt", launched=launched)
    plain = [sys.executable, "-c", "raise KeyboardInterrupt"]
    assert result.returncode == subprocess.run(plain, capture_output=True, timeout=30, check=False).returncode
    assert (result.stderr == "") is launched
    assert result.stdout == "failed: KeyboardInterrupt\n"


def test_a_line_of_the_log_does_not_come_between_those_of_a_traceback() -> None:
    """It is written by another thread while the traceback is, which takes a while here."""
    body = """
import logging, threading
from byteps_py.settings import LogSettings
from byteps_py.telemetry import logs

class Slow:
    def __init__(self, stream): self.stream = stream
    def flush(self): self.stream.flush()
    def write(self, text):
        self.stream.write(text)
        if text.startswith("Traceback"):
            other.start()
            other.join(0.5)  # it would be through by then, without the lock

logs.configure(LogSettings(), "worker 0")
other = threading.Thread(target=logging.getLogger("byteps_py.worker").error, args=("the job is over",))
sys.stderr = Slow(sys.stderr)
def fails(): raise ValueError("x")
fails()
"""
    lines = run(body).stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "ValueError: x"
    assert lines[-1].endswith("ERROR byteps worker 0: the job is over")


def test_a_hook_of_the_users_own_hears_of_everything() -> None:
    body = "hook = sys.excepthook\nraise KeyboardInterrupt"
    code = f"import sys\nsys.excepthook = lambda *_: print('mine')\n{BEGIN}last_words.watch(launched=True)\n{body}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert result.stdout == "mine\n"


def test_at_a_prompt_nothing_ends() -> None:
    result = run("sys.ps1 = '>>> '\nraise SettingsError('one')")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stdout == "\n"


def test_watching_twice_is_watching_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    last_words.watch(launched=False)
    hook = sys.excepthook
    last_words.watch(launched=True)
    assert sys.excepthook is hook


def test_nothing_is_said_of_a_process_that_does_not_die() -> None:
    assert last_words.cause() == ""
    last_words.note_failed_start(JobRefused("x"))
    assert last_words.cause() == ""


def test_an_end_in_the_middle_of_an_exit_is_one_line() -> None:
    """Python starts no thread any more by then, so nobody watches over the rest of it."""
    result = run("atexit.register(lambda: last_words.end_soon(JobAborted('over')))")
    assert (result.returncode, result.stderr) == (0, "over\n")
