"""The mark by which the processes of a launch are known; what a supervisor does with processes is in integration/."""

from __future__ import annotations

import pytest

from byteps_py.launcher.processes import ProcessSpec
from byteps_py.launcher.supervisor import Supervisor
from byteps_py.launcher.sweep import MARK
from byteps_py.types import Role


def marks(*given: str | None) -> set[str]:
    """The marks that processes get whose environment was planned with these."""
    specs = [
        ProcessSpec(Role.WORKER, f"worker {index}", ("true",), {} if mark is None else {MARK: mark})
        for index, mark in enumerate(given)
    ]
    supervisor = Supervisor(specs, label_lines=False, report_failures=False)
    return {spec.environment[MARK] for spec in supervisor._specs}


def test_the_planned_mark_is_kept() -> None:
    assert marks("planned", "planned") == {"planned"}
    assert marks("planned", None, "") == {"planned"}


def test_a_launch_without_a_mark_gets_one() -> None:
    (first,) = marks(None, None)
    (second,) = marks("", None)
    assert first
    assert second
    assert first != second


def test_the_mark_of_an_outer_launch_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the inner launch would end the processes of the outer one with its own."""
    monkeypatch.setenv(MARK, "outer")
    (inner,) = marks("outer", "outer")
    assert inner
    assert inner != "outer"
    assert marks("planned", "outer") == {"planned"}
