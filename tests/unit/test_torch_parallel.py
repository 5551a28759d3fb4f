"""``DistributedDataParallel``: training with several workers in this process against plain torch."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import random
import threading
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import AgreementError, BytePSError, NotInitializedError, UnsupportedError  # noqa: E402
from byteps_py.torch.cross_barrier import CrossBarrier  # noqa: E402
from byteps_py.torch.parallel import DistributedDataParallel as DDP  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402
from tests.helpers.torch_branches import Branches  # noqa: E402

nn = torch.nn
BATCH = 6


_seeding = threading.Lock()


def seeded(make, seed=1):
    """Workers are threads here, and have one generator."""
    with _seeding:
        torch.manual_seed(seed)
        return make()


def make_model(seed=0):
    return seeded(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), seed)


def make_batches(size, steps=4):
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(size * BATCH, width, generator=generator) for width in (5, 3)] for _ in range(steps)]


def share(tensor, session):
    return tensor[session.rank * BATCH : (session.rank + 1) * BATCH]


def loss_of(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets)


def gradients_of(model):
    return [None if each.grad is None else each.grad.clone() for each in model.parameters()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_plain_optimizers_train_as_one_process_on_all_batches(size) -> None:
    alone = make_model()
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
    for inputs, targets in make_batches(size):
        optimizer.zero_grad()
        loss_of(alone, inputs, targets).backward()
        optimizer.step()

    models = [make_model(seed) for seed in range(size)]  # of which all become that of worker 0

    def body(session):
        model = DDP(models[session.rank])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for inputs, targets in make_batches(size):
            optimizer.zero_grad()
            loss_of(model, share(inputs, session), share(targets, session)).backward()
            optimizer.step()
        assert session.steps == 4
        return list(model.parameters())

    results = run_workers(size, body)
    for parameters in results:
        for ours, first, reference in zip(parameters, results[0], alone.parameters(), strict=True):
            assert torch.equal(ours, first)
            torch.testing.assert_close(ours, reference, rtol=2e-5, atol=1e-6)


def test_branches_taken_at_random_are_averaged_when_backward_returns() -> None:
    """Workers whose pass used nothing call synchronize(); the others need not, and may."""
    choices = random.Random(3)
    taken = [[choices.sample(range(4), choices.randint(0, 2)) for _ in range(3)] for _ in range(12)]
    assert any(not each for ways in taken for each in ways)

    def body(session):
        model = DDP(Branches())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        missing = []
        for number, ways in enumerate(taken):
            optimizer.zero_grad()
            output = model(ways[session.rank])
            if ways[session.rank]:
                output.backward()
            if not ways[session.rank] or number % 2:
                model.synchronize()
            missing.append([each.grad is None for each in model.parameters()])
            optimizer.step()
        return list(model.parameters()), missing

    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    missing = []
    for ways in taken:
        optimizer.zero_grad()
        if any(ways):
            (sum(model(each) for each in ways) / 3).backward()
        missing.append([each.grad is None for each in model.parameters()])
        optimizer.step()
    for parameters, seen in run_workers(3, body):
        assert seen == missing
        torch.testing.assert_close(parameters, list(model.parameters()))


def test_no_sync_accumulates_and_the_next_pass_averages_the_sum() -> None:
    def body(session):
        model = DDP(make_model())
        batches = make_batches(2, 3)
        with model.no_sync():
            for inputs, targets in batches[:2]:
                loss_of(model, share(inputs, session), share(targets, session)).backward()
            model.synchronize()
        assert [each for each in session.submitted if each.name.startswith("Gradient")] == []
        loss_of(model, share(batches[2][0], session), share(batches[2][1], session)).backward()
        return gradients_of(model)

    alone = make_model()
    for inputs, targets in make_batches(2, 3):
        loss_of(alone, inputs, targets).backward()
    for found in run_workers(2, body):
        torch.testing.assert_close(found, gradients_of(alone))


def test_what_only_a_pass_within_no_sync_has_reached_is_averaged_too() -> None:
    def body(session):
        model = DDP(Branches())
        with model.no_sync():
            model([session.rank]).backward()
        model([3]).backward()
        return gradients_of(model)

    expected = [torch.full((2,), each) for each in (1.0, 4.0)], torch.full((2,), 32.0)
    for found in run_workers(2, body):
        torch.testing.assert_close(found, [*expected[0], None, expected[1]])


def test_every_pass_through_one_graph_averages() -> None:
    """The second adds to the average, and the average of that is taken."""

    def body(session):
        model = DDP(nn.Linear(2, 1, bias=False))
        loss = model(torch.full((1, 2), session.rank + 1.0)).sum()
        loss.backward(retain_graph=True)
        once = model.module.weight.grad.tolist()
        loss.backward()
        return once, model.module.weight.grad.tolist()

    assert run_workers(2, body) == [([[1.5, 1.5]], [[3.0, 3.0]])] * 2


def test_several_passes_forward_and_one_backward() -> None:
    """Of a module with buffers as well: those that the first pass has used are left alone by the second."""

    def body(session):
        model = DDP(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)))
        inputs = torch.arange(30.0).reshape(6, 5).roll(session.rank) ** 2
        for _ in range(2):
            (model(inputs).pow(2).sum() + model(inputs.roll(3)).pow(3).sum()).backward()
        buffers = [each for each in session.submitted if each.name.startswith("Module") and "running_mean" in each.name]
        assert len(buffers) == 1 + 2
        return gradients_of(model)

    first, second = run_workers(2, body)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("broadcast", [True, False])
def test_buffers_are_those_of_worker_0_in_training(broadcast) -> None:
    def body(session):
        model = DDP(nn.BatchNorm1d(3), broadcast_buffers=broadcast)
        inputs = torch.full((4, 3), session.rank + 1.0)
        model(inputs).sum().backward()
        model.module.running_mean.fill_(session.rank + 5.0)
        model.eval()
        model(inputs)
        with model.no_sync():
            model.train()
            model(inputs)
        found = model.module.running_mean.tolist()
        model(inputs)
        return found, model.module.running_mean.tolist()

    first, second = run_workers(2, body)
    assert first[0] == pytest.approx([4.6] * 3)
    assert second[0] == pytest.approx([5.6] * 3)
    assert first[1] == pytest.approx([4.24] * 3)
    assert second[1] == pytest.approx([4.34 if broadcast else 5.24] * 3)


def test_a_module_that_is_skipped_with_its_input_passed_on() -> None:
    """The pass reaches the output and no parameter: synchronize() counts it."""

    class Maybe(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, inputs, skip):
            return inputs if skip else self.inner(inputs)

    def body(session):
        model = DDP(Maybe())
        inputs = torch.ones(1, 2, requires_grad=True) * 2
        model(inputs, skip=session.rank == 1).sum().backward()
        if session.rank == 1:
            model.synchronize()
        return model.module.inner.bias.grad.tolist()

    assert run_workers(2, body) == [[0.5, 0.5]] * 2


@dataclass
class Output:
    first: torch.Tensor
    rest: tuple


class Unknown:
    def __init__(self, hidden):
        self.hidden = hidden


OUTPUTS = {
    "tensor": (lambda x: x, lambda made: made),
    "list": (lambda x: [None, x], lambda made: made[1]),
    "dict": (lambda x: {"out": (x, 3)}, lambda made: made["out"][0]),
    "dataclass": (lambda x: Output(torch.zeros(1), ({1: x},)), lambda made: made.rest[0][1]),
    "unknown": (Unknown, lambda made: made.hidden),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_checkpoints_whose_backward_passes_run_within_another(kind) -> None:
    """The average comes at the end of the outer pass, unless the output is of a kind that hides its tensors: then each
    inner pass averages, which costs more and gives the same."""
    from torch.utils.checkpoint import checkpoint

    wrap, unwrap = OUTPUTS[kind]

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, inputs):
            for layer in self.layers:
                inputs = checkpoint(layer, inputs, use_reentrant=True)
            return wrap(inputs * 2)

    def body(session):
        model = DDP(seeded(Checkpointed))
        for _ in range(2):
            model.zero_grad()
            unwrap(model(torch.full((1, 4), session.rank + 1.0, requires_grad=True))).sum().backward()
        absent = [each for each in session.submitted if each.absent and each.name.startswith("Gradient")]
        return gradients_of(model), len(absent)

    alone = seeded(Checkpointed)
    for value in (1.0, 2.0):
        (unwrap(alone(torch.full((1, 4), value, requires_grad=True))).sum() / 2).backward()
    for found, absent in run_workers(2, body):
        assert (absent > 0) == (kind == "unknown")
        torch.testing.assert_close(found, gradients_of(alone))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_that_share_a_parameter(reentrant) -> None:
    from torch.utils.checkpoint import checkpoint

    class Shared(nn.Linear):
        def forward(self, inputs):
            for _ in range(2):
                inputs = checkpoint(super().forward, inputs, use_reentrant=reentrant)
            return inputs

    def body(session):
        model = DDP(Shared(2, 2))
        loss = model(torch.ones(1, 2, requires_grad=True)).sum()
        with pytest.raises(BytePSError, match="needs use_reentrant=False") if reentrant else contextlib.nullcontext():
            loss.backward()
        return len([each for each in session.submitted if each.name.startswith("Gradient")])

    assert run_workers(1, body) == [0 if reentrant else 2]


def test_the_gradient_penalty_of_a_critic() -> None:
    """torch.autograd.grad() averages nothing; a backward pass through its result does."""

    def penalty(model, value):
        inputs = torch.full((2, 3), value, requires_grad=True)
        (slope,) = torch.autograd.grad(model(inputs).pow(2).sum(), inputs, create_graph=True)
        return slope.pow(2).sum()

    def body(session):
        model = DDP(seeded(lambda: nn.Linear(3, 1)))
        loss = penalty(model, session.rank + 1.0)
        assert not [each for each in session.submitted if each.name.startswith("Gradient")]
        loss.backward()
        return gradients_of(model)

    alone = seeded(lambda: nn.Linear(3, 1))
    sum(penalty(alone, value) / 2 for value in (1.0, 2.0)).backward()
    for found in run_workers(2, body):
        torch.testing.assert_close(found, gradients_of(alone))


def test_a_wrapper_is_a_module() -> None:
    def body(session):
        inner = make_model()
        model = DDP(inner, device_ids=["cpu"])
        assert model.module is inner
        assert list(model.state_dict()) == [f"module.{name}" for name in inner.state_dict()]
        assert next(name for name, _ in model.named_parameters()) == "module.0.weight"
        model.load_state_dict({f"module.{name}": each * 2 for name, each in inner.state_dict().items()})
        assert not model.eval().module.training
        assert model.train().module.training
        copied = copy.deepcopy(model.module)
        copied(torch.ones(1, 5)).sum().backward()  # of no wrapper
        return len(session.submitted) == len(inner.state_dict()), model(torch.ones(2, 5)).shape

    assert run_workers(1, body) == [(True, (2, 3))]


def test_inputs_go_to_the_device() -> None:
    """``meta`` stands for a GPU; what cannot be averaged there is frozen."""

    class Pair(nn.Module):
        def forward(self, first, *, rest):
            return first.device.type, rest[0].device.type, rest[1]["a"].device.type, rest[2]

    def body(session):
        one = torch.ones(1)
        return DDP(Pair(), device_ids=["meta"])(one, rest=(one, {"a": one}, "b"))

    assert run_workers(1, body) == [("meta", "meta", "meta", "b")]


def test_three_hundred_small_layers() -> None:
    """As one process on the batches of both workers."""

    def make():
        return seeded(lambda: nn.Sequential(*[nn.Linear(3, 3) for _ in range(300)]))

    def train(model, parameters, inputs):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
        return [each.detach() for each in parameters]

    def body(session):
        model = DDP(make())
        return train(model, list(model.parameters()), torch.full((1, 3), session.rank + 1.0))

    first, second = run_workers(2, body)
    alone = make()
    start = [each.detach().clone() for each in alone.parameters()]
    expected = train(alone, list(alone.parameters()), torch.tensor([[1.0] * 3, [2.0] * 3]))
    assert len(first) == 600
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(expected[-1], start[-1])
    for ours, reference in zip(first, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_modules_that_each_worker_reaches_in_another_order(size) -> None:
    """One backward pass through two of them: nobody waits for one before all have contributed to both."""

    def make():
        return [seeded(lambda: nn.Linear(2, 2), seed) for seed in range(2)]

    def run(first, second, value):
        return second(torch.tanh(first(torch.full((1, 2), value)))).sum()

    def body(session):
        models = [DDP(each) for each in make()]
        order = models[:: -1 if session.rank % 2 else 1]
        run(*order, session.rank + 1.0).backward()
        assert session.steps == 1
        return [gradients_of(each) for each in models]

    alone = make()
    for rank in range(size):
        (run(*alone[:: -1 if rank % 2 else 1], rank + 1.0) / size).backward()
    for found in run_workers(size, body):
        torch.testing.assert_close(found, [gradients_of(each) for each in alone])


def test_a_wait_that_is_interrupted_is_gone_on_with_by_synchronize() -> None:
    """As by Ctrl-C in a notebook: what was contributed is not contributed again."""

    def interrupt():
        raise KeyboardInterrupt

    def body(session):
        model = DDP(make_model())
        model(torch.full((2, 5), session.rank + 1.0)).sum().backward()
        model.zero_grad()
        submitted, places = session.submit, []

        def submit(*arguments, **more):
            pending = submitted(*arguments, **more)
            places.append(pending)
            if len(places) == 2:
                wait = pending.wait

                def once():
                    pending.wait = wait
                    interrupt()

                pending.wait = once
            return pending

        session.submit = submit
        output = model(torch.full((2, 5), session.rank + 1.0)).sum()
        with pytest.raises(KeyboardInterrupt):
            output.backward()
        model.synchronize()
        found = gradients_of(model)
        model.synchronize()
        assert len(places) == 4
        return found

    alone = make_model()
    for value in (1.0, 2.0):
        (alone(torch.full((2, 5), value)).sum() / 2).backward()
    for found in run_workers(2, body):
        torch.testing.assert_close(found, gradients_of(alone))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks
def test_compiled_modules() -> None:
    torch.compiler.reset()

    def train(size, wrap, share_of):
        def body(session):
            model = wrap(make_model())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for inputs, targets in make_batches(2):
                optimizer.zero_grad()
                loss_of(model, share_of(inputs, session), share_of(targets, session)).backward()
                optimizer.step()
            return [each.detach() for each in model.parameters()]

        return run_workers(size, body)

    (expected,) = train(1, lambda model: model, lambda tensor, session: tensor)
    for wrap in (lambda m: torch.compile(DDP(m), backend="eager"), lambda m: DDP(torch.compile(m, backend="eager"))):
        (ours,) = train(1, wrap, lambda tensor, session: tensor)
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("kind", "ids"), [("cpu", ["cpu"]), ("cpu", ["cpu:0"]), ("meta", ["meta"]), ("meta", ["meta:0"])]
)
@pytest.mark.parametrize("make", [str, torch.device])
def test_a_device_without_an_index_is_where_the_module_is(kind, ids, make) -> None:
    def body(session):
        inner = nn.Linear(2, 2, device=kind).requires_grad_(False) if kind == "cpu" else nn.Identity()
        return DDP(inner, device_ids=[make(each) for each in ids])(torch.ones(1, 2)).device.type

    assert run_workers(1, body) == [kind]


@pytest.mark.parametrize("cuda", [False, True])
def test_an_index_means_nothing_where_there_is_no_cuda(cuda, monkeypatch) -> None:
    """Scripts for GPUs name one always, also where they fall back to the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)

    def body(session):
        inner = nn.Linear(2, 2).requires_grad_(False)
        if cuda:
            with pytest.raises(ValueError, match=r"'weight' is on cpu: call module.to\('cuda:3'\)"):
                DDP(inner, device_ids=[3])
            return None
        return DDP(inner, device_ids=[3])(torch.ones(1, 2)).device.type

    assert run_workers(1, body) == [None if cuda else "cpu"]


