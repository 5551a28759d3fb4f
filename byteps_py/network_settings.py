"""How the processes of a job reach each other (:mod:`byteps_py.transport` does it)."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_py.variables import boolean, choice, host, integer, port_range, text, variable

__all__ = ["MAX_CONNECTIONS", "NetworkSettings", "PlacementSettings", "TrafficSettings"]

MAX_CONNECTIONS = 16
"""Most connections between two processes."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """For every process of a distributed job."""

    transport: str = variable(
        "BYTEPS_TRANSPORT",
        choice("auto", "tcp", "shm"),
        "shared memory on a host: if possible, never, always; must be equal on servers and workers, or auto",
        "auto",
    )
    node_host: str | None = variable(
        "DMLC_NODE_HOST",
        host(),
        "own address that others connect to",
        None,
        "the one that routes to the scheduler",
    )
    interface: str | None = variable(
        "DMLC_INTERFACE",
        text("the name of a network interface"),
        "the interface whose address is the own one; DMLC_NODE_HOST goes before it",
        None,
    )
    port_range: tuple[int, int] | None = variable(
        "BYTEPS_PORT_RANGE", port_range(), "every port that is listened at lies in it", None, "any port"
    )


@dataclass(frozen=True, kw_only=True)
class TrafficSettings:
    """For those between whom tensors travel."""

    io_threads: int = variable(
        "BYTEPS_IO_THREADS", integer(1, 16), "threads of this process that move bytes to and from TCP connections", 1
    )


@dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """For who says which server sums what."""

    mixed_mode: bool = variable(
        "BYTEPS_ENABLE_MIXED_MODE",
        boolean(),
        "each server gets the share of the work that suits its machine: fewer bytes beside a worker; the scheduler "
        "logs shares that differ; 0: equal shares",
        True,
        "1",
    )
