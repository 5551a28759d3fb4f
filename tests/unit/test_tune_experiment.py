"""All runs of an experiment: their order, what is told meanwhile, and how it ends. Runs are made up here."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from byteps_py.tune import experiment, factors
from byteps_py.tune.experiment import (
    Clock,
    Outcome,
    counting,
    describe_run,
    describe_seconds,
    describe_setup,
    to_do,
    too_old,
)
from byteps_py.tune.journal import Journal, open_journal
from byteps_py.tune.model import Design, Run
from byteps_py.tune.running import Stop
from byteps_py.tune.screen import Screen

Make = Callable[[int, int], Run]
NOW = 1_790_000_000.0


def design(repeats: int = 3) -> Design:
    varied = factors.factors(["omp-wait-policy=active,passive"])
    return factors.design(varied, command=["train"], repeats=repeats, num_workers=2, seed=1)


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock on the wall says; a test may change it."""
    moment = [NOW]
    monkeypatch.setattr(experiment.time, "time", lambda: moment[0])
    return moment


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(design(), tmp_path, print) as opened:
        yield opened


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Fake:
    """Stands for ``run_cell``.

    Args:
        make: the run of a cell and block; it may raise a signal.
    """

    def __init__(self, make: Make) -> None:
        self.make = make
        self.asked: list[tuple[int, int]] = []

    def __call__(
        self,
        design: Design,
        cell: int,
        block: int,
        folder: Path,
        *,
        environ: Mapping[str, str],
        stop: Stop,
        progress: Callable[[int], None],
        keep_open: tuple[int, ...],
    ) -> Run | None:
        self.asked.append((block, cell))
        progress(50)
        made = self.make(cell, block)
        return None if stop.number else made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Make], Fake]:
    def put(make: Make) -> Fake:
        made = Fake(make)
        monkeypatch.setattr(experiment, "run_cell", made)
        return made

    return put


def good(cell: int, block: int) -> Run:
    return Run(cell=cell, block=block, value=40.0 + cell, started=NOW)


def bad(cell: int, block: int) -> Run:
    return Run(cell=cell, block=block, problem="the job ended with exit status 3", log="first\nlast words")


def run(book: Journal, stream: io.StringIO | None = None) -> tuple[Outcome, str]:
    stream = stream or io.StringIO()
    return experiment.run(book, {}, Screen(stream)), stream.getvalue()


def test_every_run_is_made_in_the_order_of_the_design(book: Journal, fake: Callable[[Make], Fake]) -> None:
    made = fake(good)
    outcome, text = run(book)
    assert outcome == Outcome()
    assert made.asked == factors.order(book.design)
    assert [(each.block, each.cell) for each in book.runs] == made.asked
    lines = text.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("block 1/3, run 1/6, ")
    assert lines[-1].startswith("block 3/3, run 6/6, ")
    assert lines[-1].endswith((": 40 steps/s", ": 41 steps/s"))
    assert ", about 1 s left" in lines[0]
    assert "\r" not in text


def test_it_goes_on_with_what_is_missing_or_has_failed(book: Journal, fake: Callable[[Make], Fake]) -> None:
    order = factors.order(book.design)
    for block, cell in order[:3]:
        book.append(good(cell, block))
    book.append(bad(order[3][1], order[3][0]))
    assert describe_setup(book, {}, NOW) == ["resuming: 3 of 6 runs are done; 1 that failed is made again"]
    made = fake(good)
    outcome, text = run(book)
    assert outcome == Outcome()
    assert made.asked == order[3:]
    assert text.startswith("block 2/3, run 4/6, ")
    assert describe_setup(book, {}, NOW) == ["all 6 runs are done"]


def started(*seconds: float, block: int = 0, attempt: int = 0) -> list[Run]:
    """Good runs of the cells 0, 1 ... of a block, by when they were started."""
    return [
        Run(cell=cell, block=block, value=1.0, started=NOW + each, attempt=attempt) for cell, each in enumerate(seconds)
    ]


WIDE = factors.design(factors.factors(["A=1,2,3,4"]), command=["train"], repeats=2, seed=1)


