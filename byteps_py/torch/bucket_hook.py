"""The gradients of DistributedDataParallel through the servers, whatever backend it uses for the rest.

::

    model = DistributedDataParallel(model)
    model.register_comm_hook(None, bps.comm_hook)
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Final

import torch
import torch.distributed

from byteps_py import session as _session
from byteps_py.session import Session
from byteps_py.torch.compression import Compression, Compressor
from byteps_py.torch.futures import Completer
from byteps_py.torch.tensors import as_array, copy_back, dtype_name, spec_of, stage
from byteps_py.types import Operation, TensorSpec

__all__ = ["CommHookState", "comm_hook"]

dist: Final[Any] = torch.distributed
"""Its stubs leave out what not every build has."""
_numbers: Final = itertools.count(1)


class CommHookState:
    """Options of :func:`comm_hook`, for one model. Immutable.

    With ``process_group`` all members of that group make it at the same time, after ``init()``: they tell each other
    which workers they are.

    Args:
        compression: how buckets travel.
        name: distinguishes the buckets of several models; equal on all workers. None numbers the models of a process
            in the order in which their states are made, which must then be the same on all workers.
        process_group: that of the model, where DistributedDataParallel was given one of some of the processes; of any
            backend. None stands for all workers of the job, whatever group the model has, as does a hook without a
            state.

    Raises:
        TypeError: ``compression`` is none.
        NotInitializedError: there is a group, and ``init()`` has not been called.
        BytePSError: as :meth:`byteps_py.session.Session.form_group`.
    """

    def __init__(
        self, compression: Compressor = Compression.none, name: str | None = None, process_group: Any = None
    ) -> None:
        if not isinstance(compression, Compressor):
            raise TypeError(f"CommHookState takes bps.Compression.none, .fp16 or .bf16, not {compression!r}")
        self.compression = compression
        self.name = str(next(_numbers)) if name is None else name
        self.group = 0 if process_group is None else _group_of(process_group)
        self._completers: weakref.WeakKeyDictionary[Session, Completer] = weakref.WeakKeyDictionary()

    def completer(self, session: Session) -> Completer:
        """Of the futures of this state's buckets."""
        return self._completers.setdefault(session, Completer())

    def __repr__(self) -> str:
        return f"CommHookState(compression={self.compression!r}, name={self.name!r})"


def _group_of(process_group: Any) -> int:
    """The number in the session of the members of a group of torch, whose ranks need not be those of the job."""
    session = _session.current()
    found: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(found, session.rank, group=process_group)
    return session.form_group(found)


_PLAIN: Final = CommHookState(name="0")


def comm_hook(state: CommHookState | None, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all workers of the job, or the group of ``state``; for
    ``DistributedDataParallel.register_comm_hook``.

    Buckets are matched by index, dtype and size, and those that look alike by their order, so models may do without a
    state of their own as long as all workers go through their backward passes in the same order (which
    DistributedDataParallel demands anyway); with one, threads may train several models at once.

    Args:
        state: None, or one for each model.
        bucket: ``torch.distributed.GradBucket``, on any device: a GPU's is copied to the host and back, and waited for.

    Returns:
        a future of the bucket's buffer, which then holds the average; called by the thread of the backward pass, and
        completed by another.

    Raises:
        TypeError: that is no state.
        UnsupportedError: gradients of this dtype cannot be pushed.
        NotInitializedError: ``init()`` has not been called. This and what befalls the operation later ends the backward
            pass by an error.
    """
    chosen = _PLAIN if state is None else state
    if not isinstance(chosen, CommHookState):
        raise TypeError(
            f"register_comm_hook(state, bps.comm_hook) takes None or a bps.CommHookState as state, not {state!r}"
        )
    session = _session.current()
    buffer: torch.Tensor = bucket.buffer()
    travels = chosen.compression.wire_dtype(buffer.dtype)
    staged = stage(buffer, travels)
    name = f"DDP.{chosen.name}.{bucket.index()}.{dtype_name(travels)}.{buffer.numel()}"
    spec = spec_of(name, buffer, travels)
    if chosen.group:
        spec = TensorSpec(f"{name}.of.{chosen.group}", spec.dtype, spec.shape, chosen.group)
    array = as_array(staged)
    pending = session.submit(spec, array, array, Operation.AVERAGE)

    def finish() -> torch.Tensor:
        copy_back(staged, buffer)
        return buffer

    return chosen.completer(session).future(pending.wait, finish)


comm_hook.__annotations__ = {}  # torch compares them with types of its own, which are not there in every build
