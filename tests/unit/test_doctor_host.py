"""What is read of cores, memory, limits and ports of recorded systems, and what is said of it."""

from __future__ import annotations

import errno
import os
import resource
import socket
from pathlib import Path

import msgspec
import pytest

from byteps_py.doctor import limits as limits_module
from byteps_py.doctor import ports
from byteps_py.doctor.cgroups import cpu_quota, groups, pids_left
from byteps_py.doctor.cores import Demand, check_cores, demands, judge_cores, judge_load, judge_threads, judge_together
from byteps_py.doctor.findings import Finding, Severity
from byteps_py.doctor.kernels import check_kernels, judge_level
from byteps_py.doctor.limits import check_limits, files_needed, judge_files, judge_processes
from byteps_py.doctor.listening import is_ours, scheduler_hosts, server_hosts, why_not
from byteps_py.doctor.memory import check_memory, judge_memory, judge_nodes, parse_cores, parse_total
from byteps_py.doctor.ports import check_ports, judge_range, parse_range
from byteps_py.doctor.sharing import check_sharing, in_container, judge_sharing
from byteps_py.doctor.situation import Situation
from byteps_py.role import Role
from byteps_py.settings import JobSettings, ServerSettings, WorkerSettings
from byteps_py.transport import listening
from byteps_py.transport.resolve import is_local
from tests.helpers.messages import CONTROL

JOB = {"num_worker": 2, "num_server": 2, "root_uri": "127.0.0.1", "root_port": 9000}
GB = 10**9


def severities(findings: object) -> list[str]:
    return [each.severity.value for each in findings]  # type: ignore[attr-defined]


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="ascii")


