"""Machines as ``/sys`` shows them, in a few words, and as the tree of files that the launcher reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from byteps_py.launcher.topology import Topology, read_topology
from byteps_py.variables import core_lists

__all__ = ["MACHINES", "Recorded", "cores", "numbers", "topology", "write_tree"]


def cores(text: str) -> frozenset[int]:
    """``0-3,8``."""
    (found,) = core_lists()[1](text)
    return found


def numbers(group: Iterable[int]) -> str:
    """The same backwards, in runs, as the kernel writes it."""
    runs: list[list[int]] = []
    for number in sorted(group):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@dataclass(frozen=True)
class Recorded:
    """What ``lscpu`` prints of a machine.

    Attributes:
        nodes: the list of cores of each NUMA node; "" for one that has memory alone.
        sockets: the same of each socket.
        caches: the same of each last-level cache.
        distance: between the numbers of two hardware threads of a physical core; 0 if each has one.
        usable: the cores that the process may run on, those of all nodes if empty.
        devices: the node of each GPU, -1 if the machine does not say.
    """

    nodes: tuple[str, ...]
    sockets: tuple[str, ...]
    caches: tuple[str, ...]
    distance: int = 0
    usable: str = ""
    devices: tuple[int, ...] = ()

    @property
    def mask(self) -> frozenset[int]:
        """The usable cores."""
        return cores(self.usable) if self.usable else frozenset().union(*(cores(each) for each in self.nodes if each))

    def siblings(self, core: int) -> frozenset[int]:
        """The hardware threads of a core's physical core."""
        if not self.distance:
            return frozenset({core})
        first = core % self.distance
        return frozenset({first, first + self.distance})


def _runs(count: int, width: int, distance: int = 0) -> tuple[str, ...]:
    """Lists of ``width`` cores in a row, with their second hardware threads."""
    starts = range(0, count * width, width)
    second = [f",{start + distance}-{start + distance + width - 1}" if distance else "" for start in starts]
    return tuple(f"{start}-{start + width - 1}{more}" for start, more in zip(starts, second, strict=True))


_TWO = _runs(2, 16, 32)

MACHINES = {
    "one socket": Recorded(("0-7",), ("0-7",), ("0-7",)),
    "one socket, hardware threads": Recorded(("0-15",), ("0-15",), ("0-15",), 8),
    # Two Xeons with 16 physical cores each: the kernel counts the first threads of all of them first.
    "two sockets": Recorded(_TWO, _TWO, _TWO, 32),
    "two sockets, eight GPUs": Recorded(_TWO, _TWO, _TWO, 32, devices=(1, 1, 1, 1, 0, 0, 0, 0)),
    "container": Recorded(_TWO, _TWO, _TWO, 32, usable="3-6,35-38"),
    "container across the sockets": Recorded(_TWO, _TWO, _TWO, 32, usable="14-16,46-48"),
    # An EPYC of 64 physical cores as four nodes (NPS4): two complexes of eight in each.
    "AMD": Recorded(_runs(4, 16, 64), ("0-127",), _runs(8, 8, 64), 64),
    # Two of 32 as two nodes each (NPS2).
    "AMD, two sockets": Recorded(_runs(4, 16, 64), _runs(2, 32, 64), _runs(8, 8, 64), 64),
    "node of memory alone": Recorded((*_TWO, ""), _TWO, _TWO, 32),
}


def topology(name: str, folder: Path, usable: Iterable[int] | None = None) -> Topology:
    """What the launcher reads of one of :data:`MACHINES`, whose files are written to ``folder``."""
    machine = MACHINES[name]
    write_tree(machine, folder)
    return read_topology(machine.mask if usable is None else frozenset(usable), folder)


def write_tree(machine: Recorded, root: Path) -> None:
    """Write the files of ``/sys`` that tell of ``machine`` into the folder ``root``."""
    for path, text in _files(machine):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")


def _files(machine: Recorded) -> Iterator[tuple[str, str]]:
    for number, node in enumerate(machine.nodes):
        yield f"devices/system/node/node{number}/cpulist", node
    for number, socket in enumerate(machine.sockets):
        for core in cores(socket):
            folder = f"devices/system/cpu/cpu{core}"
            shared = next(each for each in machine.caches if core in cores(each))
            threads = numbers(machine.siblings(core))
            yield f"{folder}/topology/physical_package_id", str(number)
            yield f"{folder}/topology/core_siblings_list", socket
            yield f"{folder}/topology/die_cpus_list", socket
            yield f"{folder}/topology/thread_siblings_list", threads
            for index, (level, group) in enumerate((("1", threads), ("1", threads), ("2", threads), ("3", shared))):
                yield f"{folder}/cache/index{index}/level", level
                yield f"{folder}/cache/index{index}/shared_cpu_list", group
    for number, node_number in enumerate(machine.devices):
        name = f"0000:{number + 16:02x}:00.0"
        yield f"bus/pci/drivers/nvidia/{name}/uevent", ""
        yield f"bus/pci/devices/{name}/numa_node", str(node_number)
