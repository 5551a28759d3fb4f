"""What this machine offers to a job, and the OpenMP environment that follows from it.

OpenMP libraries read their environment when they are loaded, so it is set before a process executes its program.
For each value a flag of the command line goes before a variable that the user exported, and that before the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OpenMP", "choose", "cores", "count_devices", "device_files", "engine_threads"]

_POLICY = "OMP_WAIT_POLICY"
_THREADS = "OMP_NUM_THREADS"
_NO_DEVICE = ("", "none", "void", "-1")


@dataclass(frozen=True)
class OpenMP:
    """The OpenMP settings of a process; None leaves a value to its OpenMP library."""

    wait_policy: str | None = None
    num_threads: str | None = None

    def environment(self) -> dict[str, str]:
        """The variables to set."""
        values = {_POLICY: self.wait_policy, _THREADS: self.num_threads}
        return {name: value for name, value in values.items() if value is not None}

    def describe(self) -> str:
        """For messages: ``OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2``."""
        words = " ".join(f"{name}={value}" for name, value in self.environment().items())
        inert = self.num_threads == "1" and self.wait_policy is not None
        return f"{words} (one thread never waits)" if inert else words


def choose(
    environ: Mapping[str, str],
    *,
    wait_policy: str | None,
    num_threads: int | None,
    default: OpenMP,
) -> OpenMP:
    """Settle the OpenMP settings of one role.

    Args:
        environ: what the user exported; an empty value counts as not set.
        wait_policy, num_threads: the flags, None where they were not given.
        default: used for what is neither given nor exported.
    """
    threads = None if num_threads is None else str(num_threads)
    return OpenMP(
        wait_policy or environ.get(_POLICY, "").strip() or default.wait_policy,
        threads or environ.get(_THREADS, "").strip() or default.num_threads,
    )


def cores() -> int:
    """Cores that this process, and so its children, may run on."""
    return len(os.sched_getaffinity(0))


def engine_threads(environ: Mapping[str, str]) -> int:
    """Engine threads of a server, each of which has an OpenMP team; 1 for a value that the server will refuse."""
    text = environ.get("BYTEPS_SERVER_ENGINE_THREAD", "").strip()
    return max(1, int(text)) if text.isdecimal() else 1


def device_files() -> int:
    """Number of GPUs that have a device file here."""
    return sum(path.name[len("nvidia") :].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def count_devices(environ: Mapping[str, str], present: int) -> int:
    """Number of visible GPUs.

    ``NVIDIA_VISIBLE_DEVICES`` is what a container was given, ``CUDA_VISIBLE_DEVICES`` what a program may use of that:
    where both are lists, the shorter one counts.

    Args:
        environ: the environment.
        present: number of GPUs with a device file; counts where no list is set, or the list is ``all``.
    """
    lists = (_listed(environ.get(name)) for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
    return min((each for each in lists if each is not None), default=present)


def _listed(text: str | None) -> int | None:
    """Length of a list of devices; None where there is none: not set, or ``all``."""
    if text is None or text.strip() == "all":
        return None
    return _usable(word.strip() for word in text.split(","))


def _usable(words: Iterable[str]) -> int:
    """CUDA ignores everything after the first entry that is no device."""
    count = 0
    for word in words:
        if word in _NO_DEVICE:
            break
        count += 1
    return count
