"""A worker's outstanding requests: when to ask again.

Theory of operation
-------------------

Every push is answered twice: by an acceptance, soon, and by a result, when all workers have contributed, which may
take arbitrarily long without anything being wrong.  Each answer, and the push itself, may get lost.  So a request
without acceptance is asked about (with a PULL) after ``retry_after`` seconds, an accepted one after ``result_after``
seconds; each further question waits twice as long as the one before, up to ``longest``.  Whatever is the matter, the
answer to a PULL mends it: the result, an acceptance, or word that the contribution is missing, upon which the worker
pushes it again.

    state       event                       question is due                                     next state
    ----------  --------------------------  --------------------------------------------------  ----------
    --          sent                        ``retry_after`` later                               SENT
    SENT        due                         after twice the last wait, at most ``longest``      SENT
    SENT        accepted                    ``result_after`` later                              ACCEPTED
    ACCEPTED    due                         after twice the last wait, at most ``longest``      ACCEPTED
    any         sent (pushed again)         ``retry_after`` later                               SENT
    any         finished, dropped           never                                               --

Other events (an acceptance that is repeated, an older round) change nothing.

Deadlines are kept in a heap, whose entries are never later than the deadlines of their requests.  An entry whose
request is over stays there until it comes to the top, or until such entries are the majority; an entry whose request
has got a later deadline is moved when it comes to the top.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Delivery", "Question"]

_FEW = 64
"""So many stale entries in the heap are never worth rebuilding it."""


class Question(NamedTuple):
    """Ask ``server`` about this contribution with a PULL."""

    key: int
    round: int
    server: int


@dataclass(slots=True, eq=False)
class _Request:
    question: Question
    deadline: float
    wait: float
    accepted: bool = False
    outstanding: bool = True


class Delivery:
    """The outstanding requests of one worker, at most one per key.  Not thread-safe: one thread owns it.

    All times are in seconds; ``now`` is any clock that never runs backwards.

    Args:
        retry_after: from a push until its acceptance is asked for.
        result_after: from an acceptance until the result is asked for.
        longest: the longest wait between two questions about one request.

    Raises:
        ValueError: a time is not positive, or ``longest`` is shorter than another.
    """

    def __init__(self, retry_after: float = 1.0, result_after: float = 1.0, longest: float = 30.0) -> None:
        if not 0 < retry_after <= longest or not 0 < result_after <= longest:
            raise ValueError(
                f"waits must be positive and at most longest={longest} s: "
                f"retry_after={retry_after} s, result_after={result_after} s"
            )
        self._retry_after = retry_after
        self._result_after = result_after
        self._longest = longest
        self._requests: dict[int, _Request] = {}
        # The number makes entries with equal deadlines come out in the order in which they were sent.
        self._heap: list[tuple[float, int, _Request]] = []
        self._entries = 0

    def __len__(self) -> int:
        """Number of outstanding requests."""
        return len(self._requests)

    def sent(self, key: int, round: int, server: int, now: float) -> None:
        """A contribution was pushed, for the first time or again.  O(log n)."""
        self._put(_Request(Question(key, round, server), now + self._retry_after, self._retry_after))

    def accepted(self, key: int, round: int, now: float) -> None:
        """The server has the contribution.  O(1), and O(log n) after long waits."""
        request = self._requests.get(key)
        if request is None or request.question.round != round or request.accepted:
            return
        deadline = now + self._result_after
        if deadline < request.deadline:
            self._put(_Request(request.question, deadline, self._result_after, accepted=True))
            return
        request.accepted = True
        request.wait = self._result_after
        request.deadline = deadline

    def finished(self, key: int, round: int) -> None:
        """The result is here.  O(1)."""
        request = self._requests.get(key)
        if request is not None and request.question.round == round:
            self.dropped(key)

    def dropped(self, key: int) -> None:
        """Whatever is outstanding for ``key`` is no longer waited for.  O(1)."""
        request = self._requests.pop(key, None)
        if request is not None:
            request.outstanding = False

    def due(self, now: float) -> list[Question]:
        """What must be asked at ``now``, each with its next deadline set.  O(log n) per question."""
        questions: list[Question] = []
        while (request := self._first()) is not None and request.deadline <= now:
            questions.append(request.question)
            request.wait = min(2 * request.wait, self._longest)
            request.deadline = now + request.wait
        return questions

    def next_deadline(self) -> float | None:
        """When :meth:`due` will next have something to ask; None while nothing is outstanding.  O(1) amortised."""
        request = self._first()
        return None if request is None else request.deadline

    def _put(self, request: _Request) -> None:
        """Let ``request`` take the place of what was outstanding for its key."""
        self.dropped(request.question.key)
        self._requests[request.question.key] = request
        if len(self._heap) > 2 * len(self._requests) + _FEW:
            self._heap = [entry for entry in self._heap if entry[2].outstanding]
            heapq.heapify(self._heap)
        self._entries += 1
        heapq.heappush(self._heap, (request.deadline, self._entries, request))

    def _first(self) -> _Request | None:
        """The outstanding request with the earliest deadline; what stands in front of it is put in order."""
        while self._heap:
            deadline, number, request = self._heap[0]
            if not request.outstanding:
                heapq.heappop(self._heap)
            elif request.deadline > deadline:
                heapq.heapreplace(self._heap, (request.deadline, number, request))
            else:
                return request
        return None
