"""Many small tensors in one message: the table that stands between header and payload.

A PUSH_MANY or RESULT_MANY has the frames *header*, *table*, *payload*.  The header's ``detail`` is the number of
entries of the table, its ``length`` the bytes of the payload; ``round`` of a PUSH_MANY is the number that the worker
gave the message, by which it is accepted as a whole (an ACCEPT of the key :data:`BUNDLE_KEY` and that round); ``round``
of a RESULT_MANY is 1.  ``key``, ``step``, ``offset`` and ``count`` are 0.

Each entry is about one tensor that has one partition, so its key is that of partition 0 and its offset is 0.  All
numbers are little-endian:

==== ========= =====================================================================================
byte field     meaning
==== ========= =====================================================================================
0    key       8 bytes
8    round     8 bytes; from 1
16   step      8 bytes; the training step, which must agree within a round
24   place     4 bytes; where the elements begin in the payload, in bytes: a multiple of 8
28   count     4 bytes; number of elements
32   root      2 bytes; 0 in a PUSH_MANY, in a RESULT_MANY the number of contributors
34   dtype     1 byte
35   operation 1 byte; SUM or AVERAGE
36   flags     1 byte; ABSENT (then nothing lies at ``place``) and, in a PUSH_MANY, WANT_RESULT, which must be set
37   --        3 bytes; 0
==== ========= =====================================================================================
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from byteps_py.errors import RemoteProtocolError
from byteps_py.wire.header import Header

__all__ = ["BUNDLE_KEY", "ENTRY", "ENTRY_LAYOUT", "ENTRY_SIZE", "LIGHT_BYTES", "PLACE_ALIGNMENT", "check_table"]

ENTRY: Final = np.dtype(
    [
        ("key", "<u8"),
        ("round", "<u8"),
        ("step", "<u8"),
        ("place", "<u4"),
        ("count", "<u4"),
        ("root", "<u2"),
        ("dtype", "u1"),
        ("operation", "u1"),
        ("flags", "u1"),
        ("padding", "V3"),
    ]
)
"""One entry, as NumPy reads it and as C declares it (``struct byteps_entry``)."""
ENTRY_LAYOUT: Final = struct.Struct("<QQQIIHBBB3x")
"""The same, for one entry after the other."""
ENTRY_SIZE: Final = 40
BUNDLE_KEY: Final = 2**64 - 1
"""No tensor's key: in an ACCEPT, the round beside it is the number of a PUSH_MANY."""
LIGHT_BYTES: Final = 65536
"""A tensor of one partition and fewer bytes than this may travel with others in one message."""
PLACE_ALIGNMENT: Final = 8


def check_table(header: Header, table: memoryview) -> None:
    """The table has as many entries as the header says. Entries are checked by those who use them.

    Raises:
        RemoteProtocolError: it has not.
    """
    if table.nbytes != header.detail * ENTRY_SIZE:
        raise RemoteProtocolError(
            f"{header.opcode.name} announces {header.detail} entries of {ENTRY_SIZE} bytes and carries {table.nbytes}"
        )
