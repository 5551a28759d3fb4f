"""How much may be on the way to a server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Window"]


@dataclass(slots=True)
class Window:
    """Bytes that may be on the way to one server without being accepted; several pipelines may share one.

    It may be widened at any time, which takes effect with the next event.
    """

    nbytes: int
