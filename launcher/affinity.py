"""What this machine offers to a job, and the OpenMP environment that follows from it.

OpenMP libraries read their environment when they are loaded, so it is set before a process executes its program.
For each value a flag of the command line goes before the variable of the role, that before the one that OpenMP itself
reads, that before BytePS's own, and the default comes last.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from byteps_py.role import Role
from byteps_py.settings import ServerSettings, WorkerSettings, settings_class, variables_of
from byteps_py.variables import Variable

__all__ = [
    "OpenMP",
    "choose",
    "core_list",
    "count_devices",
    "describe_cores",
    "device_files",
    "engine_threads",
    "listed_devices",
    "usable_cores",
]

_POLICY = "OMP_WAIT_POLICY"
_THREADS = "OMP_NUM_THREADS"
_NO_DEVICE = ("", "none", "void", "-1")


@dataclass(frozen=True)
class OpenMP:
    """The OpenMP settings of a process; None leaves a value to the variables that are there, or to the library."""

    wait_policy: str | None = None
    num_threads: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> OpenMP:
        """What an OpenMP library finds in ``environ``."""
        return cls(environ.get(_POLICY), environ.get(_THREADS))

    def environment(self) -> dict[str, str]:
        """The variables to set."""
        values = {_POLICY: self.wait_policy, _THREADS: self.num_threads}
        return {name: value for name, value in values.items() if value is not None}

    def settle(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with these settings, and without what would go before them in the process."""
        chosen = self.environment()
        overruled = {name for names in _NAMES if chosen.keys() & names for name in names}
        return {name: value for name, value in environ.items() if name not in overruled} | chosen

    def describe(self) -> str:
        """For messages: ``OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2``."""
        words = " ".join(f"{name}={value}" for name, value in self.environment().items())
        inert = self.num_threads == "1" and self.wait_policy is not None
        return f"{words} (one thread never waits)" if inert else words


_SETTINGS = ("omp_wait_policy", "omp_num_threads")
_NAMES = tuple(
    {name for kind in (ServerSettings, WorkerSettings) for name in dict(variables_of(kind))[field].names}
    for field in _SETTINGS
)
"""All names of the wait policy, and all of the number of threads."""


def choose(
    role: Role,
    environ: Mapping[str, str],
    *,
    wait_policy: str | None,
    num_threads: int | None,
    default: OpenMP,
) -> OpenMP:
    """Settle the OpenMP settings of a server or a worker.

    Args:
        role: whose.
        environ: what the user exported. A bad value is left where it is, for the one who reads the settings to tell.
        wait_policy, num_threads: the flags, None where they were not given.
        default: used for what is neither given nor exported.
    """
    table = dict(variables_of(settings_class(role)))
    policy, threads = (_exported(table[field], environ) for field in _SETTINGS)
    return OpenMP(
        wait_policy or _settled(policy, default.wait_policy),
        str(num_threads) if num_threads is not None else _settled(threads, default.num_threads),
    )


def _exported(variable: Variable, environ: Mapping[str, str]) -> tuple[bool, str] | None:
    """Whether the exported value is good, and its text; None where there is none."""
    if (found := variable.find(environ)) is None:
        return None
    text = found[1].strip()
    try:
        variable.parse(text)
    except ValueError:
        return False, text
    return True, text.lower()


def _settled(exported: tuple[bool, str] | None, default: str | None) -> str | None:
    if exported is None:
        return default
    good, text = exported
    return text if good else None


def usable_cores() -> frozenset[int]:
    """Numbers of the cores that this process, and so its children, may run on."""
    return frozenset(os.sched_getaffinity(0))


def describe_cores(numbers: Iterable[int]) -> str:
    """``core 3``, ``cores 0-3,8``."""
    words = core_list(numbers)
    return f"core {words}" if words.isdigit() else f"cores {words}"


def core_list(numbers: Iterable[int]) -> str:
    """``0-3,8``, as ``BYTEPS_VISIBLE_CPU_CORES`` and ``taskset`` take it."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def engine_threads(environ: Mapping[str, str]) -> int:
    """Engine threads of a server, each of which has an OpenMP team; 1 for a value that the server will refuse."""
    exported = _exported(dict(variables_of(ServerSettings))["engine_threads"], environ)
    return int(_settled(exported, None) or 1)


def device_files() -> int:
    """Number of GPUs that have a device file here."""
    return sum(path.name[len("nvidia") :].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def listed_devices(environ: Mapping[str, str], present: int) -> int | None:
    """Number of visible GPUs by the variables that list them; None where neither is set.

    ``NVIDIA_VISIBLE_DEVICES`` is what a container was given, ``CUDA_VISIBLE_DEVICES`` what a program may use of that:
    where both are lists, the shorter one counts.

    Args:
        environ: the environment. An empty list is a list: there is no device in it.
        present: number of GPUs with a device file; 0 where it is not known.
    """
    given, used = environ.get("NVIDIA_VISIBLE_DEVICES"), environ.get("CUDA_VISIBLE_DEVICES")
    if given is None and used is None:
        return None
    counts = []
    if given is None or given.strip().lower() == "all":
        counts += [present] if used is None or present else []
    else:
        counts.append(_length(given, _is_given))
    if used is not None:
        counts.append(_length(used, lambda word: _is_used(word, present)))
    return min(counts)


def count_devices(environ: Mapping[str, str], present: int) -> int:
    """The same, and ``present`` where no variable is set."""
    listed = listed_devices(environ, present)
    return present if listed is None else listed


def _length(text: str, is_device: Callable[[str], bool]) -> int:
    """How many devices a list has up to the first word that is none: CUDA ignores everything after it."""
    return sum(1 for _ in itertools.takewhile(is_device, (word.strip() for word in text.split(","))))


def _is_given(word: str) -> bool:
    return word.lower() not in _NO_DEVICE


def _is_used(word: str, present: int) -> bool:
    """Whether CUDA takes the word for a device: a number that there is, or the id of a GPU or of a part of one."""
    if word.isdecimal():
        return not present or int(word) < present
    return word.startswith(("GPU-", "MIG-"))
