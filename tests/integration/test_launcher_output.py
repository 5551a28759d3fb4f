"""What becomes of unusual output: progress bars, bytes, slow and absent readers, and the logs of a launch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.launches import JOIN, PYTHON, Launch, launches, until

pytestmark = pytest.mark.timeout(90)

BAR = "import sys, time\n" + (
    "for done in range(1, 11):\n"
    "    sys.stderr.write(f'\\r{done:3}/10|' + '#' * done); sys.stderr.flush(); time.sleep(0.01)\n"
    "sys.stderr.write('\\n')\n"
)
"""As tqdm draws it: the line begins with the carriage return, and ends when the loop does."""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    with launches(tmp_path) as start:
        yield start


def screen(shown: bytes) -> list[str]:
    """The lines that a terminal shows in the end."""
    return [line.split("\r")[-1] for line in shown.decode().replace("\r\n", "\n").split("\n")]


def test_progress_bars_of_several_processes(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "3", "--log-dir", str(tmp_path / "logs"), "--", PYTHON, "-c", JOIN + BAR)
    assert launched.wait() == 0
    lines = screen(launched.err_path.read_bytes())
    for worker in range(3):
        assert f"[worker {worker}]  10/10|##########" in lines
        assert all(line.startswith(("[worker ", "bpslaunch: ")) for line in lines if line)
        drawn = (tmp_path / "logs" / f"worker-{worker}.log").read_bytes()
        assert drawn == b"".join(b"\r%3d/10|" % done + b"#" * done for done in range(1, 11)) + b"\n"


def test_a_log_for_each_process(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    code = "import os, sys; print('out', os.environ['BYTEPS_LOCAL_RANK']); sys.stderr.write('err without end')"
    logs = tmp_path / "logs"
    launched = launch("-n", "2", "-s", "2", "--log-dir", str(logs), "--", PYTHON, "-c", JOIN + code)
    assert launched.wait() == 0
    names = ["scheduler.log", "server-0.log", "server-1.log", "worker-0.log", "worker-1.log"]
    assert sorted(each.name for each in logs.iterdir()) == names
    for rank in range(2):
        text = (logs / f"worker-{rank}.log").read_text()
        assert text in (f"out {rank}\nerr without end", f"err without endout {rank}\n")
    assert sorted(launched.out_lines) == ["[worker 0] out 0", "[worker 1] out 1"]


def test_a_log_can_be_followed(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """Also that of a process that would have the terminal for itself without a log."""
    code = "import sys; print('now', end=''); sys.stdin.read()"
    reading, writing = os.pipe()
    launched = launch("-n", "1", "--no-prefix", "--log-dir", str(tmp_path), PYTHON, "-c", code, stdin=reading)
    log = tmp_path / "worker-0.log"
    until(lambda: log.exists() and log.read_text() == "now")
    os.close(writing)
    os.close(reading)
    assert launched.wait() == 0
    assert launched.out == "now"


def test_logs_keep_what_is_left_out_after_ctrl_c(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "1", "--log-dir", str(tmp_path), PYTHON, "-c", "import time; print('up'); time.sleep(1000)")
    until(lambda: "up" in launched.out)
    launched.signal(signal.SIGINT)
    assert launched.wait() == 130
    assert "KeyboardInterrupt" not in launched.err
    assert (tmp_path / "worker-0.log").read_text().endswith("KeyboardInterrupt\n")


def test_a_full_disk_does_not_stop_the_job(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    (tmp_path / "worker-1.log").symlink_to("/dev/full")
    code = JOIN + "[print('line', i) for i in range(1000)]"
    launched = launch("-n", "2", "--log-dir", str(tmp_path), "--", PYTHON, "-c", code)
    assert launched.wait() == 0
    assert launched.out.count("line") == 2000
    assert (tmp_path / "worker-0.log").read_text().count("line") == 1000
    text = f"bpslaunch: {tmp_path}/worker-1.log: No space left on device: output is missing there; the job goes on"
    assert launched.err.splitlines().count(text) == 1


def test_an_output_that_cannot_be_written_gives_a_status_and_not_more(
    tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    code = (
        JOIN
        + "import os; [print('line', i, flush=True) for i in range(100)]; open('done' + str(os.getpid()), 'w').close()"
    )
    with open("/dev/full", "wb") as full:
        launched = launch("-n", "2", "--", PYTHON, "-c", code, stdout=full.fileno())
        assert launched.wait() == 1
    assert len(list((tmp_path / "0").glob("done*"))) == 2
    text = "bpslaunch: standard output cannot be written: No space left on device: it is lost from here on; "
    assert launched.err.splitlines()[1:] == [f"{text}the job goes on"]


def test_logs_that_cannot_be_written_start_nothing(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    (tmp_path / "file").write_text("")
    launched = launch("-n", "2", "--log-dir", str(tmp_path / "file"), "true")
    assert launched.wait() == 1
    text = f"bpslaunch: the log {tmp_path}/file/scheduler.log cannot be written: Not a directory"
    assert launched.err.splitlines()[-1] == text


def test_bytes_and_long_lines_arrive_as_they_are(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000 + b'x' * 300000)"
    launched = launch("-n", "1", "--no-prefix", "--log-dir", str(tmp_path), PYTHON, "-c", code)
    assert launched.wait() == 0
    expected = bytes(range(256)) * 1000 + b"x" * 300000
    assert launched.out_path.read_bytes() == expected
    assert (tmp_path / "worker-0.log").read_bytes() == expected


def test_the_first_line_is_enough(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """As with ``| head -1``: the command ends by the signal, or the error, by which it would end without a launcher."""
    reading, writing = os.pipe()
    words = ("-n", "1", "--log-dir", str(tmp_path), "yes")
    launched = launch(*words, stdout=writing)
    os.close(writing)
    assert os.read(reading, 13) == b"[worker 0] y\n"
    os.close(reading)
    assert launched.wait() in (1, 128 + signal.SIGPIPE)
    assert (tmp_path / "worker-0.log").read_bytes().startswith(b"y\ny\n")


def test_a_reader_that_stops_stops_the_command_and_loses_nothing(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    reading, writing = os.pipe()
    code = "for i in range(200000): print(i)"
    launched = launch("-n", "1", "--no-prefix", "--log-dir", str(tmp_path), PYTHON, "-c", code, stdout=writing)
    os.close(writing)
    log = tmp_path / "worker-0.log"
    until(lambda: log.exists() and log.stat().st_size > 500_000)
    with os.fdopen(reading) as pipe:
        assert pipe.read().splitlines() == [str(i) for i in range(200000)]
    assert launched.wait() == 0
    assert log.read_text().splitlines() == [str(i) for i in range(200000)]
