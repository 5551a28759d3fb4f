"""Which of the cores of this machine belong together, as the kernel tells in ``/sys``.

What ``/sys`` calls a CPU is a *core* here, as in ``taskset`` and in the variables; the hardware threads of one piece of
silicon are a *physical core* together.  Nothing is taken for granted: containers hide files, ARM may have no socket
numbers, a node may have memory and no core.  What is not told is made up from what is, so that each grouping has every
usable core exactly once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from byteps_py.variables import core_lists

__all__ = ["Group", "Topology", "flat", "read_topology"]

Group = frozenset[int]
"""Numbers of cores."""

_, _parse_lists = core_lists()


@dataclass(frozen=True)
class Topology:
    """The usable cores, grouped in four ways; each way has every core exactly once, and no group is empty. Immutable.

    Attributes:
        physical: the hardware threads of each physical core.
        complexes: cores of one NUMA node that share a last-level cache.
        nodes: NUMA nodes.
        sockets: processor packages.
        numbers: the kernel's number of each of ``nodes``; -1 for cores that it puts in none.
        devices: the kernel's number of the node of each NVIDIA GPU, by PCI address; -1 where it is not known.
        is_told: whether ``/sys`` tells the nodes.
    """

    physical: tuple[Group, ...]
    complexes: tuple[Group, ...]
    nodes: tuple[Group, ...]
    sockets: tuple[Group, ...]
    numbers: tuple[int, ...]
    devices: tuple[int, ...] = ()
    is_told: bool = True

    @property
    def cores(self) -> Group:
        """All of them."""
        return frozenset().union(*self.nodes)

    def limited(self, cores: Group) -> Topology:
        """The same with ``cores`` alone; others that it names do not count."""
        kept = [(node & cores, number) for node, number in zip(self.nodes, self.numbers, strict=True) if node & cores]
        return Topology(
            _limited(self.physical, cores),
            _limited(self.complexes, cores),
            tuple(node for node, _ in kept),
            _limited(self.sockets, cores),
            tuple(number for _, number in kept),
            self.devices,
            self.is_told,
        )

    def first_threads(self) -> Group:
        """The lowest core of each physical one."""
        return frozenset(min(each) for each in self.physical)

    def physical_of(self, group: Group) -> tuple[Group, ...]:
        """The physical cores of ``group``, those of one complex next to each other."""
        parts = [each & group for each in self.physical if each & group]
        place = {core: index for index, each in enumerate(self.complexes) for core in each}
        return tuple(sorted(parts, key=lambda each: (place[min(each)], min(each))))


def flat(usable: Iterable[int]) -> Topology:
    """A machine of which nothing but the numbers of its cores is known: one node, one socket, no hardware threads."""
    cores = frozenset(usable)
    return Topology(tuple(frozenset({each}) for each in sorted(cores)), (cores,), (cores,), (cores,), (0,))


def read_topology(usable: Group, root: Path = Path("/sys")) -> Topology:
    """Read what ``root``, laid out as ``/sys``, tells of the ``usable`` cores, of which there is at least one.

    A file that is missing or makes no sense counts as not there; no error is raised.
    """
    nodes, numbers, is_told = _nodes(usable, root)

    def node_of(core: int) -> Group:
        return next(each for each in nodes if core in each)

    def topology(core: int, *names: str) -> Group:
        folder = root / f"devices/system/cpu/cpu{core}/topology"
        return next(filter(None, (_read_list(folder / name) for name in names)), frozenset())

    def siblings(core: int) -> Group:
        return topology(core, "thread_siblings_list", "core_cpus_list")

    def socket(core: int) -> Group:
        number = _read(root / f"devices/system/cpu/cpu{core}/topology/physical_package_id")
        known = topology(core, "core_siblings_list", "package_cpus_list") if number.isdigit() else frozenset()
        return known or node_of(core)

    def complex_of(core: int) -> Group:
        shared = _last_level(root / f"devices/system/cpu/cpu{core}/cache")
        if shared <= siblings(core) | {core}:
            # A cache that physical cores do not share says nothing: ARM has its last level where /sys does not look.
            shared = topology(core, "die_cpus_list") or socket(core)
        return shared & node_of(core)

    return Topology(
        _groups(usable, siblings),
        _groups(usable, complex_of),
        nodes,
        _groups(usable, socket),
        numbers,
        _devices(root),
        is_told,
    )


def _nodes(usable: Group, root: Path) -> tuple[tuple[Group, ...], tuple[int, ...], bool]:
    """The nodes with usable cores, their numbers, and whether they are told."""
    found: dict[int, Group] = {}
    left = usable
    for path in (root / "devices/system/node").glob("node[0-9]*"):
        if path.name[len("node") :].isdigit() and (cores := _read_list(path / "cpulist") & left):
            found[int(path.name[len("node") :])] = cores
            left -= cores
    if not found:
        return (usable,), (0,), False
    if left:
        found[-1] = left
    numbers = tuple(sorted(found))
    return tuple(found[each] for each in numbers), numbers, True


def _last_level(folder: Path) -> Group:
    """The cores that share the cache of the highest level; empty where it is not told."""
    caches = []
    for path in sorted(folder.glob("index[0-9]*")):
        level, cores = _read(path / "level"), _read_list(path / "shared_cpu_list")
        if level.isdigit() and cores:
            caches.append((int(level), cores))
    return max(caches, key=lambda each: each[0], default=(0, frozenset()))[1]


def _devices(root: Path) -> tuple[int, ...]:
    """The node of each device of NVIDIA's driver, by PCI address, as CUDA numbers GPUs of one model."""
    names = sorted(path.name for path in (root / "bus/pci/drivers/nvidia").glob("*:*:*.*"))
    words = [_read(root / "bus/pci/devices" / name / "numa_node") for name in names]
    return tuple(int(word) if word.isdigit() else -1 for word in words)


def _groups(usable: Group, group_of: Callable[[int], Group]) -> tuple[Group, ...]:
    """A partition of ``usable``, by its lowest cores; what ``group_of`` tells twice belongs to the first."""
    left, groups = set(usable), []
    while left:
        first = min(left)
        groups.append(frozenset(group_of(first) & left | {first}))
        left -= groups[-1]
    return tuple(groups)


def _limited(groups: Iterable[Group], cores: Group) -> tuple[Group, ...]:
    return tuple(each & cores for each in groups if each & cores)


def _read_list(path: Path) -> Group:
    with contextlib.suppress(ValueError):
        return frozenset().union(*_parse_lists(_read(path)))
    return frozenset()


def _read(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="ascii").strip()
    return ""
