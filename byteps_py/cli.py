"""The command ``bps``: runs the roles of a job in the foreground."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from byteps_py.errors import BytePSError, SettingsError
from byteps_py.settings import SchedulerSettings, ServerSettings, read, why_needless
from byteps_py.telemetry import logs
from byteps_py.types import Role

__all__ = ["main"]

FAILED = 1
"""Exit status after an error: the job was aborted, or could not begin."""
USAGE = 2
"""Exit status after a usage error or a bad variable."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Args:
        argv: the words after the program's name; None for those of this process.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    run: Callable[[], int] | None = getattr(arguments, "run", None)
    if run is None:
        parser.error("a command is missing")
    try:
        return run()
    except SettingsError as error:
        for problem in error.problems:
            print(f"bps {arguments.command}: {problem}", file=sys.stderr)
        return USAGE
    except BytePSError as error:
        print(f"bps {arguments.command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bps", description="Run one role of a byteps_py job. See also bpslaunch.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, run, text in (
        ("scheduler", _run_scheduler, "run the scheduler of a job, in the foreground"),
        ("server", _run_server, "run one server of a job, in the foreground"),
    ):
        described = f"{text}. Settings come from the environment: DMLC_NUM_WORKER, DMLC_PS_ROOT_URI, ..."
        commands.add_parser(name, help=text, description=described, allow_abbrev=False).set_defaults(run=run)
    return parser


def _run_scheduler() -> int:
    settings = read(SchedulerSettings, os.environ)
    if (reason := why_needless(Role.SCHEDULER, settings)) is not None:
        print(f"bps: {reason}", file=sys.stderr)
        return 0
    from byteps_py.roles import scheduler

    logs.configure(settings, "scheduler")
    return scheduler.run(settings)


def _run_server() -> int:
    settings = read(ServerSettings, os.environ)
    if (reason := why_needless(Role.SERVER, settings)) is not None:
        print(f"bps: {reason}", file=sys.stderr)
        return 0
    from byteps_py.roles import server

    logs.configure(settings, "server")
    return server.run(settings)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from byteps_py.roles.member import package_version

        print(f"byteps_py {package_version()}")
        parser.exit()
