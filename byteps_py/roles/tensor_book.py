"""The tensors that a worker knows by name, and what is to be asked of the scheduler about them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from byteps_py.errors import AgreementError
from byteps_py.roles.tensors import Tensor, check_spec, check_unchanged
from byteps_py.types import TensorSpec

__all__ = ["TensorBook"]


class TensorBook:
    """Tensors and conflicts.

    Args:
        lock: of the worker; held by the caller, except of :meth:`tensor` and :meth:`find`, which any thread may call.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._tensors: dict[str, Tensor] = {}
        self._conflicts: dict[str, AgreementError] = {}
        self._undeclared: list[Tensor] = []

    def find(self, name: str) -> Tensor | None:
        """The tensor that is called so, if it is known."""
        return self._tensors.get(name)

    def tensor(self, spec: TensorSpec) -> Tensor:
        """The tensor that is called so, from now on if it was not known.

        Raises:
            UnsupportedError, AgreementError: the name or shape is impossible, or it was another one before.
        """
        tensor = self._tensors.get(spec.name)
        if tensor is None:
            check_spec(spec)
            with self._lock:
                tensor = self._tensors.setdefault(spec.name, Tensor(spec))
                conflict = self._conflicts.get(spec.name)
                if conflict is not None:
                    tensor.refuse(conflict)
        if tensor.spec is not spec:
            check_unchanged(tensor.spec, spec)
        return tensor

    def all(self) -> list[Tensor]:
        """Every tensor that is known."""
        return list(self._tensors.values())

    def want(self, tensors: Sequence[Tensor]) -> None:
        """Have the placements of ``tensors`` asked for, each once."""
        for tensor in tensors:
            if not tensor.requested:
                tensor.requested = True
                self._undeclared.append(tensor)

    def take_undeclared(self) -> list[Tensor]:
        """Those whose placement is to be asked for now."""
        undeclared, self._undeclared = self._undeclared, []
        return undeclared

    def refuse(self, name: str, error: AgreementError) -> Tensor | None:
        """Workers disagree about a name; returns the tensor, if it is known."""
        self._conflicts.setdefault(name, error)
        tensor = self._tensors.get(name)
        if tensor is not None:
            tensor.refuse(error)
        return tensor
