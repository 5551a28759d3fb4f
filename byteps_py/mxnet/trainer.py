"""gluon's Trainer, on gradients that are summed over all workers.

In :meth:`DistributedTrainer.step` each worker scales its gradients by ``1 / batch_size / size()`` and pushes them, and
the servers sum: the result is the mean over the joined batch.  So the optimizer's ``rescale_grad`` is what the user has
set, whatever the batch.

A gradient that no backward pass has written since the last step is *stale*.  Its worker contributes nothing; if no
other does either, the parameter is not updated, and where another does, it is updated everywhere.  So parameters stay
equal even where workers go through different branches.  In :meth:`DistributedTrainer.allreduce_grads` all gradients
count as they lie, stale or not, since the script may have written them itself.

With ``BYTEPS_ENABLE_ASYNC=1`` nothing of this travels: each worker scales its gradients by ``1 / batch_size`` and
updates its parameters by them, and what that has changed is added to the parameters that the servers hold.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import mxnet as mx

from byteps_py import session as _session
from byteps_py.errors import UnsupportedError
from byteps_py.mxnet.asynchronous import Differences
from byteps_py.mxnet.broadcast import check_contexts
from byteps_py.mxnet.compression import Compression, Compressor
from byteps_py.mxnet.engine import engine
from byteps_py.mxnet.ops import numbering, start
from byteps_py.mxnet.optimizer import DistributedOptimizer
from byteps_py.mxnet.rows import RowsWork, is_rows, start_rows
from byteps_py.mxnet.work import Work
from byteps_py.objects import check_root
from byteps_py.types import Operation

__all__ = ["DistributedTrainer"]

_TUNING: Final = frozenset({"k", "normalize", "partition", "scaling", "seed"})
"""Names in ``compression_params`` that mean nothing without a compressor. Scripts set them by options with defaults."""


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """Makes steps as :class:`mxnet.gluon.Trainer` does, with the gradients of all workers. Not thread-safe.

    The first step gives all workers the parameters of one of them, after the first forward pass; where that one must
    see equal parameters already, call :func:`~byteps_py.mxnet.broadcast.broadcast_parameters` before.

    Parameters are called ``parameter_<i>`` and gradients ``gradient_<i>``, ``i`` being the place in the list, or among
    the sorted names of a dict; priorities are ``-i``.  For the second trainer of a process it is ``parameter2_<i>``,
    and so on.

    Args:
        params: a ParameterDict, a dict or a list of gluon Parameters, each on one CPU context; equal on all workers.
        optimizer: a name, or an optimizer. Of a DistributedOptimizer only the one that it wraps is used.
        optimizer_params: for a name; ``rescale_grad`` is kept.
        root_rank: the worker whose parameters are taken.
        compression_params: None, or ``{"fp16": True}``: float32 and float64 gradients travel as float16. Of BytePS's
            others those are taken that ask for nothing: values that are empty, and what only tunes a compressor.

    Raises:
        UnsupportedError: a parameter is sparse, is on a GPU or on several contexts, its gradient is a CSR array, or the
            compression is another one.
        ValueError: there is no worker ``root_rank``, or ``params`` are no parameters.
        NotInitializedError: ``init()`` has not been called.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        root_rank: int = 0,
        compression_params: dict[str, Any] | None = None,
    ) -> None:
        session = _session.current()
        check_root(root_rank, session.size)
        self._compressor = _compressor(compression_params)
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer.wrapped
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        for each in self._params:
            _check_kind(each, self._compressor)
            check_contexts(each)
        self._root = root_rank
        self._number = numbering.next(session)
        self._differences = Differences(session, self._number, root_rank) if session.is_asynchronous else None
        if self._differences is not None and self._compressor is not Compression.none:
            raise UnsupportedError(
                "compression_params: with BYTEPS_ENABLE_ASYNC=1 no gradients travel, but differences of parameters, "
                "which are too small for 16 bits; leave it out"
            )
        self._alike_in = weakref.ref(session)
        self._stale: list[tuple[Any, Work | RowsWork]] = []

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients over all workers and update the parameters; waits for neither.

        Call it after ``backward()``, outside of ``record()``, on every worker.

        Args:
            batch_size: samples that this worker's gradients are sums over: the result is divided by that and by the
                number of workers. Equal on all workers; for unequal shares pass their mean.
            ignore_stale_grad: what was not written since the last step is not updated, unless another worker has
                contributed; only to know that, this waits.

        Raises:
            UserWarning: a gradient is stale, and ``ignore_stale_grad`` is not set.
            BytePSError: an earlier push has failed.
            DeferredInitializationError: a parameter is not initialized yet.
        """
        session = _session.current()
        self._prepare(session)
        self._check_and_rescale_grad(self._scale)
        self._exchange(batch_size, stale_count=False)
        self._update(ignore_stale_grad)
        session.mark_step(automatic=True)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the parameters after ``allreduce_grads()``, which has averaged; waits for nothing.

        Args:
            batch_size: samples that each worker's gradients are sums over: these are divided by it.
            ignore_stale_grad: what this worker's backward pass has not written since the last step is not updated.

        Raises:
            UserWarning: a gradient is stale, and ``ignore_stale_grad`` is not set.
            BytePSError: an earlier push has failed.
            DeferredInitializationError: a parameter is not initialized yet.
        """
        session = _session.current()
        engine.raise_failure()
        super().update(batch_size, ignore_stale_grad)
        session.mark_step(automatic=True)

    def _init_kvstore(self) -> None:
        self._kv_initialized = True

    def _init_params(self) -> None:
        session = _session.current()
        parameters: list[Any] = self._params_to_init
        arrays = [each.data() for each in parameters]
        for each, array in zip(parameters, arrays, strict=True):
            name = f"parameter{self._number}_{self._param2idx[each.name]}"
            contributes = session.rank == self._root
            start(session, array, name, Operation.BROADCAST, root=self._root, contributes=contributes)
        parameters.clear()

    def allreduce_grads(self) -> None:
        """Average the gradients over all workers, for ``update()``; waits for nothing."""
        self._follow(_session.current())
        super().allreduce_grads()

    def _follow(self, session: _session.Session) -> None:
        """After a resume() the first step gives all workers the same parameters, as that of a new trainer does."""
        if self._alike_in() is not session:
            self._alike_in = weakref.ref(session)
            self._params_to_init = list(self._params)

    def _prepare(self, session: _session.Session) -> None:
        engine.raise_failure()
        self._follow(session)
        if not self._kv_initialized:
            self._init_kvstore()
        if self._params_to_init:
            self._init_params()

    def _allreduce_grads(self) -> None:
        # allreduce_grads(): update(batch_size) divides later.
        engine.raise_failure()
        self._exchange(1, stale_count=True)

    def _exchange(self, batch_size: int, *, stale_count: bool) -> None:
        session = _session.current()
        self._stale = []
        if self._differences is not None:
            self._scale_own(batch_size)
            return
        rows: list[tuple[Any, RowsWork, bool]] = []
        for index, parameter in enumerate(self._params):
            if parameter.grad_req == "null":
                continue
            data, gradient = parameter.data(), parameter.grad()
            counts = stale_count or bool(data._fresh_grad)
            if counts:
                gradient *= 1.0 / batch_size / session.size
            name = f"gradient{self._number}_{index}"
            if is_rows(gradient):
                some = start_rows(session, gradient, name, Operation.SUM, priority=-index, contributes=counts)
                rows.append((data, some, counts))
                continue
            compressed, context = self._compressor.compress(gradient)
            work = start(session, compressed, name, Operation.SUM, priority=-index, contributes=counts)
            if compressed is not gradient:
                gradient[:] = self._compressor.decompress(compressed, context)
            if not counts:
                self._stale.append((data, work))
        for data, some, counts in rows:
            some.wait()
            if not counts:
                self._stale.append((data, some))

    def _scale_own(self, batch_size: int) -> None:
        for parameter in self._params:
            if batch_size != 1 and parameter.grad_req != "null" and parameter.data()._fresh_grad:
                gradient = parameter.grad()
                gradient *= 1.0 / batch_size

    def _update_alone(self, differences: Differences, ignore_stale_grad: bool) -> None:
        """By this worker's gradients; the difference goes to the servers, and what they hold then comes back."""
        trained = [(index, each) for index, each in enumerate(self._params) if each.grad_req != "null"]
        indices = [index for index, _ in trained]
        weights = [each.data() for _, each in trained]
        counts = [bool(each._fresh_grad) for each in weights]
        copies = differences.before(indices, weights, has_masters=bool(self._optimizer.multi_precision))
        super()._update(ignore_stale_grad)
        differences.after(indices, weights, copies, counts)

    def _update(self, ignore_stale_grad: bool = False) -> None:
        if self._differences is not None:
            self._update_alone(self._differences, ignore_stale_grad)
            return
        stale, self._stale = self._stale, []
        if ignore_stale_grad:
            for data, work in stale:
                if work.wait():
                    data._fresh_grad = True
        super()._update(ignore_stale_grad)


