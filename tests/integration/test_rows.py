"""Rows of tensors in jobs of real processes: the bits of dense sums, and a few of their bytes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.helpers.examples import launch
from tests.helpers.jobs import job, running
from tests.integration.test_local_reduce import start

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

AGAINST_DENSE = """
import hashlib
from byteps_py.roles.rows import coalesce
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session, digest, rows, width = current(), hashlib.sha256(), 3001, 7

def bits(pending, spec):
    if pending.rows is None:
        return pending.output.tobytes()
    spread = np.zeros(spec.shape, spec.dtype.storage)
    spread[pending.rows.indices] = pending.rows.values
    return spread.tobytes()

for step in range(2):
    for dtype in DType:
        random = np.random.default_rng([session.rank, step, dtype])
        indices = np.flatnonzero(random.random(rows) < 0.01 * session.rank)  # that of worker 0 has no rows at all
        values = np.frombuffer(random.bytes(len(indices) * width * dtype.itemsize), dtype.storage).reshape(-1, width)
        for operation in (Operation.SUM, Operation.AVERAGE):
            for absent in ((), (0, 2), (1,), (0, 2, 3), (0, 1, 2, 3)):
                there, name = session.rank not in absent, f'{dtype.label}.{operation.name}'
                one, other = (TensorSpec(f'{kind}.{name}', dtype, (rows, width)) for kind in ('rows', 'dense'))
                dense = np.zeros(one.shape, dtype.storage)
                dense[indices] = values
                mine = coalesce(one, indices, values) if there else None
                some = session.submit(one, mine, None, operation, step=step)
                whole = session.submit(other, dense if there else None, None, operation, step=step)
                some.wait(), whole.wait()
                assert some.absent == whole.absent == (len(absent) == 4)
                assert bits(some, one) == bits(whole, other), (dtype, operation, absent)
                digest.update(bits(some, one))
print('the bits are', digest.hexdigest())
"""
"""Any bits at all, in every dtype and operation, with some workers absent, or all but one, or all."""


@pytest.mark.parametrize(
    ("sizes", "environ"),
    [
        ((2, 2), {"BYTEPS_LOCAL_REDUCE": "on"}),
        ((3, 1), {"BYTEPS_LOCAL_REDUCE": "on", "BYTEPS_KERNELS": "reference"}),
        ((2, 2), {"BYTEPS_LOCAL_REDUCE": "off", "BYTEPS_TRANSPORT": "tcp"}),
    ],
    ids=str,
)
def test_the_bits_are_those_of_dense_tensors(sizes: tuple[int, ...], environ: dict[str, str], tmp_path: Path) -> None:
    with job(tmp_path, len(sizes), 2, BYTEPS_PARTITION_BYTES="16384", **environ) as made:
        start(made, sizes, AGAINST_DENSE, 2)
        assert set(made.wait(100).values()) == {0}, made.everything()
        found = {re.findall(r"the bits are (\w+)", made.output(f"worker{rank}"))[0] for rank in range(4)}
        assert len(found) == 1, made.everything()


DUPLICATES = """
rank = bps.rank()
indices = {0: [4, 1, 4, 4], 1: [], 2: [1, 9]}[rank]
values = np.full((len(indices), 2), 1.5, np.float32)
handle = bps.push_pull_rows_async(indices, values, 10, 'x', priority=rank)
which, found = bps.synchronize(handle)
assert which.tolist() == [1, 4, 9], which
assert found.tolist() == [[3.0, 3.0], [4.5, 4.5], [1.5, 1.5]], found
which, found = bps.push_pull_rows(indices, values, 10, 'x', bps.AVG)
assert found.tolist() == [[1.0, 1.0], [1.5, 1.5], [0.5, 0.5]], found
which, found = bps.push_pull_rows([], np.empty((0, 2), np.float32), 10, 'x')
assert which.tolist() == [] and found.shape == (0, 2)
for wrong in ([10], [-1]):
    try:
        bps.push_pull_rows(wrong, np.ones((1, 2), np.float32), 10, 'x')
    except ValueError as error:
        assert f'rows 0 to 9, and not row {wrong[0]}' in str(error)
    else:
        raise SystemExit('not refused')
