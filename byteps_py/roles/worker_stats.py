"""What a worker has done so far, as :func:`byteps_py.session.stats` tells it."""

from __future__ import annotations

import time
from typing import Any

from byteps_py.roles.joining import AnyWorker
from byteps_py.types import Role

__all__ = ["worker_stats"]


def worker_stats(worker: AnyWorker, rank: int, steps: int, samples: int) -> dict[str, Any]:
    """All of it; the dicts are the caller's own. Any thread.

    Args:
        worker: of this process.
        rank: its place in the job.
        steps, samples: what the session has counted.
    """
    sent, received = worker.messages()
    return {
        "role": str(Role.WORKER),
        "rank": rank,
        "steps": steps,
        "samples": samples,
        "cpu_seconds": time.process_time(),
        "messages": {"sent": sent, "received": received},
        "transport": worker.ways(),
        "stages": {name: {"count": count, "seconds": seconds} for name, (count, seconds) in worker.stages().items()},
        "staleness": worker.asynchrony.report(),
    }
