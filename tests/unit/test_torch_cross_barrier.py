"""``CrossBarrier``: the same bits as a ``DistributedOptimizer``, and waits where they belong."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import threading
import warnings
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import AgreementError, BytePSError, NotInitializedError, UnsupportedError  # noqa: E402
from byteps_py.torch import parallel as bps_parallel  # noqa: E402
from byteps_py.torch.cross_barrier import CrossBarrier  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

nn = torch.nn
BATCH = 4


class Model(nn.Module):
    """Tied weights, attention (which reads a module without calling it), normalisation, a branch."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.branches = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 7)
        self.head.weight = self.embed.weight

    def forward(self, words, branch):
        hidden = self.embed(words)
        hidden = self.norm(hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0])
        if branch is not None:
            hidden = hidden + torch.tanh(self.branches[branch](hidden)) * self.scale
        return self.head(hidden)


_seeding = threading.Lock()


def make_model(make=Model, seed=3):
    """Workers are threads here, and have one generator."""
    with _seeding:
        torch.manual_seed(seed)
        return make()


def plain(model, own, **options):
    return bps.DistributedOptimizer(own, model.named_parameters(), **options)


def crossing(model, own, **options):
    return CrossBarrier(model, own, model.named_parameters(), **options)


def train(make, make_optimizer, size, passes=1, steps=8, scheduler=True, set_to_none=True):
    """Parameters, state and which gradients were missing, for each worker. Branches differ by worker and step."""
    choices = random.Random(5)
    branches = [[[choices.choice([None, 0, 1, 2]) for _ in range(size)] for _ in range(passes)] for _ in range(steps)]

    def body(session):
        model = make_model()
        groups = [{"params": list(model.embed.parameters()), "lr": 0.02}]
        groups.append({"params": [each for each in model.parameters() if each is not model.embed.weight]})
        optimizer = make(model, make_optimizer(groups), backward_passes_per_step=passes)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        generator = torch.Generator().manual_seed(session.rank)
        losses = []
        for step in range(steps):
            optimizer.zero_grad(set_to_none)
            for each in branches[step]:
                words = torch.randint(0, 7, (BATCH, 5), generator=generator)
                loss = nn.functional.cross_entropy(model(words, each[session.rank]).flatten(0, 1), words.flatten())
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            if scheduler:
                schedule.step()
        state = optimizer.state_dict()
        return [each.detach().clone() for each in model.state_dict().values()], state, losses, session.steps

    return run_workers(size, body)


def check_equal(ours, theirs):
    for (parameters, state, losses, steps), (plain_parameters, plain_state, plain_losses, plain_steps) in zip(
        ours, theirs, strict=True
    ):
        assert losses == plain_losses
        assert steps == plain_steps
        assert all(torch.equal(one, other) for one, other in zip(parameters, plain_parameters, strict=True))
        assert state["param_groups"] == plain_state["param_groups"]
        assert state["state"].keys() == plain_state["state"].keys()
        for place, entries in state["state"].items():
            for key, value in entries.items():
                other = plain_state["state"][place][key]
                assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, (place, key)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "SGD-plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD-fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam-foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "Adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_bits_are_those_of_a_distributed_optimizer(make_optimizer) -> None:
    check_equal(train(crossing, make_optimizer, 2), train(plain, make_optimizer, 2))


@pytest.mark.parametrize(
    "options", [{"size": 1}, {"size": 3}, {"size": 2, "passes": 2}, {"size": 2, "scheduler": False}]
)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_bits_with_other_options(options, set_to_none) -> None:
    options = {**options, "set_to_none": set_to_none}
    check_equal(train(crossing, OPTIMIZERS["Adam"], **options), train(plain, OPTIMIZERS["Adam"], **options))


def linear_chain(layers=3, width=2):
    return make_model(lambda: nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)]))


