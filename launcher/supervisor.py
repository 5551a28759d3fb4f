"""Runs the processes of one launch: starts them, passes on their output and signals, and ends them together.

One thread, one loop, one call that waits: for output, for room to write it, for a signal (SIGCHLD among them, through
the wake-up descriptor), or for the next deadline.  So the launcher uses no CPU while nothing happens, and it may fork.
Decisions are made in :mod:`~byteps_py.launcher.ending`; this module performs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import re
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from byteps_py.launcher import signals
from byteps_py.launcher.advice import explain_start
from byteps_py.launcher.console import Console
from byteps_py.launcher.ending import Action, Ending, EndRest, Hush, Phase, Reach, Report, Say, Signal
from byteps_py.launcher.guard import Guard
from byteps_py.launcher.herald import JOB_ENDED, SETTINGS_DIFFER, Herald
from byteps_py.launcher.logfile import LogFile
from byteps_py.launcher.output import Stream
from byteps_py.launcher.processes import (
    CANNOT_RUN,
    NOT_FOUND,
    Child,
    CommandError,
    Ends,
    ProcessSpec,
    describe_status,
    exit_status,
)
from byteps_py.launcher.sweep import MARK, ROUND_SECONDS, Family, Process, Sweep, are_stopped, read_started, send, stop
from byteps_py.role import Role

__all__ = ["Supervisor"]

CLEAN_UP_SECONDS = 1.0
"""What processes that outlive all those that were started have between SIGTERM and SIGKILL."""
STOP_SECONDS = 2.0
"""How long processes may take to notice that they are stopped."""
DRAIN_SECONDS = 1.0
"""How long the last output is awaited; nobody is left who could write, unless it cannot be killed."""
REPORT_SECONDS = 6.0
"""How long the last reports to a scheduler elsewhere may take; the herald bounds that itself, this is a second line."""


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
        # A launch inside a launch must not take the processes of the outer one for its own.
        given = {spec.environment.get(MARK, "") for spec in specs} - {"", os.environ.get(MARK)}
        self._mark = min(given, default="") or secrets.token_hex(8)
        self._specs = [dataclasses.replace(spec, environment={**spec.environment, MARK: self._mark}) for spec in specs]
        self._label_lines = label_lines
        self._report_failures = report_failures
        self._log_dir = log_dir
        self._grace_period = grace_period
        self._herald_environment = herald_environment
        self._console = Console()
        self._logs: list[LogFile] = []
        self._children: list[Child] = []
        self._streams: dict[int, tuple[Stream, Stream]] = {}
        self._ending = Ending([])
        self._rest: Sweep | None = None
        self._told: set[Process] = set()
        self._guard: Guard | None = None
        self._herald: Herald | None = None

    def say(self, text: str) -> None:
        """Print a line to standard error, between those of the processes."""
        self._console.say(text)

    def run(self) -> int:
        """Start everything, wait for the end; returns the exit status. No process is left.

        Raises:
            CommandError: a log cannot be written, or the guard not be started. Nothing has been started.
        """
        with signals.readable() as wakeup:
            self._prepare()
            self._start()
            while not self._is_finished():
                self._turn(wakeup)
            self._clean_up(wakeup)
        return self._ending.status or int(self._console.has_lost_output)

    def _prepare(self) -> None:
        """What must succeed before anything is started."""
        if self._log_dir is not None:
            for spec in self._specs:
                path = self._log_dir / (re.sub(r"[ .]", "-", spec.label) + ".log")
                try:
                    self._logs.append(LogFile(path, self.say))
                except OSError as error:
                    raise CommandError(1, f"the log {path} cannot be written: {explain_start(error)}") from None
        since = read_started(os.getpid())
        self._family = Family(self._mark, since)
        try:
            self._ends = Ends()
            self._guard = Guard(self._mark, since)
        except OSError as error:
            raise CommandError(1, f"the launcher's guard cannot be started: {explain_start(error)}") from None

    def _start(self) -> None:
        problem: tuple[int, str] | None = None
        assert self._guard is not None
        # A single process whose lines need no label may have the terminal for itself.
        capture = self._label_lines or len(self._specs) > 1 or bool(self._logs)
        for index, spec in enumerate(self._specs):
            try:
                child = Child(spec, self._guard, capture=capture)
            except OSError as error:
                problem = _start_status(error), f"{spec.label} cannot be started: {explain_start(error, spec.argv[0])}"
                break
            self._children.append(child)
            self._family.enrol(child.pid, read_started(child.pid))
            self._ends.watch(child.pid)
            self._listen_to(child, self._logs[index] if self._logs else None)
        self._ending = Ending([(child.spec.role, child.name) for child in self._children], self._grace_period)
        if problem is not None:
            self._perform(self._ending.failed(time.monotonic(), *problem))
        elif self._herald_environment is not None:
            self._start_herald(self._herald_environment)

    def _listen_to(self, child: Child, log: LogFile | None) -> None:
        outputs = child.outputs()
        if outputs is not None:
            label = child.spec.label if self._label_lines else ""
            self._streams[len(self._children) - 1] = self._console.listen(outputs, label, log)

    def _start_herald(self, environment: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):
            self._herald = Herald(environment)
            live = {_local_rank(child): child.pid for child in self._children if child.status is None}
            self._herald.vouch({rank: pid for rank, pid in live.items() if rank is not None})

    def _turn(self, wakeup: int) -> None:
        """Wait for something to happen, and deal with it."""
        for number in self._console.wait(wakeup, self._next_deadline()):
            self._signalled(number)
        self._look_for_ended()
        self._look_after_helpers()
        now = time.monotonic()
        if self._rest is not None and (self._ending.phase is not Phase.LEAVING or self._rest.round(now)):
            self._rest = None
            self._perform(self._ending.rest_ended(now))
        self._perform(self._ending.tick(now))

    def _next_deadline(self) -> float | None:
        if self._ending.done:
            return None if self._herald is None else self._herald.deadline
        return self._ending.deadline if self._rest is None else time.monotonic() + ROUND_SECONDS

    def _signalled(self, number: int) -> None:
        if number in signals.ENDING:
            if number == signal.SIGINT:
                self._console.leave_out_interruptions()
            self._perform(self._ending.interrupted(time.monotonic(), number))
        elif number in signals.PASSED:
            for child in self._children:
                if child.spec.role is Role.WORKER:
                    child.signal(number, group=False)
        elif number == signal.SIGTSTP:
            self._stop()
        elif number == signal.SIGCONT:
            send(self._family.find(), signal.SIGCONT)

    def _stop(self) -> None:
        """Ctrl-Z reaches the launcher alone, whose children are in other sessions; so all stop and go on together.

        They are sent SIGSTOP: the kernel does not stop a session without a terminal for SIGTSTP.
        """
        if self._ending.phase not in (Phase.RUNNING, Phase.CLOSING):
            return
        self.say("SIGTSTP: the processes of the job are stopped too, until fg, bg or SIGCONT")
        stopped = stop(self._family.find)
        # The shell reads what is typed next, and not a worker that has not taken notice yet.
        deadline = time.monotonic() + STOP_SECONDS
        while not are_stopped(stopped) and time.monotonic() < deadline:
            time.sleep(0.01)
        signals.stop_here()
        send(self._family.find(), signal.SIGCONT)

    def _look_for_ended(self) -> None:
        order = {pid: place for place, pid in enumerate(self._ends.take())}
        found = {
            index: status
            for index, child in enumerate(self._children)
            if child.status is None and (status := child.poll()) is not None
        }
        if found:
            by_time = sorted(found, key=lambda index: order.get(self._children[index].pid, len(order)))
            self._perform(self._ending.ended(time.monotonic(), {index: found[index] for index in by_time}))

    def _look_after_helpers(self) -> None:
        now = time.monotonic()
        status = None if self._guard is None else self._guard.poll()
        if self._guard is not None and status is not None:
            name = f"the launcher's guard (pid {self._guard.pid}) {describe_status(status)}"
            self._guard = None
            self._perform(self._ending.failed(now, exit_status(status) or 1, f"{name}: ending the job"))
        told = None if self._herald is None else self._herald.poll()
        if self._ending.phase is Phase.RUNNING and told in (JOB_ENDED, SETTINGS_DIFFER):
            text = "the job has ended before all workers of this machine joined it: ending them"
            self._perform(self._ending.failed(now, 2 if told == SETTINGS_DIFFER else 1, text))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):
                self.say(action.text)
            elif isinstance(action, Signal):
                self._signal(action)
            elif isinstance(action, Report):
                self._report(action)
            elif isinstance(action, EndRest):
                self._rest = Sweep(self._find_rest, action.kill_at, self._told)
            elif isinstance(action, Hush):
                for stream in itertools.chain(*(self._streams.get(index, ()) for index in action.processes)):
                    stream.hush()

    def _find_rest(self) -> dict[Process, int]:
        """What the workers have started."""
        others = [each.pid for each in self._children if each.spec.role is not Role.WORKER]
        if self._herald is not None:
            others.append(self._herald.pid)
        return self._family.find(without=others)

    def _signal(self, action: Signal) -> None:
        children = [self._children[index] for index in action.processes]
        if action.number != signal.SIGCONT:
            # Once found they stay known, although they may lose their parents by this.
            self._family.find()
        if action.reach is Reach.SESSION:
            members = self._family.sessions([child.pid for child in children])
            send(members, action.number)
            if action.number == signal.SIGTERM:
                # Who is stopped must go on to take notice.
                send(members, signal.SIGCONT)
                self._told |= members
            return
        for child in children:
            child.signal(action.number, group=action.reach is Reach.GROUP)

    def _report(self, action: Report) -> None:
        """Tell the scheduler, through a process: the launcher has no socket and no time to wait."""
        child = self._children[action.process]
        if not self._report_failures or child.spec.role is Role.SCHEDULER:
            return
        if self._herald is None:
            # This launch has the job's scheduler, which need not know of what everyone here is told at the same time.
            workers_left = any(each.status is None for each in self._children if each.spec.role is Role.WORKER)
            if self._ending.is_interrupted or not workers_left:
                return
            self._start_herald(child.spec.environment)
        if self._herald is not None:
            self._herald.ended(child.pid, _local_rank(child), action.status)

    def _is_finished(self) -> bool:
        """Whether all have ended, and reports on their way to a scheduler elsewhere have arrived."""
        if not self._ending.done:
            return False
        own_scheduler = any(child.spec.role is Role.SCHEDULER for child in self._children)
        return self._herald is None or own_scheduler or self._herald.finish(REPORT_SECONDS)

    def _clean_up(self, wakeup: int) -> None:
        """End what the processes have left, in whatever session, and pass on the last output."""
        if self._herald is not None:
            self._herald.kill()
        grace = 0.0 if self._ending.phase is Phase.KILLED else CLEAN_UP_SECONDS
        sweep = Sweep(self._family.find, time.monotonic() + grace, self._told)
        while not sweep.round(time.monotonic()):
            if self._is_ended_within(wakeup, ROUND_SECONDS):
                sweep.kill_at = min(sweep.kill_at, time.monotonic())
        if sweep.left:
            self.say(f"could not be killed: {', '.join(f'pid {each.pid}' for each in sorted(sweep.left))}")
        self._drain(wakeup)
        for child in self._children:
            child.reap()
        self._ends.close()
        for log in self._logs:
            log.close()
        if self._guard is not None:
            self._guard.dismiss()

    def _is_ended_within(self, wakeup: int, seconds: float) -> bool:
        """Move output for a time; returns whether a signal asked for the end meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if signals.ENDING & set(self._console.wait(wakeup, deadline)):
                return True
        return False

    def _drain(self, wakeup: int) -> None:
        """Pass on what is still in the pipes.

        Output that was read is not lost if its reader is slow, however slow, unless the user wants to end this.
        """
        console, is_interrupted = self._console, self._ending.is_interrupted
        deadline = time.monotonic() + DRAIN_SECONDS
        while console.is_listening and time.monotonic() < deadline:
            if signals.ENDING & set(console.wait(wakeup, deadline)):
                return
            if console.is_full and not is_interrupted:
                deadline = time.monotonic() + DRAIN_SECONDS
        console.close_streams()
        while console.is_waiting:
            numbers = console.wait(wakeup, deadline if is_interrupted else None)
            if signals.ENDING & set(numbers) or (is_interrupted and time.monotonic() >= deadline):
                return


def _start_status(error: OSError) -> int:
    """The launcher's exit status if a process cannot be started, as in a shell."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NOT_FOUND
    return 1 if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM) else CANNOT_RUN


def _local_rank(child: Child) -> int | None:
    """None for a server, and where it is not told."""
    text = child.spec.environment.get("BYTEPS_LOCAL_RANK", "")
    return int(text) if child.spec.role is Role.WORKER and text.isdecimal() else None