class TestOldBlocks:
    @pytest.mark.parametrize(
        ("runs", "later", "old"),
        [
            ([], 1e9, {}),
            (started(0.0, 100.0, 200.0), 800.0, {}),
            (started(0.0, 100.0, 200.0), 801.0, {0: 601.0}),
            (started(0.0, 500.0, 1000.0), 3000.0, {}),
            (started(0.0, 500.0, 1000.0), 3001.0, {0: 2001.0}),
            (started(0.0, 500.0, 1000.0, 1500.0), 1e6, {}),
            ([*started(0.0), bad(1, 0)], 601.0, {0: 601.0}),
            ([bad(0, 0), bad(1, 0)], 1e6, {}),
            ([*started(0.0, 1.0, 2.0, 3.0), *started(10.0, block=1)], 1000.0, {1: 990.0}),
            ([*started(0.0, 1.0), *started(5000.0, attempt=1)], 5600.0, {}),
            ([*started(0.0, 1.0), *started(5000.0, attempt=1)], 5601.0, {0: 601.0}),
            (started(0.0, block=2), 1e6, {}),
        ],
    )
    def test_a_block_that_lacks_runs_is_old_some_time_after_its_latest(
        self, runs: list[Run], later: float, old: dict[int, float]
    ) -> None:
        assert too_old(WIDE, runs, NOW + later) == old

    def test_all_runs_of_an_old_block_are_to_be_made(self) -> None:
        runs = [*started(0.0, 1.0, 2.0, 3.0), *started(4.0, 5.0, block=1)]
        young, old = (to_do(WIDE, runs, NOW + each) for each in (100.0, 10_000.0))
        assert sorted(young) == [(1, 2), (1, 3)]
        assert old == factors.order(WIDE)[4:]

    def test_a_block_that_was_begun_anew_needs_all_its_runs_in_that_attempt(self) -> None:
        # Cell 2 was missing and is made first this time: the others are still those of the day before.
        again = msgspec.structs.replace(started(0.0)[0], cell=2, attempt=1)
        runs = [*started(-90_000.0, -90_000.0), bad(3, 0), again]
        assert sorted(each for each in to_do(WIDE, runs, NOW) if each[0] == 0) == [(0, 0), (0, 1), (0, 3)]
        assert counting(runs) == [again]

    def test_it_is_made_again_as_a_whole_and_that_is_told(
        self, book: Journal, fake: Callable[[Make], Fake], now: list[float]
    ) -> None:
        order = factors.order(book.design)
        for block, cell in order[:3]:
            book.append(good(cell, block))
        book.append(bad(order[3][1], 1))
        later = NOW + 7 * 3600.0 + 20.0
        now[0] = later
        assert describe_setup(book, {}, later) == [
            "resuming: 2 of 6 runs are done",
            "block 2 is made again as a whole: its other runs are 7 h old",
        ]
        made = fake(lambda cell, block: msgspec.structs.replace(good(cell, block), started=later))
        outcome, text = run(book)
        assert outcome == Outcome()
        assert made.asked == order[2:]
        assert [each.attempt for each in book.runs[4:]] == [1, 1, 0, 0]
        assert len(counting(book.runs)) == 6
        assert "again as a whole" not in text, "that was told before"
        assert to_do(book.design, book.runs, later + 1e6) == []

    def test_a_block_may_grow_old_while_those_before_it_are_made(
        self, book: Journal, fake: Callable[[Make], Fake], now: list[float]
    ) -> None:
        for block in (0, 2):
            book.append(good(1, block))

        def make(cell: int, block: int) -> Run:
            now[0] += 400.0
            return msgspec.structs.replace(good(cell, block), started=now[0] - 400.0)

        made = fake(make)
        outcome, text = run(book)
        assert outcome == Outcome()
        assert [block for block, _ in made.asked] == [0, 1, 1, 2, 2]
        assert "block 3 is made again as a whole: its other runs are 20 min old\nblock 3/3, run 5/6" in text


def test_what_is_told_before_the_first_run(book: Journal) -> None:
    book.design = msgspec.structs.replace(book.design, factors=factors.factors(["OMP_WAIT_POLICY=active,passive"]))
    lines = describe_setup(book, {"DMLC_ROLE": "worker", "BYTEPS_AB_CELL": "x", "HOME": "/"}, NOW)
    assert lines[0].startswith("bps ab: OMP_WAIT_POLICY is varied for servers and workers alike")
    assert "not used: BYTEPS_AB_CELL=x DMLC_ROLE=worker" in lines[1]
    assert lines[2].startswith("6 runs: 2 cells x 3 blocks, in random order (seed 1)")