class Held:
    """A session of one whose results come when they are let go."""

    def __init__(self, session):
        self.free: set[str] = set()
        self.waited: list[str] = []
        self._submit, session.submit = session.submit, self.submit

    def submit(self, spec, *arguments, **more):
        pending = self._submit(spec, *arguments, **more)
        wait = pending.wait

        def held():
            self.waited.append(spec.name)
            assert spec.name in self.free, f"{spec.name} is waited for too early"
            return wait()

        pending.wait = held
        return pending


def test_each_layer_waits_for_its_own_parameters() -> None:
    """step() waits for nothing; in the second forward pass each result is let go just before its layer."""

    def body(session):
        model = linear_chain()
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
        held = Held(session)
        inputs = torch.ones(1, 2)
        parameters = list(model.parameters())
        raw = [each.detach().numpy() for each in parameters]  # torch's functions would wait for what they read
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert held.waited == []
        before = [each.copy() for each in raw]
        after = []
        for number, layer in enumerate(model):
            layer.register_forward_pre_hook(
                lambda *_, number=number: after.append([not np.array_equal(*pair) for pair in changed()])
            )

        def changed():
            return list(zip(raw, before, strict=True))

        def free(module, *_):
            held.free.add(f"Gradient.{list(model).index(module) if module in list(model) else 0}.weight")

        for module in model.modules():
            module.register_forward_pre_hook(free, prepend=True)  # before ours
        model(inputs)
        assert held.waited == [f"Gradient.{number}.weight" for number in range(3)]
        assert all(each.grad is None for each in parameters)
        return after

    assert run_workers(1, body) == [[[True, False, False], [True, True, False], [True, True, True]]]


def test_priorities_go_from_the_front_to_the_back() -> None:
    def body(session):
        model = linear_chain()
        optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return {each.name: each.priority for each in session.submitted}

    assert run_workers(1, body) == [{"Gradient.0.weight": 0, "Gradient.1.weight": -1, "Gradient.2.weight": -2}]


def test_the_options_are_those_of_the_step() -> None:
    def body(session):
        parameter = nn.Parameter(torch.zeros(1))
        model = nn.ParameterList([parameter])
        rate = torch.tensor(1.0)
        optimizer = CrossBarrier(model, torch.optim.SGD([parameter], lr=rate))
        parameter.sum().backward()
        optimizer.step()
        rate.fill_(100.0)
        optimizer.param_groups[0]["weight_decay"] = 7.0
        optimizer.synchronize()
        return parameter.item()

    assert run_workers(2, body) == [-1.0] * 2


def step_once(model, optimizer, inputs=None):
    model(torch.ones(1, 2) if inputs is None else inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "read",
    [
        lambda model, optimizer: model.state_dict(),
        lambda model, optimizer: model[1].state_dict(),
        lambda model, optimizer: model.load_state_dict(model.state_dict()),
        lambda model, optimizer: optimizer.state_dict(),
        lambda model, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
        lambda model, optimizer: optimizer.state[model[0].weight]["momentum_buffer"],
        lambda model, optimizer: bps.broadcast_optimizer_state(optimizer),
        lambda model, optimizer: optimizer.synchronize(),
        lambda model, optimizer: optimizer.step(),
        lambda model, optimizer: model.eval()[0](torch.ones(1, 2)),
        lambda model, optimizer: optimizer.set_backward_passes_per_step(2),
        lambda model, optimizer: list(model.parameters()),
        lambda model, optimizer: [each.weight for each in model],
        lambda model, optimizer: copy.deepcopy(model),
        lambda model, optimizer: pickle.dumps(model),
        lambda model, optimizer: [{**each._parameters} for each in model],
        lambda model, optimizer: [each._parameters | {} for each in model],
        lambda model, optimizer: [{} | each._parameters for each in model],
        lambda model, optimizer: [each._parameters.copy() for each in model],
        lambda model, optimizer: [each._parameters.get("weight") for each in model],
    ],
)
def test_what_reads_everything_waits_for_everything(read) -> None:
    def body(session):
        models = [linear_chain(), linear_chain()]
        own = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.5) for each in models]
        optimizer, reference = crossing(models[0], own[0]), plain(models[1], own[1])
        raw = [each.detach() for each in models[0].parameters()]  # not waited for
        step_once(models[0], optimizer)
        step_once(models[1], reference)
        before = [each.clone() for each in raw]
        read(models[0], optimizer)
        mine, theirs = raw, list(models[1].parameters())
        assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
        assert not any(torch.equal(*pair) for pair in zip(mine, before, strict=True))

    run_workers(1, body)


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_updates_do_not_depend_on_where_they_happen(context) -> None:
    """Where a forward pass waits, gradients may be off, or a cast on, and state is made in the first update."""

    def run(make):
        def body(session):
            model = linear_chain()
            optimizer = make(model, torch.optim.Adam(model.parameters(), lr=0.1))
            step_once(model, optimizer)
            with context():
                seen = model(torch.ones(1, 2)).float().tolist()
            for _ in range(2):
                step_once(model, optimizer)
            return seen, [each.tolist() for each in model.state_dict().values()]

        return run_workers(2, body)

    assert run(crossing) == run(plain)


