"""``DistributedOptimizer``: training with several workers in this process against plain torch."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import AgreementError, BytePSError, UnsupportedError  # noqa: E402
from byteps_py.torch import gradients, homes  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402
from tests.helpers.torch_branches import Branches  # noqa: E402

nn = torch.nn
STEPS, BATCH = 4, 6


def set_default_arena(monkeypatch: pytest.MonkeyPatch, arena: bool) -> None:
    """What a DistributedOptimizer takes ``arena`` for where a test does not say."""
    *others, _, nccl = bps.DistributedOptimizer.__defaults__
    monkeypatch.setattr(bps.DistributedOptimizer, "__defaults__", (*others, arena, nccl))


@pytest.fixture(autouse=True, params=[True, False], ids=["homes", "no-homes"])
def arena(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with gradients in homes, small ones too, and with gradients that stay where they are."""
    monkeypatch.setattr(homes, "LEAST_BYTES", 0)
    set_default_arena(monkeypatch, request.param)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gradient is pushed by its hook."""
    monkeypatch.setattr(gradients, "GATHERED_BYTES", 0)


def make_model(seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def make_batches(size):
    """For each step, a batch of ``size * BATCH`` inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    shapes = (size * BATCH, 5), (size * BATCH, 3)
    return [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(STEPS)]


def share(tensor, session):
    return tensor[session.rank * BATCH : (session.rank + 1) * BATCH]


def loss_of(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets)


def train_alone(make_optimizer, size, **extra):
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    scheduler = extra.get("scheduler", lambda _: None)(optimizer)
    for inputs, targets in make_batches(size):
        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return list(model.parameters())


def check_equal_to_alone(results, alone):
    for parameters in results:
        for ours, first, reference in zip(parameters, results[0], alone, strict=True):
            assert torch.equal(ours, first), "workers have drifted apart"
            torch.testing.assert_close(ours, reference, rtol=2e-5, atol=1e-6)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_workers_train_as_one_process_on_all_their_batches(make_optimizer, size) -> None:
    def body(session):
        model = make_model()
        own = make_optimizer(model.parameters())
        optimizer = bps.DistributedOptimizer(own, model.named_parameters())
        assert isinstance(optimizer, type(make_optimizer(make_model().parameters())))
        for inputs, targets in make_batches(size):
            optimizer.zero_grad()
            loss_of(model, share(inputs, session), share(targets, session)).backward()
            optimizer.step()
        assert session.steps == STEPS
        return list(model.parameters())

    check_equal_to_alone(run_workers(size, body), train_alone(make_optimizer, size))


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_closures_see_the_average_loss_and_gradient(line_search) -> None:
    def optimize(model, wrap, batches):
        optimizer = wrap(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn=line_search))
        losses = []
        for inputs, targets in batches:

            def closure(inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = loss_of(model, inputs, targets)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).detach())
        return list(model.parameters()), losses

    def body(session):
        batches = [[share(each, session) for each in batch] for batch in make_batches(2)]
        model = make_model()
        return optimize(model, lambda own: bps.DistributedOptimizer(own, model.named_parameters()), batches)

    results = run_workers(2, body)
    parameters, losses = optimize(make_model(), lambda own: own, make_batches(2))
    for ours, our_losses in results:
        assert our_losses == results[0][1]
        torch.testing.assert_close(our_losses, losses, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, parameters, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("value", "expected"), [(float, 0.5), (lambda rank: None, None)])
def test_a_closure_may_return_a_number_or_nothing(value, expected) -> None:
    def body(session):
        parameter = torch.ones(2, requires_grad=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))

        def closure():
            (parameter * session.rank).sum().backward()
            return value(session.rank)

        return optimizer.step(closure), parameter.tolist()

    assert run_workers(2, body) == [(expected, [0.5, 0.5])] * 2


