"""The file with the output of one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from byteps_py.launcher.logfile import LogFile


def test_bytes_are_there_at_once(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "logs" / "deep" / "worker-0.log"
    log = LogFile(path, said.append)
    log.write(b"one\n\xff\x00")
    assert path.read_bytes() == b"one\n\xff\x00"
    log.write(b"\rtwo")
    assert path.read_bytes() == b"one\n\xff\x00\rtwo"
    path.write_bytes(b"")  # by somebody else
    log.write(b"three\n")
    assert path.read_bytes() == b"three\n"
    log.close()
    assert said == []


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").write_text("old")
    LogFile(tmp_path / "worker-0.log", print).close()
    assert (tmp_path / "worker-0.log").read_text() == ""


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").symlink_to("/dev/full")
    said: list[str] = []
    log = LogFile(tmp_path / "worker-0.log", said.append)
    log.write(b"one\n")
    log.write(b"two\n")
    log.close()
    text = f"{tmp_path / 'worker-0.log'}: No space left on device: output is missing there; the job goes on"
    assert said == [text]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        LogFile(tmp_path / "file" / "worker-0.log", print)


@pytest.mark.parametrize("read", [False, True])
def test_a_pipe_in_its_place_is_refused_without_waiting(tmp_path: Path, read: bool) -> None:
    path = tmp_path / "worker-0.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if read else None
    with pytest.raises(OSError, match="pipe" if read else "No such device"):
        LogFile(path, print)
    if reader is not None:
        os.close(reader)
