"""``SyncBatchNorm`` against batch normalisation of the joined batch in one process."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import AgreementError, NotInitializedError, UnsupportedError  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

nn = torch.nn
CHANNELS = 3


def joined(shape, dtype, offset=0.0):
    generator = torch.Generator().manual_seed(2)
    wide = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (wide * torch.arange(1, CHANNELS + 1).view(1, -1, *[1] * (len(shape) - 2)) + offset).to(dtype)


def run(layer, batches, weigh, session=None):
    """Forward and backward over ``batches``; what is to be compared."""
    outputs, gradients = [], []
    for batch in batches:
        leaf = batch.clone().requires_grad_()
        output = layer(leaf)
        (output * weigh(batch)).sum().backward()
        outputs.append(output.detach())
        gradients.append(leaf.grad)
    parameters = [each.grad for each in layer.parameters()]
    if session is not None:
        parameters = [bps.push_pull(each, average=False, name=f"p{i}") for i, each in enumerate(parameters)]
    layer.eval()
    return torch.cat(outputs), torch.cat(gradients), parameters, [*layer.buffers(), layer(batches[0]).detach()]


@pytest.mark.parametrize(
    ("dims", "dtype", "offset", "shares"),
    [
        (1, torch.float32, 0, (3, 3)),
        (1, torch.float64, 1e4, (1, 6)),
        (2, torch.float32, 50, (1, 4)),
        (2, torch.bfloat16, 0, (2, 3)),
        (3, torch.float32, 0, (0, 4)),
        (3, torch.float64, 0, (2, 0, 3)),
    ],
)
def test_it_is_batch_normalisation_of_the_joined_batch(dims, dtype, offset, shares) -> None:
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    whole = [
        joined((sum(shares), CHANNELS, *([2, 4, 2][:dims] if dims > 1 else [])), dtype, offset + shift)
        for shift in (0, 2)
    ]
    plain = kind(CHANNELS).to(dtype)
    with torch.no_grad():
        plain.weight.copy_(torch.tensor([0.5, 2, -1]))
        plain.bias.copy_(torch.tensor([1.0, 0, 3]))
    synchronized = bps.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))

    def body(session):
        place = sum(shares[: session.rank])
        parts = [each[place : place + shares[session.rank]] for each in whole]
        layer = copy.deepcopy(synchronized)
        return run(layer, parts, lambda batch: batch.sin(), session)

    results = run_workers(len(shares), body)
    # In float32 or wider, as the layer computes
    exact = torch.float32 if dtype is torch.bfloat16 else dtype
    outputs, gradients, parameters, after = run(
        plain.to(exact), [e.to(exact) for e in whole], lambda batch: batch.sin()
    )
    tolerance = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-7, 1e-7), torch.bfloat16: (3e-2, 6e-2)}[dtype]

    def check(ours, theirs):
        assert ours.dtype == dtype or not ours.is_floating_point()
        torch.testing.assert_close(ours.to(theirs), theirs, rtol=tolerance[0], atol=tolerance[1])

    def rejoin(index):
        steps = [each[index].chunk(2) for each in results]
        return torch.cat([*(step[0] for step in steps), *(step[1] for step in steps)])

    check(rejoin(0), outputs)
    check(rejoin(1), gradients)
    for each in results:
        for ours, theirs in zip(each[2], parameters, strict=True):
            check(ours, theirs)
        for ours, theirs in zip(each[3][:3], after[:3], strict=True):
            check(ours, theirs)
    check(torch.cat([each[3][3] for each in results]), after[3])


@pytest.mark.parametrize(
    "options",
    [{"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 1.0, "momentum": 0.7}],
    ids=str,
)
def test_options(options) -> None:
    whole = [joined((8, CHANNELS), torch.float32, shift) for shift in (0, 1, 5)]
    layers = [bps.SyncBatchNorm(CHANNELS, **options)]
    layers.append(copy.deepcopy(layers[0]))

    def body(session):
        layer = layers[session.rank]
        for each in whole:
            trained = layer(each[session.rank * 4 :][:4])
        layer.eval()
        return trained, list(layer.buffers()), layer(whole[0])

    results = run_workers(2, body)
    plain = nn.BatchNorm1d(CHANNELS, **options)
    for each in whole:
        expected = plain(each)
    torch.testing.assert_close(torch.cat([trained for trained, _, _ in results]), expected)
    plain.eval()
    for _, buffers, evaluated in results:
        torch.testing.assert_close(buffers, list(plain.buffers()))
        torch.testing.assert_close(evaluated, plain(whole[0]))


def test_evaluation_needs_no_session_and_training_does() -> None:
    layer = bps.SyncBatchNorm(2)
    with pytest.raises(NotInitializedError):
        layer(torch.ones(3, 2))
    layer.eval()
    assert layer(torch.ones(3, 2)).shape == (3, 2)


def test_second_derivatives() -> None:
    def body(session):
        layer = copy.deepcopy(prototype)
        return torch.autograd.gradgradcheck(layer, (torch.randn(3, 2, dtype=torch.float64).requires_grad_(),))

    prototype = bps.SyncBatchNorm(2, dtype=torch.float64)
    assert run_workers(1, body) == [True]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch.ones(4), ValueError, r"inputs \(N, C, ...\), not one of shape \(4,\)"),
        (lambda: torch.ones(4, 3), ValueError, "has 2 channels, the input 3"),
        (lambda: torch.ones(4, 2, dtype=torch.int64), UnsupportedError, "not torch.int64"),
        (lambda: torch.ones(0, 2), ValueError, "all workers together have 0"),
    ],
)
def test_inputs_that_cannot_be_normalised(make, error, message) -> None:
    layer = bps.SyncBatchNorm(2)

    def body(session):
        with pytest.raises(error, match=message):
            copy.deepcopy(layer)(make())

    run_workers(2, body)


def test_one_value_in_all_is_an_error_on_every_worker() -> None:
    layer = bps.SyncBatchNorm(2)

    def body(session):
        with pytest.raises(ValueError, match="together have 1"):
            copy.deepcopy(layer)(torch.ones(1 - session.rank, 2))

    run_workers(2, body)


def test_layers_that_are_used_in_another_order_are_found() -> None:
    layers = [bps.SyncBatchNorm(2), bps.SyncBatchNorm(2)]

    def body(session):
        with pytest.raises(
            AgreementError, match=r"number 1 to be used: .*worker 0 has (\S+); only worker 1 has (?!\1)"
        ):
            copy.deepcopy(layers)[session.rank](torch.ones(3, 2))

    run_workers(2, body)


def test_conversion_keeps_parameters_modes_and_ties() -> None:
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(
        nn.Linear(4, 4),
        shared,
        nn.ModuleDict({"deep": nn.Sequential(nn.SyncBatchNorm(4), shared)}),
        nn.InstanceNorm1d(4),
    )
    model[2].eval()
    before = {name: each.data_ptr() for name, each in [*model.named_parameters(), *model.named_buffers()]}
    assert bps.SyncBatchNorm.convert_sync_batchnorm(model) is model
    after = {name: each.data_ptr() for name, each in [*model.named_parameters(), *model.named_buffers()]}
    assert after == before
    deep = model[2]["deep"]
    assert [type(each) for each in (model[1], deep[0])] == [bps.SyncBatchNorm] * 2
    assert model[1] is deep[1]
    assert isinstance(model[3], nn.InstanceNorm1d)
    assert not deep[0].training
    again = bps.SyncBatchNorm.convert_sync_batchnorm(model)
    assert again[2]["deep"][0] is deep[0]
    assert isinstance(pickle.loads(pickle.dumps(model))[1], nn.modules.batchnorm._BatchNorm)


def test_lazy_layers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a LazyBatchNorm1d does not know its channels"):
        bps.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()))
