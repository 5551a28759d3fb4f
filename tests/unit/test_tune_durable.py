"""Files that are there after the power has failed: what is brought to the disk, and in which order."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from byteps_py.tune import durable


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was brought to the disk, and renamed, by name."""
    found: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        found.append("fsync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def note_rename(path: Path, target: Path) -> Path:
        found.append(f"rename {path.name} {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_rename)
    return found


def test_a_file_and_then_its_name_are_brought_to_the_disk(tmp_path: Path, done: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"old")
    durable.replace(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    new = f".file.{os.getpid()}"
    assert done == [f"fsync {new}", f"rename {new} file", f"fsync {tmp_path.name}"]
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_each_folder_that_is_made_is_brought_to_the_disk(tmp_path: Path, done: list[str]) -> None:
    made = durable.make_folder(tmp_path / "a" / "b")
    assert made == [tmp_path / "a" / "b", tmp_path / "a"]
    assert sorted(done) == sorted([f"fsync {tmp_path.name}", "fsync a"])
    assert durable.make_folder(tmp_path / "a" / "b") == []
    (tmp_path / "a" / "file").touch()
    durable.remove_folders(made)
    assert [each.name for each in tmp_path.rglob("*")] == ["a", "file"], "what is not empty stays"


def test_a_relative_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert durable.make_folder(Path("a")) == [Path("a")]
    durable.replace(Path("file"), b"x")
    assert (tmp_path / "a").is_dir()
    assert (tmp_path / "file").read_bytes() == b"x"


@pytest.mark.parametrize(("number", "is_told"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_file_system_may_know_no_fsync_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_told: bool
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if is_told:
        with pytest.raises(OSError, match="Input/output error"):
            durable.sync_folder(tmp_path)
    else:
        durable.sync_folder(tmp_path)
