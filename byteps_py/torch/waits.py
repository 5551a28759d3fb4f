"""Which parameters the forward pass must wait for, and where.

The pre-hook of a module waits for the parameters that the module owns. That is not enough where a module reads the
parameters of another one without calling it, as ``nn.MultiheadAttention`` does with its ``out_proj``. So a parameter
is waited for before the first module of a forward pass, until a gradient has come to it, which shows that it was used:

=========================================  =====================================================
since the last step there ran              from now on it is waited for before
=========================================  =====================================================
a module that owns it                      each of its owners
none of them, but modules around them      the innermost of these, for each owner, and each owner
none                                       the first module, still
=========================================  =====================================================

A parameter whose use is not foreseen so gets a gradient while its update is still to come, which is told as an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

__all__ = ["ForwardWaits", "Updates"]


class Updates(Protocol):
    """What is waited for."""

    def settle(self, parameters: Iterable[torch.Tensor]) -> None:
        """Update these parameters if that is still to be done."""

    def settle_all(self, unless: Iterable[torch.Tensor] = ()) -> None:
        """Update all parameters for which that is still to be done, ``unless`` they are among these."""


class ForwardWaits:
    """The hooks of a model. They keep ``updates`` alive as long as the model, unless :meth:`remove` is called.

    Loading and saving the model wait for everything, and so does a forward pass in evaluation mode. Copies and pickles
    of the model have hooks that do nothing.

    Args:
        model: whose modules get hooks; those that are added later have none.
        updates: what is waited for.
    """

    def __init__(self, model: nn.Module, updates: Updates) -> None:
        self._model = weakref.ref(model)
        self._own = weakref.WeakKeyDictionary[nn.Module, list[torch.Tensor]]()
        self._around = weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[nn.Module]]]()
        self._owners: dict[torch.Tensor, list[weakref.ref[nn.Module]]] = {}
        self._also: weakref.WeakKeyDictionary[nn.Module, list[torch.Tensor]] = weakref.WeakKeyDictionary()
        self._placed: set[torch.Tensor] = set()
        self._ran = weakref.WeakSet[nn.Module]()
        self._handles: list[Any] = []
        for module in model.modules():
            self._own[module] = list(module.parameters(recurse=False))
            for parameter in self._own[module]:
                self._owners.setdefault(parameter, []).append(weakref.ref(module))
            for child in module.children():
                self._around.setdefault(child, []).append(weakref.ref(module))
            # The hooks alone keep the updates, which keep this.
            before, everything = _Hook(partial(self._before, updates)), _Hook(lambda _: updates.settle_all())
            self._handles += [
                module.register_forward_pre_hook(before, prepend=True),  # before one that computes weights
                module.register_state_dict_pre_hook(everything),  # type: ignore[no-untyped-call]
                # By the name that it has in all versions of torch.
                module._register_load_state_dict_pre_hook(everything, with_module=True),  # type: ignore[no-untyped-call]
            ]

    def next_step(self) -> None:
        """The optimizer has made a step."""
        self._ran.clear()

    def used(self, parameter: torch.Tensor) -> None:
        """A gradient has come to ``parameter``, so the forward passes since the last step have used it."""
        owners = [each for reference in self._owners.get(parameter, ()) if (each := reference()) is not None]
        if any(each in self._ran for each in owners):
            self._placed.add(parameter)
            return
        places = {each for owner in owners for each in self._innermost(owner)}
        for place in places:
            if all(each is not parameter for each in self._also.setdefault(place, [])):
                self._also[place].append(parameter)
        (self._placed.add if places else self._placed.discard)(parameter)

    def remove(self) -> None:
        """Take the hooks away."""
        for each in self._handles:
            each.remove()
        self._handles.clear()

    def _innermost(self, module: nn.Module) -> set[nn.Module]:
        """The next modules around ``module`` that ran."""
        found, seen, outwards = set(), {module}, [module]
        while outwards:
            for reference in self._around.get(outwards.pop(), ()):
                outer = reference()
                if outer is None or outer in seen:
                    continue
                seen.add(outer)
                if outer in self._ran:
                    found.add(outer)
                else:
                    outwards.append(outer)
        return found

    def _before(self, updates: Updates, module: nn.Module) -> None:
        own = self._own.get(module)
        if own is None:  # a copy has this very hook
            return
        model = self._model()
        if model is None or not model.training:
            updates.settle_all()
        elif not torch.is_grad_enabled():  # there are shorter ways through some modules then
            updates.settle([*module.parameters(), *self._also.get(module, ())])
        else:
            if not self._ran:
                updates.settle_all(unless=self._placed)
            updates.settle([*own, *self._also.get(module, ())])
        self._ran.add(module)


class _Hook:
    """Calls ``act`` with the module; becomes a hook that does nothing when it is copied."""

    def __init__(self, act: Callable[[nn.Module], None]) -> None:
        self._act = act

    def __call__(self, module: nn.Module, *_: Any) -> None:
        self._act(module)

    def __reduce__(self) -> tuple[type[_NoHook], tuple[()]]:
        return _NoHook, ()


class _NoHook:
    def __call__(self, *_: Any) -> None:
        """Nothing."""
