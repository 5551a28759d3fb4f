"""Make the workers start from the same: parameters, optimizer state, any plain object.

All tensors of a call are under way at once.  Broadcast copies bits, so any dense dtype travels, also those that cannot
be summed (bool, complex, float8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn.parameter import is_lazy

from byteps_py import objects
from byteps_py import session as _session
from byteps_py.errors import UnsupportedError
from byteps_py.torch.agreement import Agreement
from byteps_py.torch.tensors import (
    as_array,
    as_bytes,
    can_be_summed,
    check_dense,
    check_writable,
    copy_back,
    dtype_name,
    spec_of,
    stage,
    to_device,
)
from byteps_py.types import DType, Operation, TensorSpec

__all__ = [
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_pairs",
    "broadcast_parameters",
    "start_broadcast",
]

_DTYPES: Final = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_INLINE_BYTES: Final = 4096
"""Tensors of an optimizer's state up to this size travel within the description of the state."""


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int = 0,
    prefix: str = "Parameter.",
) -> None:
    """Copy tensors of worker ``root_rank`` into those of the other workers, in place. All workers must call it.

    Args:
        params: ``model.state_dict()`` or ``model.named_parameters()``: names and dense tensors of any dtype, layout in
            memory and device; equal names, dtypes and shapes on all workers.
        root_rank: the worker whose values are taken.
        prefix: comes before the names; give each of several models of one job its own.

    Raises:
        ValueError: names are doubled or missing, or there is no such root.
        UnsupportedError: an entry is no dense tensor, or several of its elements share memory; it is named.
        AgreementError: the workers do not have the same names, dtypes and shapes, or not the same root; both sides are
            named on every worker.
    """
    pairs = list(params.items() if isinstance(params, Mapping) else params)
    if not all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in pairs):
        raise ValueError("broadcast_parameters needs names: pass model.state_dict() or model.named_parameters()")
    doubled = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if doubled:
        raise ValueError(f"broadcast_parameters was given several tensors of one name: {', '.join(doubled[:5])}")
    broadcast_pairs([(f"{prefix}{name}", tensor) for name, tensor in pairs], root_rank, f"the tensors of {prefix!r}")


def broadcast_pairs(pairs: Sequence[tuple[str, torch.Tensor]], root: int, topic: str | None = None) -> None:
    """Copy tensors of worker ``root`` into those of the others; arguments and errors as of :func:`start_broadcast`."""
    start_broadcast(pairs, root, topic)()


def start_broadcast(
    pairs: Sequence[tuple[str, torch.Tensor]], root: int, topic: str | None = None
) -> Callable[[], None]:
    """Begin to copy tensors of worker ``root`` into those of the others, under names that are used as they are.

    It waits for no other worker.

    Args:
        pairs: names and dense tensors.
        root: the worker whose values are taken.
        topic: what may differ between workers, for a message; None if nothing may, as it was checked before.

    Returns:
        What waits for the end. Until then tensors must be left alone.

    Raises:
        ValueError, UnsupportedError, AgreementError: as :func:`broadcast_parameters`.
    """
    session = _session.current()
    objects.check_root(root, session.size)
    staged = [_stage_any(name, tensor) for name, tensor in pairs]
    specs = [_spec(name, each) for (name, _), each in zip(pairs, staged, strict=True)]
    agreement = None
    if topic is not None:
        lines = [f"root {root}", *(f"{spec.name} ({spec.describe()})" for spec in specs)]
        agreement = Agreement(session, topic, lines, "Broadcast the same names of the same root on every worker.")
    session.declare(specs)
    pending = []
    for spec, each in zip(specs, staged, strict=True):
        array = as_array(_summable(each))
        source = array if session.rank == root else None
        pending.append(session.submit(spec, source, array, Operation.BROADCAST, root=root))

    def finish() -> None:
        if agreement is not None:
            agreement.check()
        for waiting in pending:
            waiting.wait()
        if session.rank != root:
            for (_, tensor), each in zip(pairs, staged, strict=True):
                copy_back(each, tensor)

    return finish


def _stage_any(name: str, tensor: object) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedError(
            f"{name!r} is a {type(tensor).__qualname__}, not a tensor: broadcast_object() carries plain values"
        )
    check_dense(tensor, f"tensor {name!r}")
    check_writable(tensor, f"tensor {name!r}")
    return stage(tensor)


def _summable(staged: torch.Tensor) -> torch.Tensor:
    return staged if can_be_summed(staged.dtype) else as_bytes(staged)


def _spec(name: str, staged: torch.Tensor) -> TensorSpec:
    if can_be_summed(staged.dtype):
        return spec_of(name, staged)
    return TensorSpec(name, DType.UINT8, (staged.nbytes,))


def broadcast_object(obj: object, root_rank: int = 0, name: str | None = None) -> object:
    """What worker ``root_rank`` passed, on every worker. All workers must call it; it blocks.

    Numbers, strings, bytes, containers, NumPy arrays and dense tensors travel; nothing is unpickled.  Tensors arrive on
    the CPU, without gradient.

    Args:
        obj: at the root; ignored elsewhere.
        root_rank: the worker whose object is sent.
        name: distinguishes calls that may cross; calls of one name are matched in their order.

    Returns:
        ``obj`` itself at the root, elsewhere a copy.

    Raises:
        UnsupportedError: (a TypeError) the object holds something else; raised on every worker, with type and place.
        ValueError: there is no such root.
    """
    return objects.broadcast_object(obj, root_rank, name, (_Tensors(),))


