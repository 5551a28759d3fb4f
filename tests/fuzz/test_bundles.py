"""Whatever stands in the tables of workers, a server takes it or complains, and serves the others."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from byteps_py.errors import RemoteProtocolError
from byteps_py.types import make_key
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.header import Opcode
from tests.helpers.rounds_stage import Item, RoundsStage, Stamp, floats, frame_of

GOOD = make_key(99, 0)
KEYS = 60
_ODD: dict[str, tuple[int, ...]] = {
    "key": (make_key(1, 1), make_key(1 << 20, 0), 2**64 - 1),
    "round": (0, 2, 3, 2**64 - 1),
    "step": (1, 2**64 - 1),
    "place": (4, 48, 2**32 - 1),
    "count": (0, 1, 16384, 2**32 - 1),
    "root": (1, 65535),
    "dtype": (0, 2, 9, 255),
    "operation": (0, 2, 3, 255),
    "flags": (0, 1, 3, 255),
}


def entry(chance: random.Random) -> tuple[Any, ...]:
    """A good one, but for a field or two."""
    fields = {"key": make_key(chance.randrange(KEYS), 0), "round": 1, "step": 0, "place": 8 * chance.randrange(5)}
    fields |= {"count": 2, "root": 0, "dtype": 1, "operation": 1, "flags": 2}
    if chance.random() < 0.1:
        fields["round"] = 2
    while chance.random() < 0.1:
        name = chance.choice(list(_ODD))
        fields[name] = chance.choice(_ODD[name])
    return (*fields.values(), b"\0\0\1" if chance.random() < 0.01 else b"")


def table(chance: random.Random) -> npt.NDArray[np.void]:
    if chance.random() < 0.05:
        return np.frombuffer(chance.randbytes(40 * chance.randrange(1, 4)), ENTRY)
    return np.array([entry(chance) for _ in range(chance.randrange(1, 12))], ENTRY)


def disturb(stage: RoundsStage, chance: random.Random) -> None:
    """One message of some kind."""
    rank = chance.randrange(2)
    key, round_ = make_key(chance.randrange(KEYS), 0), chance.choice((1, 1, 1, 2, 3))
    stamp = Stamp(chance.choice((0, 1, 2, 1 << 30))) if chance.random() < 0.2 else None
    kind = chance.random()
    if kind < 0.1:
        stage.push(rank, Item(key, floats(1, 2), round_, step=int(chance.random() < 0.1)), stamp)
    elif kind < 0.2:
        stage.send(rank, Opcode.PULL, key=key, round=round_)
    else:
        entries = table(chance)
        frames = [frame_of(entries.tobytes(), stamp), frame_of(chance.randbytes(chance.choice((0, 48, 48, 48))), stamp)]
        stage.send(rank, Opcode.PUSH_MANY, *frames, stamp=stamp, round=1, detail=len(entries))


@pytest.mark.parametrize("kernel", ["native", "reference"])
@pytest.mark.parametrize("seed", range(50))
def test_nothing_but_a_complaint(seed: int, kernel: str) -> None:
    chance = random.Random(seed)
    stage = RoundsStage((0, 0), kernel, timed=True)
    leaves = chance.random() < 0.2
    for step in range(150):
        with contextlib.suppress(RemoteProtocolError):
            disturb(stage, chance)
        if chance.random() < 0.3:
            stage.advance()
        if step == 100 and leaves:
            stage.rounds.left(1)
    for rank in (0, 1):
        stage.received(rank)
    if not leaves:
        for rank in (0, 1):
            stage.push_many(rank, [Item(GOOD, floats(1, 2))])
        (answer,) = stage.received(0)
        assert list(answer.results()) == [(GOOD, 1, floats(2, 4).tobytes(), 2)]
    stage.close()
