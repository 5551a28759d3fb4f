"""One role of a job that spans machines: what is planned, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from byteps_py.errors import SettingsError
from byteps_py.launcher import role
from byteps_py.launcher.arguments import Options
from byteps_py.launcher.binding import bind
from byteps_py.launcher.processes import ProcessSpec, module_command
from byteps_py.launcher.role import plan_workers, run_role
from byteps_py.launcher.topology import flat
from byteps_py.settings import WorkerSettings, read
from byteps_py.startup_folder import FOLDER
from byteps_py.types import Role

JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}
OPTIONS = Options(("python", "train.py"))


def settings(**changed: str) -> WorkerSettings:
    return read(WorkerSettings, {**JOB, **changed})


def test_each_local_worker_has_its_own_rank() -> None:
    environ = {**JOB, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1"}
    specs = plan_workers(
        OPTIONS,
        environ,
        settings(DMLC_WORKER_ID="1", BYTEPS_LOCAL_SIZE="3"),
        bind({}, None, flat(range(8)), 3),
        launch_id="9a",
    )
    assert [spec.label for spec in specs] == ["worker 1.0", "worker 1.1", "worker 1.2"]
    for index, spec in enumerate(specs):
        assert spec.argv == OPTIONS.command
        assert not spec.read_stdin
        assert spec.environment == {
            **environ,
            "BYTEPS_LOCAL_RANK": str(index),
            "BYTEPS_LOCAL_SIZE": "3",
            "LOCAL_RANK": str(index),
            "LOCAL_WORLD_SIZE": "3",
            "BYTEPS_LAUNCH_ID": "9a",
            "OMP_NUM_THREADS": "2",
            "PYTHONUNBUFFERED": "1",
        }


def test_workers_get_the_folder_of_the_name_byteps() -> None:
    options = dataclasses.replace(OPTIONS, compat=True)
    specs = plan_workers(options, JOB, settings(BYTEPS_LOCAL_SIZE="2"), bind({}, None, flat({0}), 2), launch_id="9a")
    assert [spec.environment["PYTHONPATH"] for spec in specs] == [FOLDER, FOLDER]


@pytest.mark.parametrize(
    ("variables", "label"),
    [
        ({"DMLC_WORKER_ID": "1"}, "worker 1"),
        ({}, "worker local 0"),
        ({"DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}, "worker 0.0"),
    ],
)
def test_labels_never_claim_a_rank_that_only_the_scheduler_knows(variables: dict[str, str], label: str) -> None:
    found = settings(**variables)
    specs = plan_workers(OPTIONS, JOB, found, bind({}, None, flat({0}), found.local_size), launch_id="9a")
    assert specs[0].label == label
    assert specs[0].read_stdin == (len(specs) == 1)
    assert specs[0].environment["OMP_NUM_THREADS"] == "1"


def test_worker_flags_and_exported_values() -> None:
    options = dataclasses.replace(OPTIONS, worker_omp_wait_policy="active", omp_num_threads=7)
    (spec,) = plan_workers(
        options, {**JOB, "OMP_NUM_THREADS": "5"}, settings(), bind({}, None, flat(range(8)), 1), launch_id="9a"
    )
    assert (spec.environment["OMP_WAIT_POLICY"], spec.environment["OMP_NUM_THREADS"]) == ("active", "5")


@pytest.mark.parametrize("which", list(Role))
def test_every_missing_variable_is_told(which: Role) -> None:
    with pytest.raises(SettingsError) as caught:
        run_role(which, OPTIONS, {"DMLC_ROLE": str(which)})
    assert [problem.split()[0] for problem in caught.value.problems] == list(JOB)


def test_a_bad_value_is_told_beside_the_missing_ones() -> None:
    with pytest.raises(SettingsError) as caught:
        run_role(Role.WORKER, OPTIONS, {"DMLC_NUM_WORKER": "two", "BYTEPS_LOCAL_SIZE": "0"})
    problems = "\n".join(caught.value.problems)
    assert "DMLC_NUM_WORKER='two' must be a whole number from 1 to 65535" in problems
    assert "BYTEPS_LOCAL_SIZE='0'" in problems
    assert "DMLC_PS_ROOT_URI is not set" in problems


@pytest.mark.parametrize("which", list(Role))
def test_the_number_of_servers_of_a_whole_job_does_not_go_with_a_role(which: Role) -> None:
    with pytest.raises(
        SettingsError, match=f"-s starts servers for a whole job .* DMLC_ROLE={which} asks for one role"
    ):
        run_role(which, Options(("true",), num_servers=1), JOB)


@pytest.mark.parametrize("which", list(Role))
def test_a_number_of_servers_that_all_must_know_is_not_chosen_by_one(which: Role) -> None:
    with pytest.raises(
        SettingsError, match=f"-s auto .* DMLC_ROLE={which} .* `bps plan` finds it, and DMLC_NUM_SERVER"
    ):
        run_role(which, Options(("true",), num_servers="auto"), JOB)


@dataclasses.dataclass(frozen=True)
class Launched:
    """What was given to the function that starts processes."""

    specs: tuple[ProcessSpec, ...]
    notes: list[str]
    options: Options
    report_failures: bool
    herald_environment: Mapping[str, str] | None


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    found: list[Launched] = []

    def launch(
        specs: Sequence[ProcessSpec],
        notes: Sequence[str],
        options: Options,
        *,
        report_failures: bool,
        herald_environment: Mapping[str, str] | None = None,
    ) -> int:
        found.append(Launched(tuple(specs), list(notes), options, report_failures, herald_environment))
        return 7

    monkeypatch.setattr(role, "launch", launch)
    return found


@pytest.mark.parametrize(
    ("count", "environ", "expected"),
    [
        (None, {}, 1),
        (None, {"NVIDIA_VISIBLE_DEVICES": "0,1,2"}, 3),
        (None, {"NVIDIA_VISIBLE_DEVICES": "none"}, 1),
        (None, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 2),
        (None, {"BYTEPS_LOCAL_SIZE": "2", "NVIDIA_VISIBLE_DEVICES": "0,1,2"}, 2),
        (4, {"BYTEPS_LOCAL_SIZE": "2", "NVIDIA_VISIBLE_DEVICES": "0,1,2"}, 4),
    ],
)
def test_an_option_goes_before_the_variable_and_that_before_the_devices(
    count: int | None, environ: dict[str, str], expected: int, launched: list[Launched]
) -> None:
    options = dataclasses.replace(OPTIONS, num_workers=count)
    assert run_role(Role.WORKER, options, {**JOB, "DMLC_ROLE": "worker", **environ}) == 7
    (found,) = launched
    assert [spec.environment["BYTEPS_LOCAL_SIZE"] for spec in found.specs] == [str(expected)] * expected
    assert found.notes[0].startswith(f"{expected} worker{'s' if expected > 1 else ''}, scheduler at 10.0.0.1:9000;")
    assert found.report_failures
    assert found.herald_environment == found.specs[0].environment


def test_a_flag_goes_before_a_variable_even_if_that_is_bad(launched: list[Launched]) -> None:
    options = dataclasses.replace(OPTIONS, worker_omp_wait_policy="passive", worker_omp_num_threads=3)
    bad = {"BYTEPS_WORKER_OMP_WAIT_POLICY": "eager", "OMP_NUM_THREADS": "many"}
    run_role(Role.WORKER, options, {**JOB, "DMLC_ROLE": "worker", **bad})
    (found,) = launched
    worker = read(WorkerSettings, found.specs[0].environment)
    assert (worker.omp_wait_policy, worker.omp_num_threads) == ("passive", 3)
    with pytest.raises(SettingsError, match="BYTEPS_WORKER_OMP_WAIT_POLICY='eager'"):
        run_role(Role.WORKER, OPTIONS, {**JOB, "DMLC_ROLE": "worker", **bad})


def test_workers_are_bound_to_cores_and_have_as_many_threads() -> None:
    environ = {**JOB, "BYTEPS_VISIBLE_CPU_CORES": "0-2:5"}
    binding = bind(environ, None, flat(range(8)), 2)
    specs = plan_workers(OPTIONS, environ, settings(BYTEPS_LOCAL_SIZE="2"), binding, "9a")
    assert [spec.cores for spec in specs] == [frozenset({0, 1, 2}), frozenset({5})]
    assert [spec.environment["OMP_NUM_THREADS"] for spec in specs] == ["3", "1"]


def test_a_job_of_one_process_has_nobody_to_report_to(launched: list[Launched]) -> None:
    run_role(Role.WORKER, OPTIONS, {**JOB, "DMLC_NUM_WORKER": "1", "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0"})
    (found,) = launched
    assert not found.report_failures
    assert found.herald_environment is None
    assert found.notes[0].startswith("1 worker of machine 0, no server, nothing to connect;")


@pytest.mark.parametrize("which", list(Role))
def test_the_option_for_the_start_goes_before_the_variable(which: Role, launched: list[Launched]) -> None:
    options = dataclasses.replace(OPTIONS, start_timeout="5", dry_run=True)
    run_role(which, options, {**JOB, "BYTEPS_START_TIMEOUT": "60"})
    assert launched[0].specs[0].environment["BYTEPS_START_TIMEOUT"] == "5"


@pytest.mark.parametrize("which", [Role.SCHEDULER, Role.SERVER])
def test_a_service_becomes_the_launcher_itself(which: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[tuple[object, ...]] = []

    def execve(*arguments: object) -> None:
        executed.append(arguments)
        raise InterruptedError

    monkeypatch.setattr("os.execve", execve)
    with pytest.raises(InterruptedError):
        run_role(which, Options(), {**JOB, "HOME": "/root"})
    ((path, argv, environment),) = executed
    assert (path, argv) == (sys.executable, module_command("byteps_py", str(which)))
    assert environment.items() >= {**JOB, "HOME": "/root", "PYTHONUNBUFFERED": "1"}.items()  # type: ignore[attr-defined]


@pytest.mark.parametrize("which", [Role.SCHEDULER, Role.SERVER])
def test_a_service_keeps_off_cores_that_are_to_be_free(
    which: Role, launched: list[Launched], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("byteps_py.launcher.affinity.usable_cores", lambda: frozenset({0, 1, 2}))
    environ = {**JOB, "BYTEPS_CPU_BLACKLIST": "1", "BYTEPS_NUMA_DEFAULT_QUOTA": "1"}
    calls: list[tuple[str, object]] = []
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: calls.append(("bind", cores)))
    monkeypatch.setattr("os.execve", lambda *arguments: calls.append(("execute", arguments[0])))
    run_role(which, Options(), environ)
    assert calls[:2] == [("bind", frozenset({0, 2})), ("execute", sys.executable)]
    run_role(which, Options(dry_run=True, numa_binding="node"), environ)
    run_role(which, Options(dry_run=True, numa_binding="none"), environ)
    assert [found.specs[0].cores for found in launched[-2:]] == [frozenset({0, 2}), None]
    line = f"bpslaunch: a {which} starts no workers, so this is not used: --numa-binding node\n"
    assert capsys.readouterr().err == line
    run_role(which, Options(dry_run=True), {**JOB, "BYTEPS_CPU_BLACKLIST": "2,99", "BYTEPS_VISIBLE_CPU_CORES": "0:1"})
    assert launched[-1].specs[0].cores == frozenset({0, 1})
    assert capsys.readouterr().err == (
        "bpslaunch: warning: BYTEPS_CPU_BLACKLIST='2,99' names core 99, but this process may run on cores 0-2 only; "
        "kept free: 2\n"
    )
    with pytest.raises(SettingsError, match="BYTEPS_CPU_BLACKLIST='most' must be a list of cores"):
        run_role(which, Options(), {**JOB, "BYTEPS_CPU_BLACKLIST": "most"})


def test_workers_of_one_machine_of_several_are_bound_by_the_option(
    launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("byteps_py.launcher.role.read_topology", flat)
    monkeypatch.setattr("byteps_py.launcher.affinity.usable_cores", lambda: frozenset(range(4)))
    run_role(Role.WORKER, dataclasses.replace(OPTIONS, num_workers=2, numa_binding="exclusive"), JOB)
    (found,) = launched
    assert [spec.cores for spec in found.specs] == [frozenset({0, 1}), frozenset({2, 3})]
    assert found.notes[-1] == "cores by --numa-binding=exclusive (1 NUMA node): worker 0: 0-1; worker 1: 2-3"


@pytest.mark.parametrize("which", [Role.SCHEDULER, Role.SERVER])
def test_a_service_with_logs_is_supervised_and_its_lines_stay_as_they_are(
    which: Role, launched: list[Launched], tmp_path: Path
) -> None:
    assert run_role(which, Options(log_dir=tmp_path), JOB) == 7
    (found,) = launched
    (spec,) = found.specs
    assert spec.argv == module_command("byteps_py", str(which))
    assert spec.read_stdin
    assert not found.options.prefix
    assert not found.report_failures
    # A server learns its rank later. The folder may be shared with other machines.
    place = "" if which is Role.SCHEDULER else f" {socket.gethostname()} pid {os.getpid()}"
    assert spec.label == f"{which}{place}"


def test_workers_whose_machine_has_no_number_have_logs_of_their_own(launched: list[Launched], tmp_path: Path) -> None:
    run_role(Role.WORKER, dataclasses.replace(OPTIONS, log_dir=tmp_path), JOB)
    (spec,) = launched[0].specs
    assert spec.label == f"worker {socket.gethostname()} pid {os.getpid()} local 0"


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        (OPTIONS, "runs no command, so this is not used: python train.py"),
        (dataclasses.replace(OPTIONS, num_workers=4), "starts no workers, so this is not used: -n 4 python train.py"),
        (Options(num_workers=3), "starts no workers, so this is not used: -n 3"),
        (Options(("sh", "-c", "a b")), "runs no command, so this is not used: sh -c 'a b'"),
        (
            Options(worker_omp_wait_policy="active", worker_omp_num_threads=3),
            "starts no workers, so this is not used: --worker-omp-wait-policy active --worker-omp-num-threads 3",
        ),
        (Options(compat=True), "starts no workers, so this is not used: --compat"),
        (Options(), None),
    ],
)
@pytest.mark.parametrize("which", [Role.SCHEDULER, Role.SERVER])
def test_a_service_says_once_what_it_has_no_use_for(
    options: Options, unused: str | None, which: Role, launched: list[Launched], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_role(which, dataclasses.replace(options, dry_run=True), JOB) == 7
    expected = [] if unused is None else [f"bpslaunch: a {which} {unused}"]
    assert capsys.readouterr().err.splitlines() == expected


NO_SERVER = (
    "no server is started here, so this is not used: --omp-num-threads 3 (for workers: --worker-omp-num-threads)"
)


def test_options_of_servers_have_no_effect_on_others(
    launched: list[Launched], capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options(omp_num_threads=3, dry_run=True)
    run_role(Role.SERVER, options, JOB)
    assert launched[-1].specs[0].environment["OMP_NUM_THREADS"] == "3"
    assert capsys.readouterr().err == ""
    run_role(Role.SCHEDULER, options, JOB)
    assert capsys.readouterr().err == f"bpslaunch: {NO_SERVER}\n"
    run_role(Role.WORKER, dataclasses.replace(options, command=OPTIONS.command), JOB)
    assert launched[-1].notes[0] == NO_SERVER


def test_the_line_about_workers_tells_all_of_their_openmp_settings(launched: list[Launched]) -> None:
    options = dataclasses.replace(OPTIONS, worker_omp_wait_policy="active", worker_omp_num_threads=3)
    run_role(Role.WORKER, options, JOB)
    (line,) = launched[0].notes
    assert line == "1 worker, scheduler at 10.0.0.1:9000; OMP_WAIT_POLICY=active OMP_NUM_THREADS=3"


@pytest.mark.parametrize("which", [Role.SCHEDULER, Role.SERVER])
def test_one_machine_needs_no_scheduler_and_no_server(which: Role, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_role(which, OPTIONS, {**JOB, "DMLC_NUM_WORKER": "1"}) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bpslaunch: no {which} is needed")


@pytest.mark.parametrize("count", [None, 3])
def test_several_workers_on_the_only_machine_become_a_local_job(
    count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Options, dict[str, str], list[str]]] = []

    def run_job(options: Options, environ: dict[str, str], notes: list[str]) -> int:
        started.append((options, environ, notes))
        return 7

    monkeypatch.setattr(role, "run_job", run_job)
    environ = {**JOB, "DMLC_NUM_WORKER": "1", "DMLC_ROLE": "worker", "HOME": "/root"}
    # What has been heeded is not to be called unused.
    environ |= {"BYTEPS_LOCAL_SIZE": "2", "BYTEPS_START_TIMEOUT": "60"}
    options = dataclasses.replace(OPTIONS, num_workers=count, start_timeout="5")
    assert run_role(Role.WORKER, options, {**environ, "NVIDIA_VISIBLE_DEVICES": "0,1"}) == 7
    ((chosen, inherited, notes),) = started
    workers = count or 2
    assert (chosen.num_workers, chosen.num_servers, chosen.command) == (workers, 1, OPTIONS.command)
    assert inherited == {"HOME": "/root", "NVIDIA_VISIBLE_DEVICES": "0,1"}
    assert notes == [f"DMLC_NUM_WORKER=1 and {workers} workers on this machine: the whole job runs here"]


def test_a_launcher_inside_a_launcher_is_told(launched: list[Launched]) -> None:
    inside = {"BYTEPS_LAUNCH_ID": "9a", "BYTEPS_LOCAL_RANK": "1"}
    for environ, told in ((inside, True), ({"BYTEPS_LOCAL_RANK": "1"}, False), ({"BYTEPS_LAUNCH_ID": "9a"}, False)):
        run_role(Role.WORKER, OPTIONS, {**JOB, **environ})
        expected = (
            "warning: this bpslaunch was started by another one, as its worker 1, and starts workers in its place, "
            "which the job does not expect: give the outer one the command itself"
        )
        assert (launched[-1].notes[0] == expected) == told
        assert len(launched[-1].notes) == 1 + told
