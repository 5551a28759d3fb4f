"""Log lines: from which level on, and what they begin with."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator

import pytest

from byteps_py.settings import LogSettings, SchedulerSettings, ServerSettings, WorkerSettings, variables_of
from byteps_py.telemetry import logs


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The package's logger, as if nothing had set it up; afterwards it is as before."""
    found = logging.getLogger("byteps_py")
    before = found.handlers, found.level, found.propagate
    found.handlers = []
    yield found
    found.handlers, found.propagate = before[0], before[2]
    found.setLevel(before[1])


@pytest.mark.parametrize(
    ("level", "verbose", "expected"),
    [
        ("warning", 0, logging.WARNING),
        ("error", 0, logging.ERROR),
        ("trace", 0, logging.DEBUG),
        ("warning", 1, logging.INFO),
        ("error", 2, logging.DEBUG),
        ("debug", 1, logging.DEBUG),
        ("fatal", 0, logging.CRITICAL),
    ],
)
def test_the_more_verbose_wins(level: str, verbose: int, expected: int, logger: logging.Logger) -> None:
    logs.configure(LogSettings(log_level=level, verbose=verbose), "worker")
    assert logger.level == expected


def test_a_line_has_time_level_and_who(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(), "worker")
    logging.getLogger("byteps_py.worker").warning("first")
    logs.configure(LogSettings(), "worker 3")
    logging.getLogger("byteps_py.worker").error("second")
    logging.getLogger("byteps_py.worker").info("too much")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d WARNING byteps worker: first", first)
    assert second.endswith(" ERROR byteps worker 3: second")


def test_without_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogSettings(hide_time=True), "server 0")
    logging.getLogger("byteps_py.server").warning("slow")
    assert capsys.readouterr().err == "WARNING byteps server 0: slow\n"


def test_another_label_from_now_on(capsys: pytest.CaptureFixture[str], logger: logging.Logger) -> None:
    logs.relabel("server 1")
    assert not logger.handlers
    logs.configure(LogSettings(hide_time=True), "server")
    logs.relabel("server 1")
    logging.getLogger("byteps_py.server").warning("slow")
    assert capsys.readouterr().err == "WARNING byteps server 1: slow\n"


def test_a_programs_own_handler_is_kept(logger: logging.Logger) -> None:
    own = logging.NullHandler()
    logger.addHandler(own)
    logs.configure(LogSettings(), "worker")
    assert logger.handlers == [own]


def test_defaults_by_role() -> None:
    levels = {kind: dict(variables_of(kind))["log_level"].default for kind in (SchedulerSettings, ServerSettings)}
    assert set(levels.values()) == {"info"}
    (field,) = (each for each in dataclasses.fields(WorkerSettings) if each.name == "log_level")
    assert field.default == "warning"


def test_every_word_of_the_setting_is_a_level() -> None:
    form = dict(variables_of(LogSettings))["log_level"].form
    assert form == "one of " + ", ".join(logs.LEVELS)
