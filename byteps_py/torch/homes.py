"""Where gradients live from one step to the next: memory that servers of this machine read.

Without it a gradient is memory that the backward pass has just got from the system, page by page, and that goes back
when the gradient is cleared.  With it the gradient is copied when it is pushed, as it would be anyway, its own memory
is free for the next one, and what is pushed needs no other copy.

A gradient that somebody still holds when the next one comes (``kept = parameter.grad``) keeps its memory, and the next
one gets other memory.  Forked children cannot use it: there, gradients in such memory are cleared.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from byteps_py.session import Session
from byteps_py.types import TensorSpec
from byteps_py.wire.bundle import LIGHT_BYTES

__all__ = ["LEAST_BYTES", "Home"]

LEAST_BYTES: Final = LIGHT_BYTES
"""Of a gradient for which this pays: what is smaller is copied into a message with others in any case."""

_homes: Final[weakref.WeakSet[Home]] = weakref.WeakSet()


class Home:
    """Memory for the gradients of one parameter, one at a time. Belongs to one thread at a time.

    Args:
        parameter: whose.
        spec: shape and element type in which they travel.
        dtype: what torch calls that element type.
    """

    def __init__(self, parameter: torch.Tensor, spec: TensorSpec, dtype: torch.dtype) -> None:
        self._parameter = weakref.ref(parameter)
        self._spec = spec
        self._dtype = dtype
        self._strides = torch.empty(spec.shape, device="meta").stride()
        self._memory: npt.NDArray[Any] | None = None
        self._tenant: weakref.ref[npt.NDArray[Any]] | None = None
        """Its end tells that no tensor refers to the memory any more."""
        _homes.add(self)

    @property
    def memory(self) -> npt.NDArray[Any]:
        """Of the gradient that was moved in last: as the session wants it."""
        assert self._memory is not None
        return self._memory

    def holds(self, gradient: torch.Tensor) -> bool:
        """Whether ``gradient``, of the parameter's shape, lies here already."""
        return (
            self._memory is not None
            and gradient.data_ptr() == self._memory.ctypes.data
            and gradient.dtype == self._dtype
            and gradient.is_contiguous()
        )

    def settle(self, session: Session, gradient: torch.Tensor) -> torch.Tensor:
        """Have the parameter's gradient live here from now on, if it can; returns what is its gradient now.

        One of another layout keeps that, one that belongs to a graph stays in it, and one that is a part of something
        (as of one flat tensor for all gradients) stays there.

        Args:
            session: see :meth:`stage`.
            gradient: the parameter's, dense, on the CPU.

        Raises:
            TransportError: there is no memory left.
        """
        parameter = self._parameter()
        if parameter is None or self.holds(gradient) or not self._can_live_here(gradient):
            return gradient
        parameter.grad = self.stage(session, gradient)
        return parameter.grad

    def stage(self, session: Session, gradient: torch.Tensor) -> torch.Tensor:
        """Copy ``gradient`` here unless it is here, and convert it if it travels as another type.

        Args:
            session: gives the memory when it is first needed, and when the last tensor is still in use.
            gradient: dense, of any dtype and strides, on any device.

        Returns:
            A contiguous tensor without a graph on :attr:`memory`.

        Raises:
            TransportError: there is no memory left.
        """
        if self.holds(gradient):
            return gradient.detach()
        if self._memory is None or (self._tenant is not None and self._tenant() is not None):
            self._memory = session.empty(self._spec.shape, self._spec.dtype.storage)
        # Whatever shares the memory with the tensor keeps this very array alive.
        view = self._memory.view(np.int16 if self._dtype is torch.bfloat16 else self._memory.dtype)
        self._tenant = weakref.ref(view)
        staged = torch.from_numpy(view).view(self._dtype)
        staged.copy_(gradient.detach())
        return staged

    def _can_live_here(self, gradient: torch.Tensor) -> bool:
        return (
            gradient.dtype == self._dtype
            and gradient.stride() == self._strides
            and not (gradient.requires_grad or gradient.is_neg())
            and gradient.untyped_storage().nbytes() == gradient.nbytes
        )

    def move(self) -> None:
        """The next gradient gets other memory: servers do not read this one any more."""
        self._memory = self._tenant = None

    def clear(self) -> None:
        """Clear the parameter's gradient if it lies here."""
        parameter = self._parameter()
        if parameter is not None and parameter.grad is not None and self.holds(parameter.grad):
            parameter.grad = None


def _clear_all() -> None:
    for each in list(_homes):
        each.clear()


os.register_at_fork(after_in_child=_clear_all)
