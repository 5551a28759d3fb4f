"""Where the partitions of large contributions wait for their results.

A contribution is copied when its operation starts, as a whole, if the caller may change it afterwards.  It may not
where the result replaces it: the caller leaves such an array alone until the operation has ended.  Then a partition
that goes through a socket is sent from where it lies: a result is there only after a server has read all contributions,
and one that still leaves after it, because it was pushed twice, is of a round that is over and is not looked at.  One
that a server of this machine reads is copied when it is pushed, into the buffer of one whose result has come: few
buffers are in use at a time, which stay in the processor's cache on their way from this copy to the sum.

Rows of a tensor are copied when their operation starts, and once more when their partition is pushed, into memory of
its own, since only then it is known which rows begin there.

Not thread-safe: the caller holds the worker's lock.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import numpy.typing as npt

from byteps_py.kernels import Kernels
from byteps_py.roles.envelope import Envelope
from byteps_py.roles.rows import Rows, pack_rows, width_of
from byteps_py.roles.tensors import TensorOperation
from byteps_py.transport.base import Buffer, Endpoint
from byteps_py.types import Partition, split_key
from byteps_py.wire.header import Flag, Opcode, encode

__all__ = ["Pieces", "partition_of", "slice_of"]

_MOST_SPARE: Final = 64


class Pieces:
    """The buffers of one worker.

    Args:
        endpoint: gives the memory.
        kernels: copy.
        threads: how many may share a copy.
    """

    def __init__(self, endpoint: Endpoint, kernels: Kernels, threads: int) -> None:
        self._endpoint = endpoint
        self._kernels = kernels
        self._threads = threads
        self._spare: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def payload(self, operation: TensorOperation, partition: Partition, peer: bytes) -> memoryview:
        """The bytes of ``partition`` to push to ``peer``, for the first time or again."""
        if operation.rows is not None:
            return self._packed(operation, operation.rows, partition).data
        if operation.staging is not None:
            return slice_of(operation, operation.staging, partition).data
        piece = operation.pieces.get(partition.key)
        if piece is None:
            assert operation.lent is not None
            source = slice_of(operation, operation.lent, partition)
            if not self._endpoint.is_lane(peer):
                return source.data
            begun = time.monotonic()
            piece = operation.pieces[partition.key] = self._take(source.nbytes)
            self._kernels.copy(piece, source, source.nbytes, self._threads)
            operation.copied += time.monotonic() - begun
        return piece.data

    def push(self, envelope: Envelope, operation: TensorOperation, key: int, round_: int, peer: bytes) -> list[Buffer]:
        """The message to ``peer`` with the contribution to one partition, for the first time or again."""
        partition = partition_of(operation, key)
        flags, length = Flag.WANT_RESULT, partition.count * operation.tensor.spec.dtype.itemsize
        if operation.rows is not None:
            packed = self._packed(operation, operation.rows, partition)
            flags, length = Flag.WANT_RESULT | Flag.ROWS, packed.nbytes
        elif not operation.contributes:
            flags, length = Flag.WANT_RESULT | Flag.ABSENT, 0
        header = envelope.header(
            Opcode.PUSH,
            key,
            round_,
            dtype=operation.tensor.spec.dtype,
            operation=operation.operation,
            flags=flags,
            root=operation.root,
            step=operation.step,
            offset=partition.offset,
            count=partition.count,
            length=length,
        )
        frames: list[Buffer] = [encode(header)]
        if header.length:
            frames.append(self.payload(operation, partition, peer))
        return frames

    def finished(self, operation: TensorOperation, key: int) -> None:
        """The result of a partition is here, so nobody reads its contribution any more."""
        piece = operation.pieces.pop(key, None)
        if piece is not None and operation.rows is None:
            spare = self._spare.setdefault(piece.nbytes, [])
            if len(spare) < _MOST_SPARE:
                spare.append(piece)

    def _packed(self, operation: TensorOperation, rows: Rows, partition: Partition) -> npt.NDArray[np.uint8]:
        """The rows of ``partition``, packed when they are pushed for the first time."""
        piece = operation.pieces.get(partition.key)
        if piece is None:
            begun = time.monotonic()
            width = width_of(operation.tensor.spec)
            piece = operation.pieces[partition.key] = pack_rows(rows, width, partition, self._endpoint)
            operation.copied += time.monotonic() - begun
        return piece

    def _take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """The buffer that was used last is the one that is in the cache."""
        spare = self._spare.get(nbytes)
        if not spare:
            return self._endpoint.allocate(nbytes)
        piece = spare.pop()
        self._endpoint.renew(piece)
        return piece


def slice_of(operation: TensorOperation, buffer: npt.NDArray[np.uint8], partition: Partition) -> npt.NDArray[np.uint8]:
    """The bytes of ``partition`` in ``buffer``, which holds the whole tensor."""
    itemsize = operation.tensor.spec.dtype.itemsize
    return buffer[partition.offset * itemsize : (partition.offset + partition.count) * itemsize]


def partition_of(operation: TensorOperation, key: int) -> Partition:
    """One of the tensor, which has been placed."""
    assert operation.tensor.placement is not None
    return operation.tensor.placement.partitions[split_key(key)[1]]
