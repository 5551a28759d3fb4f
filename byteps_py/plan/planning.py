"""From a job that is asked about to what is expected of each layout, and the sentences that say why one is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_py.plan.costs import DEFAULT, Costs
from byteps_py.plan.layouts import COLOCATED, MIXED, MOST_SERVERS, ONE_HOST, SEPARATE, Layout, Row, best, layouts
from byteps_py.plan.model import FILL, Prediction, predict
from byteps_py.plan.placement import place
from byteps_py.plan.units import say_count, say_seconds
from byteps_py.types import TensorSpec

__all__ = ["Job", "Plan", "gain", "make", "step_bounds"]

_NOTHING = 0.01
"""A part of the time that is not worth a word."""


@dataclass(frozen=True)
class Job:
    """What is asked about.

    Attributes:
        workers: machines with workers; with ``one_host`` worker processes.
        most: servers.
        model: what it is called, empty if only its size is known.
        nbytes: of all gradients together.
        specs: the tensors; None if only their size is known.
        link: bytes per second of each machine, each way; None with ``one_host``.
        local_size: worker processes of a machine.
        cores, server_cores: of a machine with workers, and of one with servers only.
        partition_bytes: None: what the scheduler chooses.
        costs: of the machines.
        origin: of the costs: ``assumed``, ``measured here``, ``from FILE``.
        compute_seconds: of a step without exchange; None if nothing is said.
    """

    workers: int
    most: int
    nbytes: int
    link: float | None
    one_host: bool = False
    model: str = ""
    specs: tuple[TensorSpec, ...] | None = None
    local_size: int = 1
    cores: int = 1
    server_cores: int = 1
    partition_bytes: int | None = None
    costs: Costs = DEFAULT
    origin: str = "assumed"
    compute_seconds: float | None = None


@dataclass(frozen=True)
class Plan:
    """The answer.

    Attributes:
        job: the question.
        rows: all layouts, by kind and number of servers.
        best: one of them.
        why: sentences.
    """

    job: Job
    rows: tuple[Row, ...]
    best: Row
    why: tuple[str, ...]


def make(job: Job) -> Plan:
    """Predict every layout. Equal jobs give equal plans.

    Raises:
        SettingsError: a job could not declare the tensors; see :func:`place`.
    """
    rows = tuple(Row(each, _predict(job, each)) for each in layouts(job.workers, job.most, one_host=job.one_host))
    chosen = best(rows)
    return Plan(job, rows, chosen, tuple(_why(job, rows, chosen)))


def gain(rows: Sequence[Row], row: Row) -> float | None:
    """The part of the time that is saved against the next smaller number of servers of the same kind; None for the
    smallest."""
    before = [each for each in rows if each.layout.kind == row.layout.kind and each.layout.servers < row.layout.servers]
    return 1 - row.prediction.seconds / before[-1].prediction.seconds if before else None


def step_bounds(job: Job, row: Row) -> tuple[float, float] | None:
    """Seconds of a whole step: if everything overlaps with computing, and if nothing does; None if it is not known."""
    if job.compute_seconds is None:
        return None
    return max(job.compute_seconds, row.prediction.seconds), job.compute_seconds + row.prediction.seconds


def _predict(job: Job, layout: Layout) -> Prediction:
    def predicted(**more: object) -> Prediction:
        return predict(
            layout.machines,
            job.nbytes,
            job.link,
            partition_bytes=job.partition_bytes,
            local_size=job.local_size,
            cores=job.cores,
            server_cores=job.server_cores,
            costs=job.costs,
            **more,  # type: ignore[arg-type]
        )

    found = predicted()
    if job.specs is None:
        return found
    return predicted(placed=place(job.specs, found.shares, found.partition_bytes))


def _why(job: Job, rows: Sequence[Row], chosen: Row) -> list[str]:
    found = [
        f"Best: {_describe(chosen.layout, job.workers)} (DMLC_NUM_SERVER={chosen.layout.servers}): "
        f"{say_seconds(chosen.prediction.seconds)} an exchange, limited by {chosen.prediction.limit}."
    ]
    if job.one_host:
        found[0] = found[0].replace("DMLC_NUM_SERVER=", "bpslaunch -s ")
    same = [each for each in rows if each.layout.kind == chosen.layout.kind]
    place_of = same.index(chosen)
    after = same[place_of + 1] if place_of + 1 < len(same) else None
    if after is None:
        further = min(2 * job.most, MOST_SERVERS)
        hint = f": --servers {further}" if further > job.most else ""
        found.append(
            f"More than {say_count(job.most, 'server')} {'was' if job.most == 1 else 'were'} not looked at{hint}."
        )
    else:
        found.append(_of_more(chosen, after))
    if place_of:
        before = same[place_of - 1]
        slower = before.prediction.seconds / chosen.prediction.seconds - 1
        if slower >= _NOTHING:
            found.append(f"With {before.layout.servers} it takes {slower:.0%} longer: {before.prediction.limit}.")
    without = [each for each in rows if not each.layout.extra]
    if chosen.layout.extra and without:
        other = best(without)
        slower = other.prediction.seconds / chosen.prediction.seconds - 1
        found.append(
            f"Without machines for servers: {_describe(other.layout, job.workers)}, "
            f"{say_seconds(other.prediction.seconds)}, {slower:.0%} longer."
        )
    idle = next((each.seconds for each in chosen.prediction.terms if each.name == FILL), 0.0)
    if not job.one_host and idle > 0.25 * chosen.prediction.seconds:
        found.append(
            f"{FILL.capitalize()} is {idle / chosen.prediction.seconds:.0%} of it: the model is small for such links."
        )
    return found


def _of_more(chosen: Row, after: Row) -> str:
    less = 1 - after.prediction.seconds / chosen.prediction.seconds
    number = after.layout.servers
    if less < _NOTHING:
        return f"With {number} servers nothing is gained: the limit is {after.prediction.limit}."
    return f"With {number} servers it takes {less:.0%} less, which is not worth more machines or processes."


def _describe(layout: Layout, workers: int) -> str:
    """A layout in words."""
    servers = say_count(layout.servers, "server")
    if layout.kind == ONE_HOST:
        return servers
    if layout.kind == SEPARATE:
        return (
            f"{servers}, each on a machine of its own" if layout.servers > 1 else f"{servers} on a machine of its own"
        )
    if layout.kind == MIXED:
        apart = "one on a machine of its own" if layout.extra == 1 else f"{layout.extra} on machines of their own"
        with_workers = f"each of {workers} worker machines" if workers > 1 else "the worker machine"
        return f"{servers}, one with {with_workers}, {apart}"
    if layout.kind == COLOCATED and layout.servers == workers:
        return f"{servers}, one on each worker machine" if workers > 1 else f"{servers} on the worker machine"
    return f"{servers} on the worker {'machine' if workers == 1 else 'machines'}"