def test_a_shortcut_of_torch_through_a_module_waits_for_what_it_reads() -> None:
    """Without gradients an encoder layer calls none of its modules."""

    def run(make):
        def body(session):
            model = make_model(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))
            optimizer = make(model, torch.optim.SGD(model.parameters(), lr=0.1))
            inputs = torch.linspace(-1, 1, 24).reshape(1, 3, 8)
            found = []
            for step in range(3):
                optimizer.zero_grad()
                model(inputs).pow(2).sum().backward()
                optimizer.step()
                model.train(step == 1)
                with torch.no_grad():
                    found.append(model(inputs).tolist())
                model.train()
            return found

        return run_workers(1, body)

    assert run(crossing) == run(plain)


def test_a_reference_from_before_the_step_that_is_used_outside_the_model_is_an_error() -> None:
    """Nothing can catch that use, but what it leads to is told."""

    def body(session):
        model = linear_chain()
        last = model[2].weight
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            step_once(model, optimizer)
        hidden = model[1](model[0](torch.ones(1, 2)))
        with pytest.raises(BytePSError, match=r"'2.weight' was used before its update .* from its module, or call .*"):
            (hidden @ last).sum().backward()
        for act in (optimizer.step, optimizer.synchronize, model.state_dict, lambda: model(torch.ones(1, 2))):
            with pytest.raises(BytePSError, match=r"'2.weight' was used before its update"):
                act()

    run_workers(1, body)


@pytest.mark.parametrize("change", [lambda grad: grad.mul_(2), lambda grad: grad.zero_()])
def test_a_gradient_that_is_changed_in_flight_is_an_error(change) -> None:
    def body(session):
        model = linear_chain()
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
        weight = model[1].weight
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        change(weight.grad)
        with pytest.raises(BytePSError, match=r"'1.weight' was changed while it was on its way, after step\(\)"):
            model(torch.ones(1, 2))

    run_workers(1, body)


