"""Which of several failed processes is the cause, and when that is certain."""

from __future__ import annotations

import pytest

from byteps_py.launcher.verdict import Verdict

SCHEDULER, SERVER, FIRST, SECOND = range(4)
WORKERS = frozenset({FIRST, SECOND})


def verdict(*failures: tuple[int, int]) -> Verdict:
    made = Verdict(WORKERS)
    for failure in failures:
        made.failed(*failure)
    return made


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([(FIRST, 3)], (FIRST, 3)),
        ([(SECOND, 1), (FIRST, 1)], (SECOND, 1)),
        ([(SERVER, 1), (FIRST, 3)], (FIRST, 3)),
        ([(SERVER, 1), (SCHEDULER, 1), (SECOND, -9), (FIRST, 1)], (SECOND, -9)),
        ([(SERVER, -11), (FIRST, 1)], (SERVER, -11)),
        ([(FIRST, 3), (SERVER, -11)], (FIRST, 3)),
        ([(FIRST, 1), (SCHEDULER, 130)], (SCHEDULER, 130)),
        ([(FIRST, 1), (SERVER, -15)], (SERVER, -15)),
        ([(SERVER, 1), (SCHEDULER, 1)], (SERVER, 1)),
    ],
)
def test_the_cause(failures: list[tuple[int, int]], cause: tuple[int, int]) -> None:
    assert verdict(*failures).cause() == cause


@pytest.mark.parametrize(
    ("failure", "alive", "certain"),
    [
        ((FIRST, -9), {SCHEDULER, SERVER, SECOND}, True),
        ((FIRST, 3), {SCHEDULER, SERVER, SECOND}, True),
        ((FIRST, 1), {SCHEDULER, SECOND}, False),
        ((FIRST, 1), {SECOND}, True),
        ((SERVER, 1), {SCHEDULER, FIRST}, False),
        ((SERVER, 1), {SCHEDULER}, True),
        ((SERVER, -9), {SCHEDULER, FIRST}, True),
        ((SCHEDULER, 143), {SERVER, FIRST, SECOND}, True),
    ],
)
def test_certainty(failure: tuple[int, int], alive: set[int], certain: bool) -> None:
    assert verdict(failure).is_certain(alive) == certain


def test_nothing_has_failed() -> None:
    assert verdict().cause() is None
    assert not verdict().is_certain({FIRST})
