"""``python -m byteps_py.launcher``: the same as ``bpslaunch``."""

from __future__ import annotations

import sys

from byteps_py.launcher.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
