"""Files that are whole, and there, also after the power has failed.

A file is on the disk when ``fsync`` of it has returned; its name is when that of its folder has.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

__all__ = ["make_folder", "remove_folders", "replace", "sync_folder", "temporary_prefix"]


def replace(path: Path, content: bytes) -> None:
    """Put ``content`` in the place of ``path``: a reader sees what was there before, or all of it.

    It is on the disk when this returns.  Processes may do so at once; the last one counts.

    Raises:
        OSError: it cannot be written; ``filename`` is ``path``, which is as it was.
    """
    temporary = path.with_name(f"{temporary_prefix(path.name)}{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def temporary_prefix(name: str) -> str:
    """What the name of a file begins with that is about to replace ``name``; one may be left by who was killed."""
    return f".{name}."


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk: of files that were made, renamed or removed there.

    Raises:
        OSError: the folder cannot be opened, or the disk has failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems bring names to the disk at once, and know no fsync of a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it.

    Returns:
        those that were not there before, the lowest first.

    Raises:
        OSError: one cannot be made, or is no folder.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)
    return missing


def remove_folders(made: list[Path]) -> None:
    """Take back what :func:`make_folder` has made, as far as it is empty."""
    with contextlib.suppress(OSError):
        for each in made:
            each.rmdir()
