"""Asynchronous training: the servers hold the parameters, and workers push what their own steps have changed.

In each step a worker lets the optimizer's own class update the parameters by the worker's own gradients.  It pushes the
differences, which the servers add to what they hold, and takes what they hold then.  Before its first step all workers
meet once, to give the servers the parameters of worker 0.

====================  ==============================================  ==========================================
state of a slot       event                                           then
====================  ==============================================  ==========================================
registered            :meth:`begin`, of all workers                   seeded, from worker 0
at rest               :meth:`begin`                                   its value is noted
noted                 :meth:`push`: the optimizer has changed it      its difference is on the way
on the way            :meth:`take`: the answer is here                at rest, with the value of the servers
on the way            a Ctrl-C                                        taken by the next :meth:`begin`
any                   :meth:`begin`, after a ``resume()``             as registered: the servers begin anew
====================  ==============================================  ==========================================

See docs/decisions/0033.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from byteps_py import session as _session
from byteps_py.errors import UnsupportedError
from byteps_py.operations import Numbering
from byteps_py.roles.pending import Pending
from byteps_py.torch.agreement import Agreement
from byteps_py.torch.claims import check_kept, claim
from byteps_py.torch.generation import Generation
from byteps_py.torch.names import add_names, check_names, fill_names
from byteps_py.torch.tensors import as_array, check_dense, check_writable, to_tensor, wire_tag
from byteps_py.types import Operation, TensorSpec

__all__ = ["ParameterExchange", "refuse_asynchronous"]

_Groups = Sequence[dict[str, Any]]

_numbering: Final = Numbering()
_ROOT: Final = 0
"""The worker whose parameters the servers begin with, as in BytePS's broadcasts by default."""


@dataclass
class _Slot:
    """A parameter that the servers hold.

    Attributes:
        buffer: on the CPU, in memory that servers of this machine read: the difference, and then the answer.
        before: the value before the step, on the parameter's device.
        pending: its push; None if nothing is on the way.
    """

    parameter: torch.Tensor
    label: str
    spec: TensorSpec
    priority: int
    buffer: torch.Tensor
    before: torch.Tensor | None = None
    pending: Pending | None = None


