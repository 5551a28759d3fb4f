"""What makes the exchanges of several workers one: they are of the same parameters, and decide by the same loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from byteps_py.session import Session
from byteps_py.torch.agreement import Agreement
from byteps_py.torch.slots import Slot
from byteps_py.types import Operation, TensorSpec

__all__ = ["ask_alike", "average_loss"]


def ask_alike(session: Session, number: str, owner: str, slots: Iterable[Slot]) -> Agreement:
    """Ask all workers whether they exchange gradients of the same parameters.

    Args:
        session: of this worker.
        number: of the exchange; empty for the first.
        owner: whose gradients.
        slots: all of the exchange.
    """
    return Agreement(
        session,
        f"the parameters of gradient exchange {number or 1}",
        [owner, *(f"{each.label} ({each.spec.describe()})" for each in slots)],
        "Make each DistributedOptimizer in the same order and of the same parameters on every worker; "
        "named_parameters tells apart those that look alike.",
    )


def average_loss(session: Session, spec: TensorSpec, loss: Any, step: int) -> Any:
    """See :meth:`byteps_py.torch.gradients.GradientExchange.average_loss`; ``spec`` is of one float64."""
    loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
    single = isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.is_floating_point()
    value = np.array([float(loss)]) if single or isinstance(loss, float) else None
    pending = session.submit(spec, value, value, Operation.AVERAGE, step=step)
    average = float(pending.wait()[0])
    if value is None:
        return loss
    return torch.full_like(loss, average) if single else average
