"""Lines of many processes: labels, unfinished lines, progress bars, bounded memory, and an output nobody reads."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from byteps_py.launcher import output
from byteps_py.launcher.logfile import LogFile
from byteps_py.launcher.output import Sink, Stream


class Pipes:
    """A sink on a pipe, and streams that are fed through pipes of their own."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.sink = Sink(writing)
        self._writing = [writing]
        self._streams: list[Stream] = []

    def stream(self, label: bytes, log: LogFile | None = None) -> tuple[Stream, int]:
        reading, writing = os.pipe()
        self._writing.append(writing)
        self._streams.append(Stream(os.fdopen(reading, "rb", buffering=0), label, self.sink, log))
        return self._streams[-1], writing

    def end(self, writing: int) -> None:
        """The process that writes here has ended."""
        self._writing.remove(writing)
        os.close(writing)

    def shown(self) -> bytes:
        """What has come out so far."""
        found = b""
        while True:
            self.sink.flush()
            try:
                data = os.read(self.reading, 1 << 20)
            except BlockingIOError:
                return found
            found += data

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        for fd in (*self._writing, self.reading):
            os.close(fd)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


def feed(stream: Stream, writing: int, *pieces: bytes) -> None:
    for piece in pieces:
        os.write(writing, piece)
        assert stream.read()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"one\n"], b"[w] one\n"),
        ([b"one\ntwo\n\nthree\n"], b"[w] one\n[w] two\n[w] \n[w] three\n"),
        ([b"hel", b"lo", b"\n"], b"[w] hello\n"),
        ([b"\xff\x00\xfe\n"], b"[w] \xff\x00\xfe\n"),
        ([b"dos\r\n", b"more\r", b"\nend\r\n"], b"[w] dos\r\n[w] more\r\n[w] end\r\n"),
        ([b"\r\n"], b"[w] \r\n"),
        ([b"\r 10%", b"\r 20%", b"\r100%\n"], b"\r[w]  10%\r[w]  20%\r[w] 100%\n"),
        ([b"\r\r x\n"], b"\r\r[w]  x\n"),
        ([b"10%\r20%\rdone\n"], b"[w] 10%\r[w] 20%\r[w] done\n"),
        ([b"a\\1\\g<0>\r b\n"], b"[w] a\\1\\g<0>\r[w]  b\n"),
    ],
)
def test_each_line_has_its_label(pipes: Pipes, pieces: list[bytes], expected: bytes) -> None:
    stream, writing = pipes.stream(b"[w] ")
    feed(stream, writing, *pieces)
    assert pipes.shown() == expected
    assert stream.show_at is None


def test_an_unfinished_line_is_held_then_shown_then_continued(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"[w] ")
    feed(stream, writing, b"name? ")
    assert pipes.shown() == b""
    assert stream.show_at is not None
    stream.flush()
    assert pipes.shown() == b"[w] name? "
    assert stream.show_at is None
    feed(stream, writing, b"Ada\nnext\n")
    assert pipes.shown() == b"Ada\n[w] next\n"


def test_another_process_breaks_an_unfinished_line(pipes: Pipes) -> None:
    first, to_first = pipes.stream(b"[w 0] ")
    second, to_second = pipes.stream(b"[w 1] ")
    feed(first, to_first, b"10%")
    first.flush()
    feed(second, to_second, b"hello\n")
    feed(first, to_first, b"20%\n")
    assert pipes.shown() == b"[w 0] 10%\n[w 1] hello\n[w 0] 20%\n"


def test_a_progress_bar_is_shown_while_it_stands(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"[w] ")
    feed(stream, writing, b"\r 10%")
    stream.flush()
    assert pipes.shown() == b"\r[w]  10%"
    feed(stream, writing, b"\r 20%")
    stream.flush()
    assert pipes.shown() == b"\r[w]  20%"
    feed(stream, writing, b"\n")
    assert pipes.shown() == b"\n"


def test_a_bar_that_ends_with_a_carriage_return_is_not_written_over_by_another_process(pipes: Pipes) -> None:
    first, to_first = pipes.stream(b"[w 0] ")
    second, to_second = pipes.stream(b"[w 1] ")
    for piece in (b"10%\r", b"20%\r"):
        feed(first, to_first, piece)
        first.flush()
    feed(second, to_second, b"hello\n")
    feed(first, to_first, b"30%\r")
    first.flush()
    feed(first, to_first, b"\nend\n")
    assert pipes.shown() == b"[w 0] 10%\r[w 0] 20%\r\n[w 1] hello\n[w 0] 30%\r\n[w 0] end\n"


def test_the_last_line_needs_no_newline(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"[w] ")
    feed(stream, writing, b"one\ntwo")
    pipes.end(writing)
    assert not stream.read()
    assert pipes.shown() == b"[w] one\n[w] two"


def test_without_labels_lines_still_stay_whole(pipes: Pipes) -> None:
    first, to_first = pipes.stream(b"")
    second, to_second = pipes.stream(b"")
    feed(first, to_first, b'{"a":')
    feed(second, to_second, b"other\n")
    feed(first, to_first, b" 1}\n")
    assert pipes.shown() == b'other\n{"a": 1}\n'


