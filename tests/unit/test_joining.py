"""Joining a job, when something comes between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from byteps_py.roles import joining
from byteps_py.roles.lineage import Lineage
from byteps_py.settings import WorkerSettings
from byteps_py.types import Participant, ServerInfo
from byteps_py.wire.control import Welcome


class Worker:
    """Is welcome at once."""

    made: list[Worker]

    def __init__(self, settings: WorkerSettings, endpoint: Any, *rest: object) -> None:
        self._endpoint = endpoint
        self.closed = False
        self.made.append(self)

    def start(self) -> Welcome:
        server = ServerInfo(0, "tcp://127.0.0.1:9", "host", 1, 600)
        return Welcome(1, 1, 0, (Participant(0, 0, 0, 1, "host", 1, 500),), (server,))

    def close(self, failure: str = "") -> None:
        self.closed = True
        self._endpoint.close()

    def say_goodbye(self, failure: str) -> None:
        """Not asked for here."""

    def stages(self) -> dict[str, tuple[int, float]]:
        return {}


def test_a_ctrl_c_when_the_job_was_just_joined_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    Worker.made = []
    monkeypatch.setattr(joining, "Worker", Worker)
    monkeypatch.setattr(joining, "Recorder", interrupt)
    before = [*joining._joined]
    settings = WorkerSettings(
        num_worker=1, num_server=1, root_uri="127.0.0.1", root_port=9, force_distributed=True, record=str(tmp_path)
    )
    with pytest.raises(KeyboardInterrupt):
        joining._join(settings, Lineage(settings))
    assert [each.closed for each in Worker.made] == [True]
    assert joining._joined == before
