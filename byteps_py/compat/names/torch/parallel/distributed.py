"""``byteps.torch.parallel.distributed``."""

from __future__ import annotations

from byteps_py.torch.parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
