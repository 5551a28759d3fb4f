"""Declared tensors: their ids, their partitions, and which server sums which partition.

A name is the identity of a tensor.  Whoever declares it first fixes its dtype, shape and group; a worker that declares
it differently puts the name *in conflict*, and there it stays, because the workers' programs disagree.

Placement is by size.  The new partitions of one batch are placed largest first, each on the least loaded server, so
the busiest server exceeds its share by less than one partition; later batches go on from the loads so far.  Shares
are equal unless told otherwise (:mod:`byteps_py.core.shares`); a server without one gets nothing.
Partitions of one tensor are of one size, as nearly as their boundaries allow: no small rest costs a message of its
own, and servers get equal work.
A placement never changes.  Equal calls in equal order give equal tables: there is no hash and no random choice.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from byteps_py.core.partition_size import LARGEST_PARTITION, choose_partition_bytes, choose_window_bytes
from byteps_py.core.seating import effective
from byteps_py.types import GROUP_TENSORS, Partition, TensorSpec, make_key, make_tensor_id
from byteps_py.wire.control import Conflict, Placement

__all__ = ["MAX_PARTITIONS", "TensorTable"]

MAX_PARTITIONS: Final = 1 << 20
"""Most partitions that one Declare may ask for: their placements (28 bytes each) fit into one control frame."""

_GRAIN: Final = 1024
"""Elements between two possible boundaries of partitions, so that none parts a cache line or a vector of the kernels.

It is halved for a tensor whose partitions would exceed the setting otherwise, as small ones of odd sizes do.
"""

_PARTITION_COST: Final = 16 * 1024
"""Bytes that a partition counts for beyond its own: handling one message takes about as long as summing these many.

