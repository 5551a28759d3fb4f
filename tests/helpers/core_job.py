"""A whole job in one thread and in virtual time: several pipelines and aggregations over a network that errs.

Nothing here decides anything that ``byteps_py.core`` decides; it performs what the core asks for, as the roles do, and
watches that nothing is done twice.  The network delays, reorders, loses and duplicates, all drawn from one seed.

Contributions are int64 numbers with one hexadecimal digit per worker, so a sum shows who was counted how often.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from byteps_py.core.aggregation import Accept, Action, Aggregation, Contribution, Missing, Reject, Reply, Sum
from byteps_py.core.delivery import Delivery
from byteps_py.core.pipeline import Pipeline, Start
from byteps_py.core.window import Window
from byteps_py.types import DType, Operation, Participant, Partition, group_of, make_key

Array: TypeAlias = npt.NDArray[np.int64]
ITEMSIZE = 8
POISON = -(1 << 62)
PATIENCE = 1000.0
"""Virtual seconds without any operation ending after which a job is stuck."""


class Stuck(AssertionError):
    """Nothing ends any more."""


@dataclass(frozen=True)
class Call:
    """One push_pull as a training script makes it."""

    tensor_id: int
    operation: Operation = Operation.SUM
    step: int = 0
    root: int = 0
    priority: int = 0
    absent: bool = False


@dataclass(frozen=True)
class Network:
    """How messages travel: seconds of delay, and the chance of each to be lost or to come twice."""

    delay: float = 0.001
    jitter: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0


@dataclass
class Outcome:
    """How one call ended: with a result (None: all were absent) or with a rejection."""

    result: Array | None = None
    rejection: Reject | None = None


def digits(rank: int, call: Call, partition: Partition) -> Array:
    """What ``rank`` contributes: all its numbers are multiples of 16**rank, from 1 to 13 times."""
    positions = np.arange(partition.offset, partition.offset + partition.count, dtype=np.int64)
    values: Array = ((positions + 3 * call.step + call.tensor_id) % 13 + 1) * 16**rank
    return values


def make_tensor(tensor_id: int, counts: Sequence[int], num_servers: int) -> tuple[Partition, ...]:
    """One partition per count, spread over the servers."""
    return tuple(
        Partition(make_key(tensor_id, index), sum(counts[:index]), count, (tensor_id + index) % num_servers)
        for index, count in enumerate(counts)
    )


class Clock:
    """Virtual time and what is to happen in it; equal times happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = itertools.count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._planned), event))

    def next_time(self) -> float | None:
        return self._events[0][0] if self._events else None

    def happen(self) -> None:
        self.now, _, event = heapq.heappop(self._events)
        event()


class Server:
    """Performs what one Aggregation asks for.  Sums take time, and are written over the first source."""

    def __init__(self, job: Job, participants: Sequence[Participant]) -> None:
        self._job = job
        self.aggregation = Aggregation(participants)
        for group, ranks in job.groups.items():
            self.aggregation.members.form(group, ranks)
        self.sums: set[tuple[int, int]] = set()

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Sum):
                self._sum(action)
            elif not isinstance(action, Accept) or not self._job.accept_late:
                self._job.send(lambda action=action: self._job.workers[action.participant].receive(action))  # type: ignore[misc]

    def _sum(self, action: Sum) -> None:
        assert (action.key, action.round) not in self.sums, "a round was summed twice"
        self.sums.add((action.key, action.round))
        sources = [np.asarray(source) for source in action.sources]
        assert sum(action.groups) == len(sources)
        total = sum(source.astype(np.int64) for source in sources) // action.divisor
        for source in sources:
            source[:] = POISON  # who still looks at a source after this is wrong
        sources[0][:] = total
        self._job.clock.after(
            self._job.chance.random() * self._job.network.jitter,
            lambda: self.perform(self.aggregation.summed(action.key, action.round, sources[0])),
        )


@dataclass
class _Operation:
    call: Call
    output: Array
    absent: bool = True


