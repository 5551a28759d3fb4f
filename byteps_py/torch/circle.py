"""The members of a process group, and how they make sure that they all make the same call.

A tensor has one dtype and size per name, so calls on tensors that look alike share a few names (a new one for each call
would fill the tables of scheduler and servers) and are matched by their order.  Calls that differ would wait for one
another: so with each call travels a *roll call*, a row of numbers with one place for each member, in which everybody
writes what it calls.  It is on its way at the same time as the data, and who finds another number than its own in it
asks the others for the words.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from byteps_py import session as _session
from byteps_py.errors import AgreementError, NotInitializedError
from byteps_py.session import Session
from byteps_py.torch.futures import Completer
from byteps_py.torch.tensors import as_array, as_bytes
from byteps_py.torch.works import Waitable, Work
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["Circle", "Exchange"]

_TURNS: Final = 4
"""Names that calls on tensors that look alike take in turn: so many are summed at once, where one name is one after the
other."""
_WORDS_BYTES: Final = 240
_LONGEST_CLAIM: Final = 80
_WORDS_SECONDS: Final = 10.0
"""How long a member that has found a difference waits for the others' words."""

Data = Callable[["Exchange"], Callable[[], object]]


class Circle:
    """Some workers of the job, of which this process is one. Any thread.

    Args:
        name: equal for all members, and different from that of other circles of the same workers.
        members: the workers' ranks in the job, by their rank in the group.
        rank: this process's rank in the group.
        group: the number of the members' group in the session.
    """

    def __init__(self, name: str, members: Sequence[int], rank: int, group: int) -> None:
        self.name = name
        self.members = tuple(members)
        self.rank = rank
        self.group = group
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._broken: AgreementError | None = None
        self._closed = False
        self._completer = Completer()

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    def call(
        self,
        what: str,
        claim: str,
        begin: Data,
        seconds: float | None,
        tensors: Sequence[torch.Tensor] = (),
        source: int = -1,
    ) -> Work:
        """Make one call, which all members make in the same order.

        Args:
            what: the call as messages name it, such as ``all_reduce(SUM) of float32 (3, 4)``.
            claim: what must be the same on all members; also distinguishes names.
            begin: submits the data; returns what brings the results to the caller's tensors.
            seconds, tensors, source: see :class:`~byteps_py.torch.works.Work`.

        Raises:
            AgreementError: members have made different calls before.
            NotInitializedError: there is no session (any more), or the group has been destroyed.
            BytePSError: the job has ended.
        """
        session = _session.current()
        with self._lock:
            if self._closed:
                raise NotInitializedError(
                    f"{what}: this process group has been destroyed, or torch.distributed has been initialized anew"
                )
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            exchange = Exchange(self, session, claim, self._calls[claim] % _TURNS)
            check = self._roll_call(exchange, what, claim) if self.size > 1 else None
            finish = begin(exchange)
            self._calls[claim] += 1
        waiting: list[Waitable] = exchange.pending if check is None else [_Checked(check, exchange.pending)]
        return Work(what, waiting, finish, seconds, self._completer, tensors, source)

    def close(self) -> None:
        """The group is destroyed: no more calls. Those under way go on."""
        self._closed = True

    def _roll_call(self, exchange: Exchange, what: str, claim: str) -> _RollCall:
        number = self._calls[""]
        self._calls[""] += 1
        row = np.zeros(self.size, np.int64)
        row[self.rank] = _digest(claim)
        spec = self.spec(f"calls.{number % _TURNS}", DType.INT64, self.size)
        pending = exchange.session.submit(spec, row, row, Operation.SUM)
        return _RollCall(self, exchange.session, what, number, row, pending)

    def spec(self, label: str, dtype: DType, count: int) -> TensorSpec:
        """The tensor ``label`` of this circle."""
        return TensorSpec(f"torch.{self.name}.{label}", dtype, (count,), self.group)

    def differ(self, error: AgreementError) -> AgreementError:
        """Members have made different calls, so that later ones cannot be matched; the first error counts."""
        with self._lock:
            self._broken = self._broken or error
            return self._broken


