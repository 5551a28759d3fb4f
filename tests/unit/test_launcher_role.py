"""One role of a job that spans machines: what is planned, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from byteps_py.errors import SettingsError
from byteps_py.launcher import role
from byteps_py.launcher.arguments import Options
from byteps_py.launcher.role import plan_workers, run_role
from byteps_py.settings import WorkerSettings, read
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
        OPTIONS, environ, settings(DMLC_WORKER_ID="1", BYTEPS_LOCAL_SIZE="3"), cores=frozenset(range(8)), launch_id="9a"
    )
    assert [spec.label for spec in specs] == ["worker 1.0", "worker 1.1", "worker 1.2"]
    for index, spec in enumerate(specs):
        assert spec.argv == OPTIONS.command
        assert not spec.read_stdin
        assert spec.environment == {
            **environ,
            "BYTEPS_LOCAL_RANK": str(index),
            "BYTEPS_LOCAL_SIZE": "3",
            "BYTEPS_LAUNCH_ID": "9a",
            "OMP_NUM_THREADS": "2",
            "PYTHONUNBUFFERED": "1",
        }


@pytest.mark.parametrize(
    ("variables", "label"),
    [
        ({"DMLC_WORKER_ID": "1"}, "worker 1"),
        ({}, "worker local 0"),
        ({"DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}, "worker 0.0"),
    ],
)
def test_labels_never_claim_a_rank_that_only_the_scheduler_knows(variables: dict[str, str], label: str) -> None:
    specs = plan_workers(OPTIONS, JOB, settings(**variables), cores=frozenset({0}), launch_id="9a")
    assert specs[0].label == label
    assert specs[0].read_stdin == (len(specs) == 1)
    assert specs[0].environment["OMP_NUM_THREADS"] == "1"


def test_worker_flags_and_exported_values() -> None:
    options = dataclasses.replace(OPTIONS, worker_omp_wait_policy="active", omp_num_threads=7)
    (spec,) = plan_workers(
        options, {**JOB, "OMP_NUM_THREADS": "5"}, settings(), cores=frozenset(range(8)), launch_id="9a"
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


@pytest.mark.parametrize("options", [Options(("true",), num_workers=2), Options(("true",), num_servers=1)])
def test_counts_of_a_whole_job_do_not_go_with_a_role(options: Options) -> None:
    with pytest.raises(SettingsError, match="-n and -s start a whole job"):
        run_role(Role.WORKER, options, JOB)


@pytest.mark.parametrize("which", [Role.SCHEDULER, Role.SERVER])
def test_one_machine_needs_no_scheduler_and_no_server(which: Role, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_role(which, OPTIONS, {**JOB, "DMLC_NUM_WORKER": "1"}) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bpslaunch: no {which} is needed")


def test_several_workers_on_the_only_machine_become_a_local_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[Options, dict[str, str]]] = []

    def run_job(options: Options, environ: dict[str, str]) -> int:
        started.append((options, environ))
        return 7

    monkeypatch.setattr(role, "run_job", run_job)
    monkeypatch.setattr(role, "find", lambda word, path: None)
    environ = {**JOB, "DMLC_NUM_WORKER": "1", "DMLC_ROLE": "worker", "HOME": "/root"}
    assert run_role(Role.WORKER, OPTIONS, {**environ, "NVIDIA_VISIBLE_DEVICES": "0,1"}) == 7
    ((options, inherited),) = started
    assert (options.num_workers, options.num_servers, options.command) == (2, 1, OPTIONS.command)
    assert inherited == {"HOME": "/root", "NVIDIA_VISIBLE_DEVICES": "0,1"}
    assert "the whole job runs here" in capsys.readouterr().err
