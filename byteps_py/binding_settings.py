"""To which cores processes are bound (:mod:`byteps_py.launcher.binding` decides it; nobody else binds)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from byteps_py.variables import boolean, core_lists, integer, variable

__all__ = ["BindingSettings", "ServerShareSettings", "WorkerBindingSettings"]

_MOST_CORES = 65535


def _blacklist() -> tuple[str, Callable[[str], frozenset[int]]]:
    _, parse_lists = core_lists()

    def parse(text: str) -> frozenset[int]:
        if text.strip() == "-1":
            return frozenset()
        (cores,) = parse_lists(text)
        return cores

    return "a list of cores, such as 0,16-17, or -1 for none", parse


@dataclass(frozen=True, kw_only=True)
class BindingSettings:
    """For every process that bpslaunch starts."""

    numa_on: bool = variable(
        "BYTEPS_NUMA_ON",
        boolean(),
        "bpslaunch binds workers to NUMA nodes where they come out even, and heeds the other variables of binding",
        True,
        "1",
    )
    cpu_blacklist: frozenset[int] = variable(
        "BYTEPS_CPU_BLACKLIST", _blacklist(), "cores that bpslaunch keeps free of the job", frozenset(), "-1"
    )
    multithreaded_cpu: bool = variable(
        "BYTEPS_MULTITHREADED_CPU",
        boolean(),
        "use all hardware threads of a physical core; 0: bpslaunch binds to the first of each",
        True,
        "1",
    )


@dataclass(frozen=True, kw_only=True)
class WorkerBindingSettings:
    """For workers alone."""

    visible_cores: tuple[frozenset[int], ...] | None = variable(
        "BYTEPS_VISIBLE_CPU_CORES",
        core_lists(),
        "bpslaunch binds each worker of this machine to the cores of its list",
        None,
    )
    default_quota: int = variable(
        "BYTEPS_NUMA_DEFAULT_QUOTA",
        integer(0, _MOST_CORES),
        "physical cores that bpslaunch binds each worker to, but for the last of a machine (0: equal shares)",
        0,
    )
    root_quota: int = variable(
        "BYTEPS_NUMA_ROOT_QUOTA",
        integer(0, _MOST_CORES),
        "physical cores for the last worker of a machine (0: what the others leave); both 0: no quotas",
        0,
    )


@dataclass(frozen=True, kw_only=True)
class ServerShareSettings:
    """For servers alone."""

    cores: int | None = variable(
        "BYTEPS_SERVER_CORES",
        integer(1, _MOST_CORES),
        "cores that this server may count on; set by bpslaunch where it binds servers",
        None,
        "cores / servers of the host",
    )
