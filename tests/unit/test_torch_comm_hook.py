"""The hook for DistributedDataParallel, with several workers in this process."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import NotInitializedError, UnsupportedError  # noqa: E402
from byteps_py.torch import bucket_hook  # noqa: E402
from byteps_py.types import Operation  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402


class Bucket:
    """What DistributedDataParallel gives to a hook, as far as it is looked at."""

    def __init__(self, buffer, index=0) -> None:
        self._buffer, self._index = buffer, index

    def buffer(self):
        return self._buffer

    def index(self):
        return self._index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_future_holds_the_bucket_with_its_average(dtype) -> None:
    def body(session):
        buffer = torch.full((7,), session.rank * 2 + 1, dtype=dtype)
        result = bps.comm_hook(None, Bucket(buffer)).wait()
        assert result.data_ptr() == buffer.data_ptr()
        assert result.dtype is dtype
        return buffer.tolist()

    assert run_workers(3, body) == [[3.0] * 7] * 3


def test_names_tell_models_buckets_dtypes_and_sizes_apart() -> None:
    def body(session):
        first, second = bps.CommHookState(name="a"), bps.CommHookState(bps.Compression.fp16, name="b")
        for state, bucket in [
            (None, Bucket(torch.ones(3))),
            (None, Bucket(torch.ones(4))),
            (first, Bucket(torch.ones(3), 1)),
            (second, Bucket(torch.ones(3), 1)),
            (second, Bucket(torch.ones(3, dtype=torch.bfloat16))),
        ]:
            bps.comm_hook(state, bucket).wait()
        assert {each.operation for each in session.submitted} == {Operation.AVERAGE}
        return [each.name for each in session.submitted]

    expected = [
        "DDP.0.0.float32.3",
        "DDP.0.0.float32.4",
        "DDP.a.1.float32.3",
        "DDP.b.1.float16.3",
        "DDP.b.0.bfloat16.3",
    ]
    assert run_workers(2, body) == [expected] * 2


def test_states_are_numbered_in_the_order_of_their_making() -> None:
    first, second = bps.CommHookState(), bps.CommHookState()
    assert int(second.name) == int(first.name) + 1
    assert repr(bps.CommHookState(bps.Compression.bf16, "x")) == "CommHookState(compression=Compression.bf16, name='x')"


def test_a_state_with_a_group_averages_over_its_members(monkeypatch) -> None:
    """By a group of torch of workers 2 and 0, in this order."""
    monkeypatch.setattr(bucket_hook.dist, "get_world_size", lambda group: 2, raising=False)

    def gather(found, mine, group):
        assert (group, mine in (0, 2)) == ("of torch", True)
        found[:] = [2, 0]

    monkeypatch.setattr(bucket_hook.dist, "all_gather_object", gather, raising=False)

    def body(session):
        state = None if session.rank == 1 else bps.CommHookState(name="g", process_group="of torch")
        buffer = torch.full((3,), float(session.rank))
        if state is not None:
            bps.comm_hook(state, Bucket(buffer)).wait()
        whole = torch.full((3,), float(session.rank))
        bps.comm_hook(bps.CommHookState(name="g"), Bucket(whole)).wait()
        return buffer.tolist(), whole.tolist()

    assert run_workers(3, body) == [([1.0] * 3, [1.0] * 3)] * 3
    with pytest.raises(NotInitializedError):
        bps.CommHookState(process_group="of torch")


@pytest.mark.parametrize("compression", [bps.Compression.fp16, bps.Compression.bf16])
def test_a_compressed_bucket_comes_back_in_its_own_dtype(compression) -> None:
    def body(session):
        buffer = torch.full((3,), 1.0 + session.rank)
        bps.comm_hook(bps.CommHookState(compression, name="c"), Bucket(buffer)).wait()
        return buffer.dtype, buffer.tolist()

    assert run_workers(2, body) == [(torch.float32, [1.5] * 3)] * 2


def test_torch_accepts_its_signature() -> None:
    signature = inspect.signature(bps.comm_hook)
    assert list(signature.parameters) == ["state", "bucket"]
    assert signature.parameters["bucket"].annotation is inspect.Parameter.empty
    assert signature.return_annotation is inspect.Signature.empty


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(NotInitializedError):
        bps.comm_hook(None, Bucket(torch.ones(2)))
    with pytest.raises(TypeError, match=r"takes None or a bps\.CommHookState as state, not 3"):
        bps.comm_hook(3, Bucket(torch.ones(2)))
    with pytest.raises(TypeError, match="'fp16'"):
        bps.CommHookState("fp16")

    def body(session):
        with pytest.raises(UnsupportedError, match="complex64"):
            bps.comm_hook(None, Bucket(torch.ones(2, dtype=torch.complex64)))

    run_workers(1, body)


def test_a_failure_is_raised_by_the_future() -> None:
    raised = []

    def body(session):
        if session.rank == 1:
            raise KeyError("worker dies")
        future = bps.comm_hook(None, Bucket(torch.ones(2)))
        with pytest.raises(RuntimeError, match="worker dies"):
            future.wait()
        raised.append(future)

    with pytest.raises(KeyError):
        run_workers(2, body)
    assert raised
