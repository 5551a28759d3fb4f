"""How the members of a new process group find each other, by torch's store.

Each writes which worker it is, under a key that groups of the same name before had not: what these have left in the
store must not meet this one.  With it goes which names of tensors it has in use, so that the group takes those that no
member has, and a program that makes groups over and over again does with a few.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from byteps_py.errors import AgreementError, TransportError, TransportTimeout
from byteps_py.session import Session
from byteps_py.torch.circle import Circle

__all__ = ["meet"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1
"""Seconds between two looks into the store."""
_WORD_SECONDS: Final = 10.0
"""The store goes with worker 0: so long the session has to tell why."""


class _Groups:
    """The groups that this process has made in one session. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worlds = 0
        self._made: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._circles: dict[tuple[int, int], Circle] = {}

    def turn(self, name: str, ranks: Sequence[int]) -> str:
        """Tells a group from those of the same name before. Default groups, which have no ``ranks``, are made by all
        workers, and torch counts its names from there; where they are another backend's, groups of the same ranks are
        made by the same workers."""
        with self._lock:
            if not ranks:
                self._worlds += 1
                self._made.clear()
            self._made[name, tuple(ranks)] += 1
            return ".".join(map(str, (self._worlds, self._made[name, tuple(ranks)], *ranks)))

    def slots(self) -> set[int]:
        """Numbers in names of tensors that are in use."""
        with self._lock:
            self._circles = {key: each for key, each in self._circles.items() if not each.is_free()}
            return {slot for _, slot in self._circles}

    def add(self, slot: int, members: Sequence[int], rank: int, group: int) -> Circle:
        made = Circle(f"{group}.{slot}", members, rank, group)
        with self._lock:
            if self._circles.setdefault((group, slot), made) is not made:
                raise AgreementError(
                    f"two threads have made process groups of the workers {sorted(members)} at once: make one after "
                    "the other"
                )
        return made


_groups: Final[weakref.WeakKeyDictionary[Session, _Groups]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


def meet(options: Any, session: Session) -> Circle:
    """The circle of the members of a group, all of which call this.

    Args:
        options: torch's ``_DistributedBackendOptions``.

    Raises:
        AgreementError: members are in different jobs.
        TransportTimeout: a member has not come within the group's timeout.
        BytePSError: the job has ended meanwhile.
    """
    with _lock:
        groups = _groups.setdefault(session, _Groups())
    rank, size = options.group_rank, options.group_size
    turn = groups.turn(options.group_id, options.global_ranks_in_group)
    used = groups.slots()
    until = time.monotonic() + options.timeout.total_seconds()
    mine = " ".join(map(str, [session.rank, session.size, *sorted(used)]))
    _ask(session, lambda: options.store.set(f"worker/{turn}/{rank}", mine))
    found: list[int] = []
    for member in range(size):
        text = _wait(session, options, f"worker/{turn}/{member}", member, until)
        worker, workers, *slots = map(int, text.split())
        if workers != session.size or worker in found:
            raise AgreementError(
                f"ranks of a process group are in different jobs of byteps_py: rank {member} is worker {worker} of "
                f"{workers}, rank {rank} is worker {session.rank} of {session.size}; all must have the same "
                "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, and run in one torch.distributed job"
            )
        found.append(worker)
        used.update(slots)
    slot = next(number for number in range(len(used) + 1) if number not in used)
    circle = groups.add(slot, found, rank, session.form_group(found))
    _see_that_all_have_met(circle, f"met.{options.group_id}.{turn}", until)
    return circle


def _see_that_all_have_met(circle: Circle, claim: str, until: float) -> None:
    """Rank 0, which has the store, must not end while others read it. ``claim`` is that of this very group: threads
    that make groups of the same members at once must not meet crosswise."""
    seconds = max(0.0, until - time.monotonic())
    try:
        circle.call("the creation of a process group", claim, lambda exchange: lambda: None, seconds).wait()
    except BaseException:
        circle.close()
        raise


def _wait(session: Session, options: Any, key: str, member: int, until: float) -> str:
    """What ``member`` has written. torch's own wait does not look at the session."""
    pause = _FIRST_PAUSE
    while not _ask(session, lambda: options.store.check([key])):
        session.declare(())  # raises what has ended the job
        left = until - time.monotonic()
        if left <= 0:
            raise TransportTimeout(
                f"rank {member} of a process group of {options.group_size} has not come within "
                f"{options.timeout.total_seconds():g} s: all members must create it"
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    found: bytes = _ask(session, lambda: options.store.get(key))
    return found.decode()


def _ask(session: Session, question: Any) -> Any:
    """Ask the store. Where it is gone, the session knows more in a moment."""
    try:
        return question()
    except RuntimeError as error:  # torch's errors of stores
        lost = error
    until = time.monotonic() + _WORD_SECONDS
    while time.monotonic() < until:
        session.declare(())
        time.sleep(_LONGEST_PAUSE)
    raise TransportError(f"the store of torch.distributed, which rank 0 has, cannot be reached: {lost}") from lost
