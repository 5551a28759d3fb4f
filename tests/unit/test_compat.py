"""``byteps`` by name: what is found under it, and that it has BytePS's names and signatures."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import byteps_py
from byteps_py.compat import finder
from byteps_py.compat.__main__ import interpreter_options
from byteps_py.errors import NotInitializedError
from tests.helpers.compat import byteps_known, differences

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

CALL = "tensor, average=True, name=None, version=0, priority=0"
RESUME = "num_workers, num_servers, global_rank, context=None"
BASICS = {
    **dict.fromkeys(("shutdown", "suspend", "size", "local_size", "rank", "local_rank"), ""),
    "init": "lazy=True",
    "resume": RESUME,
}
OPTIMIZER = "optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1"
TORCH = {
    "byteps.torch": {
        **BASICS,
        "push_pull": f"{CALL}, compression=Compression.none",
        "byteps_push_pull": CALL,
        "poll": "handle",
        "synchronize": "handle",
        "declare": "name",
        "DistributedOptimizer": OPTIMIZER,
        "broadcast_parameters": "params, root_rank, prefix='Parameter.'",
        "broadcast_optimizer_state": "optimizer, root_rank",
        "broadcast_object": "obj, root_rank=0, name=None",
    },
    "byteps.torch.ops": {
        **BASICS,
        "push_pull": f"{CALL}, compression=Compression.none",
        "push_pull_async": CALL,
        "push_pull_async_inplace": CALL,
        "push_pull_inplace": CALL,
        "push_pull_group_sync_inplace": CALL,
        "byteps_torch_set_num_grads": "num_grads",
        "poll": "handle",
        "synchronize": "handle",
        "declare": "name",
    },
    "byteps.torch.parallel": {
        "DistributedDataParallel": "module, device_ids=None, broadcast_buffers=True, compression=Compression.none",
    },
    "byteps.torch.parallel.distributed": {
        "DistributedDataParallel": "module, device_ids=None, broadcast_buffers=True, compression=Compression.none",
    },
    "byteps.torch.cross_barrier": {
        **BASICS,
        "CrossBarrier": f"model, {OPTIMIZER}, num_steps=10**6",
        "DistributedOptimizer": OPTIMIZER,
        "push_pull": f"{CALL}, compression=Compression.none",
        "byteps_push_pull": CALL,
        "broadcast_parameters": "params, root_rank, prefix='Parameter.'",
        "broadcast_optimizer_state": "optimizer, root_rank",
    },
}
"""BytePS's names and parameters by module."""


@pytest.fixture
def known() -> Iterator[None]:
    with byteps_known():
        yield


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the path that is called byteps."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "byteps").mkdir()
    return tmp_path / "byteps"


@needs_torch
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("module", TORCH)
def test_the_names_of_torch_are_there(module: str) -> None:
    from byteps_py.torch import Compression

    found = importlib.import_module(module)
    for name, parameters in TORCH[module].items():
        assert name in found.__all__
        assert differences(getattr(found, name), parameters, Compression=Compression) == [], f"{module}.{name}"


@needs_torch
@pytest.mark.usefixtures("known")
def test_there_is_one_copy_of_everything() -> None:
    import byteps_py.torch as own

    theirs = importlib.import_module("byteps.torch")
    for name in set(own.__all__) - {"init", "resume"}:
        assert getattr(theirs, name) is getattr(own, name), name
    assert importlib.import_module("byteps.torch") is theirs
    assert theirs.ops is importlib.import_module("byteps.torch.ops")
    assert theirs.compression.Compression.fp16 is theirs.compression.FP16Compressor is own.Compression.fp16
    parallel = importlib.import_module("byteps.torch.parallel")
    from byteps_py.torch.parallel import DistributedDataParallel

    assert parallel.DistributedDataParallel is DistributedDataParallel


@pytest.mark.usefixtures("known")
def test_common() -> None:
    common = importlib.import_module("byteps.common")
    basics = common.BytePSBasics("byteps/torch", "c_lib")
    for name, parameters in {**BASICS, "get_pushpull_speed": ""}.items():
        assert differences(getattr(common, name), parameters) == []
        assert differences(getattr(basics, name), parameters) == []
    for name in ("rank", "size", "local_rank", "local_size", "get_pushpull_speed"):
        with pytest.raises(ValueError, match="call init"):
            getattr(basics, name)()
        with pytest.raises(NotInitializedError):
            getattr(common, name)()


