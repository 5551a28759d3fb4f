"""What of a process lives on from one generation of its job to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from byteps_py.settings import WorkerSettings
from byteps_py.types import TensorSpec
from byteps_py.wire.control import ProcessInfo

__all__ = ["Lineage"]


class Lineage:
    """The sessions of a process that follow one another by ``suspend()`` and ``resume()``. Any thread.

    What plugins keep for longer than a session, they keep by this.

    Args:
        settings: those with which the process joined its job; None if it is a job of its own.

    Attributes:
        settings: as given.
        resumes: whether it has suspended a job before.
        scheduler: the process of the scheduler that the process had; None before the first ``suspend()``.
    """

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        self.settings = settings
        self.resumes = False
        self.scheduler: ProcessInfo | None = None
        self._followers: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._declared: dict[str, TensorSpec] = {}

    @property
    def counts_processes(self) -> bool:
        """Whether all workers run on one machine, so that a number of workers means processes, not machines."""
        return self.settings is not None and self.settings.num_worker == 1 and self.settings.local_size > 1

    def follow(self, method: Callable[[], None]) -> None:
        """Have a method called at the end of each ``resume()``, as long as its object lives. It must not wait for other
        workers, which may be elsewhere: those that have come by the resumption make their objects at their own time."""
        self._followers.append(weakref.WeakMethod(method))

    def call_followers(self) -> None:
        """The next generation has begun. In the order in which they were added."""
        self._followers = [each for each in self._followers if each() is not None]
        for each in list(self._followers):
            method = each()
            if method is not None:
                method()

    @property
    def declared(self) -> list[TensorSpec]:
        """What was declared, in the original order. Groups of workers end with their generation, and their tensors."""
        return list(self._declared.values())

    def note(self, specs: Iterable[TensorSpec]) -> None:
        """These have been declared."""
        for each in specs:
            if not each.group:
                self._declared.setdefault(each.name, each)
