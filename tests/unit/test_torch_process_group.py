"""The calls of the backend "byteps", by several workers in this process, whose ranks in torch and in the job differ."""

from __future__ import annotations

import functools
import os
import threading
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from byteps_py.errors import (  # noqa: E402
    AgreementError,
    JobAborted,
    NotInitializedError,
    TransportTimeout,
    UnsupportedError,
)
from byteps_py.torch import collectives  # noqa: E402
from byteps_py.torch.circle import Circle  # noqa: E402
from byteps_py.torch.process_group import BytePSProcessGroup  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

ReduceOp = dist.ReduceOp
SUMMED = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
OTHERS = [torch.bool, torch.int16, torch.complex64, torch.complex128]
SHAPES = [(), (0,), (5,), (2, 3)]
ORDERS = {2: [1, 0], 3: [2, 0, 1]}
"""The worker of each rank in torch."""


def run(size, body, seconds=60.0, order=None):
    """``body(group, rank)`` on each member at once; results by the rank in torch."""
    members = order or ORDERS[size]

    def work(session):
        if session.rank not in members:
            return None
        rank = members.index(session.rank)
        circle = Circle("t", members, rank, session.form_group(members))
        return body(BytePSProcessGroup(circle, timedelta(seconds=seconds)), rank)

    results = run_workers(size, work)
    return [results[worker] for worker in members]


def options(kind, **values):
    made = getattr(dist, kind)() if hasattr(dist, kind) else getattr(torch._C._distributed_c10d, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def sample(dtype, shape, rank):
    """What ``rank`` contributes: small numbers, so that sums are exact in every dtype."""
    count = functools.reduce(lambda a, b: a * b, shape, 1)
    numbers = (torch.arange(count) * 3 + rank * 2 + 1) % 5
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double() - rank).to(dtype).reshape(shape)
    return (numbers % 2 if dtype is torch.bool else numbers).to(dtype).reshape(shape)


def expected(name, parts):
    """The reduction by hand: in Python's numbers, element by element."""
    folds = {
        "SUM": lambda a, b: a + b,
        "PRODUCT": lambda a, b: a * b,
        "MIN": min,
        "MAX": max,
        "BAND": lambda a, b: a & b,
        "BOR": lambda a, b: a | b,
        "BXOR": lambda a, b: a ^ b,
    }
    rows = zip(*(part.reshape(-1).tolist() for part in parts), strict=True)
    if name == "AVG":
        whole = not (parts[0].is_floating_point() or parts[0].is_complex())
        values = [sum(row) // len(row) if whole else sum(row) / len(row) for row in rows]
    else:
        values = [functools.reduce(folds[name], row) for row in rows]
    return torch.tensor(values, dtype=parts[0].dtype).reshape(parts[0].shape)


@pytest.mark.parametrize("size", [2, 3])
def test_reductions_of_every_dtype_and_shape(size) -> None:
    names = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]

    def body(group, rank):
        refused = set()
        for dtype in SUMMED + OTHERS:
            for name in names:
                for shape in SHAPES:
                    parts = [sample(dtype, shape, each) for each in range(size)]
                    mine = parts[rank].clone()
                    opts = options("AllreduceOptions", reduceOp=getattr(ReduceOp, name))
                    try:
                        work = group.allreduce([mine], opts)
                    except UnsupportedError as error:
                        refused.add(str(error).partition(" reduce ")[2])
                        break
                    assert work.wait() is True
                    rounded = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-6)
                    torch.testing.assert_close(mine, expected(name, parts), rtol=rounded, atol=0.0)
        return refused

    for refused in run(size, body):
        floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
        complexes = [torch.complex64, torch.complex128]
        pairs = {
            *((dtype, name) for dtype in floats + complexes for name in ("BAND", "BOR", "BXOR")),
            *((dtype, name) for dtype in complexes for name in ("MIN", "MAX")),
            (torch.bool, "AVG"),
            (torch.int16, "AVG"),
        }
        assert refused == {f"{dtype} by {name}: convert the tensor first" for dtype, name in pairs}


