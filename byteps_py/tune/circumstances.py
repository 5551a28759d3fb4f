"""Whether a factor could matter at all, and whether the processes had what was asked for.  Pure.

A comparison of PASSIVE and ACTIVE among teams of one thread is a comparison of nothing with nothing, and a setting that
something else overruled was never tried.  Both are seen from what the processes say of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from byteps_py.tune.model import Design, Factor, ProcessUse, Run

__all__ = ["also_different", "cannot_matter", "inert", "not_as_asked", "partly_inert"]

_SERVERS = ("server",)
_WORKERS = ("worker",)
_BOTH = ("server", "worker")


@dataclass(frozen=True)
class _Subject:
    """What a factor sets: for whom, and which property of a process shows it (empty: how many processes there are)."""

    roles: tuple[str, ...]
    shown: str

    @property
    def who(self) -> str:
        return self.roles[0] if len(self.roles) == 1 else "process"


_SUBJECTS = {
    "omp-wait-policy": _Subject(_SERVERS, "policy"),
    "BYTEPS_SERVER_OMP_WAIT_POLICY": _Subject(_SERVERS, "policy"),
    "worker-omp-wait-policy": _Subject(_WORKERS, "policy"),
    "BYTEPS_WORKER_OMP_WAIT_POLICY": _Subject(_WORKERS, "policy"),
    "OMP_WAIT_POLICY": _Subject(_BOTH, "policy"),
    "omp-num-threads": _Subject(_SERVERS, "team"),
    "BYTEPS_SERVER_OMP_NUM_THREADS": _Subject(_SERVERS, "team"),
    "worker-omp-num-threads": _Subject(_WORKERS, "team"),
    "BYTEPS_WORKER_OMP_NUM_THREADS": _Subject(_WORKERS, "team"),
    "OMP_NUM_THREADS": _Subject(_BOTH, "team"),
    "BYTEPS_OMP_THREAD_PER_GPU": _Subject(_BOTH, "team"),
    "BYTEPS_SERVER_ENGINE_THREAD": _Subject(_SERVERS, "engines"),
    "num-servers": _Subject(_SERVERS, ""),
    "num-workers": _Subject(_WORKERS, ""),
}

_WORDS: dict[str, Callable[[str, str], str]] = {
    "policy": lambda who, value: f"every {who} had the wait policy {value}",
    "team": lambda who, value: f"every {who} had a team of {value}",
    "engines": lambda who, value: f"every {who} had {value} engine threads",
    "": lambda who, value: f"the number of {who}s was {value}",
}


def inert(factor: Factor, at_level: Sequence[Run], at_baseline: Sequence[Run]) -> str:
    """Why a factor cannot have made a difference between good runs at one level and at the baseline's.

    Returns:
        the reason; empty if it can have, or if the runs do not say.
    """
    subject = _SUBJECTS.get(factor.name)
    if subject is None or not _recorded(at_level) or not _recorded(at_baseline):
        return ""
    if reason := cannot_matter(factor, [*at_level, *at_baseline]):
        return reason
    first, second = _values(subject, at_level), _values(subject, at_baseline)
    if first == second and len(first) == 1 and first.isdisjoint({"", "0"}):
        return f"{_WORDS[subject.shown](subject.who, *first)} at both levels"
    return ""


def cannot_matter(factor: Factor, runs: Sequence[Run]) -> str:
    """Why it makes no difference in these runs which level a factor has; empty if it may, or if they do not say."""
    subject = _SUBJECTS.get(factor.name)
    if subject is None or not subject.shown or not _recorded(runs):
        return ""
    concerned = [each for run in runs for each in _concerned(subject, run)]
    if not concerned:
        return f"no {subject.who} takes part"
    # A worker's framework has teams of its own, of which no record tells.
    if subject.shown == "policy" and all(each.role == "server" and each.team == 1 for each in concerned):
        return f"the team of every {subject.who} is one thread, which never waits for another"
    return ""


def partly_inert(design: Design, by_cell: Sequence[Sequence[Run]]) -> Iterator[str]:
    """A sentence for each factor that cannot matter in some cells, while it may in others.

    Args:
        design: the experiment.
        by_cell: the good runs of each of its cells.
    """
    for factor in design.factors:
        reasons = [cannot_matter(factor, runs) for runs in by_cell]
        silent = [cell.label for cell, reason in zip(design.cells, reasons, strict=True) if reason]
        if silent and any(runs and not reason for runs, reason in zip(by_cell, reasons, strict=True)):
            yield f"{factor.name} cannot matter in {'; '.join(silent)}: {next(filter(None, reasons))}"


def also_different(design: Design, by_cell: Sequence[Sequence[Run]]) -> Iterator[str]:
    """A sentence for each property of servers and workers in which cells differ though no factor sets it.

    Cells that nobody planned, such as jobs started by hand, may differ in more than their names say.
    """
    set_by = [subject for each in design.factors if (subject := _SUBJECTS.get(each.name)) is not None]
    for role in _BOTH:
        for shown in ("team", "engines") if role == "server" else ("team",):
            if any(subject.shown == shown and role in subject.roles for subject in set_by):
                continue
            subject = _Subject((role,), shown)
            values = [_values(subject, runs) - {"0"} for runs in by_cell if _recorded(runs)]
            differing = {frozenset(each) for each in values if each}
            if len(differing) > 1:
                had = " and ".join(sorted(set().union(*differing)))
                yield f"the cells also differ in what no factor sets: {_FOUND[shown](role, had)}"


def not_as_asked(design: Design, by_cell: Sequence[Sequence[Run]]) -> Iterator[str]:
    """A sentence for each level that good runs did not have although it was asked for; arguments as above."""
    for index, factor in enumerate(design.factors):
        subject = _SUBJECTS.get(factor.name)
        if subject is None:
            continue
        for level in factor.levels:
            runs = [
                run
                for cell, runs in zip(design.cells, by_cell, strict=True)
                if cell.levels[index] == level
                for run in runs
                if _recorded([run])
            ]
            asked = level.strip().lower().partition(",")[0]
            fine = {asked, ""} | _UNKNOWN[subject.shown]
            other = [values for run in runs if (values := _values(subject, [run]) - fine)]
            if other and asked:
                had = " and ".join(sorted(set().union(*other)))
                yield (
                    f"{factor.name}={level} was asked for, but {_FOUND[subject.shown](subject.who, had)} in "
                    f"{len(other)} of {len(runs)} runs"
                )


_FOUND: dict[str, Callable[[str, str], str]] = {
    "policy": lambda who, had: f"the wait policy of a {who} was {had}",
    "team": lambda who, had: f"the team of a {who} was {had}",
    "engines": lambda who, had: f"the number of engine threads of a {who} was {had}",
    "": lambda who, had: f"the number of {who}s in the records was {had}",
}
_UNKNOWN: dict[str, set[str]] = {"policy": set(), "team": {"0"}, "engines": {"0"}, "": set()}


def _recorded(runs: Sequence[Run]) -> bool:
    return any(run.processes for run in runs)


def _concerned(subject: _Subject, run: Run) -> list[ProcessUse]:
    return [each for each in run.processes if each.role in subject.roles]


def _values(subject: _Subject, runs: Sequence[Run]) -> set[str]:
    """What the processes had, as text."""
    if not subject.shown:
        return {str(len(_concerned(subject, run))) for run in runs if run.processes}
    return {str(getattr(each, subject.shown)).lower() for run in runs for each in _concerned(subject, run)}
