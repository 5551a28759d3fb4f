"""Without ``DMLC_ROLE``: the whole job on this machine, on loopback only.

:func:`plan_job` is pure: what is to be started is a list of values that a test can look at.  :func:`run_job` draws a
port and ids, and runs the plan.

The port: the launcher binds a socket to a free one and keeps it, without listening, for as long as the job runs.
While it is held the kernel gives the port to nobody who asks for just any port; the scheduler binds it by number all
the same, since both sockets allow the address to be reused and only one of them listens.  So there is no moment in
which another process could be given the port, and nothing has to be tried again.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byteps_py.errors import SettingsError
from byteps_py.launcher import affinity
from byteps_py.launcher.affinity import OpenMP
from byteps_py.launcher.arguments import Options
from byteps_py.launcher.processes import ProcessSpec, find, module_command
from byteps_py.launcher.supervisor import Supervisor
from byteps_py.settings import JobSettings, read, settings_class, variables_of
from byteps_py.types import Role

__all__ = ["Draw", "Machine", "Plan", "plan_job", "plural", "run_job"]

HOST = "127.0.0.1"
_OWN_VARIABLES = ("BYTEPS_JOB_ID", "BYTEPS_LAUNCH_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")


@dataclass(frozen=True)
class Machine:
    """What the plan must know of this machine."""

    cores: frozenset[int]
    devices: int


@dataclass(frozen=True)
class Draw:
    """What differs between jobs: ``job_id`` names the job, ``launch_id`` the processes that were started together."""

    port: int
    job_id: str
    launch_id: str


@dataclass(frozen=True)
class Plan:
    """The processes of a job, in the order of their start, and lines that say so."""

    specs: tuple[ProcessSpec, ...]
    notes: tuple[str, ...]


def plan_job(options: Options, environ: Mapping[str, str], machine: Machine, draw: Draw) -> Plan:
    """Decide which processes make up the job, and with which environment. Pure.

    Raises:
        SettingsError: the options contradict each other, or a variable that is passed on has a bad value.
    """
    workers, servers = _counts(options, environ, machine)
    bindings = affinity.bind(environ, workers, machine.cores)
    server, worker = _openmp(options, environ, max(1, len(machine.cores) // (workers + servers)), bindings)
    inherited, ignored = _inherit(environ)
    notes = [f"the whole job runs here, so these are not used: {' '.join(ignored)}"] if ignored else []
    notes.append(_summary(servers, draw, server, worker))
    common = inherited | {"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": str(servers), "PYTHONUNBUFFERED": "1"}
    if not servers:
        return Plan((_worker(options, common, 0, bindings, worker),), tuple(notes))
    common |= _job_variables(draw)
    specs = (
        _service(Role.SCHEDULER, 0, common, OpenMP()),
        *(_service(Role.SERVER, index, common, server) for index in range(servers)),
        *(_worker(options, common | {"DMLC_ROLE": "worker"}, index, bindings, worker) for index in range(workers)),
    )
    _check(specs)
    return Plan(specs, tuple(notes))


def run_job(options: Options, environ: Mapping[str, str]) -> int:
    """Run the whole job here; returns its exit status.

    Args:
        options: the command and how many processes.
        environ: the environment that the processes inherit.

    Raises:
        SettingsError: see :func:`plan_job`. Nothing has been started.
        CommandError: the command cannot be run. Nothing has been started.
        OSError: there is no free port, or the launcher cannot start its guard.
    """
    machine = Machine(affinity.usable_cores(), affinity.count_devices(environ, affinity.device_files()))
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        draw = Draw(holder.getsockname()[1], secrets.token_hex(8), secrets.token_hex(8))
        plan = plan_job(options, environ, machine, draw)
        find(options.command[0], environ.get("PATH"))
        supervisor = Supervisor(plan.specs, label_lines=options.prefix, report_failures=len(plan.specs) > 1)
        for line in plan.notes:
            supervisor.say(line)
        return supervisor.run()


def _counts(options: Options, environ: Mapping[str, str], machine: Machine) -> tuple[int, int]:
    """Numbers of workers and servers."""
    workers = options.num_workers or max(1, machine.devices)
    forced = _is_forced(environ)
    needed = workers > 1 or forced
    servers = int(needed) if options.num_servers is None else options.num_servers
    if needed and servers == 0:
        reason = f"{workers} workers" if workers > 1 else "BYTEPS_FORCE_DISTRIBUTED=1"
        raise SettingsError(f"-s 0 with {reason}: without a server nobody sums; use -s 1 or more")
    return workers, servers


def _is_forced(environ: Mapping[str, str]) -> bool:
    variable = dict(variables_of(JobSettings))["force_distributed"]
    text = environ.get(variable.name, "")
    try:
        return bool(text.strip()) and bool(variable.parse(text))
    except ValueError:
        raise SettingsError(f"{variable.name}={text!r} must be {variable.form} ({variable.meaning})") from None


def _openmp(
    options: Options, environ: Mapping[str, str], share: int, bindings: Sequence[frozenset[int] | None]
) -> tuple[OpenMP, list[OpenMP]]:
    """For a server and for each worker.

    A worker gets the cores that it is bound to, else ``share`` cores; a server as many, split among its engine threads.
    """
    server = affinity.choose(
        Role.SERVER,
        environ,
        wait_policy=options.omp_wait_policy,
        num_threads=options.omp_num_threads,
        default=OpenMP("passive", str(max(1, share // affinity.engine_threads(environ)))),
    )
    workers = [
        affinity.choose(
            Role.WORKER,
            environ,
            wait_policy=options.worker_omp_wait_policy,
            num_threads=options.worker_omp_num_threads,
            default=OpenMP(num_threads=str(len(bound or range(share)))),
        )
        for bound in bindings
    ]
    return server, workers


def _inherit(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment without what describes another job, and what was left out, as ``NAME=value``."""
    foreign = {name for name in environ if name.startswith("DMLC_") or name in _OWN_VARIABLES}
    kept = {name: value for name, value in environ.items() if name not in foreign}
    return kept, [f"{name}={environ[name]}" for name in sorted(foreign) if environ[name].strip()]