def test_branches_taken_at_random_never_mix_steps() -> None:
    """The expected values are worked out with plain tensors: a gradient that is missing here counts as zero, and a
    parameter that no worker used is not touched, which momentum shows."""
    choices = random.Random(3)
    taken = [[choices.sample(range(4), choices.randint(0, 2)) for _ in range(3)] for _ in range(12)]

    def body(session):
        model = Branches()
        own = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = bps.DistributedOptimizer(own, model.named_parameters())
        missing = []
        for ways in taken:
            optimizer.zero_grad()
            if ways[session.rank]:
                model(ways[session.rank]).backward()
            optimizer.step()
            missing.append([each.grad is None for each in model.parameters()])
        return list(model.parameters()), missing

    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    missing = []
    for ways in taken:
        optimizer.zero_grad()
        if any(ways):
            (sum(model(each) for each in ways) / 3).backward()
        optimizer.step()
        missing.append([each.grad is None for each in model.parameters()])
    assert any(any(each) for each in missing)
    assert any(not all(each) for each in missing)
    for parameters, seen in run_workers(3, body):
        assert seen == missing
        torch.testing.assert_close(parameters, list(model.parameters()))


def test_gradients_of_several_passes_are_added_up_and_not_divided(at_once) -> None:
    def body(session):
        parameter = torch.zeros(1, requires_grad=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), backward_passes_per_step=3)
        for factor in (1, 2, 3):
            assert len(session.submitted) == 0
            (parameter * factor * (session.rank + 1)).sum().backward()
        assert len(session.submitted) == 1
        optimizer.step()
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(1)
        (parameter * 10).sum().backward()
        assert len(session.submitted) == 2
        optimizer.step()
        return parameter.item()

    assert run_workers(2, body) == [-9.0 - 10.0] * 2


def test_a_parameter_used_in_fewer_passes_is_exchanged_all_the_same() -> None:
    def body(session):
        often, once = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        own = torch.optim.SGD([often, once], lr=1.0)
        optimizer = bps.DistributedOptimizer(own, backward_passes_per_step=2)
        (often + once).sum().backward()
        often.sum().backward()
        optimizer.step()
        return often.item(), once.item()

    assert run_workers(2, body) == [(-2.0, -1.0)] * 2


@pytest.mark.parametrize(
    ("compression", "narrow"), [(bps.Compression.fp16, torch.float16), (bps.Compression.bf16, torch.bfloat16)]
)
def test_compressed_gradients_are_rounded_and_wide_again(compression, narrow) -> None:
    values = torch.tensor([1 / 3, 70.1, -2e-3])

    def body(session):
        used, unused = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([used, unused], lr=1.0), compression=compression)
        loss = (used * values * (session.rank + 1)).sum()
        (loss + (unused * values).sum() if session.rank == 0 else loss).backward()
        optimizer.synchronize()
        return used.grad, unused.grad

    expected = ((values.to(narrow).float() + (2 * values).to(narrow).float()) / 2).to(narrow).float()
    half = (values.to(narrow).float() / 2).to(narrow).float()
    for used, unused in run_workers(2, body):
        assert torch.equal(used, expected)
        assert torch.equal(unused, half)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_parameters_of_other_floats(dtype) -> None:
    def body(session):
        parameter = torch.zeros(3, dtype=dtype, requires_grad=True)
        unused = torch.zeros(2, dtype=dtype, requires_grad=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter, unused], lr=1.0))
        ((parameter if session.rank else torch.cat([parameter, unused])).sum() * (session.rank + 1)).backward()
        optimizer.step()
        return parameter.detach(), unused.grad

    for parameter, unused in run_workers(2, body):
        assert torch.equal(parameter, torch.full((3,), -1.5, dtype=dtype))
        assert torch.equal(unused, torch.full((2,), 0.5, dtype=dtype))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).reshape(2, 3).T,
        lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda: torch.tensor(2.0),
        lambda: torch.zeros(0, 3),
    ],
    ids=["transposed", "channels last", "scalar", "empty"],
)
def test_gradients_of_any_layout(make) -> None:
    def body(session):
        parameter = make().requires_grad_()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        before = parameter.detach().clone()
        weights = torch.arange(float(parameter.numel())).reshape(parameter.shape)
        (parameter * weights * (session.rank + 1)).sum().backward()
        strides = parameter.grad.stride()
        optimizer.step()
        assert parameter.grad.stride() == strides
        assert torch.equal(parameter.grad, weights * 1.5)
        assert torch.equal(parameter.detach(), before - weights * 1.5)

    run_workers(2, body)


