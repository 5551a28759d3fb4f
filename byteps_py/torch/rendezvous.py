"""How ``torch.distributed`` finds the workers of a job of byteps_py, and how its backend is made known.

torch wants a store, a rank and a size, and takes them from ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
``MASTER_PORT`` by default (``env://``).  ``bpslaunch`` sets none of them.  Where the last two are missing, the session
knows rank and size, worker 0 makes the store, and a broadcast tells the others where it is.
"""

from __future__ import annotations

import datetime
import logging
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch.distributed

from byteps_py import objects
from byteps_py import session as _session
from byteps_py.errors import AgreementError, TransportError
from byteps_py.roles.address import own_address
from byteps_py.settings import WorkerSettings, environment, read

__all__ = ["register"]

_log = logging.getLogger("byteps_py.worker")
dist: Final[Any] = torch.distributed
"""Its stubs leave out what not every build has."""

Found = tuple[Any, int, int]
Handler = Callable[..., Iterator[Found]]


def register() -> None:
    """Make the backend "byteps" and its rendezvous known to torch, once; nothing where torch is built without
    ``torch.distributed``."""
    if not dist.is_available() or hasattr(dist.Backend, "BYTEPS"):
        return
    from torch.distributed.rendezvous import _rendezvous_handlers

    dist.Backend.register_backend("byteps", _create, extended_api=True, devices=["cpu"])
    _rendezvous_handlers.setdefault("byteps", _by_session)
    by_environment: Handler | None = _rendezvous_handlers.get("env")
    if by_environment is not None:
        _rendezvous_handlers["env"] = _or_by_session(by_environment)


def _create(options: Any, backend_options: object = None) -> Any:
    from byteps_py.torch.process_group import create  # needs what not every build of torch has

    return create(options, backend_options)


def _or_by_session(by_environment: Handler) -> Handler:
    """A handler of ``env://`` that needs no variables in a job of byteps_py, and in a process that is alone."""

    def handler(url: str, **arguments: Any) -> Iterator[Found]:
        environ = environment()
        found = {name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if environ.get(name)}
        in_job = _session.is_initialized() or bool(environ.get("DMLC_ROLE", "").strip())
        if found & {"MASTER_ADDR", "MASTER_PORT"} or (found and not in_job):
            return by_environment(url, **arguments)
        return _by_session(url, **arguments)

    return handler


def _by_session(url: str, timeout: datetime.timedelta, **_: Any) -> Iterator[Found]:
    """The handler of ``byteps://``; joins the job if the script has not."""
    _session.init()
    session = _session.current()
    asked = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(url).query))
    size, rank = int(asked.get("world_size", session.size)), int(asked.get("rank", session.rank))
    if size != session.size:
        raise AgreementError(
            f"init_process_group(world_size={size}): this job of byteps_py has {session.size} workers; leave rank and "
            "world_size away"
        )
    store = dist.HashStore() if size == 1 else _make_store(session, timeout)
    _tell(session, rank)
    yield store, rank, size
    raise RuntimeError("byteps:// gives the members of a process group once: call init_process_group() again")


def _tell(session: _session.Session, rank: int) -> None:
    """For scripts that look for what torchrun sets."""
    words = {
        "RANK": rank,
        "WORLD_SIZE": session.size,
        "LOCAL_RANK": session.local_rank,
        "LOCAL_WORLD_SIZE": session.local_size,
    }
    for name, value in words.items():
        environment().setdefault(name, str(value))


def _make_store(session: _session.Session, timeout: datetime.timedelta) -> Any:
    """Worker 0 makes it, the others connect to it."""
    place: Any = None
    store = None
    if session.rank == 0:
        try:
            store, place = _listen(timeout)
        except Exception as error:  # the others wait already: they must hear of it
            objects.broadcast_object(str(error), 0, "torch.rendezvous")
            raise
    place = objects.broadcast_object(place, 0, "torch.rendezvous")
    if isinstance(place, str):
        raise TransportError(f"worker 0 could not make the store of torch.distributed: {place}")
    if store is None:
        host, port = place
        store = dist.TCPStore(host, port, is_master=False, timeout=timeout)
    return store


def _listen(timeout: datetime.timedelta) -> tuple[Any, tuple[str, int]]:
    """A store at a port that is free, and where others reach it."""
    settings = read(WorkerSettings)
    host = own_address(settings, _log).host
    ports = range(1) if settings.port_range is None else range(settings.port_range[0], settings.port_range[1] + 1)
    for port in ports:
        try:
            store = dist.TCPStore(host, port, is_master=True, timeout=timeout, wait_for_workers=False)
        except RuntimeError as error:  # torch's error of a port in use
            problem = error
        else:
            return store, (host, store.port)
    raise TransportError(f"no port of {ports[0]}-{ports[-1]} is free for the store of torch.distributed: {problem}")
