"""The members of a process group, and how they make sure that they all make the same call.

A tensor has one dtype and size per name, so calls share a few names (a new one for each call would fill the tables of
scheduler and servers) and are matched by their order.  Calls that differ would wait for one another: so with each call
travels a *roll call*, a row of numbers with one place for each member, in which everybody writes what it calls, and as
which of its calls.  It is on its way at the same time as the data, and who finds another number than its own in it asks
the others for the words.

What is broadcast travels in pieces whose sizes are powers of two, so that a few names serve every size; and so do sums,
once there have been many sizes.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from byteps_py import session as _session
from byteps_py.errors import AgreementError, BytePSError, NotInitializedError
from byteps_py.roles.pending import is_done_by
from byteps_py.session import Session
from byteps_py.torch.futures import Completer
from byteps_py.torch.tensors import as_array, as_bytes
from byteps_py.torch.works import Waitable, Work
from byteps_py.types import DType, Operation, TensorSpec

__all__ = ["Circle", "Exchange"]

_TURNS: Final = ((4 << 20, 4), (64 << 20, 2))
"""Names that tensors of one look take in turn, by their bytes: so many are on their way at once, where one name is one
after the other.  Servers keep two results for each name, so large tensors have fewer."""
_ROLL_TURNS: Final = 4
_SIZES_OF_SUMS: Final = 64
"""So many looks of sums have names of their own."""
_LEAST_PIECE: Final = 64
_WHOLE_PIECE: Final = 4096
_MOST_PIECE: Final = 16 << 20
"""Bytes: of the smallest piece; what is in one piece, padded; and of the largest piece."""
_WORDS_BYTES: Final = 240
_WORDS_SECONDS: Final = 10.0
"""How long a member that has found a difference waits for the others' words."""

Data = Callable[["Exchange"], Callable[[], object]]
Array = npt.NDArray[Any]


class Circle:
    """Some workers of the job, of which this process is one. Any thread.

    Args:
        name: equal for all members, and different from that of other circles that are in use.
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
        self._calls = 0
        self._used: Counter[str] = Counter()
        self._sums: set[str] = set()
        self._numbers = itertools.count()
        self._under_way: set[int] = set()
        self._parts: list[Circle] = []
        self._broken: AgreementError | None = None
        self._closed = False
        self._made_in: weakref.ref[Session] | None = None
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
            claim: what must be the same on all members.
            begin: submits the data; returns what brings the results to the caller's tensors.
            seconds, tensors, source: see :class:`~byteps_py.torch.works.Work`.

        Raises:
            AgreementError: members have made different calls before, or one has failed half-way here.
            NotInitializedError: there is no session (any more), or the group has been destroyed.
            BytePSError: the job has ended.
        """
        session = _session.current()
        with self._lock:
            if self._closed:
                raise NotInitializedError(
                    f"{what}: this process group has been destroyed, or torch.distributed has been initialized anew"
                )
            self._made_in = self._made_in or weakref.ref(session)
            if self._made_in() is not session:
                raise NotInitializedError(
                    f"{what}: this process group is of the workers before resume(): call destroy_process_group(), and "
                    "init_process_group() again"
                )
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            exchange = Exchange(self, session)
            try:
                check = self._roll_call(session, what, claim) if self.size > 1 else None
                finish = begin(exchange)
            except BaseException as error:
                self._note_half_call(what, error)
                raise
        waiting: list[Waitable] = exchange.pending if check is None else [_Checked(check, exchange.pending)]
        return Work(what, waiting, exchange.after(finish), seconds, self._completer, tensors, source)

    def part(self, name: str, members: Sequence[int], rank: int, group: int) -> Circle:
        """A circle of some of the members, which is closed with this one; arguments as of the class."""
        made = Circle(f"{self.name}.{name}", members, rank, group)
        self._parts.append(made)
        return made

    def close(self) -> None:
        """The group is destroyed: no more calls. Those under way go on."""
        self._closed = True
        for each in self._parts:
            each.close()

    def is_free(self) -> bool:
        """Whether another circle of the same members may have this name, as far as this process knows: it is closed,
        and all operations have been matched."""
        is_over = self._closed and not self._under_way and self._broken is None
        return is_over and all(each.is_free() for each in self._parts)

    def submit(
        self,
        session: Session,
        spec: TensorSpec,
        source: Array | None,
        output: Array | None,
        operation: Operation,
        root: int = 0,
    ) -> Waitable:
        """:meth:`~byteps_py.session.Session.submit`, noted as under way until it is done."""
        pending = session.submit(spec, source, output, operation, root=root)
        number = next(self._numbers)
        self._under_way.add(number)
        pending.call_when_done(functools.partial(self._under_way.discard, number))
        return pending

    def next_spec(self, use: str, dtype: DType, count: int) -> TensorSpec:
        """The name whose turn it is among those of one use, dtype and size; the caller is in :meth:`call`."""
        look = f"{use}.{dtype.label}.{count}"
        nbytes = count * dtype.itemsize
        turns = next((turns for limit, turns in _TURNS if nbytes <= limit), 1)
        number = self._used[look]
        self._used[look] = (number + 1) % turns
        return self.spec(f"{look}.{number}", dtype, count)

    def cuts_sums(self, look: str) -> bool:
        """Whether sums of this look are cut into pieces; the caller is in :meth:`call`."""
        if look not in self._sums and len(self._sums) >= _SIZES_OF_SUMS:
            return True
        self._sums.add(look)
        return False

    def spec(self, label: str, dtype: DType, count: int) -> TensorSpec:
        """The tensor ``label`` of this circle."""
        return TensorSpec(f"torch.{self.name}.{label}", dtype, (count,), self.group)

    def differ(self, error: AgreementError) -> AgreementError:
        """Members have made different calls, so that later ones cannot be matched; the first error counts."""
        with self._lock:
            self._broken = self._broken or error
            return self._broken

    def _roll_call(self, session: Session, what: str, claim: str) -> _RollCall:
        number = self._calls
        self._calls += 1
        row = np.zeros(self.size, np.int64)
        row[self.rank] = _digest(f"{number}.{claim}")
        spec = self.spec(f"calls.{number % _ROLL_TURNS}", DType.INT64, self.size)
        pending = self.submit(session, spec, row, row, Operation.SUM)
        return _RollCall(self, session, what, number, row, pending)

    def _note_half_call(self, what: str, error: BaseException) -> None:
        """Others may have begun what this member has not, so later calls would not be matched. What ends the session
        is raised by whatever is asked of it."""
        if isinstance(error, AgreementError) or not isinstance(error, BytePSError):
            self._broken = AgreementError(
                f"{what} failed half-way on rank {self.rank} (worker {self.members[self.rank]}): {error!r}; so the "
                "process group cannot be used any more"
            )


