"""What moving, summing and handling gradients costs a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT", "Costs"]


_LONGEST: Final = 3600.0


@dataclass(frozen=True)
class Costs:
    """What a prediction must know of the machines. The defaults are those of a server of our days, where nothing was
    measured; ``bps plan --measure`` measures them.

    Attributes:
        sum_rate: bytes per second of contributions that one core sums, float32.
        copy_rate: bytes per second that one core copies.
        wire_seconds: CPU seconds that a byte costs the process that sends or receives it over TCP, the system's part
            included.
        message_seconds: CPU seconds of one partition of one worker in each process that handles it, whatever its
            bytes: the push and its result.
    """

    sum_rate: float = 12e9
    copy_rate: float = 9e9
    wire_seconds: float = 0.35e-9
    message_seconds: float = 100e-6

    def __post_init__(self) -> None:
        for name in ("sum_rate", "copy_rate"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1 byte per second")
        for name in ("wire_seconds", "message_seconds"):
            if not 0 <= getattr(self, name) <= _LONGEST:
                raise ValueError(f"{name}={getattr(self, name)} must be a number of seconds from 0 to {_LONGEST:g}")


DEFAULT: Final = Costs()
"""Where nothing was measured."""
