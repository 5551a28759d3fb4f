"""The spans of a process as viewers show them, made of what :mod:`byteps_py.telemetry.spans` has kept.

A worker has, for each tensor in each step, ``Comm.NAME`` from its submission to its result, and in it::

    COPY_IN    the contribution is copied to where it cannot change
    QUEUE      it waits: for the window of its server, or for company if it is light
    PUSH       sent, until the server says that it is there
    PULL       from then on, until the result is there: the other workers, the sum, and the way back
    PUSH_PULL  both, where the result came without word of the contribution before it
    COPY_OUT   the result is copied to where the caller wants it

with a chain of QUEUE to COPY_OUT for each partition.  What is not over is marked ``unfinished`` and lasts until the end
of the trace; what a server has rejected is marked ``failed``.  A server has, for each of its keys in each step::

    RECEIVE    a contribution has come; until it is taken into account
    WAIT       from the first contribution to the last one: ``last`` is the worker that was waited for, ``alone_us``
               how long only it was missing
    SUM_QUEUE  the sum waits for a thread
    SUM        it is made
    REPLY      until the last result was handed to the socket

A worker that sums for its node has the same with ``REDUCE_`` before it, then ``REDUCE_PUSH`` and ``REDUCE_PULL``, to
and from the server, and ``BROADCAST``, the copy to where the node reads it.
A server knows keys, not names: ``tensor 3``, which `bps trace merge` replaces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from byteps_py.telemetry.server_spans import ServerSpans, Together
from byteps_py.telemetry.spans import Cargo, Finished, Passage, WorkerSpans
from byteps_py.telemetry.tracks import Span
from byteps_py.types import PARTITION_BITS, split_key

__all__ = ["node_groups", "server_groups", "tensor_label", "worker_groups"]

Microseconds = Callable[[float], int]
"""From seconds of the own monotonic clock to microseconds of the scheduler's."""
Names = Mapping[int, str]


def tensor_label(tensor_id: int, names: Names) -> str:
    """What spans call a tensor: as BytePS did, or by its number where the name is not known."""
    name = names.get(tensor_id)
    return f"tensor {tensor_id}" if name is None else f"Comm.{name}"


def worker_groups(spans: WorkerSpans, names: Names, us: Microseconds, now: float) -> Iterator[list[Span]]:
    """The groups of a worker; what is not over lasts until ``now``."""
    passages: dict[tuple[int, int], list[Passage]] = defaultdict(list)
    for each in list(spans.passages):
        passages[each.key >> PARTITION_BITS, each.round].append(each)
    for operation in list(spans.finished):
        tensor_id = operation.key >> PARTITION_BITS
        label = tensor_label(tensor_id, names)
        group = list(_operation(operation, label, us))
        parts = sorted(passages.pop((tensor_id, operation.round), []), key=lambda each: each.key)
        for index, passage in enumerate(parts):
            chain = list(_chain(passage, label, us, now))
            if index:
                yield chain
            else:
                group.extend(chain)
        yield group
    for (tensor_id, _), rest in passages.items():
        for passage in rest:
            yield list(_chain(passage, tensor_label(tensor_id, names), us, now))
    for cargo in list(spans.cargo):
        yield from _cargo(cargo, spans.window.first, spans.window.until, names, us, now)


def _details(label: str, key: int, step: int) -> dict[str, Any]:
    tensor_id, partition = split_key(key)
    return {"name": label, "tensor": tensor_id, "partition": partition, "step": step}


def _operation(operation: Finished, label: str, us: Microseconds) -> Iterator[Span]:
    details = _details(label, operation.key, operation.round)
    del details["partition"]
    begun = operation.submitted - operation.copied
    yield Span(us(begun), us(operation.completed), label, details)
    if operation.copied:
        yield Span(us(begun), us(operation.submitted), f"{label}.COPY_IN", details)


def _chain(passage: Passage, label: str, us: Microseconds, now: float, prefix: str = "") -> Iterator[Span]:
    """The stages of one partition."""
    details = _details(label, passage.key, passage.round)
    yield Span(us(passage.submitted), us(passage.sent), f"{label}.{prefix}QUEUE", details)
    if passage.failed:
        details, now = {**details, "failed": True}, passage.failed
    yield from _way(passage.sent, passage.accepted, passage.received, f"{label}.{prefix}", details, us, now)
    if passage.copied:
        name = "BROADCAST" if prefix else "COPY_OUT"
        yield Span(us(passage.begun), us(passage.copied), f"{label}.{name}", details)


def _way(
    sent: float, accepted: float, received: float, start: str, details: dict[str, Any], us: Microseconds, now: float
) -> Iterator[Span]:
    """To the server and back; what did not happen is 0."""
    if not received and "failed" not in details:
        details = {**details, "unfinished": True}
    end = received or now
    accepted = 0.0 if accepted > end else accepted
    if accepted:
        yield Span(us(sent), us(accepted), f"{start}PUSH", details)
        yield Span(us(accepted), us(end), f"{start}PULL", details)
    else:
        yield Span(us(sent), us(end), f"{start}PUSH_PULL" if received else f"{start}PUSH", details)


