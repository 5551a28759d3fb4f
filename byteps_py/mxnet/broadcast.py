"""Make the workers start from the same parameters."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from byteps_py import session as _session
from byteps_py.errors import UnsupportedError
from byteps_py.mxnet.arrays import spec_of
from byteps_py.mxnet.engine import engine
from byteps_py.mxnet.ops import start
from byteps_py.objects import check_root
from byteps_py.session import Session
from byteps_py.types import Operation

__all__ = ["broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Copy arrays of worker ``root_rank`` into those of the other workers, in place. All workers must call it.

    It waits for them, but for parameters whose initialization is deferred until the first forward pass: these are
    broadcast when they get their values, so the workers must come to that with the same parameters.  Of several calls
    before that, with their names and roots, the last counts.

    Args:
        params: a ParameterDict (``net.collect_params()``), or a dict of names and of Parameters or NDArrays; equal
            names, dtypes and shapes on all workers.
        root_rank: the worker whose values are taken.

    Raises:
        TypeError: ``params`` is something else.
        UnsupportedError: an entry is no array that can be pushed, or a parameter that is not initialized; it is named.
        AgreementError: the workers disagree on a name's dtype or shape.
        ValueError: there is no such root.
        NotInitializedError: ``init()`` has not been called.
    """
    session = _session.current()
    check_root(root_rank, session.size)
    if not isinstance(params, Mapping | mx.gluon.ParameterDict):
        raise TypeError(
            f"broadcast_parameters takes a ParameterDict, such as net.collect_params(), or a dict, not {type(params)}"
        )
    engine.raise_failure()
    now: dict[str, Any] = {}
    deferred: dict[str, Any] = {}
    for name, each in sorted(params.items()):
        key = f"Parameter.{name}"
        if not isinstance(each, mx.gluon.Parameter):
            now[key] = each
        elif each._deferred_init:
            deferred[key] = each
        else:
            now[key] = data_of(each)
    session.declare([spec_of(name, each) for name, each in now.items()])
    for name, each in deferred.items():
        _broadcast_once_initialized(session, each, name, root_rank)
    for work in [_start(session, each, name, root_rank) for name, each in now.items()]:
        work.wait()


def data_of(parameter: Any) -> Any:
    """The array of a gluon Parameter.

    Raises:
        UnsupportedError: it has none yet, or several.
    """
    if parameter._data is None:
        raise UnsupportedError(f"parameter {parameter.name!r} is not initialized: call initialize() first")
    check_contexts(parameter)
    return parameter.data()


def check_contexts(parameter: Any) -> None:
    """A worker process has one copy of each parameter, in the memory of the host.

    Raises:
        UnsupportedError: it is on several contexts, or on a GPU.
    """
    contexts = parameter.list_ctx()
    if len(contexts) != 1 or contexts[0].device_type == "gpu":
        raise UnsupportedError(
            f"parameter {parameter.name!r} is on {', '.join(map(str, contexts))}, and a worker process has one "
            "context, a CPU: call initialize(ctx=mx.cpu()), and start more workers"
        )


def _start(session: Session, array: Any, name: str, root: int) -> Any:
    return start(session, array, name, Operation.BROADCAST, root=root, contributes=session.rank == root)


def _broadcast_once_initialized(session: Session, parameter: Any, name: str, root: int) -> None:
    check_contexts(parameter)

    def initialize_and_broadcast(self: Any, *arguments: Any, **options: Any) -> None:
        del self._init_impl  # and with it this function: from now on, that of the class
        self._init_impl(*arguments, **options)
        _start(session, self.data(), name, root)

    # A method, so that that of a copy initializes the copy. It takes the place of one that an earlier call has set.
    parameter._init_impl = types.MethodType(initialize_and_broadcast, parameter)
