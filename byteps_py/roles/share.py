"""How many threads a server may use: its share of the cores of its host."""

from __future__ import annotations

import logging

from byteps_py.errors import SettingsError
from byteps_py.settings import ServerSettings
from byteps_py.wire.control import Welcome

__all__ = ["check_share", "share_of", "team_of"]


def check_share(settings: ServerSettings, cores: int) -> None:
    """Look at BYTEPS_SERVER_CORES; ``cores`` are those that this process may use.

    Raises:
        SettingsError: there are not so many.
    """
    if settings.cores is not None and settings.cores > cores:
        raise SettingsError(
            f"BYTEPS_SERVER_CORES={settings.cores}, but this server may run on {cores} core{'s' if cores > 1 else ''} "
            "only: set no more than that, or unset it"
        )


def share_of(welcome: Welcome, cores: int) -> int:
    """Cores for each server of this one's host, at least 1; ``cores`` are those that this process may use.

    They are taken to be the same for all of them; who binds servers to cores of their own sets BYTEPS_SERVER_CORES.
    """
    hosts = [each.host for each in welcome.servers]
    return max(1, cores // hosts.count(hosts[welcome.rank]))


def team_of(settings: ServerSettings, welcome: Welcome, cores: int, log: logging.Logger) -> int:
    """OpenMP threads of each engine thread: as set, or such that all of them have a core of this server's share.

    If what is set needs more, the numbers go to ``log``, once.
    """
    share = settings.cores or share_of(welcome, cores)
    engines = settings.engine_threads
    team = settings.omp_num_threads or max(1, share // engines)
    if engines * team > share:
        log.warning(
            "BYTEPS_SERVER_ENGINE_THREAD=%d times BYTEPS_SERVER_OMP_NUM_THREADS=%d are %d threads that sum, but this "
            "server's share is %d of %d cores, so they will wait for one another: set lower numbers",
            engines,
            team,
            engines * team,
            share,
            cores,
        )
    return team