@pytest.mark.usefixtures("known", "alone")
def test_basics_of_a_session() -> None:
    basics = importlib.import_module("byteps.common").BytePSBasics()
    basics.init()
    assert (basics.rank(), basics.size(), basics.local_rank(), basics.local_size()) == (0, 1, 0, 1)
    assert basics.get_pushpull_speed() == (0, -5.0)
    basics.shutdown()
    assert not byteps_py.is_initialized()


@pytest.mark.usefixtures("known")
def test_suspend_and_resume_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    basics = importlib.import_module("byteps.common")
    assert basics.suspend is byteps_py.suspend
    calls: list[Any] = []
    monkeypatch.setattr("byteps_py.suspension.suspend", lambda: calls.append("suspend"))
    monkeypatch.setattr("byteps_py.suspension.resume", lambda *numbers: calls.append(numbers))
    basics.BytePSBasics().suspend()
    basics.resume(2, 1, 0)
    basics.BytePSBasics().resume(num_workers=3, num_servers=2, global_rank=1, context=None)
    assert calls == ["suspend", (2, 1, 0), (3, 2, 1)]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", ["tensorflow", "tensorflow.keras", "keras", "keras.callbacks"])
def test_plugins_that_are_not_there_say_so(name: str) -> None:
    title = "TensorFlow" if name.startswith("tensorflow") else "Keras"
    with pytest.raises(ImportError, match=rf"byteps_py has no plugin for {title}; .* byteps.torch"):
        importlib.import_module(f"byteps.{name}")


@pytest.mark.usefixtures("known")
def test_what_nobody_has_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'byteps.nothing'"):
        importlib.import_module("byteps.nothing")


@pytest.mark.timeout(60)
def test_what_is_not_asked_for_is_not_loaded() -> None:
    code = (
        "import sys; start = 'byteps_py' in sys.modules; import byteps; loaded = {'numpy', 'zmq'} & set(sys.modules); "
        "import byteps.common; print(start, byteps.__version__, loaded, {'torch', 'mxnet'} & set(sys.modules))"
    )
    command = [sys.executable, "-m", "byteps_py.compat", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "False 0.2.5 set() set()\n"


@pytest.mark.usefixtures("known")
def test_a_real_one_is_used_instead(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "__init__.py").write_text("real = True", encoding="utf-8")
    assert importlib.import_module("byteps").real
    told = f"byteps_py: there is a package byteps, which is used instead of byteps_py: {package / '__init__.py'}\n"
    assert capsys.readouterr().err == told
    del sys.modules["byteps"]
    importlib.import_module("byteps")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("known")
def test_a_folder_of_that_name_is_no_package(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as a clone of BytePS, beside which the program is started."""
    (package / "byteps").mkdir()
    assert importlib.import_module("byteps").__version__ == "0.2.5"
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("known")
def test_finders_that_come_later_are_asked_too(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "__init__.py").write_text("real = True", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(package.parent)])
    assert importlib.import_module("byteps").__version__ == "0.2.5"
    del sys.modules["byteps"]

    class Late:
        def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
            if name != "byteps":
                return None
            return importlib.util.spec_from_file_location(name, package / "__init__.py")

    late: Any = Late()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, late])
    assert importlib.import_module("byteps").real


@pytest.mark.usefixtures("known")
def test_finders_of_the_old_kind_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    old: Any = SimpleNamespace(find_module=lambda name, path=None: None)
    monkeypatch.setattr(sys, "meta_path", [sys.meta_path[0], old, *sys.meta_path[1:]])
    assert finder.find(sys.meta_path[0]).submodule_search_locations == [str(finder.NAMES)]


def test_other_names_are_nobodys_business() -> None:
    assert finder.find().submodule_search_locations == [str(finder.NAMES)]
    with byteps_known():
        assert sys.meta_path[0].find_spec("bytepsx", None) is None
        assert sys.meta_path[0].find_spec("byteps.torch", None) is None


@pytest.mark.parametrize(
    ("line", "count", "options"),
    [
        (["python", "-m", "byteps_py.compat", "x.py", "-m"], 2, []),
        (["python", "-u", "-X", "dev", "-m", "byteps_py.compat"], 0, ["-u", "-X", "dev"]),
        (["python", "-um", "byteps_py.compat", "x.py"], 1, ["-u"]),
        (["python", "-mbyteps_py.compat", "x.py"], 1, []),
        (["python", "-W", "error", "-ubmbyteps_py.compat", "-c", "1"], 2, ["-W", "error", "-ub"]),
        (["python", "somewhere/compat/__main__.py", "x.py"], 1, []),
        (["python"], 0, []),
    ],
)
def test_options_of_the_interpreter(line: list[str], count: int, options: list[str]) -> None:
    assert interpreter_options(line, count) == options
