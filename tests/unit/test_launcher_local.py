"""The plan of a local job: which processes, and with which environment."""

from __future__ import annotations

import pytest

from byteps_py.errors import SettingsError
from byteps_py.launcher.arguments import Options
from byteps_py.launcher.local import Draw, Machine, Plan, plan_job
from byteps_py.launcher.processes import module_command
from byteps_py.launcher.topology import flat
from byteps_py.settings import ServerSettings, WorkerSettings, read
from byteps_py.startup_folder import FOLDER
from byteps_py.types import Role

MACHINE = Machine(flat(range(8)), devices=0)
DRAW = Draw(port=40123, job_id="3f", launch_id="9a")
COMMAND = ("python", "train.py", "--name", "two words")


def plan(
    workers: int | None = None,
    servers: int | None = None,
    environ: dict[str, str] | None = None,
    machine: Machine = MACHINE,
    **options: object,
) -> Plan:
    chosen = Options(COMMAND, workers, **{"num_servers": servers, **options})  # type: ignore[arg-type]
    return plan_job(chosen, environ or {}, machine, DRAW)


def environment(made: Plan, label: str) -> dict[str, str]:
    (found,) = (spec for spec in made.specs if spec.label == label)
    return dict(found.environment)


def test_two_workers_and_two_servers() -> None:
    made = plan(2, 2)
    assert [spec.label for spec in made.specs] == ["scheduler", "server 0", "server 1", "worker 0", "worker 1"]
    for spec in made.specs:
        service = module_command("byteps_py", str(spec.role))
        assert spec.argv == (COMMAND if spec.role is Role.WORKER else service)
        assert spec.environment["DMLC_ROLE"] == str(spec.role)
        assert not spec.read_stdin


def test_the_environment_of_a_worker() -> None:
    assert environment(plan(2, 1, {"HOME": "/root"}), "worker 1") == {
        "HOME": "/root",
        "DMLC_ROLE": "worker",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_WORKER_ID": "0",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "40123",
        "DMLC_NODE_HOST": "127.0.0.1",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_JOB_ID": "3f",
        "BYTEPS_LAUNCH_ID": "9a",
        "BYTEPS_LOCAL_RANK": "1",
        "BYTEPS_LOCAL_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "BYTEPS_START_TIMEOUT": "0",
        "OMP_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
    }


def test_workers_alone_get_the_folder_of_the_name_byteps() -> None:
    made = plan(2, 1, {"PYTHONPATH": "/a"}, compat=True)
    found = {spec.label: spec.environment["PYTHONPATH"] for spec in made.specs}
    both = f"{FOLDER}:/a"
    assert found == {"scheduler": "/a", "server 0": "/a", "worker 0": both, "worker 1": both}
    assert environment(plan(1, compat=True), "worker 0")["PYTHONPATH"] == FOLDER


def test_the_settings_of_each_role_accept_it() -> None:
    made = plan(3, 2)
    worker = read(WorkerSettings, environment(made, "worker 2"))
    assert (worker.local_rank, worker.local_size, worker.num_server, worker.root_port) == (2, 3, 2, 40123)
    server = read(ServerSettings, environment(made, "server 1"))
    assert (server.job_id, server.node_host, server.force_distributed) == ("3f", "127.0.0.1", True)


def test_one_worker_needs_nobody_else() -> None:
    made = plan(1)
    assert [spec.label for spec in made.specs] == ["worker 0"]
    assert made.specs[0].read_stdin
    found = environment(made, "worker 0")
    assert "DMLC_ROLE" not in found
    assert "DMLC_PS_ROOT_URI" not in found
    assert found["DMLC_NUM_WORKER"] == found["BYTEPS_LOCAL_SIZE"] == "1"
    assert found["OMP_NUM_THREADS"] == "8"
    assert made.notes == ("1 worker, no server, nothing to connect; worker: OMP_NUM_THREADS=8",)


def test_options_of_servers_have_no_effect_without_one() -> None:
    made = plan(1, omp_wait_policy="active", omp_num_threads=3)
    assert made.notes[0] == (
        "no server is started here, so this is not used: --omp-wait-policy active --omp-num-threads 3 "
        "(for workers: --worker-omp-wait-policy and --worker-omp-num-threads)"
    )
    assert environment(made, "worker 0").items() >= {"OMP_NUM_THREADS": "8"}.items()
    assert len(made.notes) == 2
    assert len(plan(1, 1, omp_num_threads=3).notes) == 1


