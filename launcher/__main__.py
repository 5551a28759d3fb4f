"""``python -m byteps_py.launcher``: the same as ``bpslaunch``, which begins here too."""

from __future__ import annotations

import sys
from collections.abc import Callable

from byteps_py.entry import run

__all__ = ["main"]


def main() -> int:
    """Run ``bpslaunch`` with the words of this process; returns the exit status."""
    return run(_load)


def _load() -> Callable[[], int]:
    from byteps_py.launcher import main as command

    return command.main


if __name__ == "__main__":
    sys.exit(main())
