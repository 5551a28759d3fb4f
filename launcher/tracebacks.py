"""Leaves out what processes complain about because the user has pressed Ctrl-C: tracebacks and log lines.  Pure.

A :class:`Screen` gets the lines of one output and gives back those that are to be shown.

::

    state    meaning                                        next line
    PLAIN    no traceback                                   "Process x:" and the like: TITLED; "Traceback ...": INSIDE
    TITLED   a line that announces a traceback is held      "Traceback ...": INSIDE; else it is shown, PLAIN
    INSIDE   a traceback is held                            indented: held; else it is the error: ENDED
    ENDED    the traceback is complete and still held: it   "During handling ..." and the like: INSIDE;
             may be the first of a chain                    blank: held; indented: INSIDE; else decided, PLAIN

A chain is one block.  Its last error decides: an interruption, or what follows from one in other processes, drops all
of it, any other error shows all of it.  Lines outside of blocks pass at once.  Processes that share an output write
their tracebacks into each other; that is why INSIDE takes another beginning, and ENDED another indented line.
"""

from __future__ import annotations

import enum
import re

__all__ = ["Screen"]

MOST_HELD = 1024 * 1024
"""A block longer than this is shown as far as it goes."""

_BEGIN = re.compile(rb"(?P<before>.*?)(?P<begin>(?:Original )?Traceback \(most recent call last\):)", re.DOTALL)
_NOT_BEGIN = b"Exception Group "
_TITLE = re.compile(
    rb"Process \S.*:$|Exception in thread .*:$|Exception ignored (?:in|on|while)\b|Error in \S+:$"
    rb"|Fatal Python error: init|Python runtime state: "
)
_CHAIN = re.compile(
    rb"During handling of the above exception, another exception occurred:$"
    rb"|The above exception was the direct cause of the following exception:$"
)
_INTERRUPTION = re.compile(
    rb"(?:KeyboardInterrupt)+(?:\W|$)"
    rb"|byteps_py\.errors\.(?:JobAborted|JobRefused|ParticipantLeft|PeerLost|TransportError|TransportTimeout)\b"
    rb"|RuntimeError: DataLoader worker \(pid"
)
"""The last line of a traceback that the user is not to see."""
_LEFT_OVER = re.compile(rb"(?:KeyboardInterrupt)+$")
_LOG = re.compile(rb"(?:\d[\d:.,TZ+ -]* )?(?:WARNING|ERROR|CRITICAL) byteps\b")
"""A complaint in the log of a role: the job was aborted, or somebody was lost."""


class _State(enum.Enum):
    PLAIN = enum.auto()
    TITLED = enum.auto()
    INSIDE = enum.auto()
    ENDED = enum.auto()


class Screen:
    """The state machine for one output."""

    def __init__(self) -> None:
        self._state = _State.PLAIN
        self._block: list[bytes] = []
        self._blanks: list[bytes] = []
        self._size = 0
        self._is_interruption = False

    @property
    def waits(self) -> bool:
        """Whether what is held should be decided when nothing more comes for a moment."""
        return self._state in (_State.TITLED, _State.ENDED)

    @property
    def is_inside(self) -> bool:
        """Whether the next line belongs to a traceback."""
        return self._state is _State.INSIDE

    def feed(self, data: bytes) -> bytes:
        """Take whole lines; returns what can be shown now."""
        return b"".join(self._line(line) for line in data.splitlines(keepends=True))

    def settle(self) -> bytes:
        """Nothing more comes: returns what was held and is not to be dropped."""
        dropped = self._state is _State.ENDED and self._is_interruption
        shown = b"".join([*([] if dropped else self._block), *self._blanks])
        self._state = _State.PLAIN
        self._block, self._blanks, self._size = [], [], 0
        return shown

    def _line(self, line: bytes) -> bytes:
        text = line.rstrip()
        if _LOG.match(text):
            return b""
        if self._size > MOST_HELD:
            return self.settle() + line
        begin = _BEGIN.match(text)
        if begin is not None and not begin["before"].endswith(_NOT_BEGIN):
            return self._begin(line, begin)
        if self._state is _State.INSIDE:
            self._hold(line)
            if text and not text[:1].isspace():
                self._state = _State.ENDED
                self._is_interruption = _INTERRUPTION.match(text) is not None
            return b""
        if self._state is _State.ENDED:
            return self._after_error(line, text)
        if _TITLE.match(text):
            # Several announce one traceback: "Fatal Python error" and the state of its run time.
            self._state = _State.TITLED
            self._hold(line)
            return b""
        if self._state is _State.TITLED:
            return self.settle() + self._line(line)
        return b"" if _LEFT_OVER.match(text) else line

    def _begin(self, line: bytes, begin: re.Match[bytes]) -> bytes:
        """A traceback begins, behind what a progress bar has left on the line."""
        shown = self.settle() if self._state is _State.ENDED else b""
        self._state = _State.INSIDE
        before = begin["before"]
        self._hold(line[len(before) :])
        return shown + before + (b"\n" if before else b"")

    def _after_error(self, line: bytes, text: bytes) -> bytes:
        if not text:
            self._blanks.append(line)
            self._size += len(line)
            return b""
        if _CHAIN.match(text) or text[:1].isspace():
            self._state = _State.INSIDE
            self._block += self._blanks
            self._blanks = []
            self._hold(line)
            return b""
        return self.settle() + self._line(line)

    def _hold(self, line: bytes) -> None:
        self._block.append(line)
        self._size += len(line)
