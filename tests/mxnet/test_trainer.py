"""``DistributedTrainer``: several workers in this process against one on the joined batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

mx = pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

import byteps_py.mxnet as bps  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

gluon = mx.gluon
STEPS, BATCH = 6, 5
OPTIMIZERS = {
    "sgd": ("sgd", {"learning_rate": 0.1}),
    "momentum": ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}),
    "adam": ("adam", {"learning_rate": 0.01}),
    "rescaled": ("sgd", {"learning_rate": 0.1, "rescale_grad": 0.25}),
    "clipped": ("rmsprop", {"learning_rate": 0.01, "clip_gradient": 0.05}),
}


def make_net(seed=0, **dense):
    net = gluon.nn.Sequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(7, activation="tanh", **dense), gluon.nn.Dense(3, in_units=7))
    net.initialize()
    net(mx.nd.zeros((1, 4)))
    generator = np.random.default_rng(seed)
    for _, each in sorted(net.collect_params().items()):
        each.set_data(mx.nd.array(generator.standard_normal(each.shape) / 3))
    return net


def make_batches(size):
    generator = np.random.default_rng(1)
    shapes = (size * BATCH, 4), (size * BATCH, 3)
    return [[generator.standard_normal(each).astype(np.float32) for each in shapes] for _ in range(STEPS)]


def backward(net, inputs, targets):
    with mx.autograd.record():
        loss = gluon.loss.L2Loss()(net(mx.nd.array(inputs)), mx.nd.array(targets))
    loss.backward()


def share(array, session):
    return array[session.rank * BATCH : (session.rank + 1) * BATCH]


def values(net):
    return [each.data().asnumpy() for _, each in sorted(net.collect_params().items())]


def train(net, trainer, batches, session=None, step=None):
    for batch in batches:
        inputs, targets = batch if session is None else (share(each, session) for each in batch)
        backward(net, inputs, targets)
        step(trainer, len(inputs)) if step else trainer.step(len(inputs))
    return values(net)


def alone(size, name, options):
    net = make_net()
    return train(net, gluon.Trainer(net.collect_params(), name, dict(options), kvstore=None), make_batches(size))


def assert_equal(results, expected, **tolerance):
    for each in results[1:]:
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(each, results[0], strict=True))
    for mine, theirs in zip(results[0], expected, strict=True):
        assert np.allclose(mine, theirs, **(tolerance or {"rtol": 1e-4, "atol": 1e-6}))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("which", OPTIMIZERS)
def test_it_equals_one_process_on_the_joined_batch(which, size):
    name, options = OPTIMIZERS[which]

    def body(session):
        net = make_net()
        trainer = bps.DistributedTrainer(net.collect_params(), name, dict(options))
        result = train(net, trainer, make_batches(size), session)
        assert session.steps == STEPS
        return result

    assert_equal(run_workers(size, body), alone(size, name, options))


def test_the_first_step_takes_the_parameters_of_the_root():
    def body(session):
        net = make_net(seed=session.rank)
        before = values(net)
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0}, root_rank=1)
        inputs, targets = make_batches(2)[0]
        backward(net, inputs, targets)
        trainer.step(1)
        return before, values(net)

    (_, first), (root, second) = run_workers(2, body)
    assert_equal([root, first, second], root)


def test_deferred_initialization_ends_before_the_first_step():
    def body(session):
        net = gluon.nn.Dense(3, prefix="deferred_")
        net.initialize(mx.init.Constant(session.rank + 1))
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
        with pytest.raises(gluon.parameter.DeferredInitializationError):
            trainer.step(1)
        backward(net, *make_batches(1)[0])
        trainer.step(1)
        return values(net)

    assert_equal(run_workers(2, body), [np.zeros(3), np.ones((3, 4))])


@pytest.mark.parametrize("kind", [dict, list, None])
def test_a_dict_a_list_and_a_parameter_dict(kind):
    def body(session):
        net = make_net()
        params = net.collect_params()
        params = params if kind is None else dict(params) if kind is dict else [params[each] for each in sorted(params)]
        result = train(net, bps.DistributedTrainer(params, "sgd"), make_batches(2), session)
        return result, [(each.name, each.priority) for each in session.submitted[:8]]

    (first, names), (second, _) = run_workers(2, body)
    assert_equal([first, second], alone(2, "sgd", {}))
    assert dict(names) == {f"parameter_{each}": 0 for each in range(4)} | {
        f"gradient_{each}": -each for each in range(4)
    }


def test_reduced_gradients_can_be_changed_before_the_update():
    def clip(trainer, batch_size):
        trainer.allreduce_grads()
        gluon.utils.clip_global_norm([each.grad() for each in trainer._params], 0.5 * batch_size)
        trainer.update(batch_size)

    def body(session):
        net = make_net()
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
        result = train(net, trainer, make_batches(2), session, clip)
        assert session.steps == STEPS
        return result

    net = make_net()
    whole = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=None)

    def clip_whole(trainer, batch_size):
        gluon.utils.clip_global_norm([each.grad() for each in trainer._params], 0.5 * batch_size)
        trainer.update(batch_size)

    assert_equal(run_workers(2, body), train(net, whole, make_batches(2), step=clip_whole))


@pytest.mark.parametrize("others", [{}, {"compressor": "", "ef": None, "momentum": "", "scaling": True, "k": 1}])
def test_fp16_on_the_wire(others):
    def body(session):
        net = make_net()
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", compression_params={"fp16": True, **others})
        result = train(net, trainer, make_batches(2), session)
        return result, {each.name: each.dtype.label for each in session.specs}

    (first, wire), (second, _) = run_workers(2, body)
    assert_equal([first, second], alone(2, "sgd", {}), rtol=1e-2, atol=1e-3)
    assert wire == {f"gradient_{i}": "float16" for i in range(4)} | {f"parameter_{i}": "float32" for i in range(4)}


def branches(session, users_of_steps, ignore):
    """Two layers, of which this worker uses the first in every step, the second in its own steps only."""
    first, second = (gluon.nn.Dense(2, in_units=4, prefix=f"{each}_") for each in ("first", "second"))
    params = gluon.ParameterDict()
    for layer in (first, second):
        layer.initialize(mx.init.Constant(0.5))
        params.update(layer.collect_params())
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    history = []
    for step, users in enumerate(users_of_steps):
        inputs = mx.nd.full((3, 4), step + session.rank + 1)
        with mx.autograd.record():
            loss = first(inputs).sum() + (second(inputs).sum() if session.rank in users else 0)
        loss.backward()
        trainer.step(3, ignore_stale_grad=ignore)
        history.append([each.data().asnumpy() for each in second.collect_params().values()])
    return [*history, [each.data().asnumpy() for each in first.collect_params().values()]]


def test_stale_gradients_are_absent_and_the_workers_stay_equal():
    first, second = run_workers(2, lambda session: branches(session, [(0, 1), (1,), (), (0,), ()], True))
    for mine, theirs in zip(first, second, strict=True):
        assert_equal([mine, theirs], mine)
    changed = [not np.array_equal(a[0], b[0]) for a, b in itertools.pairwise(first[:-1])]
    assert changed == [True, False, True, False]  # no momentum goes on where nobody had a gradient
    # In the second step worker 1 alone had one: three samples of 3 in each input, over 2 * 3.
    velocity = 0.1 * (1 * 3 + 2 * 3) / 6
    assert np.allclose(first[0][0], 0.5 - velocity)
    assert np.allclose(first[1][0], first[0][0] - 0.9 * velocity - 0.1 * 3 * 3 / 6)


def test_a_stale_gradient_is_gluons_warning_unless_ignored():
    def body(session):
        with pytest.raises(UserWarning, match=r"Gradient of Parameter `second_"):
            branches(session, [(0, 1), ()], False)

    run_workers(2, body)


def test_parameters_without_gradient_and_with_added_gradients():
    def body(session):
        net = make_net()
        params = net.collect_params()
        fixed = params["net_dense0_bias"]
        fixed.grad_req = "null"
        for each in params.values():
            if each is not fixed:
                each.grad_req = "add"
        trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 0.1})
        for batch in make_batches(4)[:2]:
            for part in range(2):  # two backward passes for each step
                backward(net, *(each[(2 * session.rank + part) * BATCH :][:BATCH] for each in batch))
            trainer.step(2 * BATCH)
            for each in params.values():
                each.zero_grad()
        return values(net)

    net = make_net()
    net.collect_params()["net_dense0_bias"].grad_req = "null"
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    assert_equal(run_workers(2, body), train(net, trainer, make_batches(4)[:2]))


def test_trainers_of_one_process_do_not_collide():
    def body(session):
        nets = [make_net(seed) for seed in (3, 4)]
        made = [bps.DistributedTrainer(each.collect_params(), "sgd") for each in nets]
        for batch in make_batches(2):
            for net in nets:
                backward(net, *(share(each, session) for each in batch))
            for trainer in made if session.rank == 0 else made[::-1]:
                trainer.step(BATCH)
        names = {each.name for each in session.submitted}
        assert {"gradient_0", "gradient2_0", "parameter_3", "parameter2_3"} <= names
        return [value for net in nets for value in values(net)]

    expected = []
    for seed in (3, 4):
        net = make_net(seed)
        expected += train(net, gluon.Trainer(net.collect_params(), "sgd", kvstore=None), make_batches(2))
    assert_equal(run_workers(2, body), expected)


def test_states_are_saved_and_loaded_and_the_learning_rate_set(tmp_path):
    name, options = OPTIMIZERS["momentum"]

    def step(trainer, batch_size):
        trainer.set_learning_rate(trainer.learning_rate / 2)
        trainer.step(batch_size)

    def body(session):
        path = str(tmp_path / f"states{session.rank}")
        net = make_net()
        batches = make_batches(2)
        trainer = bps.DistributedTrainer(net.collect_params(), name, dict(options))
        train(net, trainer, batches[:3], session, step)
        trainer.save_states(path)
        resumed = bps.DistributedTrainer(net.collect_params(), name, dict(options))
        resumed.load_states(path)
        return train(net, resumed, batches[3:], session, step)

    net = make_net()
    trainer = gluon.Trainer(net.collect_params(), name, dict(options), kvstore=None)
    assert_equal(run_workers(2, body), train(net, trainer, make_batches(2), step=step))


def test_a_distributed_optimizer_within_it_averages_once():
    def body(session):
        net = make_net()
        optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.1))
        return train(net, bps.DistributedTrainer(net.collect_params(), optimizer), make_batches(2), session)

    assert_equal(run_workers(2, body), alone(2, "sgd", {"learning_rate": 0.1}))
