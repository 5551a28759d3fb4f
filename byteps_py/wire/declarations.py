"""Control messages about tensors, and about the groups of workers that they are for.

:mod:`byteps_py.wire.control` encodes and decodes them, among all others.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final

import msgspec

from byteps_py.types import MAX_GROUP, Partition, TensorSpec, make_key
from byteps_py.wire.header import MAX_ELEMENTS
from byteps_py.wire.message import ControlStruct, Natural, Text, Unsigned32, Unsigned64

__all__ = [
    "MAX_DIMENSIONS",
    "MAX_NAME",
    "Conflict",
    "Declare",
    "Declared",
    "FormGroup",
    "Group",
    "GroupFormed",
    "GroupKnown",
    "Placement",
    "placement_problem",
    "ranks_problem",
    "tensor_problem",
]

MAX_NAME: Final = 4096
"""Longest tensor name, in characters."""
MAX_DIMENSIONS: Final = 64
"""Most dimensions of a tensor: NumPy's own limit."""

_GroupId = Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUP)]


class Declare(ControlStruct, frozen=True, tag="declare"):
    """A worker names tensors; ``request`` is echoed in the answer. Repeating it is harmless.

    ``link`` is how many bytes per second it has seen between itself and servers on other machines; 0: there are none,
    or it does not know.
    """

    request: Natural
    tensors: tuple[TensorSpec, ...]
    link: Unsigned64 = 0


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """Id and partitions of one declared tensor."""

    name: str
    tensor_id: Unsigned32
    partitions: tuple[Partition, ...]


class Declared(ControlStruct, frozen=True, tag="declared"):
    """Placements of the tensors of one Declare, in its order, without those in conflict.

    ``partition_bytes`` is the size that partitions have had at most so far; ``window_bytes`` is how much should be on
    the way from a worker to a server without being accepted, 0 where that was not chosen.
    """

    request: Natural
    placements: tuple[Placement, ...]
    partition_bytes: Natural = 0
    window_bytes: Natural = 0


class Conflict(ControlStruct, frozen=True, tag="conflict"):
    """Workers declared one name differently; sent to every worker. ``text`` names both sides with their values."""

    name: Text
    text: Text


class FormGroup(ControlStruct, frozen=True, tag="form-group"):
    """A worker wants a group of the workers ``ranks``, rising, of which it is one. Repeating it is harmless."""

    request: Natural
    ranks: tuple[Natural, ...]


class Group(ControlStruct, frozen=True, tag="group"):
    """To a server: the workers ``ranks``, rising, are the group ``group``. Repeating it is harmless."""

    group: _GroupId
    ranks: tuple[Natural, ...]


class GroupKnown(ControlStruct, frozen=True, tag="group-known"):
    """A server's answer to Group. Repeating it is harmless."""

    group: _GroupId


class GroupFormed(ControlStruct, frozen=True, tag="group-formed", omit_defaults=True):
    """The answer to a FormGroup when all servers know the group; ``problem`` says why there is none (group 0)."""

    request: Natural
    group: Annotated[int, msgspec.Meta(ge=0, le=MAX_GROUP)] = 0
    problem: Text = ""


def tensor_problem(spec: TensorSpec) -> str | None:
    """Why no such tensor can be declared; None if it can."""
    if not 1 <= len(spec.name) <= MAX_NAME:
        return f"a tensor name must have 1 to {MAX_NAME} characters, not {len(spec.name)}"
    if any("\ud800" <= each <= "\udfff" for each in spec.name):
        return f"the tensor name {spec.name!r} cannot be written in UTF-8"
    if len(spec.shape) > MAX_DIMENSIONS:
        return f"tensor {spec.name!r} has {len(spec.shape)} dimensions, more than {MAX_DIMENSIONS}"
    if not 0 <= spec.group <= MAX_GROUP:
        return f"tensor {spec.name!r} is of group {spec.group}: groups are 0 (all workers) to {MAX_GROUP}"
    elements = 1
    for extent in spec.shape:
        elements *= max(1, extent)  # NumPy, too, refuses a shape whose other dimensions are too large
        if extent < 0 or elements > MAX_ELEMENTS:
            return f"tensor {spec.name!r} cannot have the shape {spec.shape}"
    return None


def placement_problem(placement: Placement) -> str | None:
    """The partitions of a tensor must follow one another without a gap."""
    if not placement.partitions:
        return f"tensor {placement.name!r} has no partition"
    offset = 0
    for index, each in enumerate(placement.partitions):
        if each.key != make_key(placement.tensor_id, index):
            return f"partition {index} of tensor {placement.name!r} has the key {each.key:#x}"
        if each.offset != offset or each.count < 0 or each.server < 0:
            return f"partition {index} of tensor {placement.name!r} cannot be {each}"
        offset += each.count
    return None if offset <= MAX_ELEMENTS else f"tensor {placement.name!r} has {offset} elements"


def ranks_problem(ranks: tuple[int, ...]) -> str | None:
    """A group has members, each once, in the order of their ranks."""
    if ranks and all(before < after for before, after in pairwise(ranks)):
        return None
    return f"a group cannot have the ranks {ranks[:8]}: they must be rising, and at least one"
