"""``DistributedOptimizer`` and ``broadcast_parameters``."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

mx = pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

import byteps_py.mxnet as bps  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

gluon = mx.gluon


@pytest.mark.parametrize("name", ["sgd", "adam", "nag", "rmsprop", "adagrad", "signum", "lamb"])
def test_it_updates_with_the_average(name):
    gradients = [np.array([[1.0, -2], [3, 4]], np.float32) * (each + 1) for each in range(3)]

    def steps(optimizer, gradient):
        updater = mx.optimizer.get_updater(optimizer)
        weights = [mx.nd.ones((2, 2)), mx.nd.ones((2, 2), dtype="float16")]
        for _ in range(3):
            updater([0, 1], [mx.nd.array(gradient), mx.nd.array(gradient, dtype="float16")], weights)
        return [each.asnumpy() for each in weights]

    def make():
        return mx.optimizer.create(name, learning_rate=0.1, multi_precision=True)

    def body(session):
        result = steps(bps.DistributedOptimizer(make()), gradients[session.rank])
        assert session.steps == 3
        return result, {(each.name, each.priority, each.operation.name) for each in session.submitted}

    expected = steps(make(), np.mean(gradients, 0))
    for result, submitted in run_workers(3, body):
        assert all(np.array_equal(*each) for each in zip(result, expected, strict=True))
        assert submitted == {("gradient_0", 0, "AVERAGE"), ("gradient_1", -1, "AVERAGE")}


def test_everything_else_is_the_others():
    def body(session):
        inner = mx.optimizer.create("adam", learning_rate=0.5, beta1=0.7)
        optimizer = bps.DistributedOptimizer(inner)
        assert isinstance(optimizer, mx.optimizer.Optimizer)
        optimizer.set_learning_rate(0.25)
        optimizer.set_lr_mult({0: 2.0})
        optimizer.set_wd_mult({0: 3.0})
        optimizer.rescale_grad = 0.125
        optimizer.param_dict = {}
        assert (inner.lr, inner.lr_mult, inner.rescale_grad) == (0.25, {0: 2.0}, 0.125)
        assert inner.wd_mult == {0: 3.0}
        assert (optimizer.learning_rate, optimizer.beta1, optimizer.wrapped) == (0.25, 0.7, inner)
        weight = mx.nd.ones((2,))
        state = optimizer.create_state_multi_precision(0, weight)
        assert [each.shape for each in state] == [(2,), (2,)]
        optimizer.update(0, weight, mx.nd.ones((2,)), state)
        optimizer.update("bias", weight, mx.nd.ones((2,)), state)
        assert inner.num_update == 1
        del optimizer.rescale_grad
        assert not hasattr(inner, "rescale_grad")
        inner.rescale_grad = 1.0
        copied = pickle.loads(pickle.dumps(optimizer))
        assert type(copied) is bps.DistributedOptimizer
        assert copied.learning_rate == 0.25
        copied.update(0, weight, mx.nd.ones((2,)), state)
        another = bps.DistributedOptimizer(mx.optimizer.SGD())
        another.update(0, weight, mx.nd.ones((2,)), None)
        mx.nd.waitall()
        return sorted(each.name for each in session.submitted)

    assert run_workers(1, body) == [["gradient2_0", "gradient_0", "gradient_0", "gradient_bias"]]


def test_broadcast_of_parameters_and_arrays():
    def body(session):
        net = gluon.nn.Dense(3, in_units=2, prefix="net_")
        net.initialize(mx.init.Constant(session.rank + 1))
        bps.broadcast_parameters(net.collect_params(), root_rank=1)
        array = mx.nd.full((2,), session.rank, dtype="int32")
        bps.broadcast_parameters({"array": array, "weight": net.weight})
        assert [len(each) for each in session.declared] == [2, 2]
        return net.weight.data().asnumpy().ravel().tolist(), array.asnumpy().tolist()

    assert run_workers(3, body) == [([2.0] * 6, [0, 0])] * 3


def test_parameters_whose_initialization_is_deferred_are_broadcast_when_it_ends():
    def body(session):
        net = gluon.nn.Sequential(prefix="net_")
        with net.name_scope():
            net.add(gluon.nn.Dense(3), gluon.nn.Dense(2, in_units=3))
        net.initialize(mx.init.Constant(session.rank + 1))
        bps.broadcast_parameters(net.collect_params(), root_rank=1)
        names = {each.name for each in session.submitted}
        output = net(mx.nd.ones((1, 4))).asnumpy().tolist()
        net[0].weight.reset_ctx(mx.cpu())
        net.initialize(mx.init.Constant(5), force_reinit=True)
        return names, output, len(session.submitted)

    early = {f"Parameter.net_dense{each}" for each in ("0_bias", "1_bias", "1_weight")}
    assert run_workers(2, body) == [(early, [[48.0] * 2], 4)] * 2


def test_of_several_broadcasts_before_the_first_pass_the_last_counts():
    def body(session):
        net = gluon.nn.Sequential(prefix="net_")
        with net.name_scope():
            encoder = gluon.nn.Dense(3)
            net.add(encoder, gluon.nn.Dense(2, in_units=3))
        net.initialize(mx.init.Constant(session.rank + 1))
        weight = encoder.weight
        bps.broadcast_parameters(net.collect_params(), root_rank=2)
        bps.broadcast_parameters(net.collect_params(), root_rank=0)
        bps.broadcast_parameters(encoder.collect_params(), root_rank=0)  # a part of it
        bps.broadcast_parameters({"tied": weight, "weight": weight}, root_rank=1)
        already = len(session.submitted)
        copied = copy.deepcopy(net)
        values = [weight.data().asnumpy().ravel().tolist() for _ in net(mx.nd.ones((1, 2)))]
        assert copied[0].weight._data is None, "a copy is initialized by its own first pass"
        copied(mx.nd.ones((1, 2)))
        values.append(copied[0].weight.data().asnumpy().ravel().tolist())
        return values, [each.name for each in session.submitted[already:]]

    assert run_workers(3, body) == [([[2.0] * 6] * 2, ["Parameter.weight"] * 2)] * 3


def test_plain_objects():
    def body(session):
        return bps.broadcast_object({"epoch": session.rank, "states": b"\0\1"}, root_rank=1)

    assert run_workers(2, body) == [{"epoch": 1, "states": b"\0\1"}] * 2