def test_a_cell_that_fails_does_not_stop_the_others(book: Journal, fake: Callable[[Make], Fake]) -> None:
    fake(lambda cell, block: bad(cell, block) if cell else good(cell, block))
    outcome, text = run(book)
    assert outcome == Outcome()
    assert len(book.runs) == 6
    assert text.count("FAILED: the job ended with exit status 3") == 3
    assert "    | first\n    | last words\n    all of it: " in text
    assert str(book.folder / "runs" / "1-omp-wait-policy=passive" / "output.log") in text


def test_a_run_that_cannot_be_written_down_is_told(book: Journal, fake: Callable[[Make], Fake]) -> None:
    fake(good)
    (book.folder / "runs.jsonl").unlink()
    stream = io.StringIO()
    with pytest.raises(OSError, match="removed during the run"):
        experiment.run(book, {}, Screen(stream))
    assert stream.getvalue().startswith("block 1/3, run 1/6, ")


def test_it_is_given_up_when_every_cell_has_failed(book: Journal, fake: Callable[[Make], Fake]) -> None:
    made = fake(bad)
    assert run(book)[0] == Outcome(hopeless=True)
    assert len(made.asked) == 2


def test_it_is_not_given_up_if_one_has_ever_worked(book: Journal, fake: Callable[[Make], Fake]) -> None:
    block, cell = factors.order(book.design)[0]
    book.append(good(cell, block))
    made = fake(bad)
    assert run(book)[0] == Outcome()
    assert len(made.asked) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_handlers_are_as_before(
    book: Journal, fake: Callable[[Make], Fake], number: int
) -> None:
    def before(number: int, frame: object) -> None:
        """Whatever was set up, and is not ignored, as Ctrl-C is where the tests run in the background."""

    signal.signal(number, before)

    def make(cell: int, block: int) -> Run:
        if block == 1:
            os.kill(os.getpid(), number)
        return good(cell, block)

    made = fake(make)
    assert run(book)[0] == Outcome(number=number)
    assert len(made.asked) == 3
    assert len(book.runs) == 2, "the run in progress does not count"
    assert signal.getsignal(number) is before


def test_a_terminal_shows_the_run_in_progress(book: Journal, fake: Callable[[Make], Fake]) -> None:
    fake(good)
    _, text = run(book, Terminal())
    assert "\rblock 1/3, run 1/6, " in text
    assert ": step 50 of 120" in text
    shown = [line.rpartition("\r")[2] for line in text.split("\n")]
    assert len(shown) == 7
    assert all(line.startswith("block ") for line in shown[:-1])


def test_what_a_script_prints_cannot_move_the_cursor(book: Journal, fake: Callable[[Make], Fake]) -> None:
    cells = (book.design.cells[0], msgspec.structs.replace(book.design.cells[1], label="a\x1b]0;title\x07"))
    book.design = msgspec.structs.replace(book.design, cells=cells)
    fake(lambda cell, block: msgspec.structs.replace(bad(cell, block), problem="no \x1b[2J", log="\x1b[31mred\r\x9b1m"))
    stream = Terminal()
    _, text = run(book, stream)
    assert re.search(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f]", text) is None
    assert "FAILED: no ?[2J" in text
    assert "    | ?[31mred\n    | ?1m" in text


def test_the_time_left_follows_the_medians_of_the_cells() -> None:
    clock = Clock()
    assert clock.left([0, 1]) is None
    for seconds in (10.0, 12.0, 100.0):
        clock.add(0, seconds)
    assert clock.left([0, 1]) == 24.0
    clock.add(1, 4.0)
    assert clock.left([0, 1, 1]) == 20.0
    assert clock.left([0, 1], elapsed=5.0) == 11.0
    assert clock.left([0, 1], elapsed=50.0) == 4.0
    assert clock.left([2]) == 11.0
    assert clock.left([]) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "about 1 s"),
        (7.4, "about 7 s"),
        (33.0, "about 35 s"),
        (57.0, "about 1 min"),
        (125.0, "about 2 min"),
        (3590.0, "about 1 h 0 min"),
        (12000.0, "about 3 h 20 min"),
    ],
)
def test_times_are_rounded(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text


def test_what_came_out_of_a_run() -> None:
    assert describe_run(Run(cell=0, block=0, value=41.234)) == "41.23 steps/s"
    assert describe_run(Run(cell=0, block=0, value=1234567.0, unit="samples/s")) == "1234567 samples/s"
    assert describe_run(Run(cell=0, block=0, value=0.5, unit="metric")) == "0.5"
    assert describe_run(bad(0, 0)) == "FAILED: the job ended with exit status 3"
