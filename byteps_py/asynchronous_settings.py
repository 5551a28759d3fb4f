"""Whether a job trains asynchronously, and how stale parameters may become (:mod:`byteps_py.core.parameters`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from byteps_py.variables import boolean, integer, variable

__all__ = ["AsynchronousSettings", "asynchronous_problems"]

_MOST = 10**9


@dataclass(frozen=True, kw_only=True)
class AsynchronousSettings:
    """For servers and workers, which are told at the start of a job where theirs differ."""

    enable_async: bool = variable(
        "BYTEPS_ENABLE_ASYNC",
        boolean(),
        "servers hold the parameters, and nobody waits for slower workers; must be equal on servers and workers",
        False,
        "0",
    )
    async_max_staleness: int | None = variable(
        "BYTEPS_ASYNC_MAX_STALENESS",
        integer(0, _MOST),
        "steps that a worker may be ahead of the slowest one (0: synchronous training); must be equal on servers and "
        "workers",
        None,
        "no limit",
    )

    @property
    def is_asynchronous(self) -> bool:
        """Whether the servers hold the parameters."""
        return self.enable_async and self.async_max_staleness != 0


def asynchronous_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Contradictions among values that are good by themselves."""
    bound = values.get("async_max_staleness")
    if bound and values.get("enable_async") is False:
        yield (
            f"BYTEPS_ASYNC_MAX_STALENESS={bound} is about asynchronous training: set BYTEPS_ENABLE_ASYNC=1 too, or "
            "unset it"
        )
    if values.get("enable_async") and bound != 0 and values.get("local_reduce") == "on":
        yield (
            "BYTEPS_LOCAL_REDUCE=on has workers of a machine wait for one another, which BYTEPS_ENABLE_ASYNC=1 spares "
            "them: unset it"
        )