class Worker:
    """Performs what one Pipeline and one Delivery ask for."""

    def __init__(self, job: Job, rank: int, window_bytes: int) -> None:
        self._job = job
        self.rank = rank
        self.pipeline = Pipeline(job.num_servers, Window(window_bytes), rank % job.num_servers)
        self.delivery = Delivery(retry_after=0.5)
        self.outcomes: dict[int, Outcome] = {}
        self.first_pushes: list[Start] = []
        self._operations: dict[int, _Operation] = {}

    def submit(self, operation_id: int, call: Call) -> None:
        parts = self._job.tensors[call.tensor_id]
        output = np.full(sum(each.count for each in parts), POISON, dtype=np.int64)
        self._operations[operation_id] = _Operation(call, output)
        starts = self.pipeline.submit(operation_id, call.tensor_id, parts, ITEMSIZE, call.priority, call.absent)
        self.first_pushes += starts
        self._push(starts)

    def ask(self) -> None:
        """Perform what is due."""
        for key, round, server in self.delivery.due(self._job.clock.now):
            target = self._job.servers[server]
            self._job.questions += 1
            self._job.send(
                lambda target=target, key=key, round=round: target.perform(  # type: ignore[misc]
                    target.aggregation.pull(self.rank, key, round)
                )
            )

    def receive(self, action: Action) -> None:
        assert not isinstance(action, Sum)
        key, round = action.key, action.round
        if isinstance(action, Accept):
            self.delivery.accepted(key, round, self._job.clock.now)
            self._push(self.pipeline.accepted(key, round))
            return
        start = self.pipeline.find(key, round)
        if start is None:
            return
        if isinstance(action, Missing):
            self._push([start])
        elif isinstance(action, Reject):
            failed, starts = self.pipeline.failed(key, round)
            assert failed is not None
            self._end(failed.operation_id, Outcome(rejection=action))
            self._push(starts)
        else:
            self._result(start, action)

    def _result(self, start: Start, reply: Reply) -> None:
        operation = self._operations[start.operation_id]
        if reply.payload is None:
            assert reply.contributors == 0
            operation.output[reply.offset : reply.offset + reply.count] = 0
        else:
            operation.absent = False
            operation.output[reply.offset : reply.offset + reply.count] = np.asarray(reply.payload)
        self.delivery.finished(reply.key, reply.round)
        completed, starts = self.pipeline.finished(reply.key, reply.round)
        if completed is not None:
            self._end(completed.operation_id, Outcome(result=None if operation.absent else operation.output))
        self._push(starts)

    def _end(self, operation_id: int, outcome: Outcome) -> None:
        assert operation_id not in self.outcomes, "an operation ended twice"
        operation = self._operations.pop(operation_id)
        self.outcomes[operation_id] = outcome
        self._job.last_end = self._job.clock.now
        if outcome.rejection is not None:
            for partition in self._job.tensors[operation.call.tensor_id]:
                self.delivery.dropped(partition.key)

    def _push(self, starts: Sequence[Start]) -> None:
        for start in starts:
            call = self._operations[start.operation_id].call
            partition = self._job.tensors[call.tensor_id][start.partition_index]
            assert (partition.key, partition.server) == (start.key, start.server)
            self._job.send_push(self.rank, start, call, partition)
            self.delivery.sent(start.key, start.round, start.server, self._job.clock.now)