def test_a_gradient_that_arrives_from_elsewhere_has_the_layout_of_the_parameter() -> None:
    def body(session):
        parameter = torch.arange(6.0).reshape(2, 3).T.requires_grad_()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        weights = torch.arange(6.0).reshape(3, 2)
        if session.rank == 0:
            (parameter * weights).sum().backward()
        optimizer.synchronize()
        assert parameter.grad.stride() == parameter.stride()
        assert torch.equal(parameter.grad, weights / 2)

    run_workers(2, body)


def test_sparse_gradients_of_more_dimensions_are_refused_by_name() -> None:
    def body(session):
        parameter = torch.zeros(4, 2, requires_grad=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("odd", parameter)])
        parameter.grad = torch.eye(4)[:, :2].to_sparse()
        with pytest.raises(TypeError, match=r"the gradient of 'odd' has 2 sparse dimensions"):
            optimizer.synchronize()
        parameter.grad = torch.eye(4)[:, :2].to_sparse(1)
        optimizer.synchronize()
        assert parameter.grad.indices().tolist() == [[0, 1]]

    run_workers(1, body)


def test_parameters_that_cannot_be_summed_are_refused_by_name() -> None:
    def body(session):
        pairs = [("wave", torch.zeros(2, dtype=torch.complex64, requires_grad=True))]
        with pytest.raises(TypeError, match=r"parameter 'wave' has dtype torch\.complex64"):
            bps.DistributedOptimizer(torch.optim.SGD([pairs[0][1]], lr=1.0), pairs)

    run_workers(1, body)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("early", [False, True])
def test_learning_rate_schedulers_work(early) -> None:
    def make_scheduler(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    def body(session):
        model = make_model()
        own = OPTIMIZERS["SGD"](model.parameters())
        scheduler = make_scheduler(own) if early else None
        optimizer = bps.DistributedOptimizer(own, model.named_parameters())
        scheduler = scheduler or make_scheduler(optimizer)
        for inputs, targets in make_batches(2):
            optimizer.zero_grad()
            loss_of(model, share(inputs, session), share(targets, session)).backward()
            optimizer.step()
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.1 / 2**STEPS
        return list(model.parameters())

    check_equal_to_alone(run_workers(2, body), train_alone(OPTIMIZERS["SGD"], 2, scheduler=make_scheduler))


def test_gradients_may_be_clipped_between_synchronize_and_step() -> None:
    def clip(parameters):
        return nn.utils.clip_grad_norm_(parameters, 0.1)

    def body(session):
        model = make_model()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["SGD"](model.parameters()), model.named_parameters())
        for inputs, targets in make_batches(2):
            optimizer.zero_grad()
            loss_of(model, share(inputs, session), share(targets, session)).backward()
            optimizer.synchronize()
            clip(model.parameters())
            with optimizer.skip_synchronize():
                optimizer.step()
        return list(model.parameters())

    model = make_model()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    for inputs, targets in make_batches(2):
        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()
        clip(model.parameters())
        optimizer.step()
    check_equal_to_alone(run_workers(2, body), list(model.parameters()))