@pytest.mark.parametrize(
    ("workers", "servers", "environ", "devices", "expected"),
    [
        (None, None, {}, 0, (1, 0)),
        (None, None, {}, 4, (4, 1)),
        (2, None, {}, 4, (2, 1)),
        (1, 1, {}, 0, (1, 1)),
        (1, 0, {}, 0, (1, 0)),
        (1, None, {"BYTEPS_FORCE_DISTRIBUTED": "1"}, 0, (1, 1)),
        (1, None, {"BYTEPS_FORCE_DISTRIBUTED": "0"}, 0, (1, 0)),
        (3, 2, {}, 0, (3, 2)),
    ],
)
def test_counts(
    workers: int | None, servers: int | None, environ: dict[str, str], devices: int, expected: tuple[int, int]
) -> None:
    made = plan(workers, servers, environ, Machine(flat(range(8)), devices))
    roles = [spec.role for spec in made.specs]
    assert (roles.count(Role.WORKER), roles.count(Role.SERVER)) == expected
    assert roles.count(Role.SCHEDULER) == (1 if expected[1] else 0)


@pytest.mark.parametrize(
    ("workers", "environ", "cores", "note"),
    [
        (1, {}, 8, "-s auto: 0 servers for 1 worker: one worker needs none"),
        (
            1,
            {"BYTEPS_FORCE_DISTRIBUTED": "1"},
            8,
            "-s auto: 1 server for 1 worker: more would not be faster, limited by",
        ),
        (2, {}, 2, "-s auto: 1 server for 2 workers: 2 cores have no room for more beside the workers"),
        (
            8,
            {"BYTEPS_CPU_BLACKLIST": "0-7"},
            16,
            "-s auto: 1 server for 8 workers: 8 cores have no room for more beside the workers",
        ),
        (8, {"BYTEPS_CPU_BLACKLIST": "0-7", "BYTEPS_NUMA_ON": "0"}, 16, "-s auto: 3 servers for 8 workers: with one"),
        (8, {}, 16, "-s auto: 3 servers for 8 workers: with one less an exchange takes "),
    ],
)
def test_as_many_servers_as_the_machine_makes_good_use_of(
    workers: int, environ: dict[str, str], cores: int, note: str
) -> None:
    made = plan(workers, environ=environ, machine=Machine(flat(range(cores)), 0), num_servers="auto")
    (found,) = (each for each in made.notes if "auto" in each)
    assert found.startswith(note)
    assert [spec.role for spec in made.specs].count(Role.SERVER) == int(note.split()[2])