def test_gradients_that_the_model_clears_in_flight_are_applied_all_the_same() -> None:
    def run(make):
        def body(session):
            model = linear_chain()
            optimizer = make(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for value in range(4):
                model(torch.full((1, 2), session.rank + value + 1.0)).sum().backward()
                optimizer.step()
                model.zero_grad()
                assert all(each.grad is None for each in model.parameters())
            optimizer.synchronize() if make is crossing else None
            return [each.tolist() for each in model.parameters()], [each.grad for each in model.parameters()]

        return run_workers(2, body)

    assert run(crossing) == run(plain)


def test_gradients_that_nobody_clears_add_up() -> None:
    def run(make):
        def body(session):
            model = linear_chain()
            optimizer = make(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for value in range(3):
                model(torch.full((1, 2), session.rank + value + 1.0)).sum().backward()
                optimizer.step()
            optimizer.state_dict()
            return [(each.tolist(), each.grad.tolist()) for each in model.parameters()]

        return run_workers(2, body)

    assert run(crossing) == run(plain)


def test_three_hundred_small_layers_and_branches() -> None:
    """Each worker skips other layers in each step."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(300)])

        def forward(self, hidden, taken):
            for place in taken:
                hidden = hidden + torch.tanh(self.layers[place](hidden)) / 10
            return hidden

    def run(make):
        def body(session):
            choices = random.Random(session.rank)
            model = make_model(Deep)
            optimizer = make(model, torch.optim.AdamW(model.parameters(), lr=0.01))
            for _ in range(3):
                optimizer.zero_grad()
                taken = sorted(choices.sample(range(300), 200))
                model(torch.full((2, 3), session.rank + 1.0), taken).pow(2).sum().backward()
                optimizer.step()
            return [each.clone() for each in model.state_dict().values()]

        return run_workers(2, body)

    for ours, theirs in zip(run(crossing), run(plain), strict=True):
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_parameters_that_are_thawed_or_added_later_are_averaged() -> None:
    def run(make):
        def body(session):
            model, late = linear_chain(), nn.Parameter(torch.ones(2))
            model[0].requires_grad_(False)
            optimizer = make(model, torch.optim.SGD(model.parameters(), lr=0.1))
            step_once(model, optimizer)
            model[0].requires_grad_()
            optimizer.add_param_group({"params": [late], "lr": 0.5})
            for _ in range(3):
                (model(torch.full((1, 2), session.rank + 1.0)) * late).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                optimizer.synchronize() if make is crossing else None  # late is no part of the model
            return [each.tolist() for each in (*model.parameters(), late)]

        return run_workers(2, body)

    assert run(crossing) == run(plain)


def test_schedulers_made_before_or_after() -> None:
    def body(session):
        model = linear_chain()
        own = torch.optim.SGD(model.parameters(), lr=1.0)
        before = torch.optim.lr_scheduler.StepLR(own, 1, gamma=0.5)
        optimizer = crossing(model, own)
        after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step_once(model, optimizer)
            before.step()
            after.step()
        return optimizer.param_groups[0]["lr"], isinstance(optimizer, torch.optim.SGD), type(optimizer).__name__

    assert run_workers(1, body) == [(pytest.approx(0.05), True, "SGD")]


class TestTheOptimizerIsDropped:
    def test_the_model_keeps_what_is_in_flight(self):
        def body(session):
            model, reference = linear_chain(), linear_chain()
            step_once(reference, plain(reference, torch.optim.SGD(reference.parameters(), lr=0.1)))
            optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
            step_once(model, optimizer)
            gone = weakref.ref(optimizer)
            del optimizer
            gc.collect()
            assert gone() is None
            return all(
                torch.equal(*pair) for pair in zip(model.state_dict().values(), reference.parameters(), strict=True)
            )

        assert run_workers(1, body) == [True]

    @pytest.mark.parametrize("in_flight", [True, False])
    def test_another_may_take_its_place(self, in_flight):
        def body(session):
            model = linear_chain()
            for _ in range(2):
                optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
                step_once(model, optimizer)
                if not in_flight:
                    optimizer.synchronize()
                del optimizer
            updated = model.state_dict()
            reference = linear_chain()
            for _ in range(2):
                step_once(reference, plain(reference, torch.optim.SGD(reference.parameters(), lr=0.1)))
                gc.collect()
            assert len(model._forward_pre_hooks) == 0
            return all(torch.equal(*pair) for pair in zip(updated.values(), reference.parameters(), strict=True))

        assert run_workers(1, body) == [True]


def test_copies_of_the_model_train_by_themselves() -> None:
    def body(session):
        model = linear_chain()
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step_once(model, optimizer)
        optimizer.synchronize()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
        step_once(model, optimizer)
        for each in copies:
            own = torch.optim.SGD(each.parameters(), lr=0.1)
            step_once(each, own)
        updated = list(model.state_dict().values())
        return [
            torch.equal(one, other) for each in copies for one, other in zip(each.parameters(), updated, strict=True)
        ]

    assert run_workers(1, body) == [[True] * 9]


class TestWrongUse:
    """One sentence that says what to do."""

    def test_before_init(self):
        model = linear_chain()
        with pytest.raises(NotInitializedError, match=r"call init\(\) first"):
            CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))

    @pytest.mark.parametrize(
        ("make", "error", "words"),
        [
            (
                lambda m: torch.optim.LBFGS(m.parameters()),
                UnsupportedError,
                "LBFGS is not known to allow; it takes SGD",
            ),
            (lambda m: torch.optim.SparseAdam(m.parameters()), UnsupportedError, "SparseAdam"),
            (lambda m: type("Mine", (torch.optim.SGD,), {})(m.parameters()), UnsupportedError, "Mine"),
            (lambda m: plain(m, torch.optim.SGD(m.parameters())), ValueError, "is a DistributedOptimizer already"),
            (lambda m: torch.optim.SGD(m.parameters(), differentiable=True), UnsupportedError, "differentiable=True"),
            (lambda m: m, TypeError, "takes a torch.optim.Optimizer, not a Sequential"),
            (lambda m: hooked(torch.optim.SGD(m.parameters())), UnsupportedError, "has hooks of its step"),
        ],
    )
    def test_wrong_optimizers(self, make, error, words):
        def body(session):
            model = linear_chain()
            with pytest.raises(error, match=words):
                CrossBarrier(model, make(model))
            return len(model[0]._forward_pre_hooks)

        assert run_workers(1, body) == [0]

    def test_twice_and_no_model(self):
        def body(session):
            model = linear_chain()
            optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters()))
            with pytest.raises(ValueError, match="this optimizer is a CrossBarrier already"):
                CrossBarrier(model, optimizer)
            with pytest.raises(ValueError, match="averaged by a CrossBarrier already"):
                CrossBarrier(model, torch.optim.SGD(model.parameters()))
            with pytest.raises(TypeError, match=r"takes a torch.nn.Module and its optimizer, not a generator"):
                CrossBarrier(model.parameters(), torch.optim.SGD(linear_chain().parameters()))
            return True

        assert run_workers(1, body) == [True]

    def test_a_dtype_that_cannot_be_pushed(self):
        def body(session):
            model = nn.ParameterList([torch.zeros(2, dtype=torch.complex64)])
            with pytest.raises(UnsupportedError, match=r"'0' has dtype torch.complex64"):
                CrossBarrier(model, torch.optim.SGD(model.parameters()))
            return True

        assert run_workers(1, body) == [True]

    def test_what_needs_all_gradients_at_once(self):
        def body(session):
            model = linear_chain()
            optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for act in (
                lambda: optimizer.step(lambda: None),
                optimizer.skip_synchronize,
                lambda: optimizer.register_step_pre_hook(print),
                lambda: optimizer.register_step_post_hook(print),
            ):
                with pytest.raises(UnsupportedError, match=r"clipping, GradScaler.* needs a DistributedOptimizer"):
                    act()
            for act in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(UnsupportedError, match="neither copied nor pickled"):
                    act(optimizer)
            model(torch.ones(1, 2)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.001)
            with pytest.raises(
                BytePSError, match=r"'0.weight' was changed .*clipping, GradScaler.* DistributedOptimizer"
            ):
                optimizer.step()

        run_workers(1, body)

    @pytest.mark.parametrize("fused", [True, False])
    def test_a_scaler(self, fused):
        def body(session):
            model = linear_chain()
            optimizer = crossing(model, torch.optim.Adam(model.parameters(), lr=0.1, fused=fused))
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            with pytest.raises(UnsupportedError, match=r"by a GradScaler: .* needs a DistributedOptimizer"):
                scaler.step(optimizer)

        run_workers(1, body)

    def test_zero_grad_between_backward_and_step(self):
        def body(session):
            model = linear_chain()
            optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
            step_once(model, optimizer)
            model(torch.ones(1, 2)).sum().backward()
            with pytest.raises(BytePSError, match=r"zero_grad\(\) was called while .* 0.weight.* call step\(\) first"):
                optimizer.zero_grad()
            with pytest.raises(BytePSError, match=r"set_backward_passes_per_step"):
                optimizer.set_backward_passes_per_step(2)
            optimizer.step()
            optimizer.synchronize()

        run_workers(1, body)

    def test_after_shutdown(self):
        def body(session):
            model = linear_chain()
            return model, crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))

        ((model, optimizer),) = run_workers(1, body)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(NotInitializedError):
            optimizer.step()
        with pytest.raises(NotInitializedError):
            model.state_dict()

    def test_workers_in_different_steps_are_told_in_the_forward_pass(self):
        """And never again can the model be used as if nothing had happened."""

        def body(session):
            model = linear_chain()
            optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
            model(torch.ones(1, 2)).sum().backward()
            optimizer._updates.step += session.rank
            optimizer.step()
            for _ in range(2):
                with pytest.raises(AgreementError, match="step 1"):
                    model(torch.ones(1, 2))
            for act in (optimizer.step, optimizer.synchronize, model.state_dict, optimizer.state_dict):
                with pytest.raises(AgreementError, match="step 1"):
                    act()

        run_workers(2, body)

    def test_forward_passes_in_two_threads_update_once(self):
        def run(make, threads):
            def body(session):
                model = linear_chain(30)
                optimizer = make(model, torch.optim.SGD(model.parameters(), lr=0.1))
                inputs, results = torch.full((1, 2), 3.0), []
                for _ in range(5):
                    step_once(model, optimizer, inputs)
                    made = [
                        threading.Thread(target=lambda: results.append(model(inputs).tolist())) for _ in range(threads)
                    ]
                    for each in made:
                        each.start()
                    for each in made:
                        each.join()
                return sorted(results), [each.tolist() for each in model.state_dict().values()]

            return run_workers(1, body)

        assert run(crossing, 2) == run(plain, 2)


def hooked(optimizer):
    optimizer.register_step_post_hook(print)
    return optimizer


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wait_that_is_interrupted_may_be_repeated(place) -> None:
    """As by Ctrl-C in a notebook."""

    def run(make):
        def body(session):
            model = linear_chain()
            optimizer = make(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5))
            step_once(model, optimizer)
            model(torch.full((1, 2), session.rank + 1.0)).sum().backward()
            optimizer.step()
            if make is crossing:
                pending = [each.push.pending for each in optimizer._updates._slots.values()][place]
                wait, pending.wait = pending.wait, interrupt
                with pytest.raises(KeyboardInterrupt):
                    optimizer.synchronize()
                pending.wait = wait
                optimizer.zero_grad()
                optimizer.synchronize()
            optimizer.zero_grad()
            step_once(model, optimizer)
            return [each.tolist() for each in model.state_dict().values()]

        return run_workers(2, body)

    assert run(crossing) == run(plain)


def interrupt(*_):
    raise KeyboardInterrupt


def test_an_update_that_is_interrupted_is_told_from_then_on() -> None:
    def body(session):
        model = linear_chain()
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer._updates._part.step = interrupt
        with pytest.raises(KeyboardInterrupt):
            optimizer.synchronize()
        del optimizer._updates._part.step
        for act in (optimizer.step, optimizer.synchronize, model.state_dict, lambda: model[0].weight):
            with pytest.raises(BytePSError, match="was interrupted: some are updated and others are not"):
                act()

    run_workers(1, body)


def test_a_group_for_which_torch_chooses_together_is_updated_together() -> None:
    """torch looks at the types and devices of all that have gradients; one by one it might choose otherwise."""

    class Special(nn.Parameter):
        pass

    def body(session):
        model = linear_chain(3)
        model[1].weight = Special(model[1].weight.detach())
        groups = [{"params": [model[0].weight, model[1].weight]}, {"params": [model[2].weight]}]
        optimizer = crossing(model, torch.optim.SGD(groups, lr=0.1))
        raw = [each.detach() for each in model.parameters()]
        step_once(model, optimizer)
        before = [each.clone() for each in raw]
        assert model[0].weight is not None
        return [not torch.equal(*pair) for pair in zip(raw, before, strict=True)]

    assert run_workers(1, body) == [[True, True, False]]


@pytest.mark.parametrize("name", ["_wrapped_by_lr_sched", "_with_counter"])
def test_schedulers_of_all_versions_of_torch_see_the_steps(name) -> None:
    """They look for a mark of step(), and then for ``_opt_called`` or ``_step_count``."""

    def body(session):
        model = linear_chain()
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=1.0))
        before = getattr(optimizer, "_opt_called", False), optimizer._step_count
        step_once(model, optimizer)
        step_once(model, optimizer)
        return getattr(optimizer.step, name), before, optimizer._opt_called, optimizer._step_count

    assert run_workers(1, body) == [(True, (False, 0), True, 2)]


def test_hooks_in_two_threads_and_errors() -> None:
    """Autograd has a thread for each device; one at a time changes what has been gathered."""

    def body(session):
        model = linear_chain()
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.1))
        updates, inside = optimizer._updates, []
        slot = updates._slots[model[0].weight]
        slot.parameter.grad = torch.ones_like(slot.parameter)
        thread = threading.Thread(target=lambda: (updates.accumulated(slot), inside.append(1)))
        with updates._lock:
            thread.start()
            thread.join(0.2)
            assert inside == []
            assert slot.push is None
        thread.join(30)
        assert slot.push is not None
        optimizer.step()
        optimizer.synchronize()
        return inside

    assert run_workers(1, body) == [[1]]


MORE = {
    "maximize": lambda p: torch.optim.Adam(p, lr=0.01, maximize=True),
    "coupled": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1, maximize=True),
}


@pytest.mark.parametrize("make_optimizer", MORE.values(), ids=MORE)
def test_the_bits_with_options_of_the_optimizers(make_optimizer) -> None:
    check_equal(train(crossing, make_optimizer, 2, steps=4), train(plain, make_optimizer, 2, steps=4))


def test_state_that_is_restored_while_training() -> None:
    def run(make):
        def body(session):
            model = linear_chain()
            optimizer = make(model, torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True))
            step_once(model, optimizer, torch.full((1, 2), session.rank + 1.0))
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            for _ in range(2):
                step_once(model, optimizer, torch.full((1, 2), session.rank + 2.0))
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            for _ in range(2):
                step_once(model, optimizer, torch.full((1, 2), session.rank + 3.0))
            return [each.tolist() for each in model.state_dict().values()]

        return run_workers(2, body)

    assert run(crossing) == run(plain)


def test_what_failed_in_a_dropped_one_is_told_and_no_concern_of_the_next(caplog) -> None:
    def body(session):
        model, other = linear_chain(), linear_chain()
        parameters = list(model.parameters())
        optimizer = CrossBarrier(model, torch.optim.SGD(parameters, lr=0.1))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        for each in parameters:
            each.grad.mul_(2)
        del optimizer
        gc.collect()
        again = CrossBarrier(other, torch.optim.SGD(other.parameters(), lr=0.1))
        assert "changed while it was on its way" in caplog.text
        other(torch.ones(1, 2)).sum().backward()
        again.step()
        again.synchronize()
        return model(torch.ones(1, 2)).shape, len(model.state_dict())

    assert run_workers(1, body) == [((1, 2), 3)]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1)),
        bps_parallel.DistributedDataParallel,
    ],
)
def test_what_could_not_be_made_claims_nothing(wrap) -> None:
    def body(session):
        model = nn.Linear(2, 2)
        bad = nn.Linear(2, 2)
        bad.weight = model.weight
        bad.bias = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        with pytest.raises(UnsupportedError, match="bias") as caught:
            wrap(bad)
        CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return caught.type

    assert run_workers(1, body) == [UnsupportedError]
