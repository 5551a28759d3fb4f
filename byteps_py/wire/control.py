"""Control messages: typed msgpack, between the scheduler and everybody else.

A frame is ``MAGIC``, one version byte, then one msgpack map with a ``type`` tag.  Nothing is ever unpickled, and
whatever the bytes are, :func:`decode_control` gives a valid message or a RemoteProtocolError.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from byteps_py.errors import LocalProtocolError, RemoteProtocolError
from byteps_py.types import Participant, Role, ServerInfo
from byteps_py.wire.checks import list_problem, local_rank_problem
from byteps_py.wire.clock import Clock, ClockReply, clock_problem
from byteps_py.wire.declarations import (
    MAX_DIMENSIONS,
    MAX_NAME,
    Conflict,
    Declare,
    Declared,
    FormGroup,
    Group,
    GroupFormed,
    GroupKnown,
    Placement,
    placement_problem,
    ranks_problem,
    tensor_problem,
)
from byteps_py.wire.header import PROTOCOL_VERSION
from byteps_py.wire.inquiry import Inquiry, SoftwareText, Status
from byteps_py.wire.message import MAX_TEXT, ControlStruct, Natural, Positive, Text, Unsigned64

__all__ = [
    "CONTROL_MAGIC",
    "MAX_CONTROL_BYTES",
    "MAX_DIMENSIONS",
    "MAX_NAME",
    "Abort",
    "Barrier",
    "BarrierDone",
    "Bye",
    "Child",
    "ChildEnded",
    "Clock",
    "ClockReply",
    "Conflict",
    "ControlMessage",
    "Declare",
    "Declared",
    "Finished",
    "FormGroup",
    "Group",
    "GroupFormed",
    "GroupKnown",
    "Heartbeat",
    "HeartbeatReply",
    "Inquiry",
    "Left",
    "Notice",
    "Placement",
    "ProcessInfo",
    "Refused",
    "Register",
    "Status",
    "Suspended",
    "Vouch",
    "Vouched",
    "Waiting",
    "Welcome",
    "decode_control",
    "encode_control",
    "tensor_problem",
]

CONTROL_MAGIC: Final = b"BPSc"
MAX_CONTROL_BYTES: Final = 64 * 1024 * 1024
"""Longest control frame that is read; a Declare of a hundred thousand tensors stays far below."""


class ProcessInfo(msgspec.Struct, frozen=True):
    """Which process on which machine: enough to prove, on the same host, that it is gone.

    Attributes:
        host: host name for messages.
        host_id: equal for two processes exactly if they see the same process ids (boot id and pid namespace).
        pid: process id in that namespace.
        started: start time of the process in clock ticks since boot, so that a reused pid is recognised.
    """

    host: Text
    host_id: Text
    pid: Natural
    started: Unsigned64


class Register(ControlStruct, frozen=True, tag="register"):
    """A process asks to be in the job.

    ``worker_id`` is None where ``DMLC_WORKER_ID`` is not set; ``launch_id`` is equal for the processes that one
    ``bpslaunch`` started (empty otherwise).  ``address`` is where a server's data socket listens.  ``transport`` and
    ``local_reduce`` are the settings of these names, the latter a worker's.  ``software`` is for :class:`Status`.
    ``enable_async`` and ``async_max_staleness`` are those of workers and servers.  ``global_rank`` is the rank that a
    worker wishes for, and ``resumes`` tells that it was in an earlier generation.
    """

    version: Text
    job_id: Text
    role: Role
    process: ProcessInfo
    incarnation: Unsigned64
    num_worker: Positive
    num_server: Natural
    worker_id: Natural | None = None
    local_rank: Natural = 0
    local_size: Positive = 1
    launch_id: Text = ""
    address: Text = ""
    partition_bytes: Natural = 0
    transport: Text = ""
    local_reduce: Text = ""
    software: SoftwareText = ""
    enable_async: bool = False
    async_max_staleness: Natural | None = None
    global_rank: Natural | None = None
    resumes: bool = False


class Refused(ControlStruct, frozen=True, tag="refused", omit_defaults=True):
    """The answer to a Register that cannot be granted; ``settings``: because of settings that do not agree."""

    reason: Text
    settings: bool = False


class Waiting(ControlStruct, frozen=True, tag="waiting", omit_defaults=True):
    """Who is missing: said to everyone now and then before the job is complete, with ``barrier`` 0, in a sentence.

    Later it is the answer to a worker that says again that it is at ``barrier``: the names alone.
    """

    text: Text
    barrier: Natural = 0


class Notice(ControlStruct, frozen=True, tag="notice"):
    """What users should know although the job goes on: of a member, as words that follow its name; the scheduler passes
    that on to the workers as a sentence."""

    text: Text


class Welcome(ControlStruct, frozen=True, tag="welcome"):
    """The job is complete: who is in it, and which of them you are.

    ``job`` is the nonce that every data header must carry, ``rank`` the receiver's within its role.
    """

    job: Unsigned64
    epoch: Natural
    rank: Natural
    participants: tuple[Participant, ...]
    servers: tuple[ServerInfo, ...]


class Barrier(ControlStruct, frozen=True, tag="barrier"):
    """A worker reached its ``number``-th barrier (from 1). Repeating it is harmless."""

    number: Positive


class BarrierDone(ControlStruct, frozen=True, tag="barrier-done"):
    """All participants reached barrier ``number``."""

    number: Positive


class Heartbeat(ControlStruct, frozen=True, tag="heartbeat", omit_defaults=True):
    """A sign of life to the scheduler; ``job`` is the nonce of the Welcome, 0 before that."""

    job: Unsigned64 = 0


class HeartbeatReply(ControlStruct, frozen=True, tag="heartbeat-reply"):
    """The scheduler's sign of life, with what a member on the same host needs to prove that it is gone."""

    scheduler: ProcessInfo


