"""Tells the scheduler that a process of its job has ended: the launcher, which is its parent, knows it for certain.

``python -m byteps_py.roles.report PID STATUS`` is what the launcher starts for that, with the environment of the
process in question and before it reaps it, so that ``/proc`` still tells who it was.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
from collections.abc import Sequence

from byteps_py.errors import BytePSError
from byteps_py.roles.member import SCHEDULER
from byteps_py.roles.process import describe_process
from byteps_py.settings import JobSettings, read
from byteps_py.transport.base import tcp_address
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.wire.control import MAX_CONTROL_BYTES, ChildEnded, ProcessInfo, encode_control

__all__ = ["main", "report_child_ended"]

_log = logging.getLogger("byteps_py.launcher")

REPORT_SECONDS = 2.0
"""How long to try: a scheduler that is not there yet is waited for, one that is gone does not matter."""


def report_child_ended(
    settings: JobSettings, process: ProcessInfo, status: int, timeout: float = REPORT_SECONDS
) -> bool:
    """Send one :class:`~byteps_py.wire.control.ChildEnded` over a connection of its own.

    Args:
        settings: where the scheduler is, and the job id.
        process: who has ended.
        status: its exit status, -N for signal N.
        timeout: seconds, for everything but the look-up of the scheduler's name.

    Returns:
        Whether the scheduler answered within the time. It may have got the message without answering.

    Raises:
        TransportError: the scheduler's address is no good.
    """
    message = encode_control(ChildEnded(settings.job_id, process, status))
    deadline = time.monotonic() + timeout
    endpoint = ZmqEndpoint(b"launcher-%d-%s" % (os.getpid(), secrets.token_hex(8).encode()), MAX_CONTROL_BYTES)
    try:
        endpoint.connect(SCHEDULER, tcp_address(settings.root_uri, settings.root_port))
        endpoint.send(SCHEDULER, [message])
        while (left := deadline - time.monotonic()) > 0:
            if endpoint.receive(left):
                return True
        return False
    finally:
        endpoint.close()


def main(argv: Sequence[str]) -> int:
    """Report the process ``argv[0]`` with the status ``argv[1]``; settings come from the environment.

    Returns:
        0 if the scheduler answered, else 1. Nobody needs to know: without the report the loss is found out later.
    """
    pid, status = (int(word) for word in argv)
    try:
        return 0 if report_child_ended(read(JobSettings), describe_process(pid), status) else 1
    except BytePSError as error:
        _log.debug("the end of process %d was not reported: %s", pid, error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
