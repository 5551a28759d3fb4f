"""What ``bps env`` shows: each setting, its value in force, and which variable gave it."""

from __future__ import annotations

import json

import pytest

from byteps_py.env_report import SECTIONS, as_json, as_text, inspect_environment
from byteps_py.settings import LaunchSettings, settings_class, variables_of
from byteps_py.types import Role

JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


def rows(environ: dict[str, str], role: Role | None) -> dict[str, tuple[str, str]]:
    """Value and origin of each setting, as shown."""
    settings = json.loads(as_json(inspect_environment(environ, role)))["settings"]
    return {each["setting"]: (each["shown"], each["from"]) for each in settings}


def test_every_variable_has_one_row_for_its_role() -> None:
    for role in Role:
        names = [each.variable.name for _, findings in inspect_environment(JOB, role).rows for each in findings]
        assert len(names) == len(set(names))
        assert set(names) == {
            each.name for kind in (settings_class(role), LaunchSettings) for _, each in variables_of(kind)
        }


def test_all_roles_are_shown_without_one() -> None:
    assert [title for title, _ in inspect_environment(JOB, None).rows] == [each.title for each in SECTIONS]


@pytest.mark.parametrize(
    ("environ", "role", "name", "expected"),
    [
        ({}, Role.SERVER, "BYTEPS_SERVER_OMP_WAIT_POLICY", ("passive", "default")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, Role.SERVER, "BYTEPS_SERVER_OMP_WAIT_POLICY", ("active", "OMP_WAIT_POLICY")),
        (
            {"OMP_NUM_THREADS": "4,2", "BYTEPS_OMP_THREAD_PER_GPU": "8"},
            Role.WORKER,
            "BYTEPS_WORKER_OMP_NUM_THREADS",
            ("4", "OMP_NUM_THREADS"),
        ),
        ({}, Role.WORKER, "BYTEPS_WORKER_OMP_WAIT_POLICY", ("", "not set")),
        ({}, Role.WORKER, "BYTEPS_LOG_LEVEL", ("warning", "default")),
        ({}, Role.SCHEDULER, "BYTEPS_LOG_LEVEL", ("info", "default")),
        (
            {"BYTEPS_FORCE_DISTRIBUTED": "yes"},
            Role.WORKER,
            "BYTEPS_FORCE_DISTRIBUTED",
            ("1", "BYTEPS_FORCE_DISTRIBUTED"),
        ),
        ({"BYTEPS_PORT_RANGE": "9000-9009"}, Role.WORKER, "BYTEPS_PORT_RANGE", ("9000-9009", "BYTEPS_PORT_RANGE")),
        ({"BYTEPS_LOST_TIMEOUT": "2.5"}, Role.WORKER, "BYTEPS_LOST_TIMEOUT", ("2.5", "BYTEPS_LOST_TIMEOUT")),
        (
            {"CUDA_VISIBLE_DEVICES": ",".join(["GPU-" + "0" * 36] * 16)},
            Role.WORKER,
            "BYTEPS_LOCAL_SIZE",
            ("1", "default"),
        ),
    ],
)
def test_value_and_origin(environ: dict[str, str], role: Role, name: str, expected: tuple[str, str]) -> None:
    assert not inspect_environment(JOB | environ, role).is_bad
    assert rows(JOB | environ, role)[name] == expected


def test_a_bad_value_is_told_in_its_row() -> None:
    report = inspect_environment(JOB | {"OMP_NUM_THREADS": "many"}, Role.SERVER)
    assert report.is_bad
    (line,) = (each for each in as_text(report).splitlines() if "many" in each)
    assert line.split()[:2] == ["BYTEPS_SERVER_OMP_NUM_THREADS", "?"]
    assert line.endswith("OMP_NUM_THREADS='many' must be a whole number from 1 to 1024 (threads of one OpenMP team)")


def test_what_is_missing_is_a_problem_in_a_distributed_job_alone() -> None:
    some = inspect_environment({"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "2"}, Role.SERVER)
    assert some.is_bad
    assert as_text(some).count("is not set:") == 3
    nothing = inspect_environment({"HOME": "/root"}, None)
    assert not nothing.is_bad
    assert nothing.notes == (
        "no distributed job is described here; `bpslaunch COMMAND` starts a whole job on this machine, and one process "
        "is a job of its own",
    )
    alone = inspect_environment({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1"}, Role.WORKER)
    assert not alone.is_bad
    assert alone.notes[0].startswith("DMLC_NUM_WORKER=1: this worker is a job of its own")


def test_a_bad_value_is_a_problem_in_any_case() -> None:
    assert inspect_environment({"BYTEPS_KERNELS": "fast"}, None).is_bad
    assert inspect_environment({"DMLC_ROLE": "joint"}, None).is_bad


def test_contradictions_are_told_once() -> None:
    report = inspect_environment(JOB | {"DMLC_NUM_SERVER": "0"}, None)
    assert [each.partition(":")[0] for each in report.problems] == ["DMLC_NUM_SERVER=0"]
    assert report.is_bad
    assert "Problems\n  DMLC_NUM_SERVER=0: " in as_text(report)


def test_what_has_no_effect_or_is_misspelt_is_noted() -> None:
    report = inspect_environment(JOB | {"BYTEPS_SERVER_ENABLE_SCHEDULE": "1", "DMLC_NUM_WORKERS": "3"}, Role.WORKER)
    assert not report.is_bad
    assert "Notes\n  BYTEPS_SERVER_ENABLE_SCHEDULE=1 has no effect here" in as_text(report)
    assert "did you mean DMLC_NUM_WORKER?" in report.notes[1]


def test_columns_are_aligned() -> None:
    lines = [line for line in as_text(inspect_environment(JOB, None)).splitlines() if line.startswith("  ")]
    assert lines[0].split() == ["setting", "value", "from"]
    start, end = lines[0].index("value"), lines[0].index("from")
    for line in lines:
        assert line[start - 1] == line[end - 1] == " "
        assert line[start] != " " != line[end]


def test_json_has_values_of_their_types() -> None:
    environ = JOB | {"BYTEPS_VISIBLE_CPU_CORES": "1,0:3", "BYTEPS_PORT_RANGE": "9000-9001", "BYTEPS_KERNELS": "x"}
    made = json.loads(as_json(inspect_environment(environ, Role.WORKER)))
    values = {each["setting"]: each["value"] for each in made["settings"]}
    assert values["DMLC_NUM_WORKER"] == 2
    assert values["BYTEPS_VISIBLE_CPU_CORES"] == [[0, 1], [3]]
    assert values["BYTEPS_PORT_RANGE"] == [9000, 9001]
    assert values["BYTEPS_FORCE_DISTRIBUTED"] is False
    (bad,) = (each for each in made["settings"] if each["problem"])
    assert bad["value"] is None
    assert bad["names"] == ["BYTEPS_KERNELS"]
    assert made["problems"] == made["notes"] == []
