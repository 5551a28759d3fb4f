"""The collective calls of ``torch.distributed``, made of sums and broadcasts.

Each function makes one call of a :class:`~byteps_py.torch.circle.Circle` and returns its work at once.  Tensors must be
dense and on the CPU, of any layout in memory.  What is sent is copied, or belongs to the call until its end; results
are in the caller's tensors after :meth:`~byteps_py.torch.works.Work.wait`.

A gathering is one broadcast from each member: each sends its tensor once, and receives those of the others.  What only
one member wants (``gather``, ``reduce``), or each in part (``scatter``, ``reduce_scatter``, ``all_to_all``), goes to
all.

All raise UnsupportedError for tensors that cannot travel, ValueError for lists and sizes that do not fit, and what
:meth:`~byteps_py.torch.circle.Circle.call` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from byteps_py.errors import AgreementError, UnsupportedError
from byteps_py.torch import reductions
from byteps_py.torch.circle import Circle, Exchange
from byteps_py.torch.tensors import check_dense, check_writable, copy_back, dtype_name, stage
from byteps_py.torch.works import Work
from byteps_py.types import DType, Operation

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "pass_on",
    "reduce",
    "reduce_scatter",
    "scatter",
]

Seconds = float | None
Tensors = Sequence[torch.Tensor]


def all_reduce(circle: Circle, tensors: Tensors, op: str, seconds: Seconds) -> Work:
    """Reduce each tensor over all members, in place; ``op`` is a name that :mod:`~byteps_py.torch.reductions` knows."""
    what = f"all_reduce({op}) of {_describe(tensors)}"
    staged = _stage(what, tensors, written=True)
    for each in tensors:
        reductions.check(op, each.dtype)

    def begin(exchange: Exchange) -> Callable[[], object]:
        results = [reductions.begin(exchange, each, op) for each in staged]
        return lambda: _deliver([result() for result in results], tensors)

    return circle.call(what, f"all_reduce.{op}.{_look(tensors)}", begin, seconds, tensors)


def reduce(circle: Circle, tensor: torch.Tensor, root: int, op: str, seconds: Seconds) -> Work:
    """Reduce over all members into the tensor of ``root``; those of the others stay as they are."""
    what = f"reduce({op}) to rank {_check_root(circle, root)} of {_describe([tensor])}"
    is_root = circle.rank == root
    (staged,) = _stage(what, [tensor], written=is_root)
    reductions.check(op, tensor.dtype)
    used = staged if is_root else staged.clone()

    def begin(exchange: Exchange) -> Callable[[], object]:
        result = reductions.begin(exchange, used, op)
        return lambda: _deliver([result()], [tensor]) if is_root else None

    return circle.call(what, f"reduce.{root}.{op}.{_look([tensor])}", begin, seconds, [tensor])


def broadcast(circle: Circle, tensors: Tensors, root: int, seconds: Seconds) -> Work:
    """Give the bits of ``root``'s tensors to all; any dtype."""
    what = f"broadcast from rank {_check_root(circle, root)} of {_describe(tensors)}"
    staged = _stage(what, tensors, written=circle.rank != root)

    def begin(exchange: Exchange) -> Callable[[], object]:
        for each in staged:
            exchange.broadcast(root, each)
        return lambda: _deliver(staged, tensors) if circle.rank != root else None

    return circle.call(what, f"broadcast.{root}.{_look(tensors)}", begin, seconds, tensors)


def all_gather(circle: Circle, output_lists: Sequence[Tensors], tensors: Tensors, seconds: Seconds) -> Work:
    """Bring each member's tensors to all; for each one outputs by rank, whose sizes may differ, but agree on all
    members."""
    outputs = _flatten(output_lists)
    what = f"all_gather of {_describe(tensors)} into {_describe(outputs)}"
    _check_lists(circle, what, output_lists, tensors)
    mine, parts = _stage(what, tensors), [_stage(what, each, written=True) for each in output_lists]

    def begin(exchange: Exchange) -> Callable[[], object]:
        for each, own in zip(parts, mine, strict=True):
            _gather(exchange, each, own)
        return lambda: _deliver(_flatten(parts), outputs)

    return circle.call(what, f"all_gather.{_look(outputs)}", begin, seconds, outputs)


def gather(circle: Circle, outputs: Tensors, tensor: torch.Tensor, root: int, seconds: Seconds) -> Work:
    """Bring each member's tensor to ``root``; ``outputs`` by rank there, and empty elsewhere. All have one size."""
    what = f"gather to rank {_check_root(circle, root)} of {_describe([tensor])}"
    is_root = circle.rank == root
    if is_root:
        _check_parts(circle, what, outputs, tensor)
        if any(each.numel() != tensor.numel() for each in outputs):
            raise ValueError(f"{what}: all outputs must have as many elements as the input, not {_describe(outputs)}")
    (mine,) = _stage(what, [tensor])
    parts = _stage(what, outputs, written=True) if is_root else [torch.empty_like(mine) for _ in circle.members]

    def begin(exchange: Exchange) -> Callable[[], object]:
        _gather(exchange, parts, mine)
        return lambda: _deliver(parts, outputs) if is_root else None

    return circle.call(what, f"gather.{root}.{_look([tensor])}", begin, seconds, outputs)


