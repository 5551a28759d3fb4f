"""What a process that torchrun has started adds to its environment."""

from __future__ import annotations

import pytest

from byteps_py.errors import SettingsError
from byteps_py.settings import WorkerSettings, read
from byteps_py.torchrun import worker_variables

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "6",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "2",
    "GROUP_WORLD_SIZE": "3",
}
JOB = {"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "4000", "DMLC_NUM_SERVER": "2"}


def test_it_becomes_a_worker_whose_settings_are_complete() -> None:
    environ = TORCHRUN | JOB
    settings = read(WorkerSettings, environ | worker_variables(environ))
    assert worker_variables(environ)["DMLC_ROLE"] == "worker"
    assert (settings.num_worker, settings.worker_id) == (3, 2)
    assert (settings.local_rank, settings.local_size) == (1, 2)


def test_what_is_set_goes_before() -> None:
    environ = TORCHRUN | JOB | {"DMLC_NUM_WORKER": "4", "BYTEPS_LOCAL_SIZE": " ", "DMLC_WORKER_ID": "3"}
    assert worker_variables(environ) == {
        "DMLC_ROLE": "worker",
        "BYTEPS_LOCAL_SIZE": "2",
        "BYTEPS_LOCAL_RANK": "1",
    }


@pytest.mark.parametrize(
    "environ",
    [
        {},
        JOB,
        TORCHRUN | JOB | {"DMLC_ROLE": "worker"},
        {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"} | JOB,
        TORCHRUN | {"WORLD_SIZE": "1"},
    ],
)
def test_nothing_is_added_elsewhere_nor_to_a_process_that_is_alone(environ: dict[str, str]) -> None:
    assert worker_variables(environ) == {}


def test_several_processes_without_a_scheduler_are_told_what_to_start() -> None:
    with pytest.raises(SettingsError, match="started 6 processes, but DMLC_PS_ROOT_URI is not set") as caught:
        worker_variables(TORCHRUN)
    assert "`bps scheduler`" in str(caught.value)
