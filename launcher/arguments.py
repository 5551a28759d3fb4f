"""The command line of ``bpslaunch``.  Its options end at the first word that is none: there the command begins."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

__all__ = ["Options", "parse", "usage_error"]

_DESCRIPTION = """\
Start the processes of a training job. There are three uses:

  bpslaunch [-n N] [-s S] [--] COMMAND ...
      The whole job on this machine: a scheduler, S servers and N workers that run COMMAND. Everything listens on
      127.0.0.1 only, at a free port, under a fresh job id. With one worker and no server COMMAND runs alone.

  DMLC_ROLE=worker ... bpslaunch [--] COMMAND ...
      The workers of this machine in a job that spans machines: BYTEPS_LOCAL_SIZE copies of COMMAND (or as many as
      NVIDIA_VISIBLE_DEVICES lists, else one), each with its own BYTEPS_LOCAL_RANK.

  DMLC_ROLE=scheduler ... bpslaunch          DMLC_ROLE=server ... bpslaunch
      The scheduler, or one server, of such a job, in the foreground.
"""

_EPILOG = """\
environment with DMLC_ROLE set (the same on all machines, except DMLC_WORKER_ID):
  DMLC_NUM_WORKER, DMLC_NUM_SERVER       number of worker machines, and of server processes
  DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT    where the scheduler is
  DMLC_WORKER_ID                         index of this worker machine (optional)
  BYTEPS_LOCAL_SIZE                      workers on this machine
  BYTEPS_FORCE_DISTRIBUTED=1             use servers even for one worker
without DMLC_ROLE the other DMLC_* variables are ignored, and a line says so.

defaults of the OpenMP environment, used for what is neither given as an option nor exported:
  OMP_WAIT_POLICY    passive for servers, not set for workers
  OMP_NUM_THREADS    the cores of this machine shared out among its workers and servers, at least 1

Each line of output starts with role and rank: "[worker 0] ". One worker alone reads standard input, several read
nothing. The exit status is that of the first process that failed, 128+N for signal N; 2 for a usage error or a bad
variable, 126 and 127 for a command that cannot be run or found. A signal is passed on to the workers; a second one
kills. Whatever a process leaves running in its session is ended with the job.
"""


@dataclass(frozen=True)
class Options:
    """What was asked for; None where an option was not given."""

    command: tuple[str, ...] = ()
    num_workers: int | None = None
    num_servers: int | None = None
    omp_wait_policy: str | None = None
    omp_num_threads: int | None = None
    worker_omp_wait_policy: str | None = None
    worker_omp_num_threads: int | None = None
    prefix: bool = True


def parse(argv: Sequence[str]) -> Options:
    """Parse the words after the program's name.

    Raises:
        SystemExit: status 2 after a usage error, 0 after ``--help`` and ``--version``.
    """
    parser, with_value = _parser()
    ours, command = _split(argv, with_value)
    return Options(command=tuple(command), **vars(parser.parse_args(ours)))


def usage_error(text: str) -> NoReturn:
    """Print the usage and ``text`` to standard error, and exit with status 2."""
    _parser()[0].error(text)


def _split(argv: Sequence[str], with_value: frozenset[str]) -> tuple[list[str], list[str]]:
    """Our words, and the command: it begins after ``--``, or at the first word that is neither option nor value."""
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return list(argv[:index]), list(argv[index + 1 :])
        if not word.startswith("-") or word == "-":
            break
        index += 2 if word in with_value else 1
    return list(argv[:index]), list(argv[index:])


def _parser() -> tuple[argparse.ArgumentParser, frozenset[str]]:
    """The parser, and those of its options that take the next word as their value."""
    parser = argparse.ArgumentParser(
        prog="bpslaunch",
        usage="bpslaunch [options] [--] COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    policy: dict[str, Any] = {"metavar": "{passive,active}", "type": str.lower, "choices": ("passive", "active")}
    with_value = (
        parser.add_argument(
            "-n", "--num-workers", metavar="N", type=_number_from(1), help="workers (default: visible GPUs, else 1)"
        ),
        parser.add_argument(
            "-s",
            "--num-servers",
            metavar="S",
            type=_number_from(0),
            help="servers (default: 1; none with one worker, unless BYTEPS_FORCE_DISTRIBUTED=1)",
        ),
        parser.add_argument("--omp-wait-policy", **policy, help="how idle OpenMP threads of the servers wait"),
        parser.add_argument(
            "--omp-num-threads",
            metavar="N",
            type=_number_from(1),
            help="OpenMP threads of each engine thread of a server",
        ),
        parser.add_argument("--worker-omp-wait-policy", **policy, help="the same for the workers"),
        parser.add_argument(
            "--worker-omp-num-threads", metavar="N", type=_number_from(1), help="OpenMP threads of each worker"
        ),
    )
    parser.add_argument(
        "--no-prefix",
        dest="prefix",
        action="store_false",
        help="pass lines on as they are; a single process then has the terminal for itself",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    return parser, frozenset(name for action in with_value for name in action.option_strings)


def _number_from(low: int) -> Callable[[str], int]:
    def parse_number(text: str) -> int:
        try:
            value = int(text, 10)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {low} up")
        return value

    return parse_number


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        try:
            text = version("byteps_py")
        except PackageNotFoundError:
            text = "(not installed)"
        print(f"bpslaunch {text}")
        parser.exit()