def test_gradient_scaling_skips_the_same_step_everywhere() -> None:
    """Worker 1 alone gets an infinite gradient in step 1: both skip, lower the scale and go on together."""

    def body(session):
        model = make_model()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["Adam"](model.parameters()), model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        history = []
        for number, (inputs, targets) in enumerate(make_batches(2)):
            optimizer.zero_grad()
            loss = loss_of(model, share(inputs, session), share(targets, session))
            scaler.scale(loss * float("inf") if (number, session.rank) == (1, 1) else loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            history.append(scaler.get_scale())
        assert session.steps == STEPS - 1
        return [each.tolist() for each in model.parameters()], history

    first, second = run_workers(2, body)
    assert first == second
    assert first[1] == [1024.0, 512.0, 512.0, 512.0]


def test_step_after_synchronize_does_not_exchange_twice() -> None:
    def body(session):
        parameter = torch.zeros(1, requires_grad=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        parameter.sum().backward()
        optimizer.synchronize()
        optimizer.step()
        return len(session.submitted), parameter.item()

    assert run_workers(2, body) == [(1, -1.0)] * 2


def test_pushes_start_during_the_backward_pass_and_the_front_has_priority(at_once) -> None:
    def body(session):
        model = make_model()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        assert [[spec.name for spec in batch] for batch in session.declared] == [
            ["Gradient.0.weight", "Gradient.0.bias", "Gradient.2.weight", "Gradient.2.bias"]
        ]
        for step in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 5)).sum().backward()
            started = {each.name: each for each in session.submitted[4 * step :]}
            assert len(started) == 4
            assert [started[spec.name].priority for spec in session.declared[0]] == [0, -1, -2, -3]
            assert {each.step for each in started.values()} == {step}
            optimizer.step()
        assert len(session.submitted) == 8

    run_workers(2, body)


class TestGathering:
    """Hooks push when there is enough."""

    def test_they_push_what_makes_a_message_and_the_end_pushes_the_rest(self, monkeypatch):
        monkeypatch.setattr(gradients, "GATHERED_BYTES", 2 * 4 * 16)

        def body(session):
            model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(5)])
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
            found = []
            for each in model.parameters():
                each.register_post_accumulate_grad_hook(lambda _: found.append(len(session.submitted)))
            for _ in range(2):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return found, [each.name for each in session.submitted[:5]]

        names = [f"Gradient.{layer}.weight" for layer in (4, 3, 2, 1, 0)]
        assert run_workers(2, body) == [([0, 2, 2, 4, 4, 5, 7, 7, 9, 9], names)] * 2

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (lambda parameter: parameter.grad.mul_(2), "changed or replaced"),
            (lambda parameter: setattr(parameter, "grad", parameter.grad.clone()), "changed or replaced"),
            (lambda parameter: setattr(parameter, "grad", None), "cleared"),
        ],
    )
    def test_what_was_changed_before_it_was_pushed_is_told_too(self, change, what):
        def body(session):
            model = make_model()
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
            loss_of(model, *make_batches(1)[0]).backward()
            assert len(session.submitted) == 0
            change(model[0].weight)
            with pytest.raises(BytePSError, match=f"gradient of '0.weight' was {what} after its push"):
                optimizer.step()
            assert len(session.submitted) == 4
            optimizer.zero_grad()
            loss_of(model, *make_batches(1)[0]).backward()
            optimizer.step()
            return len(session.submitted)

        assert run_workers(2, body) == [8, 8]

    def test_one_that_cannot_be_pushed_keeps_nothing_back(self, monkeypatch):
        monkeypatch.setattr(gradients, "GATHERED_BYTES", 100)

        def body(session):
            model = make_model()
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
            submit, session.submit = session.submit, None
            with pytest.raises(TypeError, match="NoneType"):
                loss_of(model, *make_batches(1)[0]).backward()
            session.submit = submit
            optimizer.synchronize()
            return len(session.submitted)

        assert run_workers(2, body) == [4, 4]


def test_the_order_is_the_models_and_not_the_optimizers() -> None:
    def body(session):
        model = make_model()
        own = torch.optim.SGD(list(model.parameters())[::-1], lr=1.0)
        bps.DistributedOptimizer(own, model.named_parameters())
        return [spec.name for spec in session.declared[0]]

    names = ["Gradient.0.weight", "Gradient.0.bias", "Gradient.2.weight", "Gradient.2.bias"]
    assert run_workers(1, body) == [names]