@pytest.mark.parametrize("size", [2, 3])
def test_what_moves_bits_moves_them_for_every_dtype_and_shape(size) -> None:
    def body(group, rank):
        for dtype in SUMMED + OTHERS + [torch.float8_e4m3fn]:
            for shape in SHAPES:
                parts = [sample(dtype, shape, each) for each in range(size)]
                bits = [part.reshape(-1).view(torch.uint8) for part in parts]

                def same(tensor, index, parts=parts, bits=bits):
                    assert tensor.dtype is parts[0].dtype
                    assert tensor.shape == parts[0].shape
                    assert torch.equal(tensor.reshape(-1).view(torch.uint8), bits[index])

                root = size - 1
                mine = parts[rank].clone()
                group.broadcast([mine], options("BroadcastOptions", rootRank=root)).wait()
                same(mine, root)

                outputs = [torch.empty_like(parts[0]) for _ in range(size)]
                group.allgather([outputs], [parts[rank]]).wait()
                for index, output in enumerate(outputs):
                    same(output, index)

                outputs = [torch.empty_like(parts[0]) for _ in range(size)] if rank == root else []
                group.gather(
                    [outputs] if outputs else [], [parts[rank]], options("GatherOptions", rootRank=root)
                ).wait()
                for index, output in enumerate(outputs):
                    same(output, index)

                output = torch.empty_like(parts[0])
                inputs = [[each.clone() for each in parts]] if rank == root else []
                group.scatter([output], inputs, options("ScatterOptions", rootRank=root)).wait()
                same(output, rank)

                outputs = [torch.empty_like(parts[0]) for _ in range(size)]
                group.alltoall(outputs, [parts[(rank + each) % size].clone() for each in range(size)]).wait()
                for sender, output in enumerate(outputs):
                    same(output, (sender + rank) % size)

    run(size, body)


