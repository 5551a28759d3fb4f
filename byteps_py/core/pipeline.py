"""A worker's partitions on their way to the servers: what is to be pushed next, and what is done.

Theory of operation
-------------------

An *operation* is one round of all partitions of one tensor.  A tensor has at most one operation under way, because a
server keeps one result per key; further ones wait behind it, first come, first served.  The partitions of an operation
under way wait in the queue of their server, higher priority first, then in the order in which the operations were
submitted, then in the order of the partitions.

Each server has a *window*: the bytes that were pushed and that it has not yet accepted.  The first partition of a queue
is pushed when it fits into the window, or when nothing else is on the way; smaller ones behind it do not overtake it.
Where servers have much and little of an operation, they keep in step (:mod:`byteps_py.core.pace`).
A window opens again when the server has *accepted* a contribution, not when the round is complete: else two workers
that push their tensors in opposite order would wait for each other for ever.

The states of one partition of an operation::

    state       event                               action                                  next state
    ----------  ----------------------------------  --------------------------------------  ----------
    WAITING     the operation before it ends        --                                      QUEUED
    QUEUED      its turn has come and it fits       Start; its bytes go onto the window     SENT
    SENT        accepted                            its bytes leave the window              ACCEPTED
    SENT        finished                            its bytes leave the window              FINISHED
    ACCEPTED    finished                            --                                      FINISHED
    any         the operation fails                 if SENT, its bytes leave the window     dropped

A tensor of one partition may also have its next round *lent* (:meth:`Pipeline.lend`): it then travels together with
others, outside the queues and the windows, and operations on the tensor wait behind it as behind any other.

When the last partition of an operation is FINISHED, or when the operation fails, the operation ends: that is told once,
and the next operation on its tensor becomes QUEUED.  Events that fit no row (a duplicate, an older round, an operation
that failed) change nothing, so every message may come twice or late.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from byteps_py.core.pace import Step, steps
from byteps_py.core.window import Window
from byteps_py.types import Partition

__all__ = ["Completed", "Failed", "Outstanding", "Pipeline", "Start"]


class Start(msgspec.Struct, frozen=True, gc=False):
    """Push this partition now: ``partition_index`` counts within the partitions of the submitted operation."""

    operation_id: int
    key: int
    round: int
    server: int
    partition_index: int


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The results of all partitions of this operation are here."""

    operation_id: int


class Failed(msgspec.Struct, frozen=True, gc=False):
    """This operation will not complete, and nothing more of it is pushed."""

    operation_id: int


class Outstanding(msgspec.Struct, frozen=True):
    """How far an operation is that has not ended, for messages about stalls.

    Attributes:
        round: 0 while it waits behind another operation on the same tensor.
        unsent: number of partitions that were not pushed yet.
        unaccepted: partitions that were pushed, of which their server has not said that it has them.
        accepted: partitions whose server has them and waits for other workers, or computes.
        finished: number of partitions whose result is here.
    """

    operation_id: int
    tensor_id: int
    round: int
    unsent: int
    unaccepted: tuple[Partition, ...]
    accepted: tuple[Partition, ...]
    finished: int


@dataclass(slots=True, eq=False)
class _Operation:
    """``submitted`` counts operations in the order of submission; ``unsent`` and ``unfinished`` count partitions."""

    operation_id: int
    tensor_id: int
    partitions: Sequence[Partition]
    itemsize: int
    priority: int
    submitted: int
    unsent: int
    unfinished: int
    steps: list[Step] | None = None
    round: int = 0


_LENT = _Operation(0, 0, (), 0, 0, 0, 0, 0)
"""Stands for the operation under way of a tensor whose round was lent; it is in no queue."""


@dataclass(slots=True, eq=False)
class _Tensor:
    round: int = 0
    current: _Operation | None = None
    waiting: deque[_Operation] = field(default_factory=deque)
    partitions: Sequence[Partition] = ()
    steps: list[Step] | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """A partition that is SENT or ACCEPTED; ``nbytes`` is what it takes of the window (0 once it is ACCEPTED)."""

    start: Start
    operation: _Operation
    nbytes: int
    accepted: bool = False