def one_parameter(passes=1):
    parameter = torch.ones(2, requires_grad=True)
    own = torch.optim.SGD([parameter], lr=1.0)
    return parameter, bps.DistributedOptimizer(own, [("w", parameter)], backward_passes_per_step=passes)


def test_one_backward_pass_too_many_is_an_error() -> None:
    def body(session):
        parameter, optimizer = one_parameter(passes=2)
        parameter.sum().backward()
        parameter.sum().backward()
        with pytest.raises(BytePSError, match="gradient of 'w' was accumulated once more after backward pass 2 of 2"):
            parameter.sum().backward()
        assert optimizer.param_groups

    run_workers(1, body)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_between_backward_and_step_is_an_error(set_to_none) -> None:
    def body(session):
        parameter, optimizer = one_parameter()
        parameter.sum().backward()
        with pytest.raises(BytePSError, match=r"zero_grad\(\) was called while the gradients of w are on their way"):
            optimizer.zero_grad(set_to_none)
        optimizer.step()
        optimizer.zero_grad(set_to_none)
        assert parameter.tolist() == [0.0, 0.0]
        assert (parameter.grad is None) == set_to_none

    run_workers(2, body)


def test_zero_grad_before_the_last_pass_counts_anew() -> None:
    def body(session):
        parameter, optimizer = one_parameter(passes=2)
        parameter.sum().backward()
        optimizer.zero_grad()
        for _ in range(2):
            parameter.sum().backward()
        optimizer.step()
        return parameter.tolist()

    assert run_workers(2, body) == [[-1.0, -1.0]] * 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda p: p.grad.zero_(), "changed"),
        (lambda p: nn.utils.clip_grad_norm_([p], 0.1), "changed"),
        (lambda p: setattr(p, "grad", torch.zeros(2)), "replaced"),
        (lambda p: setattr(p, "grad", None), "cleared"),
    ],
    ids=["zeroed", "clipped", "replaced", "dropped"],
)
def test_changes_behind_the_optimizers_back_are_noticed(change, word) -> None:
    def body(session):
        parameter, optimizer = one_parameter()
        parameter.sum().backward()
        change(parameter)
        with pytest.raises(BytePSError, match=f"the gradient of 'w' was .*{word}.* after its push"):
            optimizer.step()

    run_workers(1, body)


@pytest.mark.parametrize("fault", ["changed", "refused"])
def test_an_error_is_raised_when_nothing_is_on_its_way_any_more(fault) -> None:
    """The push of ``b`` writes to its gradient: worker 1 contributes late, worker 0 must not go on before."""
    raised = threading.Event()

    def with_another_step_for_a(submit):
        def wrong(spec, *arguments, step, **more):
            return submit(spec, *arguments, step=step + (spec.name == "Gradient.a"), **more)

        return wrong

    def body(session):
        a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])
        if session.rank == 0:
            if fault == "refused":
                session.submit = with_another_step_for_a(session.submit)
            (a + 3 * b).sum().backward()
            if fault == "changed":
                a.grad.zero_()
            with pytest.raises(BytePSError, match="'a' was changed" if fault == "changed" else r"Gradient\.a.*step 1"):
                optimizer.step()
            seen = b.grad.tolist()
            raised.set()
            optimizer.zero_grad()
            return seen
        a.sum().backward()
        raised.wait(0.5)
        b.sum().backward()
        with contextlib.nullcontext() if fault == "changed" else pytest.raises(AgreementError):
            optimizer.step()
        return b.grad.tolist()

    assert run_workers(2, body) == [[2.0, 2.0]] * 2


def test_skip_synchronize_needs_synchronize() -> None:
    def body(session):
        parameter, optimizer = one_parameter()
        parameter.sum().backward()
        with optimizer.skip_synchronize(), pytest.raises(BytePSError, match=r"needs a call of synchronize\(\)"):
            optimizer.step()
        optimizer.synchronize()
        optimizer.zero_grad()
        parameter.sum().backward()
        with optimizer.skip_synchronize(), pytest.raises(BytePSError, match=r"needs a call of synchronize\(\)"):
            optimizer.step()
        optimizer.step()
        return parameter.tolist()

    assert run_workers(2, body) == [[0.0, 0.0]] * 2