def _cargo(cargo: Cargo, first: int, last: int, names: Names, us: Microseconds, now: float) -> Iterator[list[Span]]:
    """Light tensors that travelled together, each as if it had travelled alone; those of the steps that are traced."""
    arrived = {key: (at, copied) for at, copied, keys in list(cargo.results) for key in keys or ()}
    whole = next(((at, copied) for at, copied, keys in list(cargo.results) if keys is None), (0.0, 0.0))
    for key, step, begun, joined in cargo.entries():
        if not first <= step <= last:
            continue
        label = tensor_label(key >> PARTITION_BITS, names)
        details = {**_details(label, key, step), "bundle": cargo.number}
        received, copied = arrived.get(key, whole)
        failed = cargo.failed.get(key, 0.0)
        end = copied or failed or now
        sent = 0.0 if failed and cargo.sent > failed else cargo.sent
        open_details = details
        if not received:
            open_details = {**details, "failed" if failed else "unfinished": True}
        group = [
            Span(us(begun), us(end), label, open_details),
            Span(us(begun), us(joined), f"{label}.COPY_IN", details),
            Span(us(joined), us(sent or end), f"{label}.QUEUE", details if sent else open_details),
        ]
        if sent:
            group.extend(_way(sent, cargo.accepted, received, f"{label}.", open_details, us, end))
        if received:
            group.append(Span(us(received), us(copied), f"{label}.COPY_OUT", details))
        yield group


def server_groups(spans: ServerSpans, names: Names, us: Microseconds, now: float) -> Iterator[list[Span]]:
    """The groups of a server."""
    yield from _rounds(spans, [], names, us, now, "")
    for together in list(spans.together):
        yield list(_together(together, us))


def node_groups(
    spans: ServerSpans, upstream: WorkerSpans, names: Names, us: Microseconds, now: float
) -> Iterator[list[Span]]:
    """The groups of a worker's work for its node; ``upstream`` has the sums that it has pushed."""
    return _rounds(spans, list(upstream.passages), names, us, now, "REDUCE_")


def _rounds(
    spans: ServerSpans, passages: Sequence[Passage], names: Names, us: Microseconds, now: float, prefix: str
) -> Iterator[list[Span]]:
    sums = {(each.key, each.round): each for each in list(spans.sums)}
    upstream = {(each.key, each.round): each for each in passages}
    for each in list(spans.rounds):
        arrivals = list(each.arrivals.items())  # the server may have one of them in hand
        label = tensor_label(each.key >> PARTITION_BITS, names)
        start = f"{label}.{prefix}"
        details = _details(label, each.key, each.round)
        found = sums.get((each.key, each.round))
        marks: dict[str, Any] = {}  # of the round, and of the wait for the last where that has not come
        if not each.replied:
            marks["failed" if each.rejected else "unfinished"] = True
        group = list(_arrivals(arrivals, start, details, us, {} if found is not None else marks))
        end = max(taken for _, (_, taken) in arrivals)
        if found is not None:
            group.append(Span(us(found.asked), us(found.begun), f"{start}SUM_QUEUE", details))
            group.append(Span(us(found.begun), us(found.done), f"{start}SUM", details))
            end = max(end, found.done)
        passage = upstream.get((each.key, each.round))
        if passage is not None:
            group.extend(_chain(passage, label, us, now, prefix))
            end = max(end, passage.copied or passage.received or passage.failed or now)
        if each.replied:
            group.append(Span(us(end), us(max(end, each.replied)), f"{start}REPLY", details))
        over = max(end, each.replied or each.rejected or now)
        first = min(at for _, (at, _) in arrivals)
        yield [Span(us(first), us(over), f"{label}.REDUCE" if prefix else label, {**details, **marks}), *group]


def _arrivals(
    arrivals: Sequence[tuple[int, tuple[float, float]]],
    start: str,
    details: dict[str, Any],
    us: Microseconds,
    marks: dict[str, Any],
) -> Iterator[Span]:
    """Who came when; ``marks`` are of the wait for the last."""
    for rank, (at, taken) in arrivals:
        yield Span(us(at), us(taken), f"{start}RECEIVE", {**details, "worker": rank})
    yield from _wait([(rank, at) for rank, (at, _) in arrivals], start, {**details, **marks}, us)


def _wait(
    arrivals: Sequence[tuple[int, float]], start: str, details: dict[str, Any], us: Microseconds
) -> Iterator[Span]:
    """From the first to the last, if there are several."""
    if len(arrivals) > 1:
        order = sorted(arrivals, key=lambda each: each[1])
        (rank, last), before = order[-1], order[-2][1]
        found = {**details, "last": rank, "alone_us": us(last) - us(before)}
        yield Span(us(order[0][1]), us(last), f"{start}WAIT", found)


def _together(together: Together, us: Microseconds) -> Iterator[Span]:
    label = f"bundle of {len(together.keys)}"
    tensors = [key >> PARTITION_BITS for key in together.keys]
    details: dict[str, Any] = {"name": label, "step": max(together.rounds)}
    first = min((at for _, _, at in together.arrivals), default=together.begun)
    yield Span(us(first), us(together.replied), label, {**details, "tensors": tensors})
    for rank, number, at in together.arrivals:
        yield Span(us(at), us(at), f"{label}.RECEIVE", {**details, "worker": rank, "bundle": number})
    yield from _wait([(rank, at) for rank, _, at in together.arrivals], f"{label}.", details, us)
    last = max((at for _, _, at in together.arrivals), default=together.begun)
    yield Span(us(last), us(together.begun), f"{label}.SUM_QUEUE", details)
    yield Span(us(together.begun), us(together.summed), f"{label}.SUM", details)
    yield Span(us(together.summed), us(together.replied), f"{label}.REPLY", details)
