"""What a role does to be traced: which of its parts record, and what the file has."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from byteps_py.settings import ServerSettings, WorkerSettings
from byteps_py.telemetry.server_spans import ServerSpans
from byteps_py.telemetry.spans import WorkerSpans
from byteps_py.telemetry.stages import NodeTimes, WorkerTimes
from byteps_py.telemetry.timeline import Microseconds, Names, node_groups, server_groups, worker_groups
from byteps_py.telemetry.trace import Owner, Trace
from byteps_py.telemetry.tracks import Span
from byteps_py.types import Role
from byteps_py.wire.control import Placement, Welcome

__all__ = ["ServerTracing", "WorkerTracing", "worker_recording"]


class WorkerTracing:
    """The trace of a worker.

    Attributes:
        trace: of this process.
        times: hear of the stages.
    """

    def __init__(self, settings: WorkerSettings, log: logging.Logger) -> None:
        self.trace = Trace(settings, log)
        self.times = WorkerSpans(self.trace.window)
        self._node = ServerSpans(self.trace.further_window())
        self._upstream = WorkerSpans(self.trace.further_window())

    def begin(self, welcome: Welcome) -> None:
        """The job is complete."""
        me = welcome.participants[welcome.rank]
        counts = len(welcome.participants), len(welcome.servers)
        shares = any(each.node != me.node and each.local_rank == me.local_rank for each in welcome.participants)
        self.times.node = NodeTimes(self._node.held(counts[0]), self._node.sum_times, self._upstream)
        owner = Owner(Role.WORKER.value, welcome.rank, welcome.job, *counts, me.local_rank, shares)
        self.trace.begin(owner, (("lane", self._own), ("node lane", self._for_the_node)), self._forget)

    def placed(self, placements: Sequence[Placement]) -> None:
        """Tensors have ids."""
        self.trace.names.update((each.tensor_id, each.name) for each in placements)

    def _own(self, names: Names, us: Microseconds, now: float) -> Iterable[Sequence[Span]]:
        return worker_groups(self.times, names, us, now)

    def _for_the_node(self, names: Names, us: Microseconds, now: float) -> Iterable[Sequence[Span]]:
        return node_groups(self._node, self._upstream, names, us, now)

    def _forget(self) -> None:
        for each in (self.times, self._node, self._upstream):
            each.forget()


class ServerTracing:
    """The trace of a server.

    Attributes:
        trace: of this process.
        spans: make what hears of the stages.
    """

    def __init__(self, settings: ServerSettings, log: logging.Logger) -> None:
        self.trace = Trace(settings, log)
        self.spans = ServerSpans(self.trace.window)

    def begin(self, welcome: Welcome) -> None:
        """The job is complete."""
        counts = len(welcome.participants), len(welcome.servers)
        owner = Owner(Role.SERVER.value, welcome.rank, welcome.job, *counts)
        self.trace.begin(owner, (("lane", self._groups),), self.spans.forget)

    def _groups(self, names: Names, us: Microseconds, now: float) -> Iterable[Sequence[Span]]:
        return server_groups(self.spans, names, us, now)


def worker_recording(settings: WorkerSettings, log: logging.Logger) -> tuple[WorkerTracing | None, WorkerTimes | None]:
    """What records in a worker: a trace counts the stages as well, whether that is wanted or not."""
    if settings.trace_on:
        tracing = WorkerTracing(settings, log)
        return tracing, tracing.times
    return None, WorkerTimes() if settings.stage_times else None