@pytest.mark.parametrize(
    ("workers", "environ", "message"),
    [
        (2, {}, "-s 0 with 2 workers"),
        (1, {"BYTEPS_FORCE_DISTRIBUTED": "1"}, "-s 0 with BYTEPS_FORCE_DISTRIBUTED=1"),
    ],
)
def test_several_workers_need_a_server(workers: int, environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan(workers, 0, environ)


def test_bad_values_of_all_roles_are_told_together() -> None:
    environ = {
        "BYTEPS_SERVER_ENGINE_THREAD": "many",
        "BYTEPS_PARTITION_BYTES": "-1",
        "BYTEPS_LOG_LEVEL": "loud",
    }
    with pytest.raises(SettingsError) as caught:
        plan(2, 1, environ)
    assert len(caught.value.problems) == 3
    for name in environ:
        assert sum(name in problem for problem in caught.value.problems) == 1


def test_a_bad_switch_is_told() -> None:
    with pytest.raises(SettingsError, match="BYTEPS_FORCE_DISTRIBUTED='perhaps' must be 0 or 1"):
        plan(1, None, {"BYTEPS_FORCE_DISTRIBUTED": "perhaps"})


def test_another_jobs_variables_do_not_leak_in() -> None:
    outer = {
        "DMLC_NUM_WORKER": "4",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PORT": "9000",
        "DMLC_INTERFACE": "eth0",
        "DMLC_ROLE": "",
        "BYTEPS_LOCAL_RANK": "7",
        "BYTEPS_JOB_ID": "other",
        "BYTEPS_PARTITION_BYTES": "4096",
    }
    made = plan(2, 1, outer)
    for spec in made.specs:
        assert spec.environment["DMLC_NUM_WORKER"] == "1"
        assert spec.environment["DMLC_PS_ROOT_URI"] == "127.0.0.1"
        assert spec.environment["BYTEPS_JOB_ID"] == "3f"
        assert spec.environment["BYTEPS_PARTITION_BYTES"] == "4096"
        assert "DMLC_PORT" not in spec.environment
        assert "DMLC_INTERFACE" not in spec.environment
        assert spec.environment.get("BYTEPS_LOCAL_RANK") != "7"
    assert len(made.notes) == 2
    for text in ("DMLC_NUM_WORKER=4", "DMLC_PS_ROOT_URI=10.0.0.1", "DMLC_PORT=9000", "BYTEPS_JOB_ID=other"):
        assert text in made.notes[0]
    assert "DMLC_ROLE" not in made.notes[0]


def test_cores_are_shared_among_workers_and_servers() -> None:
    made = plan(2, 2, machine=Machine(flat(range(9)), 0))
    assert environment(made, "worker 0")["OMP_NUM_THREADS"] == "2"
    server = environment(made, "server 1")
    assert (server["OMP_NUM_THREADS"], server["OMP_WAIT_POLICY"]) == ("2", "passive")
    assert "OMP_WAIT_POLICY" not in environment(made, "worker 0")
    assert environment(plan(4, 1, machine=Machine(flat(range(2)), 0)), "worker 3")["OMP_NUM_THREADS"] == "1"


def test_engine_threads_split_a_servers_share() -> None:
    made = plan(1, 1, {"BYTEPS_SERVER_ENGINE_THREAD": "2"}, Machine(flat(range(16)), 0))
    assert environment(made, "server 0")["OMP_NUM_THREADS"] == "4"


def test_openmp_flags_are_per_role() -> None:
    made = plan(
        2,
        1,
        {"OMP_NUM_THREADS": "5"},
        omp_wait_policy="active",
        worker_omp_wait_policy="passive",
        worker_omp_num_threads=3,
    )
    server, worker = environment(made, "server 0"), environment(made, "worker 0")
    assert (server["OMP_WAIT_POLICY"], server["OMP_NUM_THREADS"]) == ("active", "5")
    assert (worker["OMP_WAIT_POLICY"], worker["OMP_NUM_THREADS"]) == ("passive", "3")


def test_the_line_that_says_what_was_started() -> None:
    assert plan(2, 1).notes == (
        "2 workers, 1 server, scheduler on 127.0.0.1:40123, job 3f; "
        "server: OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2; workers: OMP_NUM_THREADS=2",
    )


def test_what_belongs_to_an_option_is_no_value_of_the_variable() -> None:
    assert plan(2, 1, {"DMLC_NUM_SERVER": "AUTO"}).notes[0] == (
        "the whole job runs here, so these are not used: DMLC_NUM_SERVER=AUTO (auto is a value of the option: "
        "bpslaunch -s auto)"
    )


@pytest.mark.parametrize(("option", "expected"), [(None, "0"), ("7.5", "7.5")])
def test_the_launcher_sees_its_workers_so_only_an_option_limits_the_start(option: str | None, expected: str) -> None:
    made = plan(2, 1, {"BYTEPS_START_TIMEOUT": "60"}, start_timeout=option)
    assert {spec.environment["BYTEPS_START_TIMEOUT"] for spec in made.specs} == {expected}
    assert made.notes[0] == "the whole job runs here, so these are not used: BYTEPS_START_TIMEOUT=60"


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, "warning"),
        ({"BYTEPS_LOG_LEVEL": " "}, "warning"),
        ({"BYTEPS_LOG_LEVEL": "debug"}, "debug"),
        ({"PS_VERBOSE": "1"}, None),
    ],
)
def test_services_beside_a_script_say_only_what_is_amiss(environ: dict[str, str], level: str | None) -> None:
    made = plan(2, 1, environ)
    assert environment(made, "scheduler").get("BYTEPS_LOG_LEVEL") == level
    assert environment(made, "server 0").get("BYTEPS_LOG_LEVEL") == level
    assert environment(made, "worker 0").get("BYTEPS_LOG_LEVEL") == environ.get("BYTEPS_LOG_LEVEL")


