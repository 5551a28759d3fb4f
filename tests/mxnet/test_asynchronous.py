"""Asynchronous training with MXNet, in jobs of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.jobs import running

pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

ASYNC = {"BYTEPS_ENABLE_ASYNC": "1"}

START = """
import mxnet as mx
import byteps_py.mxnet as bps
rank, size = bps.rank(), bps.size()
"""

TRAINER = (
    START
    + """
net = mx.gluon.nn.Dense(3, in_units=2, prefix='net_', weight_initializer=mx.init.Constant(10 + rank))
net.initialize()
trainer = bps.DistributedTrainer(net.collect_params(), 'sgd', {'learning_rate': 1.0}, root_rank=1)
for step in range(4):
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 2))) * (1 + rank)
    loss.backward()
    trainer.step(2)
mx.nd.waitall()
bps.barrier()
with mx.autograd.record():
    loss = net(mx.nd.zeros((2, 2))) * 0
loss.backward()
trainer.allreduce_grads()
trainer.update(2)
weight, bias = [each.data().asnumpy() for _, each in sorted(net.collect_params().items(), reverse=True)]
assert (weight == 11 - 4 * 1 - 4 * 2).all(), weight  # from worker 1, by the mean over each worker's own batch
assert (bias == -4 * 1 - 4 * 2).all(), bias
assert bps.stats()['steps'] == 5
assert bps.stats()['staleness']['count'] == 10
"""
)

OPTIMIZER = (
    START
    + """
optimizer = bps.DistributedOptimizer(mx.optimizer.create('sgd', learning_rate=1.0))
weights = [mx.nd.full((2, 3), 10 + rank), mx.nd.full((70000,), 20 + rank)]
states = [optimizer.create_state_multi_precision(index, each) for index, each in enumerate(weights)]
for step in range(3):
    for index, each in enumerate(weights):
        optimizer.update_multi_precision(index, each, mx.nd.full(each.shape, 1 + rank), states[index])
mx.nd.waitall()
bps.barrier()
for index, each in enumerate(weights):
    optimizer.update(index, each, mx.nd.zeros(each.shape), states[index])
    assert (each.asnumpy() == 10 * (1 + index) - 3 * 1 - 3 * 2).all(), each
half = mx.nd.ones((2,), dtype='float16')
optimizer.multi_precision = True
try:
    optimizer.update_multi_precision(7, half, half, optimizer.create_state_multi_precision(7, half))
except TypeError as error:
    assert 'no multi_precision' in str(error)
else:
    raise AssertionError('was not refused')
try:
    net = mx.gluon.nn.Dense(3, in_units=2)
    net.initialize()
    bps.DistributedTrainer(net.collect_params(), 'sgd', compression_params={'fp16': True})
except TypeError as error:
    assert 'no gradients travel' in str(error)
else:
    raise AssertionError('was not refused')
"""
)


@pytest.mark.parametrize("body", [TRAINER, OPTIMIZER], ids=["trainer", "optimizer"])
def test_servers_hold_the_parameters_of_the_root_and_what_all_have_added(body: str, tmp_path: Path) -> None:
    with running(tmp_path, body, servers=2, **ASYNC) as made:
        assert set(made.wait(60).values()) == {0}, made.everything()


def test_with_a_bound_of_0_gradients_are_averaged(tmp_path: Path) -> None:
    body = START + (
        "optimizer = bps.DistributedOptimizer(mx.optimizer.create('sgd', learning_rate=1.0))\n"
        "weight = mx.nd.full((3,), 10)\n"
        "optimizer.update(0, weight, mx.nd.full((3,), 1 + 2 * rank), None)\n"
        "assert (weight.asnumpy() == 8).all(), weight\n"
        "assert bps.stats()['staleness']['count'] == 0\n"
    )
    with running(tmp_path, body, **ASYNC, BYTEPS_ASYNC_MAX_STALENESS="0") as made:
        assert set(made.wait(60).values()) == {0}, made.everything()
