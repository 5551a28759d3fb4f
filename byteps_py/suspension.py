"""Leave a job for a while, and join it again with other numbers of workers and servers.

Between the two this process has no session, but keeps what belongs to it: names, their order and numbers, and what
plugins have made.  See docs/elastic.md.  All functions may be called by any thread.
"""

from __future__ import annotations

import gc

from byteps_py.roles.joining import rejoin
from byteps_py.session import Session, holder

__all__ = ["resume", "suspend"]


def suspend() -> None:
    """Leave this generation of the job; blocks until every worker has called this, or :func:`shutdown`.

    Operations of this worker that are on their way end first.  Scheduler and servers live on, and wait for the next
    generation; servers forget all tensors.  From then on this process has no session until :func:`resume`.  A second
    call does nothing.

    Raises:
        NotInitializedError: there is no session.
        JobAborted, TransportTimeout: the job has ended, or workers have not come within ``BYTEPS_STALL_TIMEOUT``.
    """
    holder.suspend()
    # What is over refers to itself, and to memory that servers read: as much as a model, and more each time.  The first
    # of the two puts the parts of that memory back into it.
    for _ in range(2):
        gc.collect()


def resume(num_workers: int, num_servers: int, global_rank: int | None = None) -> None:
    """Join the next generation of the job that this process has suspended; blocks until it is complete.

    ``DMLC_NUM_WORKER``, ``DMLC_NUM_SERVER`` and ``BYTEPS_GLOBAL_RANK`` are set by that.  Tensors that were declared are
    declared again in the original order.  Workers that were in the job before have the lower ranks, unless one wishes
    for another.

    Args:
        num_workers: worker machines, as in ``DMLC_NUM_WORKER``; where several workers run on the only machine of a job,
            as under ``bpslaunch -n N``, worker processes. The same everywhere.
        num_servers: server processes, at least 1 in a job that has a scheduler; the same everywhere.
        global_rank: the rank that this worker wishes for, which no other may; None: any.

    Raises:
        NotInitializedError: :func:`suspend` was not called before.
        SettingsError: a number is out of range, or does not agree with that of another process; so is a rank that
            another worker wishes for as well, or that there is not.
        AgreementError: a name that was declared here has another dtype or shape on another worker by now.
        JobRefused, JobAborted, TransportError: the job cannot be joined; the message says why. It may be tried again.
    """
    session = holder.rejoin(lambda lineage: Session(*rejoin(lineage, num_workers, num_servers, global_rank)[:-1]))
    declared = session.lineage.declared
    if declared:
        session.declare(declared)
    session.lineage.call_followers()