which, found = bps.push_pull_rows(np.arange(10)[::-1], np.ones((10, 2), np.float32), 10, 'x')
assert which.tolist() == list(range(10)) and (found == 3).all()
print('all is right')
"""


def test_rows_that_are_doubled_or_missing_or_differ(tmp_path: Path) -> None:
    with job(tmp_path, 3, 1, BYTEPS_PARTITION_BYTES="64") as made:  # rows begin in one partition and end in another
        start(made, (1, 1, 1), DUPLICATES)
        assert set(made.wait(60).values()) == {0}, made.everything()
        assert all("all is right" in made.output(f"worker{rank}") for rank in range(3))


DISAGREE = """
try:
    if bps.rank():
        bps.push_pull_rows([1], np.ones((1, 2), np.float32), 5, 'x')
    else:
        bps.push_pull(np.ones((5, 2), np.float32), 'x')
except bps.AgreementError as error:
    print(error)
"""


@pytest.mark.parametrize("environ", [{}, {"BYTEPS_PARTITION_BYTES": "64"}], ids=str)
def test_rows_and_a_dense_tensor_in_one_round_are_told_apart(environ: dict[str, str], tmp_path: Path) -> None:
    with job(tmp_path, 2, 1, **environ) as made:
        start(made, (1, 1), DISAGREE)
        assert set(made.wait(60).values()) == {0}, made.everything()
        for rank in range(2):
            assert (
                "tensor 'x': workers disagree in round 1: worker 0 pushes all elements, not rows of them, worker 1 "
                "pushes rows of 2 elements; a tensor is pushed by all workers as rows"
            ) in made.output(f"worker{rank}")


TRAIN = """
import hashlib
import byteps_py.torch as bpt
from byteps_py.torch.parallel import DistributedDataParallel
import torch
from torch import nn
torch.set_num_threads(1)

def train(sparse, passes=1, compression=bpt.Compression.none, kind=torch.optim.SGD, dtype=torch.float32):
    torch.manual_seed(0)
    table, head = nn.Embedding(1000, 16, sparse=sparse, dtype=dtype), nn.Linear(16, 1, dtype=dtype)
    model, random = nn.ModuleList([table, head]), torch.Generator().manual_seed(bps.rank())
    optimizer = bpt.DistributedOptimizer(
        kind(model.parameters(), lr=0.1), model.named_parameters(), compression, backward_passes_per_step=passes
    )
    for step in range(5):
        optimizer.zero_grad()
        for _ in range(passes):
            words = torch.randint(0, 300, (0 if step == 1 and bps.rank() else 40,), generator=random)
            reached = step != 3 and (step != 2 or bps.rank())  # not by one worker, and then by none
            loss = head(table(words) if reached else torch.ones(3, 16, dtype=dtype)).pow(2).sum()
            loss.backward()
        optimizer.step()
        assert (table.weight.grad is None) == (step == 3)
        if step != 3:
            assert (table.weight.grad.layout is torch.sparse_coo) == sparse
    return hashlib.sha256(b''.join(each.detach().float().numpy().tobytes() for each in model.parameters())).hexdigest()

for options in (
    {}, {'passes': 2}, {'compression': bpt.Compression.bf16}, {'compression': bpt.Compression.fp16},
    {'dtype': torch.float64},
):
    found = train(True, **options), train(False, **options)
    assert found[0] == found[1], (options, found)
    print('parameters', *found)

table = nn.Embedding(50, 4, sparse=True)
optimizer = bpt.DistributedOptimizer(torch.optim.SparseAdam(table.parameters()), table.named_parameters())
table(torch.tensor([bps.rank(), 7])).sum().backward()
optimizer.step()
assert table.weight.grad.indices().tolist() == [[0, 1, 7]]
assert table.weight.grad.values()[:, 0].tolist() == [0.5, 0.5, 1.0]

