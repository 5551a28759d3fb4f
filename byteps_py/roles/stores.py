"""The parameters that a server holds: performs what :class:`byteps_py.core.parameters.Parameters` decides.

Everything here belongs to the thread that owns the endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteps_py.core.contributions import Accept, Action, Contribution, Reject, Reply, Sum
from byteps_py.core.members import MemberTable
from byteps_py.core.parameters import Parameters
from byteps_py.roles.answers import Answers
from byteps_py.roles.engine import Engine, Summed
from byteps_py.transport.base import Endpoint
from byteps_py.wire.header import Header

__all__ = ["Stores"]


class Stores:
    """Feeds the parameters, has them summed, and answers.

    A store lies in buffers of the endpoint, which workers of this host read where they lie; a sum goes to one that
    nobody has any more, or to a new one.

    Args:
        endpoint: gives the memory.
        engine: sums.
        answers: go to the workers.
        members: who takes part in a key.
        bound: see :class:`~byteps_py.core.parameters.Parameters`.
    """

    def __init__(
        self, endpoint: Endpoint, engine: Engine, answers: Answers, members: MemberTable, bound: int | None
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._answers = answers
        self._parameters = Parameters(members, bound)
        self._buffers: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._written: dict[int, npt.NDArray[np.uint8]] = {}

    def knows(self, key: int) -> bool:
        """Whether the key is looked after here."""
        return self._parameters.knows(key)

    def takes(self, contribution: Contribution, *, is_summed: bool) -> bool:
        """Whether a contribution belongs here; ``is_summed``: its key is one whose rounds are summed."""
        return self.knows(contribution.key) or (contribution.operation.is_asynchronous and not is_summed)

    def push(self, contribution: Contribution) -> None:
        """A contribution has arrived."""
        self._perform(self._parameters.push(contribution))

    def pull(self, header: Header) -> None:
        """A worker is in doubt; if its answer is held back, say for whom it waits."""
        rank, key, round_ = header.sender, header.key, header.round
        actions = self._parameters.pull(rank, key, round_)
        if isinstance(actions[0], Accept):
            self._answers.waiting(rank, key, round_, self._parameters.missing(key, rank))
        else:
            self._perform(actions)

    def summed(self, done: Summed) -> None:
        """A sum of a key that is known here is done."""
        buffer = self._written.pop(done.key)
        if done.changed is None:
            self._perform(self._parameters.summed(done.key, done.round, buffer))
        else:
            self._perform(self._parameters.changed(done.key, done.round, done.changed))

    def left(self, rank: int) -> None:
        """A worker has left in order."""
        self._perform(self._parameters.left(rank))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Sum):
                buffer = self._written[action.key] = self._room(action)
                done = self._engine.submit(action, buffer.data)
                if done is not None:
                    self.summed(done)
            elif isinstance(action, Accept):
                self._answers.accept(action)
            elif isinstance(action, Reply):
                self._answers.reply(action)
            elif isinstance(action, Reject):
                self._answers.reject(action)
            else:
                self._answers.missing(action)

    def _room(self, action: Sum) -> npt.NDArray[np.uint8]:
        """Where a sum goes: memory that nobody reads any more."""
        nbytes = action.count * action.dtype.itemsize
        if not nbytes:
            return np.empty(0, np.uint8)
        buffers = self._buffers.setdefault(action.key, [])
        held = {id(each) for each in self._parameters.held(action.key)}
        for buffer in buffers:
            if id(buffer) not in held:
                self._endpoint.renew(buffer)
                return buffer
        buffers.append(self._endpoint.allocate(nbytes))
        return buffers[-1]
