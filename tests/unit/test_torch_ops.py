"""Push and pull on tensors, with several workers in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import (  # noqa: E402
    AgreementError,
    BytePSError,
    JobAborted,
    NotInitializedError,
    UnsupportedError,
)
from byteps_py.torch import ops  # noqa: E402
from byteps_py.types import DType, Operation, TensorSpec  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_sum_and_average_of_every_dtype(dtype, shape) -> None:
    def body(session):
        tensor = torch.full(shape, session.rank * 2 + 1, dtype=dtype)
        kept = tensor.clone()
        total = bps.push_pull(tensor, average=False, name="sum")
        average = bps.push_pull(tensor, name="average")
        assert torch.equal(tensor, kept)
        return total, average

    for total, average in run_workers(3, body):
        assert total.dtype == average.dtype == dtype
        assert torch.equal(total, torch.full(shape, 9, dtype=dtype))
        assert torch.equal(average, torch.full(shape, 3, dtype=dtype))


def test_integers_round_down_and_float16_does_not_overflow() -> None:
    def body(session):
        integers = bps.push_pull(torch.tensor([-3, 3])[session.rank], name="i")
        halves = bps.push_pull(torch.tensor([60000.0], dtype=torch.float16), name="h")
        return integers.item(), halves.item()

    assert run_workers(2, body) == [(0, 60000.0)] * 2
    assert run_workers(1, lambda _: bps.push_pull(torch.tensor(-3), name="i").item()) == [-3]


def test_in_place_operations_return_the_tensor_itself() -> None:
    def body(session):
        first = torch.full((4,), float(session.rank))
        second = torch.full((4,), float(session.rank))
        handle = bps.push_pull_async_inplace(second, average=False, name="async")
        assert bps.push_pull_inplace(first, name="blocking") is first
        assert bps.synchronize(handle) is second
        return first, second

    for first, second in run_workers(2, body):
        assert torch.equal(first, torch.full((4,), 0.5))
        assert torch.equal(second, torch.ones(4))


def test_strided_tensors_are_replaced_in_place() -> None:
    def body(session):
        base = torch.arange(12.0).reshape(3, 4) * (session.rank + 1)
        view = base[:, 1::2].T
        result = bps.push_pull_inplace(view, average=False, name="view")
        assert result is view
        return base

    for base in run_workers(2, body):
        own = base[0, 2] / 2
        expected = torch.arange(12.0).reshape(3, 4) * own
        expected[:, 1::2] = torch.arange(12.0).reshape(3, 4)[:, 1::2] * 3
        assert torch.equal(base, expected)


def test_the_source_may_change_once_the_call_has_returned() -> None:
    def body(session):
        tensor = torch.ones(1000)
        handle = bps.push_pull_async(tensor, average=False, name="t")
        tensor.zero_()
        return bps.synchronize(handle)

    assert all(torch.equal(each, torch.full((1000,), 2.0)) for each in run_workers(2, body))


def test_many_operations_at_once_in_any_order_of_waiting() -> None:
    def body(session):
        handles = [bps.push_pull_async(torch.tensor(float(i)), average=False, name=f"t{i}") for i in range(20)]
        values = {i: bps.synchronize(handles[i]).item() for i in reversed(range(20))}
        return [values[i] for i in range(20)]

    assert run_workers(2, body) == [[2.0 * i for i in range(20)]] * 2


def test_poll_tells_when_synchronize_would_return() -> None:
    def body(session):
        if session.rank == 0:
            handle = bps.push_pull_async(torch.ones(1), name="t")
            before = bps.poll(handle)
            session.barrier()
        else:
            session.barrier()
            handle = bps.push_pull_async(torch.ones(1), name="t")
            before = False
        session.barrier()
        after = bps.poll(handle)
        bps.synchronize(handle)
        return isinstance(handle, int), before, after

    assert run_workers(2, body) == [(True, False, True)] * 2


def test_handles_are_valid_once() -> None:
    def body(session):
        handle = bps.push_pull_async(torch.ones(1), name="t")
        bps.synchronize(handle)
        for call in (bps.synchronize, bps.poll):
            with pytest.raises(ValueError, match=f"{handle} is no handle of an operation under way"):
                call(handle)
        with pytest.raises(ValueError, match="None is no handle"):
            bps.synchronize(None)

    run_workers(1, body)


def test_names_versions_and_priorities_reach_the_session() -> None:
    def body(session):
        bps.synchronize(bps.push_pull_async(torch.ones(2), True, "mine", 7, 3))
        bps.push_pull(torch.ones(2), False, "mine", version=8, priority=-4)
        return session.submitted

    (submitted,) = run_workers(1, body)
    assert [(each.name, each.operation, each.step, each.priority) for each in submitted] == [
        ("mine", Operation.AVERAGE, 7, 3),
        ("mine", Operation.SUM, 8, -4),
    ]


def test_unnamed_calls_are_matched_by_order_among_those_that_look_alike() -> None:
    def body(session):
        calls = [lambda: bps.push_pull_async(torch.tensor([1.0, 2.0])), lambda: bps.push_pull_async(torch.tensor(5))]
        order = calls if session.rank == 0 else calls[::-1]
        handles = [call() for call in order]
        results = [bps.synchronize(handle) for handle in handles]
        again = bps.push_pull(torch.tensor([3.0, 4.0]))
        names = {each.name for each in session.submitted}
        return sorted(each.sum().item() for each in results), again.tolist(), names

    names = {"noname.average.float32.2", "noname.average.int64.scalar"}
    assert run_workers(2, body) == [([3.0, 5], [3.0, 4.0], names)] * 2


def test_workers_in_different_versions_are_told() -> None:
    def body(session):
        with pytest.raises(AgreementError, match=r"worker 0 .*step 0, worker 1 .*step 1"):
            bps.push_pull(torch.ones(1), name="t", version=session.rank)

    run_workers(2, body)


@pytest.mark.parametrize(
    ("tensor", "word"),
    [(torch.ones(2, dtype=torch.bool), "torch.bool"), (torch.eye(2).to_sparse(), "sparse")],
    ids=["bool", "sparse"],
)
@pytest.mark.parametrize("call", [bps.push_pull, bps.push_pull_async, bps.push_pull_inplace, bps.byteps_push_pull])
def test_what_cannot_be_pushed_is_named(call, tensor, word) -> None:
    def body(session):
        with pytest.raises(UnsupportedError, match=f"tensor 'odd' .*{word}"):
            call(tensor, name="odd")
        return session.submitted

    assert run_workers(1, body) == [[]]


def test_gradients_flow_through_push_pull() -> None:
    def body(session):
        tensor = torch.tensor([1.0, 2.0], requires_grad=True)
        result = bps.push_pull(tensor, average=True, name="t")
        (result * (session.rank + 1)).sum().backward()
        return tensor.grad.tolist(), [each.name for each in session.submitted]

    # Worker r's loss has the gradient r + 1, and every input has a weight of 1/2 in both results.
    assert run_workers(2, body) == [([1.5, 1.5], ["t", "t.backward"])] * 2


def test_second_derivatives_flow_through_push_pull() -> None:
    def body(session):
        x = torch.tensor(3.0, requires_grad=True)
        (first,) = torch.autograd.grad(bps.push_pull(x, name="t") ** 3, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
        return first.item(), second.item()

    assert run_workers(2, body) == [(27.0, 18.0)] * 2


@pytest.mark.parametrize("compression", [bps.Compression.fp16, bps.Compression.bf16])
def test_compressed_results_have_the_own_dtype_again(compression) -> None:
    def body(session):
        tensor = torch.tensor([1.0, 3.0], dtype=torch.float64, requires_grad=True)
        result = bps.push_pull(tensor * (session.rank + 1), name="t", compression=compression)
        result.sum().backward()
        return result, tensor.grad

    for rank, (result, gradient) in enumerate(run_workers(2, body)):
        assert result.dtype == gradient.dtype == torch.float64
        assert torch.equal(result.detach(), torch.tensor([1.5, 4.5], dtype=torch.float64))
        assert torch.equal(gradient, torch.full((2,), rank + 1.0, dtype=torch.float64))


def test_declare_announces_dtype_and_shape() -> None:
    def body(session):
        bps.declare("early", torch.zeros(2, 3, dtype=torch.bfloat16))
        bps.declare("later")
        return session.declared

    assert run_workers(1, body) == [[[TensorSpec("early", DType.BFLOAT16, (2, 3))]]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: bps.push_pull(torch.ones(1), name="t"),
        lambda: bps.push_pull_async(torch.ones(1), name="t"),
        lambda: bps.declare("t"),
        lambda: bps.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)),
        lambda: bps.broadcast_parameters({}),
        lambda: bps.broadcast_object(1),
    ],
)
def test_init_comes_first(call) -> None:
    with pytest.raises(NotInitializedError, match="init"):
        call()


def test_the_short_names_of_byteps_are_there() -> None:
    assert bps.byteps_push_pull is bps.push_pull_async_inplace
    missing = [name for name in bps.__all__ if not hasattr(bps, name)]
    assert missing == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), 4, (3, 5), torch.Size([2, 2])])
def test_empty_tensors_of_every_dtype_are_pushed(dtype, shape) -> None:
    def body(session):
        tensor = bps.empty(shape, dtype)
        assert (tensor.dtype, tensor.device.type, tensor.is_contiguous()) == (dtype, "cpu", True)
        tensor.fill_(session.rank + 1)
        kept = tensor.clone()
        total = bps.push_pull(tensor, average=False, name="sum")
        assert torch.equal(tensor, kept)
        assert bps.push_pull_inplace(tensor, average=False, name="in place") is tensor
        return total, tensor

    size = (shape,) if isinstance(shape, int) else tuple(shape)
    for total, tensor in run_workers(2, body):
        assert torch.equal(total, torch.full(size, 3, dtype=dtype))
        assert torch.equal(tensor, total)


def test_empty_lies_in_the_memory_of_the_session_and_in_place_pushes_name_it_once() -> None:
    def body(session):
        tensor = bps.empty((3,), torch.bfloat16)
        assert tensor.data_ptr() == session.arena[-1].ctypes.data
        seen = []
        submit = session.submit
        session.submit = lambda spec, source, output, *rest, **keywords: (
            seen.append((source.ctypes.data, source is output)) or submit(spec, source, output, *rest, **keywords)
        )
        bps.push_pull_inplace(tensor, name="a")
        bps.push_pull(tensor, name="b")
        assert seen == [(tensor.data_ptr(), True), (tensor.data_ptr(), False)]

    run_workers(1, body)


def test_empty_of_what_cannot_be_pushed() -> None:
    with pytest.raises(NotInitializedError):
        bps.empty(3)

    def body(session):
        for dtype in (torch.bool, torch.complex64):
            with pytest.raises(UnsupportedError, match="cannot be pushed"):
                bps.empty(3, dtype)

    run_workers(1, body)


def test_two_threads_of_each_worker_push_names_of_their_own() -> None:
    calls = {
        "new": lambda tensor, name: bps.push_pull(tensor, average=False, name=name),
        "inplace": lambda tensor, name: bps.push_pull_inplace(tensor, average=False, name=name),
        "async": lambda tensor, name: bps.synchronize(bps.push_pull_async(tensor, average=False, name=name)),
    }

    def body(session):
        def work(word):
            session.enter()
            found = []
            for turn in range(4):
                for kind, call in calls.items():
                    tensor = torch.full((3,), float((session.rank + 1) * (turn + 1) * (10 if word == "b" else 1)))
                    found.append(call(tensor, f"{word}.{kind}").tolist())
            return found

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(work, ["a", "b"]))

    sums = [[[3.0 * (turn + 1) * factor] * 3 for turn in range(4) for _ in calls] for factor in (1, 10)]
    assert run_workers(2, body) == [sums] * 2


class TestGroups:
    """The last of so many calls waits for all."""

    def test_when_the_last_returns_all_hold_their_results(self):
        def body(session):
            bps.byteps_torch_set_num_grads(3)
            seen = []
            for step in range(3):
                base = torch.full((4, 2), float(session.rank + step))
                tensors = [base[:2].T, base[2], base[3]]
                handles = [
                    bps.push_pull_group_sync_inplace(each, average=False, name=f"g{i}", version=step)
                    for i, each in enumerate(tensors)
                ]
                seen.append(base.tolist())
                tensors[0].zero_()
                assert bps.poll(handles[0])
                assert bps.synchronize(handles[0]) is tensors[0]
                assert not tensors[0].any()  # the result is not brought twice
            assert bps.synchronize(handles[1]) is tensors[1]
            return seen

        assert run_workers(2, body) == [[[[2 * step + 1.0] * 2] * 4 for step in range(3)]] * 2

    def test_handles_are_valid_until_the_next_group_is_complete(self):
        def body(session):
            bps.byteps_torch_set_num_grads(1)
            first, second = (bps.push_pull_group_sync_inplace(torch.ones(1), name="g") for _ in range(2))
            with pytest.raises(ValueError, match="no handle of an operation under way"):
                bps.synchronize(first)
            bps.synchronize(second)
            return {first, second} & set(ops._outstanding)

        assert run_workers(1, body) == [set()]

    def test_the_number_comes_first_and_does_not_change_within_a_group(self):
        def body(session):
            with pytest.raises(BytePSError, match=r"call byteps_torch_set_num_grads\(n\) after init"):
                bps.push_pull_group_sync_inplace(torch.ones(1), name="g")
            with pytest.raises(ValueError, match="at least 1"):
                bps.byteps_torch_set_num_grads(0)
            with pytest.raises(TypeError):
                bps.byteps_torch_set_num_grads(1.5)
            bps.byteps_torch_set_num_grads(2)
            bps.push_pull_group_sync_inplace(torch.ones(1), name="g")
            with pytest.raises(BytePSError, match="1 of 2 gradients of a group are on their way"):
                bps.byteps_torch_set_num_grads(3)
            bps.push_pull_group_sync_inplace(torch.ones(1), name="h")
            bps.byteps_torch_set_num_grads(3)

        run_workers(1, body)

    @pytest.mark.parametrize("odd", [0, 1])
    def test_a_refused_call_is_one_of_its_group(self, odd):
        def body(session):
            bps.byteps_torch_set_num_grads(2)
            seen = []
            for step in range(3):
                base = torch.full((2,), float(session.rank + step))
                for place, each in enumerate(base.split(1)):
                    if step == 0 and place == odd:
                        with pytest.raises(UnsupportedError, match="complex64"):
                            bps.push_pull_group_sync_inplace(each.to(torch.complex64), name="odd")
                    else:
                        bps.push_pull_group_sync_inplace(each, average=False, name=f"g{place}")
                seen.append(base.tolist())
            bps.byteps_torch_set_num_grads(3)  # no group has begun
            return [[each for place, each in enumerate(row) if step or place != odd] for step, row in enumerate(seen)]

        assert run_workers(2, body) == [[[1.0], [3.0] * 2, [5.0] * 2]] * 2

    def test_an_error_is_raised_when_nothing_is_on_its_way(self):
        def body(session):
            bps.byteps_torch_set_num_grads(2)
            bps.push_pull_group_sync_inplace(torch.ones(1), name="g", version=session.rank)
            other = torch.ones(1)
            with pytest.raises(AgreementError, match="'g'"):
                bps.push_pull_group_sync_inplace(other, average=False, name="h")
            return other.item()

        assert run_workers(2, body) == [2.0, 2.0]


def test_a_name_may_be_used_again_before_the_backward_pass() -> None:
    def body(session):
        x = torch.tensor(float(session.rank + 1), requires_grad=True)
        loss = bps.push_pull(x, average=False, name="t") * 2 + bps.push_pull(x**2, average=False, name="t") * 5
        loss.backward()
        return loss.item(), x.grad.item(), [each.name for each in session.submitted]

    # Sums 3 and 5; both workers' losses have the weights 2 and 5: gradient 2 * (2 + 5 * 2x).
    names = ["t", "t", "t.backward", "t.backward"]
    assert run_workers(2, body) == [(31.0, 24.0, names), (31.0, 44.0, names)]


def test_what_requires_no_gradient_is_exchanged_in_the_forward_pass_only() -> None:
    def body(session):
        x = torch.ones(2)
        weight = torch.ones(2, requires_grad=True)
        (bps.push_pull(x, name="t") * weight).sum().backward()
        with torch.no_grad():
            bps.push_pull(weight, name="u")
        return weight.grad.tolist(), [each.name for each in session.submitted]

    assert run_workers(2, body) == [([1.0, 1.0], ["t", "u"])] * 2


def test_a_worker_whose_result_is_not_used_leaves_the_others_waiting() -> None:
    """They are told as it leaves: here by the failure of the fake job."""

    def body(session):
        x = torch.ones(2, requires_grad=True)
        result = bps.push_pull(x, name="t").sum()
        if session.rank == 1:
            raise KeyError("leaves")
        with pytest.raises(JobAborted, match=r"t\.backward"):
            result.backward()
        raise KeyError("leaves")

    with pytest.raises(KeyError, match="leaves"):
        run_workers(2, body)
