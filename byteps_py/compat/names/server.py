"""``byteps.server``: importing it runs the role that ``DMLC_ROLE`` names, a server where it names none.

It ends when the job is over, and when the role has failed the program ends, with the exit status of ``bps server`` or
``bps scheduler``.
"""

from __future__ import annotations

import sys

from byteps_py import cli
from byteps_py.errors import SettingsError
from byteps_py.role import Role
from byteps_py.settings import read_role

__all__ = ()


def _run() -> int:
    try:
        role = read_role() or Role.SERVER
    except SettingsError as error:
        for problem in error.problems:
            print(f"byteps.server: {problem}", file=sys.stderr)
        return cli.USAGE
    if role is Role.WORKER:
        raise ImportError(
            "`import byteps.server` runs a server or a scheduler, and DMLC_ROLE=worker says that this process is "
            "neither: leave the import out, or set DMLC_ROLE=server"
        )
    return cli.main([str(role)])


if not __name__.startswith("byteps_py.") and (_status := _run()):
    sys.exit(_status)