def test_passes_cannot_change_while_gradients_are_on_their_way() -> None:
    def body(session):
        parameter, optimizer = one_parameter()
        parameter.sum().backward()
        with pytest.raises(BytePSError, match="set_backward_passes_per_step"):
            optimizer.set_backward_passes_per_step(2)
        optimizer.step()
        parameter.sum().backward()
        optimizer.step()
        with pytest.raises(ValueError, match="backward_passes_per_step=0"):
            optimizer.set_backward_passes_per_step(0)

    run_workers(1, body)


def test_workers_in_different_steps_are_told() -> None:
    def body(session):
        parameter, optimizer = one_parameter()
        parameter.sum().backward()
        optimizer.synchronize()
        if session.rank == 0:
            optimizer.step()
        parameter.grad = None
        parameter.sum().backward()
        with pytest.raises(AgreementError, match=r"worker 0 pushes .*step 1, worker 1 pushes .*step 0"):
            optimizer.step()

    run_workers(2, body)


def test_a_step_without_any_gradient_changes_nothing() -> None:
    def body(session):
        parameter, optimizer = one_parameter()
        optimizer.step()
        assert [each.absent for each in session.submitted] == [True]
        return parameter.tolist(), parameter.grad

    assert run_workers(2, body) == [([1.0, 1.0], None)] * 2


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (lambda m: [("a", p) for p in m.parameters()], "several tensors of one name: a;"),
        (lambda m: list(m.named_parameters())[:3], r"lacks 1 of the optimizer's parameters, of shape \(3,\)"),
        (lambda m: m.parameters(), "must be pairs of name and tensor"),
    ],
    ids=["doubled", "missing", "unnamed"],
)
def test_wrong_names_are_refused(named, message) -> None:
    def body(session):
        model = make_model()
        with pytest.raises(ValueError, match=message):
            bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), named(model))

    run_workers(1, body)


def test_an_optimizer_is_distributed_once() -> None:
    def body(session):
        _, optimizer = one_parameter()
        with pytest.raises(ValueError, match="already"):
            bps.DistributedOptimizer(optimizer)

    run_workers(1, body)


def test_several_optimizers_with_the_same_names_do_not_meet() -> None:
    def body(session):
        models = [make_model(seed) for seed in range(2)]
        named = [models[0].named_parameters(), None]
        optimizers = [
            bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), names)
            for model, names in zip(models, named, strict=True)
        ]
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.ones(1, 5)).sum().backward()
            optimizer.step()
        return {each.name for each in session.submitted}

    (names, again) = run_workers(2, body)
    assert names == again
    assert len(names) == 8
    assert {"Gradient.0.weight", "Gradient2.noname.0"} <= names


def test_the_number_of_an_optimizer_is_not_taken_for_a_layer() -> None:
    def body(session):
        layers = make_model()  # the last is called "2"
        single = nn.Linear(5, 3)
        for model in (layers, single):
            bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        return [spec.name for batch in session.declared for spec in batch]

    (names,) = run_workers(1, body)
    assert len(set(names)) == len(names) == 6


def test_a_dropped_optimizer_leaves_the_model_alone() -> None:
    def body(session):
        model = make_model()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        del optimizer
        gc.collect()
        optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
        model(torch.ones(1, 5)).sum().backward()
        optimizer.step()
        return {each.name for each in session.submitted}

    names = {"Gradient2.0.weight", "Gradient2.0.bias", "Gradient2.2.weight", "Gradient2.2.bias"}
    assert run_workers(1, body) == [names]


