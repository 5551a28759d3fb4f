"""A worker's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from byteps_py import kernels
from byteps_py.errors import AgreementError, UnsupportedError
from byteps_py.roles.pending import Pending
from byteps_py.roles.tensors import Tensor, TensorOperation, check_spec
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import DType, Operation, Partition, TensorSpec, make_key, make_tensor_id
from byteps_py.wire.control import Placement

KERNELS = kernels.select("reference")
ENDPOINT = LoopbackNetwork().endpoint(b"me")


def tensor(count: int = 4) -> Tensor:
    return Tensor(TensorSpec("w", DType.FLOAT32, (count,)))


def test_staged_bytes_are_a_copy() -> None:
    source = np.arange(4, dtype=np.float32)
    buffer = tensor().stage(source, ENDPOINT, KERNELS, 1)
    source.fill(0)
    assert buffer.view(np.float32).tolist() == [0, 1, 2, 3]
    assert tensor(0).stage(np.empty(0, np.float32), ENDPOINT, KERNELS, 1).nbytes == 0


def test_buffers_are_used_again_and_few_are_kept() -> None:
    mine, source = tensor(), np.zeros(4, np.float32)
    buffers = [mine.stage(source, ENDPOINT, KERNELS, 1) for _ in range(3)]
    assert len({each.ctypes.data for each in buffers}) == 3
    for each in buffers:
        mine.recycle(each)
    again = [mine.stage(source, ENDPOINT, KERNELS, 1) for _ in range(3)]
    reused = {each.ctypes.data for each in again} & {each.ctypes.data for each in buffers[1:]}
    assert len(reused) == 2


def test_a_refusal_reaches_everybody_who_waits() -> None:
    mine = tensor()
    pending = Pending(mine.spec, None)
    operation = TensorOperation(mine, pending, operation=Operation.SUM, root=0, priority=0, step=0, staging=None)
    mine.waiting.append(operation)
    mine.refuse(AgreementError("no"))
    for wait in (pending.wait, mine.placed.wait):
        with pytest.raises(AgreementError, match="no"):
            wait()
    assert mine.waiting == []


def test_the_output_of_an_operation_is_seen_as_bytes() -> None:
    mine = tensor()
    pending = Pending(mine.spec, np.zeros(4, np.float32))
    operation = TensorOperation(mine, pending, operation=Operation.SUM, root=0, priority=0, step=0, staging=None)
    operation.output[:4] = np.frombuffer(np.float32(5).tobytes(), np.uint8)
    assert pending.output.tolist() == [5, 0, 0, 0]


@pytest.mark.parametrize(("group", "light"), [(0, True), (7, False)])
def test_what_is_of_a_group_does_not_travel_with_others(group: int, light: bool) -> None:
    mine = Tensor(TensorSpec("w", DType.FLOAT32, (4,), group))
    partition = Partition(make_key(make_tensor_id(group, 0), 0), 0, 4, 0)
    mine.place(Placement("w", make_tensor_id(group, 0), (partition,)))
    assert (mine.light is not None) == light


@pytest.mark.parametrize("group", [True, 1.0, None])
def test_a_group_that_is_no_number(group: Any) -> None:
    with pytest.raises(UnsupportedError, match="group must be the id"):
        check_spec(TensorSpec("w", DType.FLOAT32, (4,), group))
