"""Each public name of ``byteps_py.mxnet``, called wrongly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

mx = pytest.importorskip("mxnet", reason="MXNet is not installed: make test-mxnet")

import byteps_py.mxnet as bps  # noqa: E402
from byteps_py.errors import AgreementError, NotInitializedError, UnsupportedError  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402


def parameter(**options):
    made = mx.gluon.Parameter("p", shape=(2, 2), **options)
    made.initialize()
    return made


def trainer(params, *others, **options):
    return lambda: bps.DistributedTrainer(params() if callable(params) else params, "sgd", *others, **options)


def push(array, **options):
    def call():
        bps.byteps_declare_tensor("x")
        bps.byteps_push_pull(array(), **{"name": "x", **options})

    return call


def push_another_shape():
    push(lambda: mx.nd.ones(2))()
    push(lambda: mx.nd.ones(3))()


def two_contexts():
    made = mx.gluon.Parameter("p", shape=(2,))
    made.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    return made


class ArrayOnGpu(mx.nd.NDArray):
    """What an MXNet with CUDA would have."""

    __slots__ = ()
    ctx = property(lambda self: mx.gpu(0))


def array_on_gpu():
    made = mx.nd.ones(2)
    made.__class__ = ArrayOnGpu
    return made


def on_gpu():
    made = parameter()
    made.list_ctx = lambda: [mx.gpu(0)]
    return made


def bfloat16():
    return mx.nd.zeros((2,), dtype=np.dtype([("bfloat16", "uint16")]))


WRONG = {
    "declare: compressor": (
        lambda: bps.byteps_declare_tensor("x", byteps_compressor_type="onebit", byteps_ef_type="vanilla"),
        UnsupportedError,
        "'x' cannot be declared with byteps_compressor_type, byteps_ef_type: gradients are not compressed",
    ),
    "declare: no string": (lambda: bps.byteps_declare_tensor(3), UnsupportedError, "must be a string, not int"),
    "push: no name": (lambda: bps.byteps_push_pull(mx.nd.ones(2)), ValueError, "needs a name: declare one"),
    "push: undeclared": (
        lambda: bps.byteps_push_pull(mx.nd.ones(2), name="y"),
        ValueError,
        r"'y' was not declared: call byteps_declare_tensor\('y'\)",
    ),
    "push: NumPy": (push(lambda: mx.nd.ones(2).asnumpy()), UnsupportedError, "is a ndarray, not an MXNet NDArray"),
    "push: bool": (
        push(lambda: mx.nd.ones(2).astype("bool")),
        UnsupportedError,
        "dtype 'bool', which cannot be pushed",
    ),
    "push: bfloat16": (push(bfloat16), UnsupportedError, "which cannot be pushed; supported are float32, float64"),
    "push: sparse": (
        push(lambda: mx.nd.ones((2, 2)).tostype("csr")),
        UnsupportedError,
        r"is sparse \(csr\), and only dense arrays",
    ),
    "push: on a GPU": (push(array_on_gpu), UnsupportedError, "'x' is on a gpu, and only arrays on CPUs are pushed"),
    "push: negative version": (push(lambda: mx.nd.ones(2), version=-1), ValueError, "version must be a number from 0"),
    "push: version of the wrong type": (push(lambda: mx.nd.ones(2), version=1.5), TypeError, "float"),
    "push: priority of the wrong type": (push(lambda: mx.nd.ones(2), priority="high"), TypeError, "str"),
    "push: another shape": (push_another_shape, AgreementError, r"'x' is float32 \(2,\) in this process"),
    "broadcast: no dict": (
        lambda: bps.broadcast_parameters([mx.nd.ones(2)]),
        TypeError,
        r"takes a ParameterDict, such as net.collect_params\(\), or a dict",
    ),
    "broadcast: no array": (
        lambda: bps.broadcast_parameters({"w": 3}),
        UnsupportedError,
        "'Parameter.w' is a int, not an MXNet NDArray",
    ),
    "broadcast: not initialized": (
        lambda: bps.broadcast_parameters({"w": mx.gluon.Parameter("p", shape=(2,))}),
        UnsupportedError,
        r"parameter 'p' is not initialized: call initialize\(\) first",
    ),
    "broadcast: two contexts": (
        lambda: bps.broadcast_parameters({"w": two_contexts()}),
        UnsupportedError,
        r"is on cpu\(0\), cpu\(1\), and a worker process has one context",
    ),
    "broadcast: on a GPU": (
        lambda: bps.broadcast_parameters({"w": on_gpu()}),
        UnsupportedError,
        r"parameter 'p' is on gpu\(0\), and a worker process has one context, a CPU",
    ),
    "broadcast: an array on a GPU": (
        lambda: bps.broadcast_parameters({"w": array_on_gpu()}),
        UnsupportedError,
        "'Parameter.w' is on a gpu",
    ),
    "broadcast: no such root": (
        lambda: bps.broadcast_parameters({}, 1),
        ValueError,
        "root_rank=1: there are 1 workers",
    ),
    "broadcast_object: a function": (lambda: bps.broadcast_object(print), UnsupportedError, "cannot be broadcast"),
    "optimizer: a name": (
        lambda: bps.DistributedOptimizer("sgd"),
        TypeError,
        "takes an optimizer of MXNet.* not a str",
    ),
    "optimizer: distributed already": (
        lambda: bps.DistributedOptimizer(bps.DistributedOptimizer(mx.optimizer.SGD())),
        TypeError,
        "not a DistributedOptimizer",
    ),
    "optimizer: two gradients of one index": (
        lambda: bps.DistributedOptimizer(mx.optimizer.SGD()).update([0], [mx.nd.ones(1)], [mx.nd.ones(1)] * 2, [None]),
        UnsupportedError,
        "1 indices and 2 gradients",
    ),
    "trainer: arrays": (trainer([mx.nd.ones(2)]), ValueError, "must be a list or dict of Parameters"),
    "trainer: no such root": (
        trainer(lambda: [parameter()], root_rank=2),
        ValueError,
        "root_rank=2: there are 1 workers",
    ),
    "trainer: compression": (
        trainer(lambda: [parameter()], compression_params={"compressor": "onebit", "fp16": True}),
        UnsupportedError,
        "compression_params has 'compressor': gradients are not compressed, except to float16",
    ),
    "trainer: what belongs to compression": (
        trainer(lambda: [parameter()], compression_params={"compressor": "", "ef": "vanilla", "k": 1}),
        UnsupportedError,
        "compression_params has 'ef', 'k': gradients are not compressed, except to float16",
    ),
    "trainer: sparse gradient": (
        trainer(lambda: [parameter(grad_stype="csr")]),
        UnsupportedError,
        r"the gradient of parameter 'p' is sparse \(csr\)",
    ),
    "trainer: compressed rows": (
        trainer(lambda: [parameter(grad_stype="row_sparse")], compression_params={"fp16": True}),
        UnsupportedError,
        "is row-sparse, and rows are not compressed here",
    ),
    "trainer: sparse parameter": (
        trainer(lambda: [parameter(stype="row_sparse")]),
        UnsupportedError,
        r"parameter 'p' is sparse \(row_sparse\)",
    ),
    "trainer: two contexts": (
        trainer(lambda: [two_contexts()]),
        UnsupportedError,
        "and a worker process has one context",
    ),
    "trainer: on a GPU": (trainer(lambda: [on_gpu()]), UnsupportedError, r"parameter 'p' is on gpu\(0\)"),
    "optimizer: a gradient on a GPU": (
        lambda: bps.DistributedOptimizer(mx.optimizer.SGD()).update(0, mx.nd.ones(2), array_on_gpu(), None),
        UnsupportedError,
        "'gradient_0' is on a gpu",
    ),
    "trainer: stale gradient": (
        lambda: trainer(lambda: [parameter()])().step(1),
        UserWarning,
        "has not been updated by backward",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_says_what_is_wrong(case):
    call, kind, words = WRONG[case]

    def body(_):
        with pytest.raises(kind, match=words):
            call()

    run_workers(1, body)


NEED_A_SESSION = {
    "rank": bps.rank,
    "size": bps.size,
    "suspend": bps.suspend,
    "local_rank": bps.local_rank,
    "local_size": bps.local_size,
    "barrier": bps.barrier,
    "step": bps.step,
    "stats": bps.stats,
    "get_pushpull_speed": bps.get_pushpull_speed,
    "broadcast_object": lambda: bps.broadcast_object(1),
    "broadcast_parameters": lambda: bps.broadcast_parameters({}),
    "byteps_declare_tensor": lambda: bps.byteps_declare_tensor("x"),
    "byteps_push_pull": lambda: bps.byteps_push_pull(mx.nd.ones(2), name="x"),
    "DistributedOptimizer": lambda: bps.DistributedOptimizer(mx.optimizer.SGD()),
    "DistributedTrainer": trainer(lambda: [parameter()]),
}
NEED_NONE = {"Compression", "Compressor", "init", "is_initialized", "resume", "shutdown"}
"""Of which resume() needs suspend() before it, and says so."""


@pytest.mark.parametrize("name", NEED_A_SESSION)
def test_before_init(name):
    with pytest.raises(NotInitializedError, match=r"call init\(\) first"):
        NEED_A_SESSION[name]()


def test_after_shutdown():
    for _ in range(2):
        bps.init()
        assert (bps.rank(), bps.size(), bps.is_initialized()) == (0, 1, True)
        array = mx.nd.ones(2)
        bps.byteps_declare_tensor("x")
        bps.byteps_push_pull(array, name="x")
        bps.shutdown()
        bps.shutdown()
        assert array.asnumpy().tolist() == [1, 1]
        for call in NEED_A_SESSION.values():
            with pytest.raises(NotInitializedError):
                call()


def refusals():
    """What each function says in this process that needs a session, by name."""
    found = {}
    for name, call in NEED_A_SESSION.items():
        try:
            call()
        except NotInitializedError as error:
            found[name] = str(error)
    return found


class Asked:
    """A data set that has what a worker of a DataLoader, a forked child, meets."""

    def __len__(self):
        return 1

    def __getitem__(self, _):
        assert not bps.is_initialized()
        found = [each for each in refusals().values() if "this process was forked from a worker" in each]
        bps.shutdown()  # tells nobody
        return [len(found), len(refusals())]


@pytest.mark.timeout(60)
def test_in_a_forked_child():
    bps.init()
    try:
        (asked,) = mx.gluon.data.DataLoader(Asked(), batch_size=1, num_workers=1)
        assert asked.asnumpy().tolist() == [[len(NEED_A_SESSION)] * 2]
        assert bps.size() == 1
    finally:
        bps.shutdown()


@pytest.mark.timeout(60)
def test_from_two_threads():
    bps.init()
    try:
        with ThreadPoolExecutor(2) as pool:
            together = Barrier(2)
            for name, call in NEED_A_SESSION.items():
                calls = [pool.submit(lambda call=call: (together.wait(30), call())) for _ in range(2)]
                assert [each.exception() for each in calls] == [None, None], name
                if name == "suspend":
                    bps.resume(1, 1)
    finally:
        bps.shutdown()


def test_the_table_has_every_public_name():
    assert NEED_A_SESSION.keys() | NEED_NONE == set(bps.__all__)


def test_compressors():
    array = mx.nd.array([1.5, -2])
    narrow, context = bps.Compression.fp16.compress(array)
    assert narrow.dtype is np.float16
    assert bps.Compression.fp16.decompress(narrow, context).dtype is np.float32
    for compressor, each in ((bps.Compression.none, array), (bps.Compression.fp16, mx.nd.ones(2, dtype="int32"))):
        same, context = compressor.compress(each)
        assert same is each
        assert compressor.decompress(same, context) is each
    assert [repr(bps.Compression.none), repr(bps.Compression.fp16)] == ["Compression.none", "Compression.fp16"]