class Pipeline:
    """All operations of one worker within one membership epoch.  Not thread-safe: one thread owns it.

    Args:
        num_servers: number of servers; partitions name them from 0.
        window: of each server; :func:`~byteps_py.core.partition_size.choose_window_bytes` says why it is small.
        first_server: the server that is served first; different workers should start at different ones.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, num_servers: int, window: Window, first_server: int) -> None:
        if num_servers < 1 or window.nbytes < 0 or not 0 <= first_server < num_servers:
            raise ValueError(
                f"a pipeline needs at least one server (not {num_servers}), a window of at least 0 bytes (not "
                f"{window.nbytes}) and a first server from 0 to {num_servers - 1} (not {first_server})"
            )
        self._window = window
        self._servers = [(first_server + index) % num_servers for index in range(num_servers)]
        self._queues: list[list[tuple[int, int, int, _Operation]]] = [[] for _ in range(num_servers)]
        self._in_flight = [0] * num_servers
        self._held = False  # whether a queue waits for another one: no message about itself ends that
        self._tensors: dict[int, _Tensor] = {}
        self._operations: dict[int, _Operation] = {}
        self._requests: dict[int, _Request] = {}
        self._submitted = 0

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Per server: bytes that were pushed and are not yet accepted."""
        return tuple(self._in_flight)

    @property
    def idle(self) -> bool:
        """Whether every submitted operation has ended."""
        return not self._operations

    @property
    def unaccepted(self) -> int:
        """Partitions of outstanding operations, pushed or not, that no server is known to have.  O(outstanding)."""
        sent = sum(not request.accepted for request in self._requests.values())
        return sent + sum(operation.unsent for operation in self._operations.values())

    def outstanding(self) -> list[Outstanding]:
        """The operations that have not ended, in the order of submission.  O(their partitions)."""
        return [self._progress(operation) for operation in self._operations.values()]

    def unfinished(self, operation_id: int) -> list[Partition]:
        """The partitions of an outstanding operation whose result is not here.  O(all queues)."""
        operation = self._operations[operation_id]
        if not operation.round:
            return list(operation.partitions)
        queued = {entry[2] for queue in self._queues for entry in queue if entry[3] is operation}
        return [
            partition
            for index, partition in enumerate(operation.partitions)
            if index in queued
            or ((request := self._requests.get(partition.key)) is not None and request.operation is operation)
        ]

    def submit(
        self,
        operation_id: int,
        tensor_id: int,
        partitions: Sequence[Partition],
        itemsize: int,
        priority: int,
        absent: bool,
    ) -> list[Start]:
        """Begin an operation, or let it wait behind the one that its tensor has under way.

        Args:
            operation_id: any number that no outstanding operation has.
            partitions: all partitions of the tensor, at least one (a tensor without elements has one of 0 elements);
                kept, so it must not change.
            itemsize: bytes of one element on the way.
            priority: higher goes first.
            absent: the contribution has no payload and takes nothing of the window.

        Raises:
            ValueError: the id is in use, there is no partition, or one names a server that there is not.
        """
        if operation_id in self._operations:
            raise ValueError(f"operation {operation_id} is already under way")
        if not partitions:
            raise ValueError(f"tensor {tensor_id} has no partition; one without elements still has one of 0 elements")
        for partition in partitions:
            if not 0 <= partition.server < len(self._servers):
                raise ValueError(f"{partition} names a server that is not one of the {len(self._servers)} there are")
        self._submitted += 1
        count, on_the_way = len(partitions), 0 if absent else itemsize
        tensor = self._tensors.setdefault(tensor_id, _Tensor())
        if tensor.partitions is not partitions:
            tensor.partitions, tensor.steps = partitions, steps(partitions)
        operation = _Operation(
            operation_id, tensor_id, partitions, on_the_way, priority, self._submitted, count, count, tensor.steps
        )
        self._operations[operation_id] = operation
        if tensor.current is not None:
            tensor.waiting.append(operation)
            return []
        self._enqueue(tensor, operation)
        return self._fill(self._servers)

    def lend(self, tensor_id: int) -> int | None:
        """Take the next round of a tensor with one partition out of this machine's hands: it travels with others.

        Returns the round, which is under way until :meth:`give_back`; None if another operation is, behind which this
        one must wait (:meth:`submit`).
        """
        if (tensor := self._tensors.get(tensor_id)) is None:
            tensor = self._tensors[tensor_id] = _Tensor()
        if tensor.current is not None:
            return None
        tensor.current = _LENT
        tensor.round += 1
        return tensor.round

    def give_back(self, tensor_ids: Iterable[int]) -> list[Start]:
        """The rounds that were lent of these tensors are over, well or not; returns what may be pushed now."""
        waiting = False
        for tensor_id in tensor_ids:
            tensor = self._tensors[tensor_id]
            tensor.current = None
            if tensor.waiting:
                self._enqueue(tensor, tensor.waiting.popleft())
                waiting = True
        return self._fill(self._servers) if waiting else []

    def find(self, key: int, round: int) -> Start | None:
        """The Start of an outstanding request: where a result belongs, and what to push again if it is missing.

        None if ``(key, round)`` was not pushed, or has a result already, or belongs to an operation that failed.
        """
        return None if (request := self._request(key, round)) is None else request.start

    def accepted(self, key: int, round: int) -> list[Start]:
        """A server has the contribution to ``(key, round)``; returns what may be pushed now."""
        if (request := self._request(key, round)) is None:
            return []
        request.accepted = True
        return self._fill((self._release(request),))

    def finished(self, key: int, round: int) -> tuple[Completed | None, list[Start]]:
        """The result of ``(key, round)`` is here, which says too that the contribution was accepted."""
        if (request := self._request(key, round)) is None:
            return None, []
        del self._requests[key]
        server, operation = self._release(request), request.operation
        operation.unfinished -= 1
        if operation.unfinished:
            return None, self._fill((server,))
        self._end(operation)
        return Completed(operation.operation_id), self._fill(self._servers)

    def failed(self, key: int, round: int) -> tuple[Failed | None, list[Start]]:
        """``(key, round)`` was rejected: its operation fails, as by :meth:`fail_operation`."""
        if (request := self._request(key, round)) is None:
            return None, []
        operation_id = request.operation.operation_id
        return Failed(operation_id), self.fail_operation(operation_id)

    def fail_operation(self, operation_id: int) -> list[Start]:
        """Give an operation up: drop what was not pushed, free what it holds of the windows; returns what goes instead.

        Does nothing if it is not outstanding. If it was under way, its round counts as used: later operations on the
        tensor are pushed as usual, and the servers, which know the cause, reject them.
        """
        if (operation := self._operations.get(operation_id)) is None:
            return []
        for partition in operation.partitions:
            if (request := self._requests.get(partition.key)) is not None and request.operation is operation:
                del self._requests[partition.key]
                self._release(request)
        if operation.unsent and operation.round:
            self._drop_unsent(operation)
        self._end(operation)
        return self._fill(self._servers)

    def _request(self, key: int, round: int) -> _Request | None:
        request = self._requests.get(key)
        return None if request is None or request.start.round != round else request

    def _release(self, request: _Request) -> int:
        """Take what ``request`` still holds of its server's window off it; returns the server."""
        self._in_flight[request.start.server] -= request.nbytes
        request.nbytes = 0
        return request.start.server

    def _enqueue(self, tensor: _Tensor, operation: _Operation) -> None:
        tensor.current = operation
        tensor.round += 1
        operation.round = tensor.round
        for index, partition in enumerate(operation.partitions):
            # The first three numbers differ for any two entries, so operations are never compared.
            entry = (-operation.priority, operation.submitted, index, operation)
            heapq.heappush(self._queues[partition.server], entry)

    def _drop_unsent(self, operation: _Operation) -> None:
        for server in {partition.server for partition in operation.partitions}:
            queue = self._queues[server]
            queue[:] = [entry for entry in queue if entry[3] is not operation]
            heapq.heapify(queue)

    def _end(self, operation: _Operation) -> None:
        """Forget ``operation``; if it was under way, the next one on its tensor takes its place."""
        del self._operations[operation.operation_id]
        tensor = self._tensors[operation.tensor_id]
        if tensor.current is not operation:
            tensor.waiting.remove(operation)
            return
        tensor.current = None
        if tensor.waiting:
            self._enqueue(tensor, tensor.waiting.popleft())

    def _fill(self, servers: Sequence[int]) -> list[Start]:
        """Push what fits to ``servers``, one partition to each in turn, so that none waits for all of another's."""
        starts: list[Start] = []
        if self._held:
            servers, self._held = self._servers, False
        while servers:
            servers = [server for server in servers if self._start_next(server, starts)]
        return starts

    def _start_next(self, server: int, starts: list[Start]) -> bool:
        """Start the first partition in the queue of ``server`` if it fits."""
        queue = self._queues[server]
        if not queue:
            return False
        _, _, index, operation = queue[0]
        partition = operation.partitions[index]
        nbytes = partition.count * operation.itemsize
        in_flight = self._in_flight[server]
        if nbytes and in_flight and in_flight + nbytes > self._window.nbytes:
            return False
        if nbytes and operation.steps is not None and self._is_ahead(operation, operation.steps, index):
            self._held = True
            return False
        heapq.heappop(queue)
        operation.unsent -= 1
        self._in_flight[server] = in_flight + nbytes
        start = Start(operation.operation_id, partition.key, operation.round, server, index)
        self._requests[partition.key] = _Request(start, operation, nbytes)
        starts.append(start)
        return True

    def _is_ahead(self, operation: _Operation, paces: Sequence[Step], index: int) -> bool:
        """Whether a partition has to wait for another server's part of its operation."""
        heads = (queue[0] for queue in self._queues if queue)
        return any(each is operation and paces[place].done < paces[index].limit for _, _, place, each in heads)

    def _progress(self, operation: _Operation) -> Outstanding:
        unaccepted: list[Partition] = []
        accepted: list[Partition] = []
        for partition in operation.partitions:
            request = self._requests.get(partition.key)
            if request is not None and request.operation is operation:
                (accepted if request.accepted else unaccepted).append(partition)
        return Outstanding(
            operation.operation_id,
            operation.tensor_id,
            operation.round,
            operation.unsent,
            tuple(unaccepted),
            tuple(accepted),
            len(operation.partitions) - operation.unsent - len(unaccepted) - len(accepted),
        )
