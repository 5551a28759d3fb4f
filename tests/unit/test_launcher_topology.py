"""What is read of machines from recorded trees of ``/sys``, whole ones and ones with holes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byteps_py.launcher.topology import Topology, flat, read_topology
from tests.helpers.topologies import MACHINES, cores, numbers, topology, write_tree


def groups(found: Iterable[frozenset[int]]) -> list[str]:
    return [numbers(each) for each in found]


def assert_whole(found: Topology, usable: frozenset[int]) -> None:
    """Each way of grouping has every usable core once."""
    for grouping in (found.physical, found.complexes, found.nodes, found.sockets):
        assert all(grouping)
        assert sum(map(len, grouping)) == len(usable)
        assert frozenset().union(*grouping) == usable
    assert len(found.numbers) == len(found.nodes)
    assert all(any(each <= node for node in found.nodes) for each in found.complexes)


@pytest.mark.parametrize("name", MACHINES)
def test_machines(name: str, tmp_path: Path) -> None:
    machine, found = MACHINES[name], topology(name, tmp_path)
    assert_whole(found, machine.mask)
    kept = [cores(each) & machine.mask for each in machine.nodes if each and cores(each) & machine.mask]
    assert list(found.nodes) == kept
    assert set(found.sockets) == {cores(each) & machine.mask for each in machine.sockets} - {frozenset()}
    assert set(found.complexes) == {cores(each) & machine.mask for each in machine.caches} - {frozenset()}
    assert all(each == machine.siblings(min(each)) & machine.mask for each in found.physical)
    assert found.devices == machine.devices
    assert found.is_told
    assert found.cores == machine.mask


def test_what_a_container_may_use(tmp_path: Path) -> None:
    found = topology("container", tmp_path)
    assert groups(found.nodes) == groups(found.sockets) == groups(found.complexes) == ["3-6,35-38"]
    assert groups(found.physical) == ["3,35", "4,36", "5,37", "6,38"]
    across = read_topology(cores("14-16,46-47"), tmp_path)
    assert groups(across.nodes) == ["14-15,46-47", "16"]
    assert groups(across.physical) == ["14,46", "15,47", "16"]


def test_a_node_of_memory_alone_is_none(tmp_path: Path) -> None:
    assert topology("node of memory alone", tmp_path).numbers == (0, 1)
    assert read_topology(cores("20-22"), tmp_path).numbers == (1,)


def test_nothing_is_told(tmp_path: Path) -> None:
    found = read_topology(cores("0-3,9"), tmp_path)
    assert found == Topology(**{**vars(flat(cores("0-3,9"))), "is_told": False})
    assert groups(found.physical) == ["0", "1", "2", "3", "9"]


def remove(root: Path, pattern: str) -> None:
    paths = list(root.glob(pattern))
    assert paths
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_caches_that_are_hidden(tmp_path: Path) -> None:
    topology("AMD", tmp_path)
    remove(tmp_path, "devices/system/cpu/cpu*/cache")
    found = read_topology(MACHINES["AMD"].mask, tmp_path)
    assert found.complexes == found.nodes
    assert_whole(found, MACHINES["AMD"].mask)


def test_a_last_level_that_physical_cores_do_not_share_is_no_complex(tmp_path: Path) -> None:
    topology("two sockets", tmp_path)
    remove(tmp_path, "devices/system/cpu/cpu*/cache/index3")
    found = read_topology(MACHINES["two sockets"].mask, tmp_path)
    assert found.complexes == found.nodes


@pytest.mark.parametrize("text", ["-1", "", None])
def test_sockets_without_numbers(text: str | None, tmp_path: Path) -> None:
    """ARM: the node is all that is known of where a core is."""
    topology("AMD, two sockets", tmp_path)
    for path in tmp_path.glob("devices/system/cpu/cpu*/topology/physical_package_id"):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    found = read_topology(MACHINES["AMD, two sockets"].mask, tmp_path)
    assert found.sockets == found.nodes


def test_the_cpu_folder_is_hidden_and_the_nodes_are_not(tmp_path: Path) -> None:
    topology("two sockets", tmp_path)
    remove(tmp_path, "devices/system/cpu")
    found = read_topology(MACHINES["two sockets"].mask, tmp_path)
    assert groups(found.nodes) == ["0-15,32-47", "16-31,48-63"]
    assert found.nodes == found.sockets == found.complexes
    assert len(found.physical) == 64


def test_files_that_make_no_sense(tmp_path: Path) -> None:
    topology("one socket, hardware threads", tmp_path)
    for path in (tmp_path / "devices/system").rglob("*list"):
        path.write_bytes(b"\xff,3-1")
    found = read_topology(cores("0-15"), tmp_path)
    assert_whole(found, cores("0-15"))
    assert not found.is_told


def test_a_core_that_is_in_no_node(tmp_path: Path) -> None:
    topology("one socket", tmp_path)
    found = read_topology(cores("0-9"), tmp_path)
    assert_whole(found, cores("0-9"))
    assert (groups(found.nodes), found.numbers) == (["8-9", "0-7"], (-1, 0))


def test_new_names_of_files(tmp_path: Path) -> None:
    topology("two sockets", tmp_path)
    before = read_topology(MACHINES["two sockets"].mask, tmp_path)
    for old, new in (("thread_siblings_list", "core_cpus_list"), ("core_siblings_list", "package_cpus_list")):
        for path in list(tmp_path.glob(f"devices/system/cpu/cpu*/topology/{old}")):
            path.rename(path.with_name(new))
    assert read_topology(MACHINES["two sockets"].mask, tmp_path) == before


def test_a_device_whose_node_is_not_known(tmp_path: Path) -> None:
    topology("two sockets, eight GPUs", tmp_path)
    (tmp_path / "bus/pci/devices/0000:10:00.0/numa_node").write_text("-1\n")
    (tmp_path / "bus/pci/devices/0000:11:00.0/numa_node").unlink()
    found = read_topology(MACHINES["two sockets"].mask, tmp_path)
    assert found.devices == (-1, -1, 1, 1, 0, 0, 0, 0)


def test_limited(tmp_path: Path) -> None:
    found = topology("AMD", tmp_path)
    few = found.limited(cores("20-40,300"))
    assert_whole(few, cores("20-40"))
    assert (groups(few.nodes), few.numbers) == (["20-31", "32-40"], (1, 2))
    assert few.limited(few.first_threads()) == few
    assert numbers(found.first_threads()) == "0-63"
    assert groups(found.physical_of(cores("8,72,3,67,90"))) == ["3,67", "8,72", "90"]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of every machine."""
    made = {name: tmp_path_factory.mktemp("tree") for name in MACHINES}
    for name, folder in made.items():
        write_tree(MACHINES[name], folder)
    return made


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(MACHINES)), st.frozensets(st.integers(0, 70), min_size=1, max_size=12))
def test_any_mask(trees: dict[str, Path], name: str, usable: frozenset[int]) -> None:
    assert_whole(read_topology(usable, trees[name]), usable)


def test_this_machine() -> None:
    usable = frozenset(os.sched_getaffinity(0))
    assert_whole(read_topology(usable), usable)
