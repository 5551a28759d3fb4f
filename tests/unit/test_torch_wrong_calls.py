"""Every public name of ``byteps_py.torch``, called wrongly: a new name needs a row in the table.

A row says how the name is called with a tensor, and what it minds.  Each situation is one test over all rows.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import BytePSError, NotInitializedError, UnsupportedError  # noqa: E402


@dataclass(frozen=True)
class Row:
    """``call`` gets a tensor, and a word that no other call at the same time gets."""

    call: Callable[[Any, str], object]
    needs_session: bool = True
    sums: bool = False
    """The tensor's dtype must be one that can be summed."""
    carries: bool = False
    """The tensor must be dense and have data."""
    handle: bool = False
    """The word is taken for a handle in the test of unknown handles."""


def parameter(tensor: Any) -> Any:
    return tensor.detach().requires_grad_(tensor.is_floating_point() or tensor.is_complex())


_one_at_a_time = threading.Lock()


def optimize(tensor: Any, word: str) -> bps.SynchronizedOptimizer:
    leaf = parameter(tensor)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([leaf], lr=1.0), [(word, leaf)])
    (leaf * 2).sum().backward()
    optimizer.step()
    return optimizer


def synchronize_optimizer(tensor: Any, word: str) -> object:
    return optimize(tensor, word).synchronize()


def with_state(tensor: Any, word: str) -> object:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    optimizer.state["everywhere"] = tensor
    return bps.broadcast_optimizer_state(optimizer, prefix=word)


def group(tensor: Any, word: str) -> object:
    bps.byteps_torch_set_num_grads(1)
    return bps.push_pull_group_sync_inplace(tensor, name=word)


@dataclass(frozen=True)
class Bucket:
    """What a comm hook uses of ``torch.distributed.GradBucket``."""

    tensor: Any

    def buffer(self) -> Any:
        return self.tensor

    def index(self) -> int:
        return 0


def hook(tensor: Any, word: str) -> object:
    return bps.comm_hook(bps.CommHookState(name=word), Bucket(tensor)).wait()


def come_back() -> None:
    with _one_at_a_time:
        bps.suspend()
        bps.resume(1, 1)


def handled(call: Callable[[int], object]) -> Callable[[Any, str], object]:
    return lambda tensor, word: call(bps.push_pull_async(tensor, name=word))


def tensor_row(call: Callable[..., object]) -> Row:
    return Row(lambda tensor, word: call(tensor, name=word), sums=True, carries=True)


def plain_row(call: Callable[[], object], needs_session: bool = True) -> Row:
    return Row(lambda tensor, word: call(), needs_session)


TABLE: dict[str, Row] = {
    "CommHookState": plain_row(bps.CommHookState, needs_session=False),
    "Compression": Row(lambda tensor, word: bps.Compression.fp16.compress(tensor), needs_session=False),
    "Compressor": Row(lambda tensor, word: bps.Compressor(word, None).wire_dtype(tensor.dtype), needs_session=False),
    "DistributedOptimizer": Row(optimize, sums=True, carries=True),
    "SyncBatchNorm": Row(lambda tensor, word: bps.SyncBatchNorm(2)(tensor.reshape(-1, 2)), sums=True),
    "SynchronizedOptimizer": Row(synchronize_optimizer, sums=True, carries=True),
    "barrier": plain_row(bps.barrier),
    "broadcast_object": Row(lambda tensor, word: bps.broadcast_object([tensor], name=word), carries=True),
    "broadcast_optimizer_state": Row(with_state, carries=True),
    "broadcast_parameters": Row(lambda tensor, word: bps.broadcast_parameters({word: tensor}), carries=True),
    "byteps_push_pull": tensor_row(bps.byteps_push_pull),
    "byteps_torch_set_num_grads": plain_row(lambda: bps.byteps_torch_set_num_grads(3)),
    "comm_hook": Row(hook, sums=True),
    "declare": Row(lambda tensor, word: bps.declare(word, tensor), sums=True, carries=True),
    "empty": Row(lambda tensor, word: bps.empty(3, tensor.dtype), sums=True),
    "get_pushpull_speed": plain_row(bps.get_pushpull_speed),
    "init": plain_row(bps.init, needs_session=False),
    "is_initialized": plain_row(bps.is_initialized, needs_session=False),
    "local_rank": plain_row(bps.local_rank),
    "local_size": plain_row(bps.local_size),
    "poll": Row(handled(bps.poll), sums=True, carries=True, handle=True),
    "push_pull": tensor_row(bps.push_pull),
    "push_pull_async": tensor_row(bps.push_pull_async),
    "push_pull_async_inplace": tensor_row(bps.push_pull_async_inplace),
    "push_pull_group_sync_inplace": Row(group, sums=True, carries=True),
    "push_pull_inplace": tensor_row(bps.push_pull_inplace),
    "rank": plain_row(bps.rank),
    "resume": plain_row(come_back),
    "shutdown": plain_row(bps.shutdown, needs_session=False),
    "size": plain_row(bps.size),
    "stats": plain_row(bps.stats),
    "step": plain_row(bps.step),
    "suspend": plain_row(come_back),
    "synchronize": Row(handled(bps.synchronize), sums=True, carries=True, handle=True),
}


def good() -> Any:
    return torch.arange(4.0)


def rows(mind: Callable[[Row], bool]) -> list[Any]:
    return [pytest.param(row, id=name) for name, row in TABLE.items() if mind(row)]


