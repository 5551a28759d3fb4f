"""``CrossBarrier``: wherever a model reads a parameter, it reads the updated one."""

from __future__ import annotations

import gc
import threading

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.torch.cross_barrier import CrossBarrier  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

nn = torch.nn
functional = nn.functional
STEPS = 5
_seeding = threading.Lock()


class Autoencoder(nn.Module):
    """Reads the weight of its decoder before that runs, in a way for which autograd keeps nothing."""

    def __init__(self):
        super().__init__()
        self.decoder = nn.Linear(3, 4)

    def encode(self, inputs):
        return functional.linear(inputs, self.decoder.weight.t())

    def forward(self, inputs):
        return self.decoder(torch.tanh(self.encode(inputs)))


class Switching(Autoencoder):
    """Reads it in every second pass only."""

    passes = 0

    def encode(self, inputs):
        self.passes += 1
        return super().encode(inputs) if self.passes % 2 == 0 else inputs[:, :3]


class Bias(Autoencoder):
    def encode(self, inputs):
        return (inputs + self.decoder.bias)[:, :3]


class Held(Autoencoder):
    """By a reference that it has kept."""

    def __init__(self):
        super().__init__()
        self.kept = [self.decoder.weight]

    def encode(self, inputs):
        return functional.linear(inputs, self.kept[0].t())


class Detached(Autoencoder):
    """Through which no gradient comes."""

    def __init__(self):
        super().__init__()
        self.kept = [self.decoder.weight.detach()]

    def encode(self, inputs):
        return functional.linear(inputs, self.kept[0].t())


class Threaded(Autoencoder):
    def encode(self, inputs):
        made = []
        thread = threading.Thread(target=lambda: made.append(super(Threaded, self).encode(inputs)))
        thread.start()
        thread.join()
        return made[0]


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, weight):
        context.weight = weight
        return inputs @ weight

    @staticmethod
    def backward(context, gradient):
        return gradient @ context.weight.t(), None


class Custom(Held):
    def encode(self, inputs):
        return Multiply.apply(inputs, self.kept[0])


class Checkpointed(Autoencoder):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 4)

    def forward(self, inputs):
        checkpoint = torch.utils.checkpoint.checkpoint
        return self.last(checkpoint(super().forward, inputs.requires_grad_(), use_reentrant=True))


class Raising(Autoencoder):
    """Every pass fails once, within a module."""

    def forward(self, inputs):
        with pytest.raises(RuntimeError):
            self.decoder(inputs)
        return super().forward(inputs)


class Recursive(Autoencoder):
    def forward(self, inputs, depth=1):
        hidden = self(inputs, depth - 1) if depth else inputs
        return super().forward(hidden)


class Entry(nn.Module):
    """Used without being called."""

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(4))
        self.layer = nn.Linear(4, 4)

    def features(self, inputs):
        return self.layer(inputs + self.offset)


class Recurrent(nn.Module):
    """Keeps references to its parameters by itself."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 4, 2)

    def forward(self, inputs):
        return self.cell(inputs)[0]


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.many = nn.ParameterList([torch.full((4,), 0.1 * place) for place in range(3)])
        self.named = nn.ParameterDict({"a": torch.ones(4)})
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs):
        for each in self.many:
            inputs = inputs + each
        return self.layer(inputs * self.named["a"] + self.layer.bias)


class Evaluated(nn.Module):
    """Training reads the weight of a layer which only an evaluation calls."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs):
        hidden = self.body(inputs)
        return functional.linear(hidden, self.head.weight) if self.training else self.head(hidden)


def scripted():
    return nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))))


def call(model, inputs):
    return model(inputs)


def features(model, inputs):
    return model.features(inputs)


def functions_only(model, inputs):
    hidden = model.layer(inputs)
    return functional.linear(hidden, model.layer.weight) + model.offset


CASES = {
    "tied autoencoder": (Autoencoder, call),
    "every second pass": (Switching, call),
    "bias": (Bias, call),
    "kept reference": (Held, call),
    "kept detached": (Detached, call),
    "thread": (Threaded, call),
    "custom function": (Custom, call),
    "reentrant checkpoint": (Checkpointed, call),
    "failing module": (Raising, call),
    "recursive": (Recursive, call),
    "no module call": (Entry, features),
    "functions after a module": (Entry, functions_only),
    "LSTM": (Recurrent, call),
    "lists": (Lists, call),
    "evaluation": (Evaluated, call),
    "scripted": (scripted, call),
}


def plain(model, own):
    return bps.DistributedOptimizer(own, model.named_parameters())