class _Tensors:
    """Lets dense tensors travel within objects."""

    name = "torch"

    def encode(self, value: object) -> object | None:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return None
        assert isinstance(value, torch.Tensor)
        check_dense(value, "a tensor of the object")
        return [*_describe(value), as_bytes(stage(value)).numpy().tobytes()]

    def decode(self, plain: Any) -> object:
        dtype, shape, data = plain
        tensor = _empty(dtype, shape)
        if tensor.nbytes != len(data):
            raise ValueError(f"{len(data)} bytes are no {dtype} of shape {shape}")
        if data:
            as_bytes(tensor).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return tensor


class _LargeTensorsApart(_Tensors):
    """Only describes tensors that are large; collects them (at the root) or empty ones like them (elsewhere)."""

    name = "torch.apart"

    def __init__(self) -> None:
        self.large: list[torch.Tensor] = []

    def encode(self, value: object) -> object | None:
        if not isinstance(value, torch.Tensor):
            return None
        check_dense(value, "a tensor of the optimizer's state")
        if value.nbytes <= _INLINE_BYTES:
            return super().encode(value)
        self.large.append(value)
        return _describe(value)

    def decode(self, plain: Any) -> object:
        if len(plain) == 3:
            return super().decode(plain)
        self.large.append(_empty(*plain))
        return self.large[-1]


def _describe(tensor: torch.Tensor) -> list[Any]:
    return [str(tensor.dtype), list(tensor.shape)]


def _empty(dtype: str, shape: list[int]) -> torch.Tensor:
    return torch.empty(shape, dtype=_DTYPES[dtype])


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, prefix: str = "Optimizer.") -> None:
    """Give every worker the optimizer state and options of worker ``root_rank``. All workers must call it.

    The others need no state of their own before, as after a resumption from a checkpoint that only the root has read.

    Args:
        optimizer: distributed or not; equal groups of parameters on all workers; state and options of tensors and plain
            values, see :func:`broadcast_object`.
        root_rank: the worker whose state is taken.
        prefix: comes before the names under which large tensors travel.

    Raises:
        UnsupportedError: (a TypeError) the state holds something else; raised on every worker, with type and place.
        AgreementError: (a ValueError) the optimizers are of other classes, their groups or the shapes and dtypes of
            their parameters differ, or the roots; both sides are named on every worker, and nothing is changed.
        ValueError: there is no such root.
    """
    session = _session.current()
    objects.check_root(root_rank, session.size)
    Agreement(
        session,
        f"the optimizer of {prefix!r}",
        [f"root {root_rank}", *_describe_groups(optimizer)],
        "Make the same optimizer on every worker before broadcast_optimizer_state().",
    ).check()
    apart = _LargeTensorsApart()
    is_root = session.rank == root_rank
    mine = _state_of(optimizer) if is_root else None
    received: Any = objects.broadcast_object(mine, root_rank, f"{prefix}state", (apart,))
    seen: Counter[str] = Counter()
    pairs = []
    for tensor in apart.large:
        # The name fixes dtype and shape, so that optimizers that come one after the other do not contradict.
        kind = f"{prefix}{dtype_name(tensor.dtype)}.{'x'.join(map(str, tensor.shape))}"
        pairs.append((f"{kind}.{seen[kind]}", tensor))
        seen[kind] += 1
    broadcast_pairs(pairs, root_rank)
    if not is_root:
        _restore(optimizer, received)


def _parameters(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    return [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]


def _state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    place = {parameter: index for index, (parameter, _) in enumerate(_parameters(optimizer))}
    state: dict[Any, Any] = optimizer.state
    return {
        "groups": [{key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups],
        "state": {place[key]: each for key, each in state.items() if isinstance(key, torch.Tensor)},
        "others": {key: each for key, each in state.items() if not isinstance(key, torch.Tensor)},
    }


def _describe_groups(optimizer: torch.optim.Optimizer) -> list[str]:
    """What must be equal on all workers for the state of one to fit the others."""
    lines = [f"class {type(optimizer).__name__}"]
    for number, group in enumerate(optimizer.param_groups):
        lines.append(f"group {number} of {len(group['params'])} parameters")
        for place, parameter in enumerate(group["params"]):
            shape = None if is_lazy(parameter) else tuple(parameter.shape)
            kind = dtype_name(parameter.dtype)
            lines.append(f"parameter {place} of group {number} ({kind}, shape {shape})")
    return lines


def _restore(optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> None:
    """Exactly what the root has: ``load_state_dict()`` would cast the state to the parameters' dtype."""
    for group, options in zip(optimizer.param_groups, received["groups"], strict=True):
        for key, value in options.items():  # such as a learning rate on a GPU
            mine = group.get(key)
            group[key] = to_device(value, mine.device) if isinstance(mine, torch.Tensor) else value
    parameters = _parameters(optimizer)
    state: dict[Any, Any] = optimizer.state
    state.clear()
    state.update(received["others"])
    for index, entry in received["state"].items():
        parameter, group = parameters[index]
        on_device = group.get("capturable") or group.get("fused")
        state[parameter] = {
            key: value if key == "step" and not on_device else to_device(value, parameter.device)
            for key, value in entry.items()
        }
