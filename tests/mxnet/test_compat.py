"""Scripts for MXNet that know ``byteps`` only run to the end; the names are BytePS's."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from tests.helpers.compat import SCRIPTS, byteps_known, differences
from tests.helpers.documents import run

pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

NAMES = {
    **dict.fromkeys(("shutdown", "suspend", "size", "local_size", "rank", "local_rank"), ""),
    "init": "lazy=True",
    "resume": "num_workers, num_servers, global_rank, context=None",
    "byteps_push_pull": "tensor, version=0, priority=0, name=None, is_average=True",
}
TRAINING = {
    "DistributedOptimizer": "optimizer",
    "DistributedTrainer": "params, optimizer, optimizer_params=None, root_rank=0, compression_params=None",
    "broadcast_parameters": "params, root_rank=0",
}


@pytest.mark.parametrize(("module", "names"), [("byteps.mxnet", NAMES | TRAINING), ("byteps.mxnet.ops", NAMES)])
def test_the_names_are_there(module: str, names: dict[str, str]) -> None:
    with byteps_known():
        found = importlib.import_module(module)
        for name, parameters in names.items():
            assert name in found.__all__
            assert differences(getattr(found, name), parameters) == [], name
        assert "byteps_declare_tensor" in found.__all__


def test_there_is_one_copy_of_everything() -> None:
    import byteps_py.mxnet as own

    with byteps_known():
        theirs = importlib.import_module("byteps.mxnet")
        for name in set(own.__all__) - {"init", "resume"}:
            assert getattr(theirs, name) is getattr(own, name), name
        assert theirs.ops.suspend is own.suspend
        assert theirs.compression.Compression.fp16 is own.Compression.fp16


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("script", "words"), [("gluon.py", ()), ("gluon.py", ("--fp16-pushpull",)), ("module.py", ())])
def test_a_script_runs_to_the_end(script: str, words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "byteps_py.launcher", "--compat", "-n", "2", "-s", "1", "--"]
    output = run([*command, sys.executable, str(SCRIPTS / script), *words], tmp_path, timeout=100)
    assert sorted(re.findall(r"^\[worker \d\] done (\d) (\d)$", output, re.MULTILINE)) == [("0", "2"), ("1", "2")]
