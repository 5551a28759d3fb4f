"""A parameter server for data-parallel training: workers push gradients, servers sum them, workers pull the sum.

::

    import byteps_py as bps

    bps.init()
    total = bps.push_pull(array, "name")

What is named here is loaded when it is first used, since the launcher, a part of this package, needs none of it.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.machinery import EXTENSION_SUFFIXES as _EXTENSION_SUFFIXES
from os import path as _path
from typing import TYPE_CHECKING
from warnings import warn as _warn

if TYPE_CHECKING:
    from byteps_py.errors import (
        AgreementError,
        BytePSError,
        JobAborted,
        JobRefused,
        KernelError,
        MembershipError,
        NotInitializedError,
        ParticipantLeft,
        ProtocolError,
        SettingsError,
        TransportError,
        TransportTimeout,
        UnsupportedError,
    )
    from byteps_py.objects import broadcast_object
    from byteps_py.operations import AVG, SUM, broadcast, declare, empty, poll, push_pull, push_pull_async, synchronize
    from byteps_py.rows import push_pull_rows, push_pull_rows_async
    from byteps_py.session import (
        barrier,
        get_pushpull_speed,
        init,
        is_initialized,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
        stats,
        step,
    )
    from byteps_py.suspension import resume, suspend

    __version__: str

__all__ = [
    "AVG",
    "SUM",
    "AgreementError",
    "BytePSError",
    "JobAborted",
    "JobRefused",
    "KernelError",
    "MembershipError",
    "NotInitializedError",
    "ParticipantLeft",
    "ProtocolError",
    "SettingsError",
    "TransportError",
    "TransportTimeout",
    "UnsupportedError",
    "__version__",
    "barrier",
    "broadcast",
    "broadcast_object",
    "declare",
    "empty",
    "get_pushpull_speed",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_rows",
    "push_pull_rows_async",
    "rank",
    "resume",
    "shutdown",
    "size",
    "stats",
    "step",
    "suspend",
    "synchronize",
]

_MODULES = {
    "broadcast_object": "objects",
    "resume": "suspension",
    "suspend": "suspension",
    **dict.fromkeys(
        ("AVG", "SUM", "broadcast", "declare", "empty", "poll", "push_pull", "push_pull_async", "synchronize"),
        "operations",
    ),
    **dict.fromkeys(("push_pull_rows", "push_pull_rows_async"), "rows"),
    **dict.fromkeys(
        (
            "barrier",
            "get_pushpull_speed",
            "init",
            "is_initialized",
            "local_rank",
            "local_size",
            "rank",
            "shutdown",
            "size",
            "stats",
            "step",
        ),
        "session",
    ),
}
"""Where a name of ``__all__`` comes from, if not from ``errors``."""


if not TYPE_CHECKING:  # a checker is to know that there are no other names

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "__version__":
            found: object = _import_module("byteps_py.version").package_version()
        else:
            found = getattr(_import_module(f"byteps_py.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_built() -> bool:
    name = _path.join(_path.dirname(__file__), "kernels", "_native")
    return any(_path.exists(f"{name}{suffix}") for suffix in _EXTENSION_SUFFIXES)


if not _is_built() and _import_module("byteps_py.settings").wants_native_kernels():
    # Not an error: a single process needs no kernels, and BYTEPS_KERNELS=reference needs no compiler.
    _warn(
        "this byteps_py is a source tree whose C extension was never built: run `pip install -e .` in it",
        RuntimeWarning,
        stacklevel=2,
    )