class Bye(ControlStruct, frozen=True, tag="bye", omit_defaults=True):
    """A member leaves: a worker in order, or anyone because it dies. Repeating it is harmless.

    ``reason`` is what it dies of, as words that follow its name (``failed: ValueError: ...``); empty: in order.
    ``suspends``: a worker leaves this generation of the job, and expects another one; the answer comes when all have.
    """

    reason: Text = ""
    suspends: bool = False


class Left(ControlStruct, frozen=True, tag="left"):
    """Worker ``rank`` left in order; no round that lacks its contribution can complete any more."""

    rank: Natural


class Suspended(ControlStruct, frozen=True, tag="suspended"):
    """All workers have left this generation of the job: a server forgets it, and registers for the next one."""


class ChildEnded(ControlStruct, frozen=True, tag="child-ended"):
    """A process that a launcher started has ended: the proof that it is gone. ``status`` is -N for signal N.

    The process may be a shell that started the worker proper, so a worker's place in the launch is told too:
    ``local_rank`` is None for other roles.  ``joined`` tells that a scheduler has called this worker (of another
    process: all workers of the launch) a member: one that does not know it then is the scheduler of a later run.
    """

    job_id: Text
    process: ProcessInfo
    status: int
    launch_id: Text = ""
    worker_id: Natural | None = None
    local_rank: Natural | None = None
    local_size: Positive = 1
    joined: bool = False


class Child(msgspec.Struct, frozen=True, array_like=True):
    """A live worker process of a launch."""

    local_rank: Natural
    process: ProcessInfo


class Vouch(ControlStruct, frozen=True, tag="vouch"):
    """A launcher says that these workers live, whether they have called ``init()`` yet or not.

    Repeated, until the answer (:class:`Vouched`) lists nobody.
    """

    job_id: Text
    launch_id: Text
    worker_id: Natural | None
    local_size: Positive
    children: tuple[Child, ...]


class Vouched(ControlStruct, frozen=True, tag="vouched"):
    """The answer to a Vouch: the local ranks among those named that have not joined, and those that have.

    Nobody is missing when the job needs no more members. An answer says whom it is about, since the next Vouch may
    name others.
    """

    missing: tuple[Natural, ...]
    joined: tuple[Natural, ...] = ()


