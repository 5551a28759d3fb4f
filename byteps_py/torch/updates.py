"""Updates of parameters that wait for their averages, one by one: what ``CrossBarrier`` is made of."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from byteps_py.errors import BytePSError
from byteps_py.torch.claims import claim
from byteps_py.torch.compression import Compressor
from byteps_py.torch.gradients import GradientExchange
from byteps_py.torch.names import some
from byteps_py.torch.waits import ForwardWaits

__all__ = ["ParameterUpdates"]

_retired: Final = weakref.WeakSet["ParameterUpdates"]()
"""Whose optimizer is gone, while updates were still to come."""


@dataclass
class _Flight:
    """``options`` are those of the group at ``step()``, one object for each group, None if there is none; ``clear`` is
    what ``zero_grad()`` was asked for since then."""

    options: dict[str, Any] | None
    clear: bool | None = None


class ParameterUpdates(GradientExchange):
    """The gradients of one optimizer, and the updates that follow from them. One lock guards what any thread may call.

    Args:
        model: whose forward pass waits for updates.
        optimizer: of one of torch's classes that update each parameter by itself; not changed.
        named_parameters: see :class:`GradientExchange`; None takes those of the model if it has all.
        compression: how gradients travel.
        passes: backward passes whose gradients are added up locally before one exchange.

    Raises:
        ValueError: the parameters' gradients are averaged already, or names are wrong.
        UnsupportedError: a parameter's dtype cannot be pushed.
    """

    kind, exclusive = "CrossBarrier", True
    advice = (
        "a CrossBarrier updates each parameter by itself, so what needs all gradients (clipping, GradScaler) needs a "
        "DistributedOptimizer"
    )

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        compression: Compressor,
        passes: int,
    ) -> None:
        _settle_retired()
        self._flying: dict[torch.Tensor, _Flight] = {}
        self._failure: Exception | None = None
        self._lock = threading.RLock()
        self._is_retired = False
        # A second optimizer of the same class, on the same state, which is given a few parameters at a time.
        self._own = type(optimizer)
        self._part = object.__new__(self._own)
        vars(self._part).update({key: each for key, each in vars(optimizer).items() if key != "step"})
        vars(self._part).update(_optimizer_step_pre_hooks=OrderedDict(), _optimizer_step_post_hooks=OrderedDict())
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if named_parameters is None and set(parameters) <= set(model.parameters()):
            named_parameters = model.named_parameters()
        claim(self, "CrossBarrier", parameters)
        owner = f"a CrossBarrier of class {self._own.__name__}"
        super().__init__(optimizer.param_groups, named_parameters, compression, passes, owner=owner)
        self._waits = ForwardWaits(model, self)

    def launch(self, groups: Sequence[dict[str, Any]], state: Any) -> None:
        """Finish what is in flight, then contribute what has not been contributed, and put all in flight.

        Args:
            groups: the optimizer's ``param_groups``, whose options count as they are now.
            state: the optimizer's state, which the updates will use.

        Raises:
            BytePSError: as :meth:`GradientExchange.synchronize`; nothing is in flight then, now and later.
        """
        with self._lock:
            self.settle_all()
            try:
                errors = self._contribute_all(groups)
                if errors:
                    self._conclude(self._slots.values(), errors)
            except Exception as error:
                self._fail(error)
            vars(self._part)["state"] = state
            for group in groups:
                options = _options_of(group)
                self._flying.update({each: _Flight(options) for each in group["params"] if each in self._slots})
            self._flying.update({each: _Flight(None) for each in self._slots if each not in self._flying})
            self._waits.next_step()
            self.finish_step()

    def accumulated(self, slot: Any) -> None:
        """See :meth:`GradientExchange.accumulated`; notes that the parameter was used."""
        if slot.parameter in self._flying:
            self._failure = BytePSError(
                f"parameter {slot.label!r} was used before its update of the last step, since none of the modules that "
                "it was used by until now ran in this forward pass: call the optimizer's synchronize() before such a "
                "pass; this training cannot go on"
            )
            raise self._failure
        super().accumulated(slot)
        self._waits.used(slot.parameter)

    def settle(self, parameters: Iterable[torch.Tensor]) -> None:
        """Wait for the averages of those that are in flight, and update them. Any thread.

        Raises:
            BytePSError: an exchange has failed, or a gradient was changed in flight; nothing is in flight then, and
                every later call raises the same.
        """
        if not self._flying and self._failure is None:
            return
        with self._lock:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            try:
                self._update([each for each in dict.fromkeys(parameters) if each in self._flying])
            except Exception as error:
                self._fail(error)
            if self._is_retired and not self._flying:
                self._waits.remove()

    def settle_all(self, unless: Iterable[torch.Tensor] = ()) -> None:
        """As :meth:`settle`, for all that are in flight and not among ``unless``."""
        if self._flying or self._failure is not None:
            with self._lock:
                spared = set(unless)
                self.settle([each for each in self._flying if each not in spared])

    def clear(self, groups: Sequence[dict[str, Any]], set_to_none: bool) -> None:
        """Clear the gradients of all parameters, those in flight after their update.

        Raises:
            BytePSError: gradients are on their way, and not by :meth:`launch`.
        """
        with self._lock:
            self._restart(self._flying, "zero_grad()")
            for flight in self._flying.values():
                flight.clear = set_to_none
            vars(self._part)["param_groups"] = [
                {**group, "params": [each for each in group["params"] if each not in self._flying]} for group in groups
            ]
            self._own.zero_grad(self._part, set_to_none)

    def retire(self) -> None:
        """The optimizer is gone: take the hooks away when nothing is in flight any more. Any thread; never blocks, as
        the collection of garbage calls it."""
        self._is_retired = True
        if self._flying:
            _retired.add(self)
        else:
            self._waits.remove()

    def _restart(self, flying: Iterable[torch.Tensor], caller: str) -> None:
        begun = [slot.label for each, slot in self._slots.items() if slot.push is not None and each not in flying]
        if begun:
            raise BytePSError(
                f"{caller} was called while the gradients of {some(begun)} are on their way to the other workers: "
                "call step() first"
            )
        self.synchronized = False
        for slot in self._slots.values():
            slot.remaining = self._passes

    def _update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Wait for their averages, and let the optimizer's class update them, those of one group together."""
        groups: dict[int, tuple[dict[str, Any], list[torch.Tensor]]] = {}
        after: list[tuple[torch.Tensor, _Flight, bool, torch.Tensor | None]] = []
        for each in parameters:
            flight = self._flying[each]
            replaced, found = self._average(each)
            after.append((each, flight, replaced, found))
            if flight.options is not None:
                groups.setdefault(id(flight.options), (flight.options, []))[1].append(each)
        vars(self._part)["param_groups"] = [{**options, "params": members} for options, members in groups.values()]
        if groups:
            with torch.inference_mode(False), torch.no_grad(), _without_autocast(parameters):
                self._part.step()
        for each, flight, replaced, found in after:
            del self._flying[each]
            if flight.clear is not None:
                _clear(each, flight.clear)
            elif replaced:
                each.grad = found

    def _average(self, parameter: torch.Tensor) -> tuple[bool, torch.Tensor | None]:
        """Put the average into ``.grad``; whether there was something else than what was pushed, and what."""
        slot = self._slots[parameter]
        push, found = slot.push, parameter.grad
        assert push is not None, "what is in flight was pushed"
        if push.gradient is not None and push.gradient._version != push.version:
            raise BytePSError(
                f"the gradient of {slot.label!r} was changed while it was on its way, after step(): call synchronize() "
                "before, or clear it by the optimizer's zero_grad()"
            )
        parameter.grad = push.gradient
        self._conclude([slot], [])
        return found is not push.gradient, found

    def _fail(self, error: Exception) -> None:
        """Wait for all that is on its way, remember ``error``, and raise it."""
        self._flying.clear()
        self._failure = self._failure or error
        with contextlib.suppress(Exception):
            self._conclude(self._slots.values(), [error])
        raise self._failure


def _settle_retired() -> None:
    for each in list(_retired):
        each.settle_all()


def _options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options as they are now, without its parameters."""
    options = {
        key: each.clone() if isinstance(each, torch.Tensor) else each
        for key, each in group.items()
        if key not in ("params", "param_names")
    }
    kinds = {each.device.type for each in group["params"]}
    if len(kinds) > 1 and options.get("foreach", False) is None:
        options["foreach"] = False  # what torch chooses for all of them together; one by one it would differ
    return options


def _clear(parameter: torch.Tensor, set_to_none: bool) -> None:
    if set_to_none or parameter.grad is None:
        parameter.grad = None
    else:
        parameter.grad = parameter.grad.detach().zero_()


def _without_autocast(parameters: Sequence[torch.Tensor]) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for kind in {each.device.type for each in parameters}:
        if _is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def _is_autocast_enabled(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except TypeError:  # before torch 2.4 it knows no kinds
        return True
