"""Environment variables: parsed strictly, and all that is wrong is told at once."""

from __future__ import annotations

import ast
import dataclasses
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from byteps_py.errors import SettingsError
from byteps_py.known_names import KNOWN
from byteps_py.settings import (
    JobSettings,
    LaunchSettings,
    ProcessSettings,
    SchedulerSettings,
    ServerSettings,
    WorkerSettings,
    is_distributed,
    read,
    read_role,
    runs_alone,
    settings_class,
    variables_of,
    wants_native_kernels,
)
from byteps_py.types import Role

ROOT = Path(__file__).resolve().parents[2]
JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}
CLASSES = (SchedulerSettings, ServerSettings, WorkerSettings)


def problems(settings: type[JobSettings], environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        read(settings, environ)
    return caught.value.problems


class TestRead:
    @pytest.mark.parametrize("settings", CLASSES)
    def test_what_must_be_set(self, settings: type[JobSettings]) -> None:
        result = read(settings, JOB)
        assert (result.num_worker, result.num_server) == (2, 1)
        assert (result.root_uri, result.root_port) == ("10.0.0.1", 9000)

    def test_defaults(self) -> None:
        worker = read(WorkerSettings, JOB)
        assert worker.worker_id is None
        assert (worker.local_rank, worker.local_size) == (0, 1)
        assert worker.partition_bytes is None
        assert (worker.tcp_connections, worker.io_threads) == (1, 1)
        assert worker.credit is None
        assert worker.kernels == "native"
        assert worker.job_id == "0"
        assert read(ServerSettings, JOB).engine_threads == 1
        assert [read(each, JOB).log_level for each in CLASSES] == ["info", "info", "warning"]

    def test_what_is_logged_and_recorded_needs_no_job(self) -> None:
        settings = read(ProcessSettings, {"PS_VERBOSE": "2", "BYTEPS_LOG_HIDE_TIME": "1"})
        assert (settings.log_level, settings.verbose, settings.hide_time) == ("warning", 2, True)
        assert (settings.record, settings.cell, settings.block, settings.stage_times) == (None, "cell", None, True)
        assert (settings.warmup_steps, settings.measured_steps) == (20, 0)

    @pytest.mark.parametrize("settings", [*CLASSES, ProcessSettings])
    def test_every_process_reads_where_its_record_goes(self, settings: type[ProcessSettings]) -> None:
        environ = {
            "BYTEPS_AB_RECORD": "/some where/" + "x" * 300,
            "BYTEPS_AB_CELL": "+ omp-wait-policy=passive, num_servers=2.0",
            "BYTEPS_AB_BLOCK": "3",
            "BYTEPS_AB_WARMUP_STEPS": "0",
            "BYTEPS_AB_STEPS": "100",
            "BYTEPS_STAGE_TIMES": "0",
        }
        found = read(settings, JOB | environ)
        assert (found.record, found.cell) == (environ["BYTEPS_AB_RECORD"], environ["BYTEPS_AB_CELL"])
        assert (found.block, found.warmup_steps, found.measured_steps, found.stage_times) == (3, 0, 100, False)

    def test_values(self) -> None:
        worker = read(
            WorkerSettings,
            JOB
            | {
                "DMLC_WORKER_ID": "1",
                "BYTEPS_LOCAL_RANK": " 3 ",
                "BYTEPS_LOCAL_SIZE": "4",
                "BYTEPS_PARTITION_BYTES": "1024000",
                "BYTEPS_FORCE_DISTRIBUTED": "Yes",
                "BYTEPS_KERNELS": "Reference",
                "BYTEPS_LOG_LEVEL": "WARNING",
                "BYTEPS_LOST_TIMEOUT": "2.5",
                "DMLC_NODE_HOST": " node-a ",
                "OMP_NUM_THREADS": "4,2",
            },
        )
        assert (worker.worker_id, worker.local_rank, worker.local_size) == (1, 3, 4)
        assert worker.partition_bytes == 1024000
        assert worker.force_distributed is True
        assert (worker.kernels, worker.log_level) == ("reference", "warning")
        assert worker.lost_timeout == 2.5
        assert worker.node_host == "node-a"
        assert worker.omp_num_threads == 4

    def test_an_empty_value_counts_as_not_set(self) -> None:
        assert read(WorkerSettings, JOB | {"BYTEPS_LOCAL_RANK": "", "DMLC_WORKER_ID": " "}).worker_id is None
        assert problems(SchedulerSettings, JOB | {"DMLC_PS_ROOT_URI": " "}) == (
            "DMLC_PS_ROOT_URI is not set: address of the scheduler; expected a host name or an address",
        )

    def test_the_environment_of_the_process_is_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in JOB.items():
            monkeypatch.setenv(name, value)
        assert read(ServerSettings).root_port == 9000

    def test_settings_do_not_change(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            read(WorkerSettings, JOB).local_rank = 1  # type: ignore[misc]


class TestPrecedence:
    """The variable of a role, then OpenMP's own, then BytePS's, then the default."""

    @pytest.mark.parametrize(
        ("changes", "server", "worker"),
        [
            ({}, ("passive", None), (None, None)),
            ({"OMP_WAIT_POLICY": "ACTIVE"}, ("active", None), ("active", None)),
            ({"BYTEPS_OMP_THREAD_PER_GPU": "4"}, ("passive", 4), (None, 4)),
            ({"BYTEPS_OMP_THREAD_PER_GPU": "4", "OMP_NUM_THREADS": "3,2"}, ("passive", 3), (None, 3)),
            (
                {"BYTEPS_SERVER_OMP_NUM_THREADS": "2", "BYTEPS_WORKER_OMP_WAIT_POLICY": " Active "},
                ("passive", 2),
                ("active", None),
            ),
            (
                {
                    "BYTEPS_SERVER_OMP_WAIT_POLICY": "active",
                    "BYTEPS_WORKER_OMP_NUM_THREADS": "5",
                    "OMP_WAIT_POLICY": "passive",
                    "OMP_NUM_THREADS": "6",
                },
                ("active", 6),
                ("passive", 5),
            ),
            ({"BYTEPS_SERVER_OMP_WAIT_POLICY": " ", "OMP_WAIT_POLICY": "active"}, ("active", None), ("active", None)),
            (
                {
                    "BYTEPS_SERVER_OMP_WAIT_POLICY": "active",
                    "BYTEPS_WORKER_OMP_WAIT_POLICY": "active",
                    "OMP_WAIT_POLICY": "?",
                },
                ("active", None),
                ("active", None),
            ),
        ],
    )
    def test_openmp(
        self, changes: dict[str, str], server: tuple[str, int | None], worker: tuple[str | None, int | None]
    ) -> None:
        found = read(ServerSettings, JOB | changes)
        assert (found.omp_wait_policy, found.omp_num_threads) == server
        own = read(WorkerSettings, JOB | changes)
        assert (own.omp_wait_policy, own.omp_num_threads) == worker

    def test_a_bad_value_is_named_as_it_was_spelt(self) -> None:
        (problem,) = problems(ServerSettings, JOB | {"OMP_WAIT_POLICY": "eager"})
        assert problem == "OMP_WAIT_POLICY='eager' must be one of passive, active (how idle OpenMP threads wait)"

    @pytest.mark.parametrize(
        ("text", "host"),
        [
            ("10.0.0.1", "10.0.0.1"),
            ("node-1.my_cluster.example.", "node-1.my_cluster.example."),
            ("bücher.example", "bücher.example"),
            ("fd00::1", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            (" fe80::1%eth0 ", "fe80::1%eth0"),
        ],
    )
    def test_a_host(self, text: str, host: str) -> None:
        assert read(WorkerSettings, JOB | {"DMLC_PS_ROOT_URI": text}).root_uri == host

    def test_cores(self) -> None:
        lists = read(WorkerSettings, JOB | {"BYTEPS_VISIBLE_CPU_CORES": "0-2,8:4"}).visible_cores
        assert lists == (frozenset({0, 1, 2, 8}), frozenset({4}))
        for text, cores in (("-1", set()), (" 0, 3-4", {0, 3, 4})):
            assert read(ServerSettings, JOB | {"BYTEPS_CPU_BLACKLIST": text}).cpu_blacklist == cores

    def test_connections_and_io_threads(self) -> None:
        environ = JOB | {"BYTEPS_TCP_CONNECTIONS": "16", "BYTEPS_IO_THREADS": "2"}
        worker, server = read(WorkerSettings, environ), read(ServerSettings, environ)
        assert (worker.tcp_connections, worker.io_threads, server.io_threads) == (16, 2, 2)


class TestProblems:
    def test_a_word_instead_of_a_number(self) -> None:
        assert problems(SchedulerSettings, JOB | {"DMLC_NUM_WORKER": "two"}) == (
            "DMLC_NUM_WORKER='two' must be a whole number from 1 to 65535 (number of worker machines)",
        )

    def test_a_word_that_belongs_to_an_option(self) -> None:
        (text,) = problems(WorkerSettings, JOB | {"DMLC_NUM_SERVER": "Auto"})
        assert text == (
            "DMLC_NUM_SERVER='Auto' must be a whole number from 0 to 65535 (number of server processes): auto is "
            "for `bpslaunch -s` alone, on one machine; for several `bps plan` finds the number"
        )

    @pytest.mark.parametrize("settings", CLASSES)
    def test_everything_that_is_missing_is_listed(self, settings: type[JobSettings]) -> None:
        found = problems(settings, {})
        assert [each.split(" ")[0] for each in found] == list(JOB)
        assert all("is not set" in each for each in found)

    def test_missing_bad_and_contradicting_ones_are_told_together(self) -> None:
        environ = {
            "DMLC_NUM_WORKER": "2",
            "DMLC_PS_ROOT_PORT": "99999",
            "DMLC_NUM_SERVER": "0",
            "DMLC_WORKER_ID": "2",
            "BYTEPS_LOCAL_RANK": "2",
            "BYTEPS_LOCAL_SIZE": "2",
            "BYTEPS_KERNELS": "fast",
        }
        found = problems(WorkerSettings, environ)
        assert [each.split(" ")[0].split("=")[0] for each in found] == [
            "DMLC_PS_ROOT_URI",
            "DMLC_PS_ROOT_PORT",
            "BYTEPS_KERNELS",
            "DMLC_NUM_SERVER",
            "BYTEPS_LOCAL_RANK",
            "DMLC_WORKER_ID",
        ]
        with pytest.raises(SettingsError, match="\n".join(re.escape(each) for each in found)):
            read(WorkerSettings, environ)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("DMLC_NUM_WORKER", "0"),
            ("DMLC_NUM_WORKER", "-1"),
            ("DMLC_NUM_WORKER", "1.0"),
            ("DMLC_NUM_WORKER", "1_0"),
            ("DMLC_NUM_WORKER", "٣"),
            ("DMLC_NUM_WORKER", "0x10"),
            pytest.param("DMLC_NUM_WORKER", "9" * 5000, id="more digits than int() takes"),
            ("DMLC_NUM_SERVER", "65536"),
            ("DMLC_PS_ROOT_PORT", "0"),
            ("DMLC_PS_ROOT_URI", "x" * 256),
            ("DMLC_PS_ROOT_URI", "a\nb"),
            ("DMLC_PS_ROOT_URI", "10.0.0.1:9000"),
            ("DMLC_PS_ROOT_URI", "tcp://10.0.0.1"),
            ("DMLC_PS_ROOT_URI", "fd00::1::2"),
            ("DMLC_NODE_HOST", "two words"),
            ("BYTEPS_FORCE_DISTRIBUTED", "maybe"),
            ("BYTEPS_START_TIMEOUT", "nan"),
            ("BYTEPS_START_TIMEOUT", "inf"),
            ("BYTEPS_START_TIMEOUT", "soon"),
            ("BYTEPS_LOST_TIMEOUT", "1"),
            ("BYTEPS_LOG_LEVEL", "loud"),
            ("BYTEPS_PARTITION_BYTES", "63"),
            ("BYTEPS_PARTITION_BYTES", str(2**30 + 1)),
            ("BYTEPS_LOST_TIMEOUT", "1e7"),
            ("BYTEPS_LOST_TIMEOUT", "1_0"),
            ("BYTEPS_LOST_TIMEOUT", "٣"),
            ("BYTEPS_GRACE_PERIOD", "-inf"),
            ("BYTEPS_STALL_TIMEOUT", "NaN"),
            ("BYTEPS_PARTITION_BYTES", "1e3"),
            ("PS_VERBOSE", "3"),
            ("BYTEPS_PORT_RANGE", "9009-9000"),
            ("BYTEPS_PORT_RANGE", "9000:9009"),
            ("BYTEPS_AB_CELL", "a/b"),
            ("BYTEPS_AB_CELL", "passive\u00e9"),
            ("BYTEPS_AB_BLOCK", "-1"),
            ("BYTEPS_AB_STEPS", "all"),
            ("BYTEPS_AB_RECORD", "x" * 4096),
            ("BYTEPS_STAGE_TIMES", "2"),
            ("BYTEPS_TCP_CONNECTIONS", "0"),
            ("BYTEPS_TCP_CONNECTIONS", "17"),
            ("BYTEPS_IO_THREADS", "0"),
            ("BYTEPS_IO_THREADS", "17"),
            ("OMP_NUM_THREADS", "0"),
            ("OMP_NUM_THREADS", "many"),
            ("OMP_WAIT_POLICY", "eager"),
            ("BYTEPS_WORKER_OMP_WAIT_POLICY", "1"),
            ("BYTEPS_OMP_THREAD_PER_GPU", "four"),
            ("BYTEPS_VISIBLE_CPU_CORES", "0-"),
            ("BYTEPS_VISIBLE_CPU_CORES", "3-1"),
            ("BYTEPS_VISIBLE_CPU_CORES", "0::1"),
            ("BYTEPS_VISIBLE_CPU_CORES", "0,a"),
            ("BYTEPS_VISIBLE_CPU_CORES", "0-999999999"),
            ("BYTEPS_CPU_BLACKLIST", "-2"),
            ("BYTEPS_CPU_BLACKLIST", "0:1"),
            ("BYTEPS_NUMA_ON", "two"),
            ("BYTEPS_NUMA_DEFAULT_QUOTA", "-1"),
            ("BYTEPS_NUMA_ROOT_QUOTA", "half"),
        ],
    )
    def test_a_bad_value_is_named_with_the_form_expected(self, name: str, value: str) -> None:
        (problem,) = problems(WorkerSettings, JOB | {name: value})
        variables = {name: each for _, each in variables_of(WorkerSettings) for name in each.names}
        assert problem == f"{name}={value!r} must be {variables[name].form} ({variables[name].meaning})"

    def test_a_bad_value_is_not_compared_with_others(self) -> None:
        (problem,) = problems(WorkerSettings, JOB | {"BYTEPS_LOCAL_RANK": "5", "BYTEPS_LOCAL_SIZE": "many"})
        assert problem.startswith("BYTEPS_LOCAL_SIZE='many'")

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"DMLC_NUM_SERVER": "0"}, "DMLC_NUM_SERVER=0: a job of several workers"),
            (
                {"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "0", "BYTEPS_FORCE_DISTRIBUTED": "1"},
                "DMLC_NUM_SERVER=0: a job of several workers, or a forced one, needs at least one server",
            ),
            ({"BYTEPS_LOCAL_RANK": "1"}, "BYTEPS_LOCAL_RANK=1 must be less than BYTEPS_LOCAL_SIZE=1"),
            ({"DMLC_WORKER_ID": "2"}, "DMLC_WORKER_ID=2 must be less than DMLC_NUM_WORKER=2"),
            (
                {"BYTEPS_PORT_RANGE": "9001-9009"},
                "DMLC_PS_ROOT_PORT=9000 must lie in BYTEPS_PORT_RANGE=9001-9009: every port that is listened at does",
            ),
        ],
    )
    def test_contradictions(self, changes: dict[str, str], problem: str) -> None:
        (found,) = problems(WorkerSettings, JOB | changes)
        assert found.startswith(problem)

    @pytest.mark.parametrize(("port", "good"), [("8999", False), ("9000", True), ("9009", True), ("0", True)])
    def test_a_servers_port_lies_in_the_range(self, port: str, good: bool) -> None:
        environ = JOB | {"BYTEPS_PORT_RANGE": "9000-9009", "DMLC_PORT": port}
        if good:
            assert read(ServerSettings, environ).port == int(port)
        else:
            assert problems(ServerSettings, environ)[0].startswith(
                "DMLC_PORT=8999 must lie in BYTEPS_PORT_RANGE=9000-9009"
            )

    def test_no_server_is_needed_for_one_worker(self) -> None:
        assert read(WorkerSettings, JOB | {"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "0"}).num_server == 0

    @pytest.mark.parametrize("root", ["0.0.0.0", "::", "[::]"])
    def test_nobody_can_connect_to_all_addresses(self, root: str) -> None:
        environ = {**JOB, "DMLC_PS_ROOT_URI": root}
        for settings in (ServerSettings, WorkerSettings):
            assert "the name by which the scheduler is reached" in problems(settings, environ)[0]
        assert read(SchedulerSettings, environ).root_uri in ("0.0.0.0", "::")


class TestRole:
    @pytest.mark.parametrize(
        ("text", "role"),
        [("worker", Role.WORKER), ("Server", Role.SERVER), (" SCHEDULER ", Role.SCHEDULER), ("", None)],
    )
    def test_any_case(self, text: str, role: Role | None) -> None:
        assert read_role({"DMLC_ROLE": text}) is role

    def test_not_set(self) -> None:
        assert read_role({}) is None

    def test_a_word_that_is_no_role(self) -> None:
        with pytest.raises(SettingsError, match="DMLC_ROLE='joint' must be one of scheduler, server, worker"):
            read_role({"DMLC_ROLE": "joint"})

    @pytest.mark.parametrize(
        ("role", "settings"), list(zip((Role.SCHEDULER, Role.SERVER, Role.WORKER), CLASSES, strict=True))
    )
    def test_each_role_has_its_class(self, role: Role, settings: type[JobSettings]) -> None:
        assert settings_class(role) is settings


class TestAlone:
    @pytest.mark.parametrize(
        ("environ", "alone"),
        [
            ({}, True),
            ({"BYTEPS_LOCAL_SIZE": "1"}, True),
            ({"DMLC_ROLE": "worker"}, False),
            ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1"}, True),
            ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}, False),
            ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "BYTEPS_LOCAL_SIZE": "2"}, False),
            ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "BYTEPS_FORCE_DISTRIBUTED": "1"}, False),
            ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "BYTEPS_FORCE_DISTRIBUTED": "off"}, True),
        ],
    )
    def test_runs_alone(self, environ: dict[str, str], alone: bool) -> None:
        assert runs_alone(environ) is alone

    @pytest.mark.parametrize(
        ("name", "value"),
        [("DMLC_NUM_WORKER", "2"), ("BYTEPS_LOCAL_SIZE", "4"), ("BYTEPS_FORCE_DISTRIBUTED", "1")],
    )
    def test_a_job_without_a_role_is_an_error(self, name: str, value: str) -> None:
        with pytest.raises(SettingsError, match=f"DMLC_ROLE is not set, but {name}.* set DMLC_ROLE=worker"):
            runs_alone({name: value})

    @pytest.mark.parametrize(
        ("changes", "distributed"),
        [
            ({}, True),
            ({"DMLC_NUM_WORKER": "1"}, False),
            ({"DMLC_NUM_WORKER": "1", "BYTEPS_LOCAL_SIZE": "2"}, True),
            ({"DMLC_NUM_WORKER": "1", "BYTEPS_FORCE_DISTRIBUTED": "1"}, True),
        ],
    )
    def test_is_distributed(self, changes: dict[str, str], distributed: bool) -> None:
        assert is_distributed(read(WorkerSettings, JOB | changes)) is distributed