class Abort(ControlStruct, frozen=True, tag="abort", omit_defaults=True):
    """The job is over before its time; ``reason`` names the cause, ``settings`` as in Refused. Sent to everyone."""

    reason: Text
    settings: bool = False


class Finished(ControlStruct, frozen=True, tag="finished"):
    """Every participant said goodbye: servers exit with status 0."""


ControlMessage: TypeAlias = (
    Register
    | Refused
    | Waiting
    | Notice
    | Welcome
    | Declare
    | Declared
    | Conflict
    | FormGroup
    | Group
    | GroupKnown
    | GroupFormed
    | Barrier
    | BarrierDone
    | Heartbeat
    | HeartbeatReply
    | Clock
    | ClockReply
    | Bye
    | Left
    | Suspended
    | ChildEnded
    | Vouch
    | Vouched
    | Inquiry
    | Status
    | Abort
    | Finished
)

_PREFIX: Final = CONTROL_MAGIC + bytes([PROTOCOL_VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)


def encode_control(message: ControlMessage) -> bytes:
    """The frame of ``message``; a text for people that is too long is cut.

    Raises:
        LocalProtocolError: the receiver would refuse the message.
    """
    try:
        frame = _PREFIX + _encoder.encode(_readable(message))
        decode_control(frame)
    except (RemoteProtocolError, ValueError, OverflowError, TypeError) as error:
        raise LocalProtocolError(f"{type(message).__name__} cannot be sent: {error}") from error
    return frame


def decode_control(frame: bytes | bytearray | memoryview) -> ControlMessage:
    """Parse and check one control frame.

    Raises:
        RemoteProtocolError: for anything that is not a control message of this protocol version.
    """
    view = memoryview(frame)
    if len(view) > MAX_CONTROL_BYTES:
        raise RemoteProtocolError(f"a control frame of {len(view)} bytes is longer than {MAX_CONTROL_BYTES}")
    if bytes(view[:4]) != CONTROL_MAGIC:
        raise RemoteProtocolError(f"not a byteps_py control message: it starts with {bytes(view[:4])!r}")
    if len(view) < len(_PREFIX) or view[4] != PROTOCOL_VERSION:
        theirs = view[4] if len(view) > 4 else "none"
        raise RemoteProtocolError(
            f"the peer speaks protocol version {theirs}, this process {PROTOCOL_VERSION}: "
            "install the same byteps_py everywhere"
        )
    try:
        message = _decoder.decode(view[len(_PREFIX) :])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a control message is malformed: {error}") from error
    problem = _problem(message)
    if problem is not None:
        raise RemoteProtocolError(f"a control message of type {type(message).__name__} is wrong: {problem}")
    return message


def _readable(message: ControlMessage) -> ControlMessage:
    """A text for people must not fail to arrive because it is long or quotes bytes that are no UTF-8."""
    if isinstance(message, (Refused, Abort, Bye)):
        return msgspec.structs.replace(message, reason=_cut(message.reason))
    if isinstance(message, (Waiting, Notice, Conflict)):
        return msgspec.structs.replace(message, text=_cut(message.text))
    if isinstance(message, GroupFormed):
        return msgspec.structs.replace(message, problem=_cut(message.problem))
    if isinstance(message, Status):
        return msgspec.structs.replace(message, missing=_cut(message.missing))
    return message


def _cut(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _problem(message: ControlMessage) -> str | None:
    """What is wrong with a message whose fields have the right types; None if nothing is."""
    if isinstance(message, Declare):
        return next((problem for spec in message.tensors if (problem := tensor_problem(spec))), None)
    if isinstance(message, Declared):
        return next((problem for each in message.placements if (problem := placement_problem(each))), None)
    if isinstance(message, (FormGroup, Group)):
        return ranks_problem(message.ranks)
    if isinstance(message, Welcome):
        return list_problem("participant", message.participants) or list_problem("server", message.servers)
    if isinstance(message, ClockReply):
        return clock_problem(message)
    if isinstance(message, Vouch):
        return local_rank_problem(message.local_size, [child.local_rank for child in message.children])
    return None
