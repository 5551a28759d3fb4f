"""``python -m byteps_py``: the same as the command ``bps``."""

from __future__ import annotations

import sys

from byteps_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
