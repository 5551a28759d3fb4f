"""What a worker of an asynchronous job does beside the others: it sees how stale its differences were."""

from __future__ import annotations

from byteps_py.asynchronous_settings import AsynchronousSettings
from byteps_py.errors import UnsupportedError
from byteps_py.roles.tensors import TensorOperation
from byteps_py.types import Operation
from byteps_py.wire.header import Header

__all__ = ["Asynchrony"]


class Asynchrony:
    """Of one worker.  What is written belongs to whoever holds the worker's lock; any thread may read.

    Args:
        settings: of the worker; None for one that is a job of its own, in which nobody is stale.

    Attributes:
        is_on: whether the servers hold the parameters.
    """

    def __init__(self, settings: AsynchronousSettings | None = None) -> None:
        self.is_on = settings is not None and settings.is_asynchronous
        self._seen = (0, 0, 0)  # replaced as a whole, so that a reader never sees a part of a change

    def objection(self, operation: Operation) -> UnsupportedError | None:
        """Why this job cannot do ``operation``; None if it can."""
        if self.is_on or not operation.is_asynchronous:
            return None
        return UnsupportedError(
            f"{operation.name} is an operation of asynchronous training: set BYTEPS_ENABLE_ASYNC=1 on servers and "
            "workers, with a BYTEPS_ASYNC_MAX_STALENESS of at least 1 or none"
        )

    def answered(self, operation: TensorOperation, header: Header) -> None:
        """The result of one partition is here."""
        if operation.operation is Operation.DIFFERENCE and operation.contributes:
            count, total, most = self._seen
            self._seen = count + 1, total + header.detail, max(most, header.detail)

    def report(self) -> dict[str, float]:
        """``count`` of the differences that were added, and ``mean`` and ``max`` of their staleness: how many
        differences of others each was computed without. A tensor of several partitions has one of each."""
        count, total, most = self._seen
        return {"count": count, "mean": total / count if count else 0.0, "max": most}

    def describe(self) -> str:
        """The same in words, for a log; empty if there is nothing to say."""
        count, total, most = self._seen
        if not count:
            return ""
        return f"staleness of {count} differences: {total / count:.2f} on average, {most} at most"
