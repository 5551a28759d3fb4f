"""What a worker sets up when its job is complete: the exchange, and the engine that sums for others of its machine."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from byteps_py.kernels import Kernels
from byteps_py.roles.asynchrony import Asynchrony
from byteps_py.roles.engine import Engine
from byteps_py.roles.exchange import Exchange
from byteps_py.roles.neighbours import find_neighbours, ways_of
from byteps_py.roles.node import node_engine
from byteps_py.settings import WorkerSettings
from byteps_py.telemetry.metrics import SpeedRecord
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Endpoint
from byteps_py.wire.control import Welcome

__all__ = ["Begun", "make_exchange"]


class Begun(NamedTuple):
    """What there is from the start of the job on.

    Attributes:
        exchange: with the servers.
        engine: sums for other workers of this machine; None if nobody does that.
        ways: how many servers are reached through shared memory (``shm``) and over TCP (``tcp``).
        has_lanes: whether anybody, also a worker of this machine, is reached through shared memory.
    """

    exchange: Exchange
    engine: Engine | None
    ways: dict[str, int]
    has_lanes: bool


def make_exchange(
    endpoint: Endpoint,
    settings: WorkerSettings,
    welcome: Welcome,
    incarnation: int,
    kernels: Kernels,
    times: WorkerTimes | None,
    lock: threading.RLock,
    speed: SpeedRecord,
    asynchrony: Asynchrony,
) -> Begun:
    """Connect to all to whom this worker pushes; the arguments are those of the classes.

    Raises:
        SettingsError, TransportError: as :func:`byteps_py.roles.neighbours.connect`.
    """
    neighbours = find_neighbours(welcome, settings)
    engine = None
    if neighbours is not None:
        engine = node_engine(kernels, settings.omp_num_threads or 1, endpoint.wake, times)
    exchange = Exchange(
        endpoint,
        settings=settings,
        welcome=welcome,
        incarnation=incarnation,
        kernels=kernels,
        times=times,
        now=time.monotonic(),
        lock=lock,
        speed=speed,
        neighbours=neighbours,
        engine=engine,
        asynchrony=asynchrony,
    )
    ways, has_lanes = ways_of(endpoint, exchange.peers, len(welcome.servers))
    return Begun(exchange, engine, ways, has_lanes)
