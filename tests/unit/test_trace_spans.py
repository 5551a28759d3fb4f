"""What a trace keeps: which steps, how much of it, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from byteps_py.telemetry.server_spans import ServerSpans
from byteps_py.telemetry.spans import WorkerSpans
from byteps_py.telemetry.stages import WorkerTimes, worker_stages
from byteps_py.telemetry.timeline import server_groups, worker_groups
from byteps_py.telemetry.tracks import Span
from byteps_py.telemetry.window import Window
from byteps_py.wire.bundle import ENTRY, ENTRY_LAYOUT


@dataclass
class Bundle:
    """As a worker has it."""

    number: int
    keys: list[int]
    table: bytearray = field(default_factory=bytearray)
    left: int = 0
    server: int = 0
    accepted: bool = False
    since: float = 0.0
    submitted: float = 0.0


@dataclass
class Flight:
    key: int
    bundle: Bundle


@dataclass
class Arrived:
    """A bundle as a server has it."""

    rank: int
    number: int
    arrived: float
    accepted: bool = False


@dataclass
class Ended:
    """Counts how often a window says that it is over."""

    times: int = 0
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        self.window = Window(2, 3, 1000, self.over)

    def over(self) -> None:
        self.times += 1


def pass_by(times: WorkerTimes, key: int, round_: int) -> None:
    times.sent(key, round_, 1.0, 2.0)
    times.accepted(key, round_, 3.0)
    times.received(key, 4.0)
    times.copied_out(key, 4.0)
    times.completed(key, round_, 1.0, 0.5)


def join(times: WorkerTimes, bundle: Bundle, key: int, round_: int) -> None:
    times.joined(bundle, round_, 1.0, copied=True)
    bundle.table += ENTRY_LAYOUT.pack(key, round_, 0, 0, 10, 0, 0, 0, 0)


def carry(times: WorkerTimes, number: int, keys: list[int], round_: int) -> None:
    bundle = Bundle(number, keys, left=len(keys), since=2.0)
    for key in keys:
        join(times, bundle, key, round_)
    times.bundle_sent(bundle, 2.0)
    bundle.left = 0
    times.arrived(bundle, len(keys), 4.0, [Flight(key, bundle) for key in keys])


def test_the_steps_of_the_window_are_kept_and_all_are_counted() -> None:
    spans, plain = WorkerSpans(Window(2, 3)), WorkerTimes()
    for round_ in range(1, 6):
        for times in (spans, plain):
            pass_by(times, 7, round_)
    assert [(each.key, each.round) for each in spans.passages] == [(7, 2), (7, 3)]
    assert [(each.round, each.submitted, each.copied) for each in spans.finished] == [(2, 1.0, 0.5), (3, 1.0, 0.5)]
    first = spans.passages[0]
    assert (first.submitted, first.sent, first.accepted, first.received, first.begun) == (1.0, 2.0, 3.0, 4.0, 4.0)
    for stage in ("queue", "push", "pull", "copy in"):
        assert worker_stages(spans)[stage] == worker_stages(plain)[stage]


def test_repetitions_change_nothing() -> None:
    spans = WorkerSpans(Window(1, 2))
    spans.sent(7, 1, 1.0, 2.0)
    spans.sent(7, 1, 1.0, 2.5)
    spans.accepted(7, 1, 3.0)
    spans.accepted(7, 1, 3.5)
    spans.received(7, 4.0)
    spans.received(7, 4.5)
    (passage,) = spans.passages
    assert (passage.sent, passage.accepted, passage.received) == (2.0, 3.0, 4.0)


def test_it_is_over_when_every_tensor_has_passed_the_last_step() -> None:
    ended = Ended()
    spans = WorkerSpans(ended.window)
    for round_ in (1, 2, 3):
        for key in (7, 8):
            assert not ended.times
            pass_by(spans, key, round_)
    assert ended.times == 1
    pass_by(spans, 9, 2)
    assert len(spans.passages) == 4


def test_one_that_comes_more_seldom_is_not_waited_for_for_ever() -> None:
    ended = Ended()
    spans = WorkerSpans(ended.window)
    pass_by(spans, 8, 2)
    for round_ in (1, 2, 3, 4):
        pass_by(spans, 7, round_)
    assert not ended.times
    pass_by(spans, 7, ended.window.late)
    pass_by(spans, 8, 3)
    assert ended.times == 1
    assert [(each.key, each.round) for each in spans.passages] == [(8, 2), (7, 2), (7, 3)]


def test_bundles_are_kept_and_end_the_window_like_others() -> None:
    ended = Ended()
    spans, plain = WorkerSpans(ended.window), WorkerTimes()
    for round_ in (1, 2, 3):
        assert not ended.times
        carry(spans, round_, [1, 2, 3], round_)
        carry(plain, round_, [1, 2, 3], round_)
    assert ended.times == 1
    assert [each.number for each in spans.cargo] == [2, 3]
    assert [entry[:3] for entry in spans.cargo[0].entries()] == [(1, 2, 1.0), (2, 2, 1.0), (3, 2, 1.0)]
    assert spans.cargo[0].results[0][2] is None
    for stage in ("queue", "pull", "answer"):
        assert worker_stages(spans)[stage] == worker_stages(plain)[stage]


def test_light_tensors_are_waited_for_by_others() -> None:
    ended = Ended()
    spans = WorkerSpans(ended.window)
    for round_ in (2, 3):
        pass_by(spans, 7, round_)
        assert not ended.times
        carry(spans, round_, [1, 2], round_)
    assert ended.times == 1


def test_results_of_a_bundle_may_come_in_parts() -> None:
    spans = WorkerSpans(Window(1, 2))
    bundle = Bundle(1, [1, 2, 3], left=3)
    for key in bundle.keys:
        join(spans, bundle, key, 1)
    spans.bundle_sent(bundle, 2.0)
    spans.bundle_accepted(bundle, 2.5)
    bundle.left = 1
    spans.arrived(bundle, 2, 3.0, [Flight(1, bundle), Flight(3, bundle), Flight(9, Bundle(2, [9]))])
    bundle.left = 0
    spans.arrived(bundle, 1, 4.0, [Flight(2, bundle)])
    (cargo,) = spans.cargo
    assert [(at, keys) for at, _, keys in cargo.results] == [(3.0, [1, 3]), (4.0, [2])]
    assert (cargo.sent, cargo.accepted) == (2.0, 2.5)


def test_a_bundle_may_begin_before_the_window() -> None:
    spans = WorkerSpans(Window(2, 3))
    bundle = Bundle(1, [1, 2, 3])
    for key, round_ in ((1, 1), (2, 2), (3, 1)):
        join(spans, bundle, key, round_)
    assert [entry[:2] for entry in spans.cargo[0].entries()] == [(2, 2), (3, 1)]
    groups = list(worker_groups(spans, {}, lambda seconds: int(seconds * 1e6), 5.0))
    assert [[span.details["step"] for span in group if span.name == "tensor 0"] for group in groups] == [[2]]


def test_what_there_is_no_room_for_is_counted() -> None:
    spans = WorkerSpans(Window(1, 10, most=9))
    for key in range(5):
        pass_by(spans, key, 1)
    assert (len(spans.passages), len(spans.finished)) == (1, 2)
    assert spans.window.dropped == 4 * 4 + 3 * 2
    carry(spans, 1, [11, 12], 1)
    assert len(spans.cargo) == 1  # what is begun is kept whole
    carry(spans, 2, [11, 12], 2)
    assert len(spans.cargo) == 1
    assert spans.window.dropped == 4 * 4 + 3 * 2 + 10


def test_what_is_rejected_is_over_and_failed() -> None:
    ended = Ended()
    spans, plain = WorkerSpans(ended.window), WorkerTimes()
    for times in (spans, plain):
        times.sent(7, 3, 1.0, 2.0)
        times.sent(8, 3, 1.0, 2.0)
        times.dropped(7)
        times.received(7, 4.0)
        times.received(8, 4.0)
    assert [each.failed > 0 for each in spans.passages] == [True, False]
    assert worker_stages(spans)["pull"] == worker_stages(plain)["pull"] == (1, 2.0)
    spans.completed(8, 3, 1.0, 0.0)
    assert ended.times == 1, "nobody waits for what has failed"
    found = {span.details["partition"]: span for span in flat(spans) if ".PUSH" in span.name}
    assert found[7].details.get("failed") is True
    assert "unfinished" not in found[7].details
    assert found[7].end == int(spans.passages[0].failed * 1e6)
    assert "failed" not in found[8].details


def test_the_last_to_be_rejected_ends_the_window() -> None:
    ended = Ended()
    spans = WorkerSpans(ended.window)
    spans.sent(7, 3, 1.0, 2.0)
    spans.dropped(7)
    assert ended.times == 1


def flat(spans: WorkerSpans) -> list[Span]:
    groups = worker_groups(spans, {}, lambda seconds: int(seconds * 1e6), 9.0)
    return [span for group in groups for span in group]


def test_of_a_bundle_only_what_is_not_over_is_marked() -> None:
    spans = WorkerSpans(Window(1, 2))
    bundle = Bundle(1, [1, 2, 3], left=3, since=2.0)
    for key in bundle.keys:
        join(spans, bundle, key, 1)
    spans.bundle_sent(bundle, 2.0)
    bundle.left = 2
    spans.arrived(bundle, 1, 3.0, [Flight(1, bundle)])
    marked = {(span.name, span.details["partition"]) for span in flat(spans) if span.details.get("unfinished")}
    assert marked == {(f"tensor 0{stage}", key) for stage in ("", ".PUSH") for key in (2, 3)}
    bundle.left = 1
    spans.bundle_dropped(bundle, 2, 1)
    rejected = spans.cargo[0].failed[2] = 3.5
    bundle.left = 0
    spans.arrived(bundle, 1, 4.0, [Flight(3, bundle)])
    assert not [span for span in flat(spans) if span.details.get("unfinished")]
    failed = [span for span in flat(spans) if span.details.get("failed")]
    assert [(span.name, span.details["partition"], span.end) for span in failed] == [
        ("tensor 0", 2, int(rejected * 1e6)),
        ("tensor 0.PUSH", 2, int(rejected * 1e6)),
    ]


def test_a_bundle_of_which_all_is_rejected_is_over() -> None:
    ended = Ended()
    spans = WorkerSpans(ended.window)
    bundle = Bundle(1, [1, 2], left=2, since=2.0)
    for key in bundle.keys:
        join(spans, bundle, key, 3)
    spans.bundle_sent(bundle, 2.0)
    for bundle.left, key in ((1, 1), (0, 2)):
        assert not ended.times
        spans.bundle_dropped(bundle, key, 3)
    assert ended.times == 1
    assert not spans._bundles
    found = {(span.name, *marks(span)) for span in flat(spans)}
    assert found == {("tensor 0", "failed"), ("tensor 0.COPY_IN",), ("tensor 0.QUEUE",), ("tensor 0.PUSH", "failed")}


def test_what_fails_before_its_bundle_is_sent_has_waited_and_no_more() -> None:
    spans = WorkerSpans(Window(1, 2))
    bundle = Bundle(1, [1], left=0)
    join(spans, bundle, 1, 1)
    spans.bundle_dropped(bundle, 1, 1)
    spans.cargo[0].failed[1] = 4.0
    spans.bundle_sent(bundle, 5.0)
    assert not spans._bundles
    found = {span.name: (span.end, span.details.get("failed")) for span in flat(spans)}
    del found["tensor 0.COPY_IN"]
    assert found == {"tensor 0": (4_000_000, True), "tensor 0.QUEUE": (4_000_000, True)}


def test_nobody_waits_for_what_was_rejected_in_an_earlier_step() -> None:
    ended = Ended()
    spans = WorkerSpans(ended.window)
    spans.sent(7, 2, 1.0, 2.0)
    spans.dropped(7)
    assert not ended.times, "others may come"
    bundle = Bundle(1, [1, 2], left=2, since=2.0)
    for key in bundle.keys:
        join(spans, bundle, key, 2)
    spans.bundle_sent(bundle, 2.0)
    for bundle.left, key in ((1, 1), (0, 2)):
        spans.bundle_dropped(bundle, key, 2)
    assert not ended.times
    pass_by(spans, 8, 3)
    assert ended.times == 1


def test_a_round_that_a_server_rejects_is_over_and_failed() -> None:
    ended = Ended()
    spans = ServerSpans(ended.window)
    held = spans.held(3)
    for key, round_ in ((1, 2), (2, 2), (3, 2), (3, 3)):
        held.arrived(key, round_, 0, 1.0)
        held.arrived(key, round_, 1, 2.0)
    for _ in range(2):
        held.rejected(1, 2)
        held.rejected(2, 1)
    for rank in range(2):
        held.replied(3, 3, rank)
    assert not ended.times
    held.rejected(3, 3)  # to one that asks for it much later
    held.rejected(2, 2)
    assert ended.times == 1
    first, second, other, last = spans.rounds
    assert first.rejected > 0
    assert second.rejected > first.rejected
    assert other.rejected == last.rejected == 0.0
    first.rejected, last.replied = 4.0, 3.0
    for each in spans.rounds:
        each.arrivals = {rank: (at, at) for rank, (at, _) in each.arrivals.items()}
    groups = list(server_groups(spans, {}, lambda seconds: int(seconds * 1e6), 9.0))
    found = {
        (each[0].details["partition"], each[0].details["step"]): (each[0].end // 1_000_000, *marks(each[0]))
        for each in groups
    }
    assert (found[1, 2], found[3, 3]) == ((4, "failed"), (3,))
    waits = [marks(span) for group in groups for span in group if span.name.endswith(".WAIT")]
    assert waits == [("failed",), ("failed",), ("unfinished",), ()]


def marks(span: Span) -> tuple[str, ...]:
    return tuple(each for each in ("failed", "unfinished") if span.details.get(each))


def test_what_is_written_is_freed() -> None:
    spans = WorkerSpans(Window(1, 3))
    pass_by(spans, 7, 1)
    spans.sent(7, 2, 1.0, 2.0)
    bundle = Bundle(1, [1], left=1)
    join(spans, bundle, 1, 1)
    spans.window.close()
    spans.forget()
    assert not any((spans.passages, spans.finished, spans.cargo, spans._open, spans._bundles))
    spans.received(7, 4.0)
    spans.copied_out(7, 4.0)
    spans.bundle_sent(bundle, 2.0)
    bundle.left = 0
    spans.arrived(bundle, 1, 3.0, [Flight(1, bundle)])
    pass_by(spans, 7, 3)
    assert not any((spans.passages, spans.finished, spans.cargo))


def test_a_server_counts_the_contributions_of_all_workers() -> None:
    most, workers = 1000, 200
    spans = ServerSpans(Window(1, 10, most))
    held = spans.held(workers)
    for key in range(20):
        for rank in range(workers):
            held.arrived(key, 1, rank, 10.0)
    assert [len(each.arrivals) for each in spans.rounds] == [workers] * (most // (5 + workers))
    assert spans.window.dropped > 15 * (5 + workers)
    made = [span for group in server_groups(spans, {}, lambda seconds: int(seconds * 1e6), 99.0) for span in group]
    assert len(made) <= most


def test_room_for_workers_that_another_one_sums_for_is_given_back() -> None:
    spans = ServerSpans(Window(1, 10, 40))
    held = spans.held(8)
    for round_ in (1, 2, 3, 4):
        held.arrived(7, round_, 0, 10.0, stands_for=8)
    assert [each.round for each in spans.rounds] == [1, 2, 3, 4]
    assert spans.window.left == 40 - 3 * (5 + 1) - (5 + 8)


def test_a_server_counts_what_was_summed_at_once_with_all_keys_and_bundles() -> None:
    spans = ServerSpans(Window(1, 10, 100))
    held = spans.held(50)
    for number in (1, 2):
        held.bundles_replied([Arrived(rank, number, 1.0) for rank in range(50)], 3.0, table((1, 1), (2, 1)))
        held.bundles_sent()
    assert len(spans.together) == 1
    assert (spans.window.left, spans.window.dropped) == (100 - 5 - 50 - 2, 57)
    spans.forget()
    assert not any((spans.rounds, spans.together, spans.sums, spans.open))


def table(*rows: tuple[int, int]) -> np.ndarray:
    found = np.zeros(len(rows), ENTRY)
    found["key"], found["round"] = zip(*rows, strict=True)
    return found


def test_a_server_knows_who_came_when() -> None:
    ended = Ended()
    spans = ServerSpans(ended.window)
    held, sums = spans.held(2), spans.sum_times()
    for round_ in (1, 2, 3):
        held.arrived(7, round_, 1, 10.0)
        held.arrived(7, round_, 1, 11.0)
        held.arrived(7, round_, 0, 12.0)
        sums.add(12.0, 12.5, 7, round_)
        held.replied(7, round_, 0)
        assert not ended.times
        held.replied(7, round_, 1)
    assert ended.times == 1
    assert [each.round for each in spans.rounds] == [each.round for each in spans.sums] == [2, 3]
    assert {rank: at for rank, (at, _) in spans.rounds[0].arrivals.items()} == {1: 10.0, 0: 12.0}
    assert (spans.rounds[0].replies, held.held.count, sums.sum.count) == (2, 6, 3)


def test_a_server_keeps_what_was_summed_at_once() -> None:
    ended = Ended()
    spans = ServerSpans(ended.window)
    held = spans.held(2)
    for round_ in (1, 2, 3):
        assert not ended.times
        held.bundles_replied([Arrived(0, 5, 1.0), Arrived(1, 6, 2.0)], 3.0, table((1, round_), (2, round_)))
        held.bundles_sent()
    held.bundles_replied([Arrived(0, 5, 1.0)], 3.0, table((1, 4)))
    held.bundles_sent()
    assert ended.times == 1
    assert [(each.keys, each.rounds) for each in spans.together] == [([1, 2], [2, 2]), ([1, 2], [3, 3])]
    assert spans.together[0].arrivals == [(0, 5, 1.0), (1, 6, 2.0)]
    assert held.held.count == 7
