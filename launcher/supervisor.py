"""Runs the processes of one launch: starts them, passes on their output and signals, and ends them together.

One thread, one loop, one call that waits: for output, for room to write it, for a signal (SIGCHLD among them, through
the wake-up descriptor), or for the next deadline.  So the launcher uses no CPU while nothing happens, and it may fork.
Decisions are made in :mod:`~byteps_py.launcher.ending`; this module performs them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from byteps_py.launcher.ending import Action, Ending, Report, Say, Signal
from byteps_py.launcher.guard import Guard
from byteps_py.launcher.output import Sink, Stream
from byteps_py.launcher.processes import (
    CANNOT_RUN,
    NOT_FOUND,
    Child,
    ProcessSpec,
    describe_status,
    exit_status,
    module_command,
)
from byteps_py.types import Role

__all__ = ["Supervisor"]

DRAIN_SECONDS = 1.0
"""How long output of a process's own children is awaited after its end."""
REPORT_SECONDS = 3.0
"""How long the report of a failure to a scheduler elsewhere may take; it is bounded itself, this is the second line."""

_ENDING_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_PASSED_SIGNALS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""Their meaning is between the user and the command; batch systems announce the end of the allotted time with one."""


class Supervisor:
    """Runs processes until all have ended. Used once, in the main thread.

    Args:
        specs: what to start, in this order.
        label_lines: whether each line of output starts with the label of its process.
        report_failures: whether there is a scheduler that has to learn of a failed process.
        log_dir: folder for a file with the output of each process; None for none.
        grace_period: seconds that SIGTERM leaves to the workers.
        herald_environment: where the scheduler is that learns from the start that the workers live; None for none.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        label_lines: bool,
        report_failures: bool,
        log_dir: Path | None = None,
        grace_period: float = 20.0,
        herald_environment: Mapping[str, str] | None = None,
    ) -> None:
        self._specs = specs
        self._label_lines = label_lines
        self._report_failures = report_failures
        self._stdout = Sink(1)
        self._stderr = Sink(2)
        self._children: list[Child] = []
        self._streams: dict[int, Stream] = {}
        self._ending = Ending([])
        self._guard: Guard | None = None
        self._reporter: subprocess.Popen[bytes] | None = None
        self._report_deadline = 0.0

    def say(self, text: str) -> None:
        """Print a line to standard error, between those of the processes."""
        self._stderr.put(self, b"", f"bpslaunch: {text}\n".encode(errors="surrogateescape"))
        self._stderr.flush()

    def run(self) -> int:
        """Start everything, wait for the end; returns the exit status. No process is left."""
        with _signals() as wakeup:
            self._start()
            while not self._finished():
                self._turn(wakeup)
            self._clean_up(wakeup)
        return self._ending.status

    def _start(self) -> None:
        problem: tuple[int, str] | None = None
        self._guard = Guard()
        # A single process whose lines need no label may have the terminal for itself.
        capture = self._label_lines or len(self._specs) > 1
        for spec in self._specs:
            try:
                child = Child(spec, self._guard, capture=capture)
            except OSError as error:
                status = NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else CANNOT_RUN
                problem = status, f"{spec.label} cannot be started: {spec.argv[0]!r}: {error.strerror}"
                break
            self._children.append(child)
            self._listen_to(child)
        self._ending = Ending([(child.spec.role, child.name) for child in self._children])
        if problem is not None:
            self._perform(self._ending.failed(time.monotonic(), *problem))

    def _listen_to(self, child: Child) -> None:
        outputs = child.outputs()
        if outputs is not None:
            label = f"[{child.spec.label}] ".encode() if self._label_lines else b""
            for pipe, sink in zip(outputs, (self._stdout, self._stderr), strict=True):
                self._streams[pipe.fileno()] = Stream(pipe, label, sink)

    def _turn(self, wakeup: int) -> None:
        """Wait for something to happen, and deal with it."""
        for number in self._wait(wakeup, self._next_deadline()):
            if number in _ENDING_SIGNALS:
                self._perform(self._ending.interrupted(time.monotonic(), number))
            elif number in _PASSED_SIGNALS:
                self._pass_on(number)
        self._look_for_ended()
        self._look_after_guard()
        self._perform(self._ending.tick(time.monotonic()))

    def _wait(self, wakeup: int, deadline: float | None) -> bytes:
        """Wait until ``deadline``, moving output meanwhile; returns the numbers of signals that arrived."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        for fd, stream in self._streams.items():
            if not stream.sink.full:
                poll.register(fd, select.POLLIN)
        for sink in (self._stdout, self._stderr):
            if sink.waiting:
                poll.register(sink.fd, select.POLLOUT)
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000 + 1
        ready = {fd for fd, _ in poll.poll(timeout)}
        self._move_output(ready)
        return os.read(wakeup, 1024) if wakeup in ready else b""

    def _move_output(self, ready: set[int]) -> None:
        for fd in ready & self._streams.keys():
            if not self._streams[fd].read():
                del self._streams[fd]
        now = time.monotonic()
        for stream in self._streams.values():
            if stream.show_at is not None and stream.show_at <= now:
                stream.flush()
        for sink in (self._stdout, self._stderr):
            sink.flush()
            if sink.broken:
                # Nobody reads this output any more. The processes are to learn that as if no launcher was between.
                self._close_streams([stream for stream in self._streams.values() if stream.sink is sink])

    def _close_streams(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            stream.close()
            del self._streams[stream.fd]

    def _next_deadline(self) -> float | None:
        deadlines = [stream.show_at for stream in self._streams.values()]
        deadlines.append(self._report_deadline if self._ending.done else self._ending.deadline)
        return min((each for each in deadlines if each is not None), default=None)

    def _look_for_ended(self) -> None:
        ended: dict[int, int] = {}
        for index, child in enumerate(self._children):
            if child.status is None and (status := child.poll()) is not None:
                ended[index] = status
        if ended:
            self._perform(self._ending.ended(time.monotonic(), ended))

    def _look_after_guard(self) -> None:
        status = None if self._guard is None else self._guard.poll()
        if self._guard is not None and status is not None:
            name = f"the launcher's guard (pid {self._guard.pid}) {describe_status(status)}"
            self._guard = None
            self._perform(self._ending.failed(time.monotonic(), exit_status(status) or 1, f"{name}: ending the job"))

    def _pass_on(self, number: int) -> None:
        for child in self._children:
            if child.spec.role is Role.WORKER:
                child.signal(number, group=False)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):
                self.say(action.text)
            elif isinstance(action, Signal):
                for index in action.processes:
                    self._children[index].signal(action.number, group=action.group)
            elif self._report_failures:
                self._report(action)

    def _report(self, action: Report) -> None:
        """Tell the scheduler, from a process of its own: the launcher has no socket and no time to wait."""
        child = self._children[action.process]
        if child.spec.role is Role.SCHEDULER:
            return
        command = module_command("byteps_py.roles.report", str(child.pid), str(action.status))
        with contextlib.suppress(OSError):
            self._reporter = subprocess.Popen(command, env=child.spec.environment, stdin=subprocess.DEVNULL)
            self._report_deadline = time.monotonic() + REPORT_SECONDS

    def _reporting(self) -> bool:
        """Whether a report is on its way to a scheduler that may still run."""
        if self._reporter is None or self._reporter.poll() is not None or time.monotonic() >= self._report_deadline:
            return False
        own_scheduler = any(child.spec.role is Role.SCHEDULER for child in self._children)
        return not own_scheduler

    def _finished(self) -> bool:
        return self._ending.done and not self._reporting()

    def _clean_up(self, wakeup: int) -> None:
        """End what the processes have left in their groups, and pass on the last output."""
        if self._reporter is not None:
            self._reporter.kill()
            self._reporter.wait()
        for child in self._children:
            child.signal(signal.SIGTERM, group=True)
        self._drain(wakeup)
        for child in self._children:
            child.signal(signal.SIGKILL, group=True)
            child.reap()
        if self._guard is not None:
            self._guard.dismiss()

    def _drain(self, wakeup: int) -> None:
        """Pass on what is still in the pipes, also that of children's children, but do not wait for those for long.

        Output that was read is not lost if its reader is slow, however slow, unless the user wants to end this.
        """
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._streams and time.monotonic() < deadline:
            if _ENDING_SIGNALS & set(self._wait(wakeup, deadline)):
                return
            if (self._stdout.full or self._stderr.full) and not self._ending.is_interrupted:
                deadline = time.monotonic() + DRAIN_SECONDS
        self._close_streams(list(self._streams.values()))
        while self._stdout.waiting or self._stderr.waiting:
            signals = self._wait(wakeup, deadline if self._ending.is_interrupted else None)
            if _ENDING_SIGNALS & set(signals) or (self._ending.is_interrupted and time.monotonic() >= deadline):
                return


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Makes signals readable: yields a descriptor that gives their numbers, one byte each. Main thread only."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # What was ignored when the launcher started (nohup, a shell's background job) stays ignored.
    wanted = {each for each in _ENDING_SIGNALS | _PASSED_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN}
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _take_note) for number in wanted | {signal.SIGCHLD}}
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous)
        os.close(reading)
        os.close(writing)


def _take_note(number: int, frame: FrameType | None) -> None:
    """The number is in the pipe already."""
