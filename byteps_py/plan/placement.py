"""What of a model's tensors each server would have: placed by the same table as in a job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from byteps_py.core.tensor_table import TensorTable
from byteps_py.errors import SettingsError
from byteps_py.plan.model import Placed
from byteps_py.types import TensorSpec
from byteps_py.wire.bundle import LIGHT_BYTES

__all__ = ["place"]

_BUNDLE_BYTES: Final = 256 << 10
"""Of light tensors that travel in one message."""


def place(specs: Sequence[TensorSpec], shares: Sequence[float], partition_bytes: int) -> tuple[Placed, ...]:
    """Bytes and messages for each server.

    Args:
        specs: of all tensors, declared in one batch.
        shares: that each server should have.
        partition_bytes: largest partition.

    Raises:
        SettingsError: a job could not declare them; what it would be told of the first that does not fit.
    """
    heavy, light, messages = [0] * len(shares), [0] * len(shares), [0] * len(shares)
    placements, conflicts = TensorTable(len(shares), partition_bytes, weights=shares).declare(0, specs)
    if conflicts:
        raise SettingsError(conflicts[0].text)
    by_name = {each.name: each for each in specs}
    for placement in placements:
        spec = by_name[placement.name]
        is_light = len(placement.partitions) == 1 and spec.nbytes < LIGHT_BYTES
        for piece in placement.partitions:
            nbytes = piece.count * spec.dtype.itemsize
            (light if is_light else heavy)[piece.server] += nbytes
            messages[piece.server] += not is_light
    return tuple(
        Placed(heavy[each] + light[each], messages[each] + math.ceil(light[each] / _BUNDLE_BYTES))
        for each in range(len(shares))
    )
