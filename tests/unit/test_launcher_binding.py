"""Which process is bound to which cores, on recorded machines, by option and by variables."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byteps_py.errors import SettingsError
from byteps_py.launcher.affinity import usable_cores
from byteps_py.launcher.binding import POLICIES, Binding, bind, offered_cores, remarks
from byteps_py.launcher.topology import Topology, flat, read_topology
from tests.helpers.leftovers import RUN_MARK
from tests.helpers.topologies import MACHINES, cores, numbers, topology

SHOW = """
import os, psutil
import byteps_py as bps
from byteps_py.launcher.affinity import core_list

bps.init()
server = next(each for each in psutil.Process(os.getppid()).children() if each.cmdline()[-1] == "server")
for name, process in (("worker", psutil.Process()), ("server", server)):
    print(name, core_list(process.cpu_affinity()), process.environ()["OMP_NUM_THREADS"])
"""
BOUND = [policy for policy in POLICIES if policy != "none"]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Topology]:
    """Every recorded machine, read; and one that tells nothing."""
    read = {name: topology(name, tmp_path_factory.mktemp("tree")) for name in MACHINES}
    return {**read, "nothing told": dataclasses.replace(flat(range(4)), is_told=False)}


def shown(sets: Iterable[frozenset[int] | None]) -> list[str | None]:
    return [None if each is None else numbers(each) for each in sets]


def assert_sound(binding: Binding, machine: Topology, policy: str, processes: int) -> None:
    """What holds for every policy, machine and number of processes."""
    sets = [each for each in (*binding.workers, *binding.servers) if each is not None]
    assert len(sets) == processes
    for each in sets:
        assert each
        assert each <= machine.cores
        assert all(whole <= each or not whole & each for whole in machine.physical)
        home = machine.sockets if policy == "socket" else machine.nodes
        assert sum(bool(each & group) for group in home) == 1
    counted = (*binding.worker_cores, *binding.server_cores)
    assert min(counted) >= 1
    assert sum(counted) <= max(len(machine.cores), processes)
    if policy in ("node", "socket"):
        groups = machine.nodes if policy == "node" else machine.sockets
        assert set(sets) <= set(groups)
    if policy == "core-complex":
        assert set(sets) <= set(machine.complexes)
    if policy == "exclusive":
        assert max(Counter(core for each in sets for core in each).values()) == 1
        for node in machine.nodes:
            sizes = [len(machine.physical_of(each)) for each in sets if each <= node]
            assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("policy", BOUND)
@pytest.mark.parametrize("name", [*MACHINES, "nothing told"])
def test_every_policy_on_every_machine(name: str, policy: str, machines: dict[str, Topology]) -> None:
    machine = machines[name]
    for workers, servers in ((1, 0), (2, 0), (3, 0), (4, 0), (8, 0), (1, 1), (2, 1), (4, 4)):
        if policy == "exclusive" and workers + servers > len(machine.physical):
            with pytest.raises(SettingsError, match=rf"exclusive needs .* for each of {workers + servers} processes"):
                bind({}, policy, machine, workers, servers)
        else:
            assert_sound(bind({}, policy, machine, workers, servers), machine, policy, workers + servers)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(list(MACHINES)),
    st.sampled_from(BOUND),
    st.frozensets(st.integers(0, 130), max_size=24),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_any_mask(
    machines: dict[str, Topology], name: str, policy: str, mask: frozenset[int], workers: int, servers: int
) -> None:
    machine = machines[name].limited(mask) if mask & machines[name].cores else machines[name]
    if policy != "exclusive" or workers + servers <= len(machine.physical):
        assert_sound(bind({}, policy, machine, workers, servers), machine, policy, workers + servers)
    automatic = bind({}, None, machine, workers, servers).workers
    assert all(each is None for each in automatic) or frozenset().union(*(each or () for each in automatic)) == (
        machine.cores
    )


@pytest.mark.parametrize(
    ("name", "policy", "workers", "expected"),
    [
        ("two sockets", "node", 3, ["0-15,32-47", "16-31,48-63", "0-15,32-47"]),
        ("two sockets", "exclusive", 4, ["0-7,32-39", "16-23,48-55", "8-15,40-47", "24-31,56-63"]),
        ("two sockets", "exclusive", 3, ["0-7,32-39", "16-31,48-63", "8-15,40-47"]),
        ("container", "exclusive", 3, ["3,35", "4,36", "5-6,37-38"]),
        # Two physical cores of one node, one of the other.
        ("container across the sockets", "exclusive", 3, ["14,46", "15,47", "16,48"]),
        ("container across the sockets", "node", 3, ["14-15,46-47", "14-15,46-47", "16,48"]),
        ("AMD", "node", 2, ["0-15,64-79", "16-31,80-95"]),
        ("AMD", "socket", 2, ["0-127", "0-127"]),
        ("AMD", "core-complex", 5, ["0-7,64-71", "16-23,80-87", "32-39,96-103", "48-55,112-119", "8-15,72-79"]),
        # Nodes 0 and 1 are on one socket: two workers get a socket each.
        ("AMD, two sockets", "node", 2, ["0-15,64-79", "32-47,96-111"]),
        ("AMD, two sockets", "core-complex", 2, ["0-7,64-71", "32-39,96-103"]),
        ("AMD, two sockets", "socket", 3, ["0-31,64-95", "32-63,96-127", "0-31,64-95"]),
        ("two sockets, eight GPUs", "node", 8, ["16-31,48-63"] * 4 + ["0-15,32-47"] * 4),
        ("two sockets, eight GPUs", "socket", 8, ["16-31,48-63"] * 4 + ["0-15,32-47"] * 4),
        ("two sockets, eight GPUs", "node", 2, ["0-15,32-47", "16-31,48-63"]),
    ],
)
def test_policies(name: str, policy: str, workers: int, expected: list[str], machines: dict[str, Topology]) -> None:
    assert shown(bind({}, policy, machines[name], workers).workers) == expected


def test_servers_are_further_processes_and_cores_are_counted_once(machines: dict[str, Topology]) -> None:
    found = bind({}, "node", machines["two sockets"], 2, 1)
    assert shown(found.servers) == ["0-15,32-47"]
    assert (found.worker_cores, found.server_cores) == ((16, 32), (16,))
    assert found.others is None
    assert found.notes == (
        "cores by --numa-binding=node (2 NUMA nodes): worker 0: 0-15,32-47; worker 1: 16-31,48-63; "
        "server 0: 0-15,32-47",
    )
    unknown = bind({}, "exclusive", machines["nothing told"], 2, 0)
    assert unknown.notes == (
        "cores by --numa-binding=exclusive (1 NUMA node, since /sys does not tell them): worker 0: 0-1; worker 1: 2-3",
    )


@pytest.mark.parametrize(
    ("name", "policy", "processes", "reason"),
    [
        ("one socket", "node", (2, 1), "one NUMA node has all that may be used, cores 0-7"),
        (
            "nothing told",
            "node",
            (1, 0),
            "/sys tells of no NUMA nodes, so all that may be used, cores 0-3, count as one",
        ),
        ("AMD", "socket", (4, 4), "one socket has all that may be used, cores 0-127"),
        ("container", "socket", (2, 0), "one socket has all that may be used, cores 3-6,35-38"),
        ("one socket", "core-complex", (2, 0), "one core complex has all that may be used, cores 0-7"),
        ("one socket", "exclusive", (1, 0), "one process has cores 0-7 for itself in any case"),
    ],
)
def test_a_policy_that_changes_nothing_says_so_in_one_line(
    name: str, policy: str, processes: tuple[int, int], reason: str, machines: dict[str, Topology]
) -> None:
    found = bind({}, policy, machines[name], *processes)
    assert found.notes == (f"--numa-binding={policy} has no effect here: {reason}",)
    assert {*found.workers, *found.servers} == {machines[name].cores}


@pytest.mark.parametrize("policy", BOUND)
@pytest.mark.parametrize("name", [*MACHINES, "nothing told"])
def test_the_line_is_there_where_everybody_has_all_cores_and_nowhere_else(
    name: str, policy: str, machines: dict[str, Topology]
) -> None:
    machine = machines[name]
    for workers, servers in ((1, 0), (2, 0), (1, 1), (2, 1)):
        found = bind({}, policy, machine, workers, servers)
        is_told = any(note.startswith(f"--numa-binding={policy} has no effect here: ") for note in found.notes)
        assert is_told == ({*found.workers, *found.servers} == {machine.cores})


def test_a_policy_that_changes_nothing_beside_a_blacklist(machines: dict[str, Topology]) -> None:
    found = bind({"BYTEPS_CPU_BLACKLIST": "0"}, "node", machines["one socket"], 2)
    assert shown([*found.workers, found.others]) == ["1-7"] * 3
    assert found.notes == (
        "--numa-binding=node has no effect here: one NUMA node has all that may be used, cores 1-7",
        "cores by BYTEPS_CPU_BLACKLIST='0' (1 NUMA node): workers 0-1: 1-7",
    )


@pytest.mark.parametrize(
    ("name", "workers", "expected"),
    [
        ("one socket", 4, None),
        ("container", 2, None),
        ("nothing told", 2, None),
        ("two sockets", 1, None),
        ("two sockets", 3, None),
        ("two sockets", 2, ["0-15,32-47", "16-31,48-63"]),
        ("two sockets", 4, ["0-15,32-47", "16-31,48-63"] * 2),
        ("node of memory alone", 2, ["0-15,32-47", "16-31,48-63"]),
        ("AMD", 2, ["0-31,64-95", "32-63,96-127"]),
        ("AMD", 3, None),
        ("AMD, two sockets", 4, ["0-15,64-79", "32-47,96-111", "16-31,80-95", "48-63,112-127"]),
        ("AMD, two sockets", 2, ["0-31,64-95", "32-63,96-127"]),
        # One node has two physical cores, the other one: a worker there would be worse off.
        ("container across the sockets", 2, None),
        ("two sockets, eight GPUs", 8, ["16-31,48-63"] * 4 + ["0-15,32-47"] * 4),
    ],
)
@pytest.mark.parametrize("environ", [{}, {"BYTEPS_NUMA_ON": "1"}, {"BYTEPS_NUMA_DEFAULT_QUOTA": "0"}])
def test_what_happens_by_itself(
    environ: dict[str, str], name: str, workers: int, expected: list[str] | None, machines: dict[str, Topology]
) -> None:
    found = bind(environ, None, machines[name], workers, 1)
    assert shown(found.workers) == (expected or [None] * workers)
    assert shown(found.servers) == [None]
    assert len(found.notes) == (expected is not None)
    assert {*found.worker_cores, *found.server_cores} == {max(1, len(machines[name].cores) // (workers + 1))}


def test_the_line_that_says_what_happened_by_itself(machines: dict[str, Topology]) -> None:
    assert bind({}, None, machines["two sockets"], 4).notes == (
        "cores by BYTEPS_NUMA_ON (2 NUMA nodes): workers 0,2: 0-15,32-47; workers 1,3: 16-31,48-63",
    )


def test_nodes_of_one_socket_go_together_whatever_their_numbers(machines: dict[str, Topology]) -> None:
    """Sockets of the nodes 0 and 2, and 1 and 3."""
    first, second, third, fourth = machines["AMD, two sockets"].nodes
    machine = dataclasses.replace(machines["AMD, two sockets"], nodes=(first, third, second, fourth))
    by_socket = ["0-31,64-95", "32-63,96-127"]
    assert shown(bind({}, None, machine, 2).workers) == by_socket
    near, far = (dataclasses.replace(machine, devices=each) for each in ((2, 1), (1, 2)))
    assert shown(bind({}, None, near, 2).workers) == by_socket
    assert shown(bind({}, None, far, 2).workers) == [None, None]


def test_cores_that_are_in_no_node_leave_all_to_the_kernel(machines: dict[str, Topology]) -> None:
    machine = dataclasses.replace(machines["two sockets"], numbers=(-1, 0))
    found = bind({}, None, machine, 2, 1)
    assert shown([*found.workers, *found.servers, found.others]) == [None] * 4
    assert found.notes == ()
    assert shown(bind({}, "node", machine, 2).workers) == ["0-15,32-47", "16-31,48-63"]


@pytest.mark.parametrize(
    ("environ", "policy", "expected"),
    [
        ({}, None, 64),
        ({"BYTEPS_CPU_BLACKLIST": "0-3,99"}, None, 60),
        ({"BYTEPS_CPU_BLACKLIST": "0-3,99"}, "node", 60),
        ({"BYTEPS_CPU_BLACKLIST": "0-3,99"}, "none", 64),
        ({"BYTEPS_CPU_BLACKLIST": "0-3", "BYTEPS_NUMA_ON": "0"}, None, 64),
        ({"BYTEPS_CPU_BLACKLIST": "0-3", "BYTEPS_NUMA_ON": "0", "BYTEPS_VISIBLE_CPU_CORES": "4"}, None, 60),
        ({"BYTEPS_MULTITHREADED_CPU": "0"}, None, 32),
        ({}, "exclusive", 32),
    ],
)
def test_how_many_cores_are_offered(
    environ: dict[str, str], policy: str | None, expected: int, machines: dict[str, Topology]
) -> None:
    assert offered_cores(environ, policy, machines["two sockets"]) == expected


@pytest.mark.parametrize(
    "devices", [(0, 0, 0, 0, 0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 0, 1, 0, 1, 0, -1), (0, 1, 0, 1, 0, 1, 0, 5)]
)
def test_devices_that_do_not_come_out_even(devices: tuple[int, ...], machines: dict[str, Topology]) -> None:
    machine = dataclasses.replace(machines["two sockets"], devices=devices)
    by_turns = ["0-15,32-47", "16-31,48-63"] * 4
    whole = len(devices) == 8 and set(devices) == {0, 1}
    assert shown(bind({}, None, machine, 8).workers) == ([None] * 8 if whole else by_turns)
    expected = [by_turns[home] for home in devices] if whole else by_turns
    assert shown(bind({}, "node", machine, 8).workers) == expected


@pytest.mark.parametrize(
    ("name", "text", "is_used"),
    [
        ("CUDA_VISIBLE_DEVICES", "7,6,5,4,3,2,1,0", False),
        ("NVIDIA_VISIBLE_DEVICES", "", False),
        ("NVIDIA_VISIBLE_DEVICES", "all", True),
    ],
)
def test_lists_of_devices_may_change_their_order(
    name: str, text: str, is_used: bool, machines: dict[str, Topology]
) -> None:
    found = bind({name: text}, "node", machines["two sockets, eight GPUs"], 8)
    assert shown(found.workers[:2]) == (["16-31,48-63"] * 2 if is_used else ["0-15,32-47", "16-31,48-63"])


def test_more_devices_on_a_node_than_it_has_cores(machines: dict[str, Topology]) -> None:
    machine = machines["two sockets, eight GPUs"].limited(cores("0-11,16-17,32-43,48-49"))
    assert_sound(bind({}, "exclusive", machine, 8), machine, "exclusive", 8)


def test_two_workers_whose_devices_are_on_other_nodes_than_their_share(machines: dict[str, Topology]) -> None:
    machine = dataclasses.replace(machines["AMD"], devices=(3, 0))
    assert shown(bind({}, None, machine, 2).workers) == [None, None]
    machine = dataclasses.replace(machines["AMD"], devices=(1, 2))
    assert shown(bind({}, None, machine, 2).workers) == ["0-31,64-95", "32-63,96-127"]


@pytest.mark.parametrize(
    ("name", "default", "root", "workers", "expected"),
    [
        ("two sockets", 4, 0, 3, ["24-27,56-59", "28-31,60-63", "0-23,32-55"]),
        ("two sockets", 4, 2, 3, ["0-3,32-35", "16-19,48-51", "4-5,36-37"]),
        ("two sockets", 0, 20, 3, ["20-25,52-57", "26-31,58-63", "0-15,16-19,32-51"]),
        ("two sockets", 10, 10, 3, ["0-9,32-41", "16-25,48-57", "10-15,26-29,42-47,58-61"]),
        ("one socket", 2, 0, 1, ["0-7"]),
        ("one socket", 0, 3, 1, ["0-2"]),
        ("container", 1, 0, 4, ["3,35", "4,36", "5,37", "6,38"]),
        ("container", 1, 1, 2, ["3,35", "4,36"]),
    ],
)
def test_quotas(
    name: str, default: int, root: int, workers: int, expected: list[str], machines: dict[str, Topology]
) -> None:
    environ = {"BYTEPS_NUMA_DEFAULT_QUOTA": str(default), "BYTEPS_NUMA_ROOT_QUOTA": str(root)}
    found = bind(environ, None, machines[name], workers)
    physical = [len(machines[name].physical_of(each or frozenset())) for each in found.workers]
    assert max(Counter(core for each in found.workers for core in each or ()).values()) == 1
    if default:
        assert physical[:-1] == [default] * (workers - 1)
    if root:
        assert physical[-1] == root
    assert [cores(text) for text in expected] == list(found.workers)
    assert found.worker_cores == tuple(len(each or ()) for each in found.workers)
    names = [f"BYTEPS_NUMA_{word}_QUOTA='{quota}'" for word, quota in (("DEFAULT", default), ("ROOT", root)) if quota]
    assert found.notes[0].startswith(f"cores by {' and '.join(names)} (")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"BYTEPS_NUMA_DEFAULT_QUOTA": "9"},
            "BYTEPS_NUMA_DEFAULT_QUOTA='9': 9 physical cores for 1 of 2 workers, and 1 for the last one, are more "
            "than the 8 that there are: set lower quotas, or start fewer workers",
        ),
        (
            {"BYTEPS_NUMA_DEFAULT_QUOTA": "5", "BYTEPS_NUMA_ROOT_QUOTA": "4"},
            "BYTEPS_NUMA_DEFAULT_QUOTA='5' and BYTEPS_NUMA_ROOT_QUOTA='4': 5 physical cores for 1 of 2 workers, and "
            "4 for the last one, are more than the 8 that there are: set lower quotas, or start fewer workers",
        ),
        (
            {"BYTEPS_CPU_BLACKLIST": "0-9"},
            "BYTEPS_CPU_BLACKLIST='0-9' leaves none of the cores 0-7 that this process may run on: name fewer",
        ),
        (
            {"BYTEPS_VISIBLE_CPU_CORES": "0-3:4-7", "BYTEPS_CPU_BLACKLIST": "3,4"},
            "BYTEPS_VISIBLE_CPU_CORES='0-3:4-7' names cores 3-4, which BYTEPS_CPU_BLACKLIST='3,4' keeps free: leave "
            "them out of one of the two",
        ),
    ],
)
def test_contradictions(environ: dict[str, str], message: str, machines: dict[str, Topology]) -> None:
    with pytest.raises(SettingsError) as caught:
        bind(environ, None, machines["one socket"], 2, 1)
    assert caught.value.problems == (message,)


@pytest.mark.parametrize("more", [{}, {"BYTEPS_NUMA_ROOT_QUOTA": "4"}])
def test_a_quota_above_all_cores_is_refused_for_a_lone_worker(
    more: dict[str, str], machines: dict[str, Topology]
) -> None:
    with pytest.raises(SettingsError) as caught:
        bind({"BYTEPS_NUMA_DEFAULT_QUOTA": "20", **more}, None, machines["one socket"], 1)
    assert caught.value.problems == (
        "BYTEPS_NUMA_DEFAULT_QUOTA='20': 20 physical cores for each worker but the last, which is the only one here, "
        "are more than the 8 that there are: set a lower quota",
    )
    assert shown(bind({"BYTEPS_NUMA_DEFAULT_QUOTA": "8"}, None, machines["one socket"], 1).workers) == ["0-7"]


def test_exclusive_with_too_few_cores(machines: dict[str, Topology]) -> None:
    with pytest.raises(SettingsError) as caught:
        bind({}, "exclusive", machines["container"], 4, 1)
    assert caught.value.problems == (
        "--numa-binding=exclusive needs a physical core for each of 5 processes (workers: 4, servers: 1), but there "
        "are 4: start fewer, or use --numa-binding=node",
    )


def test_cores_that_are_kept_free(machines: dict[str, Topology]) -> None:
    """Nothing else binds here; then all processes have what is left."""
    found = bind({"BYTEPS_CPU_BLACKLIST": "0, 6-7,99"}, None, machines["one socket"], 2, 1)
    assert shown([*found.workers, *found.servers, found.others]) == ["1-5"] * 4
    assert (found.worker_cores, found.server_cores) == ((1, 1), (1,))
    assert found.notes == (
        "warning: BYTEPS_CPU_BLACKLIST='0, 6-7,99' names core 99, but this process may run on cores 0-7 only; "
        "kept free: 0,6-7",
        "cores by BYTEPS_CPU_BLACKLIST='0, 6-7,99' (1 NUMA node): workers 0-1: 1-5; server 0: 1-5",
    )
    assert bind({"BYTEPS_CPU_BLACKLIST": "-1"}, None, machines["one socket"], 2).others is None
    both = bind({"BYTEPS_CPU_BLACKLIST": "0,32"}, None, machines["two sockets"], 2, 1)
    assert shown([*both.workers, *both.servers]) == ["1-15,33-47", "16-31,48-63", "1-31,33-63"]
    listed = bind({"BYTEPS_CPU_BLACKLIST": "0", "BYTEPS_VISIBLE_CPU_CORES": "1"}, None, machines["one socket"], 1, 1)
    assert shown([*listed.workers, *listed.servers]) == ["1", "1-7"]


@pytest.mark.parametrize(
    ("environ", "policy", "lines"),
    [
        ({"BYTEPS_CPU_BLACKLIST": "8-9,64"}, None, ["names cores 8-9,64, but this process may run on cores 0-7 only"]),
        ({"BYTEPS_CPU_BLACKLIST": "99"}, "node", ["names core 99, but this process may run on cores 0-7 only"]),
        ({"BYTEPS_CPU_BLACKLIST": "99", "BYTEPS_VISIBLE_CPU_CORES": "0:1"}, None, ["names core 99, but this process"]),
        ({"BYTEPS_CPU_BLACKLIST": "99"}, "none", []),
        ({"BYTEPS_CPU_BLACKLIST": "99", "BYTEPS_NUMA_ON": "0"}, None, []),
        ({"BYTEPS_CPU_BLACKLIST": "7"}, None, []),
        ({"BYTEPS_CPU_BLACKLIST": "-1"}, None, []),
    ],
)
def test_a_blacklist_with_cores_that_are_not_there(
    environ: dict[str, str], policy: str | None, lines: list[str], machines: dict[str, Topology]
) -> None:
    machine = machines["one socket"]
    found = remarks(environ, policy, machine)
    assert len(found) == len(lines)
    for line, expected in zip(found, lines, strict=True):
        assert line.startswith(f"warning: BYTEPS_CPU_BLACKLIST={environ['BYTEPS_CPU_BLACKLIST']!r} {expected}")
        assert line.endswith("; kept free: none")
    notes = bind(environ, policy, machine, 2).notes
    assert list(found) == [note for note in notes if note.startswith("warning: ")]


def test_hardware_threads_that_are_not_there(machines: dict[str, Topology]) -> None:
    line = "BYTEPS_MULTITHREADED_CPU='0' has no effect here: each physical core is one core to this process"
    assert bind({"BYTEPS_MULTITHREADED_CPU": "0"}, None, machines["one socket"], 2).notes == (line,)
    assert remarks({"BYTEPS_MULTITHREADED_CPU": "0"}, None, machines["two sockets"]) == ()
    assert remarks({}, None, machines["one socket"]) == ()


def test_one_hardware_thread_of_each_core(machines: dict[str, Topology]) -> None:
    environ = {"BYTEPS_MULTITHREADED_CPU": "0"}
    machine = machines["two sockets"]
    assert shown(bind(environ, None, machine, 2).workers) == ["0-15", "16-31"]
    assert shown(bind(environ, None, machine, 1).workers) == ["0-31"]
    assert shown(bind(environ, "exclusive", machine, 4).workers) == ["0-7", "16-23", "8-15", "24-31"]
    # The first thread is taken away, so the second one is used.
    assert shown(bind({**environ, "BYTEPS_CPU_BLACKLIST": "3"}, "node", machines["container"], 1).workers) == ["4-6,35"]
    assert bind(environ, None, machines["one socket"], 2).others is None


EVERYTHING = {
    "BYTEPS_VISIBLE_CPU_CORES": "0-1:2",
    "BYTEPS_NUMA_DEFAULT_QUOTA": "3",
    "BYTEPS_NUMA_ROOT_QUOTA": "2",
    "BYTEPS_CPU_BLACKLIST": "7",
}
LISTS = {name: text for name, text in EVERYTHING.items() if name != "BYTEPS_VISIBLE_CPU_CORES"}
SAID = "BYTEPS_NUMA_DEFAULT_QUOTA='3' BYTEPS_NUMA_ROOT_QUOTA='2'"
AS_WITHOUT = {"BYTEPS_CPU_BLACKLIST": "-1", "BYTEPS_NUMA_ROOT_QUOTA": "0", "BYTEPS_MULTITHREADED_CPU": "on"}
BEFORE = "goes before these, which are not used:"
ALSO = "BYTEPS_VISIBLE_CPU_CORES='0-1:2'"


@pytest.mark.parametrize(
    ("policy", "environ", "expected", "note"),
    [
        (
            "node",
            EVERYTHING,
            ["0-6", "0-6"],
            f"--numa-binding=node {BEFORE} {ALSO} {SAID}",
        ),
        (None, EVERYTHING, ["0-1", "2"], f"BYTEPS_VISIBLE_CPU_CORES {BEFORE} {SAID}"),
        (
            None,
            {**EVERYTHING, "BYTEPS_NUMA_ON": "0"},
            ["0-1", "2"],
            f"BYTEPS_VISIBLE_CPU_CORES {BEFORE} {SAID}",
        ),
        (None, LISTS, ["0-2", "3-4"], None),
        (
            None,
            {**LISTS, "BYTEPS_NUMA_ON": "0"},
            [None, None],
            f"BYTEPS_NUMA_ON=0 {BEFORE} BYTEPS_CPU_BLACKLIST='7' {SAID}",
        ),
        ("node", {"BYTEPS_NUMA_ON": "0"}, ["0-7", "0-7"], None),
        (None, {"BYTEPS_NUMA_ON": "0"}, [None, None], None),
        ("none", {"BYTEPS_NUMA_ON": "1"}, [None, None], None),
        ("none", AS_WITHOUT, [None, None], None),
        (None, {**AS_WITHOUT, "BYTEPS_NUMA_ON": "0"}, [None, None], None),
    ],
)
def test_the_option_goes_before_the_lists_and_those_before_the_rest(
    policy: str | None,
    environ: dict[str, str],
    expected: list[str | None],
    note: str | None,
    machines: dict[str, Topology],
) -> None:
    found = bind(environ, policy, machines["one socket"], 2)
    assert shown(found.workers) == expected
    told = [each for each in found.notes if not each.startswith("cores by ") and "has no effect here" not in each]
    assert told == ([] if note is None else [note])


def test_none_goes_before_everything(machines: dict[str, Topology]) -> None:
    found = bind({**EVERYTHING, "BYTEPS_MULTITHREADED_CPU": "0"}, "none", machines["one socket, hardware threads"], 2)
    assert shown([*found.workers, found.others]) == [None, None, None]
    (note,) = found.notes
    assert note.startswith("--numa-binding=none goes before these")
    assert note.count("BYTEPS_") == 5


@pytest.mark.timeout(90)
def test_real_processes_have_the_cores_and_threads_that_were_asked_for() -> None:
    machine = read_topology(usable_cores())
    if len(machine.physical) < 2:
        pytest.skip("one physical core cannot be divided")
    words = ["-n", "1", "-s", "1", "--numa-binding", "exclusive", "--", sys.executable, "-c", SHOW]
    foreign = ("OMP_", "BYTEPS_", "DMLC_", "CUDA_", "NVIDIA_")
    done = subprocess.run(
        [sys.executable, "-m", "byteps_py.launcher", *words],
        env={name: text for name, text in os.environ.items() if not name.startswith(foreign) or name == RUN_MARK},
        capture_output=True,
        text=True,
        timeout=80,
        check=True,
    )
    expected = bind({}, "exclusive", machine, 1, 1)
    sets = (*expected.workers, *expected.servers)
    assert done.stdout.splitlines() == [
        f"[worker 0] {name} {numbers(each or ())} {len(each or ())}"
        for name, each in zip(("worker", "server"), sets, strict=True)
    ]
    assert expected.notes[0] in done.stderr


USABLE = cores("0-3,8")


@pytest.mark.parametrize(
    ("text", "workers", "expected", "counted"),
    [
        (None, 2, [None, None], (2, 2)),
        (" ", 1, [None], (5,)),
        ("0-1:2,8", 2, ["0-1", "2,8"], (2, 2)),
        ("0:1:99", 2, ["0", "1"], (1, 1)),
        (" 0 - 3 , 8 ", 1, ["0-3,8"], (5,)),
        ("0-3:0-3", 2, ["0-3", "0-3"], (2, 2)),
        ("no list", 2, [None, None], (2, 2)),
    ],
)
def test_lists(text: str | None, workers: int, expected: list[str | None], counted: tuple[int, ...]) -> None:
    environ = {} if text is None else {"BYTEPS_VISIBLE_CPU_CORES": text}
    found = bind(environ, None, flat(USABLE), workers)
    assert shown(found.workers) == expected
    assert found.worker_cores == counted


def test_lists_for_more_workers_than_there_are_here() -> None:
    found = bind({"BYTEPS_VISIBLE_CPU_CORES": "0:1:99"}, None, flat(USABLE), 2)
    assert found.notes == (
        "BYTEPS_VISIBLE_CPU_CORES='0:1:99' has 3 lists, but workers on this machine: 2; the others are not used",
        "cores by BYTEPS_VISIBLE_CPU_CORES (1 NUMA node): worker 0: 0; worker 1: 1",
    )


def test_cores_that_are_not_there_and_lists_that_are_missing_are_told_together() -> None:
    with pytest.raises(SettingsError) as caught:
        bind({"BYTEPS_VISIBLE_CPU_CORES": "0-1:4-7,9"}, None, flat(USABLE), 3)
    assert caught.value.problems == (
        "BYTEPS_VISIBLE_CPU_CORES='0-1:4-7,9' has 2 of the 3 lists that are needed: one for each worker of this "
        "machine, with colons between them",
        "BYTEPS_VISIBLE_CPU_CORES='0-1:4-7,9' names cores 4-7,9, but this process may run on cores 0-3,8 only",
    )