class ParameterExchange:
    """The parameters of one optimizer. Belongs to the thread that trains.

    Args:
        groups: the optimizer's ``param_groups``.
        named_parameters: names, and the order of the model; None names by place in the groups.
        owner: whose parameters; workers whose owners of one number differ are told so.

    Raises:
        ValueError: names are missing, doubled or malformed.
        UnsupportedError: a parameter's dtype cannot be pushed, it is sparse or has no data, or its elements share
            memory.
    """

    def __init__(
        self, groups: _Groups, named_parameters: Iterable[tuple[str, torch.Tensor]] | None, owner: str
    ) -> None:
        self.step = 0
        self._names = check_names(named_parameters, groups)
        self._slots: dict[torch.Tensor, _Slot] = {}
        self._unseeded: list[_Slot] = []
        self._given_up: set[torch.Tensor] = set()
        session = _session.current()
        number = _numbering.next(session)
        self._prefix = f"AsyncParam{number}."
        self._register(session, groups)
        self._number, self._owner = number, owner
        self._generation = Generation(session, self._ask)

    def _ask(self, session: _session.Session) -> Agreement:
        return Agreement(
            session,
            f"the parameters of asynchronous optimizer {self._number or 1}",
            [self._owner, *(f"{each.label} ({each.spec.describe()})" for each in self._slots.values())],
            "Make each DistributedOptimizer in the same order and of the same parameters on every worker; "
            "named_parameters tells apart those that look alike.",
        )

    def add_names(self, named_parameters: Iterable[tuple[str, torch.Tensor]], group: dict[str, Any]) -> None:
        """Name the parameters of a group before it is added.

        Raises:
            ValueError: names are missing, doubled (also with earlier ones) or malformed.
        """
        add_names(self._names, named_parameters, group)

    def give_up(self, parameters: Sequence[torch.Tensor]) -> None:
        """A later exchange has ``parameters`` from now on."""
        self._given_up.update(each for each in parameters if each in self._slots)

    def begin(self, groups: _Groups) -> None:
        """Before a step: note the parameters. Those that are new are seeded, for which all workers must come here.

        Args:
            groups: the optimizer's ``param_groups`` as they are now.

        Raises:
            BytePSError: what the session raises, or another optimizer of these parameters was made later.
            AgreementError: in the first call: workers have not made the same optimizers in the same order.
        """
        session = self._here()
        self.take()
        self._generation.check()
        check_kept("DistributedOptimizer", "trains", [self._names[each] for each in self._given_up])
        self._register(session, groups)
        self._seed(session)
        with torch.no_grad():
            for slot in self._slots.values():
                if slot.before is None:
                    slot.before = slot.parameter.detach().clone()
                else:
                    slot.before.copy_(slot.parameter)

    def push(self) -> None:
        """After the optimizer's own step: push what it has changed. A parameter without a gradient has changed nothing.

        Raises:
            BytePSError: what the session raises.
        """
        session = _session.current()
        with torch.no_grad():
            for slot in self._slots.values():
                assert slot.before is not None
                array = as_array(slot.buffer)
                source = None
                if slot.parameter.grad is not None:
                    # In the parameter's own precision, and on its device.
                    torch.sub(slot.parameter, slot.before, out=slot.before)
                    slot.buffer.copy_(slot.before)
                    source = array
                slot.pending = session.submit(
                    slot.spec, source, array, Operation.DIFFERENCE, priority=slot.priority, step=self.step
                )

    def take(self) -> None:
        """Put what the servers hold into the parameters for which that is on its way.

        Raises:
            BytePSError: the first error, when nothing is on its way any more.
        """
        error: Exception | None = None
        for slot in self._slots.values():
            if slot.pending is None:
                continue
            try:
                slot.pending.wait()
            except Exception as raised:
                error = error or raised
            else:
                with torch.no_grad():
                    slot.parameter.copy_(slot.buffer)
            slot.pending = None
        if error is not None:
            raise error

    def _here(self) -> _session.Session:
        """The session. After a resume() its servers hold nothing yet, and steps count anew."""
        session = _session.current()
        if self._generation.has_changed(session):
            self.step = 0
            for slot in self._slots.values():
                slot.buffer, slot.pending = _buffer(session, slot.spec, slot.parameter), None
            self._unseeded = list(self._slots.values())
        return session

    def _register(self, session: _session.Session, groups: _Groups) -> None:
        """A slot for every parameter that requires a gradient and has none; declared in one batch."""
        parameters = dict.fromkeys(each for group in groups for each in group["params"])
        wanted = {each for each in parameters if each.requires_grad and each not in self._slots}
        if not wanted:
            return
        fill_names(self._names, groups)
        slots = [self._new_slot(session, each, place) for place, each in enumerate(self._names) if each in wanted]
        claim(self, "DistributedOptimizer", wanted, exclusive=False)
        session.declare([slot.spec for slot in slots])
        self._slots |= {slot.parameter: slot for slot in slots}
        self._unseeded += slots

    def _new_slot(self, session: _session.Session, parameter: torch.Tensor, place: int) -> _Slot:
        label = self._names[parameter]
        what = f"parameter {label!r}"
        check_dense(parameter, what)
        check_writable(parameter, what)
        spec = TensorSpec(f"{self._prefix}{label}", wire_tag(parameter.dtype, what), tuple(parameter.shape))
        return _Slot(parameter, label, spec, -place, _buffer(session, spec, parameter))

    def _seed(self, session: _session.Session) -> None:
        """The servers get the parameters of worker 0, and so do the others."""
        is_root = session.rank == _ROOT
        with torch.no_grad():
            while self._unseeded:
                slot = self._unseeded[0]
                array = as_array(slot.buffer)
                if is_root:
                    slot.buffer.copy_(slot.parameter)
                source = array if is_root else None
                slot.pending = session.submit(
                    slot.spec, source, array, Operation.SEED, root=_ROOT, priority=slot.priority
                )
                self._unseeded.pop(0)
        self.take()


def _buffer(session: _session.Session, spec: TensorSpec, parameter: torch.Tensor) -> torch.Tensor:
    return to_tensor(session.empty(spec.shape, spec.dtype.storage), parameter.dtype)


def refuse_asynchronous(what: str) -> None:
    """
    Raises:
        UnsupportedError: the servers of this job hold the parameters, and ``what`` averages gradients.
    """
    if _session.current().is_asynchronous:
        raise UnsupportedError(
            f"{what} averages gradients, and BYTEPS_ENABLE_ASYNC=1 has the servers hold the parameters instead: use "
            "DistributedOptimizer, or unset it"
        )
