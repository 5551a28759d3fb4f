"""The light tensors of a worker: many contributions in one message, many results in another.

A *light* tensor has one partition of less than 64 KiB.  Its contribution is copied behind those of others into a buffer
of its server, the *bundle*.  A bundle is sent when somebody waits for a result, when it is full, or four milliseconds
after its first contribution; what one thread submits before it waits thus travels in few messages, and what is
submitted alone leaves at once when it is waited for.

===========  ===========================  ==================================================  ==========
a bundle     event                        action                                              then
===========  ===========================  ==================================================  ==========
--           a contribution               made; its place is taken in it                      OPEN
OPEN         another one fits             its place is taken in it                            OPEN
OPEN         hurry, full, its time came   sent as one PUSH_MANY                               SENT
SENT         accepted                     its bytes leave the window                          ACCEPTED
SENT         no answer for a while        PULL for each contribution without a result         SENT
any          a result                     copied out                                          unchanged
any          the last result              its bytes leave the window, its buffer is reusable  --
===========  ===========================  ==================================================  ==========

A server may answer for one tensor alone, as to a PUSH (RESULT, REJECT, MISSING, WAITING); what is MISSING is then
pushed alone, from the bundle's buffer, which does not change before all its results are here.

Not thread-safe: the caller holds the worker's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps_py.core.delivery import Delivery
from byteps_py.core.pipeline import Pipeline, Start
from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.envelope import Envelope
from byteps_py.roles.flight import Bundle, Flight, bytes_of
from byteps_py.roles.pending import Pending
from byteps_py.roles.rows import received_rows
from byteps_py.roles.tensors import Tensor
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.transport.base import Buffer, Endpoint, Message
from byteps_py.types import PARTITION_BITS, Operation
from byteps_py.wire.bundle import ENTRY_LAYOUT, PLACE_ALIGNMENT
from byteps_py.wire.header import Flag, Header, Opcode, encode

__all__ = ["HOLD_SECONDS", "Light"]

BUNDLE_BYTES: Final = 262_144
BUNDLE_ENTRIES: Final = 1024
_WINDOW_BYTES: Final = 16 * BUNDLE_BYTES
"""Most that is on the way to one server and not accepted; beyond it light tensors queue like all others."""
_MOST_BUNDLES: Final = 64
"""So many, each with a buffer, may lack a result of any of their contributions; beyond it the same."""
HOLD_SECONDS: Final = 0.004
"""How long a contribution waits for company if nobody is in a hurry."""

_FLAGS: Final = int(Flag.WANT_RESULT)
_FLAGS_ABSENT: Final = int(Flag.WANT_RESULT | Flag.ABSENT)
_ABSENT: Final = int(Flag.ABSENT)
_ROUND_UP: Final = PLACE_ALIGNMENT - 1


class Light:
    """Bundles of one worker.

    Args:
        endpoint: gives the memory of the buffers.
        send: sends frames to the server of a rank.
        envelope: of this worker.
        pipeline: lends the rounds.
        servers: their number.
        times: where the stages are counted and timed; None where they are not.

    Attributes:
        held: bundles that are held back.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        send: Callable[[int, list[Buffer], float], None],
        envelope: Envelope,
        pipeline: Pipeline,
        servers: int,
        times: WorkerTimes | None,
    ) -> None:
        self._endpoint = endpoint
        self._send = send
        self._envelope = envelope
        self._pipeline = pipeline
        self._times = times
        self.held = 0
        self._open: list[Bundle | None] = [None] * servers
        self._unaccepted = [0] * servers
        self._bundles: dict[int, Bundle] = {}
        self._flights: dict[int, Flight] = {}
        self._spare: list[npt.NDArray[np.uint8]] = []
        self._delivery = Delivery()
        self._last_number = 0
        self._most_bundles = max(_MOST_BUNDLES, 2 * servers)

    @property
    def flights(self) -> Mapping[int, Flight]:
        """Contributions without a result, by key."""
        return self._flights

    @property
    def unaccepted(self) -> int:
        """Contributions that no server is known to have."""
        return sum(each.left for each in self._bundles.values() if not each.accepted)

    def submit(
        self,
        now: float,
        tensor: Tensor,
        source: npt.NDArray[Any] | None,
        pending: Pending,
        operation: Operation,
        step: int,
    ) -> bool:
        """Take one operation on a light tensor that has been placed; False if it must go the general way.

        ``source`` is C-contiguous and copied before this returns.
        """
        partition = tensor.light
        if partition is None:  # workers have come to disagree about it
            return False
        key, server, nbytes = partition.key, partition.server, tensor.nbytes
        if self._unaccepted[server] > _WINDOW_BYTES or len(self._bundles) > self._most_bundles:
            return False
        round_ = self._pipeline.lend(key >> PARTITION_BITS)
        if round_ is None:
            return False
        bundle = self._open[server]
        if bundle is None or bundle.used + nbytes > BUNDLE_BYTES or len(bundle.keys) == BUNDLE_ENTRIES:
            try:
                bundle = self._begin(now, server)
            except BaseException:
                self._pipeline.give_back([key >> PARTITION_BITS])
                raise
        place = bundle.used
        if source is not None:
            bundle.view[place : place + nbytes] = bytes_of(source)
            bundle.used = (place + nbytes + _ROUND_UP) & ~_ROUND_UP
            flags = _FLAGS
        else:
            flags = _FLAGS_ABSENT
        if self._times is not None:
            self._times.joined(bundle, round_, now, source is not None)
        bundle.table += ENTRY_LAYOUT.pack(
            partition.key, round_, step, place, partition.count, 0, tensor.spec.dtype, operation, flags
        )
        bundle.keys.append(key)
        bundle.left += 1
        bundle.submitted += now
        self._flights[key] = Flight(
            key, tensor, pending, bytes_of(pending.output), bundle, place, round_, operation, step, source is None
        )
        return True

    def hurry(self, now: float) -> None:
        """Send what has been held back."""
        for bundle in self._open:
            if bundle is not None:
                self._flush(now, bundle)

    def tick(self, now: float) -> float | None:
        """Send what has been held back for long enough, and ask for what is overdue; returns when to call again."""
        due: float | None = None
        for bundle in self._open:
            if bundle is not None:
                if now >= bundle.due:
                    self._flush(now, bundle)
                elif due is None or bundle.due < due:
                    due = bundle.due
        for number, _, server in self._delivery.due(now):
            for key in self._bundles[number].keys:
                flight = self._flights.get(key)
                if flight is not None and flight.bundle.number == number:
                    header = self._envelope.header(Opcode.PULL, key, flight.round)
                    self._send(server, [encode(header)], now)
        deadline = self._delivery.next_deadline()
        return deadline if due is None or (deadline is not None and deadline < due) else due

    def accepted(self, now: float, number: int) -> None:
        """A server has all contributions of a bundle; a repetition changes nothing."""
        bundle = self._bundles.get(number)
        if bundle is None or bundle.accepted or not bundle.sent:
            return
        if self._times is not None:
            self._times.bundle_accepted(bundle, now)
            bundle.since = now
        self._release(bundle)
        self._delivery.accepted(number, number, now)

    def results(self, now: float, header: Header, message: Message) -> list[Flight]:
        """Take the results that a RESULT_MANY brings; returns the flights that are over by it.

        Raises:
            RemoteProtocolError: an entry does not fit what was pushed, or the memory behind the message has changed.
        """
        table, payload = message.frames[1], message.frames[2] if len(message.frames) == 3 else memoryview(b"")
        arrived: dict[int, Flight] = {}  # by key: a server must not, but could, name one twice
        begun = now
        for key, round_, _, place, count, _, dtype, operation, flags in ENTRY_LAYOUT.iter_unpack(table):
            flight = self._flights.get(key)
            if flight is None or flight.round != round_:
                continue
            tensor = flight.tensor
            spec, nbytes = tensor.spec, tensor.nbytes
            if dtype != spec.dtype or operation != flight.operation or count * spec.dtype.itemsize != nbytes:
                raise RemoteProtocolError(f"a result for {spec.name!r} of another kind")
            absent = flags & _ABSENT
            if absent:
                flight.output[:] = bytes(nbytes)
            elif place + nbytes > header.length:
                raise RemoteProtocolError(f"a result for {spec.name!r} beyond its message")
            else:
                flight.output[:] = payload[place : place + nbytes]
            flight.pending.absent = absent != 0
            arrived[key] = flight
        if not message.intact():
            raise RemoteProtocolError("results that changed while they were copied")
        if self._times is not None:
            self._times.copied_out_together(len(arrived), begun)
        flights = list(arrived.values())
        self._over(now, flights)
        return flights

    def result(self, now: float, header: Header, payload: memoryview | None, message: Message) -> list[Flight]:
        """The result of one flight came alone; as :meth:`results`."""
        flight = self._flights[header.key]
        spec = flight.tensor.spec
        if (header.dtype, header.offset, header.count) != (spec.dtype, 0, spec.count):
            raise RemoteProtocolError(f"a result for {spec.name!r} of another shape")
        absent, is_rows = bool(header.flags & Flag.ABSENT), bool(header.flags & Flag.ROWS)
        if is_rows and not flight.absent:
            raise RemoteProtocolError(f"a result for {spec.name!r} that is rows, of contributions that are not")
        flight.pending.absent = absent
        if is_rows:
            flight.pending.rows = received_rows(spec, header, payload, message)
        elif absent:
            flight.output[:] = bytes(len(flight.output))
        elif payload is not None:
            flight.output[:] = payload
        if not message.intact():
            raise RemoteProtocolError("a result that changed while it was copied")
        self._over(now, [flight])
        return [flight]

    def again(self, now: float, key: int) -> None:
        """A server lacks the contribution: push it alone."""
        flight = self._flights[key]
        spec, partition = flight.tensor.spec, flight.tensor.light
        assert partition is not None
        flags = Flag.WANT_RESULT | Flag.ABSENT if flight.absent else Flag.WANT_RESULT
        header = self._envelope.header(
            Opcode.PUSH,
            key,
            flight.round,
            dtype=spec.dtype,
            operation=flight.operation,
            flags=flags,
            step=flight.step,
            count=partition.count,
            length=0 if flight.absent else spec.nbytes,
        )
        frames: list[Buffer] = [encode(header)]
        if not flight.absent:
            frames.append(flight.bundle.view[flight.place : flight.place + spec.nbytes])
        self._send(partition.server, frames, now)

    def fail(self, keys: Iterable[int], error: BaseException) -> list[Start]:
        """End flights; their buffers are never used again, since a server may still read them."""
        failed = [self._flights.pop(key) for key in keys]
        for each in failed:
            each.pending.fail(error)
            bundle = each.bundle
            bundle.buffer = bundle.buffer[:0]
            bundle.left -= 1
            if self._times is not None:
                self._times.bundle_dropped(bundle, each.key, each.round)
            if not bundle.left:
                self._end(bundle)
        return self._pipeline.give_back([each.key >> PARTITION_BITS for each in failed])

    def _begin(self, now: float, server: int) -> Bundle:
        """A new open bundle for ``server``; what is in the one before is sent."""
        before = self._open[server]
        if before is not None:
            self._flush(now, before)
        if self._spare:
            buffer = self._spare.pop()
            self._endpoint.renew(buffer)
        else:
            buffer = self._endpoint.allocate(BUNDLE_BYTES)
        self._last_number += 1
        bundle = self._open[server] = self._bundles[self._last_number] = Bundle(self._last_number, server, buffer)
        bundle.due = now + HOLD_SECONDS
        self.held += 1
        return bundle

    def _flush(self, now: float, bundle: Bundle) -> None:
        self._open[bundle.server] = None
        self.held -= 1
        count = len(bundle.keys)
        header = self._envelope.header(Opcode.PUSH_MANY, 0, bundle.number, detail=count, length=bundle.used)
        frames: list[Buffer] = [encode(header), bytes(bundle.table)]
        if bundle.used:
            frames.append(bundle.view[: bundle.used])
        if self._times is not None:
            self._times.bundle_sent(bundle, now)
        bundle.sent = True
        bundle.since = bundle.pushed = now
        self._unaccepted[bundle.server] += bundle.used
        self._send(bundle.server, frames, now)
        self._delivery.sent(bundle.number, bundle.number, bundle.server, now)
        if not bundle.left:  # all its operations have failed before
            self._end(bundle)

    def _over(self, now: float, flights: list[Flight]) -> None:
        """Results are here; the caller completes the operations and gives their rounds back to the pipeline."""
        flights_of = self._flights
        counts: dict[Bundle, int] = {}
        for flight in flights:
            del flights_of[flight.key]
            bundle = flight.bundle
            counts[bundle] = counts.get(bundle, 0) + 1
        for bundle, count in counts.items():
            bundle.left -= count
            bundle.pushed = now
            if self._times is not None:
                self._times.arrived(bundle, count, now, flights)
            if not bundle.left:
                self._end(bundle)

    def _end(self, bundle: Bundle) -> None:
        """Nothing is waited for any more."""
        if not bundle.sent:
            return
        self._release(bundle)
        self._delivery.dropped(bundle.number)
        del self._bundles[bundle.number]
        if bundle.buffer.nbytes:
            self._spare.append(bundle.buffer)

    def _release(self, bundle: Bundle) -> None:
        if not bundle.accepted:
            bundle.accepted = True
            self._unaccepted[bundle.server] -= bundle.used
