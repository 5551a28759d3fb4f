"""What the control messages are made of: their base, and the ranges of their fields."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

__all__ = ["MAX_TEXT", "ControlStruct", "Natural", "Positive", "Text", "Unsigned32", "Unsigned64"]

Unsigned64 = Annotated[int, msgspec.Meta(ge=0)]
"""msgpack itself ends at 2**64 - 1, and msgspec takes no bound above int64."""
Unsigned32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
MAX_TEXT: Final = 4096
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class ControlStruct(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of the control messages, each of which has its own tag."""
