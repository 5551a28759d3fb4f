"""What both ledgers are asked about and answer with, and the checks that they share."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from byteps_py.errors import KernelError
from byteps_py.types import DType, Operation, split_key
from byteps_py.wire.bundle import ENTRY, ENTRY_SIZE
from byteps_py.wire.header import MAX_ENTRIES

__all__ = ["MAX_TENSORS", "MAX_WORKERS", "Result", "Row", "Taken", "Terms", "check_table", "entry_of", "tensor_of"]

MAX_TENSORS: Final = 1 << 20
"""Tensor ids from this one on have no row, so all their entries are irregular."""
MAX_WORKERS: Final = 65535
"""An entry counts contributors in 16 bits."""


class Taken(msgspec.Struct, frozen=True, gc=False):
    """What became of a table.

    Attributes:
        irregular: places in the table of the entries that were left alone, in order.
        complete: number of rows that are complete now, those of earlier tables included.
        nbytes: bytes that the results of all complete rows need.
    """

    irregular: list[int]
    complete: int
    nbytes: int


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What the contributions to a round agree on."""

    dtype: DType
    operation: Operation
    step: int
    count: int


class Result(NamedTuple):
    """The last result of a row.

    Attributes:
        entry: as in a RESULT_MANY, of shape (1,) and dtype :data:`~byteps_py.wire.bundle.ENTRY`, and a copy; its place
            is 0, where ``data`` begins.
        data: its bytes, a part of the buffer given to :meth:`~byteps_py.kernels.ledger.Ledger.finish`; None if all were
            absent.
    """

    round: int
    entry: npt.NDArray[np.void]
    data: npt.NDArray[np.uint8] | None


class Row(msgspec.Struct, frozen=True):
    """One key, as it stands.

    Attributes:
        round: the open round; its sum may be due (:meth:`~byteps_py.kernels.ledger.Ledger.finish`).
        terms: of the first contribution to it; None if there is none yet.
        payloads: by rank, in ascending order, of those that have contributed to it: the bytes of the elements, a part
            of the payload given to :meth:`~byteps_py.kernels.ledger.Ledger.take`; None for an absent contribution.
        stamps: by rank of those whose payload is not None: the stamp that was given with it.
        result: of the round before, unless all have contributed to the open one.
    """

    key: int
    round: int
    terms: Terms | None
    payloads: dict[int, memoryview | None]
    stamps: dict[int, object]
    result: Result | None

    @property
    def arrived(self) -> list[int]:
        """Ranks of those who have contributed to the open round, ascending."""
        return list(self.payloads)


def check_table(rank: int, workers: int, nbytes: int, complete: int) -> int:
    """The number of entries of a table of ``nbytes`` of worker ``rank``, with ``complete`` rows still to be summed.

    Raises:
        KernelError: see :meth:`byteps_py.kernels.ledger.Ledger.take`.
    """
    if not 0 <= rank < workers:
        raise KernelError(f"there is no worker {rank}: this ledger has the workers 0 to {workers - 1}")
    entries, rest = divmod(nbytes, ENTRY_SIZE)
    if rest:
        raise KernelError(f"a table of {nbytes} bytes is no whole number of entries of {ENTRY_SIZE} bytes")
    if entries + complete > MAX_ENTRIES:
        raise KernelError(
            f"{entries} entries and {complete} complete rows are more than {MAX_ENTRIES}: finish those rows first"
        )
    return entries


def tensor_of(key: int, limit: int) -> int | None:
    """The tensor id of a key that can have a row; None for one that cannot."""
    tensor, index = split_key(key)
    return tensor if index == 0 and tensor < limit else None


def entry_of(*fields: Any) -> npt.NDArray[np.void]:
    """One entry, an array of shape (1,): key, round, step, place, count, root, dtype, operation, flags."""
    return np.array([(*fields, b"")], ENTRY)
