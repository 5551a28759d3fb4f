"""Finds the address of a peer that is known by name.

A name may stand for several addresses of which not all work, may stand for nothing yet, and may change; and looking it
up may take long.  So this is done by a thread of its own, before libzmq is given a numeric address: libzmq would look
names up again and again on the thread that moves the bytes, and try the first address only.

A turn: resolve, then try the addresses in their order, each for two seconds at most, until one greets.  What greets is
the *target*.  Turns are repeated until there is one, and, more slowly, until the peer has said something (``stop``),
since what greeted may have been the peer's predecessor:

==================== =============================================== =====================
state                what happens                                    next turn
==================== =============================================== =====================
no target            messages wait in :attr:`Dial.unsent`            in 0.1 s, up to 1 s
target, no word yet  the endpoint is connected to it                 in 10 s
stopped              libzmq connects to the target again by itself   never
==================== =============================================== =====================
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from byteps_py.errors import TransportError
from byteps_py.transport.base import Buffer, tcp_address
from byteps_py.transport.probe import Finding, Verdict, probe
from byteps_py.transport.resolve import UnresolvedName, resolve

__all__ = ["Dial"]

_log = logging.getLogger("byteps_py.transport")
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_CHECK_SECONDS: Final = 10.0
_REPORT_SECONDS: Final = 60.0


class Dial:
    """The search for one peer. Belongs to the thread that owns the endpoint, but for what its own thread does.

    Args:
        host, port: where the peer is said to be.
        wake: called on the thread of the search when there is a (new) target.

    Attributes:
        unsent: messages that wait for a target.
        connected: the target that the owner has acted on, as ``tcp://address:port``; kept by the owner.
        trouble: what the last turn has found, as part of a sentence.
        obstacle: the same if no connection can be made at all, else empty.
    """

    def __init__(self, host: str, port: int, wake: Callable[[], None]) -> None:
        self.unsent: list[Sequence[Buffer]] = []
        self.connected: str | None = None
        self.trouble = f"the host name {host!r} is being looked up"
        self.obstacle = ""
        self._host = host
        self._port = port
        self._wake = wake
        self._target: str | None = None
        self._stopped = threading.Event()
        self._report_due = time.monotonic()
        # A daemon: the look-up of a name cannot be cut short, and must not hold up the end of the process.
        threading.Thread(target=self._search, name=f"dial {host}", daemon=True).start()

    def target(self) -> str | None:
        """The address that greeted last, if it is not :attr:`connected` already."""
        return None if self._target == self.connected else self._target

    def stop(self) -> None:
        """End the search. Its thread ends when it can."""
        self._stopped.set()

    def _search(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            found = self._turn()
            if found is not None and found != self._target:
                self._target = found
                self._wake()
            self._stopped.wait(pause if self._target is None else _CHECK_SECONDS)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _turn(self) -> str | None:
        """The first address that greets; the present target if that is still among those that do."""
        try:
            addresses = resolve(self._host, self._port)
        except TransportError as error:
            self.trouble = self.obstacle = str(error)
            self._report(error)
            return None
        targets = {tcp_address(each, self._port): each for each in addresses}
        order = sorted(targets, key=lambda each: each != self._target)
        findings: dict[Finding, list[str]] = {}
        for target in order:
            if self._stopped.is_set():
                return None
            finding = probe(targets[target], self._port)
            findings.setdefault(finding, []).append(targets[target])
            if finding.verdict is Verdict.GREETS:
                self.trouble, self.obstacle = finding.text, ""
                return target
        self.trouble = "; ".join(f"{', '.join(each)}: {finding.text}" for finding, each in findings.items())
        self.obstacle = self.trouble if all(each.is_in_the_way for each in findings) else ""
        return None

    def _report(self, error: TransportError) -> None:
        """Those who wait for an answer say so every 10 s; this says it once more where nobody waits yet."""
        now = time.monotonic()
        if now >= self._report_due and self._target is None:
            self._report_due = now + _REPORT_SECONDS
            hint = ": trying again" if isinstance(error, UnresolvedName) else ""
            _log.warning("%s%s", error, hint)