def test_parameters_that_are_thawed_or_added_later_are_averaged() -> None:
    def body(session):
        frozen, free, late = (torch.zeros(1, requires_grad=flag) for flag in (False, True, True))
        own = torch.optim.SGD([frozen, free], lr=1.0)
        optimizer = bps.DistributedOptimizer(own, [("frozen", frozen), ("free", free)])
        (free * (session.rank + 1)).sum().backward()
        optimizer.step()
        assert [each.name for each in session.submitted] == ["Gradient.free"]
        frozen.requires_grad_()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.add_param_group({"params": [late], "lr": 2.0})
        for _ in range(2):
            optimizer.zero_grad()
            ((frozen + free + late) * (session.rank + 1)).sum().backward()
            optimizer.step()
        return frozen.item(), free.item(), late.item()

    assert run_workers(2, body) == [(-3.0, -4.5, -6.0)] * 2


def test_state_dicts_are_those_of_the_optimizers_own_class() -> None:
    def body(session):
        model = make_model()
        optimizer = bps.DistributedOptimizer(OPTIMIZERS["Adam"](model.parameters()), model.named_parameters())
        model(torch.ones(1, 5)).sum().backward()
        optimizer.step()
        plain = OPTIMIZERS["Adam"](model.parameters())
        plain.load_state_dict(optimizer.state_dict())
        optimizer.load_state_dict(plain.state_dict())
        optimizer.zero_grad()
        model(torch.ones(1, 5)).sum().backward()
        optimizer.step()
        return sorted(optimizer.state_dict()), float(optimizer.state[model[0].weight]["step"])

    assert run_workers(1, body) == [(["param_groups", "state"], 2.0)]


def test_existing_state_and_options_are_kept() -> None:
    def body(session):
        model = make_model()
        own = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}], lr=0.1)
        own.zero_grad()
        model(torch.ones(1, 5)).sum().backward()
        own.step()
        own.zero_grad()
        optimizer = bps.DistributedOptimizer(own, model.named_parameters())
        assert optimizer is own
        assert type(optimizer).__name__ == "SGD"
        return [group["lr"] for group in optimizer.param_groups]

    assert run_workers(1, body) == [[0.5, 0.1]]