def _job_variables(draw: Draw) -> dict[str, str]:
    return {
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(draw.port),
        "DMLC_NODE_HOST": HOST,
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_JOB_ID": draw.job_id,
        "BYTEPS_LAUNCH_ID": draw.launch_id,
    }


def _service(role: Role, index: int, common: Mapping[str, str], openmp: OpenMP) -> ProcessSpec:
    label = "scheduler" if role is Role.SCHEDULER else f"{role} {index}"
    environment = openmp.settle({**common, "DMLC_ROLE": str(role)})
    return ProcessSpec(role, label, module_command("byteps_py", str(role)), environment)


def _worker(
    options: Options,
    common: Mapping[str, str],
    index: int,
    bindings: Sequence[frozenset[int] | None],
    openmp: Sequence[OpenMP],
) -> ProcessSpec:
    size = len(bindings)
    own = {"DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": str(index), "BYTEPS_LOCAL_SIZE": str(size)}
    environment = openmp[index].settle({**common, **own})
    return ProcessSpec(
        Role.WORKER, f"worker {index}", options.command, environment, read_stdin=size == 1, cores=bindings[index]
    )


def _check(specs: Sequence[ProcessSpec]) -> None:
    """Let each role's settings be read here, so that a bad value is told before anything is started."""
    problems: dict[str, None] = {}
    for spec in specs:
        try:
            read(settings_class(spec.role), spec.environment)
        except SettingsError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise SettingsError(list(problems))


def _summary(servers: int, draw: Draw, server: OpenMP, workers: Sequence[OpenMP]) -> str:
    settled = ", ".join(dict.fromkeys(each.describe() for each in workers))
    worker_openmp = f"{'workers' if len(workers) > 1 else 'worker'}: {settled}"
    if not servers:
        return f"1 worker, no server, nothing to connect; {worker_openmp}"
    return (
        f"{plural(len(workers), 'worker')}, {plural(servers, 'server')}, scheduler on {HOST}:{draw.port}, "
        f"job {draw.job_id}; {'servers' if servers > 1 else 'server'}: {server.describe()}; {worker_openmp}"
    )


def plural(count: int, word: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
