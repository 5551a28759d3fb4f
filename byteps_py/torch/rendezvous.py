"""How ``torch.distributed`` finds the workers of a job of byteps_py, and how its backend is made known.

torch wants a store, a rank and a size, and takes them from ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
``MASTER_PORT`` by default (``env://``).  ``bpslaunch`` sets none of them.  Where not all are set, the session knows
rank and size, worker 0 makes the store, and a broadcast tells the others where it is.
"""

from __future__ import annotations

import datetime
import logging
import time
import urllib.parse
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch.distributed

from byteps_py import session as _session
from byteps_py.errors import AgreementError, TransportError, TransportTimeout
from byteps_py.known_names import foreign_launch
from byteps_py.roles.address import own_address
from byteps_py.roles.pending import is_done_by
from byteps_py.settings import WorkerSettings, environment, read
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["register"]

_log = logging.getLogger("byteps_py.worker")
dist: Final[Any] = torch.distributed
"""Its stubs leave out what not every build has."""

_DEFAULT_TIMEOUT: Final = datetime.timedelta(minutes=30)
"""As torch's."""
_RANKS: Final = ("RANK", "WORLD_SIZE")
_PLACE: Final = ("MASTER_ADDR", "MASTER_PORT")
_PLACE_BYTES: Final = 512
_told: Final[dict[str, str]] = {}
"""The variables that this process has set itself."""

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
        found = {name for name in _RANKS + _PLACE if environ.get(name) and environ[name] != _told.get(name)}
        asked = {name.upper() for name in _asked(url)}
        if _session.is_initialized() or environ.get("DMLC_ROLE", "").strip():
            # Without a rank the variables are not meant for this process: somebody has exported a place for other jobs.
            is_told_all = found >= set(_PLACE) and found | asked >= set(_RANKS)
            return by_environment(url, **arguments) if is_told_all else _by_session(url, **arguments)
        if found or foreign_launch(environ) is not None:
            return by_environment(url, **arguments)  # which says what is missing
        return _by_session(url, **arguments)

    return handler


def _asked(url: str) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(urllib.parse.urlparse(url).query))


def _by_session(url: str, timeout: datetime.timedelta = _DEFAULT_TIMEOUT, **_: Any) -> Iterator[Found]:
    """The handler of ``byteps://``; joins the job if the script has not."""
    _session.init()
    session = _session.current()
    asked = _asked(url)
    size, rank = int(asked.get("world_size", session.size)), int(asked.get("rank", session.rank))
    if size != session.size:
        raise AgreementError(
            f"init_process_group(world_size={size}): this job of byteps_py has {session.size} workers; leave rank and "
            "world_size away"
        )
    store = dist.HashStore() if size == 1 else _Meeting.of(session, timeout).wait(timeout)
    _tell(session, rank)
    yield store, rank, size
    raise RuntimeError("byteps:// gives the members of a process group once: call init_process_group() again")


def _tell(session: _session.Session, rank: int) -> None:
    """For scripts that look for what torchrun sets. What is set already and wrong, as by a wrapper, or by this function
    for a group before, would have a sampler take the data of another worker."""
    environ = environment()
    words = {"RANK": str(rank), "WORLD_SIZE": str(session.size)}
    for name, value in words.items():
        before = environ.get(name)
        if before not in (None, "", value, _told.get(name)):
            _log.warning("%s=%s is set, but %s is %s in this job: it is set to that", name, before, name, value)
        environ[name] = _told[name] = value
    environ.setdefault("LOCAL_RANK", str(session.local_rank))
    environ.setdefault("LOCAL_WORLD_SIZE", str(session.local_size))


class _Meeting:
    """Worker 0 makes the store and tells the others where. One that was not there in time is waited for again by the
    next one of this session, since what was submitted is still under way."""

    _late: Final[weakref.WeakKeyDictionary[_session.Session, _Meeting]] = weakref.WeakKeyDictionary()

    def __init__(self, session: _session.Session, timeout: datetime.timedelta) -> None:
        self._session = weakref.ref(session)
        self._store: Any = None
        self._error: Exception | None = None
        self._place = np.zeros(_PLACE_BYTES, np.uint8)
        if session.rank == 0:
            try:
                self._store, text = _listen(timeout)
            except Exception as error:  # the others wait already: they must hear of it
                self._error, text = error, f"!{error}"
            data = text.encode(errors="replace")[:_PLACE_BYTES]
            self._place[: len(data)] = np.frombuffer(data, np.uint8)
        spec = TensorSpec("torch.rendezvous", DType.UINT8, (_PLACE_BYTES,))
        source, output = (self._place, None) if session.rank == 0 else (None, self._place)
        self._pending = session.submit(spec, source, output, Operation.BROADCAST)

    @classmethod
    def of(cls, session: _session.Session, timeout: datetime.timedelta) -> _Meeting:
        return cls._late.pop(session, None) or cls(session, timeout)

    def wait(self, timeout: datetime.timedelta) -> Any:
        """The store.

        Raises:
            TransportTimeout: not all workers have come.
            TransportError: worker 0 could not make it.
            BytePSError: the job has ended.
        """
        seconds = timeout.total_seconds()
        if not is_done_by(self._pending, time.monotonic() + seconds):
            session = self._session()
            if session is not None:
                self._late[session] = self
            raise TransportTimeout(
                f"init_process_group(): not all workers of the job have come within {seconds:g} s: all must call it; "
                "see their output, and init_process_group(timeout=...) for a longer time"
            )
        self._pending.wait()
        if self._error is not None:
            raise self._error
        if self._store is None:
            text = self._place.tobytes().rstrip(b"\0").decode(errors="replace")
            if text.startswith("!"):
                raise TransportError(f"worker 0 could not make the store of torch.distributed: {text[1:]}")
            host, _, port = text.rpartition(" ")
            self._store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)
        return self._store


def _listen(timeout: datetime.timedelta) -> tuple[Any, str]:
    """A store at a port that is free, and where others reach it: host and port."""
    settings = read(WorkerSettings)
    host = own_address(settings, _log).host
    ports = range(1) if settings.port_range is None else range(settings.port_range[0], settings.port_range[1] + 1)
    for port in ports:
        try:
            store = dist.TCPStore(host, port, is_master=True, timeout=timeout, wait_for_workers=False)
        except RuntimeError as error:  # torch's error of a port in use
            problem = error
        else:
            return store, f"{host} {store.port}"
    raise TransportError(f"no port of {ports[0]}-{ports[-1]} is free for the store of torch.distributed: {problem}")
