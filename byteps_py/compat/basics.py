"""What every module of BytePS's offers: joining, leaving, and who one is."""

from __future__ import annotations

import logging

from byteps_py import session as _session
from byteps_py import suspension as _suspension
from byteps_py.suspension import suspend
from byteps_py.version import package_version

__all__ = ["BytePSBasics", "init", "resume", "suspend"]

_log = logging.getLogger("byteps_py.compat")


def init(lazy: bool = True) -> None:
    """:func:`byteps_py.init`, and a line at info that says what the script runs on.

    Raises:
        BytePSError: as :func:`byteps_py.init`.
    """
    before = _session.is_initialized()
    _session.init(lazy)
    if not before and _log.isEnabledFor(logging.INFO):
        _log.info("byteps resolves to byteps_py %s", package_version())


def resume(num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
    """:func:`byteps_py.resume`, but ``num_workers`` counts machines always, as in BytePS.

    So scripts may pass ``DMLC_NUM_WORKER``.  Where all workers of a job run on one machine, which ``byteps_py.resume``
    counts as processes, each machine stands for as many processes as ``bpslaunch -n N`` has started.  ``context`` is
    taken and not needed.

    Raises:
        BytePSError: as :func:`byteps_py.resume`.
    """
    del context
    lineage = _session.holder.suspended
    if lineage is not None and lineage.settings is not None and lineage.counts_processes:
        num_workers = int(num_workers) * lineage.settings.local_size
    _suspension.resume(num_workers, num_servers, global_rank)


class BytePSBasics:
    """The same as methods, as ``byteps.common`` has them.

    Args:
        pkg_path, args: where BytePS looks for its library; taken and not needed.
    """

    def __init__(self, pkg_path: object = None, *args: object) -> None:
        del pkg_path, args

    def init(self, lazy: bool = True) -> None:
        """See :func:`init`."""
        init(lazy)

    def shutdown(self) -> None:
        """See :func:`byteps_py.shutdown`."""
        _session.shutdown()

    def suspend(self) -> None:
        """See :func:`byteps_py.suspend`."""
        _suspension.suspend()

    def resume(self, num_workers: int, num_servers: int, global_rank: int, context: object = None) -> None:
        """See :func:`resume`."""
        resume(num_workers, num_servers, global_rank, context)

    def size(self) -> int:
        """See :func:`byteps_py.size`."""
        return _session.size()

    def local_size(self) -> int:
        """See :func:`byteps_py.local_size`."""
        return _session.local_size()

    def rank(self) -> int:
        """See :func:`byteps_py.rank`."""
        return _session.rank()

    def local_rank(self) -> int:
        """See :func:`byteps_py.local_rank`."""
        return _session.local_rank()

    def get_pushpull_speed(self) -> tuple[int, float]:
        """See :func:`byteps_py.get_pushpull_speed`."""
        return _session.get_pushpull_speed()
