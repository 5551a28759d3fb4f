"""Under random traffic both ledgers do the same, and with regular entries what Aggregation and the kernels do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_py.core.aggregation import Aggregation, Contribution, Reply, Sum
from byteps_py.kernels import ledger as ledgers
from byteps_py.kernels.ledger import Ledger, Row, Taken, Terms
from byteps_py.kernels.reference import ReferenceKernels
from byteps_py.types import DType, Operation, Participant, make_key
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.header import Flag
from tests.helpers.rows import shown

Array = npt.NDArray[Any]

GROUPS = ((1,), (2,), (1, 1), (3, 2), (1, 2, 1), (1, 1, 1, 1))
TENSORS = 6
LIMIT = 40
many = settings(max_examples=40, deadline=None)


class General:
    """The general machine: its results, as bytes, by key."""

    def __init__(self, groups: tuple[int, ...]) -> None:
        nodes = [node for node, size in enumerate(groups) for _ in range(size)]
        everybody = [Participant(rank, node, 0, 1, "host", 1, 1) for rank, node in enumerate(nodes)]
        self._aggregation = Aggregation(everybody)
        self.results: dict[int, tuple[int, int, int, bytes | None]] = {}

    def push(self, contribution: Contribution) -> None:
        pending = self._aggregation.push(contribution)
        for action in pending:
            if isinstance(action, Sum):
                out = np.empty(action.count * action.dtype.itemsize, np.uint8)
                ReferenceKernels().sum_groups(
                    out, action.sources, action.groups, action.dtype, action.count, action.divisor, 1
                )
                pending += self._aggregation.summed(action.key, action.round, out)
            elif isinstance(action, Reply):
                data = None if action.payload is None else bytes(action.payload)  # type: ignore[call-overload]
                self.results[action.key] = action.round, action.step, action.contributors, data


class Twins:
    """Both ledgers, which are given the same and must answer the same."""

    def __init__(self, groups: tuple[int, ...]) -> None:
        self.each: list[Ledger] = [ledgers.make(name, groups, LIMIT) for name in ("native", "reference")]

    def take(self, rank: int, table: Array, payload: Array, stamp: int) -> Taken:
        first, second = (each.take(rank, memoryview(table.tobytes()), memoryview(payload), stamp) for each in self.each)
        assert (first.irregular, first.complete, first.nbytes) == (second.irregular, second.complete, second.nbytes)
        return first

    def finish(self, nbytes: int) -> dict[int, tuple[int, int, int, bytes | None]]:
        """Results by key, in the form of those of General."""
        outs = [np.full(nbytes, 0xEE, np.uint8) for _ in self.each]
        (first, stamps), (second, others) = (each.finish(out) for each, out in zip(self.each, outs, strict=True))
        assert first.tolist() == second.tolist()
        assert stamps == others
        assert outs[0].tobytes() == outs[1].tobytes()
        found = {}
        for key, round, step, place, count, root, dtype, _, flags, _ in first.tolist():
            data = outs[0][place:][: count * DType(dtype).itemsize].tobytes()
            found[key] = round, step, root, None if flags & Flag.ABSENT else data
        return found

    def compare(self) -> None:
        keys, others = (list(each.keys()) for each in self.each)
        assert keys == others
        for key in {*keys, *(make_key(tensor, 0) for tensor in range(TENSORS))}:
            first, second = (shown(each.row(key)) for each in self.each)
            assert first == second

    def evict(self, key: int) -> Row:
        first, second = (each.evict(key) for each in self.each)
        assert shown(first) == shown(second)
        return first

    def admit(self, key: int, round: int) -> None:
        for each in self.each:
            each.admit(key, round)


class Traffic:
    """Workers that agree about the terms of each round, drawn from ``seed``."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.groups = GROUPS[self.draw.integers(len(GROUPS))]
        self.size = sum(self.groups)
        self.round = [1] * TENSORS
        self.terms = [self.some_terms() for _ in range(TENSORS)]
        self.missing = [set(range(self.size)) for _ in range(TENSORS)]

    def turns(self) -> list[int]:
        """Ranks in the order in which they push, each often enough for some rounds."""
        return [rank for _ in range(8) for rank in self.draw.permutation(self.size).tolist()]

    def some_terms(self) -> Terms:
        dtype = DType(int(self.draw.integers(1, 9)))
        operation = Operation(int(self.draw.integers(1, 3)))
        return Terms(dtype, operation, int(self.draw.integers(5)), int(self.draw.choice([0, 1, 3, 7, 64, 600])))

    def bundle(self, rank: int) -> tuple[Array, Array, list[Contribution]]:
        """Table and payload of what this worker pushes now: maybe nothing, never a round twice."""
        entries: list[tuple[Any, ...]] = []
        parts: list[bytes] = []
        contributions = []
        end = 0
        for tensor in self.draw.permutation(TENSORS).tolist():
            if rank not in self.missing[tensor] or self.draw.random() < 0.3:
                continue
            self.missing[tensor].discard(rank)
            terms, key, round = self.terms[tensor], make_key(tensor, 0), self.round[tensor]
            content = None if self.draw.random() < 0.3 else self.elements(terms)
            flags = Flag.WANT_RESULT | (Flag.NONE if content is not None else Flag.ABSENT)
            entries.append((key, round, terms.step, end, terms.count, 0, terms.dtype, terms.operation, flags, b""))
            contributions.append(
                Contribution(
                    rank, key, round, terms.dtype, terms.operation, 0, terms.step, 0, terms.count, content, True
                )
            )
            if content is not None:
                parts.append(content + bytes(-len(content) % 8))
                end += len(parts[-1])
        payload = np.frombuffer(b"".join(parts) or b"unused", np.uint8).copy()
        return np.array(entries, ENTRY), payload, contributions

    def elements(self, terms: Terms) -> bytes:
        """Any bits at all, or numbers near one another in size."""
        if self.draw.random() < 0.3 or not terms.dtype.is_floating or terms.dtype is DType.BFLOAT16:
            return self.draw.bytes(terms.count * terms.dtype.itemsize)
        return self.draw.normal(size=terms.count).astype(terms.dtype.storage).tobytes()

    def open_next(self, key: int) -> None:
        tensor = key >> 32
        self.round[tensor] += 1
        self.terms[tensor] = self.some_terms()
        self.missing[tensor] = set(range(self.size))


