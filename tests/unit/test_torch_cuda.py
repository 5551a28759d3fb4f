"""Gradients on a real GPU. What needs none is in ``test_torch_staging.py``."""

from __future__ import annotations

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import UnsupportedError  # noqa: E402
from byteps_py.torch.staging import Staging  # noqa: E402
from byteps_py.types import DType, TensorSpec  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU that torch can use")

LONG = 200_000_000
"""Cycles of a GPU: about a tenth of a second, longer than the host needs for what follows."""


def train(session, device, compression=bps.Compression.none):
    generator = torch.Generator().manual_seed(3)
    shapes = {"weight": (8, 3, 3, 3), "bias": (8,), "large": (300, 700), "idle": (3,)}
    named = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator).to(device)) for name, shape in shapes.items()
    }
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(named.values(), lr=0.5), named.items(), compression)
    for step in range(3):
        optimizer.zero_grad()
        scale = float(session.rank + step + 1)
        # Multiplication by powers of two and by small whole numbers is exact everywhere.
        loss = sum((named[name] * scale).sum() for name in ("weight", "bias", "large"))
        (loss + named["idle"].sum() if session.rank == 0 and step else loss).backward()
        optimizer.step()
    return [each.detach().cpu() for each in named.values()]


@pytest.mark.parametrize("compression", [bps.Compression.none, bps.Compression.fp16], ids=["plain", "fp16"])
def test_the_bits_are_those_of_the_cpu(compression) -> None:
    on_gpu = run_workers(2, lambda session: train(session, "cuda", compression))
    on_cpu = run_workers(2, lambda session: train(session, "cpu", compression))
    for ours, theirs in zip(on_gpu, on_cpu, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


class TestStaging:
    """On the device itself"""

    @pytest.fixture
    def staging(self):
        made = Staging()
        yield made
        made.close()

    @staticmethod
    def buffer(staging, session, shape=(1000, 1000), dtype=torch.float32, tag=DType.FLOAT32):
        return staging.buffer(session, TensorSpec("g", tag, shape), dtype, torch.device("cuda"))

    def test_buffers_are_pinned_until_they_are_dropped(self, staging):
        def body(session):
            buffer = self.buffer(staging, session)
            tensor, pinned = buffer.tensor, buffer.tensor.is_pinned()
            staging.fetch(buffer, torch.zeros(1000, 1000, device="cuda"))
            del buffer
            gc.collect()
            return pinned, tensor.is_pinned()

        assert run_workers(1, body) == [(True, False)]

    @pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
    @pytest.mark.parametrize(
        ("dtype", "tag"),
        [(torch.float32, DType.FLOAT32), (torch.bfloat16, DType.BFLOAT16)],
        ids=["float32", "bfloat16"],
    )
    def test_copies_come_after_what_was_queued_and_before_what_is_queued_later(self, staging, strided, dtype, tag):
        def body(session):
            gradient = torch.zeros(1000, 1000, device="cuda")
            gradient = gradient.T if strided else gradient
            buffer = self.buffer(staging, session, dtype=dtype, tag=tag)
            begun = []

            def begin():
                begun.append(buffer.tensor.clone())
                buffer.tensor.add_(1)
                return type("Done", (), {"wait": lambda self: None, "absent": False})()

            torch.cuda._sleep(LONG)
            gradient.copy_(torch.arange(1000.0, device="cuda") % 7)
            submission = staging.start(gradient, buffer, begin)
            early = list(begun)
            submission.wait()
            torch.cuda._sleep(LONG)
            before = gradient.clone()
            staging.fetch(buffer, gradient)
            after = gradient.clone()
            expected = (torch.arange(1000.0) % 7).expand(1000, 1000)
            assert early == []
            assert torch.equal(begun[0].float(), expected)
            assert torch.equal(before.cpu(), expected)
            assert torch.equal(after.cpu(), expected + 1)

        run_workers(1, body)

    def test_memory_of_a_gradient_that_was_dropped_is_not_reused_too_early(self, staging):
        def body(session):
            buffer = self.buffer(staging, session)
            seen = []

            def begin():
                seen.append(buffer.tensor.clone())
                return type("Done", (), {"wait": lambda self: None, "absent": False})()

            gradient = torch.ones(1000, 1000, device="cuda")
            torch.cuda._sleep(LONG)
            submission = staging.start(gradient, buffer, begin)
            del gradient
            for _ in range(20):
                torch.zeros(1000, 1000, device="cuda")
            submission.wait()
            assert bool((seen[0] == 1).all())

        run_workers(1, body)

    def test_a_failed_registration_does_not_meet_the_next_kernel(self, staging, monkeypatch):
        def body(session):
            first = self.buffer(staging, session)
            # The same pages once more: CUDA refuses that.
            status = staging._pin(first.tensor.numpy().reshape(-1).view("u1")[:4096], torch.device("cuda"))
            return status, float((torch.ones(4, device="cuda") * 2).sum())

        assert run_workers(1, body) == [(False, 8.0)]

    def test_the_capture_of_a_graph_is_refused(self, staging):
        def body(session):
            buffer, gradient = self.buffer(staging, session), torch.zeros(1000, 1000, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                gradient.add_(1)  # torch warns of an empty graph
                with pytest.raises(UnsupportedError, match="CUDA graph"):
                    staging.start(gradient, buffer, lambda: None)

        run_workers(1, body)


def test_optimizer_state_and_options_stay_on_the_gpu() -> None:
    def body(session):
        weight = torch.zeros(3000, device="cuda", requires_grad=True)
        rate = torch.tensor(0.5 if session.rank else 0.25, device="cuda")
        optimizer = torch.optim.Adam([weight], lr=rate, capturable=True)
        if session.rank:
            weight.sum().backward()
            optimizer.step()
        bps.broadcast_parameters({"weight": weight.detach()}, root_rank=1)
        bps.broadcast_optimizer_state(optimizer, root_rank=1)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        state = optimizer.state[weight]
        kinds = {each.device.type for each in [*state.values(), optimizer.param_groups[0]["lr"]]}
        return kinds, weight.tolist(), state["step"].item(), float(optimizer.param_groups[0]["lr"])

    first, second = run_workers(2, body)
    assert first == second
    assert first[0] == {"cuda"}
    assert first[2:] == (2.0, 0.5)


def test_batch_normalisation_of_gpus_is_that_of_the_joined_batch() -> None:
    whole = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(2)).cuda()
    layers = [bps.SyncBatchNorm(4, device="cuda")]
    layers.append(copy.deepcopy(layers[0]))

    def body(session):
        part = whole[session.rank * 3 :][:3].clone().requires_grad_()
        result = layers[session.rank](part)
        (result * whole[:3]).sum().backward()
        return result.detach(), part.grad

    plain = torch.nn.BatchNorm1d(4).cuda()
    leaf = whole.clone().requires_grad_()
    expected = plain(leaf)
    (expected * whole[:3].repeat(2, 1, 1)).sum().backward()
    results = run_workers(2, body)
    torch.testing.assert_close(torch.cat([each for each, _ in results]), expected.detach())
    torch.testing.assert_close(torch.cat([each for _, each in results]), leaf.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layers[0].running_var, plain.running_var)


def test_a_scaler_skips_the_same_step_everywhere() -> None:
    def body(session):
        weight = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([weight], lr=0.5))
        scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
        for step in range(3):
            optimizer.zero_grad()
            factor = float("inf") if (step, session.rank) == (1, 1) else 1.0
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return weight.tolist(), scaler.get_scale()

    assert run_workers(2, body) == [([0.0] * 4, 32.0)] * 2