class Exchange:
    """The operations of one call.

    Attributes:
        pending: those begun so far.
    """

    def __init__(self, circle: Circle, session: Session) -> None:
        self.circle = circle
        self.session = session
        self.pending: list[Waitable] = []
        self._tails: list[tuple[Array, Array]] = []

    def reduce(self, staged: torch.Tensor, dtype: DType, operation: Operation) -> torch.Tensor:
        """Begin to sum ``staged`` in place over the members; returns it."""
        array = as_array(staged.reshape(-1))
        use = operation.name
        if self.circle.cuts_sums(f"{use}.{dtype.label}.{array.size}"):
            for piece in self._cut(array, receives=True):
                self._submit(use, dtype, piece, piece, operation)
        elif array.size:
            self._submit(use, dtype, array, array, operation)
        return staged

    def broadcast(self, root: int, staged: torch.Tensor) -> torch.Tensor:
        """Begin to give the bits of member ``root`` to all; ``staged`` is sent there, and receives elsewhere."""
        is_root = self.circle.rank == root
        for piece in self._cut(as_bytes(staged).numpy(), receives=not is_root):
            source, output = (piece, None) if is_root else (None, piece)
            self._submit(f"BROADCAST{root}", DType.UINT8, source, output, Operation.BROADCAST, root)
        return staged

    def after(self, finish: Callable[[], object]) -> Callable[[], object]:
        """``finish``, and what is to be done before."""
        return self._finish(finish) if self._tails else finish

    def _finish(self, finish: Callable[[], object]) -> Callable[[], object]:
        def settle() -> None:
            for padded, target in self._tails:
                target[...] = padded[: target.size]
            finish()

        return settle

    def _cut(self, array: Array, *, receives: bool) -> Iterator[Array]:
        """Pieces of ``array``, whose sizes are powers of two: views, but for the end, which may be padded."""
        for first, count in _pieces(array.size, array.itemsize):
            view = array[first : first + count]
            if view.size == count:
                yield view
                continue
            padded = np.zeros(count, array.dtype)
            padded[: view.size] = view
            if receives:
                self._tails.append((padded, view))
            yield padded

    def _submit(
        self,
        use: str,
        dtype: DType,
        source: Array | None,
        output: Array | None,
        operation: Operation,
        root: int = 0,
    ) -> None:
        array = output if source is None else source
        assert array is not None
        spec = self.circle.next_spec(use, dtype, array.size)
        worker = self.circle.members[root]
        self.pending.append(self.circle.submit(self.session, spec, source, output, operation, worker))


def _pieces(count: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """First elements and sizes, which are powers of two; the last piece may go beyond the end, by an eighth of all (or
    what it takes to be one small message)."""
    most = _MOST_PIECE // itemsize
    for first in range(0, count - most + 1, most):
        yield first, most
    first = count - count % most
    for _ in range(3):
        left = count - first
        if left * itemsize <= _WHOLE_PIECE:
            break
        size = 1 << (left.bit_length() - 1)
        yield first, size
        first += size
    if first < count:
        yield first, max(_LEAST_PIECE // itemsize, 1 << (count - first - 1).bit_length())


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
            self._words = self._circle.submit(self._session, spec, self._texts, self._texts, Operation.SUM)
        return self._words is None

    def difference(self) -> AgreementError:
        """What the others call; waits for that for a moment."""
        assert self._words is not None
        are_there = is_done_by(self._words, time.monotonic() + _WORDS_SECONDS)
        mine = self._circle.rank
        other = int(np.flatnonzero(self._row != self._row[mine])[0])
        theirs = "something else"
        if are_there:
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