Without it a thousand biases would weigh nothing next to one matrix, and all partitions of zero-size tensors would
fall on one server.
"""


@dataclass(frozen=True)
class _Entry:
    """One placed tensor and who declared it first."""

    rank: int
    spec: TensorSpec
    placement: Placement


_UNKNOWN_LINK: Final = 125_000_000
"""Bytes per second that a link is taken to have until somebody has measured one: 1 Gbit/s."""


class TensorTable:
    """All tensors of a job. Not thread-safe.

    Args:
        num_servers: at least 1.
        partition_bytes: largest partition in bytes, at least 1; a partition holds whole elements and at least one.
            None: chosen for each batch (:func:`~byteps_py.core.partition_size.choose_partition_bytes`).
        weights: the share of each server, in any unit; None: equal ones.
        workers: machines that push, for the choice of the size.
        has_links: whether a worker and a server are on different machines.

    Attributes:
        partition_bytes: the largest size in force so far.
        window_bytes: how much should be on the way to a server; 0: nothing was chosen.
    """

    def __init__(
        self,
        num_servers: int,
        partition_bytes: int | None,
        *,
        weights: Sequence[float] | None = None,
        workers: int = 1,
        has_links: bool = True,
    ) -> None:
        if num_servers < 1 or (partition_bytes is not None and partition_bytes < 1):
            raise ValueError(f"num_servers={num_servers} and partition_bytes={partition_bytes} must be at least 1")
        weights = [1.0] * num_servers if weights is None else weights
        if len(weights) != num_servers or min(weights) < 0 or not max(weights):
            raise ValueError(f"{num_servers} servers need as many weights, none below 0, and one above: {weights}")
        self.partition_bytes = partition_bytes or 0
        self.window_bytes = 0
        self._chooses = partition_bytes is None
        self._partition_bytes = partition_bytes or LARGEST_PARTITION
        self._workers = workers
        self._has_links = has_links
        self._link = _UNKNOWN_LINK
        self._servers = effective(weights)
        self._model_bytes = 0
        self._news: list[str] = []
        self._cost = [max(weights) / each if each else 0.0 for each in weights]  # of a byte
        self._loads: list[tuple[float, int]] = [(0, server) for server, each in enumerate(weights) if each]  # a heap
        self._entries: dict[str, _Entry] = {}
        self._counts: dict[int, int] = {}  # of the tensors of each group
        self._conflicts: dict[str, Conflict] = {}

    def declare(
        self, rank: int, specs: Sequence[TensorSpec], link: int = 0
    ) -> tuple[tuple[Placement, ...], tuple[Conflict, ...]]:
        """Look up the tensors of one batch; place those that are new.

        Repeating a call is harmless and gives the same answer, unless a name came into conflict in between.

        Args:
            rank: the worker that declares.
            specs: in the order of its program, which is also the order of new ids. Each must be possible
                (:func:`~byteps_py.wire.control.tensor_problem`), as every decoded message is.
            link: bytes per second that the worker has seen on its way to servers; 0: it does not know, or needs none.

        Returns:
            Placements of the tensors without conflict, in the order of ``specs``, and the conflicts of the others.
        """
        self._choose_size(specs, link)
        new: dict[str, TensorSpec] = {}
        budget = MAX_PARTITIONS
        conflicts: dict[str, Conflict] = {}
        for spec in specs:
            problem = self._conflicts.get(spec.name) or self._disagreement(rank, spec, new)
            if problem is None:
                budget -= self._partition_count(spec)
                problem = self._too_large(rank, spec) if budget < 0 else self._too_many(spec, new)
            if problem is not None:
                conflicts[spec.name] = self._conflicts.setdefault(spec.name, problem)
                new.pop(spec.name, None)
            elif spec.name not in self._entries:
                new[spec.name] = spec
        self._place(rank, list(new.values()))
        placements = tuple(self._entries[spec.name].placement for spec in specs if spec.name not in conflicts)
        return placements, tuple(conflicts.values())

    def take_news(self) -> list[str]:
        """What was chosen since the last call, as lines for a log."""
        news, self._news = self._news, []
        return news

    def _choose_size(self, specs: Sequence[TensorSpec], link: int) -> None:
        """Settle the size of the partitions of one batch, by everything that is declared with it."""
        self._link = link or self._link
        unknown = (each for each in specs if each.name not in self._entries)
        added = sum({each.name: each.nbytes for each in unknown if each.name not in self._conflicts}.values())
        if added and self._chooses:
            self._choose(self._model_bytes + added)
        self.partition_bytes = max(self.partition_bytes, self._partition_bytes)

    def _choose(self, model_bytes: int) -> None:
        link = self._link if self._has_links else None
        size = choose_partition_bytes(model_bytes, self._workers, self._servers, link)
        window = choose_window_bytes(size, self._workers, len(self._loads), link)
        self.window_bytes = max(self.window_bytes, window)
        if link is not None and size != self._partition_bytes:
            self._news.append(
                f"partitions of up to {size} bytes: {model_bytes / 1e6:.3g} MB of tensors, "
                f"{link / 1e6:.3g} MB/s between workers and servers"
            )
        self._partition_bytes = size

    def _disagreement(self, rank: int, spec: TensorSpec, new: dict[str, TensorSpec]) -> Conflict | None:
        """The conflict of ``spec`` with an earlier declaration; ``new`` are those of the same batch."""
        entry = self._entries.get(spec.name)
        first, first_rank = (entry.spec, entry.rank) if entry else (new.get(spec.name, spec), rank)
        if first == spec:
            return None
        own = " and one group" if first.group != spec.group else ""
        text = (
            f"tensor {first.name!r} is {first.describe()} on worker {first_rank} "
            f"but {spec.describe()} on worker {rank}: "
            f"a name must have one dtype and one shape{own} on all workers; make the programs agree, or use two names"
        )
        return Conflict(spec.name, text)

    def _too_large(self, rank: int, spec: TensorSpec) -> Conflict:
        text = (
            f"tensor {spec.name!r} is {spec.describe()} on worker {rank}, {self._partition_count(spec)} partitions of "
            f"BYTEPS_PARTITION_BYTES={self._partition_bytes}: one batch of declarations may have {MAX_PARTITIONS}; "
            "raise BYTEPS_PARTITION_BYTES on all workers"
        )
        return Conflict(spec.name, text)

    def _too_many(self, spec: TensorSpec, new: Mapping[str, TensorSpec]) -> Conflict | None:
        """The conflict of a tensor for whose id its group has no number left; ``new`` as in :meth:`_disagreement`."""
        if not spec.group or spec.name in self._entries or spec.name in new:
            return None
        count = self._counts.get(spec.group, 0)
        if (
            count + len(new) < GROUP_TENSORS
            or count + sum(each.group == spec.group for each in new.values()) < GROUP_TENSORS
        ):
            return None
        text = (
            f"tensor {spec.name!r} is {spec.describe()}, which has {GROUP_TENSORS} tensors already, the most that a "
            "group can have: use names again"
        )
        return Conflict(spec.name, text)

    def _partition_elements(self, spec: TensorSpec) -> int:
        """Elements of a full partition."""
        return max(1, self._partition_bytes // spec.dtype.itemsize)

    def _partition_count(self, spec: TensorSpec) -> int:
        """A tensor without elements still has one partition, so that its rounds take place."""
        return max(1, -(-spec.count // self._partition_elements(spec)))

    def _pieces(self, tensor_id: int, spec: TensorSpec) -> Iterator[Partition]:
        """The partitions of a tensor in order, not placed yet: the first ones are a grain larger than the others."""
        most, pieces, grain = self._partition_elements(spec), self._partition_count(spec), _GRAIN
        while grain > 1 and -(-spec.count // (grain * pieces)) * grain > most:
            grain //= 2
        smallest, larger = divmod(-(-spec.count // grain), pieces)
        offset = 0
        for index in range(pieces):
            end = min(spec.count, offset + grain * (smallest + (index < larger)))
            yield Partition(make_key(tensor_id, index), offset, end - offset, server=0)
            offset = end

    def _next_id(self, spec: TensorSpec) -> int:
        number = self._counts.get(spec.group, 0)
        self._counts[spec.group] = number + 1
        return make_tensor_id(spec.group, number)

    def _place(self, rank: int, specs: Sequence[TensorSpec]) -> None:
        """Give each tensor of ``specs`` an id, and each of their partitions a server: the largest first."""
        ids = [self._next_id(spec) for spec in specs]
        pieces = [list(self._pieces(each, spec)) for each, spec in zip(ids, specs, strict=True)]
        by_size = sorted(
            (-piece.count * spec.dtype.itemsize, tensor, index)
            for tensor, spec in enumerate(specs)
            for index, piece in enumerate(pieces[tensor])
        )
        for negative_bytes, tensor, index in by_size:
            piece = pieces[tensor][index]
            load, server = self._loads[0]
            cost = (_PARTITION_COST - negative_bytes) * self._cost[server]
            heapq.heapreplace(self._loads, (load + cost, server))
            pieces[tensor][index] = Partition(piece.key, piece.offset, piece.count, server)
        for index, spec in enumerate(specs):
            self._model_bytes += spec.nbytes
            placement = Placement(spec.name, ids[index], tuple(pieces[index]))
            self._entries[spec.name] = _Entry(rank, spec, placement)
