"""How many threads a server takes, and what it says of too many."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from byteps_py.errors import SettingsError
from byteps_py.roles import server
from byteps_py.roles.share import check_share, share_of, team_of
from byteps_py.settings import ServerSettings
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import ServerInfo
from byteps_py.wire.control import Welcome

SETTINGS = ServerSettings(num_worker=2, num_server=1, root_uri="127.0.0.1", root_port=9)


def welcome(rank: int, *hosts: str) -> Welcome:
    servers = tuple(ServerInfo(index, "tcp://127.0.0.1:1", host, 1, index) for index, host in enumerate(hosts))
    return Welcome(job=1, epoch=1, rank=rank, participants=(), servers=servers)


@pytest.mark.parametrize(
    ("hosts", "rank", "cores", "share"),
    [("a", 0, 8, 8), ("aa", 1, 8, 4), ("abb", 0, 8, 8), ("abb", 2, 8, 4), ("aaa", 0, 8, 2), ("aaa", 0, 2, 1)],
)
def test_the_servers_of_a_host_share_its_cores(hosts: str, rank: int, cores: int, share: int) -> None:
    assert share_of(welcome(rank, *hosts), cores) == share


@pytest.mark.parametrize(
    ("changed", "team", "threads"),
    [
        ({}, 4, None),
        ({"engine_threads": 2}, 2, None),
        ({"engine_threads": 3}, 1, None),
        ({"cores": 6}, 6, None),
        ({"cores": 6, "omp_num_threads": 6}, 6, None),
        ({"engine_threads": 2, "omp_num_threads": 2}, 2, None),
        ({"engine_threads": 5}, 1, "BYTEPS_SERVER_ENGINE_THREAD=5 times BYTEPS_SERVER_OMP_NUM_THREADS=1 are 5 threads"),
        (
            {"omp_num_threads": 5},
            5,
            "BYTEPS_SERVER_ENGINE_THREAD=1 times BYTEPS_SERVER_OMP_NUM_THREADS=5 are 5 threads",
        ),
    ],
)
def test_the_team(changed: dict[str, int], team: int, threads: str | None, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("byteps_py.test_share")
    settings = dataclasses.replace(SETTINGS, **changed)
    with caplog.at_level("WARNING", log.name):
        assert team_of(settings, welcome(0, "a", "a"), 8, log) == team
    if threads is None:
        assert caplog.messages == []
    else:
        (line,) = caplog.messages
        assert line.startswith(threads)
        assert "this server's share is 4 of 8 cores" in line


@pytest.mark.parametrize(("cores", "words"), [(2, "2 cores"), (1, "1 core")])
def test_more_cores_than_there_are(cores: int, words: str) -> None:
    check_share(SETTINGS, cores)
    check_share(dataclasses.replace(SETTINGS, cores=cores), cores)
    with pytest.raises(SettingsError) as caught:
        check_share(dataclasses.replace(SETTINGS, cores=9), cores)
    assert str(caught.value) == (
        f"BYTEPS_SERVER_CORES=9, but this server may run on {words} only: set no more than that, or unset it"
    )


def test_a_server_refuses_more_cores_than_there_are() -> None:
    settings = dataclasses.replace(SETTINGS, cores=65535)
    with pytest.raises(SettingsError, match="BYTEPS_SERVER_CORES=65535, but this server may run on"):
        server.run(settings, LoopbackNetwork().endpoint(b"s"))


def test_one_core_is_enough_for_any_number_of_servers(caplog: pytest.LogCaptureFixture) -> None:
    assert team_of(SETTINGS, welcome(0, *"aaaa"), 1, logging.getLogger("byteps_py.test_share")) == 1
    assert caplog.messages == []