def test_servers_listen_where_the_launcher_holds_a_port() -> None:
    draw = Draw(port=20000, job_id="3f", launch_id="9a", server_ports=(20001, 20002))
    made = plan_job(Options(COMMAND, 2, 2), {"BYTEPS_PORT_RANGE": "20000-20009"}, MACHINE, draw)
    assert [spec.environment.get("DMLC_PORT") for spec in made.specs] == [None, "20001", "20002", None, None]
    assert read(ServerSettings, environment(made, "server 1")).port == 20002


def test_workers_are_bound_to_cores_and_have_as_many_threads() -> None:
    made = plan(2, 1, {"BYTEPS_VISIBLE_CPU_CORES": "0-2:5"})
    assert [spec.cores for spec in made.specs] == [None, None, frozenset({0, 1, 2}), frozenset({5})]
    assert [spec.environment["OMP_NUM_THREADS"] for spec in made.specs[1:]] == ["2", "3", "1"]
    assert made.notes[-2].endswith("workers: OMP_NUM_THREADS=3, OMP_NUM_THREADS=1")
    assert made.notes[-1] == "cores by BYTEPS_VISIBLE_CPU_CORES (1 NUMA node): worker 0: 0-2; worker 1: 5"


def test_servers_are_bound_by_the_option_and_know_their_cores() -> None:
    foreign = {"BYTEPS_SERVER_CORES": "99"}
    made = plan(2, 2, foreign, Machine(flat(range(9)), 0), numa_binding="exclusive")
    assert [spec.cores for spec in made.specs] == [
        None,
        frozenset({4, 5}),
        frozenset({6, 7, 8}),
        frozenset({0, 1}),
        frozenset({2, 3}),
    ]
    assert [spec.environment.get("OMP_NUM_THREADS") for spec in made.specs] == [None, "2", "3", "2", "2"]
    assert [spec.environment.get("BYTEPS_SERVER_CORES") for spec in made.specs] == [None, "2", "3", None, None]
    assert read(ServerSettings, environment(made, "server 1")).cores == 3
    assert "BYTEPS_SERVER_CORES=99" in made.notes[0]
    with pytest.raises(SettingsError, match="needs a physical core for each of 4 processes"):
        plan(2, 2, None, Machine(flat(range(3)), 0), numa_binding="exclusive")


def test_cores_that_are_kept_free_of_all_roles() -> None:
    made = plan(2, 1, {"BYTEPS_CPU_BLACKLIST": "0-1"})
    assert {spec.cores for spec in made.specs} == {frozenset(range(2, 8))}
    assert [spec.environment.get("OMP_NUM_THREADS") for spec in made.specs] == [None, "2", "2", "2"]


def test_a_bad_value_is_told_for_a_worker_alone_too() -> None:
    with pytest.raises(SettingsError) as caught:
        plan(1, None, {"BYTEPS_VISIBLE_CPU_CORES": "first", "OMP_WAIT_POLICY": "eager"})
    assert [problem.partition("=")[0] for problem in caught.value.problems] == [
        "BYTEPS_VISIBLE_CPU_CORES",
        "OMP_WAIT_POLICY",
    ]


def test_the_variable_of_a_role_concerns_that_role_alone() -> None:
    made = plan(2, 1, {"BYTEPS_SERVER_OMP_WAIT_POLICY": "active", "BYTEPS_WORKER_OMP_NUM_THREADS": "3"})
    server, worker = environment(made, "server 0"), environment(made, "worker 0")
    assert (server["OMP_WAIT_POLICY"], server["OMP_NUM_THREADS"]) == ("active", "2")
    assert "OMP_WAIT_POLICY" not in worker
    assert worker["OMP_NUM_THREADS"] == "3"


def test_a_worker_alone_was_told_by_the_launcher_what_has_no_effect() -> None:
    assert environment(plan(1), "worker 0")["BYTEPS_LAUNCH_ID"] == "9a"
