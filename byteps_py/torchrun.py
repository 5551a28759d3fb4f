"""Workers that ``torchrun`` has started: what it tells them, in the variables that byteps_py reads.

=====================  =================================
variable               taken from, where it is not set
=====================  =================================
DMLC_ROLE              ``worker``
DMLC_NUM_WORKER        ``GROUP_WORLD_SIZE``: machines
DMLC_WORKER_ID         ``GROUP_RANK``
BYTEPS_LOCAL_SIZE      ``LOCAL_WORLD_SIZE``
BYTEPS_LOCAL_RANK      ``LOCAL_RANK``
=====================  =================================

Where the scheduler is and how many servers there are it does not know: these are started apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from byteps_py.errors import SettingsError

__all__ = ["worker_variables"]

_SOURCES: Final = {
    "DMLC_NUM_WORKER": "GROUP_WORLD_SIZE",
    "DMLC_WORKER_ID": "GROUP_RANK",
    "BYTEPS_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
    "BYTEPS_LOCAL_RANK": "LOCAL_RANK",
}
_ADVICE: Final = (
    "start a scheduler and servers (`bps scheduler`, `bps server`, with BYTEPS_FORCE_DISTRIBUTED=1 where there is one "
    "machine), and set DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT and DMLC_NUM_SERVER for torchrun; or start the script by "
    "`bpslaunch`"
)


def worker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """What is to be added to the environment of a process so that it is a worker. Pure.

    Returns:
        nothing if torchrun has not started it, if it has a role already, or if it is the only one.

    Raises:
        SettingsError: torchrun has started several processes, and nothing says where their scheduler is.
    """

    def word(name: str) -> str:
        return environ.get(name, "").strip()

    if not word("TORCHELASTIC_RUN_ID") or word("DMLC_ROLE"):
        return {}
    if not word("DMLC_PS_ROOT_URI"):
        if word("WORLD_SIZE") in ("", "1"):
            return {}
        raise SettingsError(
            f"torchrun has started {word('WORLD_SIZE')} processes, but DMLC_PS_ROOT_URI is not set, so this one does "
            f"not know its scheduler: {_ADVICE}"
        )
    added = {"DMLC_ROLE": "worker"}
    added |= {name: word(source) for name, source in _SOURCES.items() if not word(name) and word(source)}
    return added
