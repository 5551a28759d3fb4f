"""Check of memory: how much there is, what limits it, and how it is spread over nodes."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

from byteps_py.doctor.findings import Finding, note, ok, warning
from byteps_py.doctor.situation import Situation
from byteps_py.transport.available import available_bytes
from byteps_py.variables import core_lists

__all__ = ["check_memory", "judge_memory", "judge_nodes", "parse_cores", "parse_total"]

_LITTLE = 512 << 20
_FEW_PERCENT = 5
_, _parse_lists = core_lists()


def check_memory(situation: Situation) -> Iterator[Finding]:
    """Free memory, limits of it, and its nodes."""
    total = parse_total(situation.read("proc/meminfo"))
    yield from judge_memory(available_bytes(situation.root), total)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        yield warning(
            f"the address space is limited to {limit / 1e9:.1f} GB (ulimit -v), and shared memory counts for each "
            "process that maps it",
            "unlimit it: `ulimit -v unlimited`",
        )
    folder = situation.root / "sys/devices/system/node"
    nodes = {}
    for path in sorted(folder.glob("node[0-9]*")):
        nodes[int(path.name[len("node") :])] = parse_cores(
            situation.read(f"sys/devices/system/node/{path.name}/cpulist")
        )
    yield from judge_nodes(nodes, situation.cores)


def judge_memory(available: int, total: int) -> Iterator[Finding]:
    """What is to be said of so many bytes. Pure.

    Args:
        available: to this process, limits of control groups included.
        total: of the machine; 0 if it does not tell.
    """
    whole = f" of {total / 1e9:.1f}" if total else ""
    text = f"{available / 1e9:.1f}{whole} GB of memory are available"
    facts = {"available_bytes": available, "total_bytes": total}
    if available < _LITTLE or (total and available * 100 < total * _FEW_PERCENT and available < 8 * _LITTLE):
        remedy = "end what takes it, or raise the limit of the control group: servers keep two sums of each tensor"
        yield warning(f"{text}, limits of control groups included", remedy, **facts)
    else:
        yield ok(text, **facts)


def judge_nodes(nodes: dict[int, frozenset[int]], usable: frozenset[int]) -> Iterator[Finding]:
    """What is to be said of memory nodes. Pure.

    Args:
        nodes: the cores of each; those without cores are not counted.
        usable: the cores that this process may run on.
    """
    spanned = {number: cores & usable for number, cores in nodes.items() if cores & usable}
    facts = {"nodes": {str(number): sorted(cores) for number, cores in spanned.items()}}
    if len(spanned) > 1:
        sizes = ", ".join(f"node {number}: {len(cores)}" for number, cores in spanned.items())
        yield note(
            f"the cores of this process belong to {len(spanned)} memory nodes (NUMA; cores of {sizes}): to memory of "
            "another node the way is longer",
            "bind each process to the cores of one node (bpslaunch --numa-binding node)",
            **facts,
        )
    elif nodes:
        yield ok("all cores of this process belong to one memory node (NUMA): all memory is equally near", **facts)


def parse_total(text: str) -> int:
    """Bytes of memory by ``/proc/meminfo``; 0 if it does not tell. Pure."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "MemTotal:" and words[1].isdigit():
            return int(words[1]) * 1024
    return 0


def parse_cores(text: str) -> frozenset[int]:
    """The numbers in a list of the kernel: ``0-3,8``; none if it is something else. Pure."""
    with contextlib.suppress(ValueError):
        return frozenset().union(*_parse_lists(text.strip()))
    return frozenset()
