"""Which connection of several a message takes."""

from __future__ import annotations

import pytest

from byteps_py.transport import routes
from byteps_py.transport.routes import LARGE_BYTES, Routes, is_large, owner, route

SMALL, LARGE = [b"head"], [b"head", bytes(LARGE_BYTES)]


@pytest.mark.parametrize("number", range(16))
def test_each_connection_is_of_its_owner(number: int) -> None:
    assert owner(route(b"worker-1", number)) == b"worker-1"
    assert (route(b"worker-1", number) == b"worker-1") is (number == 0)


@pytest.mark.parametrize(
    "name", [b"worker", b"worker/", b"worker/0", b"worker/16", b"worker/01", b"worker/ 1", b"/1/x"]
)
def test_other_names_are_taken_as_they_are(name: bytes) -> None:
    assert owner(name) == name


@pytest.mark.parametrize(
    ("frames", "large"),
    [(SMALL, False), (LARGE, True), ([memoryview(bytes(LARGE_BYTES)).cast("f")], True), ([], False)],
)
def test_what_is_large(frames: list[bytes], large: bool) -> None:
    assert is_large(frames) is large


def test_a_peer_of_one_connection() -> None:
    assert Routes().candidates(b"a", LARGE) == (b"a",)


def test_large_messages_take_turns_and_small_ones_the_first() -> None:
    made = Routes()
    for _ in range(2):
        made.add(b"a", b"a/2")
        made.add(b"a", b"a/1")
    assert sorted(made.candidates(b"a", LARGE)[0] for _ in range(6)) == [b"a", b"a", b"a/1", b"a/1", b"a/2", b"a/2"]
    assert {len(made.candidates(b"a", each)) for each in (SMALL, LARGE)} == {3}
    assert made.candidates(b"a", SMALL)[0] == b"a"
    assert made.candidates(b"b", LARGE) == (b"b",)


def test_what_is_gone_is_left_out_until_it_is_back() -> None:
    made = Routes()
    made.add(b"a", b"a/1")
    made.add(b"a", b"a/2")
    for gone in (b"a", b"a/1", b"a/1", b"b/1"):
        made.drop(gone)
    assert sorted(made.candidates(b"a", LARGE)) == [b"a", b"a/2"]
    made.drop(b"a/2")
    assert made.candidates(b"a", LARGE) == (b"a",)
    made.add(b"a", b"a/1")
    assert made.candidates(b"a", SMALL) == (b"a", b"a/1")


def test_strangers_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_MOST_PEERS", 2)
    made = Routes()
    for peer in (b"a", b"b", b"c"):
        made.add(peer, peer + b"/1")
        made.add(peer, peer + b"/2")
    assert [len(made.candidates(peer, SMALL)) for peer in (b"a", b"b", b"c")] == [3, 3, 1]
