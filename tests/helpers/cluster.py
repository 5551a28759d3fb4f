"""A whole job inside the test process: scheduler, servers and workers as threads over one transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from byteps_py import kernels
from byteps_py.roles import scheduler, server
from byteps_py.roles.member import worker_identity
from byteps_py.roles.worker import Worker
from byteps_py.session import Session
from byteps_py.settings import SchedulerSettings, ServerSettings, WorkerSettings
from byteps_py.transport.loopback import LoopbackNetwork

T = TypeVar("T")


class Cluster:
    """A running job.

    Attributes:
        sessions: one per worker, by rank.
        statuses: exit status of each role that has ended, by name.
        aborts: what the workers' ``on_abort`` was called with.
        network: to disturb the traffic.
    """

    network: Any

    def __init__(
        self,
        workers: int,
        servers: int,
        settings: dict[str, Any],
        server_settings: dict[str, Any],
        network: Any,
        root_port: int,
        sizes: Sequence[int],
    ) -> None:
        self.network = network
        self.statuses: dict[str, int] = {}
        self.aborts: list[BaseException] = []
        self.sessions: list[Session] = []
        self._threads: list[threading.Thread] = []
        places = [(node, local, size) for node, size in enumerate(sizes) for local in range(size)]
        shared = {"num_worker": len(sizes), "num_server": servers, "root_uri": "127.0.0.1", "root_port": root_port}
        self._start("scheduler", lambda: scheduler.run(SchedulerSettings(**shared), self.network.endpoint(b"s")))
        for index in range(servers):
            endpoint = self.network.endpoint(b"server-connection-%d" % index)
            chosen = ServerSettings(**shared, node_host="127.0.0.1", **server_settings)
            self._start(f"server {index}", lambda e=endpoint, c=chosen: server.run(c, e))  # type: ignore[misc]
        with ThreadPoolExecutor(workers) as pool:
            chosen = {**shared, **settings}
            joined = list(pool.map(lambda index: self._join(index, places[index], chosen), range(workers)))
        self.sessions = sorted(joined, key=lambda session: session.rank)

    def _start(self, name: str, run: Callable[[], int]) -> None:
        def body() -> None:
            self.statuses[name] = run()

        self._threads.append(threading.Thread(target=body, name=name, daemon=True))
        self._threads[-1].start()

    def _join(self, index: int, place: tuple[int, int, int], settings: dict[str, Any]) -> Session:
        incarnation = 1000 + index
        endpoint = self.network.endpoint(worker_identity(incarnation))
        node, local_rank, local_size = place
        chosen = WorkerSettings(**settings, worker_id=node, local_rank=local_rank, local_size=local_size)
        worker = Worker(chosen, endpoint, incarnation, kernels.select("native"), self.aborts.append)
        welcome = worker.start()
        return Session(worker, welcome.rank, len(welcome.participants))

    def each(self, body: Callable[[Session], T]) -> list[T]:
        """Run ``body`` for all workers at once; results by rank. The first exception is raised."""
        with ThreadPoolExecutor(len(self.sessions)) as pool:
            return list(pool.map(body, self.sessions))

    def join(self, timeout: float = 10.0) -> None:
        """Wait until scheduler and servers have ended."""
        for each in self._threads:
            each.join(timeout)
            assert not each.is_alive(), f"{each.name} is still running"


@contextmanager
def cluster(
    workers: int = 2,
    servers: int = 1,
    *,
    sizes: Sequence[int] | None = None,
    server: dict[str, Any] | None = None,
    network: Any = None,
    root_port: int = 9,
    **settings: Any,
) -> Iterator[Cluster]:
    """A job of ``workers`` and ``servers``, left in order at the end; ``settings`` are fields of WorkerSettings.

    ``sizes`` are the numbers of workers on each node, by default one.

    ``network`` makes the endpoints, as LoopbackNetwork does, which is the default.
    """
    nodes = [1] * workers if sizes is None else sizes
    made = Cluster(workers, servers, settings, server or {}, network or LoopbackNetwork(), root_port, nodes)
    try:
        yield made
    finally:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(Session.close, made.sessions))
    made.join()