def scatter(circle: Circle, output: torch.Tensor, inputs: Tensors, root: int, seconds: Seconds) -> Work:
    """Give each member its one of ``root``'s tensors; ``inputs`` by rank there, and empty elsewhere. All have one
    size."""
    what = f"scatter from rank {_check_root(circle, root)} into {_describe([output])}"
    (staged,) = _stage(what, [output], written=True)
    if circle.rank == root:
        _check_parts(circle, what, inputs, output)
        if any(each.numel() != output.numel() for each in inputs):
            raise ValueError(f"{what}: all inputs must have as many elements as the output, not {_describe(inputs)}")
        whole = torch.cat([each.reshape(-1) for each in _stage(what, inputs)])
    else:
        whole = staged.new_empty(circle.size * staged.numel())

    def begin(exchange: Exchange) -> Callable[[], object]:
        exchange.broadcast(root, whole)
        count = output.numel()
        return lambda: _deliver([whole[circle.rank * count :][:count]], [output])

    return circle.call(what, f"scatter.{root}.{_look([output])}", begin, seconds, [output])


def reduce_scatter(circle: Circle, outputs: Tensors, input_lists: Sequence[Tensors], op: str, seconds: Seconds) -> Work:
    """Reduce over all members; for each output there are inputs by rank, of which each member receives its own. Sizes
    may differ."""
    inputs = _flatten(input_lists)
    what = f"reduce_scatter({op}) of {_describe(inputs)}"
    _check_lists(circle, what, input_lists, outputs)
    _check(what, outputs, written=True)
    for each in outputs:
        reductions.check(op, each.dtype)
    whole = [torch.cat([each.reshape(-1) for each in _stage(what, parts)]) for parts in input_lists]
    firsts = [sum(each.numel() for each in parts[: circle.rank]) for parts in input_lists]

    def begin(exchange: Exchange) -> Callable[[], object]:
        results = [reductions.begin(exchange, each, op) for each in whole]

        def finish() -> None:
            for result, first, output in zip(results, firsts, outputs, strict=True):
                _deliver([result()[first:][: output.numel()]], [output])

        return finish

    return circle.call(what, f"reduce_scatter.{op}.{_look(inputs)}", begin, seconds, outputs)


def all_to_all(circle: Circle, outputs: Tensors, inputs: Tensors, seconds: Seconds, *, even: bool = False) -> Work:
    """Give member *i* the ``inputs[i]`` of each; ``outputs`` by sender. Sizes may differ.

    Args:
        even: all tensors of all members have one size. Otherwise members tell each other their sizes first, and the
            call waits for that.
    """
    what = f"all_to_all of {_describe(inputs)} into {_describe(outputs)}"
    for tensors in (inputs, outputs):
        if len(tensors) != circle.size:
            raise ValueError(f"{what}: there must be {circle.size} tensors, one for each member of the process group")
    if len({each.dtype for each in (*inputs, *outputs)}) > 1:
        raise ValueError(f"{what}: all tensors must have one dtype")
    sending, receiving = _stage(what, inputs), _stage(what, outputs, written=True)
    sent = [each.numel() for each in inputs]
    if even and {each.numel() for each in outputs} != set(sent):
        raise ValueError(
            f"{what}: this rank sends {sent[0]} elements to each member and expects {outputs[0].numel()} of each; "
            "without split sizes both must be equal"
        )
    table = torch.tensor([sent] * circle.size) if even else _exchange_sizes(circle, inputs, outputs, seconds)
    blocks = [sending[0].new_empty(int(row.sum())) for row in table]
    blocks[circle.rank] = torch.cat([each.reshape(-1) for each in sending])
    firsts = table[:, : circle.rank].sum(1).tolist()

    def begin(exchange: Exchange) -> Callable[[], object]:
        for root, block in enumerate(blocks):
            exchange.broadcast(root, block)
        parts = [block[first:][: each.numel()] for block, first, each in zip(blocks, firsts, receiving, strict=True)]
        return lambda: _deliver(parts, outputs)

    look = dtype_name(inputs[0].dtype), "+".join(str(block.numel()) for block in blocks)
    return circle.call(what, f"all_to_all.{'.'.join(look)}", begin, seconds, outputs)


