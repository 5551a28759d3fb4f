"""What is left out after Ctrl-C: tracebacks that end in an interruption, whole chains, and complaints in the log."""

from __future__ import annotations

import pytest

from byteps_py.launcher import tracebacks
from byteps_py.launcher.tracebacks import Screen

FRAMES = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    work(\n        1)\n    ^^^^^\n'
INTERRUPTED = f"{FRAMES}KeyboardInterrupt\n"
FAILED = f"{FRAMES}ValueError: too hot\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


def shown(text: str) -> str:
    """What a screen shows of ``text`` as a whole; the same must come out if it arrives line by line."""
    whole, single = Screen(), Screen()
    lines = text.encode().splitlines(keepends=True)
    result = whole.feed(text.encode()) + whole.settle()
    assert b"".join(single.feed(line) for line in lines) + single.settle() == result
    return result.decode()


@pytest.mark.parametrize(
    "text",
    [
        INTERRUPTED,
        f"{FRAMES}KeyboardInterrupt: \n",
        f"{FRAMES}byteps_py.errors.JobAborted: the job was aborted: worker 0 was interrupted\n",
        f"{FRAMES}byteps_py.errors.PeerLost: worker 0 is gone\n",
        f"{FRAMES}RuntimeError: DataLoader worker (pid 12) is killed by signal: Interrupt. \n",
        f"{INTERRUPTED}{HANDLING}{INTERRUPTED}",
        f"{FAILED}{HANDLING}{INTERRUPTED}",
        f"{FAILED}{CAUSE}{FAILED}{HANDLING}{INTERRUPTED}",
        f"Process SpawnProcess-1:\n{INTERRUPTED}",
        f"Exception ignored in: <module 'threading' from 'threading.py'>\n{INTERRUPTED}",
        f"Exception in thread Thread-1 (run):\n{INTERRUPTED}",
        "Fatal Python error: init_import_site: Failed to import the site module\n"
        f"Python runtime state: initialized\n{INTERRUPTED}",
        f"{FRAMES}KeyboardInterrupt: Caught KeyboardInterrupt in DataLoader worker process 0.\nOriginal {INTERRUPTED}",
        "2026-01-01 12:00:00 ERROR byteps worker 0: the job was aborted: worker 1 was interrupted\n",
        "WARNING byteps scheduler: worker 1 is silent\n",
        # Two processes that write at the same time.
        f"Traceback (most recent call last):\n{FRAMES}  File x\nKeyboardInterrupt\n    y\n{'KeyboardInterrupt' * 2}\n",
        f"{INTERRUPTED}KeyboardInterrupt\n",
    ],
)
def test_left_out(text: str) -> None:
    assert shown(text) == ""
    assert shown(f"before\n{text}after\n") == "before\nafter\n"


@pytest.mark.parametrize(
    "text",
    [
        "step 1\n\n  indented\nstep 2\n",
        FAILED,
        f"{INTERRUPTED}{HANDLING}{FAILED}",
        f"{FAILED}{CAUSE}{FAILED}",
        f"Process SpawnProcess-1:\n{FAILED}",
        "Process finished:\nall is well\n",
        "KeyboardInterrupt: saving first\n",
        "2026-01-01 12:00:00 INFO byteps worker 0: connected\n",
        "  + Exception Group Traceback (most recent call last):\n  | ValueError\nend\n",
        f"{FRAMES}ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal {FAILED}",
        FRAMES,
    ],
)
def test_shown(text: str) -> None:
    assert shown(text) == text
    assert shown(f"before\n{text}after\n") == f"before\n{text}after\n"


def test_one_is_left_out_and_the_next_one_shown() -> None:
    assert shown(f"{INTERRUPTED}{FAILED}{INTERRUPTED}\nend\n") == f"{FAILED}\nend\n"


def test_behind_a_progress_bar() -> None:
    assert shown(f" 10%|#   | 1/10{INTERRUPTED}end\n") == " 10%|#   | 1/10\nend\n"


def test_ordinary_lines_pass_at_once() -> None:
    screen = Screen()
    assert screen.feed(b"one\n") == b"one\n"
    assert not screen.waits
    assert screen.feed(b"Process data:\n") == b""
    assert screen.waits
    assert screen.feed(b"two\n") == b"Process data:\ntwo\n"


def test_inside_a_traceback_nothing_is_decided() -> None:
    screen = Screen()
    screen.feed(FRAMES.encode())
    assert screen.is_inside
    assert not screen.waits
    screen.feed(b"OSError\n")
    assert screen.waits
    assert screen.settle() == f"{FRAMES}OSError\n".encode()


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "MOST_HELD", 1000)
    text = "Traceback (most recent call last):\n" + "  more and more\n" * 1000
    screen = Screen()
    assert len(screen.feed(text.encode())) > len(text) - 2000
