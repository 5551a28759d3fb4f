"""Models from files and by name, and what each server would have of them."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from byteps_py.errors import SettingsError
from byteps_py.plan.known_models import KNOWN
from byteps_py.plan.placement import place
from byteps_py.plan.tensors import read_model
from byteps_py.types import DType, TensorSpec


def safetensors(header: object, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def found(path: Path, content: bytes, dtype: DType = DType.FLOAT32) -> dict[str, tuple[DType, tuple[int, ...]]]:
    path.write_bytes(content)
    return {each.name: (each.dtype, each.shape) for each in read_model(str(path), dtype).specs}


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("resnet18", 11_689_512, 62),
        ("resnet50", 25_557_032, 161),
        ("vgg16", 138_357_544, 32),
        ("bert-large", 335_141_888, 391),
    ],
)
def test_well_known_models_have_the_parameters_that_are_known(name: str, parameters: int, tensors: int) -> None:
    model = read_model(name, DType.BFLOAT16)
    assert model.nbytes == 2 * parameters
    assert len({each.name for each in model.specs}) == len(model.specs) == tensors
    assert model.name == name


def test_all_well_known_models_are_tested() -> None:
    assert set(KNOWN) == {"resnet18", "resnet50", "vgg16", "bert-large"}


def test_resnet18_is_that_of_the_benchmarks() -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    from benchmarks import models

    ours = sorted(each.count for each in read_model("resnet18").specs)
    assert ours == sorted(each.numel() for each in models.resnet18().parameters())


def test_json(tmp_path: Path) -> None:
    named = found(tmp_path / "a.json", b'{"weight": [512, 10], "scale": []}', DType.FLOAT16)
    assert named == {"weight": (DType.FLOAT16, (512, 10)), "scale": (DType.FLOAT16, ())}
    listed = found(tmp_path / "b.json", b"[[3, 4], [5]]")
    assert listed == {"tensor0": (DType.FLOAT32, (3, 4)), "tensor1": (DType.FLOAT32, (5,))}


def test_npz(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez(stream, w=np.zeros((3, 4), np.float32), h=np.zeros(5, np.float16), step=np.zeros(1, np.int64))
    assert found(tmp_path / "m.NPZ", stream.getvalue()) == {
        "w": (DType.FLOAT32, (3, 4)),
        "h": (DType.FLOAT16, (5,)),
    }


def test_safetensors(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [48, 52]},
        "count": {"dtype": "I64", "shape": [], "data_offsets": [52, 60]},
    }
    assert found(tmp_path / "m.safetensors", safetensors(header)) == {
        "w": (DType.FLOAT32, (3, 4)),
        "b": (DType.BFLOAT16, (2,)),
    }


def test_a_state_dict_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    path = tmp_path / "m.pt"
    torch.save({"model": {"w": torch.zeros(3, 4, dtype=torch.bfloat16), "n": torch.zeros((), dtype=torch.long)}}, path)
    assert [(each.name, each.dtype, each.shape) for each in read_model(str(path)).specs] == [
        ("model.w", DType.BFLOAT16, (3, 4))
    ]


OTHER_OBJECTS = "it holds other objects than tensors and plain containers, such as a whole model, or is damaged"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("text", "it is damaged, or torch.save has not written it"),
        ("half", "it is damaged, or torch.save has not written it"),
        ("pickle", "it is damaged, or torch.save has not written it"),
        ("archive", "torch.save has not written it"),
        ("program", "it is a program of TorchScript"),
        ("objects", OTHER_OBJECTS),
        ("model", OTHER_OBJECTS),
    ],
)
def test_other_files_than_state_dicts_are_refused_in_our_words(
    kind: str, why: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Those of torch would have people load objects without a check."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    path, model = tmp_path / "m.pt", torch.nn.Linear(2, 3)
    if kind == "text":
        path.write_bytes(b"no archive")
    elif kind == "half":
        torch.save(model.state_dict(), path)
        path.write_bytes(path.read_bytes()[:700])
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"a": 1}))
    elif kind == "archive":
        path.write_bytes(archive("w.npy", b""))
    elif kind == "program":
        with zipfile.ZipFile(path, "w") as stream:
            for name in ("constants.pkl", "data.pkl"):
                stream.writestr(f"m/{name}", b"")
    else:
        torch.save({"w": torch.zeros(3), "path": Path("x")} if kind == "objects" else model, path)
    with pytest.raises(SettingsError) as error:
        read_model(str(path))
    assert str(error.value) == (
        f"--model {path} cannot be read as .pt file: {why}; wanted is what torch.save(model.state_dict(), FILE) has "
        "written"
    )
    assert not recwarn.list


def test_without_torch_its_files_are_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "byteps_py.torch", None)
    with pytest.raises(SettingsError, match=r"or save it as \.safetensors"):
        read_model(str(tmp_path / "m.pt"))


def archive(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as opened:
        opened.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", "cannot be read as .json file"),
        ("a.json", b"\xff", "cannot be read as .json file"),
        ("a.json", b"7", "an object of names and shapes"),
        ("a.json", b"[" * 100_000, "cannot be read as .json file"),
        ("a.json", b'{"w": [-1]}', "the shape of 'w' must be a list of whole numbers"),
        ("a.json", b'{"w": [1.5]}', "the shape of 'w'"),
        ("a.json", b'{"w": [true]}', "the shape of 'w'"),
        ("a.json", b'{"w": "wide"}', "the shape of 'w'"),
        ("a.json", b'{"w": [1000000000, 1000000000, 1000000000]}', "is too large"),
        ("a.json", b"{}", "there is no tensor of floating-point numbers"),
        ("a.json", b"[[0]]", "there is no tensor of floating-point numbers"),
        ("a.npz", b"PK?", "cannot be read as .npz file"),
        ("a.npz", archive("w.npy", b"nothing"), "cannot be read as .npz file"),
        ("a.safetensors", b"", "first eight bytes are no length"),
        ("a.safetensors", b"\xff" * 16, "first eight bytes are no length"),
        ("a.safetensors", safetensors({}, 100), "its header ends after 2 of 100 bytes"),
        ("a.safetensors", safetensors([]), "its header is no object"),
        ("a.safetensors", safetensors(b"{nope"), "cannot be read as .safetensors file"),
        ("a.safetensors", safetensors({"w": 3}), "cannot be read as .safetensors file"),
        ("a.safetensors", safetensors({"w": {"dtype": "F32"}}), "cannot be read as .safetensors file"),
        ("a.safetensors", safetensors({"w": {"dtype": "I64", "shape": [1]}}), "there is no tensor of floating-point"),
        ("a.txt", b"", "must be one of resnet18, resnet50, vgg16, bert-large, or the path of"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_model(str(path))
    (problem,) = caught.value.problems
    assert problem.startswith(f"--model {path}")
    assert message in problem


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_model(str(tmp_path / "a.npz"))
    with pytest.raises(SettingsError, match="Is a directory"):
        read_model(str(tmp_path.rename(tmp_path.with_suffix(".json"))))


def spec(name: str, count: int) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, (count,))


def test_servers_get_what_the_table_gives_them() -> None:
    """A tensor of two thirds cannot be spread, if partitions are large."""
    specs = [spec("a", 2 << 20), spec("b", 1 << 20)]
    one, two = place(specs, (0.5, 0.5), 16 << 20)
    assert (one.nbytes, one.messages, two.nbytes, two.messages) == (8 << 20, 1, 4 << 20, 1)
    small = place(specs, (0.5, 0.5), 1 << 20)
    assert [each.nbytes for each in small] == [6 << 20, 6 << 20]
    assert [each.messages for each in small] == [6, 6]


def test_light_tensors_travel_together() -> None:
    (only,) = place([spec(f"bias{index}", 1024) for index in range(160)], (1.0,), 1 << 20)
    assert (only.nbytes, only.messages) == (160 * 4096, 3)


def test_uneven_shares_are_taken_as_they_are() -> None:
    found = place([spec("a", 1 << 20)], (0.75, 0.25), 1 << 16)
    assert [each.nbytes for each in found] == [3 << 20, 1 << 20]
    assert [each.messages for each in found] == [48, 16]
