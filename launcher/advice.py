"""Why a process cannot be started, and what to do about it, in words."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import shutil
from pathlib import Path

__all__ = ["explain_absence", "explain_start", "how_to_run"]

_LIMITS = {
    errno.EMFILE: ("ulimit -n", resource.RLIMIT_NOFILE, "each process costs the launcher three descriptors"),
    errno.EAGAIN: ("ulimit -u", resource.RLIMIT_NPROC, "a container may have a limit of its own (pids.max)"),
    errno.ENOMEM: ("ulimit -v", resource.RLIMIT_AS, "or start fewer processes"),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_INTERPRETERS = {".py": "python", ".sh": "bash"}


def explain_start(error: OSError, word: str | None = None) -> str:
    """What went wrong, for the end of a sentence.

    Args:
        error: what starting a process raised.
        word: the first word of the command; None where that is the launcher's own business.
    """
    number = error.errno or 0
    text = error.strerror or str(error)
    if number in _LIMITS:
        command, kind, more = _LIMITS[number]
        limit = resource.getrlimit(kind)[0]
        shown = "unlimited" if limit == resource.RLIM_INFINITY else limit
        return f"{text}: raise the limit ({command}, now {shown}); {more}"
    if word is None:
        return text
    if number == errno.ENOEXEC:
        return f"{word!r}: {text}: it is no program, and has no first line such as #!/bin/bash; {how_to_run(word)}"
    if number == errno.ENOENT and (interpreter := _first_line(word)) is not None:
        return f"{word!r}: its first line names an interpreter that does not exist: {interpreter!r}"
    return f"{word!r}: {text}"


def explain_absence(word: str, path: str | None) -> str:
    """Why a command may be missing: empty, or the rest of a sentence that says that there is none.

    Args:
        word: the first word of the command.
        path: where commands are looked for.
    """
    if os.path.isfile(word):
        return f", but a file of that name is here: {how_to_run(word)}"
    if os.path.isdir(word):
        return ", but a folder of that name is here: a command is needed that does something with it"
    if _ASSIGNMENT.match(word):
        return f": no shell reads this; to set a variable for the command, write `env {shlex.quote(word)} ...`"
    first = word.split()[:1]
    if first not in ([], [word]) and shutil.which(first[0], path=path) is not None:
        return f": quotes make it one word; without them it is {first[0]!r} with its arguments"
    return ""


def how_to_run(word: str) -> str:
    """The advice to name the interpreter of a script: ``run it with 'python train.py'``."""
    interpreter = _INTERPRETERS.get(Path(word).suffix)
    if interpreter is None:
        return f"name the program that runs it, as in 'bash {word}'"
    return f"run it with '{interpreter} {word}'"


def _first_line(word: str) -> str | None:
    """The interpreter that a script asks for; None where there is no such script."""
    try:
        with open(word, "rb") as file:
            line = file.readline(256)
    except OSError:
        return None
    return os.fsdecode(line[2:].rstrip(b"\n")).lstrip() if line.startswith(b"#!") else None
