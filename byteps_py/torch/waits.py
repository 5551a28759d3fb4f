"""Whoever reads a parameter waits for its update first.

A wait that is missing gives wrong numbers in silence, since autograd does not notice each use of an old value. So no
wait is placed by what was seen in earlier passes: each read is caught when it happens, wherever it may be.

====================================================  ==============================================================
a parameter is reached                                caught by
====================================================  ==============================================================
as ``module.weight``, from anywhere; by               the mapping in which the module holds its parameters, which is
``model.parameters()``; in a copy or a pickle         ours while the hooks are there
by the module that owns it, however                   the pre-hook of each module
by a reference that was made before, while a module   a mode that sees the arguments of all functions of torch, from
is running                                            the first module of a pass to its end
all at once: saving, loading, an evaluation           hooks, which wait for all
by compiled or scripted code, or in no module of the  nothing: :meth:`ForwardWaits.watch` leaves it out, so that it
model                                                 is updated within ``step()``
====================================================  ==============================================================

What is left is a reference (or an alias, as ``.data``) made before ``step()`` and read after it outside all modules.
If that is the only read its gradient comes while the update is still to come, which is told as an error.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, ValuesView
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.overrides import TorchFunctionMode

__all__ = ["ForwardWaits", "Updates"]

_Value = TypeVar("_Value")


class Updates(Protocol):
    """What is waited for."""

    @property
    def are_coming(self) -> bool:
        """Whether there is something to wait for."""

    def settle(self, parameters: Iterable[Any]) -> None:
        """Update those of ``parameters`` for which that is still to be done; cheap if it is for none."""

    def settle_memory(self, tensors: Iterable[torch.Tensor]) -> None:
        """As :meth:`settle`, for all parameters in the memory of ``tensors``, which may be views or detached."""

    def settle_all(self) -> None:
        """Update all parameters for which that is still to be done."""


class ForwardWaits:
    """The hooks of a model. They keep the updates alive as long as the model, unless :meth:`remove` is called.

    Copies and pickles of the model have hooks that do nothing, and ordinary mappings.

    Args:
        model: whose modules get hooks by :meth:`watch`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._handles = weakref.WeakKeyDictionary[nn.Module, list[Any]]()
        self._is_compiled = False
        self._running = threading.local()

    def watch(self, updates: Updates) -> set[torch.Tensor]:
        """Watch all modules that the model has now; the parameters whose reads are caught."""
        model = self._model()
        watched: set[torch.Tensor] = set()
        for module in () if model is None else model.modules():
            if self._is_compiled or _is_opaque(module):
                return set()
            if module not in self._handles:
                self._handles[module] = self._add_hooks(module, updates)
            held = vars(module)["_parameters"]
            if type(held) in (dict, OrderedDict):
                held = vars(module)["_parameters"] = _Parameters(held)
            if isinstance(held, _Parameters):
                if updates not in held.watchers:
                    held.watchers = (*held.watchers, updates)
                watched.update(_raw(held))
        return watched

    def remove(self, updates: Updates) -> None:
        """Take away what :meth:`watch` has added."""
        for module, handles in list(self._handles.items()):
            for each in handles:
                each.remove()
            held = vars(module)["_parameters"]
            if isinstance(held, _Parameters):
                held.watchers = tuple(each for each in held.watchers if each is not updates)
                if not held.watchers:
                    vars(module)["_parameters"] = held.kind(held)
        self._handles.clear()

    def leave(self) -> None:
        """No module runs in this thread; what a forward pass left that was interrupted is taken away."""
        _, mode, _ = self._outermost()
        if mode is not None:
            _take_out(mode)
            self._running.outermost = (None, None, 0)

    def _add_hooks(self, module: nn.Module, updates: Updates) -> list[Any]:
        # The hooks alone keep the updates, which keep this.
        settle_all = partial(self._compiled, updates)
        before = _Hook(partial(self._before, updates, _Reads(updates)), settle_all)
        everything = _Hook(lambda _: updates.settle_all(), settle_all)
        after = _Hook(self._after, lambda: None)
        return [
            module.register_forward_pre_hook(before, prepend=True),  # before one that computes weights
            module.register_forward_hook(after, always_call=True),
            module.register_state_dict_pre_hook(everything),  # type: ignore[no-untyped-call]
            # By the name that it has in all versions of torch.
            module._register_load_state_dict_pre_hook(everything, with_module=True),  # type: ignore[no-untyped-call]
        ]

    def _before(self, updates: Updates, mode: TorchFunctionMode, module: nn.Module) -> None:
        model = self._model()
        if model is None or not model.training:
            updates.settle_all()
        updates.settle(_raw(vars(module)["_parameters"]))
        outermost, entered, depth = self._outermost()
        if outermost is module:
            self._running.outermost = (module, entered, depth + 1)
        elif outermost is None and updates.are_coming:
            self._running.outermost = (module, mode, 1)
            torch._C._push_on_torch_function_stack(mode)

    def _after(self, module: nn.Module) -> None:
        outermost, mode, depth = self._outermost()
        if outermost is not module:
            return
        if depth > 1:
            self._running.outermost = (module, mode, depth - 1)
        else:
            self.leave()

    def _outermost(self) -> tuple[nn.Module | None, TorchFunctionMode | None, int]:
        """The module of this thread's pass, its mode, and how often it runs within itself."""
        found = getattr(self._running, "outermost", (None, None, 0))
        return cast(tuple[nn.Module | None, TorchFunctionMode | None, int], found)

    def _compiled(self, updates: Updates) -> None:
        """A compiler has made code of a module; such code may read parameters before it calls any hook."""
        self._is_compiled = True
        updates.settle_all()