def _check_kind(parameter: Any, compressor: Compressor) -> None:
    kind = parameter._stype
    if kind != "default":
        raise UnsupportedError(
            f"parameter {parameter.name!r} is sparse ({kind}), and only dense ones are updated: make it without stype"
        )
    if parameter._grad_stype not in ("default", "row_sparse"):
        raise UnsupportedError(
            f"the gradient of parameter {parameter.name!r} is sparse ({parameter._grad_stype}), and only dense and "
            "row-sparse ones are summed: make it without grad_stype"
        )
    if parameter._grad_stype == "row_sparse" and compressor is not Compression.none:
        raise UnsupportedError(
            f"the gradient of parameter {parameter.name!r} is row-sparse, and rows are not compressed here: leave "
            "compression_params out, or make the layer without sparse_grad=True"
        )


def _compressor(parameters: dict[str, Any] | None) -> Compressor:
    wanted = {name: value for name, value in (parameters or {}).items() if value}
    fp16 = wanted.pop("fp16", False)
    if wanted.keys() - _TUNING:
        raise UnsupportedError(
            f"compression_params has {', '.join(map(repr, sorted(wanted)))}: gradients are not compressed, except to "
            "float16 by {'fp16': True}"
        )
    return Compression.fp16 if fp16 else Compression.none
