"""Updates of parameters that wait for their averages, one by one: what ``CrossBarrier`` is made of."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from byteps_py.errors import BytePSError
from byteps_py.torch.claims import claiming
from byteps_py.torch.compression import Compressor
from byteps_py.torch.gradients import GradientExchange
from byteps_py.torch.slots import Slot
from byteps_py.torch.waits import ForwardWaits

__all__ = ["ParameterUpdates"]

_log: Final = logging.getLogger("byteps_py.worker")
_retired: Final = weakref.WeakSet["ParameterUpdates"]()
"""Whose optimizer is gone, while updates were still to come."""


@dataclass
class _Flight:
    """``options`` are those of the group at ``step()``, one object for each group, None if there is none; ``clear`` is
    what ``zero_grad()`` was asked for since then.

    ``is_noted`` tells that the wait for the average has begun, and ``found`` what was in ``.grad`` then, if that was
    something else than what was pushed; ``has_arrived``, that the average is in ``.grad``.
    """

    options: dict[str, Any] | None
    together: bool = False
    clear: bool | None = None
    is_noted: bool = False
    has_arrived: bool = False
    is_replaced: bool = False
    found: torch.Tensor | None = None


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
    takes_rows = False
    ending = "step()"
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
        self._is_updating = False
        self._by_memory: dict[int, list[torch.Tensor]] = {}
        self._is_retired = False
        # A second optimizer of the same class, on the same state, which is given a few parameters at a time.
        self._own = type(optimizer)
        self._part = object.__new__(self._own)
        vars(self._part).update({key: each for key, each in vars(optimizer).items() if key != "step"})
        vars(self._part).update(_optimizer_step_pre_hooks=OrderedDict(), _optimizer_step_post_hooks=OrderedDict())
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if named_parameters is None and set(parameters) <= set(model.parameters()):
            named_parameters = model.named_parameters()
        owner = f"a CrossBarrier of class {self._own.__name__}"
        with claiming(self, self.kind, parameters):
            super().__init__(optimizer.param_groups, named_parameters, compression, passes, owner=owner)
        self._waits = ForwardWaits(model)
        self._waits.watch(self)

    @property
    def are_coming(self) -> bool:
        """Whether updates are still to come, or will never come. Any thread."""
        return bool(self._flying) or self._failure is not None

    def launch(self, groups: Sequence[dict[str, Any]], state: Any) -> None:
        """Finish what is in flight, then contribute what has not been contributed, and put all in flight.

        Parameters that may be read unseen, see :class:`ForwardWaits`, are updated within it.

        Args:
            groups: the optimizer's ``param_groups``, whose options count as they are now.
            state: the optimizer's state, which the updates will use.

        Raises:
            BytePSError: as :meth:`GradientExchange.synchronize`; nothing is in flight then, now and later.
        """
        with self._lock:
            self._waits.leave()
            self.settle_all()
            try:
                errors = self._contribute_all(groups)
                if errors:
                    self._conclude(self._slots.values(), errors)
            except Exception as error:
                self._fail(error)
            vars(self._part)["state"] = state
            flights = {each: _Flight(None) for each in self._slots}
            for group in groups:
                options, together = _options_of(group), _is_mixed(group)
                flights.update({each: _Flight(options, together) for each in group["params"] if each in flights})
            self.finish_step()
            self._by_memory = _by_memory(flights)
            self._flying.update(flights)  # at once: who interrupts a step finds all of it or nothing
            watched = self._waits.watch(self)
            self.settle([each for each in flights if each not in watched])

    def accumulated(self, slot: Any) -> None:
        """See :meth:`GradientExchange.accumulated`; a gradient of what is in flight comes from a use of the old value.

        Any of autograd's threads.
        """
        with self._lock:
            if slot.parameter in self._flying:
                self._failure = BytePSError(
                    f"parameter {slot.label!r} was used before its update of the last step, by a reference or in a "
                    "graph that was made before that step: take it from its module, or call the optimizer's "
                    "synchronize() after step(); this training cannot go on"
                )
                raise self._failure
            super().accumulated(slot)

    def _is_lost(self, slot: Slot) -> bool:
        """What is in flight has its average, and its update is still to come."""
        return slot.parameter not in self._flying

    def settle(self, parameters: Iterable[Any]) -> None:
        """Wait for the averages of those that are in flight, and update them. Any thread.

        Raises:
            BytePSError: an exchange has failed, or a gradient was changed in flight; nothing is in flight then, and
                every later call raises the same.
        """
        if not self.are_coming:
            return
        wanted = [each for each in parameters if each is not None and each in self._flying]
        if not wanted and self._failure is None:
            return
        with self._lock:
            if self._is_updating:  # the update itself reads the parameter
                return
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            self._is_updating = True
            try:
                self._update(self._complete(wanted))
            except Exception as error:
                self._fail(error)
            finally:
                self._is_updating = False
                if self._is_retired and not self._flying:  # also after a failure: the model is free again
                    _retired.discard(self)
                    self._waits.remove(self)

    def settle_memory(self, tensors: Iterable[torch.Tensor]) -> None:
        """As :meth:`settle`, for all in flight that are in the memory of ``tensors``."""
        self.settle([each for tensor in tensors for each in self._by_memory.get(_memory_of(tensor), ())])

    def settle_all(self) -> None:
        """As :meth:`settle`, for all that are in flight."""
        if self.are_coming:
            with self._lock:
                self.settle(list(self._flying))

    def clear(self, groups: Sequence[dict[str, Any]], set_to_none: bool) -> None:
        """Clear the gradients of all parameters, those in flight after their update.

        Raises:
            BytePSError: gradients are on their way, and not by :meth:`launch`.
        """
        with self._lock:
            self.restart("zero_grad()", self._flying)
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
            self._waits.remove(self)

    def _complete(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Those in flight, and with them all of a group that must be updated together."""
        wanted = {each: self._flying[each] for each in parameters if each in self._flying}
        together = {id(flight.options) for flight in wanted.values() if flight.together}
        if together:
            wanted.update({each: flight for each, flight in self._flying.items() if id(flight.options) in together})
        return list(wanted)

    def _update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Wait for their averages, and let the optimizer's class update them, those of one group together."""
        groups: dict[int, tuple[dict[str, Any], list[torch.Tensor]]] = {}
        for each in parameters:
            flight = self._flying[each]
            self._average(each, flight)
            if flight.options is not None:
                groups.setdefault(id(flight.options), (flight.options, []))[1].append(each)
        vars(self._part)["param_groups"] = [{**options, "params": members} for options, members in groups.values()]
        try:
            if groups:
                with torch.inference_mode(False), torch.no_grad(), _without_autocast(parameters):
                    self._part.step()
            for each in parameters:
                flight = self._flying.pop(each)
                if flight.clear is not None:
                    _clear(each, flight.clear)
                elif flight.is_replaced:
                    each.grad = flight.found
        except Exception:
            raise
        except BaseException:
            self._failure = BytePSError(
                "the update of parameters was interrupted: some are updated and others are not, so go on from a "
                "checkpoint, with a new CrossBarrier"
            )
            raise

    def _average(self, parameter: torch.Tensor, flight: _Flight) -> None:
        """Put the average into ``.grad``. If the wait is interrupted it may be called again."""
        if flight.has_arrived:
            return
        slot = self._slots[parameter]
        push = slot.push
        if push is None:  # interrupted when the average was in place
            slot.remaining = self._passes
        else:
            if not flight.is_noted:
                if push.gradient is not None and push.gradient._version != push.version:
                    raise BytePSError(
                        f"the gradient of {slot.label!r} was changed while it was on its way, after step(): call "
                        "synchronize() before, or clear it by the optimizer's zero_grad()"
                    )
                flight.found, flight.is_replaced = parameter.grad, parameter.grad is not push.gradient
                flight.is_noted = True
            parameter.grad = push.gradient
            self._conclude([slot], [])
        flight.has_arrived = True

    def _fail(self, error: Exception) -> None:
        """Wait for all that is on its way, remember ``error``, and raise it."""
        self._flying.clear()
        self._failure = self._failure or error
        with contextlib.suppress(Exception):
            self._conclude(self._slots.values(), [error])
        raise self._failure


