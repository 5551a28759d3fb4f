"""Names of environment variables: those that BytePS and its kin read and that have no effect here, and misspelt ones.

A variable that is set and does nothing is worse than an error, since nobody learns of it.  So each known name is either
in the tables of :mod:`~byteps_py.settings`, or in :data:`WITHOUT_EFFECT` with the reason; what is in neither but looks
as if it was meant for us is told with the name that it resembles.  Values that ask for what happens anyway are no news.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from byteps_py.binding_settings import BindingSettings, WorkerBindingSettings
from byteps_py.role import Role
from byteps_py.settings import LaunchSettings, SchedulerSettings, ServerSettings, WorkerSettings, variables_of
from byteps_py.variables import examine

__all__ = ["KNOWN", "READ", "WITHOUT_EFFECT", "Group", "at_start", "foreign_launch", "report"]


@dataclass(frozen=True)
class Group:
    """Known names without effect, for one reason.

    Attributes:
        reason: why, and what to use instead.
        names: each with the values that ask for what happens anyway, in lower case.
        by_others: whether they are set by somebody else, or for somebody else, so that they ask for nothing.
    """

    reason: str
    names: Mapping[str, tuple[str, ...]]
    by_others: bool = False


_OFF = ("0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")


def _all(values: tuple[str, ...], *names: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names, values)


WITHOUT_EFFECT: tuple[Group, ...] = (
    Group(
        "signs of life are always sent; BYTEPS_LOST_TIMEOUT says how long a process may be silent",
        _all(_OFF, "PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT"),
    ),
    Group("a stalled round ends the job after BYTEPS_STALL_TIMEOUT", {"BYTEPS_ABORT_ON_TIMEOUT": (*_OFF, *_ON)}),
    Group("a stalled round is told once a minute", {"BYTEPS_MONITOR_INTERVAL": ("300",)}),
    Group(
        "what got lost is always asked for again, and counts once",
        {"PS_RESEND": (*_OFF, *_ON), "PS_RESEND_TIMEOUT": ("1000",)},
    ),
    Group("no message is dropped on purpose", {"PS_DROP_MSG": _OFF}),
    Group(
        "tensors are placed by size, so that each server has its share of the work",
        {
            "BYTEPS_KEY_HASH_FN": ("djb2", "mixed"),
            "BYTEPS_BUILT_IN_HASH_COEF": ("1",),
            "BYTEPS_MIXED_MODE_BOUND": ("101",),
        },
    ),
    Group(
        "ranks come from the scheduler: by BYTEPS_GLOBAL_RANK, else by DMLC_WORKER_ID, then by BYTEPS_LOCAL_RANK",
        _all((), "BYTEPS_ORDERED_HOSTS", "DMLC_RANK"),
    ),
    Group(
        "compression beyond 16-bit floats is not there yet",
        {"BYTEPS_MIN_COMPRESS_BYTES": ("65536",), "BYTEPS_THREADPOOL_SIZE": ("4",)},
    ),
    Group(
        "the speed record is always kept, one point in 10 s or more",
        {"BYTEPS_TELEMETRY_ON": _ON, "BYTEPS_TELEMETRY_INTERVAL": (), "BYTEPS_TELEMETRY_CAPACITY": ()},
    ),
    Group(
        "PS_VERBOSE=2 logs every message",
        {
            "PS_KEY_LOG": _OFF,
            "BYTEPS_SERVER_DEBUG": _OFF,
            "BYTEPS_SERVER_DEBUG_KEY": ("0",),
            "BYTEPS_DEBUG_SAMPLE_TENSOR": (),
        },
    ),
    Group("profile a process with a tool for Python", {"ENABLE_PROFILING": (), "PROFILE_PATH": ()}, by_others=True),
    Group("a round is summed as soon as its last contribution is there", {"BYTEPS_SERVER_ENABLE_SCHEDULE": _OFF}),
    Group("small sums are made at once, others by engine threads", {"BYTEPS_SERVER_ENGINE_BLOCKING": _OFF}),
    Group(
        "NCCL is not used: worker processes push by themselves, or sum in shared memory before (BYTEPS_LOCAL_REDUCE)",
        {
            "BYTEPS_NCCL_GROUP_SIZE": ("4",),
            "BYTEPS_NCCL_NUM_RINGS": ("1",),
            "BYTEPS_PCIE_SWITCH_SIZE": ("8",),
            "BYTEPS_REDUCE_ROOTS": (),
        },
    ),
    Group(
        "between hosts TCP is the only transport",
        {
            "DMLC_ENABLE_RDMA": (*_OFF, "zmq"),
            "DMLC_ENABLE_UCX": _OFF,
            "DMLC_PS_VAN_TYPE": ("zmq",),
            "DMLC_NUM_CPU_DEV": ("1",),
            "DMLC_NUM_GPU_DEV": ("0",),
            "BYTEPS_PRINT_RDMA_LOG": _OFF,
            "BYTEPS_RDMA_START_DEPTH": ("128",),
            "BYTEPS_RDMA_RX_DEPTH": ("2048",),
            "BYTEPS_RDMA_MAX_CONCURR_WR": (),
            "BYTEPS_ADDRESS_POOL_SIZE": (),
            "BYTEPS_UCX_ERRH_ENABLE": ("1",),
            "BYTEPS_UCX_RECONNECT_TMO": ("1000",),
            "BYTEPS_UCX_SHORT_THRESH": ("4096",),
            "BYTEPS_UCX_FORCE_REQ_ORDER": _OFF,
            "BYTEPS_UCX_QUEUE_SENDS": _OFF,
        },
    ),
    Group(
        "processes of one host share memory by themselves; BYTEPS_TRANSPORT chooses",
        {
            "DMLC_LOCAL": _OFF,
            "BYTEPS_ENABLE_IPC": _OFF,
            "BYTEPS_IPC_COPY_NUM_THREADS": ("4",),
            "BYTEPS_IPC_ENABLE_ASYNC_COPY": ("1",),
            "BYTEPS_SOCKET_PATH": ("/tmp",),
        },
    ),
    Group(
        "each process is one member of the job, with one port; start several servers for more",
        {"DMLC_NUM_PORTS": ("1",), "DMLC_GROUP_SIZE": ("1",)},
    ),
    Group(
        "BYTEPS_SCHEDULING_CREDIT bounds what is on the way",
        {"DMLC_PS_WATER_MARK": (), "BYTEPS_ZMQ_MAX_SOCKET": ("1024",)},
    ),
    Group("BYTEPS_IO_THREADS is the number of libzmq's threads", {"BYTEPS_ZMQ_NTHREADS": ("4",)}),
    Group(
        "threads sleep until something arrives: nothing polls",
        {"DMLC_LOCKLESS_QUEUE": _OFF, "DMLC_POLLING_IN_NANOSECOND": ("1000",)},
    ),
    Group("put gdb into the command: bpslaunch ... -- gdb --args python train.py", {"BYTEPS_ENABLE_GDB": _OFF}),
    Group("CUDA_VISIBLE_DEVICES says which devices a process may use", {"BYTEPS_VISIBLE_DEVICE": ()}),
    Group(
        "read when BytePS is compiled; nothing of it is needed here",
        _all(
            (),
            *(
                f"BYTEPS_{library}_{what}"
                for library in ("NCCL", "CUDA")
                for what in ("HOME", "INCLUDE", "LIB", "LINK")
            ),
            *(f"BYTEPS_{how}_{what}" for how in ("WITH", "WITHOUT") for what in ("TENSORFLOW", "PYTORCH", "MXNET")),
            "BYTEPS_WITH_UCX",
            "BYTEPS_UCX_HOME",
            "BYTEPS_UCX_PREFIX",
            "BYTEPS_UCX_TARBALL_PATH",
            "BYTEPS_USE_MPI",
            "BYTEPS_WITHOUT_PRESETUP",
        ),
        by_others=True,
    ),
    Group(
        "set by the tracker of dmlc for its own use",
        _all(
            (),
            "DMLC_TRACKER_URI",
            "DMLC_TRACKER_PORT",
            "DMLC_TASK_ID",
            "DMLC_SERVER_ID",
            "DMLC_JOB_CLUSTER",
            "DMLC_SUBMIT_CLUSTER",
            "DMLC_NUM_ATTEMPT",
            "DMLC_MAX_ATTEMPT",
            "DMLC_WORKER_CORES",
            "DMLC_WORKER_MEMORY_MB",
            "DMLC_SERVER_CORES",
            "DMLC_SERVER_MEMORY_MB",
            "DMLC_JOB_ARCHIVES",
            "DMLC_HDFS_OPTS",
        ),
        by_others=True,
    ),
)
"""Every name that BytePS, ps-lite, the tracker of dmlc and their launchers know and that nothing here reads."""

READ: frozenset[str] = frozenset(
    name
    for table in (LaunchSettings, SchedulerSettings, ServerSettings, WorkerSettings)
    for _, variable in variables_of(table)
    for name in variable.names
)
"""Every name that is read."""

_GROUP_OF = {name: group for group in WITHOUT_EFFECT for name in group.names}
KNOWN: frozenset[str] = READ | _GROUP_OF.keys()
"""Every name that is read or in :data:`WITHOUT_EFFECT`."""

_OURS = ("BYTEPS_", "DMLC_")
_LIKENESS = 0.8
"""From which ratio of difflib on two names are taken for spellings of one."""
_BY_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")
"""Kubernetes gives every process the address of every service, in variables that begin with the service's name."""


