"""Pushes as operations of MXNet's engine: what waits for what, and where errors come out.

``Held`` is an operation that this test controls: the engine has begun it, and it is over when the test says so.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

mx = pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

import byteps_py.mxnet as bps  # noqa: E402
from byteps_py import session  # noqa: E402
from byteps_py.errors import AgreementError, BytePSError, JobAborted  # noqa: E402
from byteps_py.mxnet.arrays import spec_of  # noqa: E402
from byteps_py.mxnet.engine import engine  # noqa: E402
from byteps_py.mxnet.ops import start  # noqa: E402
from byteps_py.roles.pending import Pending  # noqa: E402
from byteps_py.types import DType, Operation, TensorSpec  # noqa: E402
from tests.helpers.fake_session import FakeJob, run_workers  # noqa: E402

SECONDS = 60.0
DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"]


class Held:
    """An operation that writes ``array``, and is over when :meth:`write` or :meth:`fail` is called."""

    def __init__(self, array, session=None):
        self.has_begun = threading.Event()
        self.looks = 0
        spec = spec_of("held", array)
        self.work = engine.push(session or FakeJob(1).sessions[0], spec, array, self._begin)

    def _begin(self, memory):
        held = self

        class Looked(Pending):
            def done(self):
                held.looks += 1
                return super().done()

        self.pending = Looked(TensorSpec("held", DType.FLOAT32, memory.shape), memory)
        self.has_begun.set()
        return self.pending

    def write(self, value):
        assert self.has_begun.wait(SECONDS)
        self.pending.output[...] = value
        self.pending.complete(absent=False)

    def fail(self, text):
        assert self.has_begun.wait(SECONDS)
        self.pending.fail(JobAborted(text))


def declared(*names):
    for each in names:
        bps.byteps_declare_tensor(each)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5)])
def test_sum_and_average_of_every_dtype_in_place(dtype, shape):
    def body(session):
        declared("sum", "average")
        total, average = (mx.nd.full(shape, session.rank * 2 + 1, dtype=dtype) for _ in range(2))
        bps.byteps_push_pull(total, name="sum", is_average=False)
        bps.byteps_push_pull(average, name="average")
        return total.asnumpy(), average.asnumpy()

    for total, average in run_workers(3, body):
        assert total.dtype == average.dtype == dtype
        assert np.array_equal(total, np.full(shape, 9, dtype))
        assert np.array_equal(average, np.full(shape, 3, dtype))


def test_a_slice_is_replaced_within_its_array():
    def body(session):
        declared("slice")
        array = mx.nd.full((4, 3), session.rank + 1)
        bps.byteps_push_pull(array[1:3], name="slice", is_average=False)
        return array.asnumpy()

    for rank, array in enumerate(run_workers(2, body)):
        assert array[:, 0].tolist() == [rank + 1, 3, 3, rank + 1]


def test_numpy_arrays_of_mxnet_and_scalars():
    def body(session):
        declared("scalar")
        with mx.util.np_shape(True):
            array = mx.np.array(session.rank + 1.0, dtype="float32")
            bps.byteps_push_pull(array, name="scalar", is_average=False)
            return array.item()

    assert run_workers(2, body) == [3.0, 3.0]


def test_the_push_waits_for_the_array_and_a_reader_for_the_pull_but_python_for_neither():
    def body(session):
        declared("x")
        array = mx.nd.zeros((4,))
        held = Held(array)
        assert held.has_begun.wait(SECONDS)
        bps.byteps_push_pull(array, name="x", is_average=False)  # comes back while the array is being computed
        copied = array * 10
        assert not held.work.is_over
        assert session.submitted == []
        held.write(session.rank + 1)
        return copied.asnumpy().tolist(), len(session.submitted)

    assert run_workers(2, body) == [([30.0] * 4, 1)] * 2


def test_another_array_does_not_wait_for_a_pull_under_way():
    array, other = mx.nd.zeros((2,)), mx.nd.ones((2,))
    held = Held(array)
    assert (other + 1).asnumpy().tolist() == [2, 2]
    assert not held.work.is_over
    held.write(5)
    assert array.asnumpy().tolist() == [5, 5]
    assert held.work.wait()


def test_two_arrays_of_one_name_go_in_the_order_of_the_calls():
    def body(session):
        declared("x")
        slow, quick = mx.nd.zeros((2,)), mx.nd.full((2,), 10 * (session.rank + 1))
        held = Held(slow) if session.rank == 0 else None
        if held is None:
            slow[:] = 2
        bps.byteps_push_pull(slow, name="x", is_average=False)
        bps.byteps_push_pull(quick, name="x", is_average=False)
        if held is not None:
            held.write(1)
        return slow.asnumpy().tolist(), quick.asnumpy().tolist()

    assert run_workers(2, body) == [([3, 3], [30, 30])] * 2


def test_an_array_in_the_layout_of_onednn():
    """The engine would wait for itself if it were asked for such memory within an operation."""

    def body(session):
        declared("activations")
        layer = mx.gluon.nn.Conv2D(32, 3, in_channels=16, prefix=f"onednn{session.rank}_")
        layer.initialize(mx.init.Constant(0.01))
        inputs = mx.nd.arange(2 * 16 * 9 * 9).reshape((2, 16, 9, 9)) / 1000 + session.rank
        with mx.autograd.record():
            result = layer(inputs)
        kept = layer(inputs).asnumpy()
        bps.byteps_push_pull(result, name="activations", is_average=False)
        return kept, result.asnumpy()

    first, second = run_workers(2, body)
    assert np.array_equal(first[1], second[1])
    assert np.allclose(first[1], first[0] + second[0], rtol=1e-5)


def test_only_the_last_that_is_ready_hurries():
    first, second = mx.nd.zeros((1,)), mx.nd.zeros((1,))
    blocker = Held(first)
    assert blocker.has_begun.wait(SECONDS)
    waiting = Held(first)
    begun = Held(second)
    begun.write(0)
    begun.work.wait()
    assert begun.looks == 0, "what was behind it had not begun"
    blocker.write(0)
    waiting.write(0)
    waiting.work.wait()
    assert waiting.looks == 1


def test_a_disagreement_is_raised_where_the_array_is_read_and_by_the_next_call():
    def body(session):
        declared("x", "y")
        array = mx.nd.ones((2,))
        bps.byteps_push_pull(array, name="x", version=session.rank)
        with pytest.raises(mx.base.MXNetError, match=r"AgreementError: tensor 'x': .*step 1"):
            (array + 1).asnumpy()
        other = mx.nd.ones((2,))
        with pytest.raises(AgreementError, match="step 1"):
            bps.byteps_push_pull(other, name="y")
        bps.byteps_push_pull(other, name="y")  # it was said once
        fresh = mx.nd.ones((2,))
        bps.byteps_push_pull(fresh, name="x")  # neither is the name spoiled
        return other.asnumpy().tolist(), fresh.asnumpy().tolist()

    # The other worker needs no engine: there is one in this process, and it would be told of the failures of both.
    assert run_beside_a_disagreeing_peer(body) == ([1, 1], [1, 1])


def run_beside_a_disagreeing_peer(body):
    """``body`` as worker 1; worker 0 is NumPy's, and contributes what does not fit to the first push of ``x``."""

    def worker(session):
        if session.rank == 1:
            return body(session)
        for name, step in (("x", 0), ("y", 0), ("x", 0)):
            spec = TensorSpec(name, DType.FLOAT32, (2,))
            source = np.ones(2, np.float32)
            pending = session.submit(spec, source, source, Operation.AVERAGE, step=step)
            if (name, len(session.submitted)) == ("x", 1):
                with pytest.raises(AgreementError):
                    pending.wait()
            else:
                pending.wait()
        return None

    return run_workers(2, worker)[1]