def crossing(model, own):
    return CrossBarrier(model, own, model.named_parameters())


def train(make, wrap, use=call, change=None, size=2, set_up=None):
    """Losses and parameters of each worker; ``change`` is called with the model after two steps."""

    def body(session):
        with _seeding:
            torch.manual_seed(4)
            model = make()
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5))
        run = set_up(model) if set_up is not None else model
        generator = torch.Generator().manual_seed(session.rank)
        model.eval()
        with torch.no_grad():
            use(run, torch.ones(2, 4))  # before the first step, as trainers do to see whether all is well
        model.train()
        losses = []
        for step in range(STEPS):
            if step == 2 and change is not None:
                change(model)
            optimizer.zero_grad()
            inputs = torch.randn(5, 4, generator=generator)
            loss = functional.mse_loss(use(run, inputs), torch.ones(5, 4))
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        assert torch._C._len_torch_function_stack() == 0
        return losses, [each.tolist() for each in model.parameters()]

    return run_workers(size, body)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("case", CASES)
def test_reads_are_waited_for(case) -> None:
    make, use = CASES[case]
    assert train(make, crossing, use) == train(make, plain, use)


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


def parametrize(model):
    nn.utils.parametrize.register_parametrization(model.decoder, "weight", Doubled())


def replace_mapping(model):
    model.decoder._parameters = dict(model.decoder._parameters)


@pytest.mark.parametrize("change", [parametrize, replace_mapping])
def test_models_that_are_changed_while_they_train(change) -> None:
    assert train(Autoencoder, crossing, change=change) == train(Autoencoder, plain, change=change)


def compile_all(model):
    return torch.compile(model, backend="eager")


def compile_in_place(model):
    model.compile(backend="eager")
    return model


def compile_layer(model):
    model.decoder.compile(backend="eager")
    return model


def compile_function(model):
    model.encode = torch.compile(model.encode, backend="eager")
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks
@pytest.mark.parametrize("set_up", [compile_all, compile_in_place, compile_layer, compile_function])
@pytest.mark.parametrize("make", [Autoencoder, Held])
def test_compiled_models(make, set_up) -> None:
    """Their code may read parameters before any hook."""
    torch.compiler.reset()
    assert train(make, crossing, set_up=set_up, size=1) == train(make, plain, set_up=set_up, size=1)


def test_two_of_them_on_one_model() -> None:
    """Each has half of the parameters; one is dropped."""

    def train_halves(wrap):
        def body(session):
            with _seeding:
                torch.manual_seed(4)
                model = nn.Sequential(Autoencoder(), nn.Linear(4, 4))
            optimizers = [wrap(model, torch.optim.SGD(each.parameters(), lr=0.2)) for each in model]
            losses = []
            for step in range(STEPS):
                if step == 3:
                    optimizers.pop()
                    gc.collect()
                loss = model(torch.ones(3, 4) * (session.rank + 1)).pow(2).mean()
                model.zero_grad()
                loss.backward()
                losses.append(loss.item())
                for each in optimizers:
                    each.step()
            return losses, [each.tolist() for each in model.parameters()]

        return run_workers(2, body)

    def first(model, own):
        return CrossBarrier(model, own)

    def reference(model, own):
        return bps.DistributedOptimizer(own)

    assert train_halves(first) == train_halves(reference)


def test_nothing_is_left_when_the_optimizer_is_dropped() -> None:
    def body(session):
        model = Autoencoder()
        before = {name: dict(vars(each)) for name, each in model.named_modules()}
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.2))
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.synchronize()
        assert type(model.decoder._parameters) is not dict
        del optimizer
        gc.collect()
        for name, each in model.named_modules():
            now = vars(each)
            assert type(now["_parameters"]) is type(before[name]["_parameters"])
            assert all(not hooks for key, hooks in now.items() if key.endswith("_hooks"))
        return True

    assert run_workers(1, body) == [True]


def test_a_forward_pass_that_is_interrupted_leaves_no_mode_behind() -> None:
    class Interrupted(Autoencoder):
        stop = False

        def encode(self, inputs):
            if self.stop:
                raise KeyboardInterrupt
            return super().encode(inputs)

    def body(session):
        model = Interrupted()
        optimizer = crossing(model, torch.optim.SGD(model.parameters(), lr=0.2))
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        model.stop = True
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 4))
        model.stop = False
        with torch.device("cpu"):
            optimizer.step()
            assert torch._C._len_torch_function_stack() == 1
        return torch._C._len_torch_function_stack()

    assert run_workers(1, body) == [0]
