"""To which cores each process of a launch is bound: the option, else the lists, else what ``BYTEPS_NUMA_ON`` says.

Pure: from a :class:`~byteps_py.launcher.topology.Topology`, the environment and the numbers of processes to sets of
cores.  Memory needs no word of its own: the kernel takes it from the node of the core that first touches it.

The meaning of the policies is that of torchrun's option of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from byteps_py.binding_settings import BindingSettings, WorkerBindingSettings
from byteps_py.errors import SettingsError
from byteps_py.launcher.affinity import core_list, describe_cores
from byteps_py.launcher.topology import Group, Topology
from byteps_py.variables import examine

__all__ = ["NO_BINDING", "POLICIES", "Binding", "bind", "offered_cores", "remarks"]

NO_BINDING = "none"
POLICIES = (NO_BINDING, "node", "socket", "exclusive", "core-complex")
_GROUPS = {"node": "NUMA node", "socket": "socket", "core-complex": "core complex"}
_DEVICE_LISTS = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Binding:
    """The cores of each process of a launch. Immutable.

    Attributes:
        workers, servers: the cores that each is bound to, in the order of their numbers; None for one that is not.
        others: the same for the scheduler.
        worker_cores, server_cores: how many cores each may count on, at least 1; shared ones count in part.
        notes: lines that tell what is bound, and what was set and is not used.
    """

    workers: tuple[Group | None, ...]
    servers: tuple[Group | None, ...]
    others: Group | None
    worker_cores: tuple[int, ...]
    server_cores: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Wish(WorkerBindingSettings, BindingSettings):
    """The values of all variables."""


@dataclass(frozen=True)
class _Choice:
    """Cores for workers and, where they get any, for servers; why, and which variables had no say."""

    workers: Sequence[Group] = ()
    servers: Sequence[Group] = ()
    reason: str = ""
    unused: tuple[str, ...] = ()
    is_exact: bool = True
    """Whether a process may count on all that it is bound to, though servers that are not bound run there too."""
    notes: tuple[str, ...] = ()
    by: str | None = None
    """What the cores are told to come from, if not ``reason``; empty: they are what everybody has in any case."""


def bind(environ: Mapping[str, str], policy: str | None, topology: Topology, workers: int, servers: int = 0) -> Binding:
    """Decide to which cores the processes are bound.

    Args:
        environ: the environment. A bad value counts as not set; the one who reads the settings tells it.
        policy: one of :data:`POLICIES`; None to leave it to the environment.
        topology: all cores that the processes may run on.
        workers, servers: how many are started here.

    Raises:
        SettingsError: what is asked for contradicts itself, or needs cores that are not there.
    """
    wish, given = _read(environ)
    free = topology.cores
    if policy == NO_BINDING:
        return _settle(_Choice(unused=_left(given), reason="--numa-binding=none"), free, free, workers, servers)
    if _is_off(wish, policy):
        return _settle(_Choice(unused=_left(given), reason="BYTEPS_NUMA_ON=0"), free, free, workers, servers)
    offered = _offered(wish, given, topology)
    devices = _devices(environ, offered, workers)
    kept = " and ".join(_left(given, "cpu_blacklist", "multithreaded_cpu"))
    if policy is not None:
        sets = _by_policy(policy, offered, devices, workers, servers)
        unused = _left(given, "visible_cores", "default_quota", "root_quota")
        choice = _Choice(sets[:workers], sets[workers:], f"--numa-binding={policy}", unused)
        if sets and set(sets) == {offered.cores}:
            note = f"{choice.reason} has no effect here: {_why_needless(policy, offered)}"
            choice = replace(choice, notes=(note,), by="" if offered.cores == free else kept)
    elif wish.visible_cores is not None:
        lists = _listed(wish, given, workers, free)
        choice = _Choice(lists, (), "BYTEPS_VISIBLE_CPU_CORES", _left(given, "default_quota", "root_quota"))
        if workers < len(wish.visible_cores):
            count = f"has {len(wish.visible_cores)} lists, but workers on this machine: {workers}"
            choice = replace(choice, notes=(f"{given['visible_cores']} {count}; the others are not used",))
    elif wish.default_quota or wish.root_quota:
        reason = " and ".join(_left(given, "default_quota", "root_quota"))
        choice = _Choice(_by_quota(wish, given, offered, workers), (), reason)
    else:
        choice = _Choice(_by_nodes(offered, devices, workers), (), "BYTEPS_NUMA_ON", is_exact=False)
    if not choice.workers:
        choice = _Choice(reason=kept, unused=choice.unused)
    choice = replace(choice, notes=(*remarks(environ, policy, topology), *choice.notes))
    return _settle(choice, free, offered.cores, workers, servers, topology)


def offered_cores(environ: Mapping[str, str], policy: str | None, topology: Topology) -> int:
    """How many cores :func:`bind` has to give out, before it is known how many processes there are.

    Args:
        environ, policy, topology: as for :func:`bind`.

    Raises:
        SettingsError: none is left.
    """
    wish, given = _read(environ)
    if _is_off(wish, policy):
        return len(topology.cores)
    offered = _offered(wish, given, topology)
    return len(offered.physical if policy == "exclusive" else offered.cores)


def remarks(environ: Mapping[str, str], policy: str | None, topology: Topology) -> tuple[str, ...]:
    """What variables for every process ask for in vain here, as lines that :func:`bind`, with the same arguments, tells
    too."""
    wish, given = _read(environ)
    if _is_off(wish, policy):
        return ()
    found = []
    if absent := wish.cpu_blacklist - topology.cores:
        # No error, since it is kept free: one blacklist may serve machines of several sizes.
        found.append(
            f"warning: {given['cpu_blacklist']} names {describe_cores(absent)}, but this process may run on "
            f"{describe_cores(topology.cores)} only; kept free: {core_list(wish.cpu_blacklist - absent) or 'none'}"
        )
    if not wish.multithreaded_cpu and len(topology.physical) == len(topology.cores):
        found.append(f"{given['multithreaded_cpu']} has no effect here: each physical core is one core to this process")
    return tuple(found)


def _why_needless(policy: str, offered: Topology) -> str:
    """Why each process gets all cores with the policy, as without it."""
    words = describe_cores(offered.cores)
    if policy == "exclusive":
        return f"one process has {words} for itself in any case"
    if policy == "node" and not offered.is_told:
        return f"/sys tells of no NUMA nodes, so all that may be used, {words}, count as one"
    return f"one {_GROUPS[policy]} has all that may be used, {words}"


def _is_off(wish: _Wish, policy: str | None) -> bool:
    """Whether nothing is bound, and no core kept free."""
    return policy == NO_BINDING or (policy is None and not wish.numa_on and wish.visible_cores is None)


def _offered(wish: _Wish, given: Mapping[str, str], topology: Topology) -> Topology:
    """What the blacklist and the choice of hardware threads leave."""
    free = topology.cores
    offered = topology.limited(free - wish.cpu_blacklist)
    if not offered.cores:
        raise SettingsError(
            f"{given['cpu_blacklist']} leaves none of the {describe_cores(free)} that this process may run on: name "
            "fewer"
        )
    return offered if wish.multithreaded_cpu else offered.limited(offered.first_threads())


def _read(environ: Mapping[str, str]) -> tuple[_Wish, dict[str, str]]:
    """The variables, and those that ask for something, by field, as ``NAME='text'``."""
    findings = [
        each for each in examine(_Wish, environ) if not each.problem and each.value != getattr(_Wish, each.field)
    ]
    wish = _Wish(**{each.field: each.value for each in findings})
    return wish, {each.field: f"{each.origin}={each.text.strip()!r}" for each in findings}


def _left(given: Mapping[str, str], *fields: str) -> tuple[str, ...]:
    """Those of the variables that ask for something; where no field is named all but the switch."""
    return tuple(text for field, text in given.items() if field in fields or (not fields and field != "numa_on"))


def _settle(
    choice: _Choice, free: Group, offered: Group, workers: int, servers: int, topology: Topology | None = None
) -> Binding:
    """Add what the choice leaves open: the other processes, numbers of cores, and the words."""
    others = None if offered == free else offered
    bound = [*choice.workers, *choice.servers]
    claims = {core: sum(core in each for each in bound) for core in free}
    share = max(1, len(offered) // max(1, workers + servers))
    counted = [_counted(each, claims) if choice.is_exact else min(share, _counted(each, claims)) for each in bound]
    made = [*counted, *[share] * (workers + servers - len(counted))]
    if choice.workers:
        server_sets: Sequence[Group | None] = choice.servers or [others] * servers
        sets: Sequence[Group | None] = choice.workers
    else:
        sets, server_sets = [others] * workers, [others] * servers
    notes = list(choice.notes)
    if choice.unused:
        notes.append(f"{choice.reason} goes before these, which are not used: {' '.join(choice.unused)}")
    by = choice.reason if choice.by is None else choice.by
    if by and (words := _describe(sets, server_sets)):
        told = "" if topology is None or topology.is_told else ", since /sys does not tell them"
        count = 1 if topology is None else len(topology.nodes)
        nodes = f"{count} NUMA node{'' if count == 1 else 's'}{told}"
        notes.append(f"cores by {by} ({nodes}): {words}")
    return Binding(tuple(sets), tuple(server_sets), others, tuple(made[:workers]), tuple(made[workers:]), tuple(notes))


def _counted(group: Group, claims: Mapping[int, int]) -> int:
    """The cores of ``group``, each divided by the number of processes that are bound to it; at least 1."""
    whole = math.lcm(*(claims[core] for core in group))
    return max(1, sum(whole // claims[core] for core in group) // whole)


def _describe(workers: Sequence[Group | None], servers: Sequence[Group | None]) -> str:
    """``workers 0,2: 0-3; worker 1: 4-7; server 0: 0-3``, those with the same cores together."""
    words = []
    for word, sets in (("worker", workers), ("server", servers)):
        found: dict[Group, list[int]] = {}
        for index, group in enumerate(sets):
            if group is not None:
                found.setdefault(group, []).append(index)
        for group, indexes in found.items():
            words.append(f"{word}{'s' if len(indexes) > 1 else ''} {core_list(indexes)}: {core_list(group)}")
    return "; ".join(words)


def _listed(wish: _Wish, given: Mapping[str, str], workers: int, usable: Group) -> tuple[Group, ...]:
    """The lists of ``BYTEPS_VISIBLE_CPU_CORES``."""
    lists, text = wish.visible_cores or (), given["visible_cores"]
    problems = []
    if len(lists) < workers:
        problems.append(
            f"{text} has {len(lists)} of the {workers} lists that are needed: one for each worker of this "
            "machine, with colons between them"
        )
    named = frozenset().union(*lists[:workers])
    if missing := named - usable:
        problems.append(
            f"{text} names {describe_cores(missing)}, but this process may run on {describe_cores(usable)} only"
        )
    if taken := named & wish.cpu_blacklist:
        problems.append(
            f"{text} names {describe_cores(taken)}, which {given['cpu_blacklist']} keeps free: leave "
            f"{'it' if len(taken) == 1 else 'them'} out of one of the two"
        )
    if problems:
        raise SettingsError(problems)
    return lists[:workers]


def _devices(environ: Mapping[str, str], topology: Topology, workers: int) -> tuple[int, ...]:
    """For each worker the index of the node of its GPU; empty where that cannot be told without doubt.

    Lists may take GPUs away or change their order; then the numbers of CUDA are not those of the PCI addresses.
    """
    if any(environ.get(name, "all").strip().lower() != "all" for name in _DEVICE_LISTS):
        return ()
    if len(topology.devices) != workers or not set(topology.devices) <= set(topology.numbers) - {-1}:
        return ()
    return tuple(topology.numbers.index(number) for number in topology.devices)


def _by_policy(policy: str, topology: Topology, devices: tuple[int, ...], workers: int, servers: int) -> list[Group]:
    """The cores of each worker and then of each server: a server is one process more."""
    count, nodes = workers + servers, topology.nodes
    sizes = _sizes(topology, nodes)
    if policy == "socket":
        sockets = topology.sockets
        places = [next(index for index, each in enumerate(sockets) if each & nodes[home]) for home in devices]
        chosen = _spread(_sizes(topology, sockets), range(len(sockets)), count, places)
        return [sockets[index] for index in chosen]
    if policy == "exclusive":
        if count > sum(sizes):
            raise SettingsError(
                f"--numa-binding=exclusive needs a physical core for each of {count} processes (workers: {workers}, "
                f"servers: {servers}), but there are {sum(sizes)}: start fewer, or use --numa-binding=node"
            )
        if any(devices.count(home) > size for home, size in enumerate(sizes)):
            devices = ()
    homes = _spread(sizes, _in_turns(topology), count, devices)
    if policy == "node":
        return [nodes[home] for home in homes]
    made: dict[int, Group] = {}
    for home, node in enumerate(nodes):
        members = [index for index, each in enumerate(homes) if each == home]
        parts = _parts(topology, node, len(members)) if policy == "exclusive" else _complexes(topology, node, members)
        made |= zip(members, parts, strict=True)
    return [made[index] for index in range(count)]


def _complexes(topology: Topology, node: Group, members: Sequence[int]) -> list[Group]:
    """A core complex of ``node`` for each of the members; in turns, if there are fewer."""
    complexes = [each for each in topology.complexes if each <= node]
    chosen = _spread(_sizes(topology, complexes), range(len(complexes)), len(members))
    return [complexes[index] for index in chosen]


def _parts(topology: Topology, node: Group, count: int) -> Iterator[Group]:
    """``node`` cut in as many parts, which differ by one physical core at most."""
    cores = topology.physical_of(node)
    for index in range(count):
        part = cores[index * len(cores) // count : (index + 1) * len(cores) // count]
        yield frozenset().union(*part)


def _sizes(topology: Topology, groups: Iterable[Group]) -> list[int]:
    """Physical cores of each group."""
    return [len(topology.physical_of(each)) for each in groups]


def _in_turns(topology: Topology) -> list[int]:
    """The nodes in the order in which processes go there: those of the sockets take turns."""
    places = []
    seen: dict[int, int] = {}
    for index, socket in enumerate(_sockets_of(topology)):
        places.append((seen.get(socket, 0), socket, index))
        seen[socket] = seen.get(socket, 0) + 1
    return [index for _, _, index in sorted(places)]


def _sockets_of(topology: Topology) -> list[int]:
    """The index of the socket of each node."""
    return [next(number for number, each in enumerate(topology.sockets) if each & node) for node in topology.nodes]


def _spread(sizes: Sequence[int], order: Sequence[int], count: int, places: Sequence[int] = ()) -> list[int]:
    """Give each of ``count`` processes a group: the one that leaves most cores to each of its processes.

    Equal groups take turns, in ``order``; of others a larger one gets more, by D'Hondt's method, and never more than
    it has cores while another has one to spare.  The first processes have their ``places`` already.
    """
    chosen = list(places)
    load = [chosen.count(index) for index in range(len(sizes))]
    while len(chosen) < count:
        best = max(order, key=lambda index: sizes[index] / (load[index] + 1))
        load[best] += 1
        chosen.append(best)
    return chosen


def _by_nodes(topology: Topology, devices: tuple[int, ...], workers: int) -> Sequence[Group]:
    """What happens by itself: the nodes are divided among the workers, or the workers among the nodes, if that comes
    out even, so that no core is left idle and no worker is worse off than another; else nothing."""
    nodes = topology.nodes
    sizes = _sizes(topology, nodes)
    if workers < 2 or len(nodes) < 2 or -1 in topology.numbers or 4 * min(sizes) < 3 * max(sizes):
        return ()
    if workers % len(nodes) == 0:
        homes = _spread([1] * len(nodes), _in_turns(topology), workers, devices)
        if any(homes.count(index) != workers // len(nodes) for index in range(len(nodes))):
            return ()
        return [nodes[home] for home in homes]
    width, rest = divmod(len(nodes), workers)
    sockets = _sockets_of(topology)
    ordered = sorted(range(len(nodes)), key=lambda index: (sockets[index], index))  # numbers may alternate
    if rest or any(ordered.index(home) // width != index for index, home in enumerate(devices)):
        return ()
    together = [ordered[index * width : (index + 1) * width] for index in range(workers)]
    return [frozenset().union(*(nodes[each] for each in homes)) for homes in together]


def _by_quota(wish: _Wish, given: Mapping[str, str], topology: Topology, workers: int) -> Sequence[Group]:
    """As many physical cores for each worker as the quotas say; from one node, if one has so many left."""
    left = [list(topology.physical_of(node)) for node in topology.nodes]
    total = sum(map(len, left))
    if not workers:
        return ()
    small = wish.default_quota or max(1, (total - wish.root_quota) // max(1, workers - (wish.root_quota > 0)))
    root = wish.root_quota or total - small * (workers - 1)
    if workers == 1 and small > total:
        raise SettingsError(
            f"{given['default_quota']}: {small} physical cores for each worker but the last, which is the only one "
            f"here, are more than the {total} that there are: set a lower quota"
        )
    if root < 1 or small * (workers - 1) + root > total:
        words = " and ".join(_left(given, "default_quota", "root_quota"))
        raise SettingsError(
            f"{words}: {small} physical cores for {workers - 1} of {workers} workers, and {max(1, root)} for the last "
            f"one, are more than the {total} that there are: set lower quotas, or start fewer workers"
        )
    quotas = [small] * (workers - 1) + [root]
    made: dict[int, Group] = {}
    for index in sorted(range(workers), key=lambda index: (-quotas[index], index)):
        taken: list[Group] = []
        while len(taken) < quotas[index]:
            node = max(left, key=len)
            wanted = quotas[index] - len(taken)
            taken += node[:wanted]
            del node[:wanted]
        made[index] = frozenset().union(*taken)
    return [made[index] for index in range(workers)]
