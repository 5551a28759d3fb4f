"""The worker that is alone."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_py.errors import AgreementError, TransportError, UnsupportedError
from byteps_py.roles.local import LocalWorker
from byteps_py.session import Session
from byteps_py.telemetry.stages import WORKER_STAGES
from byteps_py.types import DType, Operation, TensorSpec

SPEC = TensorSpec("w", DType.FLOAT32, (2, 2))


@pytest.mark.parametrize("operation", list(Operation))
def test_the_result_is_the_contribution(operation: Operation) -> None:
    source = np.array([[1, 2], [3, -0.0]], np.float32)
    pending = LocalWorker().submit(SPEC, source, None, operation)
    assert pending.done()
    assert pending.wait().tobytes() == source.tobytes()
    assert pending.output is not source
    assert not pending.absent


def test_in_place_and_into_an_output() -> None:
    worker = LocalWorker()
    source, output = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)
    assert worker.submit(SPEC, source, source, Operation.SUM).wait() is source
    assert worker.submit(SPEC, source, output, Operation.SUM).wait().tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("dtype", list(DType))
def test_an_array_for_contributions(dtype: DType) -> None:
    worker = LocalWorker()
    array = worker.empty((2, 3), dtype.storage)
    assert (array.shape, array.dtype, array.flags.c_contiguous) == ((2, 3), dtype.storage, True)
    array.fill(7)
    assert worker.submit(TensorSpec("w", dtype, (2, 3)), array, array, Operation.SUM).wait() is array


def test_an_array_that_is_too_large() -> None:
    with pytest.raises(TransportError, match=r"no memory left for 40000000000000 bytes"):
        LocalWorker().empty((10**13,), np.dtype(np.float32))


def test_absent_is_zero() -> None:
    output = np.ones((2, 2), np.float32)
    pending = LocalWorker().submit(SPEC, None, output, Operation.AVERAGE)
    assert pending.absent
    assert output.tolist() == [[0, 0], [0, 0]]


def test_a_name_keeps_its_shape() -> None:
    worker = LocalWorker()
    worker.declare([SPEC])
    with pytest.raises(AgreementError, match=r"'w' is float32 \(2, 2\) .* float32 \(4,\)"):
        worker.submit(TensorSpec("w", DType.FLOAT32, (4,)), np.ones(4, np.float32), None, Operation.SUM)
    worker.barrier()
    worker.close()


def test_the_one_group_is_its_own() -> None:
    session = Session(LocalWorker())
    assert session.form_group([0]) == session.form_group((0,)) == LocalWorker().form_group((0,)) == 0
    for ranks in ([], [1], [0, 0]):
        with pytest.raises(ValueError, match="rank"):
            session.form_group(ranks)
    with pytest.raises(ValueError, match="group 1, which this process has not formed"):
        session.submit(TensorSpec("w", DType.FLOAT32, (2, 2), 1), None, None, Operation.SUM)


def test_no_stage_is_passed() -> None:
    worker = LocalWorker()
    worker.submit(SPEC, np.ones((2, 2), np.float32), None, Operation.SUM)
    assert worker.stages() == dict.fromkeys(WORKER_STAGES, (0, 0.0))


@pytest.mark.parametrize("operation", [Operation.SEED, Operation.DIFFERENCE])
def test_there_is_no_server_to_hold_a_tensor(operation: Operation) -> None:
    with pytest.raises(UnsupportedError, match=f"{operation.name} is an operation of asynchronous training"):
        Session(LocalWorker()).submit(SPEC, np.zeros((2, 2), np.float32), None, operation)
