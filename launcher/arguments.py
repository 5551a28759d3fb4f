"""The command line of ``bpslaunch``.  Its options end at the first word that is none: there the command begins.

That rule is applied here, before argparse sees a word.  argparse would look for options behind the command too, take
abbreviations, and let an option that lacks its value fail with little more than its name.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from byteps_py import completion
from byteps_py.launcher.binding import POLICIES as BINDINGS
from byteps_py.role import Role
from byteps_py.settings import JobSettings, variables_of
from byteps_py.standard_output import show
from byteps_py.variables import choice, integer

__all__ = ["AUTO", "Options", "openmp_words", "parse", "usage_error"]

AUTO: Final = "auto"
"""In place of a number of servers: as many as are best on this machine."""

_DESCRIPTION = """\
Start the processes of a training job. There are three uses:

  bpslaunch [-n N] [-s S] [options] [--] COMMAND ...
      The whole job on this machine, on 127.0.0.1 only: a scheduler, S servers, and N workers that
      run COMMAND. One worker without a server just runs COMMAND.
  DMLC_ROLE=worker ... bpslaunch [-n N] [options] [--] COMMAND ...
      The workers of this machine in a job that spans machines: N of them run COMMAND.
  DMLC_ROLE=scheduler ... bpslaunch [options]         DMLC_ROLE=server ... bpslaunch [options]
      The scheduler of such a job, or one server. A COMMAND is not used.

COMMAND begins at the first word that is no option, or after `--`, and gets all its words unchanged.
"""

_EPILOG = """\
environment with DMLC_ROLE set (the same on all machines, except DMLC_WORKER_ID):
  DMLC_NUM_WORKER, DMLC_NUM_SERVER     number of worker machines, and of server processes
  DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT  where the scheduler is
  DMLC_WORKER_ID                       index of this worker machine (optional)
  BYTEPS_LOCAL_SIZE                    workers on this machine, unless -n is given; default: the
                                       GPUs in NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, or 1
  BYTEPS_FORCE_DISTRIBUTED=1           use servers even for one worker
  BYTEPS_START_TIMEOUT=120             seconds until all must have called init(); workers that are
                                       known to live have longer. --start-timeout goes before it;
                                       without DMLC_ROLE only that counts, also for live workers
Without DMLC_ROLE the other DMLC_* variables are not used, and a line says so.

environment of every use (docs/env.md has all of it; `bps env` shows the values in force):
  BYTEPS_GRACE_PERIOD=20               seconds that SIGTERM leaves to the workers
  BYTEPS_PORT_RANGE=LOW-HIGH           every port that is listened at lies in it
  BYTEPS_VISIBLE_CPU_CORES=0-3:4-7     cores that each worker is bound to
  BYTEPS_NUMA_ON=0                     no binding; else workers are bound to NUMA nodes where there
                                       are several and the workers come out even (docs/affinity.md)

OpenMP: an option goes before BYTEPS_SERVER_OMP_WAIT_POLICY, BYTEPS_SERVER_OMP_NUM_THREADS (for
workers BYTEPS_WORKER_OMP_...), these before OMP_WAIT_POLICY and OMP_NUM_THREADS, these before
BYTEPS_OMP_THREAD_PER_GPU, and that before the default: passive for servers, and the cores of this
machine shared out among its workers and servers.

Each line of output starts with role and rank: "[worker 0] ". One worker alone reads standard input,
several read nothing. The exit status is that of the first process that failed, 128+N for signal N;
2 for a usage error or a bad variable, 126 and 127 for a command that cannot be run or found.
Signals are passed on to the workers, to which SIGTERM leaves BYTEPS_GRACE_PERIOD; a second one
kills. What the processes have started and left running is ended with the job.
"""

_WIDTH = 100
_POLICIES = ("passive", "active")


@dataclass(frozen=True)
class Options:
    """What was asked for; None where an option was not given."""

    command: tuple[str, ...] = ()
    num_workers: int | None = None
    num_servers: int | Literal["auto"] | None = None
    omp_wait_policy: str | None = None
    omp_num_threads: int | None = None
    worker_omp_wait_policy: str | None = None
    worker_omp_num_threads: int | None = None
    numa_binding: str | None = None
    prefix: bool = True
    log_dir: Path | None = None
    start_timeout: str | None = None
    compat: bool = False
    dry_run: bool = False


def parse(argv: Sequence[str]) -> Options:
    """Parse the words after the program's name.

    Raises:
        SystemExit: status 2 after a usage error, 0 after ``--help``, ``--version`` and ``--completion``.
    """
    parser = _parser()
    ours, command = _split(argv, parser)
    return Options(command=tuple(command), **vars(parser.parse_args(ours)))


def openmp_words(options: Options, role: Role) -> tuple[str, ...]:
    """The OpenMP options for ``role``, a server or a worker, as they could have been typed."""
    prefix = "worker_" if role is Role.WORKER else ""
    names = (f"{prefix}omp_wait_policy", f"{prefix}omp_num_threads")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return tuple(word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value)))


def usage_error(text: str) -> NoReturn:
    """Print the usage and ``text`` to standard error, and exit with status 2."""
    _parser().error(text)


def _split(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Our options, each as one word ``--name=value``, and the command."""
    known = {name: action for action in parser._actions for name in action.option_strings}
    ours: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return ours, list(argv[index + 1 :])
        if not word.startswith("-") or word == "-":
            break
        index += 1
        name, value = _name_and_value(word)
        action = known.get(name)
        if action is None or (not name.startswith("--") and value is not None and value[:1].isalpha()):
            parser.error(_no_option(name if name.startswith("--") else word, known))
        if action.nargs == 0:
            if value is not None:
                parser.error(f"{name} takes no value: {word!r}")
            ours.append(name)
            continue
        if value is None:
            if index == len(argv) or argv[index] == "--" or _name_and_value(argv[index])[0] in known:
                parser.error(f"{'/'.join(action.option_strings)}: the value {action.metavar} after it is missing")
            value = argv[index]
            index += 1
        ours.append(f"{action.option_strings[-1]}={value}")
    return ours, list(argv[index:])