def _settle_retired() -> None:
    for each in list(_retired):
        try:
            each.settle_all()
        except BytePSError as error:  # it is lost with its optimizer; this one has no part in that
            _log.warning("a CrossBarrier that was dropped: %s", error)


def _options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options as they are now, without its parameters."""
    return {
        key: each.clone() if isinstance(each, torch.Tensor) else each
        for key, each in group.items()
        if key not in ("params", "param_names")
    }


def _by_memory(parameters: Iterable[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
    found: dict[int, list[torch.Tensor]] = {}
    for each in parameters:
        found.setdefault(_memory_of(each), []).append(each)
    return found


def _memory_of(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins, of which it may be a part; 0 if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse, or a stand-in of a compiler or a transform
        return 0


def _is_mixed(group: dict[str, Any]) -> bool:
    """Whether torch chooses its implementation by all of the group that have gradients, so that one by one differ."""
    return len({(type(each), each.device.type) for each in group["params"]}) > 1 and group.get("foreach", 0) is None


def _clear(parameter: torch.Tensor, set_to_none: bool) -> None:
    if set_to_none or parameter.grad is None:
        parameter.grad = None
    else:
        parameter.grad = parameter.grad.detach().zero_()


def _without_autocast(parameters: Sequence[torch.Tensor]) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for kind in {each.device.type for each in parameters}:
        with contextlib.suppress(RuntimeError):  # a kind of device that has no autocast
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