class Exchange:
    """The operations of one call.

    Attributes:
        pending: those begun so far.
    """

    def __init__(self, circle: Circle, session: Session, claim: str, turn: int) -> None:
        self.circle = circle
        self.session = session
        self.pending: list[Waitable] = []
        self._prefix = f"{claim if len(claim) <= _LONGEST_CLAIM else f'{_digest(claim):x}'}.{turn}"
        self._labels = 0

    def reduce(self, staged: torch.Tensor, dtype: DType, operation: Operation) -> torch.Tensor:
        """Begin to sum ``staged`` in place over the members; returns it."""
        array = as_array(staged.reshape(-1))
        self._submit(dtype, array, array, operation, 0)
        return staged

    def broadcast(self, root: int, staged: torch.Tensor) -> torch.Tensor:
        """Begin to give the bits of member ``root`` to all; ``staged`` is sent there, and receives elsewhere."""
        array = as_bytes(staged).numpy()
        is_root = self.circle.rank == root
        self._submit(DType.UINT8, array if is_root else None, None if is_root else array, Operation.BROADCAST, root)
        return staged

    def _submit(
        self,
        dtype: DType,
        source: npt.NDArray[Any] | None,
        output: npt.NDArray[Any] | None,
        operation: Operation,
        root: int,
    ) -> None:
        count = (output if source is None else source).size  # type: ignore[union-attr]
        spec = self.circle.spec(f"{self._prefix}.{self._labels}", dtype, count)
        self._labels += 1
        self.pending.append(self.session.submit(spec, source, output, operation, root=self.circle.members[root]))


class _RollCall:
    """Whether all members make the same call."""

    def __init__(
        self, circle: Circle, session: Session, what: str, number: int, row: npt.NDArray[Any], pending: Waitable
    ) -> None:
        self.pending = pending
        self._circle = circle
        self._session = session
        self._what = what
        self._number = number
        self._row = row
        self._texts = np.zeros((circle.size, _WORDS_BYTES), np.uint8)
        self._words: Waitable | None = None

    def agrees(self) -> bool:
        """Whether they do, once :attr:`pending` is done; asks for the words of the others if not."""
        self.pending.wait()
        if self._words is None and (self._row != self._row[self._circle.rank]).any():
            words = self._what.encode(errors="replace")[:_WORDS_BYTES]
            self._texts[self._circle.rank, : len(words)] = np.frombuffer(words, np.uint8)
            spec = self._circle.spec(f"words.{self._number}", DType.UINT8, self._texts.size)
            self._words = self._session.submit(spec, self._texts, self._texts, Operation.SUM)
        return self._words is None

    def difference(self) -> AgreementError:
        """What the others call; waits for that for a moment."""
        assert self._words is not None
        until = time.monotonic() + _WORDS_SECONDS
        while not self._words.done() and time.monotonic() < until:
            self._words.sleep(0.1)
        mine = self._circle.rank
        other = int(np.flatnonzero(self._row != self._row[mine])[0])
        theirs = "something else"
        if self._words.done():
            self._words.wait()
            theirs = self._texts[other].tobytes().rstrip(b"\0").decode(errors="replace")
        sides = sorted([(mine, self._what), (other, theirs)])
        said = ", ".join(f"rank {rank} (worker {self._circle.members[rank]}) calls {text}" for rank, text in sides)
        return self._circle.differ(
            AgreementError(
                f"the members of a process group have made different calls: {said}; all must make the same calls in "
                "the same order, on tensors of one dtype and number of elements"
            )
        )


class _Checked:
    """The operations of a call. Where the members' calls differ, nobody waits for them: they will never be done."""

    def __init__(self, check: _RollCall, waiting: Sequence[Waitable]) -> None:
        self._check = check
        self._all = waiting
        self._lock = threading.Lock()
        self._agreed: bool | None = None

    def done(self) -> bool:
        """As of :class:`~byteps_py.roles.pending.Pending`."""
        return self._next() is None

    def sleep(self, seconds: float | None = None) -> None:
        """As of :class:`~byteps_py.roles.pending.Pending`."""
        waiting = self._next()
        if waiting is not None:
            waiting.sleep(seconds)

    def wait(self) -> None:
        """As of :class:`~byteps_py.roles.pending.Pending`.

        Raises:
            AgreementError: the members have made different calls.
        """
        self._check.pending.wait()
        if not self._check.agrees():
            raise self._check.difference()
        for each in self._all:
            each.wait()

    def _next(self) -> Waitable | None:
        """What is to be waited for next; None if nothing is, or :meth:`wait` would raise."""
        if self._agreed is None:
            if not self._check.pending.done():
                return self._check.pending
            with self._lock:
                try:
                    self._agreed = self._check.agrees()
                except Exception:  # wait() raises it
                    self._agreed = False
        return next((each for each in self._all if not each.done()), None) if self._agreed else None


def _digest(claim: str) -> int:
    """A number that is never zero, which is what a member that says nothing would have."""
    return int.from_bytes(hashlib.blake2b(claim.encode(), digest_size=7).digest(), "little") + 1