wrapped = DistributedDataParallel(nn.Sequential(nn.Embedding(50, 4, sparse=True)))
wrapped(torch.tensor([bps.rank(), 7])).sum().backward()
assert next(wrapped.parameters()).grad.indices().tolist() == [[0, 1, 7]]

rows = torch.sparse_coo_tensor([[3, 1, 3]], torch.ones(3, 2), (5, 2), check_invariants=True)
total = bpt.push_pull(rows, average=False, name='t')
assert total.is_coalesced() and total.to_dense()[:, 0].tolist() == [0, 2, 0, 4, 0]
assert bpt.push_pull_inplace(rows, name='t') is rows
assert rows.to_dense()[:, 0].tolist() == [0, 1, 0, 2, 0]
assert bpt.synchronize(bpt.push_pull_async(rows)).to_dense()[:, 0].tolist() == [0, 1, 0, 2, 0]
"""


@needs_torch
def test_sparse_gradients_of_torch_train_as_dense_ones_do(tmp_path: Path) -> None:
    with job(tmp_path, 2, 2, BYTEPS_PARTITION_BYTES="16384") as made:
        start(made, (1, 1), TRAIN, 2)
        assert set(made.wait(100).values()) == {0}, made.everything()
        hashes = [re.findall(r"parameters (\w+)", made.output(f"worker{rank}")) for rank in range(2)]
        assert len(hashes[0]) == 5
        assert hashes[0] == hashes[1]


@needs_torch
def test_the_example_learns_and_ends_as_with_dense_gradients() -> None:
    results = [launch(2, 1, "torch_embedding.py", "--steps", "120", *words) for words in ((), ("--dense",))]
    assert [each["sparse"] for each in results] == [True, False]
    assert results[0]["params_sha256"] == results[1]["params_sha256"]
    assert results[0]["last_loss"] < 0.9 * results[0]["first_loss"]


RESUMED = """
import byteps_py.torch as bpt
from byteps_py.torch.cross_barrier import CrossBarrier
from byteps_py.torch.parallel import DistributedDataParallel
import torch
from torch import nn

def table():
    return nn.Embedding(50, 4, sparse=True)

mine, wrapped, barred = table(), DistributedDataParallel(table()), table()
optimizer = bpt.DistributedOptimizer(torch.optim.SparseAdam(mine.parameters()), mine.named_parameters(), arena=True)
barrier = CrossBarrier(barred, torch.optim.SGD(barred.parameters(), lr=0.5))

def train():
    for module in (mine, wrapped):
        module.zero_grad()
        module(torch.tensor([bps.rank(), 7])).sum().backward()
        if module is mine:
            optimizer.step()
        gradient = next(module.parameters()).grad
        assert gradient.indices().tolist() == [[0, 1, 7]], gradient
        assert gradient.values()[:, 0].tolist() == [0.5, 0.5, 1.0], gradient

train()
bps.suspend()
bps.resume(2, 1)
train()
train()
assert bpt.push_pull(torch.eye(2).to_sparse(1), average=False, name='t').to_dense().tolist() == [[2, 0], [0, 2]]
try:
    barred(torch.tensor([0])).sum().backward()
    barrier.step()
except TypeError as error:
    assert "'weight'" in str(error) and 'only dense tensors are pushed' in str(error), error
else:
    raise AssertionError('a CrossBarrier has taken a sparse gradient')
print('trained')
"""


@needs_torch
def test_sparse_gradients_in_a_new_generation(tmp_path: Path) -> None:
    with running(tmp_path, RESUMED) as made:
        assert set(made.wait(90).values()) == {0}, made.everything()
        assert all("trained" in made.output(f"worker{rank}") for rank in range(2)), made.everything()
