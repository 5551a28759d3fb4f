"""``python -m byteps_py``: the same as the command ``bps``, which begins here too."""

from __future__ import annotations

import sys
from collections.abc import Callable

from byteps_py.entry import run


def main() -> int:
    """Run ``bps`` with the words of this process; returns the exit status."""
    return run(_load)


def _load() -> Callable[[], int]:
    from byteps_py import cli

    return cli.main


if __name__ == "__main__":
    sys.exit(main())
