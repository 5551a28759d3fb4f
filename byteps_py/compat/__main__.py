"""``python -m byteps_py.compat WORDS`` is ``python WORDS``, but that ``byteps`` is known, there and in its children.

It is that very command which is run in place of this process, so a script sees nothing of this: not in ``sys.argv`` and
``sys.path``, nor in tracebacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from byteps_py.errors import OutputError
from byteps_py.settings import environment
from byteps_py.standard_output import settle, show
from byteps_py.startup_folder import with_startup_folder

__all__: list[str] = []

NAME = "byteps_py.compat"
USAGE = """\
usage: python -m byteps_py.compat SCRIPT.py [ARGUMENTS ...]
       python -m byteps_py.compat -m MODULE [ARGUMENTS ...]
       python -m byteps_py.compat -c CODE [ARGUMENTS ...]

Run Python with byteps_py under the name byteps, for scripts that were written for BytePS. A real byteps, where there is
one, is used instead. `bpslaunch --compat` does so for all workers of a job (docs/migrating.md).
"""
BAD_USAGE = 2
"""Exit status if it cannot work like that."""


def main(words: Sequence[str]) -> int:
    """Become ``python WORDS``; returns, with an exit status, only if that is not to be."""
    if words[:1] in (["-h"], ["--help"]):
        show(USAGE.rstrip("\n"))
        return 0
    if (reason := _why_not()) is not None:
        print(f"{NAME}: {reason}", file=sys.stderr)
        return BAD_USAGE
    command = [sys.executable, *interpreter_options(sys.orig_argv, len(words)), *words]
    return os.execve(sys.executable, command, with_startup_folder(environment()))


def _why_not() -> str | None:
    """Why ``byteps`` would not be known; None if it will be."""
    if not sys.executable:
        return "Python does not know where its own executable is (sys.executable)"
    flags = sys.flags
    if not (flags.ignore_environment or flags.no_site):
        return None
    option = "-I" if flags.isolated else "-E" if flags.ignore_environment else "-S"
    return f"python {option} does not look at PYTHONPATH, by which byteps is known: leave {option} out"


def interpreter_options(line: Sequence[str], count: int) -> list[str]:
    """What this process's command line has before ``-m byteps_py.compat``.

    Args:
        line: the whole command line.
        count: number of words after that.
    """
    *options, last = line[1 : len(line) - count] or [""]
    if last == NAME and options:  # -m NAME, or -um NAME
        last = options.pop()
    elif last.endswith(f"m{NAME}"):
        last = last.removesuffix(NAME)
    else:
        return []
    last = last.removesuffix("m")
    return options if last == "-" else [*options, last]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OutputError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        settle()
