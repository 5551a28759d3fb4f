"""The way of CUDA gradients: order, waiting, pinned memory. Streams are played by CPU tensors, see the helper."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import AgreementError, BytePSError, UnsupportedError  # noqa: E402
from byteps_py.torch import gradients  # noqa: E402
from byteps_py.torch.staging import Staging, Submission, Submissions  # noqa: E402
from byteps_py.torch.tensors import as_array, wire_tag  # noqa: E402
from byteps_py.types import TensorSpec  # noqa: E402
from tests.helpers.fake_cuda import FakeCuda  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def cuda():
    return FakeCuda()


@pytest.fixture
def staging(cuda):
    made = Staging(cuda, "cpu")
    yield made
    cuda.gate.set()
    made.close()


class Memory:
    """A session of which only the memory is needed."""

    def __init__(self):
        self.given = []

    def empty(self, shape, dtype):
        self.given.append(np.full(shape, 7, dtype))
        return self.given[-1][:]


def make_buffer(staging, shape=(4,), dtype=torch.float32):
    return staging.buffer(Memory(), TensorSpec("g", wire_tag(dtype, "g"), shape), dtype, CPU)


def finished(array=None, absent=False):
    return SimpleNamespace(wait=lambda: array, absent=absent)


class TestStreams:
    """What is done on a device, as late as it may be done"""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("layout", ["plain", "transposed"])
    @pytest.mark.parametrize("first", ["script", "copies"])
    def test_what_is_submitted_and_what_comes_back(self, cuda, staging, dtype, layout, first):
        gradient = torch.zeros(2, 3) if layout == "plain" else torch.zeros(3, 2).T
        buffer, seen = make_buffer(staging, (2, 3), dtype), []
        values = torch.arange(6.0).reshape(2, 3)

        def begin():
            seen.append(buffer.tensor.clone())
            buffer.tensor.add_(10)
            return finished()

        for step in range(3):
            with cuda.lazy():
                cuda.main.add(lambda step=step: gradient.copy_(values + step))
                staging.start(gradient, buffer, begin).wait()
                # What the script has queued before must see the old gradient, and what it queues afterwards the new.
                looks = []
                cuda.main.add(lambda looks=looks: looks.append(gradient.clone()))
                staging.fetch(buffer, gradient)
                cuda.main.add(lambda looks=looks: looks.append(gradient.clone()))
            if first == "copies":  # then they are done as early as they may be
                cuda.streams[0].run()
            cuda.main.run()
            assert torch.equal(seen[step].float(), values + step)
            assert torch.equal(looks[0], values + step)
            assert torch.equal(looks[1], values + step + 10)

    def test_the_next_copy_into_a_buffer_does_not_overtake_the_last_one_out_of_it(self, cuda, staging):
        first, second = torch.ones(4), torch.full((4,), 2.0)
        buffer = make_buffer(staging)
        with cuda.lazy():
            buffer.tensor.fill_(5)
            staging.fetch(buffer, first)
            staging.start(second, buffer, finished).wait()
        assert first.tolist() == [5.0] * 4
        assert buffer.tensor.tolist() == [2.0] * 4

    def test_a_gradient_that_has_moved_to_another_device_waits_for_the_copies_of_the_first(self, cuda, staging):
        buffer = make_buffer(staging)
        staging.fetch(buffer, torch.zeros(4))
        staging._sides = {CPU: cuda.Stream(CPU)}
        cuda.log.clear()
        staging.start(torch.zeros(4), buffer, finished).wait()
        assert cuda.log == [("side1", "wait", "main"), ("side1", "wait", "side0")]

    def test_the_hosts_change_of_a_gradient_is_noticed_by_autograd(self, staging):
        gradient = torch.zeros(4)
        before = gradient._version
        staging.fetch(make_buffer(staging), gradient)
        assert gradient._version > before

    def test_the_capture_of_a_cuda_graph_is_refused(self, cuda, staging):
        cuda.capturing = True
        with pytest.raises(UnsupportedError, match="CUDA graph captures cannot push"):
            staging.start(torch.zeros(4), make_buffer(staging), finished)

    def test_one_side_stream_serves_a_device(self, cuda, staging):
        for _ in range(3):
            staging.start(torch.zeros(4), make_buffer(staging), finished).wait()
        assert len(cuda.streams) == 1


class TestSubmissions:
    """The thread that waits for copies"""

    def test_starting_does_not_wait_and_the_order_is_kept(self, cuda, staging):
        cuda.gate.clear()
        order = []
        submissions = [
            staging.start(torch.zeros(4), make_buffer(staging), lambda n=n: order.append(n) or finished(n))
            for n in range(20)
        ]
        assert order == []
        cuda.gate.set()
        assert [each.wait() for each in submissions] == list(range(20))
        assert order == list(range(20))

    def test_an_error_of_submitting_comes_out_of_wait_and_the_next_goes_on(self, staging):
        def fail():
            raise AgreementError("other shapes")

        failing = staging.start(torch.zeros(4), make_buffer(staging), fail)
        fine = staging.start(torch.zeros(4), make_buffer(staging), lambda: finished(3))
        for _ in range(2):
            with pytest.raises(AgreementError, match="other shapes"):
                failing.wait()
        assert fine.wait() == 3

    def test_an_error_of_the_device_comes_out_of_wait_and_nothing_is_submitted(self, cuda, staging):
        cuda.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
        submitted = []
        with pytest.raises(RuntimeError, match="illegal memory access"):
            staging.start(torch.zeros(4), make_buffer(staging), lambda: submitted.append(1)).wait()
        assert submitted == []
        cuda.failure = None

    def test_absence_is_that_of_the_operation(self):
        for absent in (False, True):
            submission = Submission(lambda: None, lambda absent=absent: finished(absent=absent))
            assert submission.absent is False
            submission.perform()
            assert submission.absent is absent

    def test_a_gradient_lives_until_its_copy_is_over_and_not_longer(self, cuda, staging):
        cuda.gate.clear()
        gradient = torch.zeros(4)
        kept = weakref.ref(gradient)
        submission = staging.start(gradient, make_buffer(staging), finished)
        del gradient
        gc.collect()
        assert kept() is not None
        cuda.gate.set()
        submission.wait()
        staging.close()
        assert kept() is None

    def test_closing_performs_what_was_added_and_the_next_makes_a_new_thread(self):
        submissions, done = Submissions(), []
        submissions.close()
        for number in range(5):
            submissions.add(Submission(lambda: None, lambda number=number: done.append(number)))
        submissions.close()
        assert done == list(range(5))
        submissions.add(Submission(lambda: None, lambda: done.append(5)))
        submissions.close()
        assert done[5:] == [5]
        assert "byteps-submit" not in [each.name for each in threading.enumerate()]


class TestPinnedMemory:
    """Buffers"""

    @pytest.mark.parametrize("shape", [(), (1,), (1024,), (1025,), (3, 5000)])
    def test_whole_pages_that_no_other_buffer_touches_are_pinned(self, cuda, staging, shape):
        memory = Memory()
        spec = TensorSpec("g", wire_tag(torch.bfloat16, "g"), shape)
        buffers = [staging.buffer(memory, spec, torch.bfloat16, CPU) for _ in range(3)]
        assert len(cuda.pinned) == 3
        for buffer, whole in zip(buffers, memory.given, strict=True):
            start = buffer.tensor.data_ptr()
            assert buffer.tensor.shape == shape
            assert buffer.tensor.dtype == torch.bfloat16
            assert cuda.pinned[start] >= buffer.tensor.nbytes
            assert whole.ctypes.data <= start
            assert start + cuda.pinned[start] <= whole.ctypes.data + whole.nbytes
            assert as_array(buffer.tensor).ctypes.data == start

    def test_it_is_unpinned_when_the_last_copy_is_over_and_before_it_is_freed(self, cuda, staging):
        memory = Memory()
        buffer = staging.buffer(memory, TensorSpec("g", wire_tag(torch.float32, "g"), (4,)), torch.float32, CPU)
        freed = []
        weakref.finalize(memory.given.pop(), lambda: freed.append(dict(cuda.pinned)))
        target = torch.zeros(4)
        with cuda.lazy():
            buffer.tensor.fill_(3)
            staging.fetch(buffer, target)
            assert target.tolist() == [0.0] * 4
            del buffer
            gc.collect()
        assert target.tolist() == [3.0] * 4
        assert freed == [{}]

    def test_what_cannot_be_pinned_is_used_as_it_is_and_told_once(self, cuda, staging, caplog):
        cuda.status = 2
        with caplog.at_level(logging.WARNING, "byteps_py"):
            buffers = [make_buffer(staging) for _ in range(3)]
        (record,) = caplog.records
        assert "cannot pin 4096 bytes of host memory (cudaHostRegister: error 2)" in record.getMessage()
        assert cuda.registrations == 1
        assert staging.start(torch.ones(4), buffers[0], lambda: finished(1)).wait() == 1
        assert buffers[0].tensor.tolist() == [1.0] * 4
        del buffers
        gc.collect()
        assert cuda.pinned == {}


class TestGradientsOfADevice:
    """``DistributedOptimizer``"""

    @pytest.fixture(autouse=True)
    def _play(self, monkeypatch, staging):
        monkeypatch.setattr(gradients, "_staging", staging)

    @staticmethod
    def train(session, compression=bps.Compression.none, steps=3):
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        generator = torch.Generator().manual_seed(3)  # not torch's own, which the workers share
        with torch.no_grad():
            for each in model.parameters():
                each.copy_(torch.randn(each.shape, generator=generator))
        idle = torch.nn.Parameter(torch.ones(3))
        named = [*model.named_parameters(), ("idle", idle)]
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD([each for _, each in named], lr=0.1, momentum=0.9), named, compression
        )
        for step in range(steps):
            inputs = torch.linspace(-1, 1, 24).reshape(4, 6) * (session.rank + step + 1)
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            # A parameter that one worker alone uses, and one that has no gradient anywhere in the first step.
            (loss + idle.sum() if step and session.rank == 0 else loss).backward()
            optimizer.step()
        return [each.detach().clone() for _, each in named], session.submitted

    @pytest.mark.parametrize("compression", [bps.Compression.none, bps.Compression.fp16])
    def test_the_bits_are_those_of_gradients_on_the_host(self, monkeypatch, cuda, compression):
        staged = run_workers(2, lambda session: self.train(session, compression))
        assert cuda.registrations == 2 * 5 - 1, "one buffer for each gradient that there was"
        monkeypatch.setattr(gradients, "_staging", Staging(cuda, "nothing"))
        plain = run_workers(2, lambda session: self.train(session, compression))
        for (ours, _), (theirs, _) in zip(staged, plain, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))

    def test_pushes_keep_the_order_of_the_hooks_and_their_priorities_and_steps(self, monkeypatch, cuda):
        monkeypatch.setattr(gradients, "GATHERED_BYTES", 0)
        ((_, staged),) = run_workers(1, self.train)
        monkeypatch.setattr(gradients, "_staging", Staging(cuda, "nothing"))
        ((_, plain),) = run_workers(1, self.train)

        def pushes(submitted, step):
            return [each for each in submitted if each.step == step and not each.absent]

        assert [pushes(staged, step) for step in range(3)] == [pushes(plain, step) for step in range(3)]
        assert len(pushes(plain, 1)) == 5

    def test_the_backward_pass_does_not_wait_for_copies(self, cuda):
        def body(session):
            layer = torch.nn.Linear(4, 4)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
            cuda.gate.clear()
            layer(torch.ones(1, 4)).sum().backward()
            during = list(session.submitted)
            cuda.gate.set()
            optimizer.synchronize()
            return during, len(session.submitted)

        assert run_workers(1, body) == [([], 2)]

    def test_what_submitting_raises_comes_out_of_synchronize_when_nothing_is_under_way(self):
        def body(session):
            layer = torch.nn.Linear(4, 4)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), layer.named_parameters())
            submit = session.submit

            def refuse(spec, *arguments, **options):
                if spec.name.endswith("weight"):
                    raise AgreementError("other shapes")
                return submit(spec, *arguments, **options)

            session.submit = refuse
            layer(torch.ones(1, 4)).sum().backward()
            with pytest.raises(AgreementError, match="other shapes"):
                optimizer.synchronize()
            session.submit = submit
            optimizer.zero_grad()
            layer(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            return [each.name for each in session.submitted]

        ((*_, bias, weight),) = run_workers(1, body)
        assert {bias, weight} == {"Gradient.bias", "Gradient.weight"}

    def test_a_gradient_that_is_changed_under_way_is_refused(self):
        def body(session):
            layer = torch.nn.Linear(4, 4)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
            layer(torch.ones(1, 4)).sum().backward()
            layer.weight.grad.mul_(2)
            with pytest.raises(BytePSError, match="was changed or replaced after its push"):
                optimizer.step()

        run_workers(1, body)

    def test_the_buffers_go_with_the_optimizer(self, cuda):
        def body(session):
            layer = torch.nn.Linear(4, 4)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
            layer(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            pinned = len(cuda.pinned)
            del optimizer, layer
            gc.collect()
            return pinned, len(cuda.pinned)

        assert run_workers(1, body) == [(2, 0)]
