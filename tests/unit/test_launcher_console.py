"""The launcher's two outputs: one sink or two, and who is told that an output is gone."""

from __future__ import annotations

import os
import pty
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from byteps_py.launcher.console import Console

pytestmark = pytest.mark.timeout(30)


class Outputs:
    """A console on descriptors of a test, with the pipes of two processes."""

    def __init__(self, out: int, err: int) -> None:
        self.console = Console(out, err)
        self._wakeup = os.pipe()
        self.writing: list[tuple[int, int]] = []
        for rank in range(2):
            pipes = [os.pipe() for _ in range(2)]
            out_pipe, err_pipe = (os.fdopen(reading, "rb", buffering=0) for reading, _ in pipes)
            self.console.listen((out_pipe, err_pipe), f"worker {rank}", None)
            self.writing.append((pipes[0][1], pipes[1][1]))

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """A process writes, and the console passes it on, unfinished lines too."""
        os.write(self.writing[rank][stream], data)
        deadline = time.monotonic() + 10
        self.console.wait(self._wakeup[0], deadline)
        while self.console.deadline is not None or self.console.is_waiting:
            self.console.wait(self._wakeup[0], deadline)
            assert time.monotonic() < deadline

    def close(self) -> None:
        self.console.close_streams()
        for fd in (*self._wakeup, *(each for pair in self.writing for each in pair)):
            os.close(fd)


@contextmanager
def outputs(out: int, err: int) -> Iterator[Outputs]:
    made = Outputs(out, err)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def tty() -> Iterator[tuple[int, int]]:
    """The two sides of a terminal."""
    controller, device = pty.openpty()
    yield controller, device
    os.close(controller)
    os.close(device)


def screen(controller: int, last: str) -> list[str]:
    """What is shown when ``last`` has come; a carriage return goes to the start of the line and erases nothing."""
    shown = b""
    while not shown.endswith(last.encode() + b"\r\n"):
        shown += os.read(controller, 65536)
    lines = []
    for line in shown.decode().replace("\r\n", "\n").split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen)
    return lines


def test_lines_and_bars_on_one_terminal(tty: tuple[int, int]) -> None:
    """As with tqdm, which draws on standard error, and a script that prints to standard output."""
    controller, device = tty
    other = os.dup(device)
    with outputs(device, other) as made:
        made.write(0, 1, b"\r  1/3|#  |")
        made.write(1, 0, b"loss at 1\n")
        made.write(0, 1, b"\r  2/3|## |")
        made.write(1, 1, b"\r  1/3|#  |")
        made.write(0, 0, b"loss at 2\n")
        made.console.say("a word")
    os.close(other)
    assert screen(controller, "a word") == [
        "[worker 0]   1/3|#  |",
        "[worker 1] loss at 1",
        "[worker 0]   2/3|## |",
        "[worker 1]   1/3|#  |",
        "[worker 0] loss at 2",
        "bpslaunch: a word",
        "",
    ]


def test_two_files_do_not_break_each_others_lines() -> None:
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    with outputs(to_out, to_err) as made:
        made.write(0, 1, b"half")
        made.write(1, 0, b"whole\n")
        made.write(0, 1, b" and half\n")
    assert os.read(out, 100) == b"[worker 1] whole\n"
    assert os.read(err, 100) == b"[worker 0] half and half\n"
    for fd in (out, to_out, err, to_err):
        os.close(fd)


def test_interruptions_are_left_out_of_standard_error_only(tty: tuple[int, int]) -> None:
    controller, device = tty
    text = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyboardInterrupt\n'
    with outputs(device, device) as made:
        made.console.leave_out_interruptions()
        made.write(0, 0, text)
        made.write(1, 1, text)
        made.write(1, 1, b"end\n")
    lines = [f"[worker 0] {line}" for line in text.decode().splitlines()]
    assert screen(controller, "end") == [*lines, "[worker 1] end", ""]


@pytest.mark.parametrize("which", [0, 1])
def test_a_full_disk_is_told_once_and_processes_go_on(which: int) -> None:
    reading, to_reading = os.pipe()
    with open("/dev/full", "wb") as full:
        ends = [full.fileno(), to_reading] if which == 0 else [to_reading, full.fileno()]
        with outputs(*ends) as made:
            for text in (b"one\n", b"two\n"):
                made.write(0, which, text)
            assert made.console.has_lost_output
            made.write(1, 1 - which, b"end\n")
            made.write(1, which, b"more\n")
    told = "bpslaunch: standard output cannot be written: No space left on device: it is lost from here on; "
    told += "the job goes on\n"
    expected = told if which == 0 else ""
    assert os.read(reading, 65536).decode() == f"{expected}[worker 1] end\n"
    os.close(reading)
    os.close(to_reading)


def test_processes_learn_that_a_reader_is_gone() -> None:
    reading, to_reading = os.pipe()
    err, to_err = os.pipe()
    os.close(reading)
    with outputs(to_reading, to_err) as made:
        made.write(0, 0, b"one\n")
        assert not made.console.has_lost_output
        with pytest.raises(BrokenPipeError):
            os.write(made.writing[1][0], b"two\n")
        made.write(1, 1, b"end\n")
    assert os.read(err, 65536) == b"[worker 1] end\n"
    for fd in (to_reading, err, to_err):
        os.close(fd)
