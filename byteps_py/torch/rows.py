"""Sparse tensors as rows: gradients of ``nn.Embedding(sparse=True)``, and others with one sparse dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from byteps_py.errors import UnsupportedError
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import Rows, coalesce, width_of
from byteps_py.session import Session
from byteps_py.torch.tensors import as_array, to_tensor, wire_tag
from byteps_py.types import Operation, TensorSpec

__all__ = ["OutstandingRows", "check_rows", "is_sparse", "start_rows", "to_sparse"]


def is_sparse(tensor: object) -> bool:
    """Whether it is a sparse COO tensor, which may be pushed as rows."""
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo


def check_rows(tensor: torch.Tensor, what: str) -> None:
    """Refuse a sparse COO tensor that is not made of rows; ``what`` names it in the message.

    Raises:
        UnsupportedError: more than its first dimension is sparse, or it has no data.
    """
    if tensor.sparse_dim() != 1:
        raise UnsupportedError(
            f"{what} has {tensor.sparse_dim()} sparse dimensions, and tensors of which the first alone is sparse are "
            "pushed, as rows: use to_dense(), or torch.sparse_coo_tensor() with indices of shape (1, n)"
        )
    if tensor.is_meta:
        raise UnsupportedError(f"{what} is on the meta device and has no data: give it some before it is pushed")


def start_rows(
    session: Session,
    name: str,
    tensor: torch.Tensor,
    operation: Operation,
    *,
    dtype: torch.dtype | None = None,
    priority: int = 0,
    step: int = 0,
) -> Pending:
    """Push the rows of a sparse tensor, which is not referred to any more when this returns.

    Rows that are there several times are added up first, in their order, and all of them to zeros, as the backward pass
    of a dense embedding does: so parameters get the same bits either way.

    Args:
        session: of the caller.
        name: it is pushed under.
        tensor: sparse COO with one sparse dimension, coalesced or not, on any device.
        operation: SUM or AVERAGE.
        dtype: in which the values travel; None: their own.
        priority, step: as of :meth:`byteps_py.session.Session.submit`.

    Raises:
        UnsupportedError: it is not made of rows, or its dtype cannot be pushed; the message names it.
    """
    what = f"tensor {name!r}"
    check_rows(tensor, what)
    plain = tensor.detach()
    indices, values = plain._indices()[0].cpu(), plain._values().cpu().contiguous()
    own = TensorSpec(name, wire_tag(values.dtype, what), tuple(tensor.shape))
    width_of(own)
    rows = coalesce(own, indices.numpy(), as_array(values))
    if values.is_floating_point():
        to_tensor(rows.values, values.dtype).add_(0.0)  # -0.0 becomes 0.0
    if dtype is None or dtype == values.dtype:
        spec = own
    else:
        spec = TensorSpec(name, wire_tag(dtype, what), own.shape)
        rows = Rows(rows.indices, as_array(to_tensor(rows.values, values.dtype).to(dtype)))
    return session.submit(spec, rows, np.empty(0, spec.dtype.storage), operation, priority=priority, step=step)


def to_sparse(
    rows: Rows, shape: tuple[int, ...], wire: torch.dtype, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The coalesced sparse tensor of a result.

    Args:
        rows: the result, whose memory the tensor takes over where it can.
        shape: of the whole tensor.
        wire: dtype of the values as they have travelled.
        dtype: of the tensor.
        device: of the tensor.
    """
    values = to_tensor(rows.values, wire).to(device=device, dtype=dtype)
    indices = torch.from_numpy(rows.indices)[None].to(device)
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)


@dataclass
class OutstandingRows:
    """A push and pull of a sparse tensor; ``target`` receives the result, None: a new one is made."""

    pending: Pending
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    target: torch.Tensor | None
    result: torch.Tensor | None = None

    def finish(self) -> torch.Tensor:
        """Wait, and give the result, once made."""
        self.pending.wait()
        if self.result is None:
            rows = self.pending.rows
            assert rows is not None
            self.result = to_sparse(rows, self.shape, self.dtype, self.dtype, self.device)
            if self.target is not None:
                with torch.no_grad():
                    self.result = self.target.copy_(self.result)
        return self.result
