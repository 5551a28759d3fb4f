"""How much may be on the way to a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Window"]

_DEFAULT_CREDIT: Final = 4


@dataclass(slots=True)
class Window:
    """Bytes that may be on the way to one server without being accepted; several pipelines may share one.

    Attributes:
        nbytes: the bytes. They may grow at any time, which takes effect with the next event.
        credit: how many partitions the user wants it to hold; 0: the scheduler chooses.
        servers: how many there are to push to.
    """

    nbytes: int
    credit: int = 0
    servers: int = 1

    def widen(self, partition_bytes: int, window_bytes: int) -> None:
        """Partitions are as large as this, and windows should be; 0 where the scheduler has chosen none."""
        if self.credit or not window_bytes:
            window_bytes = (self.credit or max(_DEFAULT_CREDIT, self.servers)) * partition_bytes
        self.nbytes = max(self.nbytes, window_bytes)