def test_all_waits_come_to_an_end_when_an_operation_fails():
    array = mx.nd.zeros((2,))
    held = Held(array)
    held.fail("the job was lost")
    with pytest.raises(mx.base.MXNetError, match="JobAborted: the job was lost"):
        mx.nd.waitall()
    with pytest.raises(JobAborted, match="the job was lost"):
        held.work.wait()
    mx.nd.waitall()


def test_what_could_not_be_computed_is_not_pushed_and_that_is_said():
    def body(session):
        declared("x")
        array = mx.nd.zeros((2,))
        held = Held(array)
        bps.byteps_push_pull(array, name="x")
        held.fail("no value")
        with pytest.raises(mx.base.MXNetError, match="no value"):
            array.asnumpy()
        with pytest.raises(JobAborted, match="no value"):
            held.work.wait()
        assert engine.drain(SECONDS)
        with pytest.raises(BytePSError, match="tensor 'x' was not pushed, because the operation that computes it"):
            declared("y")
        return session.submitted

    assert run_workers(1, body) == [[]]


def test_neither_is_the_name_of_what_was_not_pushed_spoiled():
    def body(session):
        declared("x", "y")
        array = mx.nd.zeros((2,))
        held = Held(array)
        bps.byteps_push_pull(array, name="x")
        held.fail("no value")
        with pytest.raises(JobAborted, match="no value"):
            held.work.wait()
        assert engine.drain(SECONDS)
        fresh = mx.nd.ones((2,))
        with pytest.raises(BytePSError, match="tensor 'x' was not pushed"):
            bps.byteps_push_pull(fresh, name="y")
        bps.byteps_push_pull(fresh, name="x")  # and nobody has read what failed
        result = fresh.asnumpy().tolist()
        with pytest.raises(mx.base.MXNetError, match="no value"):
            mx.nd.waitall()
        return result

    assert run_workers(1, body) == [[1, 1]]


class Patched:
    """MXNet's library, of which one function is another."""

    def __init__(self, function):
        self.MXEnginePushAsyncND = function

    def __getattr__(self, name):
        return getattr(mx.base._LIB, name)


def interrupted(*arguments):
    raise KeyboardInterrupt