def test_tied_weights_are_averaged_once() -> None:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.head = nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, places):
            return self.head(self.embed(places))

    def body(session):
        model = DDP(seeded(Tied))
        model(torch.tensor([session.rank])).logsumexp(-1).sum().backward()
        gradients = [each.name for each in session.submitted if each.name.startswith("Gradient")]
        return gradients, gradients_of(model)

    alone = seeded(Tied)
    (alone(torch.tensor([0, 1])).logsumexp(-1).sum() / 2).backward()
    for names, found in run_workers(2, body):
        assert names == ["Gradient.embed.weight"]
        torch.testing.assert_close(found, gradients_of(alone))


class TestWrongUse:
    """One sentence that says what to do."""

    def test_before_init(self):
        with pytest.raises(NotInitializedError, match=r"call init\(\) first"):
            DDP(make_model())

    @pytest.mark.parametrize(
        ("make", "error", "words"),
        [
            (lambda m: DDP(m, device_ids=[0, 1]), ValueError, r"device_ids=\[0, 1\].* one worker per device"),
            (lambda m: DDP(m, device_ids=["cuda:0"]), ValueError, r"'0.weight' is on cpu: call module.to\('cuda:0'\)"),
            (
                lambda _: DDP(nn.ParameterList([torch.zeros(2, dtype=torch.complex64)])),
                UnsupportedError,
                "'0' has dtype",
            ),
            (lambda m: DDP(nn.LazyLinear(3)), UnsupportedError, "'weight' has no shape yet"),
            (lambda m: DDP(m, find_unused_parameters=True), TypeError, "find_unused_parameters"),
        ],
    )
    def test_what_cannot_be_wrapped(self, make, error, words):
        def body(session):
            with pytest.raises(error, match=words):
                make(make_model())
            return DDP(make_model()) is not None

        assert run_workers(1, body) == [True]

    @pytest.mark.parametrize(
        ("first", "second", "kind"),
        [
            (DDP, DDP, "DistributedDataParallel"),
            (DDP, lambda m: DDP(nn.Sequential(m)), "DistributedDataParallel"),
            (DDP, lambda m: bps.DistributedOptimizer(torch.optim.SGD(m.parameters())), "DistributedDataParallel"),
            (lambda m: bps.DistributedOptimizer(torch.optim.SGD(m.parameters())), DDP, "DistributedOptimizer"),
            (lambda m: CrossBarrier(m, torch.optim.SGD(m.parameters())), DDP, "CrossBarrier"),
            (DDP, lambda m: CrossBarrier(m, torch.optim.SGD(m.parameters())), "DistributedDataParallel"),
        ],
    )
    def test_parameters_are_averaged_by_one(self, first, second, kind):
        def body(session):
            model = make_model()
            made = first(model)
            with pytest.raises(ValueError, match=f"averaged by a {kind} already: use that one, or delete it"):
                second(model)
            del made
            gc.collect()
            return second(model) is not None

        assert run_workers(1, body) == [True]

    def test_workers_with_other_modules(self):
        with pytest.raises(AgreementError, match=r"Gradient.weight"):
            run_workers(2, lambda session: DDP(nn.Linear(2, 2 + session.rank)))

    @pytest.mark.parametrize("act", [copy.deepcopy, copy.copy, pickle.dumps])
    def test_copies_are_refused(self, act):
        def body(session):
            with pytest.raises(UnsupportedError, match=r"copy or save its module \(model.module\)"):
                act(DDP(make_model()))
            return True

        assert run_workers(1, body) == [True]

    def test_after_shutdown(self):
        models = run_workers(1, lambda session: DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))
        with pytest.raises(NotInitializedError):
            models[0](torch.ones(2, 2))
        with pytest.raises(NotInitializedError):
            models[0].eval()(torch.ones(2, 2)).sum().backward()
        with models[0].no_sync():
            models[0](torch.ones(2, 2)).sum().backward()

    def test_changes_between_the_hook_and_the_end_of_the_pass(self):
        def double(parameter):
            parameter.grad.mul_(2)

        def body(session):
            model = DDP(make_model())
            model.module[2].weight.register_post_accumulate_grad_hook(double)
            with pytest.raises(BytePSError, match=r"'2.weight' was changed .* until backward\(\) has returned"):
                model(torch.ones(1, 5)).sum().backward()
            return True

        assert run_workers(1, body) == [True]

    def test_a_pass_that_fails_is_made_up_for(self):
        """Worker 1 fails in the middle of its pass; synchronize() contributes what it has."""

        def fail(_):
            raise ArithmeticError

        def body(session):
            model = DDP(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)))
            output = model(torch.ones(1, 2))
            if session.rank == 0:
                output.sum().backward()
            else:
                handle = model.module[0].weight.register_hook(fail)
                with pytest.raises(ArithmeticError):
                    output.sum().backward()
                handle.remove()
                model.synchronize()
            before = gradients_of(model)
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            return before, gradients_of(model)

        (before, after), (same_before, same_after) = run_workers(2, body)
        assert all(torch.equal(*pair) for pair in zip(before + after, same_before + same_after, strict=True))
        torch.testing.assert_close(before[0], after[0] / 2)
        torch.testing.assert_close(before[1], after[1])

    def test_two_threads(self):
        """While one waits for the averages, another must not train the same module; it may evaluate it."""
        errors = []
        tried = threading.Event()

        def body(session):
            model = DDP(nn.Linear(2, 2))
            if session.rank == 1:
                tried.wait(30)
            else:
                wait, waiting = model._exchange.synchronize, threading.Event()

                def synchronize(groups):
                    waiting.set()
                    tried.wait(30)
                    wait(groups)

                def other():
                    waiting.wait(30)
                    try:
                        with torch.no_grad():
                            model.module(torch.ones(1, 2))
                        model.eval()
                        assert model(torch.ones(1, 2)).requires_grad
                        model.train()
                        model(torch.ones(1, 2)).sum().backward()
                    except BytePSError as error:
                        errors.append(str(error))
                    tried.set()

                model._exchange.synchronize = synchronize
                thread = threading.Thread(target=other)
                thread.start()
            model(torch.ones(1, 2)).sum().backward()
            if session.rank == 0:
                thread.join(30)
            return model.module.bias.grad.shape == (2,)

        assert run_workers(2, body) == [True, True]
        assert len(errors) == 1
        assert "another thread waits for the averages" in errors[0]
