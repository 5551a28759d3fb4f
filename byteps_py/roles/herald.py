"""Speaks for a launcher at the scheduler: which of its workers live, and which processes have ended.

``python -m byteps_py.roles.herald`` is what ``bpslaunch`` starts for that (:mod:`byteps_py.launcher.herald` is its
handle), with the environment of one of its processes.  It reads facts from standard input, one on a line::

    vouch RANK PID          the worker with this local rank lives
    ended PID RANK STATUS   this process has ended (RANK is - if it is no worker, STATUS -N for signal N)

It connects when there is something to say, waits for a scheduler that is not there yet, and repeats itself until it is
answered.  At the end of its input it ends: at once if all was answered, or two seconds later.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from byteps_py.errors import BytePSError, RemoteProtocolError
from byteps_py.roles.member import SCHEDULER
from byteps_py.roles.process import describe_process
from byteps_py.settings import WorkerSettings, read
from byteps_py.transport.base import Endpoint, tcp_address
from byteps_py.transport.zmq import ZmqEndpoint
from byteps_py.wire.control import (
    MAX_CONTROL_BYTES,
    Abort,
    Child,
    ChildEnded,
    ControlMessage,
    Finished,
    HeartbeatReply,
    ProcessInfo,
    Refused,
    Vouch,
    Vouched,
    decode_control,
    encode_control,
)

__all__ = ["JOB_ENDED", "SETTINGS_DIFFER", "Herald", "main"]

JOB_ENDED: Final = 3
"""Exit status if the job has ended while workers of this launch had not joined: they would wait in vain."""
SETTINGS_DIFFER: Final = 4
"""The same, because of settings that do not agree."""
LAST_SECONDS: Final = 2.0
"""How long to try after the launcher has said all: a scheduler that is gone does not matter."""
REPEAT_SECONDS: Final = 1.0


class Herald:
    """Says to the scheduler what it is told. Belongs to one thread.

    Args:
        settings: where the scheduler is, and which job, launch and machine this is.
        endpoint: not yet connected; closed by the caller.

    Attributes:
        verdict: why the job is over for the workers that have not joined, once the scheduler has said so.
        status: the exit status that tells the launcher so.
    """

    def __init__(self, settings: WorkerSettings, endpoint: Endpoint) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._is_connected = False
        self._children: dict[int, ProcessInfo] = {}
        self._vouching = False
        self._vouch_due = self._report_due = 0.0
        self._reports: list[ChildEnded] = []
        self._unanswered: deque[ChildEnded] = deque()  # in the order in which they were sent, repetitions too
        self._is_failing = False
        self._joined: set[int] = set()
        self.verdict: str | None = None
        self.status = JOB_ENDED

    @property
    def is_answered(self) -> bool:
        """Whether the scheduler has heard of every end."""
        return not self._reports

    def hear(self, now: float, line: str) -> None:
        """Take a line of the launcher; one that cannot be understood is passed over."""
        try:
            match line.split():
                case ["vouch", rank, pid]:
                    self._vouch(int(rank), int(pid))
                case ["ended", pid, rank, status]:
                    self._ended(now, int(pid), None if rank == "-" else int(rank), int(status))
        except ValueError:
            return

    def speak(self, now: float) -> float | None:
        """Say what is due; returns the seconds until there is something to say again, None if there is nothing."""
        if self._reports and now >= self._report_due:
            self._report_due = now + REPEAT_SECONDS
            for report in self._reports:
                self._send(report)
                self._unanswered.append(report)
        if self._vouching and now >= self._vouch_due:
            self._vouch_due = now + REPEAT_SECONDS
            settings = self._settings
            children = tuple(Child(rank, process) for rank, process in sorted(self._children.items()))
            size = max(settings.local_size, *(child.local_rank + 1 for child in children))
            self._send(Vouch(settings.job_id, settings.launch_id, settings.worker_id, size, children))
        return REPEAT_SECONDS if self._reports or self._vouching else None

    def answered(self, message: ControlMessage) -> None:
        """Take a message of the scheduler."""
        if isinstance(message, HeartbeatReply):
            # It does not say to what, but there are no more answers than questions, and they come in order.
            answered = self._unanswered.popleft() if self._unanswered else None
            self._reports = [each for each in self._reports if each is not answered]
        elif isinstance(message, Vouched):
            self._joined.update(message.joined)
            self._vouching = self._vouching and not self._joined.issuperset(self._children)
        elif isinstance(message, (Abort, Refused, Finished)):
            self._reports.clear()
            # The launcher, which has reported a failure, ends the launch itself.
            if self._vouching and not self._is_failing:
                self.verdict = "its work is done" if isinstance(message, Finished) else message.reason
                if not isinstance(message, Finished) and message.settings:
                    self.status = SETTINGS_DIFFER
            self._vouching = False

    def _vouch(self, local_rank: int, pid: int) -> None:
        known = self._children.get(local_rank)
        if known is None or known.pid != pid:
            self._children[local_rank] = describe_process(pid)
            self._joined.discard(local_rank)
            self._vouching = True
            self._vouch_due = 0.0

    def _ended(self, now: float, pid: int, local_rank: int | None, status: int) -> None:
        process = self._children.pop(-1 if local_rank is None else local_rank, None)
        if process is None or process.pid != pid:
            process = describe_process(pid)
        self._vouching = self._vouching and bool(self._children)
        self._is_failing = self._is_failing or status != 0
        settings = self._settings
        has_joined = self._joined.issuperset(range(settings.local_size) if local_rank is None else (local_rank,))
        place = (settings.launch_id, settings.worker_id, local_rank, settings.local_size)
        self._reports.append(ChildEnded(settings.job_id, process, status, *place, joined=has_joined))
        self._report_due = now

    def _send(self, message: ControlMessage) -> None:
        if not self._is_connected:
            self._endpoint.connect(SCHEDULER, tcp_address(self._settings.root_uri, self._settings.root_port))
            self._is_connected = True
        self._endpoint.send(SCHEDULER, [encode_control(message)])


class _Ears:
    """Reads lines on a thread of its own, and wakes the endpoint for each."""

    def __init__(self, lines: Iterable[str], endpoint: Endpoint) -> None:
        self.lines: deque[str] = deque()
        self.closed = False
        self._source = lines
        self._endpoint = endpoint
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._source:
            self.lines.append(line)
            self._endpoint.wake()
        self.closed = True
        self._endpoint.wake()


def run(herald: Herald, endpoint: Endpoint, lines: Iterable[str], timeout: float = LAST_SECONDS) -> int:
    """Pass on ``lines`` until they end and all is answered; returns the exit status.

    Args:
        herald: speaks over ``endpoint``.
        endpoint: closed by the caller.
        lines: of the launcher.
        timeout: seconds, from the last line, after which an answer is not waited for any more.
    """
    ears = _Ears(lines, endpoint)
    deadline: float | None = None
    while herald.verdict is None:
        closed = ears.closed  # before the lines are looked at: none can come after this
        now = time.monotonic()
        while ears.lines:
            herald.hear(now, ears.lines.popleft())
        wait = herald.speak(now)
        if closed:
            deadline = deadline or now + timeout
            if herald.is_answered or now >= deadline:
                return 0
            wait = min(REPEAT_SECONDS, deadline - now)
        for message in endpoint.receive(wait):
            if message.peer == SCHEDULER and len(message.frames) == 1:
                try:
                    herald.answered(decode_control(message.frames[0]))
                except RemoteProtocolError:
                    continue  # something else listens there: as good as no answer
    return herald.status


def main() -> int:
    """Serve the launcher whose pipe is standard input; settings come from the environment.

    Returns:
        0; :data:`JOB_ENDED` or :data:`SETTINGS_DIFFER` after a line on standard error that says why; or 1 if nothing
        can be said.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the input is what ends it
    logging.getLogger("byteps_py").setLevel(logging.CRITICAL)  # what cannot be reached, the workers name
    try:
        settings = read(WorkerSettings)
        endpoint = ZmqEndpoint(b"launcher-%d-%s" % (os.getpid(), secrets.token_hex(8).encode()), MAX_CONTROL_BYTES)
        herald = Herald(settings, endpoint)
        try:
            status = run(herald, endpoint, sys.stdin)
        finally:
            endpoint.close()
    except BytePSError:
        return 1  # the processes of the launch have the same settings, and say what is wrong with them
    if herald.verdict is not None:
        place = f"{settings.root_uri}:{settings.root_port}"
        print(f"bpslaunch: the scheduler at {place} says: {herald.verdict}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    # A thread may still read standard input, which the interpreter could not close in an orderly end.
    os._exit(main())