def test_tensors_that_are_cut_for_the_members() -> None:
    def body(group, rank):
        whole = torch.empty(6, 2)
        mine = torch.full((2, 2), float(rank))
        group.all_gather_single(whole, mine, options("AllgatherOptions")).wait()
        assert whole[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
        in_place = torch.full((3, 4), -1.0)
        in_place[rank] = rank
        group._allgather_base(in_place, in_place[rank]).wait()
        assert in_place[:, 3].tolist() == [0, 1, 2]

        opts = options("ReduceScatterOptions", reduceOp=ReduceOp.SUM)
        output = torch.empty(2)
        group.reduce_scatter_single(output, torch.arange(6.0) * (rank + 1), opts).wait()
        assert output.tolist() == [rank * 12.0, rank * 12.0 + 6]
        uneven = [torch.full((each + 1,), float(rank)) for each in range(3)]
        output = torch.empty(rank + 1)
        group.reduce_scatter([output], [uneven], options("ReduceScatterOptions", reduceOp=ReduceOp.MAX)).wait()
        assert output.tolist() == [2.0] * (rank + 1)

        output = torch.empty(3, dtype=torch.int64)
        group.all_to_all_single(output, torch.arange(3) + 10 * rank, [], []).wait()
        assert output.tolist() == [rank, 10 + rank, 20 + rank]
        # Rank r sends r + 1 rows to each; so it receives 1, 2 and 3.
        output = torch.empty(6, 2)
        sent = torch.full((3 * (rank + 1), 2), float(rank))
        group.alltoall_base(output, sent, [1, 2, 3], [rank + 1] * 3, options("AllToAllOptions")).wait()
        assert output[:, 1].tolist() == [0, 1, 1, 2, 2, 2]

        gathered = [torch.empty(each) for each in range(3)]
        group.allgather([gathered], [torch.full((rank,), float(rank))]).wait()
        assert [each.tolist() for each in gathered] == [[], [1.0], [2.0, 2.0]]

        kept = torch.full((3,), float(rank))
        group.reduce([kept], options("ReduceOptions", reduceOp=ReduceOp.SUM, rootRank=1)).wait()
        assert kept.tolist() == ([3.0] * 3 if rank == 1 else [float(rank)] * 3)

    run(3, body)


def test_every_layout_in_memory_receives_its_result() -> None:
    def body(group, rank):
        base = torch.zeros(4, 6)
        for view in (base[:, ::2], base.t(), base[1], base.expand(1, 4, 6)):
            base.fill_(rank)
            group.allreduce([view]).wait()
            assert (view == 1).all()
        parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
        group.broadcast([parameter], options("BroadcastOptions", rootRank=1)).wait()
        assert parameter.tolist() == [1.0] * 3
        assert parameter.requires_grad
        with torch.inference_mode():
            frozen = torch.full((2, 2), float(rank)).t()
        group.allreduce([frozen]).wait()
        assert (frozen == 1).all()
        conjugate = torch.full((2,), complex(rank, 1)).conj()
        group.allreduce([conjugate]).wait()
        assert conjugate.tolist() == [complex(1, -2)] * 2
        several = [torch.full((2,), float(rank)), torch.full((3, 1), rank)]
        group.allreduce_coalesced(several, options("AllreduceCoalescedOptions", reduceOp=ReduceOp.MAX)).wait()
        assert several[0].tolist() == [1.0, 1.0]
        assert several[1].tolist() == [[1], [1], [1]]

    run(2, body)


def test_messages_between_two_need_not_come_in_the_order_of_their_waits() -> None:
    def body(group, rank):
        after, before = (rank + 1) % 3, (rank - 1) % 3
        first, second = torch.empty(4), torch.empty((2, 2), dtype=torch.bool)
        works = [
            group.send([torch.full((4,), float(rank))], after, 0),
            group.send([torch.ones(2, 2, dtype=torch.bool)], before, 7),
            group.recv([second], after, 7),
            group.recv([first], before, 0),
        ]
        for work in reversed(works):
            work.wait()
        assert first.tolist() == [before] * 4
        assert second.all()
        assert works[3].source_rank() == before
        assert works[0].source_rank() == -1
        if rank == 0:  # the second message is waited for, and only then is the first received
            late = group.send([torch.zeros(1)], 1, 1)
            group.recv([first], 1, 2).wait()
            late.wait()
        elif rank == 1:
            group.send([torch.full((4,), 5.0)], 0, 2).wait()
            group.recv([torch.empty(1)], 0, 1).wait()
        with pytest.raises(ValueError, match="none sends to itself"):
            group.send([first], rank, 0)
        with pytest.raises(ValueError, match="there are ranks 0 to 2"):
            group.recv([first], 3, 0)
        with pytest.raises(UnsupportedError, match=r"recv\(tensor, src"):
            group.recv_anysource([first], 0)

    run(3, body)


def test_a_message_that_does_not_fit_is_told_to_both_sides() -> None:
    def body(group, rank):
        other = torch.zeros(4, dtype=torch.int32)
        work = group.recv([other], 0, 4) if rank else group.send([torch.zeros(3)], 1, 4)
        with pytest.raises(AgreementError) as caught:
            work.wait()
        assert "send to rank 1, tag 4, of float32 (3,)" in str(caught.value)
        assert "receive from rank 0, tag 4, of int32 (4,)" in str(caught.value)

    run(2, body)


def test_some_of_the_workers_form_a_group_of_their_own() -> None:
    def body(group, rank):
        tensor = torch.full((2,), float(rank + 1))
        group.allreduce([tensor], options("AllreduceOptions", reduceOp=ReduceOp.AVG)).wait()
        root = torch.full((2,), rank)
        group.broadcast([root], options("BroadcastOptions", rootRank=0)).wait()
        return tensor.tolist(), root.tolist()

    assert run(3, body, order=[2, 0]) == [([1.5, 1.5], [0, 0])] * 2


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (lambda g: g.allreduce([torch.zeros(3)]), lambda g: g.allreduce([torch.zeros(4)]), ("(3,)", "(4,)")),
        (lambda g: g.allreduce([torch.zeros(3)]), lambda g: g.barrier(), ("all_reduce(SUM)", "barrier")),
        (
            lambda g: g.allreduce([torch.zeros(3)]),
            lambda g: g.allreduce([torch.zeros(3).half()]),
            ("float32 (3,)", "float16 (3,)"),
        ),
        (
            lambda g: g.allgather([[torch.zeros(2)] * 2], [torch.zeros(2)]),
            lambda g: g.allgather([[torch.zeros(3)] * 2], [torch.zeros(3)]),
            ("2 x float32 (2,)", "2 x float32 (3,)"),
        ),
    ],
)
def test_calls_that_differ_name_both_sides_and_end_the_group(mine, theirs, words) -> None:
    def body(group, rank):
        group.barrier().wait()
        work = (theirs if rank else mine)(group)
        with pytest.raises(AgreementError) as caught:
            work.wait()
        for index, word in enumerate(words):
            assert f"rank {index} (worker {1 - index}) calls" in str(caught.value)
            assert word in str(caught.value)
        with pytest.raises(AgreementError, match="different calls"):
            group.barrier()
        assert work.is_completed()
        assert not work.is_success()
        assert work.exception() is not None
        with pytest.raises(RuntimeError, match="different calls"):
            work.get_future().wait()

    run(2, body)