def _name_and_value(word: str) -> tuple[str, str | None]:
    """``--name=value``, and ``-nvalue`` or ``-n=value``; None where no value is attached."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    return word[:2], word[2:].removeprefix("=") if len(word) > 2 else None


def _no_option(word: str, known: Mapping[str, object]) -> str:
    """The text of the error, with the options that may have been meant."""
    import difflib

    like = [name for name in known if name.startswith(word)]
    like = like or difflib.get_close_matches(word, known, n=1) or [name for name in (word[:2],) if name in known]
    hint = f"did you mean {' or '.join(like)}?" if like else "`bpslaunch -h` lists them"
    return f"there is no option {word!r} ({hint}); a command that begins with '-' needs -- before it"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bpslaunch",
        usage="bpslaunch [options] [--] COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_formatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "-n",
        "--num-workers",
        metavar="N",
        type=_number_from(1, 65535),
        help="workers on this machine (default: visible GPUs, else 1; see BYTEPS_LOCAL_SIZE below)",
    )
    add(
        "-s",
        "--num-servers",
        metavar="S",
        type=_number_from(0, 65535, AUTO),
        help="servers, or auto: as many as this machine makes good use of (docs/plan.md) "
        "(default: 1; none with one worker, unless BYTEPS_FORCE_DISTRIBUTED=1)",
    )
    _add_openmp(parser)
    add(
        "--numa-binding",
        metavar=_alternatives(BINDINGS),
        type=_one_of(BINDINGS),
        choices=BINDINGS,
        help="bind each process to a NUMA node, to the socket of one, to its share of the node's cores, or to cores "
        "that share a cache (default: see BYTEPS_NUMA_ON below)",
    )
    _add_ways(parser)
    add(
        "--completion",
        action=_Completion,
        metavar=_alternatives(completion.SHELLS),
        type=_one_of(completion.SHELLS),
        choices=completion.SHELLS,
        help="print the completion of this command, to be sourced by the shell, and exit",
    )
    add("--version", action=_Version, nargs=0, help="show the version and exit")
    return parser


def _add_openmp(parser: argparse.ArgumentParser) -> None:
    policy: dict[str, Any] = {"metavar": _alternatives(_POLICIES), "type": _one_of(_POLICIES), "choices": _POLICIES}
    threads: dict[str, Any] = {"metavar": "N", "type": _number_from(1, 1024)}
    parser.add_argument("--omp-wait-policy", **policy, help="how idle OpenMP threads of the servers wait")
    parser.add_argument("--omp-num-threads", **threads, help="OpenMP threads of each engine thread of a server")
    parser.add_argument("--worker-omp-wait-policy", **policy, help="the same for the workers")
    parser.add_argument("--worker-omp-num-threads", **threads, help="OpenMP threads of each worker")


def _add_ways(parser: argparse.ArgumentParser) -> None:
    """How processes are run and shown."""
    add = parser.add_argument
    add("--log-dir", metavar="DIR", type=_folder, help="write the output of each process also to DIR/worker-0.log ...")
    add(
        "--no-prefix",
        dest="prefix",
        action="store_false",
        help="pass lines on as they are; a single process then has the terminal for itself",
    )
    add(
        "--start-timeout",
        metavar="SECONDS",
        type=_seconds,
        help="end the job if it is not complete so long after its first process came (0: wait for ever; "
        "default: BYTEPS_START_TIMEOUT, or 0 if the whole job runs here; see below)",
    )
    add("--compat", action="store_true", help="byteps means byteps_py to the workers: for scripts for BytePS")
    add("--dry-run", action="store_true", help="print every process as a command for a shell, and start none")


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=width)


def _alternatives(words: Sequence[str]) -> str:
    return "{" + ",".join(words) + "}"


def _number_from(low: int, high: int, word: str = "") -> Callable[[str], int | str]:
    """A number, or ``word``."""
    form, parse = integer(low, high)
    form += f" or {word}" if word else ""

    def parse_number(text: str) -> int | str:
        if word and text.strip().lower() == word:
            return word
        with contextlib.suppress(ValueError):
            return parse(text)
        hint = "" if text[:1] in "-0123456789" else " (is it missing before the command?)"
        raise argparse.ArgumentTypeError(f"{text!r} must be {form}{hint}")

    return parse_number


def _one_of(words: Sequence[str]) -> Callable[[str], str]:
    form, parse = choice(*words)

    def parse_word(text: str) -> str:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be {form}") from None

    return parse_word


def _seconds(text: str) -> str:
    variable = dict(variables_of(JobSettings))["start_timeout"]
    try:
        variable.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be {variable.form}") from None
    return text


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("'' must be the path of a folder")
    return Path(text)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from byteps_py.version import package_version

        show(f"bpslaunch {package_version()}")
        parser.exit()


class _Completion(argparse.Action):
    """Prints the completion for a shell."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> None:
        show(completion.script(shell, parser, "bpslaunch --completion", runs_command=True).rstrip("\n"))
        parser.exit()
