"""Row-sparse gradients: several workers train as with dense ones, and call by call."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

import byteps_py.mxnet as bps  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

gluon = mx.gluon
ROWS, WIDTH = 40, 3


def make_table(sparse):
    table = gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=sparse, prefix="table_")
    table.initialize()
    table(mx.nd.array([0]))
    table.weight.set_data(mx.nd.array(np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) / 7))
    return table


def train(session, sparse, **options):
    """Steps on words that differ by worker; one worker has none in step 1, and nobody has any in step 2."""
    table = make_table(sparse)
    trainer = bps.DistributedTrainer(table.collect_params(), "sgd", {"learning_rate": 0.5, **options})
    generator = np.random.default_rng(session.rank)
    for step in range(4):
        words = generator.integers(0, ROWS, 6)
        if step == 0 or (step == 1 and session.rank) or step == 3:
            with mx.autograd.record():
                loss = (table(mx.nd.array(words)) ** 2).sum()
            loss.backward()
        trainer.step(6, ignore_stale_grad=True)
    mx.nd.waitall()
    assert table.weight.grad().stype == ("row_sparse" if sparse else "default")
    return table.weight.data().asnumpy()


def test_a_trainer_ends_as_with_dense_gradients() -> None:
    sparse, dense = (run_workers(2, lambda session, kind=kind: train(session, kind)) for kind in (True, False))
    assert np.array_equal(sparse[0], sparse[1])
    assert np.allclose(sparse[0], dense[0], rtol=1e-6)


def test_an_optimizer_averages_rows() -> None:
    def body(session):
        optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0, wd=0.0))
        weight = mx.nd.zeros((5, 2))
        rows = mx.nd.sparse.row_sparse_array((np.ones((1, 2), np.float32), [1 + session.rank]), shape=(5, 2))
        optimizer.update(0, weight, rows, optimizer.create_state(0, weight))
        return weight.asnumpy(), rows.indices.asnumpy()

    for weight, indices in run_workers(2, body):
        assert indices.tolist() == [1, 2]
        assert weight[:, 0].tolist() == [0, -0.5, -0.5, 0, 0]


def test_push_pull_replaces_the_rows() -> None:
    def body(session):
        bps.byteps_declare_tensor("x")
        array = mx.nd.sparse.row_sparse_array((np.full((2, 2), 3.0, np.float32), [0, 2 + session.rank]), shape=(5, 2))
        bps.byteps_push_pull(array, name="x", is_average=False)
        empty = mx.nd.sparse.zeros("row_sparse", (5, 2))
        bps.byteps_push_pull(empty, name="x", is_average=False)
        return array, empty

    for array, empty in run_workers(2, body):
        assert array.indices.asnumpy().tolist() == [0, 2, 3]
        assert array.data.asnumpy()[:, 0].tolist() == [6, 3, 3]
        assert empty.asnumpy().tolist() == [[0, 0]] * 5