class TestGroups:
    def test_paths(self) -> None:
        text = "9:name=systemd:/\n4:memory:/a:b\n2:cpu,cpuacct:/box\n0::/pod\nnonsense\n"
        assert groups(text) == {"name=systemd": "/", "memory": "/a:b", "cpu": "/box", "cpuacct": "/box", "": "/pod"}

    def test_version_2_with_a_limit_above(self, tmp_path: Path) -> None:
        write(tmp_path, "proc/self/cgroup", "0::/pod/main\n")
        write(tmp_path, "sys/fs/cgroup/pod/main/cpu.max", "max 100000\n")
        write(tmp_path, "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
        write(tmp_path, "sys/fs/cgroup/pod/pids.max", "100\n")
        write(tmp_path, "sys/fs/cgroup/pod/pids.current", "40\n")
        assert cpu_quota(tmp_path) == 1.5
        assert pids_left(tmp_path) == 60

    def test_version_1_in_a_container_that_sees_only_its_own(self, tmp_path: Path) -> None:
        write(tmp_path, "proc/self/cgroup", "8:pids:/docker/0123\n1:cpu:/docker/0123\n0::/\n")
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n")
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
        write(tmp_path, "sys/fs/cgroup/pids/pids.max", "max\n")
        write(tmp_path, "sys/fs/cgroup/pids/pids.current", "40\n")
        assert cpu_quota(tmp_path) == 4
        assert pids_left(tmp_path) is None
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
        assert cpu_quota(tmp_path) is None

    def test_a_system_without_any(self, tmp_path: Path) -> None:
        assert cpu_quota(tmp_path) is None
        assert pids_left(tmp_path) is None


class TestCores:
    def test_a_quota_that_openmp_does_not_know(self) -> None:
        (found,) = judge_cores(8, 16, 1.5)
        assert found.severity is Severity.WARNING
        assert "8 of 16 cores may be used, but the control group allows the time of 1.5" in found.text
        assert "OMP_NUM_THREADS=1" in found.remedy
        assert severities(judge_cores(8, 8, 8.0)) == ["ok"]
        assert next(iter(judge_cores(2, 2, None))).text == "2 cores"
        assert next(iter(judge_cores(1, 1, None))).text == "1 core"
        assert "makes teams of 1 thread," in next(iter(judge_cores(1, 1, 0.5))).text

    @pytest.mark.parametrize(
        ("wanted", "severity", "words"),
        [
            ([Demand("server", 1, 4, True)], "problem", "1 server x 4 = 4 OpenMP threads on 2 cores, and idle ones"),
            (
                [Demand("server", 1, 1, True), Demand("worker", 2, 2, False)],
                "warning",
                "1 server x 1 + 2 workers x 2 =",
            ),
            ([Demand("server", 1, 1, True), Demand("worker", 2, 2, True)], "problem", "idle ones of workers spin"),
            ([Demand("server", 1, 1, False)], "ok", "1 server x 1 = 1 OpenMP thread: enough cores"),
            ([Demand("server", 1, 2, True)], "ok", "1 server x 2 = 2 OpenMP threads: enough cores"),
            ([Demand("server", 1, None, True)], "note", "servers spin while they are idle"),
            ([Demand("worker", 2, None, False)], "note", "a team of all cores in each of 2 workers"),
        ],
    )
    def test_threads(self, wanted: list[Demand], severity: str, words: str) -> None:
        (found,) = judge_threads(wanted, 2)
        assert found.severity.value == severity
        assert words in found.text

    def test_nothing_is_asked_for(self) -> None:
        assert list(judge_threads([], 2)) == []
        assert list(judge_threads([Demand("server", 1, None, False), Demand("worker", 1, None, False)], 2)) == []

    def test_demands_of_a_job(self) -> None:
        server = ServerSettings(**JOB, omp_num_threads=2, engine_threads=3, omp_wait_policy="active")  # type: ignore[arg-type]
        worker = WorkerSettings(**JOB, local_size=4)  # type: ignore[arg-type]
        job = JobSettings(**JOB)  # type: ignore[arg-type]
        assert demands(Situation({}, job=job, server=server, worker=worker)) == [
            Demand("server", 1, 6, True),
            Demand("worker", 4, None, False),
        ]
        assert demands(Situation({})) == []

    def test_servers_and_workers_that_may_live_apart(self, tmp_path: Path) -> None:
        job = JobSettings(**JOB)  # type: ignore[arg-type]
        server = ServerSettings(**JOB, omp_num_threads=4, engine_threads=1, omp_wait_policy="active")  # type: ignore[arg-type]
        worker = WorkerSettings(**JOB, local_size=2, omp_num_threads=2, omp_wait_policy="active")  # type: ignore[arg-type]
        four = frozenset(range(4))
        told = [
            (each.severity.value, each.text)
            for each in check_cores(Situation({}, None, job, server, worker, four, root=tmp_path))
            if "OpenMP" in each.text
        ]
        sum_of_both = "1 server x 4 + 2 workers x 2 = 8 OpenMP threads"
        assert told == [
            ("ok", "1 server x 4 = 4 OpenMP threads: enough cores for all"),
            ("ok", "2 workers x 2 = 4 OpenMP threads: enough cores for all"),
            ("note", f"{sum_of_both} would be too many for 4 cores, if all of them run on this host"),
        ]
        assert list(judge_together([Demand("server", 1, 4, True)], 2)) == [], "that is told already"
        assert list(judge_together([Demand("server", 1, 1, True), Demand("worker", 1, 1, True)], 2)) == []
        alone = check_cores(Situation({}, None, job, server, None, frozenset({0, 1}), root=tmp_path))
        assert "problem" in severities(alone), "whatever else runs"

    def test_what_else_runs(self) -> None:
        assert severities(judge_load(7.5, 2, "powersave")) == ["note", "note"]
        assert list(judge_load(1.5, 2, "performance")) == []

    def test_a_recorded_container(self, tmp_path: Path) -> None:
        write(tmp_path, "proc/self/cgroup", "0::/\n")
        write(tmp_path, "sys/fs/cgroup/cpu.max", "50000 100000")
        found = list(check_cores(Situation({}, cores=frozenset({0, 1}), root=tmp_path)))
        assert found[0].severity is Severity.WARNING
        assert found[0].facts["quota"] == 0.5


class TestMemory:
    def test_amounts(self) -> None:
        assert severities(judge_memory(8 * GB, 16 * GB)) == ["ok"]
        assert severities(judge_memory(GB // 4, 0)) == ["warning"]
        assert severities(judge_memory(3 * GB, 100 * GB)) == ["warning"]
        assert severities(judge_memory(30 * GB, 1000 * GB)) == ["ok"]

    def test_nodes(self) -> None:
        nodes = {0: frozenset({0, 1}), 1: frozenset({2, 3}), 2: frozenset[int]()}
        (found,) = judge_nodes(nodes, frozenset({1, 2, 3}))
        assert found.severity is Severity.NOTE
        assert "2 memory nodes (NUMA; cores of node 0: 1, node 1: 2)" in found.text
        assert severities(judge_nodes(nodes, frozenset({2, 3}))) == ["ok"]
        assert list(judge_nodes({}, frozenset({0}))) == []

    def test_recorded_texts(self, tmp_path: Path) -> None:
        assert parse_cores("0-3,8\n") == {0, 1, 2, 3, 8}
        assert parse_cores("") == parse_cores("a-b") == frozenset()
        assert parse_total("MemTotal:       16384 kB\nMemFree: 5 kB\n") == 16384 * 1024
        assert parse_total("MemTotal:\n") == 0
        write(tmp_path, "proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
        for node, cores in enumerate(("0-1", "2-3")):
            write(tmp_path, f"sys/devices/system/node/node{node}/cpulist", f"{cores}\n")
        found = list(check_memory(Situation({}, cores=frozenset(range(4)), root=tmp_path)))
        assert severities(found) == ["ok", "note"]
        assert found[0].text == "8.2 of 16.4 GB of memory are available"
        assert found[1].facts == {"nodes": {"0": [0, 1], "1": [2, 3]}}


class TestLimits:
    def test_files_that_a_process_needs(self) -> None:
        small = {role: files_needed(role, 2, 1, 1) for role in Role}
        large = {role: files_needed(role, 512, 128, 4) for role in Role}
        assert max(small.values()) < 256
        assert large[Role.SERVER] - small[Role.SERVER] == 5 * 512 - 2 * 2
        assert large[Role.SCHEDULER] - small[Role.SCHEDULER] == 640 - 3

    def test_files(self) -> None:
        assert severities(judge_files(100, 1024, 4096)) == ["ok"]
        (found,) = judge_files(2000, 1024, 4096)
        assert found.severity is Severity.OK
        assert "raises that by itself, up to 4096" in found.text
        assert severities(judge_files(5000, 1024, 4096)) == ["problem"]
        (found,) = judge_files(5000, -1, -1)
        assert found.text == "a process may have any number of files open (`ulimit -n`), and needs about 5000"

    def test_processes(self) -> None:
        assert severities(judge_processes(100, 50)) == ["warning", "warning"]
        assert list(judge_processes(None, None)) == list(judge_processes(30_000, 5000)) == []

    def test_a_large_job_on_a_small_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits_module.resource, "getrlimit", lambda which: (256, 1024))
        job = JobSettings(**{**JOB, "num_worker": 2000})  # type: ignore[arg-type]
        found = list(check_limits(Situation({}, Role.SERVER, job, root=tmp_path)))
        assert found[0].severity is Severity.PROBLEM
        assert "a process may have 1024 files open" in found[0].text
        monkeypatch.undo()
        assert "problem" not in severities(check_limits(Situation({}, root=tmp_path)))
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 256


class TestPorts:
    def test_a_range(self) -> None:
        assert severities(judge_range((20000, 20099), 100, [], (32768, 60999), None)) == ["ok"]
        assert severities(judge_range((20000, 40000), 256, [20000], (32768, 60999), None)) == ["note", "note"]
        assert severities(judge_range((20000, 20000), 1, [], None, None)) == ["problem"]
        assert severities(judge_range((20000, 20000), 1, [], None, Role.SERVER)) == ["ok"]
        assert severities(judge_range((20000, 20000), 1, [20000], None, Role.SERVER, "20000 by x")) == ["problem"]
        (found,) = judge_range((20000, 20000), 1, [20000], None, Role.SERVER, "20000 by x", runs=True)
        assert found.text == (
            "BYTEPS_PORT_RANGE=20000-20000 has 0 free of 1 tried port, and the job has servers already: 20000 by x"
        )
        assert found.severity is Severity.NOTE
        assert severities(judge_range((20000, 20000), 1, [20000], None, Role.WORKER)) == ["note"], "it listens nowhere"
        assert parse_range("32768\t60999\n") == (32768, 60999)
        assert parse_range("") is parse_range("a b") is None

    def test_ports_that_are_held(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
            job = JobSettings(**JOB, port_range=(port, port))  # type: ignore[arg-type]
            server = ServerSettings(**JOB, port=port)  # type: ignore[arg-type]
            found = list(check_ports(Situation({}, Role.SERVER, job, server)))
        assert severities(found)[:2] == ["problem", "problem"]
        assert f"DMLC_PORT: port {port} on 127.0.0.1 is in use by process {os.getpid()} of user" in found[0].text
        assert f"BYTEPS_PORT_RANGE={port}-{port} has 0 free of 1 tried port: {port} by process" in found[1].text

    def test_the_scheduler_of_a_suspended_job_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        status = msgspec.structs.replace(CONTROL["status"], job_id="0", state="suspended", num_worker=7)
        monkeypatch.setattr(ports, "_status", lambda *_, **__: status)
        with socket.create_server(("127.0.0.1", 0)) as held:
            job = JobSettings(**{**JOB, "root_port": held.getsockname()[1]})  # type: ignore[arg-type]
            found, *_ = check_ports(Situation({}, Role.SCHEDULER, job))
        assert found.severity is Severity.NOTE
        assert found.remedy == "leave it alone: its job is suspended, and may be resumed with other numbers"

    def test_only_addresses_of_the_role_count(self) -> None:
        with socket.create_server(("127.0.0.2", 0)) as held:
            port = held.getsockname()[1]
            server = ServerSettings(**JOB, port=port)  # type: ignore[arg-type]
            (found,) = check_ports(Situation({}, Role.SERVER, JobSettings(**JOB), server))  # type: ignore[arg-type]
            assert found == Finding(Severity.OK, f"DMLC_PORT={port} is free", facts={"port": port})
            assert why_not(port) == (errno.EADDRINUSE, "*"), "at all addresses"
            assert why_not(port, ["127.0.0.1", "127.0.0.2"]) == (errno.EADDRINUSE, "127.0.0.2")

    @pytest.mark.skipif(not is_local("::1"), reason="there is no IPv6 here")
    def test_a_port_that_is_held_with_ipv6(self) -> None:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as held:
            port = held.getsockname()[1]
            assert why_not(port, ["::1"]) == (errno.EADDRINUSE, "::1")
            assert why_not(port, ["127.0.0.1"]) is None
            assert why_not(port) == (errno.EADDRINUSE, "*")

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "192.0.2.77", "*", socket.gethostname()])
    def test_it_is_tried_where_the_transport_listens(self, host: str) -> None:
        if host == "*":
            situation = Situation({"DMLC_USE_KUBERNETES": "1"})
            assert scheduler_hosts(situation, JobSettings(**JOB)) == listening.listening_hosts(host, 9000)  # type: ignore[arg-type]
        else:
            job = JobSettings(**{**JOB, "root_uri": host})  # type: ignore[arg-type]
            assert scheduler_hosts(Situation({}), job) == listening.listening_hosts(host, 9000)
            named = JobSettings(**JOB, node_host=host)  # type: ignore[arg-type]
            assert server_hosts(named) == listening.listening_hosts(host, 9000)

    def test_processes_of_byteps_py(self) -> None:
        who = "20000 by process 42 of user ada since 2023-11-14 22:13:20"
        for command in ("python -m byteps_py server", "/env/bin/python -m byteps_py server", "/bin/bps server"):
            assert is_ours(f"{who} ({command})"), command
        for command in ("python /home/byteps_py/serve.py", "/opt/byteps_py/bin/python -m http.server", "bpsx"):
            assert not is_ours(f"{who} ({command})"), command
        assert is_ours(f"{who} (nginx); 20001 by process 43 of user ada since now (python /usr/bin/bpslaunch)")
        assert not is_ours("20000 by nobody who is seen")

    def test_ports_that_are_free(self) -> None:
        job = JobSettings(**JOB)  # type: ignore[arg-type]
        (found,) = check_ports(Situation({}, Role.WORKER, job))
        assert found == Finding(Severity.OK, "a process can listen at any free port")
        assert list(check_ports(Situation({}))) == []


class TestSharing:
    def test_what_it_means(self) -> None:
        assert severities(judge_sharing("auto", "")) == severities(judge_sharing("shm", "")) == ["ok"]
        assert severities(judge_sharing("auto", "memfd_create: no")) == ["warning"]
        assert severities(judge_sharing("shm", "memfd_create: no")) == ["problem"]
        assert severities(judge_sharing("tcp", "memfd_create: no")) == ["note"]

    def test_here(self, tmp_path: Path) -> None:
        assert severities(check_sharing(Situation({}, root=tmp_path))) == ["ok"]

    def test_a_system_without_memory_files(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def refuse(name: str, flags: int) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "memfd_create", refuse)
        (found,) = check_sharing(Situation({}, root=tmp_path))
        assert found.text.endswith("talk TCP: memfd_create: Function not implemented")

    def test_containers(self, tmp_path: Path) -> None:
        assert in_container("11:memory:/kubepods/burstable/pod1\n")
        assert not in_container("0::/user.slice\n")
        write(tmp_path, "proc/1/cgroup", "0::/docker/0123\n")
        job = JobSettings(**JOB)  # type: ignore[arg-type]
        assert severities(check_sharing(Situation({}, job=job, root=tmp_path))) == ["ok", "note"]


class TestKernels:
    def test_here(self) -> None:
        assert "problem" not in severities(check_kernels(Situation({})))

    def test_numpy_instead(self) -> None:
        assert severities(check_kernels(Situation({"BYTEPS_KERNELS": "reference"}))) == ["warning"]

    def test_levels(self) -> None:
        assert severities(judge_level("avx512", 4, 4)) == ["ok"]
        assert severities(judge_level("baseline", 2, 4)) == ["note", "note"]
