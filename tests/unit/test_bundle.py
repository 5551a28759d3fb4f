"""The table of many small tensors, byte by byte."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from byteps_py.errors import RemoteProtocolError
from byteps_py.roles.envelope import open_bundle
from byteps_py.types import DType, Operation, make_key
from byteps_py.wire.bundle import ENTRY, ENTRY_LAYOUT, ENTRY_SIZE, check_table
from byteps_py.wire.header import Flag, encode
from tests.helpers import golden
from tests.helpers.messages import BUNDLES

PROTOCOL = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_every_offset() -> None:
    assert ENTRY.itemsize == ENTRY_SIZE
    assert ENTRY.names is not None
    assert ENTRY.fields is not None
    assert {name: (int(ENTRY.fields[name][1]), ENTRY[name].itemsize) for name in ENTRY.names} == {
        "key": (0, 8),
        "round": (8, 8),
        "step": (16, 8),
        "place": (24, 4),
        "count": (28, 4),
        "root": (32, 2),
        "dtype": (34, 1),
        "operation": (35, 1),
        "flags": (36, 1),
        "padding": (37, 3),
    }


@pytest.mark.parametrize("name", BUNDLES)
def test_golden_bytes(name: str) -> None:
    header, table, payload = BUNDLES[name]
    frames = golden.read(f"{name}.hex")
    assert frames == [encode(header), table, payload]
    opened = open_bundle([memoryview(each) for each in frames])
    assert (opened[0], bytes(opened[1]), bytes(opened[2])) == (header, table, payload)


def test_the_fields_of_an_entry() -> None:
    first, second = np.frombuffer(BUNDLES["push-many"][1], ENTRY)
    assert (first["key"], first["round"], first["step"], first["place"]) == (make_key(7, 0), 5, 41, 0)
    assert (first["count"], first["root"], first["dtype"]) == (2, 0, DType.FLOAT32)
    assert (first["operation"], first["flags"]) == (Operation.AVERAGE, Flag.WANT_RESULT)
    assert second["flags"] == Flag.WANT_RESULT | Flag.ABSENT


@pytest.mark.parametrize("nbytes", [0, 40, 79, 81, 120])
def test_a_table_of_another_size_is_refused(nbytes: int) -> None:
    header = BUNDLES["push-many"][0]
    with pytest.raises(RemoteProtocolError, match=f"PUSH_MANY announces 2 entries of 40 bytes and carries {nbytes}"):
        check_table(header, memoryview(bytes(nbytes)))


def test_the_document_draws_the_same_table() -> None:
    section = PROTOCOL.partition("### Bundles")[2].partition("### The way of one round")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d)", section, re.MULTILINE)
    assert ENTRY.names is not None
    assert ENTRY.fields is not None
    assert [(int(place), name, int(size)) for place, name, size in rows] == [
        (ENTRY.fields[name][1], name, ENTRY[name].itemsize) for name in ENTRY.names
    ]


def test_both_layouts_of_an_entry_are_one() -> None:
    values = (1, 2, 3, 8, 5, 6, 7, 1, 2)
    packed = ENTRY_LAYOUT.pack(*values)
    assert len(packed) == ENTRY_SIZE == ENTRY.itemsize
    assert np.frombuffer(packed, ENTRY)[0].item()[:-1] == values
