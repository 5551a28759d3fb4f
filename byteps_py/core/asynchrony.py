"""Whether two processes of a job mean the same kind of training."""

from __future__ import annotations

from byteps_py.wire.control import Register

__all__ = ["trains_otherwise"]


def trains_otherwise(one: Register, other: Register) -> tuple[str, str, str] | None:
    """The variable of asynchronous training that differs between two workers or servers, and its value at each; None
    if they agree. The bound is compared as it was set, though it counts only where training is asynchronous."""
    if one.enable_async != other.enable_async:
        return "BYTEPS_ENABLE_ASYNC", str(int(one.enable_async)), str(int(other.enable_async))
    if one.async_max_staleness != other.async_max_staleness:
        return "BYTEPS_ASYNC_MAX_STALENESS", _value(one.async_max_staleness), _value(other.async_max_staleness)
    return None


def _value(bound: int | None) -> str:
    return "not set" if bound is None else str(bound)