def test_sizes_of_an_all_to_all_that_differ_are_told_to_all() -> None:
    def body(group, rank):
        outputs = [torch.empty(2), torch.empty(3 if rank else 2)]
        with pytest.raises(AgreementError, match="rank 1 sends 2 elements to rank 1, which expects 3"):
            group.alltoall(outputs, [torch.zeros(2), torch.zeros(2)])
        group.barrier().wait()

    run(2, body)


def test_works_and_futures() -> None:
    def body(group, rank):
        tensor = torch.full((4,), float(rank))
        work = group.allreduce([tensor])
        future = work.get_future()
        assert future.wait()[0] is tensor or torch.equal(future.wait()[0], tensor)
        assert tensor.tolist() == [1.0] * 4
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensor
        work.synchronize()
        many = [torch.full((3,), float(rank + each)) for each in range(20)]
        works = [group.allreduce([each]) for each in many]
        for each in reversed(works):
            each.wait(timedelta(seconds=30))
        assert [each[0].item() for each in many] == [2.0 * each + 1 for each in range(20)]
        polled = group.allreduce([tensor[::2]])
        while not polled.is_completed():
            time.sleep(0.001)
        assert tensor.tolist() == [2.0, 1.0, 2.0, 1.0]

    run(2, body)


def test_several_tensors_at_once_and_the_names_that_torch_gives() -> None:
    def body(group, rank):
        outputs = [torch.empty(4), torch.empty(2, 3, dtype=torch.int64)]
        inputs = [torch.full((2,), float(rank)), torch.full((3,), rank)]
        group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        assert outputs[0].tolist() == [0, 0, 1, 1]
        assert outputs[1].tolist() == [[0, 0, 0], [1, 1, 1]]
        lists = [[torch.empty(2), torch.empty(2)], [torch.empty(3, dtype=torch.int64) for _ in range(2)]]
        group.allgather_coalesced(lists, inputs).wait()
        assert lists[1][1].tolist() == [1, 1, 1]
        summed = [torch.empty(2), torch.empty(1, 3, dtype=torch.int64)]
        opts = options("ReduceScatterOptions", reduceOp=ReduceOp.SUM)
        group.reduce_scatter_tensor_coalesced(summed, [each * (rank + 1) for each in outputs], opts).wait()
        assert [each.unique().tolist() for each in summed] == [[3 * rank]] * 2
        group._set_group_name("a name")
        group._set_group_desc("words")
        assert group.group_name == "a name"
        assert group.group_desc == "words"

    run(2, body)


def test_a_work_keeps_its_time_and_can_be_waited_for_again() -> None:
    reached = threading.Event()

    def body(group, rank):
        if rank == 1:
            assert reached.wait(60)
        tensor = torch.ones(2)
        work = group.allreduce([tensor])
        if rank == 0:
            for timeout in (None, timedelta(milliseconds=-1), timedelta(0)):
                with pytest.raises(
                    TransportTimeout, match=r"all_reduce\(SUM\) of float32 \(2,\) is not done within 0.3"
                ):
                    work.wait(timeout)
            with pytest.raises(RuntimeError, match="is not done within"):
                work.get_future().wait()
            assert not work.is_completed()
            reached.set()
        deadline = time.monotonic() + 60
        while not work.is_completed():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert tensor.tolist() == [2.0, 2.0]
        short = group.barrier(timeout=timedelta(seconds=50))
        short.wait()

    run(2, body, seconds=0.3)


def test_what_ends_the_job_is_raised_by_waits_and_by_futures() -> None:
    raised = []

    def body(group, rank):
        work = group.allreduce([torch.ones(3)]) if rank == 0 else None
        if work is None:
            raise KeyError("worker dies")
        future = work.get_future()
        for wait in (work.wait, work.wait, future.wait):
            with pytest.raises(RuntimeError, match="worker dies"):
                wait()
            raised.append(wait)
        assert isinstance(work.exception(), JobAborted)

    with pytest.raises(KeyError):
        run(2, body)
    assert len(raised) == 3


