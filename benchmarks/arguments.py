"""The command lines of the benchmarks: kinds of values, and what a machine has room for.

All that is wrong is told before anything is measured, with exit status 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
from collections.abc import Callable
from pathlib import Path

TRANSPORTS = ("auto", "tcp", "shm")
TRANSPORT = "BYTEPS_TRANSPORT"
"""The variable that is the default of ``--transport``."""
DTYPES = ("float32", "float64", "float16", "int32", "int64")
"""Element types of push_pull: NumPy has no bfloat16, and 8 bits are too few for sums that are compared."""
MOST_PROCESSES = 256
MOST_SECONDS = 86400.0
_MOST = 2**63 - 1


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Of the program ``python -m benchmarks.NAME``."""
    return argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)


def whole(low: int, high: int = _MOST) -> Callable[[str], int]:
    """A kind of whole numbers from ``low`` to ``high``; it raises ArgumentTypeError for what is none of them."""

    def parse(word: str) -> int:
        digits = word.strip()
        # int() alone would take 1_0 and the digits of every script; no number of 20 digits is one of ours
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(digits) <= high:
            return int(digits)
        until = f" to {high}" if high < _MOST else ""
        raise argparse.ArgumentTypeError(f"must be a whole number from {low}{until}, not {word!r}")

    return parse


natural = whole(1)
processes = whole(1, MOST_PROCESSES)
seed = whole(0, 2**32 - 1)


def rate(word: str) -> float:
    """Of a link: a number of Mbit/s from 0.1 to a million.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0.1 <= number <= 1e6:
        raise argparse.ArgumentTypeError(f"must be a number of Mbit/s from 0.1 to 1000000, not {word!r}")
    return number


def seconds(word: str) -> float:
    """Of a window: a positive number, at most a day.

    Raises:
        ArgumentTypeError: it is none.
    """
    return _seconds(word, "above 0", lambda number: number > 0)


def warmup_seconds(word: str) -> float:
    """As :func:`seconds`, or 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    return _seconds(word, "from 0", lambda number: number >= 0)


def _seconds(word: str, form: str, fits: Callable[[float], bool]) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not (fits(number) and number <= MOST_SECONDS):
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds {form}, at most {MOST_SECONDS:.0f} (a day), not {word!r}"
        )
    return number


def json_file(word: str) -> Path:
    """A file that can be written when all is measured.

    Raises:
        ArgumentTypeError: it cannot.
    """
    if not word.strip():
        raise argparse.ArgumentTypeError("must name a file, not ''")
    path = Path(word)
    there = _exists(path)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{word!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {os.fspath(path.parent)!r}; make it first")
    if not os.access(path if there else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{word!r} cannot be written; name another file")
    return path


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # such as a name that is too long
        raise argparse.ArgumentTypeError(f"{os.fspath(path)!r} cannot be used: {error}") from None
    return True


def folder(word: str) -> Path:
    """A folder, or one that can be made.

    Raises:
        ArgumentTypeError: something else is there.
    """
    if not word.strip():
        raise argparse.ArgumentTypeError("must name a folder, not ''")
    path = Path(word)
    there = next(each for each in (path, *path.absolute().parents) if _exists(each))
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{os.fspath(there)!r} is no folder; name another one")
    if not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"nothing can be written in {os.fspath(there)!r}; name another folder")
    return path


def add_transport(options: argparse.ArgumentParser) -> None:
    """Add ``--transport``; :func:`transport` says what is in force."""
    options.add_argument("--transport", choices=TRANSPORTS, help=f"default: {TRANSPORT} if that is set, else auto")


def transport(options: argparse.ArgumentParser, given: str | None) -> str:
    """The transport in force: what was given, else ``BYTEPS_TRANSPORT``, else ``auto``.

    Raises:
        SystemExit: the variable has another value.
    """
    if given is not None:
        return given
    said = os.environ.get(TRANSPORT, "")
    found = said.strip().lower() or "auto"
    if found not in TRANSPORTS:
        options.error(f"{TRANSPORT}={said} must be one of {', '.join(TRANSPORTS)}; correct it, or give --transport")
    return found


def check_items(options: argparse.ArgumentParser, nbytes: int, itemsize: int, label: str) -> None:
    """Refuse a number of bytes that is no whole number of elements.

    Raises:
        SystemExit: it is none.
    """
    if nbytes % itemsize:
        options.error(f"--bytes {nbytes} is no multiple of {itemsize}, the bytes of one {label}")


def check_memory(options: argparse.ArgumentParser, nbytes: int, what: str) -> None:
    """Refuse what has no room in this machine's memory.

    Raises:
        SystemExit: it has none.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > memory:
        options.error(f"{what} take {nbytes} bytes at least, and this machine has {memory}; ask for less")


def check_torch(options: argparse.ArgumentParser, what: str) -> None:
    """Refuse ``what`` where torch is not installed.

    Raises:
        SystemExit: it is not.
    """
    if importlib.util.find_spec("torch") is None:
        options.error(f"{what} needs torch, which this Python does not have; pip install torch")