def _exchange_sizes(circle: Circle, inputs: Tensors, outputs: Tensors, seconds: Seconds) -> torch.Tensor:
    """How many elements each member (row) sends to each (column).

    Raises:
        AgreementError: somebody expects another number; on all members.
    """
    table = torch.zeros(2, circle.size, circle.size, dtype=torch.int64)
    table[0, circle.rank] = torch.tensor([each.numel() for each in inputs])
    table[1, :, circle.rank] = torch.tensor([each.numel() for each in outputs])

    def begin(exchange: Exchange) -> Callable[[], object]:
        exchange.reduce(table, DType.INT64, Operation.SUM)
        return lambda: None

    circle.call(
        f"all_to_all of {_describe(inputs)} (its sizes)", f"all_to_all.{dtype_name(inputs[0].dtype)}", begin, seconds
    ).wait()
    for sender, receiver in itertools.product(range(circle.size), repeat=2):
        sent, expected = table[:, sender, receiver].tolist()
        if sent != expected:
            raise AgreementError(
                f"all_to_all: rank {sender} sends {sent} elements to rank {receiver}, which expects {expected}"
            )
    return table[0]


def barrier(circle: Circle, seconds: Seconds) -> Work:
    """Done when all members have made the call."""
    return circle.call("barrier", "barrier", lambda exchange: lambda: None, seconds)


def pass_on(circle: Circle, tensor: torch.Tensor, what: str, seconds: Seconds, source: int = -1) -> Work:
    """Send ``tensor`` from the first member of a circle of two to the second.

    Args:
        what: the call as messages name it, without the tensor.
        source: see :class:`~byteps_py.torch.works.Work`.
    """
    what = f"{what} of {_describe([tensor])}"
    (staged,) = _stage(what, [tensor], written=circle.rank == 1)

    def begin(exchange: Exchange) -> Callable[[], object]:
        exchange.broadcast(0, staged)
        return lambda: _deliver([staged], [tensor]) if circle.rank == 1 else None

    return circle.call(what, _look([tensor]), begin, seconds, [tensor], source)


def _gather(exchange: Exchange, parts: Tensors, mine: torch.Tensor) -> None:
    parts[exchange.circle.rank].reshape(-1).copy_(mine.reshape(-1))
    for root, part in enumerate(parts):
        exchange.broadcast(root, part)


def _stage(what: str, tensors: Tensors, *, written: bool = False) -> list[torch.Tensor]:
    _check(what, tensors, written=written)
    return [stage(each) for each in tensors]


def _check(what: str, tensors: Tensors, *, written: bool) -> None:
    """``written``: results will be written into the tensors."""
    for each in tensors:
        check_dense(each, what)
        if written:
            check_writable(each, what)
        if each.device.type != "cpu":
            raise UnsupportedError(
                f"{what} on {each.device}: the backend byteps takes tensors on the CPU: call tensor.cpu() first; "
                "gradients of GPUs go by bps.comm_hook, or bps.DistributedOptimizer"
            )


def _deliver(results: Tensors, tensors: Tensors) -> None:
    for result, tensor in zip(results, tensors, strict=True):
        with torch.inference_mode(tensor.is_inference()):
            copy_back(result.reshape(tensor.shape), tensor)


def _check_root(circle: Circle, root: int) -> int:
    if not 0 <= root < circle.size:
        raise ValueError(f"rank {root} is not in the process group: its ranks are 0 to {circle.size - 1}")
    return root


def _check_parts(circle: Circle, what: str, parts: Tensors, mine: torch.Tensor) -> None:
    if len(parts) != circle.size:
        raise ValueError(
            f"{what}: there must be {circle.size} tensors in the list, one for each member of the process group, not "
            f"{len(parts)}"
        )
    if any(each.dtype is not mine.dtype for each in parts):
        raise ValueError(f"{what}: all tensors must have one dtype")
    if parts[circle.rank].numel() != mine.numel():
        raise ValueError(f"{what}: this is rank {circle.rank}, whose tensors in the list and outside differ in size")


def _check_lists(circle: Circle, what: str, lists: Sequence[Tensors], own: Tensors) -> None:
    if not own or len(lists) != len(own):
        raise ValueError(f"{what}: there must be one list of tensors for each tensor, and at least one")
    for parts, mine in zip(lists, own, strict=True):
        _check_parts(circle, what, parts, mine)


def _flatten(lists: Sequence[Tensors]) -> list[torch.Tensor]:
    return [each for parts in lists for each in parts]


def _describe(tensors: Tensors) -> str:
    """For messages: ``float32 (3, 4)``."""
    words = [f"{dtype_name(each.dtype)} {tuple(each.shape)}" for each in tensors]
    if len(words) > 1 and len(set(words)) == 1:
        return f"{len(words)} x {words[0]}"
    return " + ".join(words)


def _look(tensors: Tensors) -> str:
    """What must be the same on all members: dtypes and numbers of elements."""
    return "+".join(f"{dtype_name(each.dtype)}.{each.numel()}" for each in tensors)
