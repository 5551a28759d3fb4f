"""How many training steps a worker has made, and on how many samples."""

from __future__ import annotations

import threading

from byteps_py.telemetry.recorder import Recorder
from byteps_py.types import check_count

__all__ = ["StepCount"]


class StepCount:
    """Any thread.

    Args:
        recorder: is told of each step; None: nobody is.

    Attributes:
        steps, samples: what :meth:`mark` counted.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self.steps = 0
        self.samples = 0
        self._recorder = recorder
        self._lock = threading.Lock()
        self._marks_itself = False

    def mark(self, samples: int | None = None, *, automatic: bool = False) -> None:
        """See :meth:`byteps_py.session.Session.mark_step`."""
        counted = 0 if samples is None else check_count(samples)
        with self._lock:
            if automatic and self._marks_itself:
                return
            if not automatic and not self._marks_itself:
                self._marks_itself = True
                self.steps = 0
            self.steps += 1
            self.samples += counted
            if self._recorder is not None:
                self._recorder.step(self.steps, self.samples)
