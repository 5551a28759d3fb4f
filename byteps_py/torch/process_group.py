"""The backend "byteps" of ``torch.distributed``.

::

    import byteps_py.torch
    torch.distributed.init_process_group("byteps")
"""
# torch gives some calls by other names to subclasses of ProcessGroup, by version: where a method has two names, the
# older comes second.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from byteps_py import session as _session
from byteps_py.errors import AgreementError, UnsupportedError
from byteps_py.settings import WorkerSettings, read
from byteps_py.torch import collectives
from byteps_py.torch.circle import Circle
from byteps_py.torch.meeting import meet
from byteps_py.torch.reductions import name_of
from byteps_py.torch.works import Work

__all__ = ["BytePSProcessGroup", "create"]

Tensors = list[torch.Tensor]

_log = logging.getLogger("byteps_py.worker")
_MOST_TAGS: Final = 1024
"""Of messages from one process to another in a group: each tag has tensors of its own in the session, for good."""


def create(options: Any, backend_options: object = None) -> BytePSProcessGroup:
    """Make the group that torch describes; all its members do so. Joins the job if the script has not.

    Args:
        options: torch's ``_DistributedBackendOptions``.
        backend_options: there are none.

    Raises:
        AgreementError: the sizes of the job and of the default group differ, or members are in different jobs.
        TransportTimeout: a member has not come within the group's timeout.
        BytePSError: as :func:`byteps_py.session.init`.
    """
    _session.init()
    session = _session.current()
    size = options.group_size
    if not options.global_ranks_in_group and size != session.size:
        raise AgreementError(
            f"torch.distributed has {size} processes, but this job of byteps_py has {session.size} workers: "
            "init_process_group() must be called by all of them; under torchrun DMLC_NUM_WORKER is the number of "
            "machines (--nnodes), and the other DMLC_* variables must be equal everywhere"
        )
    if session.size > 1:
        _warn_of_stalls(options.timeout.total_seconds())
    return BytePSProcessGroup(meet(options, session), options.timeout)


_warned: Final[set[tuple[float, float]]] = set()


def _warn_of_stalls(seconds: float) -> None:
    """Whoever gives a group more time than the session has for a tensor must hear which of the two counts."""
    limit = read(WorkerSettings).stall_timeout
    if limit and seconds > limit and (seconds, limit) not in _warned:
        _warned.add((seconds, limit))
        _log.warning(
            "a process group has a timeout of %g s, but a call that waits for BYTEPS_STALL_TIMEOUT=%g s ends the job: "
            "set that variable to more than %g on all workers, or to 0 for no limit",
            seconds,
            limit,
            seconds,
        )


