"""The last match of a regular expression in a file, as a program: ``python -I searching.py SECONDS REGEX FILE``.

A pattern such as ``(a+)+b`` may need longer than anybody lives, and Python looks at no signal meanwhile.  So the search
has a process, which the kernel ends when its time is up, and which can be killed.  It prints a JSON list: nothing, or
the first group (or null) and the whole match.  It needs nothing but the standard library.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence

__all__ = ["LABEL", "last_match", "main"]

LABEL = re.compile(r"^\[(?:scheduler|(?:server|worker) \d+)\] ")
"""What the launcher puts before each line that it prints."""


def last_match(metric: str, path: str) -> list[str | None]:
    """The first group and the whole of the last match of ``metric``; empty without one.

    Lines are looked at one by one, without the label that the launcher puts before them; what a progress bar has
    written over counts as well.

    Raises:
        OSError: the file cannot be read.
    """
    pattern = re.compile(metric)
    found: re.Match[str] | None = None
    with open(path, encoding="utf-8", errors="replace", newline=None) as file:
        for line in file:
            for found in pattern.finditer(LABEL.sub("", line.rstrip("\n"))):  # noqa: B007
                pass
    return [] if found is None else [found.group(1), found.group()]


def main(words: Sequence[str]) -> int:
    """Search, with the time in seconds, the pattern and the file as words; SIGALRM ends it when the time is up."""
    seconds, metric, path = words
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    print(json.dumps(last_match(metric, path)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
