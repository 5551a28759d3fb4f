"""``DistributedOptimizer`` with all that torch puts around an optimizer: every class, scalers, hooks, copies, names."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import BytePSError, UnsupportedError  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

nn = torch.nn
CLASSES = {
    name: kind
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
with torch.random.fork_rng():
    torch.manual_seed(6)
    MODELS = {bias: nn.Sequential(nn.Linear(4, 6, bias), nn.Tanh(), nn.Linear(6, 2, bias)) for bias in (True, False)}
OPTIONS = {"SGD": {"momentum": 0.9}, "LBFGS": {"max_iter": 3}, "Muon": {"lr": 0.01}}


def make_model(bias=True):
    """The same for all workers; not seeded by each, since the generator is that of all threads."""
    return copy.deepcopy(MODELS[bias])


def share(batch, session):
    return batch.chunk(session.size)[session.rank]


def train(model, optimizer, batches):
    for batch in batches:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return list(model.parameters())


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "SparseAdam"])
def test_every_class_of_torch_trains_as_in_one_process(name) -> None:
    """A closure suits all of them; a class that a later torch brings is here too."""
    generator = torch.Generator().manual_seed(5)
    batches = [torch.randn(8, 4, generator=generator) for _ in range(4)]

    def make(parameters):
        return CLASSES[name](parameters, **OPTIONS.get(name, {}))

    def body(session):
        model = make_model(bias=name != "Muon")
        optimizer = bps.DistributedOptimizer(make(model.parameters()), model.named_parameters())
        assert isinstance(optimizer, CLASSES[name])
        assert repr(optimizer).startswith(f"{name} (")
        return train(model, optimizer, [share(each, session) for each in batches])

    model = make_model(bias=name != "Muon")
    alone = train(model, make(model.parameters()), batches)
    first, second = run_workers(2, body)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    torch.testing.assert_close(first, alone, rtol=1e-4, atol=1e-5)


def test_a_class_that_takes_sparse_gradients_only_gets_sparse_averages() -> None:
    def body(session):
        model = nn.Embedding(3, 2, sparse=True)
        before = model.weight.detach().clone()
        optimizer = bps.DistributedOptimizer(torch.optim.SparseAdam(model.parameters()), model.named_parameters())
        model(torch.tensor([1, 1])).sum().backward()
        optimizer.step()
        assert model.weight.grad.indices().tolist() == [[1]]
        assert model.weight.grad.values().tolist() == [[2.0, 2.0]]
        assert (model.weight != before).any(dim=1).tolist() == [False, True, False]

    run_workers(1, body)


class TestScaler:
    """The scaler must see the averages: by its own gradients one worker would skip a step that others take."""

    STEPS = 5

    def body(self, session, order, **options):
        model = make_model()
        optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), **options), model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scales = []
        for step in range(self.STEPS):
            model.zero_grad()  # not the optimizer's: it hears nothing of a step that was skipped
            batch = torch.full((2, 4), session.rank + step + 1.0)
            loss = model(batch).square().mean()
            if (step, session.rank) != (2, 0):  # after a skipped step, a worker without any gradient
                scaler.scale(loss * float("inf") if (step, session.rank) == (1, 1) else loss).backward()
            order(optimizer, scaler, model)
            scaler.update()
            scales.append(scaler.get_scale())
        return [each.tolist() for each in model.parameters()], scales

    @staticmethod
    def plain(optimizer, scaler, model):
        scaler.step(optimizer)

    @staticmethod
    def documented(optimizer, scaler, model):
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)

    @staticmethod
    def torchs(optimizer, scaler, model):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        scaler.step(optimizer)

    def test_all_orders_and_fused_steps_give_the_same(self):
        results = [
            *run_workers(2, lambda session: self.body(session, self.plain)),
            *run_workers(2, lambda session: self.body(session, self.documented)),
            *run_workers(2, lambda session: self.body(session, self.torchs)),
        ]
        assert results[0][1] == [1024.0, 512.0, 512.0, 512.0, 512.0]
        assert all(each == results[0] for each in results)
        fused = run_workers(2, lambda session: self.body(session, self.plain, fused=True))
        assert fused[0] == fused[1]
        assert fused[0][1] == results[0][1]
        for ours, theirs in zip(fused[0][0], results[0][0], strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-6)

    def test_a_wrapper_that_hands_the_groups_on_does_not_hide_them(self):
        class Wrapper:
            def __init__(self, optimizer):
                self.optimizer = optimizer
                self.step = optimizer.step

            @property
            def param_groups(self):
                return self.optimizer.param_groups

        def body(session):
            return self.body(session, lambda optimizer, scaler, model: scaler.step(Wrapper(optimizer)))

        first, second = run_workers(2, body)
        assert first == second
        assert first[1] == [1024.0, 512.0, 512.0, 512.0, 512.0]

    def test_who_only_looks_starts_no_exchange(self):
        def body(session):
            model = make_model()
            optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), fused=bool(session.rank)))
            assert len(optimizer.param_groups) == len(vars(optimizer)["param_groups"]) == 1
            return len(session.submitted)

        assert run_workers(2, body) == [0, 0]

    def test_skip_synchronize_without_synchronize_is_an_error(self):
        def order(optimizer, scaler, model):
            with optimizer.skip_synchronize(), pytest.raises(BytePSError, match=r"needs a call of synchronize\(\)"):
                scaler.step(optimizer)
            raise KeyError("seen")

        def body(session):
            with pytest.raises(KeyError, match="seen"):
                self.body(session, order)

        run_workers(2, body)

    def test_autocast_trains_with_it(self):
        def body(session):
            model = make_model()
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
            losses = []
            for _ in range(8):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(torch.ones(2, 4) * (session.rank + 1)).float().square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())
            return losses, [each.tolist() for each in model.parameters()]

        first, second = run_workers(2, body)
        assert first[1] == second[1]
        together = [sum(each) for each in zip(first[0], second[0], strict=True)]
        assert together[-1] < together[0] / 2


def wrapped(model, **options):
    own = torch.optim.SGD(model.parameters(), lr=1.0, **options)
    return bps.DistributedOptimizer(own, model.named_parameters())


def test_hooks_run_once_and_see_averages_also_after_load_state_dict() -> None:
    def body(session):
        parameter = torch.zeros(1, requires_grad=True)
        own = torch.optim.SGD([parameter], lr=1.0)
        seen = []
        own.register_step_pre_hook(lambda optimizer, args, kwargs: seen.append(parameter.grad.item()))
        optimizer = bps.DistributedOptimizer(own)
        optimizer.register_step_post_hook(lambda optimizer, args, kwargs: seen.append(parameter.item()))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        (parameter * (session.rank + 1)).sum().backward()
        optimizer.step()
        return seen

    assert run_workers(2, body) == [[1.5, -1.5]] * 2


def test_the_profiler_sees_one_step_of_the_own_class() -> None:
    def body(session):
        optimizer = wrapped(make_model())
        optimizer.load_state_dict(optimizer.state_dict())
        with torch.profiler.profile() as profile:
            optimizer.step()
        return [each.name for each in profile.events() if each.name.startswith("Optimizer.step")]

    assert run_workers(1, body) == [["Optimizer.step#SGD.step"]]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps, lambda o: torch.save(o, io.BytesIO())])
def test_copies_are_refused(copied) -> None:
    def body(session):
        optimizer = wrapped(make_model())
        with pytest.raises(UnsupportedError, match=r"neither copied nor pickled: keep its state_dict\(\)"):
            copied(optimizer)

    run_workers(1, body)


def test_models_are_copied_without_the_optimizers_hooks() -> None:
    def body(session):
        model = make_model()
        optimizer = wrapped(model)
        stream = io.BytesIO()
        torch.save(model, stream)
        stream.seek(0)
        for each in (copy.deepcopy(model), torch.load(stream, weights_only=False)):
            for _ in range(2):  # a hook would refuse the second pass
                each(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        return {each.absent for each in session.submitted}

    assert run_workers(1, body) == [{True}]


def test_what_replaced_step_is_named() -> None:
    def body(session):
        own = torch.optim.SGD(make_model().parameters(), lr=1.0)
        own.step = lambda: None
        with pytest.raises(
            ValueError, match=r"replaced step\(\) of this optimizer.*call DistributedOptimizer\(\) first"
        ):
            bps.DistributedOptimizer(own)

    run_workers(1, body)


def test_names_of_named_optimizers_and_of_groups_that_come_later() -> None:
    def body(session):
        first, second, third, fourth = (nn.Linear(1, 1) for _ in range(4))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(first.named_parameters("first"), lr=1.0))
        optimizer.add_param_group({"params": second.named_parameters("second")})
        unnamed = bps.DistributedOptimizer(torch.optim.SGD(third.parameters(), lr=1.0), third.named_parameters())
        unnamed.add_param_group({"params": fourth.parameters()}, fourth.named_parameters("fourth"))
        unnamed.add_param_group({"params": nn.Linear(1, 1).weight})
        for each in (optimizer, unnamed):
            each.synchronize()
        return [each.name for each in session.submitted]

    names = ["first.weight", "first.bias", "second.weight", "second.bias"]
    later = ["weight", "bias", "fourth.weight", "fourth.bias", "noname.4"]
    expected = [*(f"Gradient.{each}" for each in names), *(f"Gradient2.{each}" for each in later)]
    assert run_workers(1, body) == [expected]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (lambda new: new.named_parameters(), "are called weight, bias already"),
        (lambda new: [("other", new.weight)], "lacks 1 of the optimizer's parameters"),
    ],
)
def test_wrong_names_of_a_group_add_nothing(named, message) -> None:
    def body(session):
        model, new = nn.Linear(1, 1), nn.Linear(1, 1)
        optimizer = wrapped(model)
        with pytest.raises(ValueError, match=message):
            optimizer.add_param_group({"params": new.parameters()}, named(new))
        optimizer.step()
        return len(optimizer.param_groups), len(session.submitted)

    assert run_workers(1, body) == [(1, 2)]


def test_compiled_models_call_the_hooks() -> None:
    def body(session):
        model = make_model()
        optimizer = wrapped(model)
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            optimizer.zero_grad()
            compiled(torch.ones(1, 4) * (session.rank + 1)).sum().backward()
            assert {each.push is not None for each in optimizer._exchange._slots.values()} == {True}
            optimizer.step()
        return [each.tolist() for each in model.parameters()]

    (first,) = run_workers(1, body)
    assert first != [each.tolist() for each in make_model().parameters()]


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3, bias=False)
            self.outer = nn.Linear(3, 3, bias=False)
            self.outer.weight = self.inner.weight

        def forward(self, inputs):
            return self.outer(self.inner(inputs))

    def gradient(model, inputs):
        model(inputs).square().mean().backward()
        return model.inner.weight.grad

    torch.manual_seed(1)
    model, batch = Tied(), torch.randn(4, 3)

    def body(session):
        mine = copy.deepcopy(model)
        optimizer = wrapped(mine)
        gradient(mine, share(batch, session))
        optimizer.synchronize()
        return mine.inner.weight.grad, [each.name for each in session.submitted]

    for ours, names in run_workers(2, body):
        assert names == ["Gradient.inner.weight"]
        torch.testing.assert_close(ours, gradient(copy.deepcopy(model), batch))


def test_three_hundred_small_layers() -> None:
    model = nn.Sequential(*[layer for _ in range(150) for layer in (nn.Linear(3, 3), nn.LayerNorm(3))])
    batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))

    def body(session):
        mine = copy.deepcopy(model)
        optimizer = wrapped(mine)
        for _ in range(2):
            optimizer.zero_grad()
            mine(share(batch, session)).square().mean().backward()
            optimizer.step()
        assert len(session.submitted) == 2 * 600
        return list(mine.parameters())

    first, second = run_workers(2, body)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(first, list(model.parameters()), rtol=1e-3, atol=1e-4)