def report(environ: Mapping[str, str]) -> list[str]:
    """A line for each reason why variables that are set have no effect, and for each name that is misspelt. Pure."""
    is_set = sorted(name for name in environ if environ[name].strip())
    return [*_without_effect(environ, is_set), *_unknown(environ, is_set)]


_SIZES_OF_OTHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""How torchrun, MPI and srun tell each of their processes how many there are."""


def foreign_launch(environ: Mapping[str, str]) -> str | None:
    """What to say to a process that is alone in its job although another launcher has started several; pure."""
    for name in _SIZES_OF_OTHERS:
        text = environ.get(name, "").strip()
        if text.isascii() and text.isdigit() and int(text[:9]) > 1:
            return (
                f"{name}={text}, but DMLC_ROLE is not set: this process is a job of its own, and nothing is exchanged; "
                "start by `bpslaunch`, or set DMLC_ROLE=worker and the other DMLC_* variables"
            )
    return None


def at_start(role: Role, environ: Mapping[str, str]) -> list[str]:
    """What a process of ``role`` logs when it starts: nothing if bpslaunch started it, which has told all. Pure."""
    if environ.get("BYTEPS_LAUNCH_ID", "").strip():
        return []
    return [*report(environ), *(_needs_launcher(environ) if role is Role.WORKER else ())]


def _without_effect(environ: Mapping[str, str], is_set: Iterable[str]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for name in is_set:
        group = _GROUP_OF.get(name)
        value = environ[name].strip()
        if group is not None and not group.by_others and value.lower() not in group.names[name]:
            found.setdefault(group.reason, []).append(f"{name}={value}")
    for reason, words in found.items():
        yield f"{', '.join(words)} {'has' if len(words) == 1 else 'have'} no effect here: {reason}"


def _unknown(environ: Mapping[str, str], is_set: Iterable[str]) -> Iterator[str]:
    candidates = sorted(KNOWN)
    for name in is_set:
        if name in KNOWN or not _looks_like_ours(name) or _BY_KUBERNETES.search(name) or "://" in environ[name]:
            continue
        line = f"{name}: no variable of that name is known"
        nearest = difflib.get_close_matches(name.upper(), candidates, 1, _LIKENESS)
        if nearest and nearest[0] in READ:
            yield f"{line}; did you mean {nearest[0]}?"
        elif nearest:
            yield f"{line}; {nearest[0]} has no effect here either: {_GROUP_OF[nearest[0]].reason}"
        elif name.startswith(_OURS):
            yield line


def _looks_like_ours(name: str) -> bool:
    """Whether a name is worth a comparison: its first word is one of ours, or resembles one."""
    word, underscore, _ = name.upper().partition("_")
    resembles = word in ("BPS", "PS") or difflib.get_close_matches(word, ("BYTEPS", "DMLC"), 1, 0.7)
    return bool(underscore and resembles)


def _needs_launcher(environ: Mapping[str, str]) -> Iterator[str]:
    """What only the one who starts a worker can do: when its program runs it is too late."""
    table = dict(variables_of(WorkerSettings))
    for field, for_whom in (("omp_wait_policy", ""), ("omp_num_threads", " for torch and others")):
        role_name, general = table[field].names[:2]
        value = environ.get(role_name, "").strip()
        if value and value.lower() != environ.get(general, "").strip().lower():
            yield (
                f"{role_name}={value} comes too late{for_whom}: OpenMP libraries read {general} when they are loaded; "
                f"start by bpslaunch, or export {general}={value}"
            )
    for kind in (BindingSettings, WorkerBindingSettings):
        for finding in examine(kind, environ):
            # Without bpslaunch nobody is bound, whatever BYTEPS_NUMA_ON says.
            if finding.origin and finding.field != "numa_on" and finding.value != getattr(kind, finding.field):
                yield (
                    f"{finding.origin}={finding.text.strip()} has no effect here: only bpslaunch binds workers to cores"
                )