class TestGradientsInTheArena:
    """``arena=True``, with homes for small gradients too; all other tests here run both with them and without."""

    @pytest.fixture(autouse=True)
    def arena(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(homes, "LEAST_BYTES", 0)
        set_default_arena(monkeypatch, True)

    def test_the_bits_are_those_of_gradients_elsewhere(self):
        def train(arena):
            def body(session):
                model = make_model()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), arena=arena)
                for inputs, targets in make_batches(2):
                    optimizer.zero_grad()
                    loss_of(model, share(inputs, session), share(targets, session)).backward()
                    optimizer.step()
                return list(model.parameters()), len(session.arena)

            return run_workers(2, body)

        elsewhere, inside = train(False), train(True)
        assert [count for _, count in elsewhere] == [0, 0]
        assert [count for _, count in inside] == [4, 4]
        for (ours, _), (theirs, _) in zip(inside, elsewhere, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))

    @pytest.mark.parametrize("to_none", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_they_live_there_from_the_first_push_on(self, to_none, dtype):
        def body(session):
            model = make_model().to(dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
            places = set()
            for inputs, targets in make_batches(1):
                optimizer.zero_grad(to_none)
                loss_of(model, inputs.to(dtype), targets.to(dtype)).backward()
                optimizer.step()
                places.add(tuple(each.grad.data_ptr() for each in model.parameters()))
            optimizer.zero_grad(to_none)
            assert all(each.grad is None if to_none else not each.grad.any() for each in model.parameters())
            return places, sorted(each.ctypes.data for each in session.arena)

        ((places, arena), *_) = run_workers(1, body)
        assert len(places) == 1
        assert sorted(places.pop()) == arena

    @pytest.mark.parametrize("hold", [lambda grad: grad, lambda grad: grad.detach()[:1], lambda grad: grad.numpy()])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_one_that_is_still_held_keeps_its_memory(self, hold, dtype):
        def body(session):
            weight = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
            held, made = [], []
            for factor in range(1, 6):
                optimizer.zero_grad()
                (weight * factor).sum().backward()
                optimizer.step()
                if factor < 4:
                    held.append(hold(weight.grad))
                made.append(len(session.arena))
            return [float(each.reshape(-1)[0]) for each in held], made

        assert run_workers(1, body) == [([1.0, 2.0, 3.0], [1, 2, 3, 4, 4])]

    def test_what_travels_as_another_type_stays_and_is_sent_from_there(self):
        def body(session):
            model = make_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), bps.Compression.fp16)
            for inputs, targets in make_batches(1):
                optimizer.zero_grad()
                loss_of(model, inputs, targets).backward()
                before = [each.grad for each in model.parameters()]
                optimizer.step()
                assert all(each.grad is grad for each, grad in zip(model.parameters(), before, strict=True))
                assert all(each.grad.dtype is torch.float32 for each in model.parameters())
            return [each.dtype.name for each in session.arena]

        assert run_workers(1, body) == [["float16"] * 4]

    def test_one_of_another_layout_keeps_it(self):
        def body(session):
            weight = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
            optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
            factor = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
            for _ in range(2):
                optimizer.zero_grad()
                (weight * factor * (session.rank + 1)).sum().backward()
                optimizer.step()
                assert weight.grad.is_contiguous(memory_format=torch.channels_last)
            return torch.equal(weight.grad, 1.5 * factor), len(session.arena)

        assert run_workers(2, body) == [(True, 1)] * 2

    def test_one_that_is_part_of_a_graph_stays_in_it(self):
        def body(session):
            weight = torch.full((3,), 2.0, requires_grad=True)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using backward.. with create_graph=True", UserWarning)
                (weight**3).sum().backward(create_graph=True)
            graph = weight.grad.grad_fn
            optimizer.synchronize()
            return graph is not None and weight.grad.grad_fn is graph, weight.grad.tolist()

        assert run_workers(2, body) == [(True, [12.0] * 3)] * 2

    def test_one_that_is_a_part_of_something_stays_there(self):
        def body(session):
            weight = torch.zeros(4, requires_grad=True)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
            flat = torch.zeros(10)
            weight.grad = flat[2:6]
            for _ in range(3):
                flat.zero_()
                weight.sum().backward()
                optimizer.step()
                assert weight.grad.data_ptr() == flat[2:].data_ptr()
            return weight.tolist(), flat.tolist()

        assert run_workers(2, body) == [([-3.0] * 4, [0.0] * 2 + [1.0] * 4 + [0.0] * 4)] * 2

    def test_what_is_taken_after_the_backward_pass_is_what_gets_the_average(self):
        def body(session):
            model = make_model()
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
            inputs, targets = make_batches(2)[0]
            loss_of(model, share(inputs, session), share(targets, session)).backward()
            taken = [each.grad for each in model.parameters()]
            optimizer.synchronize()
            return all(each.grad is one for each, one in zip(model.parameters(), taken, strict=True))

        assert run_workers(2, body) == [True, True]

    def test_a_forked_child_has_none_of_them(self):
        def body(session):
            model = make_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
            loss_of(model, *make_batches(1)[0]).backward()
            optimizer.step()
            child = os.fork()
            if not child:
                os._exit(sum(each.grad is not None for each in model.parameters()))
            return os.waitpid(child, 0)[1], sum(each.grad is not None for each in model.parameters())

        assert run_workers(1, body) == [(0, 4)]

    def test_small_ones_stay_where_they_are(self, monkeypatch):
        monkeypatch.setattr(homes, "LEAST_BYTES", 65536)

        def body(session):
            model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 127))
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            model(torch.ones(1, 128)).sum().backward()
            optimizer.step()
            return [each.nbytes for each in session.arena]

        assert run_workers(1, body) == [[65536]]


def test_nccl_is_refused_before_anything_is_changed() -> None:
    def body(session):
        optimizer = torch.optim.SGD(make_model().parameters(), lr=0.1)
        with pytest.raises(UnsupportedError, match=r"nccl=True: .* leave it out"):
            bps.DistributedOptimizer(optimizer, nccl=True)
        return type(optimizer) is torch.optim.SGD, session.declared

    assert run_workers(1, body) == [(True, [])]
