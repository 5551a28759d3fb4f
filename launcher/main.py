"""The entry point of ``bpslaunch``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from byteps_py import known_names
from byteps_py.errors import OutputError, SettingsError
from byteps_py.launcher import arguments
from byteps_py.launcher.local import run_job
from byteps_py.launcher.processes import CommandError
from byteps_py.launcher.role import run_role
from byteps_py.role import Role
from byteps_py.settings import read_role
from byteps_py.standard_output import settle

__all__ = ["main"]

USAGE = 2
"""Exit status after a usage error or a bad variable: nothing has been started."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Start what the command line and the environment ask for; returns the exit status.

    Args:
        argv: the words after the program's name; None for those of this process.
    """
    _open_standard_streams()
    environ = dict(os.environ)
    try:
        options = arguments.parse(sys.argv[1:] if argv is None else argv)
        role = read_role(environ)
        if role in (Role.SCHEDULER, Role.SERVER):
            return run_role(role, options, environ)
        if not options.command:
            arguments.usage_error("the command that the workers run is missing")
        for line in known_names.report(environ):
            print(f"bpslaunch: {line}", file=sys.stderr)
        if role is None:
            return run_job(options, environ)
        return run_role(role, options, environ)
    except SettingsError as error:
        for problem in error.problems:
            print(f"bpslaunch: {problem}", file=sys.stderr)
        return USAGE
    except CommandError as error:
        print(f"bpslaunch: {error}", file=sys.stderr)
        return error.status
    except (OSError, OutputError) as error:
        print(f"bpslaunch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before anything was started; afterwards it is a signal like others
        return INTERRUPTED
    finally:
        settle()


def _open_standard_streams() -> None:
    """A closed standard stream would let the next pipe take its number, and the launcher print into that."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    sys.exit(main())