def test_a_line_without_end_is_passed_on_in_pieces(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"[w] ")
    found = b""
    for _ in range(100):
        feed(stream, writing, b"x" * 10_000)
        found += pipes.shown()
        assert len(stream._held) < output.LONGEST_HELD
    feed(stream, writing, b"\n")
    assert found + pipes.shown() == b"[w] " + b"x" * 1_000_000 + b"\n"


def test_a_sink_that_nobody_reads_fills_up_without_blocking(pipes: Pipes) -> None:
    line = b"y" * 999 + b"\n"
    count = 0
    while not pipes.sink.full:
        pipes.sink.put(pipes, b"", line)
        pipes.sink.flush()
        count += 1
        assert count < 10_000
    assert pipes.sink.waiting
    assert pipes.shown() == line * count
    assert not pipes.sink.waiting


def test_a_sink_without_a_reader_is_broken() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = Sink(writing)
    sink.put(sink, b"", b"lost\n")
    sink.flush()
    assert (sink.broken, sink.has_no_reader, sink.problem) == (True, True, "")
    sink.put(sink, b"", b"more\n")
    assert not sink.waiting
    os.close(writing)


def test_a_sink_that_is_full_for_ever_says_why() -> None:
    with open("/dev/full", "wb") as file:
        sink = Sink(file.fileno())
        sink.put(sink, b"", b"lost\n")
        sink.flush()
    assert (sink.broken, sink.has_no_reader, sink.problem) == (True, False, "No space left on device")


def test_a_terminal_that_has_hung_up_is_no_problem() -> None:
    controller, device = pty.openpty()
    sink = Sink(device)
    os.close(controller)
    sink.put(sink, b"", b"lost\n")
    sink.flush()
    assert (sink.broken, sink.has_no_reader, sink.problem) == (True, False, "")
    os.close(device)


def test_a_sink_whose_descriptor_does_not_block_keeps_its_bytes(pipes: Pipes) -> None:
    os.set_blocking(pipes.sink.fd, False)
    data = b"z" * 300_000 + b"\n"
    pipes.sink.put(pipes, b"", data)
    assert pipes.shown() == data
    assert not pipes.sink.broken


INTERRUPTED = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyboardInterrupt\n'


def test_a_log_gets_all_that_is_read_as_it_is(pipes: Pipes, tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", print)
    stream, writing = pipes.stream(b"[w] ", log)
    feed(stream, writing, b"\r10%", b"\r20%\xff\n", b"unfinished")
    stream.put_screen()
    stream.hush()
    feed(stream, writing, b"\n" + INTERRUPTED)
    assert (tmp_path / "log").read_bytes() == b"\r10%\r20%\xff\nunfinished\n" + INTERRUPTED
    log.close()


def test_a_screen_leaves_out_interruptions(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"[w] ")
    feed(stream, writing, b"before\n", INTERRUPTED)
    stream.put_screen()
    feed(stream, writing, INTERRUPTED[:50], INTERRUPTED[50:], b"after\n")
    shown = b"".join(b"[w] " + line for line in (b"before\n" + INTERRUPTED + b"after\n").splitlines(keepends=True))
    assert pipes.shown() == shown


def test_a_screen_waits_for_the_rest_of_a_traceback_but_not_for_a_chain(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"")
    stream.put_screen()
    feed(stream, writing, INTERRUPTED[:50])
    assert stream.show_at is None
    feed(stream, writing, INTERRUPTED[50:])
    assert stream.show_at is not None
    stream.flush()
    assert stream.show_at is None
    failed = INTERRUPTED.replace(b"KeyboardInterrupt", b"OSError")
    feed(stream, writing, failed)
    assert pipes.shown() == b""
    stream.flush()
    assert pipes.shown() == failed


def test_a_screen_lets_progress_bars_and_prompts_pass(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"[w] ")
    stream.put_screen()
    feed(stream, writing, b"\r 10%", b"\r 20%")
    assert stream.show_at is not None
    stream.flush()
    assert pipes.shown() == b"\r[w]  10%\r[w]  20%"


def test_what_a_screen_holds_at_the_end_is_shown(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"")
    stream.put_screen()
    feed(stream, writing, INTERRUPTED[:40])
    pipes.end(writing)
    assert not stream.read()
    assert pipes.shown() == INTERRUPTED[:40]


def test_the_last_line_of_an_interruption_may_lack_its_newline(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"")
    stream.put_screen()
    feed(stream, writing, INTERRUPTED[:-1])
    pipes.end(writing)
    assert not stream.read()
    assert pipes.shown() == b""


def test_a_hushed_stream_shows_nothing(pipes: Pipes) -> None:
    stream, writing = pipes.stream(b"")
    stream.hush()
    feed(stream, writing, b"one\n", b"unfinished")
    stream.flush()
    assert pipes.shown() == b""