class _Parameters(dict[str, Any]):
    """The parameters of one module; who takes one out waits for it, as the ``watchers`` know how."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.kind = type(parameters)
        self.watchers: tuple[Updates, ...] = ()

    def _settled(self, value: _Value) -> _Value:
        for each in self.watchers:
            each.settle((value,))
        return value

    def _settle_all(self) -> None:
        for each in self.watchers:
            each.settle(_raw(self))

    def __getitem__(self, name: str) -> Any:
        return self._settled(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._settled(super().get(name, default))

    def setdefault(self, name: str, default: Any = None) -> Any:
        return self._settled(super().setdefault(name, default))

    def pop(self, name: str, *default: Any) -> Any:
        return self._settled(super().pop(name, *default))

    def popitem(self) -> tuple[str, Any]:
        self._settle_all()
        return super().popitem()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self._settle_all()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self._settle_all()
        return super().items()

    def __iter__(self) -> Iterator[str]:  # where this is overridden, dict() and ** come by the methods above
        return super().__iter__()

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return self.kind, (dict(self),)


class _Reads(TorchFunctionMode):
    """Waits for what is among the arguments of a function of torch."""

    def __init__(self, updates: Updates) -> None:
        super().__init__()
        self._updates = updates

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._updates.are_coming:
            self._updates.settle_memory(_tensors((args, kwargs)))
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in the arguments of a function."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _raw(parameters: dict[str, Any]) -> list[torch.Tensor]:
    """What is in the mapping of a module, without waiting for it."""
    return [each for each in dict.values(parameters) if each is not None]


def _is_opaque(module: nn.Module) -> bool:
    """Whether a module is run by other means than Python, which may read parameters unseen."""
    return (
        isinstance(module, torch.jit.ScriptModule)
        or getattr(module, "_compiled_call_impl", None) is not None
        or "_orig_mod" in module._modules
    )


def _take_out(mode: TorchFunctionMode) -> None:
    """Take a mode from this thread's stack, also where somebody has entered another one above and not left it."""
    above = []
    while torch._C._len_torch_function_stack() > 0:
        top = torch._C._pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    for each in reversed(above):
        torch._C._push_on_torch_function_stack(each)


@_disable_dynamo
def _outside_the_graph(act: Callable[[], None]) -> None:
    act()


class _Hook:
    """Calls ``act`` with the module, or ``compiled`` within compiled code; does nothing when it is copied."""

    def __init__(self, act: Callable[[nn.Module], None], compiled: Callable[[], None]) -> None:
        self._act = act
        self._compiled = compiled

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            _outside_the_graph(self._compiled)
        else:
            self._act(module)

    def __reduce__(self) -> tuple[type[_NoHook], tuple[()]]:
        return _NoHook, ()


class _NoHook:
    def __call__(self, *_: Any) -> None:
        """Nothing."""