def test_every_public_name_has_a_row() -> None:
    assert [name for name in bps.__all__ if name not in TABLE] == []
    for name in TABLE:  # a dotted one is of a submodule
        operator.attrgetter(name)(bps)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("row", rows(lambda row: True))
def test_the_rows_themselves_work(row: Row) -> None:
    row.call(good(), "right")


@pytest.mark.parametrize("row", rows(lambda row: row.needs_session))
def test_before_init(row: Row) -> None:
    with pytest.raises(NotInitializedError, match=r"call init\(\) first"):
        row.call(good(), "early")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("row", rows(lambda row: row.needs_session))
def test_after_shutdown(row: Row) -> None:
    bps.shutdown()
    with pytest.raises(NotInitializedError, match=r"call init\(\) first"):
        row.call(good(), "late")


@pytest.mark.usefixtures("alone")
def test_an_optimizer_and_a_handle_from_before_shutdown() -> None:
    leaf = good().requires_grad_()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([leaf], lr=1.0))
    handle = bps.push_pull_async(good(), name="kept")
    bps.shutdown()
    leaf.sum().backward()
    with pytest.raises(NotInitializedError):
        optimizer.step()
    try:  # it was complete by then, or is told
        assert bps.synchronize(handle).tolist() == good().tolist()
    except NotInitializedError:
        assert not bps.is_initialized()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("row", rows(lambda row: row.sums))
def test_a_dtype_that_cannot_be_summed(row: Row) -> None:
    with pytest.raises(UnsupportedError, match="complex64"):
        row.call(good().to(torch.complex64), "odd")


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("row", rows(lambda row: row.carries))
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: good().to("meta"), "meta device"),
    ],
    ids=["sparse", "csr", "meta"],
)
def test_tensors_without_plain_data(row: Row, make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        row.call(make(), "odd")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("row", rows(lambda row: row.carries and row.call not in (optimize, synchronize_optimizer)))
def test_what_is_no_tensor(row: Row) -> None:
    with pytest.raises(UnsupportedError, match=r"is a (builtins\.)?builtin_function_or_method"):
        row.call(open, "odd")


@pytest.mark.usefixtures("alone")
def test_what_is_no_optimizer() -> None:
    with pytest.raises(TypeError, match=r"takes a torch\.optim\.Optimizer, not a list"):
        bps.DistributedOptimizer([good()])


@pytest.mark.usefixtures("alone")
def test_the_class_of_an_optimizer_is_not_called() -> None:
    made = optimize(good(), "w")
    for kind in (bps.SynchronizedOptimizer, type(made)):
        with pytest.raises(TypeError, match=r"call DistributedOptimizer\(optimizer\)"):
            kind([good().requires_grad_()], lr=1.0)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("call", [bps.push_pull_inplace, bps.push_pull_group_sync_inplace, bps.byteps_push_pull])
def test_no_result_is_written_into_an_expanded_tensor(call: Callable[..., object]) -> None:
    bps.byteps_torch_set_num_grads(1)
    with pytest.raises(UnsupportedError, match="tensor 'wide' is expanded: several of its elements share memory"):
        call(good().expand(3, 4), name="wide")
    with pytest.raises(UnsupportedError, match=r"tensor 'Parameter\.wide' is expanded"):
        bps.broadcast_parameters({"wide": good().expand(3, 4)})
    assert bps.push_pull(good().expand(3, 4), name="other").shape == (3, 4)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.handle])
@pytest.mark.parametrize("handle", [0, -1, 10**9, "x", None])
def test_unknown_handles(name: str, handle: object) -> None:
    with pytest.raises(ValueError, match=f"{handle!r} is no handle of an operation under way"):
        getattr(bps, name)(handle)


NEEDING = [name for name, row in TABLE.items() if row.needs_session]


class Calls(torch.utils.data.Dataset):
    """Item by item, what the calls raise in the process that loads."""

    def __len__(self) -> int:
        return len(NEEDING)

    def __getitem__(self, index: int) -> str:
        try:
            TABLE[NEEDING[index]].call(good(), "forked")
        except BytePSError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"


@pytest.mark.usefixtures("alone")
def test_in_a_forked_worker_of_a_data_loader() -> None:
    loader = torch.utils.data.DataLoader(Calls(), None, num_workers=1, multiprocessing_context="fork", timeout=60)
    told = "NotInitializedError: this process was forked from a worker and has no session: call init() in one process"
    assert dict(zip(NEEDING, loader, strict=True)) == dict.fromkeys(NEEDING, told)
    assert bps.push_pull(good(), name="here").tolist() == good().tolist()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("row", rows(lambda row: row.call is not TABLE["shutdown"].call))
def test_from_two_threads_at_once(row: Row) -> None:
    """It works; only groups are of both threads, so one may be refused as the other's is under way.

    What comes of it where there are several workers is in ``test_torch_ops.py``.
    """
    errors: list[BaseException] = []
    start = threading.Barrier(2)

    def work(word: str) -> None:
        start.wait(30)
        try:
            for turn in range(5):
                row.call(good(), f"{word}{turn}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(word,)) for word in ("a", "b")]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not any(each.is_alive() for each in threads)
    may_be_refused = row.call is group
    assert [each for each in errors if not (may_be_refused and "of a group are on their way" in str(each))] == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("row", rows(lambda row: row.carries and row.call is not TABLE["synchronize"].call))
def test_tensors_on_a_gpu_are_taken(row: Row) -> None:
    row.call(good().cuda(), "gpu")
