"""The command ``bps doctor``."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping

from byteps_py.doctor.examination import examine
from byteps_py.doctor.report import as_json, as_text, has_problem
from byteps_py.doctor.situation import observe
from byteps_py.role import Role
from byteps_py.standard_output import is_terminal, show

__all__ = ["run"]


def run(environ: Mapping[str, str], role: Role | None, timeout: float, *, json: bool) -> int:
    """Examine this host and print what was found.

    Args:
        environ: the environment.
        role: whose it is; None: what ``DMLC_ROLE`` says, or all roles.
        timeout: seconds that one check may take; they run at the same time.
        json: print JSON instead of text.

    Returns:
        1 if something is a problem, else 0.
    """
    situation = observe(environ, role, timeout)
    with _quiet():
        found = examine(situation)
    columns = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else 0
    show(as_json(found, situation.role) if json else as_text(found, columns))
    return int(has_problem(found))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What would be logged meanwhile is among the findings, in better words."""
    log = logging.getLogger("byteps_py")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
