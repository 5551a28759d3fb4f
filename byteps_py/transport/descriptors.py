"""The limit of open files, looked at before it is hit: libzmq ends the process when it cannot open its own.

What libzmq opens, as counted with 4.3.4 and 4.3.5:

=============================== ==========================================================
a context with its two threads  5 (an event and a poll descriptor each, and one event more)
each further I/O thread         2
each socket                     1
each listening address          1, and 1 more for a moment
each connection, either side    1
pyzmq's collector               7 (a context of its own and two sockets)
=============================== ==========================================================

What lanes need besides:

=============================== ==========================================================
all lanes of a process          5 (three poll descriptors, an event, the listening socket)
each lane, either side          1
each segment of the own arena   1, and 1 more for a moment
each segment of a peer          1, for a moment
=============================== ==========================================================

At the limit it would not accept connections either, but spin.  Nobody who listens knows for sure how many will come,
so the scheduler and the servers raise their soft limit to the hard one; a worker's process belongs to the user, whose
limit is left alone as long as it is enough.
"""

from __future__ import annotations

import errno
import os
import resource

from byteps_py.errors import TransportError

__all__ = ["CONNECTION", "LANES", "LISTENER", "SEGMENT", "context", "need", "raise_limit"]

LISTENER = 4
CONNECTION = 3
LANES = 5
SEGMENT = 4
_CONTEXT = 15
_IO_THREAD = 2
_MOST = 1 << 16


def context(io_threads: int = 1) -> int:
    """For a context, the collector, the event that wakes the owner, and what is opened for a moment to look around."""
    return _CONTEXT + _IO_THREAD * (io_threads - 1)


def need(count: int) -> None:
    """Make sure that ``count`` more files can be opened; raises the soft limit if that is enough.

    Raises:
        TransportError: the limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    used = _open_files(soft)
    if used + count <= soft:
        return
    if hard == resource.RLIM_INFINITY or used + count <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + count, hard))
        return
    raise TransportError(
        f"the limit of open files is too low: {used} are open, {count} more are needed, and `ulimit -n` is {hard}: "
        "raise it where this job is started"
    )


def raise_limit() -> None:
    """Raise the soft limit to what the largest job needs, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _open_files(most: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one of them is for looking
    except OSError as error:
        return most if error.errno == errno.EMFILE else 0