def refused(*arguments):
    return mx.base._LIB.MXEnginePushAsyncND(*arguments[:7], ctypes.c_int(-1), *arguments[8:])


def taken_and_interrupted(*arguments):
    assert mx.base._LIB.MXEnginePushAsyncND(*arguments) == 0
    raise KeyboardInterrupt


INTERRUPTIONS = {
    "before the engine has it": ("_library", Patched(interrupted)),
    "when the engine has it, but nobody knows": ("_library", Patched(taken_and_interrupted)),
    "no memory for the turn": ("_turn", interrupted),
    "no thread": ("_start_teller", interrupted),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("when", INTERRUPTIONS)
def test_a_push_that_is_interrupted_leaves_nothing_that_is_waited_for(when, monkeypatch):
    def body(session):
        declared("x")
        array = mx.nd.zeros((2,))
        held = Held(array)  # so the engine does not run it yet
        with monkeypatch.context() as patch:
            patch.setattr(engine, *INTERRUPTIONS[when])
            with pytest.raises(KeyboardInterrupt):
                bps.byteps_push_pull(array, name="x")
        held.write(1)
        if "nobody knows" in when:
            with pytest.raises(mx.base.MXNetError, match="its push was interrupted"):
                array.asnumpy()
        else:
            assert array.asnumpy().tolist() == [1, 1]
        assert engine.drain(SECONDS)
        assert not engine._waiting
        fresh = mx.nd.ones((2,))
        bps.byteps_push_pull(fresh, name="x")
        return fresh.asnumpy().tolist(), len(session.submitted)

    assert run_workers(1, body) == [([1, 1], 1)]


@pytest.mark.timeout(60)
def test_a_push_that_is_interrupted_when_the_engine_has_it_goes_on(monkeypatch):
    def body(session):
        declared("x")
        array = mx.nd.full((2,), session.rank)
        check, this = mx.base.check_call, threading.get_ident()

        def interrupted_here(status):  # not in the thread of the engine, which may have begun by then
            return interrupted() if threading.get_ident() == this else check(status)

        with monkeypatch.context() as patch:
            patch.setattr(mx.base, "check_call", interrupted_here)
            with pytest.raises(KeyboardInterrupt):
                bps.byteps_push_pull(array, name="x", is_average=False)
        result = array.asnumpy().tolist()
        assert engine.drain(SECONDS)
        return result, len(session.submitted)

    assert run_workers(1, body) == [([0, 0], 1)]


def test_what_the_engine_refuses_is_raised_once(monkeypatch):
    def body(session):
        declared("x")
        array = mx.nd.ones((2,))
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_library", Patched(refused))
            with pytest.raises(mx.base.MXNetError):
                bps.byteps_push_pull(array, name="x")
        bps.byteps_push_pull(array, name="x")
        return array.asnumpy().tolist()

    assert run_workers(1, body) == [[1, 1]]


@pytest.mark.timeout(60)
def test_an_interruption_within_an_operation_is_told_to_the_engine(monkeypatch):
    """As with the NaiveEngine, which runs it in the thread that pushes."""
    array = mx.nd.ones((2,))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_begun", interrupted)
        held = Held(array)
        held.write(3)
        with pytest.raises(mx.base.MXNetError, match="KeyboardInterrupt"):
            array.asnumpy()
    with pytest.raises(KeyboardInterrupt):
        held.work.wait()
    assert engine.drain(SECONDS)
    engine._waiting.clear()


@pytest.mark.timeout(60)
def test_shutdown_does_not_wait_for_long_while_an_exception_is_on_its_way(monkeypatch):
    monkeypatch.setattr("byteps_py.mxnet.engine._EXIT_SECONDS", 0.1)
    bps.init()
    held = Held(mx.nd.zeros((2,)), session.current())

    def train():
        try:
            raise OSError("no data")
        finally:
            bps.shutdown()

    with pytest.raises(OSError, match="no data"):
        train()
    assert not bps.is_initialized()
    assert not held.work.is_over
    held.write(1)
    assert held.work.wait()


def test_priorities_and_versions_reach_the_session():
    def body(session):
        declared("x")
        array = mx.nd.zeros((2,))
        bps.byteps_push_pull(array, 7, 2**40, "x", False)
        array.wait_to_read()
        return [(each.name, each.operation.name, each.step, each.priority) for each in session.submitted]

    assert run_workers(1, body) == [[("x", "SUM", 7, 2**40)]]


def test_many_threads_push_at_once():
    def body(session):
        names = [f"t{each}" for each in range(20)]
        declared(*names)
        arrays = [mx.nd.full((3,), each) for each in range(20)]

        def push(some):
            for each in some:
                start(session, arrays[each], names[each], Operation.SUM)

        threads = [threading.Thread(target=push, args=(range(part, 20, 4),)) for part in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(SECONDS)
        return [float(each[0].asscalar()) for each in arrays]

    assert run_workers(2, body) == [[2.0 * each for each in range(20)]] * 2