@pytest.mark.parametrize(("text", "native"), [("", True), ("native", True), (" Reference ", False)])
def test_wants_native_kernels(text: str, native: bool) -> None:
    assert wants_native_kernels({"BYTEPS_KERNELS": text}) is native
    assert wants_native_kernels({})


class TestTable:
    def test_docs_are_made_from_the_table(self, tmp_path: Path) -> None:
        script: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "env_docs.py"))
        script["main"]([str(tmp_path / "env.md")])
        made = (tmp_path / "env.md").read_text(encoding="utf-8")
        assert made == (ROOT / "docs" / "env.md").read_text(encoding="utf-8"), "run `make docs`"
        for settings in (*CLASSES, LaunchSettings):
            for _, variable in variables_of(settings):
                names = ", else ".join(f"`{name}`" for name in variable.names)
                assert f"| {names} | {variable.form} |" in made

    def test_defaults_are_told_as_they_are(self) -> None:
        for settings in CLASSES:
            for name, variable in variables_of(settings):
                field = next(each for each in dataclasses.fields(settings) if each.name == name)
                if field.default is dataclasses.MISSING:
                    assert variable.default is None
                elif field.default is not None and variable.default:
                    assert variable.parse(variable.default) == field.default

    def test_every_variable_that_the_package_speaks_of_is_in_the_table(self) -> None:
        known = {*KNOWN, "OMP_DISPLAY_ENV"}  # which is only set, for the OpenMP runtime
        spoken: set[str] = set()
        for folder in (ROOT / "byteps_py", ROOT / "launcher"):
            for path in folder.rglob("*.py"):
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        spoken |= set(re.findall(r"\b(?:DMLC|BYTEPS|OMP)_[A-Z_]*[A-Z]\b", node.value))
        assert spoken - known == set()
        assert "DMLC_NUM_WORKER" in spoken
