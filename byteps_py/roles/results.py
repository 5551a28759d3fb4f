"""Where a server writes results that workers of its host read where they lie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from byteps_py.transport.base import Endpoint

__all__ = ["Results"]


class Results:
    """Two buffers for each key, used in turn, made when they are first needed.

    The result of round r is kept until all have contributed to round r+1, and round r+2 is summed after that: so what
    a buffer held before is not needed by anybody when it is written again.  Memory: at most twice the bytes of the
    keys that were ever asked for.

    Belongs to the thread that owns ``endpoint``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffers: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}

    def room(self, key: int, round_: int, nbytes: int) -> memoryview:
        """Writable memory for the result of ``round_``, ``nbytes`` long, with any content.

        Whoever still refers to what it held before can tell that it is no longer that.
        """
        place = key, round_ & 1
        buffer = self._buffers.get(place)
        if buffer is None or buffer.nbytes != nbytes:
            buffer = self._buffers[place] = self._endpoint.allocate(nbytes)
        else:
            self._endpoint.renew(buffer)
        return buffer.data
