"""With ``DMLC_ROLE``: one role, on this machine, of a job that spans machines, in the manner of BytePS."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence

from byteps_py.errors import SettingsError
from byteps_py.launcher import affinity
from byteps_py.launcher.affinity import OpenMP
from byteps_py.launcher.arguments import AUTO, Options, openmp_words
from byteps_py.launcher.binding import NO_BINDING, Binding, bind, remarks
from byteps_py.launcher.launch import launch
from byteps_py.launcher.local import local_variables, notes_without_server, plural, run_job
from byteps_py.launcher.processes import ProcessSpec, module_command
from byteps_py.launcher.topology import read_topology
from byteps_py.role import Role
from byteps_py.settings import WorkerSettings, is_distributed, read, settings_class, why_needless
from byteps_py.startup_folder import with_startup_folder
from byteps_py.trace_settings import prepare_trace

__all__ = ["plan_workers", "run_role"]


def run_role(role: Role, options: Options, environ: Mapping[str, str]) -> int:
    """Run ``role`` here; returns its exit status. For a scheduler or server without logs it does not return.

    Raises:
        SettingsError: variables are missing or bad, or the options do not fit. Nothing has been started.
        CommandError: the command cannot be run. Nothing has been started.
        OSError: the program of the role cannot be executed, or the launcher cannot start its guard.
    """
    if options.num_servers == AUTO:
        raise SettingsError(
            f"-s auto chooses for a whole job on this machine, but DMLC_ROLE={role} asks for one role of a larger one, "
            "in which all must know the same number: `bps plan` finds it, and DMLC_NUM_SERVER tells it to each"
        )
    if options.num_servers is not None:
        raise SettingsError(
            f"-s starts servers for a whole job on this machine, but DMLC_ROLE={role} asks for one role of a larger "
            "one: the number of its servers is DMLC_NUM_SERVER; unset DMLC_ROLE for a job on this machine alone"
        )
    if options.start_timeout is not None:
        environ = {**environ, "BYTEPS_START_TIMEOUT": options.start_timeout}
    if role is Role.WORKER:
        return _run_workers(options, environ)
    if role is Role.SERVER:
        openmp = affinity.choose(
            role,
            environ,
            wait_policy=options.omp_wait_policy,
            num_threads=options.omp_num_threads,
            default=OpenMP("passive"),  # how many servers share this host is known when the job is complete
        )
        environ = openmp.settle(environ)
    settings = read(settings_class(role), environ)
    if (reason := why_needless(role, settings)) is not None:
        print(f"bpslaunch: {reason}", file=sys.stderr)
        return 0
    if (unused := _unused(options)) is not None:
        # One command line may serve all machines, as with BytePS.
        print(f"bpslaunch: a {role} {unused}", file=sys.stderr)
    for line in notes_without_server(options) if role is Role.SCHEDULER else ():
        print(f"bpslaunch: {line}", file=sys.stderr)
    return _run_service(role, options, environ)


def _unused(options: Options) -> str | None:
    """What only workers have a use for, and why."""
    count = () if options.num_workers is None else ("-n", str(options.num_workers))
    places = () if options.numa_binding in (None, NO_BINDING) else ("--numa-binding", options.numa_binding)
    names = ("--compat",) if options.compat else ()
    about_workers = (*count, *openmp_words(options, Role.WORKER), *places, *names)
    if not about_workers and not options.command:
        return None
    does = "starts no workers" if about_workers else "runs no command"
    return f"{does}, so this is not used: {shlex.join((*about_workers, *options.command))}"


def _run_service(role: Role, options: Options, environ: Mapping[str, str]) -> int:
    """Turn this process into the role's, so that signals and the exit status are its own.

    With logs there has to be somebody who writes them: then it runs under a supervisor, and its lines carry no label
    all the same.
    """
    label = str(role) if role is Role.SCHEDULER else f"{role} {_place()}"
    environment = {**environ, "PYTHONUNBUFFERED": "1"}
    # A policy shares a machine out among all that are started together; of one process it knows no neighbours.
    policy = NO_BINDING if options.numa_binding == NO_BINDING else None
    topology = read_topology(affinity.usable_cores())
    cores = bind(environ, policy, topology, 0).others
    for line in remarks(environ, policy, topology):
        print(f"bpslaunch: {line}", file=sys.stderr)
    spec = ProcessSpec(role, label, module_command("byteps_py", str(role)), environment, read_stdin=True, cores=cores)
    if options.log_dir is None and not options.dry_run:
        sys.stderr.flush()
        if cores is not None:
            os.sched_setaffinity(0, cores)
        os.execve(spec.argv[0], spec.argv, spec.environment)
    return launch([spec], (), dataclasses.replace(options, prefix=False), report_failures=False)


def _notes_inside_a_launch(environ: Mapping[str, str]) -> list[str]:
    """A line if this launcher is itself a worker that a launcher has started."""
    rank = environ.get("BYTEPS_LOCAL_RANK", "").strip()
    if not rank or not environ.get("BYTEPS_LAUNCH_ID", "").strip():
        return []
    return [
        f"warning: this bpslaunch was started by another one, as its worker {rank}, and starts workers in its place, "
        "which the job does not expect: give the outer one the command itself"
    ]


def _run_workers(options: Options, environ: Mapping[str, str]) -> int:
    size = str(options.num_workers or "") or environ.get("BYTEPS_LOCAL_SIZE", "").strip()
    size = size or str(affinity.listed_devices(environ, affinity.device_files()) or 1)
    threads = options.worker_omp_num_threads
    flags = OpenMP(options.worker_omp_wait_policy, None if threads is None else str(threads))
    # The launcher decides the local ranks, so one that happens to be set is no problem; nor is what a flag goes before.
    overruled = {**flags.settle(environ), "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": size}
    settings = read(WorkerSettings, overruled)
    if settings.num_worker == 1 and settings.local_size > 1 and not settings.force_distributed:
        job = dataclasses.replace(options, num_workers=settings.local_size, num_servers=settings.num_server)
        used = {"BYTEPS_LOCAL_SIZE"} | ({"BYTEPS_START_TIMEOUT"} if options.start_timeout is not None else set())
        own = {name: value for name, value in environ.items() if not name.startswith("DMLC_") and name not in used}
        note = f"DMLC_NUM_WORKER=1 and {settings.local_size} workers on this machine: the whole job runs here"
        return run_job(job, own, [*_notes_inside_a_launch(environ), note])
    distributed = is_distributed(settings)
    if distributed and not options.dry_run:
        prepare_trace(settings)
    place = _place() if options.log_dir is not None else None
    topology = read_topology(affinity.usable_cores())
    binding = bind(environ, options.numa_binding, topology, settings.local_size)
    specs = plan_workers(options, environ, settings, binding, secrets.token_hex(8), place)
    return launch(
        specs,
        [
            *_notes_inside_a_launch(environ),
            *notes_without_server(options),
            _summary(settings, specs),
            *binding.notes,
        ],
        options,
        report_failures=distributed,
        herald_environment=specs[0].environment if distributed else None,
    )


def _place() -> str:
    """Tells this launch from others whose logs may lie in the same folder, and is nothing like a rank."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def plan_workers(
    options: Options,
    environ: Mapping[str, str],
    settings: WorkerSettings,
    binding: Binding,
    launch_id: str,
    place: str | None = None,
) -> tuple[ProcessSpec, ...]:
    """The workers of this machine, in the order of their local ranks. Pure.

    Args:
        settings: as read from ``environ``, with the ``local_size`` that is wanted.
        binding: the cores of as many workers.
        launch_id: becomes ``BYTEPS_LAUNCH_ID``.
        place: names the machine in labels where it has no number; None if nobody could mix machines up.
    """
    size = settings.local_size
    common = {**environ, "BYTEPS_LAUNCH_ID": launch_id, "PYTHONUNBUFFERED": "1"}
    specs = []
    for index, (bound, cores) in enumerate(zip(binding.workers, binding.worker_cores, strict=True)):
        openmp = affinity.choose(
            Role.WORKER,
            environ,
            wait_policy=options.worker_omp_wait_policy,
            num_threads=options.worker_omp_num_threads,
            default=OpenMP(num_threads=str(cores)),
        )
        environment = openmp.settle({**common, **local_variables(index, size)})
        if options.compat:
            environment = with_startup_folder(environment)
        label = _label(settings, index, place)
        specs.append(ProcessSpec(Role.WORKER, label, options.command, environment, read_stdin=size == 1, cores=bound))
    return tuple(specs)


def _label(settings: WorkerSettings, index: int, place: str | None) -> str:
    """``worker MACHINE.LOCAL``, since machines may run different numbers of workers and only the scheduler ranks them;
    ``worker MACHINE`` where there is one; the local rank where the machine has no number."""
    if settings.worker_id is None:
        return f"worker {'' if place is None else f'{place} '}local {index}"
    return f"worker {settings.worker_id}" if settings.local_size == 1 else f"worker {settings.worker_id}.{index}"


def _summary(settings: WorkerSettings, specs: Sequence[ProcessSpec]) -> str:
    place = f"scheduler at {settings.root_uri}:{settings.root_port}"
    if not is_distributed(settings):
        place = "no server, nothing to connect"
    openmp = ", ".join(dict.fromkeys(OpenMP.of(each.environment).describe() for each in specs))
    machine = "" if settings.worker_id is None else f" of machine {settings.worker_id}"
    return f"{plural(settings.local_size, 'worker')}{machine}, {place}; {openmp}"
