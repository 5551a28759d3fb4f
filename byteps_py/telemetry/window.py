"""Which steps a trace has, and how much of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["MOST_SPANS", "Window"]

MOST_SPANS: Final = 400_000
"""So many are kept of one process; the file then has some 100 MB. Further ones are counted and left out."""


class Window:
    """Which steps are traced, how many spans there is room for, and whether all tensors have passed the last step.

    Args:
        first, last: steps, both traced.
        most: spans that are kept.
        on_over: called once when all tensors that were traced have passed the last step, by a thread that has more
            important things to do.

    Attributes:
        first, last: as given; once it is over there is no step between them.
        until: the last step, for ever.
        late: when a tensor is at this step, those that have not passed the last one are not waited for: they are
            pushed more seldom.
        dropped: spans that there was no room for.
    """

    __slots__ = ("_done", "_on_over", "_rejected", "_seen", "dropped", "first", "last", "late", "left", "until")

    def __init__(
        self, first: int, last: int, most: int = MOST_SPANS, on_over: Callable[[], None] | None = None
    ) -> None:
        self.first = first
        self.last = self.until = last
        self.late = 2 * last - first + 1
        self.left = most
        self.dropped = 0
        self._on_over = on_over
        self._seen: set[int] = set()
        self._done: set[int] = set()
        self._rejected: set[int] = set()

    def takes(self, spans: int) -> bool:
        """Whether there is room for so many more."""
        if self.left >= spans:
            self.left -= spans
            return True
        self.dropped += spans
        return False

    def seen(self, keys: Sequence[int]) -> None:
        """These are traced."""
        self._seen.update(keys)

    def done(self, keys: Sequence[int]) -> None:
        """These have passed the last step."""
        self._done.update(keys)
        if self._rejected:
            self._rejected.difference_update(keys)

    def rejected(self, key: int, round: int) -> None:
        """This is traced, and was rejected in ``round``: it stays so, and nobody waits for it."""
        self._seen.add(key)
        if round == self.until:
            self._done.add(key)
        elif key not in self._done:
            self._rejected.add(key)

    def check(self) -> None:
        """End the window if all have passed, those excepted that never will: not before one has, since others may
        come."""
        if self._done and len(self._done) + len(self._rejected) >= len(self._seen):
            self.end()

    def end(self) -> None:
        """End the window, if it has not ended, and say so."""
        if self.last:
            self.close()
            if self._on_over is not None:
                self._on_over()

    def close(self) -> None:
        """Nothing further is traced."""
        self.last = 0
