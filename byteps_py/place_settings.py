"""The environment variables that say which of the workers a process is."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_py.variables import integer, text, variable

__all__ = ["PlaceSettings"]


@dataclass(frozen=True, kw_only=True)
class PlaceSettings:
    """The place of a worker."""

    worker_id: int | None = variable(
        "DMLC_WORKER_ID", integer(0, 65534), "index of this worker machine", None, "by host and process"
    )
    local_rank: int = variable("BYTEPS_LOCAL_RANK", integer(0, 65534), "index of this process on its machine", 0)
    local_size: int = variable("BYTEPS_LOCAL_SIZE", integer(1, 65535), "worker processes on this machine", 1)
    launch_id: str = variable(
        "BYTEPS_LAUNCH_ID", text("a text"), "set by bpslaunch: equal for the processes it started together", ""
    )
    global_rank: int | None = variable(
        "BYTEPS_GLOBAL_RANK",
        integer(0, 2**31 - 1),
        "the rank that this worker wishes for, which no other may; resume() sets it",
        None,
        "by machine and local rank",
    )
