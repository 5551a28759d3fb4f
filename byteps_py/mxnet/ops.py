"""Push an array, pull the sum or the average over all workers into it.

Calls are matched by name, and calls of one name by their order; every worker must make them.  Functions may be called
from any thread.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any, Final

import numpy.typing as npt

from byteps_py import session as _session
from byteps_py.errors import AgreementError, UnsupportedError
from byteps_py.mxnet.arrays import spec_of
from byteps_py.mxnet.engine import engine
from byteps_py.mxnet.rows import is_rows, start_rows
from byteps_py.mxnet.work import Work
from byteps_py.operations import Numbering
from byteps_py.roles.lineage import Lineage
from byteps_py.roles.pending import Pending
from byteps_py.session import Session
from byteps_py.types import Operation, TensorSpec

__all__ = ["byteps_declare_tensor", "byteps_push_pull", "numbering", "start"]

_declared: Final[weakref.WeakKeyDictionary[Lineage, dict[str, TensorSpec | None]]] = weakref.WeakKeyDictionary()
numbering: Final = Numbering()
"""Of optimizers and trainers."""


def byteps_declare_tensor(name: str, **kwargs: Any) -> None:
    """Announce a name, which :func:`byteps_push_pull` insists on; a second time does nothing.

    Args:
        name: equal on all workers.
        kwargs: of BytePS, parameters of a compressor, such as ``byteps_compressor_type="onebit"``. None is supported.

    Raises:
        UnsupportedError: there are ``kwargs``, or ``name`` is no string.
        NotInitializedError: ``init()`` has not been called.
    """
    session = _session.current()
    engine.raise_failure()
    if not isinstance(name, str):
        raise UnsupportedError(f"a tensor's name must be a string, not {type(name).__name__}")
    if kwargs:
        raise UnsupportedError(
            f"tensor {name!r} cannot be declared with {', '.join(sorted(kwargs))}: gradients are not compressed, "
            "except to float16 by DistributedTrainer(..., compression_params={'fp16': True}); leave them out"
        )
    _declared.setdefault(session.lineage, {}).setdefault(name, None)


def byteps_push_pull(
    tensor: Any, version: int = 0, priority: int = 0, name: str | None = None, is_average: bool = True
) -> None:
    """Have ``tensor`` replaced by the sum over all workers, or the average; returns at once.

    The engine does it when ``tensor`` has been computed; what reads it later waits for the result.

    Args:
        tensor: a dense NDArray on the CPU, of any shape; float32, float64, float16, int8, uint8, int32 or int64. A
            slice along the first axis is replaced within the array that it is of; one along another axis is a copy of
            MXNet's. Or a row-sparse NDArray: its rows travel, and this call waits for the array and for the result.
        version: a step number; workers that meet with different ones get an AgreementError.
        priority: what is higher is sent earlier.
        name: one that was declared; equal on all workers.
        is_average: divide the sum by the number of workers (integers round down).

    Raises:
        ValueError: there is no ``name``, it was not declared, or ``version`` is no number from 0 to 2**64 - 1.
        UnsupportedError: (a TypeError) ``tensor`` is sparse (CSR), on a GPU, of another dtype, or no NDArray.
        AgreementError: the name had another dtype or shape before, in this process.
        NotInitializedError: ``init()`` has not been called.
        BytePSError: an earlier push has failed. What goes wrong after the call is raised by the next one, and, as
            MXNetError, where the array is read.
    """
    session = _session.current()
    if name is None:
        raise ValueError("byteps_push_pull needs a name: declare one by byteps_declare_tensor(), and pass name=...")
    if name not in _declared.get(session.lineage, {}):
        raise ValueError(f"tensor {name!r} was not declared: call byteps_declare_tensor({name!r}) before it is pushed")
    operation = Operation.AVERAGE if is_average else Operation.SUM
    if is_rows(tensor):
        start_rows(session, tensor, name, operation, priority=operator.index(priority), version=version).wait()
        return
    start(session, tensor, name, operation, priority=operator.index(priority), version=operator.index(version))


def start(
    session: Session,
    array: Any,
    name: str,
    operation: Operation,
    *,
    priority: int = 0,
    version: int = 0,
    root: int = 0,
    contributes: bool = True,
) -> Work:
    """Have the engine do ``operation`` on ``array``, in place; returns at once.

    Args:
        session: of the caller.
        array: an NDArray.
        name: declared by this call if it was not before.
        operation: as of :meth:`byteps_py.session.Session.submit`, as are ``priority`` and ``root``.
        version: the session's ``step``.
        contributes: whether the array counts; if not, it only receives.

    Raises:
        UnsupportedError: the array cannot be pushed.
        AgreementError: the name had another dtype or shape before.
        ValueError: ``version`` is too small or too large.
        BytePSError: an earlier work failed.
    """
    if not 0 <= version < 2**64:
        raise ValueError(f"version must be a number from 0 to 2**64 - 1, not {version}")
    spec = spec_of(name, array)
    names = _declared.setdefault(session.lineage, {})
    known = names.get(name)
    if known is None:
        known = names[name] = spec
    if known != spec:
        raise AgreementError(
            f"tensor {name!r} is {known.describe()} in this process and cannot become {spec.describe()}: "
            "give it another name"
        )

    def begin(memory: npt.NDArray[Any]) -> Pending:
        source = memory if contributes else None
        return session.submit(known, source, memory, operation, root=root, priority=priority, step=version)

    return engine.push(session, known, array, begin, priority)
