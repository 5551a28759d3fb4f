"""Without ``DMLC_ROLE``: the whole job on this machine, on loopback only.

:func:`plan_job` is pure: what is to be started is a list of values that a test can look at.  :func:`run_job` draws
ports and ids, and has the plan carried out.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from byteps_py.errors import SettingsError
from byteps_py.launcher import affinity, ports
from byteps_py.launcher.affinity import OpenMP
from byteps_py.launcher.arguments import AUTO, Options, openmp_words
from byteps_py.launcher.binding import Binding, bind, offered_cores
from byteps_py.launcher.launch import launch, setting
from byteps_py.launcher.processes import ProcessSpec, module_command
from byteps_py.launcher.topology import Group, Topology, read_topology
from byteps_py.role import Role
from byteps_py.settings import inspect, settings_class
from byteps_py.startup_folder import with_startup_folder
from byteps_py.trace_settings import TraceSettings, prepare_trace

if TYPE_CHECKING:
    from byteps_py.plan.one_host import Choice

__all__ = ["Draw", "Machine", "Plan", "local_variables", "notes_without_server", "plan_job", "plural", "run_job"]

HOST = "127.0.0.1"
_OWN_VARIABLES = (
    "BYTEPS_JOB_ID",
    "BYTEPS_LAUNCH_ID",
    "BYTEPS_LOCAL_RANK",
    "BYTEPS_LOCAL_SIZE",
    "BYTEPS_SERVER_CORES",
    "BYTEPS_START_TIMEOUT",
)


@dataclass(frozen=True)
class Machine:
    """What the plan must know of this machine."""

    topology: Topology
    devices: int


@dataclass(frozen=True)
class Draw:
    """What differs between jobs.

    Attributes:
        port: where the scheduler listens.
        job_id: names the job.
        launch_id: names the processes that were started together.
        server_ports: where the servers listen; empty if any free port will do.
    """

    port: int
    job_id: str
    launch_id: str
    server_ports: tuple[int, ...] = ()


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
    binding = bind(environ, options.numa_binding, machine.topology, workers, servers)
    server, worker = _openmp(options, environ, binding)
    inherited, ignored = _inherit(environ)
    notes = [f"the whole job runs here, so these are not used: {' '.join(ignored)}{_meant(environ)}"] if ignored else []
    if options.num_servers == AUTO:
        notes.append(_why_so_many(workers, servers, _offered(options, environ, machine)))
    notes += [] if servers else notes_without_server(options)
    notes += [_summary(draw, server, worker), *binding.notes]
    common = inherited | {"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": str(servers), "PYTHONUNBUFFERED": "1"}
    common["BYTEPS_LAUNCH_ID"] = draw.launch_id
    if not servers:
        alone = (_worker(options, common, 0, binding, worker),)
        _check(alone)
        return Plan(alone, tuple(notes))
    common |= _job_variables(options, draw)
    quiet = _quiet(environ)
    listen = [{"DMLC_PORT": str(port)} for port in draw.server_ports] or [{}] * servers
    # A server that is bound cannot see how many cores are for it alone.
    own = [
        {} if cores is None else {"BYTEPS_SERVER_CORES": str(share)}
        for cores, share in zip(binding.servers, binding.server_cores, strict=True)
    ]
    specs = (
        _service(Role.SCHEDULER, 0, common | quiet, OpenMP(), binding.others),
        *(
            _service(Role.SERVER, index, common | quiet | listen[index] | own[index], server[index], cores)
            for index, cores in enumerate(binding.servers)
        ),
        *(_worker(options, common | {"DMLC_ROLE": "worker"}, index, binding, worker) for index in range(workers)),
    )
    _check(specs)
    return Plan(specs, tuple(notes))


def run_job(options: Options, environ: Mapping[str, str], notes: Sequence[str] = ()) -> int:
    """Run the whole job here; returns its exit status.

    Args:
        options: the command and how many processes.
        environ: the environment that the processes inherit.
        notes: lines to print before.

    Raises:
        SettingsError: see :func:`plan_job`; or the folder for traces cannot be used. Nothing has been started.
        CommandError: the command cannot be run. Nothing has been started.
        OSError: there are not enough free ports, or the launcher cannot start its guard.
    """
    topology = read_topology(affinity.usable_cores())
    machine = Machine(topology, affinity.count_devices(environ, affinity.device_files()))
    _, servers = _counts(options, environ, machine)
    port_range = setting(environ, "port_range")
    with ports.hold(HOST, min(servers, 1) + (servers if port_range else 0), port_range if servers else None) as held:
        draw = Draw(held[0] if held else 0, secrets.token_hex(8), secrets.token_hex(8), held[1:])
        plan = plan_job(options, environ, machine, draw)
        if servers and not options.dry_run:  # once for all, instead of by each process
            prepare_trace(TraceSettings(trace_on=setting(environ, "trace_on"), trace_dir=setting(environ, "trace_dir")))
        return launch(plan.specs, (*notes, *plan.notes), options, report_failures=servers > 0)


def _counts(options: Options, environ: Mapping[str, str], machine: Machine) -> tuple[int, int]:
    """Numbers of workers and servers."""
    workers = options.num_workers or max(1, machine.devices)
    forced: bool = setting(environ, "force_distributed")
    needed = workers > 1 or forced
    if options.num_servers == AUTO:
        return workers, _chosen(workers, _offered(options, environ, machine)).servers if needed else 0
    servers = int(needed) if options.num_servers is None else options.num_servers
    if needed and servers == 0:
        reason = f"{workers} workers" if workers > 1 else "BYTEPS_FORCE_DISTRIBUTED=1"
        raise SettingsError(f"-s 0 with {reason}: without a server nobody sums; use -s 1 or more")
    return workers, servers


def _offered(options: Options, environ: Mapping[str, str], machine: Machine) -> int:
    return offered_cores(environ, options.numa_binding, machine.topology)


def _chosen(workers: int, cores: int) -> Choice:
    # Loaded where it is asked for: most jobs are started without.
    from byteps_py.plan.one_host import choose_servers

    return choose_servers(workers, cores)


def _why_so_many(workers: int, servers: int, cores: int) -> str:
    reason = _chosen(workers, cores).reason if servers else "one worker needs none"
    return f"-s auto: {plural(servers, 'server')} for {plural(workers, 'worker')}: {reason}"


def _openmp(options: Options, environ: Mapping[str, str], binding: Binding) -> tuple[list[OpenMP], list[OpenMP]]:
    """For each server and each worker; a server's cores are split among its engine threads."""
    engines = affinity.engine_threads(environ)
    servers = [
        affinity.choose(
            Role.SERVER,
            environ,
            wait_policy=options.omp_wait_policy,
            num_threads=options.omp_num_threads,
            default=OpenMP("passive", str(max(1, cores // engines))),
        )
        for cores in binding.server_cores
    ]
    workers = [
        affinity.choose(
            Role.WORKER,
            environ,
            wait_policy=options.worker_omp_wait_policy,
            num_threads=options.worker_omp_num_threads,
            default=OpenMP(num_threads=str(cores)),
        )
        for cores in binding.worker_cores
    ]
    return servers, workers


def _inherit(environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment without what describes another job, and what was left out, as ``NAME=value``."""
    foreign = {name for name in environ if name.startswith("DMLC_") or name in _OWN_VARIABLES}
    kept = {name: value for name, value in environ.items() if name not in foreign}
    return kept, [f"{name}={environ[name]}" for name in sorted(foreign) if environ[name].strip()]


def _meant(environ: Mapping[str, str]) -> str:
    """A hint, where a variable has what is a value of an option."""
    is_auto = environ.get("DMLC_NUM_SERVER", "").strip().lower() == AUTO
    return f" (auto is a value of the option: bpslaunch -s {AUTO})" if is_auto else ""


def _job_variables(options: Options, draw: Draw) -> dict[str, str]:
    return {
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(draw.port),
        "DMLC_NODE_HOST": HOST,
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_JOB_ID": draw.job_id,
        # The launcher sees whether its workers live, and may leave them all the time that they need.
        "BYTEPS_START_TIMEOUT": options.start_timeout or "0",
    }


def _quiet(environ: Mapping[str, str]) -> dict[str, str]:
    """For the scheduler and the servers: beside the output of a training script, only what is amiss is of interest."""
    chosen = any(environ.get(name, "").strip() for name in ("BYTEPS_LOG_LEVEL", "PS_VERBOSE"))
    return {} if chosen else {"BYTEPS_LOG_LEVEL": "warning"}


def _service(role: Role, index: int, common: Mapping[str, str], openmp: OpenMP, cores: Group | None) -> ProcessSpec:
    label = "scheduler" if role is Role.SCHEDULER else f"{role} {index}"
    environment = openmp.settle({**common, "DMLC_ROLE": str(role)})
    return ProcessSpec(role, label, module_command("byteps_py", str(role)), environment, cores=cores)


def _worker(
    options: Options,
    common: Mapping[str, str],
    index: int,
    binding: Binding,
    openmp: Sequence[OpenMP],
) -> ProcessSpec:
    size = len(binding.workers)
    environment = openmp[index].settle({**common, "DMLC_WORKER_ID": "0", **local_variables(index, size)})
    if options.compat:
        environment = with_startup_folder(environment)
    cores = binding.workers[index]
    return ProcessSpec(Role.WORKER, f"worker {index}", options.command, environment, read_stdin=size == 1, cores=cores)


def _check(specs: Sequence[ProcessSpec]) -> None:
    """Let each role's settings be looked at here, so that a bad value is told before anything is started."""
    problems: dict[str, None] = {}
    for spec in specs:
        findings, contradictions = inspect(settings_class(spec.role), spec.environment)
        # A worker alone has no scheduler, so nothing says where it is.
        problems |= dict.fromkeys(each.problem for each in findings if each.problem and not each.missing)
        problems |= dict.fromkeys(contradictions)
    if problems:
        raise SettingsError(list(problems))


def _summary(draw: Draw, servers: Sequence[OpenMP], workers: Sequence[OpenMP]) -> str:
    worker_openmp = _described("worker", workers)
    if not servers:
        return f"1 worker, no server, nothing to connect; {worker_openmp}"
    return (
        f"{plural(len(workers), 'worker')}, {plural(len(servers), 'server')}, scheduler on {HOST}:{draw.port}, "
        f"job {draw.job_id}; {_described('server', servers)}; {worker_openmp}"
    )


def _described(word: str, processes: Sequence[OpenMP]) -> str:
    settled = ", ".join(dict.fromkeys(each.describe() for each in processes))
    return f"{word if len(processes) == 1 else f'{word}s'}: {settled}"


def notes_without_server(options: Options) -> list[str]:
    """A line that says which options have no effect where no server is started, if there are any."""
    words = openmp_words(options, Role.SERVER)
    if not words:
        return []
    hint = " and ".join(word.replace("--", "--worker-") for word in words if word.startswith("--"))
    return [f"no server is started here, so this is not used: {' '.join(words)} (for workers: {hint})"]


def local_variables(index: int, size: int) -> dict[str, str]:
    """What tells a worker its place on its machine; scripts for torch.distributed look for the words of torchrun."""
    own = {"BYTEPS_LOCAL_RANK": str(index), "BYTEPS_LOCAL_SIZE": str(size)}
    return own | {"LOCAL_RANK": str(index), "LOCAL_WORLD_SIZE": str(size)}


def plural(count: int, word: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
