"""The command ``bps``: runs the roles of a job in the foreground, and shows what the environment means."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from byteps_py import completion, env_report, known_names
from byteps_py.errors import BytePSError, SettingsError
from byteps_py.role import Role
from byteps_py.settings import JobSettings, SchedulerSettings, ServerSettings, read, read_role, why_needless
from byteps_py.standard_output import settle, show
from byteps_py.telemetry import logs
from byteps_py.traces import command as trace_command
from byteps_py.variables import seconds

__all__ = ["main"]

_S = TypeVar("_S", bound=JobSettings)
_log = logging.getLogger("byteps_py.cli")

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
    words = sys.argv[1:] if argv is None else list(argv)
    name = "bps" if not words or words[0].startswith("-") else f"bps {words[0]}"
    try:
        return _main(words)
    except SettingsError as error:
        for problem in error.problems:
            print(f"{name}: {problem}", file=sys.stderr)
        return USAGE
    except BytePSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        settle()


def _main(words: Sequence[str]) -> int:
    if words[:1] == ["ab"]:  # its last words are a command of the user's, which argparse would search for options
        return _compare(words[1:])
    parser = _parser("".join(words[:1]))
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.error("a command is missing")
    return _compare(words[words.index("ab") + 1 :]) if arguments.run is None else int(arguments.run(arguments))


def _parser(command: str = "", *, whole: bool = False) -> argparse.ArgumentParser:
    """The parser.

    Args:
        command: the one that is given, so that no other one's options are loaded.
        whole: with the options of all commands, also of those that parse their words themselves.
    """
    parser = argparse.ArgumentParser(
        prog="bps",
        description="Run one role of a byteps_py job, show what its environment means, or find out which settings are "
        "faster, and how many servers are best. See also bpslaunch.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, run, text in (
        ("scheduler", _run_scheduler, "run the scheduler of a job, in the foreground"),
        ("server", _run_server, "run one server of a job, in the foreground"),
    ):
        described = (
            f"{text}. Settings come from the environment: DMLC_NUM_WORKER, DMLC_PS_ROOT_URI, ...; `bps env` shows all."
        )
        commands.add_parser(name, help=text, description=described, allow_abbrev=False).set_defaults(run=run)
    text = "show every setting with the value in force and where it came from"
    described = (
        f"{text}; the exit status is 2 if a value is bad or missing. Whether an interface or a core is there is "
        "found out when a job starts."
    )
    env = commands.add_parser("env", help=text, description=described, allow_abbrev=False)
    env.add_argument(
        "--role", type=str.lower, choices=[str(each) for each in Role], help="whose (default: DMLC_ROLE, else all)"
    )
    env.add_argument("--json", action="store_true", help="as a JSON object")
    env.set_defaults(run=_show_environment)
    _add_doctor(commands.add_parser)
    text = "compare settings of a training job, and say how sure the difference is"
    compare = commands.add_parser("ab", help=text, description=f"{text}.", allow_abbrev=False)
    compare.set_defaults(run=None)
    if whole:
        from byteps_py.tune import arguments as ab_arguments

        ab_arguments.add_options(compare)
    text = "predict how long an exchange of gradients takes, and how many servers are best"
    plan = commands.add_parser("plan", help=text, allow_abbrev=False)
    if whole or command == "plan":
        _add_plan(plan)
    text = "one file of the traces of a job, and what they say in numbers"
    trace = commands.add_parser("trace", help=text, description=f"{text}; see BYTEPS_TRACE_ON.", allow_abbrev=False)
    trace_command.add_options(trace)
    text = "print the completion of this command, to be sourced by the shell"
    shell = commands.add_parser("completion", help=text, description=f"{text}.", allow_abbrev=False)
    shell.add_argument("shell", choices=completion.SHELLS, help="for which shell")
    shell.set_defaults(run=_print_completion)
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    from byteps_py.plan import arguments

    parser.description, parser.epilog = arguments.DESCRIPTION, arguments.EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    arguments.add_options(parser)
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from byteps_py.plan import command

    return command.run(arguments, os.environ)


def _show_environment(arguments: argparse.Namespace) -> int:
    role = None if arguments.role is None else Role(arguments.role)
    if role is None:
        with contextlib.suppress(SettingsError):  # its row tells
            role = read_role(os.environ)
    report = env_report.inspect_environment(os.environ, role)
    show(env_report.as_json(report) if arguments.json else env_report.as_text(report))
    return USAGE if report.is_bad else 0


def _add_doctor(add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "look for what makes jobs hang or crawl on this host, and say what to do about it"
    described = f"{text}; the exit status is 1 if there is a problem. It starts nothing, and joins no job."
    doctor = add("doctor", help=text, description=described, allow_abbrev=False)
    doctor.add_argument(
        "--role", type=str.lower, choices=[str(each) for each in Role], help="whose (default: DMLC_ROLE, else all)"
    )
    doctor.add_argument("--json", action="store_true", help="as a JSON object")
    doctor.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="S", help="seconds that a check may take (default: 30)"
    )
    doctor.set_defaults(run=_examine)


def _seconds(text: str) -> float:
    try:
        return seconds(0.1, 3600)[1](text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.1 to 3600") from None


def _examine(arguments: argparse.Namespace) -> int:
    from byteps_py.doctor import command

    role = None if arguments.role is None else Role(arguments.role)
    return command.run(os.environ, role, arguments.timeout, json=arguments.json)


def _print_completion(arguments: argparse.Namespace) -> int:
    text = completion.script(arguments.shell, _parser(whole=True), "bps completion", runners=("bps ab",))
    show(text.rstrip("\n"))
    return 0


def _compare(words: Sequence[str]) -> int:
    from byteps_py.tune import command

    return command.main(words, os.environ)


def _run_scheduler(arguments: argparse.Namespace) -> int:
    settings = _prepare(Role.SCHEDULER, SchedulerSettings)
    if settings is None:
        return 0
    from byteps_py.roles import scheduler

    return scheduler.run(settings)


def _run_server(arguments: argparse.Namespace) -> int:
    settings = _prepare(Role.SERVER, ServerSettings)
    if settings is None:
        return 0
    # OpenMP libraries read this when they are loaded, which is when the kernels are imported.
    os.environ["OMP_WAIT_POLICY"] = settings.omp_wait_policy
    from byteps_py.roles import memory, server

    memory.keep_freed()
    return server.run(settings)


def _prepare(role: Role, kind: type[_S]) -> _S | None:
    """Settings of a role, with the logs set up; None, and a line that says so, if the job needs none."""
    settings = read(kind, os.environ)
    if (reason := why_needless(role, settings)) is not None:
        print(f"bps: {reason}", file=sys.stderr)
        return None
    logs.configure(settings, str(role))
    for line in known_names.at_start(role, os.environ):
        _log.warning("%s", line)
    return settings


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from byteps_py.version import package_version

        show(f"byteps_py {package_version()}")
        parser.exit()
