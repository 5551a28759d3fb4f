"""What becomes of planned processes: a supervisor runs them, or with ``--dry-run`` they are shown and not started.

A dry run prints each process as one command that a shell can run as it is, also one that has none of the job's
variables.  Those, and whatever else differs from the environment that the launcher itself has, go through ``env``; the
rest is inherited.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from byteps_py.errors import SettingsError
from byteps_py.launcher.affinity import core_list
from byteps_py.launcher.arguments import Options
from byteps_py.launcher.processes import CommandError, ProcessSpec, find
from byteps_py.launcher.supervisor import Supervisor
from byteps_py.settings import JobSettings
from byteps_py.variables import examine

__all__ = ["as_commands", "launch", "setting"]

_JOB_PREFIXES = ("DMLC_", "BYTEPS_", "PS_", "OMP_")
_JOB_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})


def launch(
    specs: Sequence[ProcessSpec],
    notes: Sequence[str],
    options: Options,
    *,
    report_failures: bool,
    herald_environment: Mapping[str, str] | None = None,
) -> int:
    """Run the processes until all have ended, or show them; returns the exit status.

    Args:
        specs: what to start, in this order.
        notes: lines to print before.
        options: how to start it.
        report_failures, herald_environment: see :class:`~byteps_py.launcher.supervisor.Supervisor`.

    Raises:
        SettingsError: a variable that the launcher itself heeds has a bad value.
        CommandError: a command cannot be run, or what a dry run prints not be written.
        OSError: the launcher cannot start its guard, or write the logs. In all three cases nothing has been started.
    """
    grace_period = setting(specs[-1].environment, "grace_period")
    find(specs[-1].argv[0], specs[-1].environment.get("PATH"))
    if options.dry_run:
        for line in (*notes, "dry run: nothing is started; these commands do the same, each in a shell of its own"):
            print(f"bpslaunch: {line}", file=sys.stderr)
        _print(os.fsencode(as_commands(specs, os.environ)))
        return 0
    supervisor = Supervisor(
        specs,
        label_lines=options.prefix,
        report_failures=report_failures,
        log_dir=options.log_dir,
        grace_period=grace_period,
        herald_environment=herald_environment,
    )
    for line in notes:
        supervisor.say(line)
    return supervisor.run()


def as_commands(specs: Sequence[ProcessSpec], present: Mapping[str, str]) -> str:
    """The processes as text for a shell that has the environment ``present``, or that lacks what makes up a job in it;
    a comment names each one."""
    return "\n".join(_as_command(spec, present) for spec in specs)


def _print(data: bytes) -> None:
    try:
        # Python's own object would try again at the exit, and fail again.
        with open(1, "wb", closefd=False) as output:
            output.write(data)
    except OSError as error:
        raise CommandError(1, f"standard output cannot be written: {error.strerror}") from None


def _as_command(spec: ProcessSpec, present: Mapping[str, str]) -> str:
    removed = [f"-u {shlex.quote(name)}" for name in sorted(present.keys() - spec.environment.keys())]
    changed = [
        f"{shlex.quote(name)}={shlex.quote(value)}"
        for name, value in sorted(spec.environment.items())
        if present.get(name) != value or name in _JOB_NAMES or name.startswith(_JOB_PREFIXES)
    ]
    words = spec.argv
    if words[0].startswith("-") or "=" in words[0]:
        # env would take it for an option or a variable
        words = ("sh", "-c", '"$0" "$@"', *words)
    binding = [] if spec.cores is None else [f"taskset -c {core_list(spec.cores)}"]
    lines = [" ".join([*binding, "env", *removed]), *changed, shlex.join(words)]
    return f"# {spec.label}\n" + " \\\n    ".join(lines) + "\n"


def setting(environ: Mapping[str, str], name: str) -> Any:
    """The value of one field of :class:`~byteps_py.settings.JobSettings`, where the others may be missing.

    Raises:
        SettingsError: it has a bad value.
    """
    (finding,) = (each for each in examine(JobSettings, environ) if each.field == name)
    if finding.problem:
        raise SettingsError(finding.problem)
    return finding.value