@dataclass
class Job:
    """Workers and servers; :meth:`run` drives them until every call has ended.

    Attributes:
        scripts: per worker the calls it makes, in order.
        tensors: by id.
        nodes: the machine of each worker.
        groups: ranks of each group of workers, by id.
        spread: calls are made at random times within so many seconds (0: all at once, at the start).
        accept_late: acceptances are withheld, so that windows open only with results (which is wrong).
        leaves: workers that say goodbye when their script has ended.
        delays: seconds after which a worker begins, by rank.
        lost, repeated, questions: how many messages were lost and came twice, and how many PULLs were sent.
    """

    scripts: Sequence[Sequence[Call]]
    tensors: dict[int, tuple[Partition, ...]]
    num_servers: int = 1
    window_bytes: int = 1 << 20
    nodes: Sequence[int] = ()
    groups: dict[int, Sequence[int]] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    seed: int = 0
    spread: float = 0.0
    accept_late: bool = False
    leaves: Sequence[int] = ()
    delays: dict[int, float] = field(default_factory=dict)
    lost: int = 0
    repeated: int = 0
    questions: int = 0

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.chance = random.Random(self.seed)
        self.last_end = 0.0
        size = len(self.scripts)
        nodes = self.nodes or [0] * size
        participants = [Participant(rank, nodes[rank], 0, 1, "host", 1, rank) for rank in range(size)]
        self.servers = [Server(self, participants) for _ in range(self.num_servers)]
        self.workers = [Worker(self, rank, self.window_bytes) for rank in range(size)]

    def run(self) -> None:
        """Make all calls and wait for them to end, then let everything that is still on its way arrive.

        Raises:
            Stuck: nothing has ended for a long time.
        """
        for worker, script in zip(self.workers, self.scripts, strict=True):
            begin = self.delays.get(worker.rank, 0.0)
            times = sorted(begin + self.chance.random() * self.spread for _ in script)
            for index, (time, call) in enumerate(zip(times, script, strict=True)):
                self.clock.after(time, lambda worker=worker, index=index, call=call: worker.submit(index, call))  # type: ignore[misc]
        gone: set[int] = set()
        while self._advance():
            for rank in set(self.leaves) - gone:
                if len(self.workers[rank].outcomes) == len(self.scripts[rank]):
                    gone.add(rank)
                    self._say_goodbye(rank)
        for worker, script in zip(self.workers, self.scripts, strict=True):
            assert len(worker.outcomes) == len(script)
            assert worker.pipeline.idle
            assert not any(worker.pipeline.in_flight)
            assert len(worker.delivery) == 0

    def send(self, arrival: Callable[[], None]) -> None:
        """One message: it may get lost, come twice, and be overtaken."""
        network = self.network
        copies = 1 + (self.chance.random() < network.duplication)
        self.repeated += copies - 1
        for _ in range(copies):
            if self.chance.random() < network.loss:
                self.lost += 1
            else:
                self.clock.after(network.delay + self.chance.random() * network.jitter, arrival)

    def send_push(self, rank: int, start: Start, call: Call, partition: Partition) -> None:
        """One PUSH; the receiver gets memory of its own each time it arrives."""
        server = self.servers[start.server]
        absent = call.absent or (call.operation is Operation.BROADCAST and call.root != rank)

        def arrive() -> None:
            contribution = Contribution(
                participant=rank,
                key=start.key,
                round=start.round,
                dtype=DType.INT64,
                operation=call.operation,
                root=call.root,
                step=call.step,
                offset=partition.offset,
                count=partition.count,
                payload=None if absent else digits(rank, call, partition),
                want_result=True,
            )
            server.perform(server.aggregation.push(contribution))

        self.send(arrive)

    def _say_goodbye(self, rank: int) -> None:
        """Through the scheduler, which loses nothing, but tells each server at a time of its own."""
        for server in self.servers:
            delay = self.network.delay + self.chance.random() * self.network.jitter
            self.clock.after(delay, lambda server=server: server.perform(server.aggregation.left(rank)))  # type: ignore[misc]

    def _advance(self) -> bool:
        """The next thing that happens; False if there is none."""
        asking = [
            (deadline, worker.rank)
            for worker in self.workers
            if (deadline := worker.delivery.next_deadline()) is not None
        ]
        event = self.clock.next_time()
        if asking and (event is None or min(asking)[0] < event):
            deadline, rank = min(asking)
            self.clock.now = max(self.clock.now, deadline)
            self.workers[rank].ask()
        elif event is not None:
            self.clock.happen()
        else:
            self._check_all_ended()
            return False
        if self.clock.now > self.last_end + PATIENCE:
            raise Stuck(f"nothing ended for {PATIENCE} s: {[each.pipeline.outstanding() for each in self.workers]}")
        return True

    def _check_all_ended(self) -> None:
        for worker in self.workers:
            if not worker.pipeline.idle:
                raise Stuck(f"worker {worker.rank} waits, and nothing is on its way: {worker.pipeline.outstanding()}")


def expected(job: Job, rank: int, index: int) -> Array | None:
    """What call ``index`` of ``rank`` must give: every contribution of every worker of the group exactly once."""
    call = job.scripts[rank][index]
    group = group_of(make_key(call.tensor_id, 0))
    members = job.groups[group] if group else range(len(job.scripts))
    nth = [each.tensor_id for each in job.scripts[rank][:index]].count(call.tensor_id)
    whole = Partition(0, 0, sum(each.count for each in job.tensors[call.tensor_id]), 0)
    total = np.zeros(whole.count, dtype=np.int64)
    found = False
    for other in members:
        theirs = [each for each in job.scripts[other] if each.tensor_id == call.tensor_id][nth]
        if theirs.absent or (call.operation is Operation.BROADCAST and call.root != other):
            continue
        found = True
        total += digits(other, theirs, whole)
    if call.operation is Operation.AVERAGE:
        total //= len(members)
    return total if found else None


def check_results(job: Job) -> None:
    """Every call of every worker gave the right result."""
    for worker, script in zip(job.workers, job.scripts, strict=True):
        for index in range(len(script)):
            outcome = worker.outcomes[index]
            assert outcome.rejection is None
            wanted = expected(job, worker.rank, index)
            assert (outcome.result is None) == (wanted is None)
            if wanted is not None:
                np.testing.assert_array_equal(outcome.result, wanted)