class BytePSProcessGroup(dist.ProcessGroup):
    """See ``docs/torch-distributed.md``.  Any thread; members must make their calls in the same order.

    Args:
        circle: the members.
        timeout: for calls that have none of their own.
    """

    def __init__(self, circle: Circle, timeout: datetime.timedelta) -> None:
        super().__init__(circle.rank, circle.size)  # type: ignore[call-arg]  # the stubs know one of two ways
        self._circle = circle
        self._timeout = timeout
        self._name = circle.name
        self._description = ""
        self._lock = threading.Lock()
        self._pairs: dict[tuple[int, int, int], Circle] = {}

    def getBackendName(self) -> str:
        """What ``dist.get_backend()`` and messages of torch say."""
        return "byteps"

    def setGroupName(self, name: str) -> None:
        """torch gives a group its name; functional collectives and device meshes look for it."""
        self._name = name

    def getGroupName(self) -> str:
        """See :meth:`setGroupName`."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """What torch says of the group, in words."""
        self._description = description

    def getGroupDesc(self) -> str:
        """See :meth:`setGroupDesc`."""
        return self._description

    def allreduce(self, tensors: Any, opts: Any = None, timeout: datetime.timedelta | None = None) -> Work:
        """``dist.all_reduce``."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM if opts is None else opts)
        return collectives.all_reduce(self._circle, tensors, name_of(op), self._seconds(opts, timeout))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """``dist.all_reduce_coalesced``."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        """``dist.reduce``."""
        op = name_of(opts.reduceOp)
        return collectives.reduce(self._circle, _only(tensors), opts.rootRank, op, self._seconds(opts))

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        """``dist.broadcast``."""
        return collectives.broadcast(self._circle, tensors, opts.rootRank, self._seconds(opts))

    def allgather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """``dist.all_gather``."""
        return collectives.all_gather(self._circle, output_lists, inputs, self._seconds(opts))

    allgather_coalesced = allgather

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """``dist.all_gather_into_tensor``."""
        return collectives.all_gather(self._circle, [self._split(output)], [tensor], self._seconds(opts))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Several at once; functional collectives come this way, also for one."""
        parts = [self._split(each) for each in outputs]
        return collectives.all_gather(self._circle, parts, inputs, self._seconds(opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        """``dist.gather``."""
        outputs = output_lists[0] if output_lists else []
        return collectives.gather(self._circle, outputs, _only(inputs), opts.rootRank, self._seconds(opts))

    def scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:
        """``dist.scatter``."""
        inputs = input_lists[0] if input_lists else []
        return collectives.scatter(self._circle, _only(outputs), inputs, opts.rootRank, self._seconds(opts))

    def reduce_scatter(self, outputs: Tensors, input_lists: Sequence[Tensors], opts: Any) -> Work:
        """``dist.reduce_scatter``."""
        op = name_of(opts.reduceOp)
        return collectives.reduce_scatter(self._circle, outputs, input_lists, op, self._seconds(opts))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        """``dist.reduce_scatter_tensor``."""
        return self.reduce_scatter([output], [self._split(tensor)], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        """Several at once; functional collectives come this way, also for one."""
        parts = [self._split(each) for each in inputs]
        op = name_of(opts.reduceOp)
        return collectives.reduce_scatter(self._circle, outputs, parts, op, self._seconds(opts))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """``dist.all_to_all``."""
        return collectives.all_to_all(self._circle, outputs, inputs, self._seconds(opts))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """``dist.all_to_all_single``."""
        parts = self._split(output, output_splits), self._split(tensor, input_splits)
        even = not output_splits and not input_splits
        return collectives.all_to_all(self._circle, *parts, self._seconds(opts), even=even)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: datetime.timedelta | None = None) -> Work:
        """``dist.barrier``."""
        return collectives.barrier(self._circle, self._seconds(opts, timeout))

    def send(self, tensors: Tensors, destination: int, tag: int) -> Work:
        """``dist.send`` and ``isend``; done when the receiver has the tensor."""
        circle = self._pair(self._circle.rank, destination, tag)
        what = f"send to rank {destination}, tag {tag},"
        return collectives.pass_on(circle, _only(tensors), what, self._seconds(None))

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        """``dist.recv`` and ``irecv``."""
        circle = self._pair(source, self._circle.rank, tag)
        what = f"receive from rank {source}, tag {tag},"
        return collectives.pass_on(circle, _only(tensors), what, self._seconds(None), source)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        """``dist.recv`` without a source."""
        raise UnsupportedError("the backend byteps receives from a rank that is given: recv(tensor, src=...)")

    def shutdown(self) -> None:
        """``dist.destroy_process_group``; the session goes on."""
        self._circle.close()

    abort = shutdown

    def _seconds(self, opts: Any, timeout: datetime.timedelta | None = None) -> float:
        """How long a call may take. torch passes -1 ms for "as the group"."""
        own = timeout if timeout is not None else getattr(opts, "timeout", None)
        seconds: float = own.total_seconds() if own is not None else 0.0
        return seconds if seconds > 0 else self._timeout.total_seconds()

    def _split(self, tensor: torch.Tensor, splits: Sequence[int] = ()) -> Tensors:
        """One part for each member, along the first dimension; views."""
        size = self._circle.size
        if not tensor.is_contiguous():
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} cannot be cut into parts for "
                "the members of the process group: pass tensor.contiguous()"
            )
        if not splits:
            if tensor.numel() % size:
                raise ValueError(
                    f"a tensor of shape {tuple(tensor.shape)} cannot be cut into {size} equal parts, one for each "
                    "member of the process group"
                )
            return list(tensor.view(size, -1).unbind()) if tensor.numel() else [tensor.view(-1)] * size
        if len(splits) != size or sum(splits) != tensor.shape[0]:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} cannot be split into {list(splits)}: there must be {size} "
                "numbers that sum up to its first dimension"
            )
        return list(torch.split(tensor, list(splits)))

    def _pair(self, source: int, destination: int, tag: int) -> Circle:
        """The circle of two processes for messages of one direction and tag."""
        if not (0 <= source < self._circle.size and 0 <= destination < self._circle.size) or source == destination:
            raise ValueError(
                f"rank {source} cannot send to rank {destination}: there are ranks 0 to {self._circle.size - 1}, and "
                "none sends to itself"
            )
        with self._lock:
            found = self._pairs.get((source, destination, tag))
            if found is None:
                if sum(key[:2] == (source, destination) for key in self._pairs) >= _MOST_TAGS:
                    raise UnsupportedError(
                        f"messages from rank {source} to rank {destination} have had {_MOST_TAGS} tags, which is the "
                        f"most: tag {tag} would be one more; use the same tags again, or one for all"
                    )
                members = [self._circle.members[each] for each in (source, destination)]
                group = _session.current().form_group(members)
                rank = int(self._circle.rank == destination)
                found = self._circle.part(f"{members[0]}-{members[1]}.{tag}", members, rank, group)
                self._pairs[source, destination, tag] = found
        return found


def _only(items: Sequence[Any]) -> Any:
    if len(items) != 1:
        raise ValueError(f"the backend byteps takes one tensor per process, not {len(items)}")
    return items[0]