def test_what_cannot_be_done_is_refused_before_anything_is_sent() -> None:
    def body(group, rank):
        cases = [
            (lambda: group.allreduce([torch.zeros(2).to_sparse()]), "sparse"),
            (lambda: group.allreduce([torch.empty(2, device="meta")]), "meta device"),
            (
                lambda: group.allreduce([torch.zeros(2)], torch._C._distributed_c10d._make_nccl_premul_sum(2.0)),
                "PREMUL",
            ),
            (lambda: group.allgather([[torch.zeros(2)]], [torch.zeros(2)]), "must be 2 tensors in the list"),
            (lambda: group.allgather([[torch.zeros(3)] * 2], [torch.zeros(2)]), "differ in size"),
            (lambda: group.allgather([[torch.zeros(2)] * 2], [torch.zeros(2).int()]), "one dtype"),
            (lambda: group.allgather([], []), "at least one"),
            (lambda: group.all_gather_single(torch.zeros(3), torch.zeros(1)), "cut into 2 equal parts"),
            (lambda: group.all_gather_single(torch.zeros(2, 2).t(), torch.zeros(2)), "contiguous"),
            (lambda: group.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 1], [1, 2]), "first dimension"),
            (lambda: group.alltoall([torch.zeros(3)], [torch.zeros(3)]), "there must be 2 tensors"),
            (lambda: group.alltoall([torch.zeros(3)] * 2, [torch.zeros(3).int()] * 2), "one dtype"),
            (lambda: group.broadcast([torch.zeros(2)], options("BroadcastOptions", rootRank=2)), "ranks are 0 to 1"),
            (lambda: group.all_to_all_single(torch.zeros(2), torch.zeros(4), [], []), "sends 2 elements .* expects 1"),
        ]
        shared, plain = torch.zeros(1).expand(2), torch.zeros(2)
        reduce_options = options("ReduceOptions", reduceOp=ReduceOp.SUM, rootRank=rank)
        scatter_options = options("ReduceScatterOptions", reduceOp=ReduceOp.SUM)
        expanded = (
            lambda: group.allreduce([shared]),
            lambda: group.reduce([shared], reduce_options),
            lambda: group.broadcast([shared], options("BroadcastOptions", rootRank=1 - rank)),
            lambda: group.allgather([[plain, shared]], [plain]),
            lambda: group.gather([[plain, shared]], [plain], options("GatherOptions", rootRank=rank)),
            lambda: group.scatter([shared], [[plain, plain]], options("ScatterOptions", rootRank=rank)),
            lambda: group.reduce_scatter([shared], [[plain, plain]], scatter_options),
            lambda: group.alltoall([plain, shared], [plain, plain]),
            lambda: group.recv([shared], 1 - rank, 0),
        )
        cases += [(call, "is expanded") for call in expanded]
        root = {"rootRank": rank}
        wrong = [[torch.zeros(2), torch.zeros(3)][:: 1 if rank == 0 else -1]]
        cases.append(
            (lambda: group.gather(wrong, [torch.zeros(2)], options("GatherOptions", **root)), "as many elements")
        )
        cases.append(
            (lambda: group.scatter([torch.zeros(2)], wrong, options("ScatterOptions", **root)), "as many elements")
        )
        for call, words in cases:
            with pytest.raises((ValueError, UnsupportedError), match=words):
                call()
        group.barrier().wait()  # and nobody waits for them

        group.broadcast([shared], options("BroadcastOptions", rootRank=0)) if rank == 0 else None
        if rank:  # what is only sent may be expanded
            group.broadcast([plain], options("BroadcastOptions", rootRank=0)).wait()

    run(2, body)


def test_tensors_on_a_device_are_refused_with_their_place(monkeypatch) -> None:
    monkeypatch.setattr(collectives, "check_dense", lambda tensor, what: None)  # which "meta" would not pass

    def body(group, rank):
        with pytest.raises(UnsupportedError, match=r"all_reduce\(SUM\) of float32 \(2,\) on meta: .* call tensor.cpu"):
            group.allreduce([torch.empty(2, device="meta")])

    run(2, body)


def test_without_a_session_and_after_the_end() -> None:
    group = BytePSProcessGroup(Circle("t", [0, 1], 0, 0), timedelta(seconds=1))
    with pytest.raises(NotInitializedError, match="not initialized"):
        group.barrier()

    def body(group, rank):
        group.barrier().wait()
        group.shutdown()
        with pytest.raises(NotInitializedError, match="has been destroyed"):
            group.allreduce([torch.zeros(2)])

    run(2, body)


def test_a_work_of_another_process_is_refused(monkeypatch) -> None:
    def body(group, rank):
        work = group.barrier()
        work.wait()
        return work

    work, _ = run(2, body)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(NotInitializedError, match="forked"):
        work.wait()
