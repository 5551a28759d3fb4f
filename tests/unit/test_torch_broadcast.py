"""Parameters, optimizer state and objects of one worker on all others."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py import objects  # noqa: E402
from byteps_py.errors import AgreementError, RemoteProtocolError  # noqa: E402
from byteps_py.torch.broadcast import _Tensors  # noqa: E402
from byteps_py.types import Operation  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

nn = torch.nn
ALL_DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def bits(tensor):
    return tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def values(dtype, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=generator).to(torch.float32).to(dtype)


@pytest.mark.parametrize("root", [0, 1])
def test_tensors_of_any_dtype_arrive_bit_for_bit(root) -> None:
    shapes = [(), (0, 2), (7,), (3, 4)]

    def make(seed):
        return {f"{d}{shape}": values(d, shape, seed) for d in ALL_DTYPES for shape in shapes}

    def body(session):
        tensors = make(session.rank)
        before = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        bps.broadcast_parameters(tensors, root_rank=root)
        assert before == {name: tensor.data_ptr() for name, tensor in tensors.items()}
        return tensors

    expected = make(root)
    for tensors in run_workers(2, body):
        assert {name: bits(each) for name, each in tensors.items()} == {n: bits(t) for n, t in expected.items()}


def test_special_floats_keep_their_bits() -> None:
    special = torch.tensor([-0.0, float("nan"), float("inf"), -float("inf"), 1e-45])

    def body(session):
        tensor = special.clone() if session.rank == 0 else torch.zeros(5)
        bps.broadcast_parameters([("t", tensor)])
        return bits(tensor)

    assert run_workers(2, body) == [bits(special)] * 2


def test_a_whole_model_with_buffers_and_strided_tensors() -> None:
    def make(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
        model.register_buffer("mask", torch.tensor([bool(seed), not seed]))
        model[1].num_batches_tracked += seed
        return model

    models = [make(0), make(5)]

    def body(session):
        bps.broadcast_parameters(models[session.rank].state_dict(), root_rank=1)
        strided = torch.arange(6.0).reshape(2, 3).T * session.rank
        bps.broadcast_parameters([("strided", strided)], root_rank=1)
        return strided

    expected = {name: bits(each) for name, each in make(5).state_dict().items()}
    for strided in run_workers(2, body):
        assert torch.equal(strided, torch.arange(6.0).reshape(2, 3).T)
    for model in models:
        assert {name: bits(each) for name, each in model.state_dict().items()} == expected


def test_everything_is_under_way_before_anything_is_awaited() -> None:
    def body(session):
        model = nn.Linear(2, 2)
        if session.rank == 1:
            session.barrier()
        waiting = session.submit

        def submit(*arguments, **options):
            result = waiting(*arguments, **options)
            if session.rank == 0 and len(session.submitted) == 2:
                session.barrier()  # worker 1 starts only now: awaiting the first would never end
            return result

        session.submit = submit
        bps.broadcast_parameters(model.named_parameters())
        assert [len(batch) for batch in session.declared] == [2]
        return [(each.name, each.operation, each.absent) for each in session.submitted]

    first, second = run_workers(2, body)
    assert first == [(f"Parameter.{name}", Operation.BROADCAST, False) for name in ("weight", "bias")]
    assert [absent for _, _, absent in second] == [True, True]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (nn.Linear(1, 1).parameters(), "needs names"),
        ([("a", torch.ones(1)), ("a", torch.ones(1))], "several tensors of one name: a"),
        ({"a": 3}, "'Parameter.a' is a int, not a tensor"),
        ({"a": torch.eye(2).to_sparse()}, "tensor 'Parameter.a' is sparse"),
    ],
    ids=["unnamed", "doubled", "number", "sparse"],
)
def test_what_cannot_be_broadcast_is_named(params, message) -> None:
    def body(session):
        with pytest.raises((ValueError, TypeError), match=message):
            bps.broadcast_parameters(params)

    run_workers(1, body)


def test_an_unknown_root_is_named() -> None:
    def body(session):
        with pytest.raises(ValueError, match="root_rank=5: there are 2 workers"):
            bps.broadcast_parameters({"a": torch.ones(1)}, root_rank=5)

    run_workers(2, body)


OPTIMIZERS = {
    name: kind
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "SparseAdam", "Muon")  # no optimizer, sparse gradients only, matrices only
}
OPTIMIZERS |= {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "fused": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), fused=True),
}


def make_model(width=40):
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 1))


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(9)
    for _ in range(steps):
        inputs = torch.randn(4, model[0].in_features, generator=generator)

        def closure(inputs=inputs):
            optimizer.zero_grad()
            loss = (model(inputs) ** 2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def exactly(value):
    """Something that compares equal only if all types and bits do."""
    if isinstance(value, torch.Tensor):
        return bits(value)
    if isinstance(value, dict):
        return {key: exactly(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [exactly(each) for each in value]
    return type(value), value


@pytest.mark.parametrize(
    ("make", "steps_elsewhere"),
    [pytest.param(make, index % 2, id=name) for index, (name, make) in enumerate(OPTIMIZERS.items())],
)
def test_a_resumed_state_reaches_optimizers_that_are_fresh_or_not(make, steps_elsewhere) -> None:
    model = make_model()
    resumed = make(model.parameters())
    train(model, resumed, 3)
    resumed.param_groups[0]["lr"] *= 0.5

    def body(session):
        mine = copy.deepcopy(model)
        own = make(mine.parameters())
        if session.rank == 1:
            own.load_state_dict(copy.deepcopy(resumed.state_dict()))
        else:
            train(mine, own, steps_elsewhere)
        bps.broadcast_parameters(mine.state_dict(), root_rank=1)
        optimizer = bps.DistributedOptimizer(own, mine.named_parameters())
        bps.broadcast_optimizer_state(optimizer, root_rank=1)
        state = exactly(optimizer.state_dict())
        train(mine, optimizer, 2)
        return state, exactly(mine.state_dict())

    (state, trained), (root_state, root_trained) = run_workers(2, body)
    assert root_state == exactly(resumed.state_dict())
    assert state == root_state
    assert trained == root_trained


def test_state_keeps_its_own_dtype() -> None:
    """Unlike ``load_state_dict()``, which casts the state to the dtype of the parameter."""

    def body(session):
        parameter = torch.zeros(2000, dtype=torch.bfloat16, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        if session.rank == 0:
            optimizer.state[parameter] = {
                "master": torch.full((2000,), 1 / 3),
                "none": None,
                "nested": [1, (2.5, "x"), {"deep": torch.ones(2)}],
            }
            optimizer.state["everywhere"] = 7
        bps.broadcast_optimizer_state(optimizer)
        return exactly(optimizer.state[parameter]), optimizer.state["everywhere"]

    first, second = run_workers(2, body)
    assert first == second
    assert second[0]["master"][0] == torch.float32


def test_states_of_several_optimizers_do_not_contradict() -> None:
    def body(session):
        results = []
        for width in (40, 50, 40):
            model = make_model(width)
            optimizer = OPTIMIZERS["Adam"](model.parameters())
            if session.rank == 0:
                train(model, optimizer, 1)
            bps.broadcast_optimizer_state(optimizer)
            results.append(exactly(optimizer.state_dict()))
        return results

    first, second = run_workers(2, body)
    assert first == second


def shaped(*groups, dtype=torch.float32):
    return [{"params": [torch.ones(each, dtype=dtype, requires_grad=True) for each in group]} for group in groups]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: torch.optim.Adam(shaped([2048], [7], [4])),
            r"0 has group 0 of 2 par.*1 has group 0 of 1 par",
        ),
        (lambda: torch.optim.Adam(shaped([7, 2048], [4])), r"0 has .*float32, shape \(2048,\)\).*1 has .*shape \(7,\)"),
        (lambda: torch.optim.Adam(shaped([2048, 7], [(4, 1)])), r"shape \(4,\)\); only worker 1 has .*shape \(4, 1\)"),
        (lambda: torch.optim.Adam(shaped([2048, 7], [4], dtype=torch.float64)), r"only worker 1 has .*float64, shape"),
        (lambda: torch.optim.SGD(shaped([2048, 7], [4])), r"0 has class Adam; only worker 1 has class SGD"),
    ],
    ids=["groups", "order", "shapes", "dtypes", "classes"],
)
def test_optimizers_that_differ_are_named_on_every_worker(make, words) -> None:
    """The root too hears of it, before its large tensors travel; and a state would fit by its size alone."""

    def body(session):
        optimizer = torch.optim.Adam(shaped([2048, 7], [4])) if session.rank == 0 else make()
        if session.rank == 0:
            for each in (each for group in optimizer.param_groups for each in group["params"]):
                each.grad = torch.ones_like(each)
            optimizer.step()
        with pytest.raises(AgreementError, match=words):
            bps.broadcast_optimizer_state(optimizer)
        return len(optimizer.state), session.submitted

    assert run_workers(2, body) == [(3, []), (0, [])]


def test_other_roots_of_a_state_are_named() -> None:
    def body(session):
        with pytest.raises(AgreementError, match="worker 0 has root 0; only worker 1 has root 1"):
            bps.broadcast_optimizer_state(torch.optim.Adam(shaped([3])), root_rank=session.rank)

    run_workers(2, body)


def test_state_that_cannot_travel_is_a_type_error_everywhere() -> None:
    def body(session):
        parameter = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        optimizer.state[parameter]["odd"] = object()
        with pytest.raises(TypeError, match=r"object\['state'\]\[0\]\['odd'\] is a builtins.object"):
            bps.broadcast_optimizer_state(optimizer)

    run_workers(2, body)


def test_objects_may_hold_tensors() -> None:
    value = {
        "tensors": [values(dtype, shape, 1) for dtype in ALL_DTYPES for shape in [(), (0,), (2, 3)]],
        "array": np.arange(3),
        "parameter": nn.Parameter(torch.ones(2)),
        "strided": torch.arange(6.0).reshape(2, 3).T,
        "plain": ("x", 1, None),
    }

    def body(session):
        return bps.broadcast_object(value if session.rank == 0 else None)

    root, other = run_workers(2, body)
    assert root is value
    assert [bits(each) for each in other["tensors"]] == [bits(each) for each in value["tensors"]]
    assert bits(other["strided"]) == bits(value["strided"])
    assert other["parameter"].tolist() == [1.0, 1.0]
    assert other["array"].tolist() == [0, 1, 2]
    assert other["plain"] == ("x", 1, None)


def test_sparse_tensors_in_objects_are_refused_everywhere() -> None:
    def body(session):
        with pytest.raises(TypeError, match="a tensor of the object is sparse"):
            bps.broadcast_object([torch.eye(2).to_sparse()])

    run_workers(2, body)


@pytest.mark.parametrize(
    "plain",
    [
        ["torch.float32", [2], b"1234"],
        ["torch.float33", [1], b"1234"],
        ["torch.float32", [-1], b"1234"],
        ["torch.float32", [2**62, 2**62], b"1234"],
        ["torch.float32", "x", b"1234"],
        ["torch.float32"],
        7,
    ],
)
def test_forged_tensors_are_refused(plain) -> None:
    class Forger:
        name = "torch"

        def encode(self, value):
            return plain if isinstance(value, Forger) else None

        def decode(self, plain):
            raise AssertionError

    with pytest.raises(RemoteProtocolError, match="malformed"):
        objects.decode(objects.encode(Forger(), (Forger(),)), (_Tensors(),))