@many
@given(st.integers(0, 2**32 - 1))
def test_regular_traffic_is_summed_as_by_the_general_machine(seed: int) -> None:
    traffic = Traffic(seed)
    twins, general = Twins(traffic.groups), General(traffic.groups)
    finished = 0
    for stamp, rank in enumerate(traffic.turns()):
        table, payload, contributions = traffic.bundle(rank)
        taken = twins.take(rank, table, payload, stamp)
        assert taken.irregular == []
        for each in contributions:
            general.push(each)
        if traffic.draw.random() < 0.7:
            found = twins.finish(taken.nbytes)
            assert found == general.results
            general.results.clear()
            for key in found:
                traffic.open_next(key)
            finished += len(found)
    twins.compare()
    assert finished


def disturb(table: Array, draw: np.random.Generator) -> None:
    """Write something else into one field of some entries."""
    for index in range(len(table)):
        if draw.random() < 0.2:
            field = str(draw.choice([name for name in ENTRY.names or () if name != "padding"]))
            old = int(table[field][index])
            top = 2 ** (8 * ENTRY[field].itemsize) - 1
            new = (old ^ 1 << int(draw.integers(8 * ENTRY[field].itemsize)), old + 1, old - 1, 0, 2, top)
            table[field][index] = new[int(draw.integers(len(new)))] & top


@many
@given(st.integers(0, 2**32 - 1))
def test_irregular_traffic_is_treated_alike(seed: int) -> None:
    """Disturbed and repeated tables, and rows that go and come: the twins stay equal whatever happens."""
    traffic = Traffic(seed)
    twins, draw = Twins(traffic.groups), traffic.draw
    out: set[int] = set()
    earlier: list[tuple[int, Array, Array]] = []
    for stamp, rank in enumerate(traffic.turns()):
        table, payload, _ = traffic.bundle(rank)
        disturb(table, draw)
        earlier.append((rank, table, payload))
        taken = twins.take(rank, table, payload, stamp)
        if draw.random() < 0.2:
            taken = twins.take(*earlier[draw.integers(len(earlier))], stamp)
        key = make_key(int(draw.integers(TENSORS)), 0)
        if key not in out and draw.random() < 0.1:
            twins.evict(key)
            out.add(key)
            taken = twins.take(0, table[:0], payload, stamp)
        elif key in out and draw.random() < 0.5:
            twins.admit(key, traffic.round[key >> 32])
            out.discard(key)
        if draw.random() < 0.7:
            for each in twins.finish(taken.nbytes):
                if each >> 32 < TENSORS:
                    traffic.open_next(each)
        twins.compare()
