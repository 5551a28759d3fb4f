"""Contributions of light tensors on their way: each one, and the message that carries it with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_py.roles.pending import Pending
from byteps_py.roles.tensors import Tensor
from byteps_py.types import Operation

__all__ = ["Bundle", "Flight", "bytes_of"]


class Bundle:
    """Contributions that travel together.

    Attributes:
        left: how many have no result.
        due: when it is sent at the latest, in monotonic seconds, as all times.
        submitted: when its contributions were, added up.
        pushed: when it was sent, or a result of it came last.
        since: when it was sent, or else accepted.
    """

    __slots__ = (
        "accepted",
        "buffer",
        "due",
        "keys",
        "left",
        "number",
        "pushed",
        "sent",
        "server",
        "since",
        "submitted",
        "table",
        "used",
        "view",
    )

    def __init__(self, number: int, server: int, buffer: npt.NDArray[np.uint8]) -> None:
        self.number = number
        self.server = server
        self.buffer = buffer
        self.view = buffer.data
        self.used = 0
        self.table = bytearray()
        self.keys: list[int] = []
        self.left = 0
        self.due = 0.0
        self.submitted = 0.0
        self.since = self.pushed = 0.0
        self.sent = self.accepted = False


class Flight:
    """One contribution, from ``submit`` to its result.

    Attributes:
        output: the bytes of ``pending.output``.
        key: of its partition.
        absent: nothing was contributed.
        waits_for: ranks that the server named as missing, for messages.
    """

    __slots__ = (
        "absent",
        "bundle",
        "key",
        "operation",
        "output",
        "pending",
        "place",
        "round",
        "step",
        "tensor",
        "waits_for",
    )

    def __init__(
        self,
        key: int,
        tensor: Tensor,
        pending: Pending,
        output: memoryview,
        bundle: Bundle,
        place: int,
        round_: int,
        operation: Operation,
        step: int,
        absent: bool,
    ) -> None:
        self.key = key
        self.tensor = tensor
        self.pending = pending
        self.output = output
        self.bundle = bundle
        self.place = place
        self.round = round_
        self.operation = operation
        self.step = step
        self.absent = absent
        self.waits_for: set[int] | None = None


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """The memory of a C-contiguous array that has elements."""
    return (array if array.ndim else array.reshape(1)).data.cast("B")
