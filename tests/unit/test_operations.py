"""The NumPy API in a process that is alone."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import byteps_py as bps
from byteps_py.errors import AgreementError, NotInitializedError, SettingsError, TransportError, UnsupportedError
from byteps_py.operations import Numbering
from byteps_py.session import current
from byteps_py.types import DType, TensorSpec


def test_before_init_everything_says_so() -> None:
    assert not bps.is_initialized()
    for call in (bps.rank, bps.size, bps.local_rank, bps.local_size, bps.barrier, bps.step, bps.get_pushpull_speed):
        with pytest.raises(NotInitializedError, match=r"call init\(\) first"):
            call()
    with pytest.raises(ValueError, match=r"call init\(\) first"):
        bps.push_pull(np.ones(3), "x")
    bps.shutdown()


@pytest.mark.usefixtures("alone")
class TestAlone:
    def test_rank_and_size(self) -> None:
        assert bps.is_initialized()
        assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)
        bps.init()
        bps.barrier()

    @pytest.mark.parametrize("op", [bps.SUM, bps.AVG])
    def test_push_pull_gives_the_array_back(self, op: bps.operations.Operation) -> None:
        array = np.arange(6, dtype=np.int32).reshape(2, 3)
        result = bps.push_pull(array, f"x{op}", op)
        assert result.tolist() == array.tolist()
        assert result.dtype == np.int32
        assert result is not array

    @pytest.mark.parametrize("shape", [(2, -2), (2**63, 0)])
    def test_an_empty_array_of_a_shape_that_cannot_be(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="each dimension must be a number from 0"):
            bps.empty(shape)

    def test_an_empty_array_of_nonsense(self) -> None:
        with pytest.raises(TypeError, match=r"shape must be a whole number or a tuple of whole numbers, not 'x'"):
            bps.empty("x")  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="dtype 'uint16'"):
            bps.empty(3, np.uint16)
        assert current().empty(3, np.uint16).dtype == np.uint16, "the bits of bfloat16"

    @pytest.mark.parametrize("shape", [10**13, (2**32, 2**32)])
    def test_an_empty_array_that_nobody_has_memory_for(self, shape: int | tuple[int, ...]) -> None:
        with pytest.raises(TransportError, match=r"there is no memory left for \d+ bytes"):
            bps.empty(shape)

    def test_lists_scalars_and_strides(self) -> None:
        assert bps.push_pull([1.0, 2.0], "list").tolist() == [1.0, 2.0]
        assert bps.push_pull(np.float32(3), "scalar").shape == ()
        assert bps.push_pull(np.arange(10)[::-2], "strided").tolist() == [9, 7, 5, 3, 1]
        assert bps.push_pull(np.ones((3, 4)).T, "transposed").shape == (4, 3)

    def test_out_may_be_strided_or_the_array_itself(self) -> None:
        array = np.arange(4.0)
        assert bps.push_pull(array, "same", out=array) is array
        wide = np.zeros(8)
        assert bps.push_pull(array, "wide", out=wide[::2]).tolist() == [0, 1, 2, 3]
        assert wide.tolist() == [0, 0, 1, 0, 2, 0, 3, 0]

    def test_a_wrong_out_is_named(self) -> None:
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        for out in (np.zeros(4), np.zeros(3, np.float32), frozen):
            with pytest.raises(UnsupportedError, match="out must be a writable float64 array of shape"):
                bps.push_pull(np.zeros(3), "x", out=out)

    def test_bfloat16_arrays_stay_bfloat16(self) -> None:
        array = np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)
        result = bps.push_pull(array, "b")
        assert result.dtype == array.dtype
        assert result.tolist() == [1.5, -2.0]

    @pytest.mark.parametrize("dtype", [bool, np.complex64, np.uint16, ml_dtypes.float8_e4m3fn, ">f4", "U3"])
    def test_other_dtypes_are_refused(self, dtype: object) -> None:
        with pytest.raises(UnsupportedError, match=r"cannot be pushed; supported are float32, .*bfloat16"):
            bps.push_pull(np.zeros(3, dtype=dtype), "x")  # type: ignore[call-overload]

    def test_handles_are_used_up(self) -> None:
        handle = bps.push_pull_async(np.ones(3), "x")
        assert bps.poll(handle)
        assert bps.synchronize(handle).tolist() == [1, 1, 1]
        for call in (bps.poll, bps.synchronize):
            with pytest.raises(ValueError, match=f"handle {handle} is not known"):
                call(handle)

    def test_broadcast(self) -> None:
        assert bps.broadcast(np.ones(2), 0, "x").tolist() == [1, 1]
        with pytest.raises(ValueError, match="root_rank=1 is not a worker: ranks are 0 to 0"):
            bps.broadcast(np.ones(2), 1, "x")
        with pytest.raises(UnsupportedError, match="SUM or AVG"):
            bps.push_pull(np.ones(2), "y", bps.operations.Operation.BROADCAST)

    def test_unnamed_operations_are_named_by_their_looks(self) -> None:
        bps.push_pull(np.ones((3, 4)))
        bps.push_pull(np.ones((3, 4)))
        with pytest.raises(AgreementError, match=r"'byteps\.noname\.sum\.float64\.3x4'"):
            bps.push_pull(np.ones(4), "byteps.noname.sum.float64.3x4")

    @pytest.mark.parametrize("name", ["", "x" * 5000, "\ud800"])
    def test_impossible_names_are_refused_by_the_call(self, name: str) -> None:
        with pytest.raises(UnsupportedError, match="name"):
            bps.push_pull(np.ones(2), name)

    @pytest.mark.parametrize("version", [-1, 2**64])
    def test_impossible_versions_are_refused_by_the_call(self, version: int) -> None:
        with pytest.raises(ValueError, match="version"):
            bps.push_pull(np.ones(2), "x", version=version)

    def test_arguments_of_the_wrong_kind_are_refused_by_the_call(self) -> None:
        for wrong in ({"version": 1.5}, {"priority": "x"}):
            with pytest.raises(TypeError):
                bps.push_pull(np.ones(2), "x", **wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            bps.broadcast(np.ones(2), 1.0, "x")  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="must be a string, not int"):
            bps.push_pull(np.ones(2), 5)  # type: ignore[arg-type]

    def test_declare_takes_whole_numbers_of_any_kind(self) -> None:
        bps.declare("n", [np.int64(3)])
        assert bps.push_pull(np.ones(3, np.float32), "n").tolist() == [1, 1, 1]
        with pytest.raises(TypeError):
            bps.declare("f", (1.5,))  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="whole numbers"):
            current().declare([TensorSpec("g", DType.FLOAT32, (1.5,))])  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="SUM or AVG"):
            bps.push_pull(np.ones(3), "o", 1.0)  # type: ignore[arg-type]

    def test_declare_fixes_the_shape(self) -> None:
        bps.declare("habit")
        bps.declare("w", (2, 3), np.float16)
        with pytest.raises(AgreementError, match=r"float16 \(2, 3\)"):
            bps.push_pull(np.ones(3), "w")

    def test_steps_are_counted(self) -> None:
        bps.step()
        bps.step(samples=32)
        assert (current().steps, current().samples) == (2, 32)
        assert bps.get_pushpull_speed() == (0, -5.0)


def test_a_forked_child_has_no_session() -> None:
    """In a process of its own: this one may have threads, and must not be forked then."""
    script = """
import os, sys
import byteps_py as bps
bps.init()
if not os.fork():
    try:
        bps.rank()
    except bps.NotInitializedError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), bps.rank())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "7 0\n", done.stderr


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"DMLC_ROLE": "server"}, "a server runs no training script"),
        ({"DMLC_NUM_WORKER": "2"}, "DMLC_ROLE is not set, but DMLC_NUM_WORKER=2"),
        ({"BYTEPS_LOCAL_SIZE": "2"}, "BYTEPS_LOCAL_SIZE=2"),
        ({"DMLC_ROLE": "worker"}, "DMLC_NUM_WORKER is not set"),
        ({"DMLC_ROLE": "boss"}, "DMLC_ROLE='boss' must be one of"),
    ],
)
def test_init_refuses_an_environment_that_contradicts_itself(
    environ: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=words):
        bps.init()
    assert not bps.is_initialized()


def test_one_worker_that_is_not_forced_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.setenv("DMLC_NUM_WORKER", "1")
    bps.init()
    assert bps.size() == 1
    bps.shutdown()


def test_dtype_tags_of_numpy() -> None:
    assert DType.from_numpy(np.float64) is DType.FLOAT64


def test_what_a_session_makes_is_numbered_and_each_session_begins_anew(alone: None) -> None:
    ours, others = Numbering(), Numbering()
    assert [ours.next(current()) for _ in range(3)] == ["", "2", "3"]
    assert others.next(current()) == ""
    bps.shutdown()
    bps.init()
    assert ours.next(current()) == ""
