"""``DistributedOptimizer``: what may happen around its steps. Others take its parameters, parameters come and go, steps
are left out, a Ctrl-C ends a wait."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import byteps_py.torch as bps  # noqa: E402
from byteps_py.errors import BytePSError  # noqa: E402
from byteps_py.torch import gradients  # noqa: E402
from byteps_py.torch.parallel import DistributedDataParallel  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True, params=[0, 1 << 22], ids=["at-once", "gathered"])
def gathered_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with gradients that hooks push, and with such as wait for ``synchronize()``."""
    monkeypatch.setattr(gradients, "GATHERED_BYTES", request.param)


def zeros(count):
    return [torch.zeros(1, requires_grad=True) for _ in range(count)]


def wrapped(*parameters, **options):
    return bps.DistributedOptimizer(torch.optim.SGD([{"params": [each]} for each in parameters], lr=1.0), **options)


class TestSeveralOptimizersOfOneParameter:
    """Of several the last one averages."""

    def test_the_latest_takes_over_and_the_others_say_so(self):
        def body(session):
            (weight,) = zeros(1)
            first, second = wrapped(weight), wrapped(weight)
            for _ in range(2):
                second.zero_grad()
                (weight * 4 * session.rank).sum().backward()
                second.step()
            for call in (first.step, first.synchronize):
                with pytest.raises(BytePSError, match=r"DistributedOptimizer that was made later averages noname\.0"):
                    call()
            return weight.item(), {each.name for each in session.submitted}

        assert run_workers(2, body) == [(-4.0, {"Gradient2.noname.0"})] * 2

    def test_after_synchronize_the_older_one_makes_no_step_either(self):
        def body(session):
            (weight,) = zeros(1)
            first = wrapped(weight)
            weight.sum().backward()
            first.synchronize()
            wrapped(weight)
            with pytest.raises(BytePSError, match="made later"):
                first.step()
            return weight.item()

        assert run_workers(1, body) == [0.0]

    def test_one_that_is_garbage_blocks_nobody(self):
        def body(session):
            (weight,) = zeros(1)
            first = wrapped(weight)
            first.itself = first
            weight.sum().backward()  # its gradient is on its way
            gc.disable()
            try:
                del first
                second = wrapped(weight)
            finally:
                gc.enable()
            second.zero_grad()
            (weight * 2).sum().backward()
            second.step()
            return weight.item()

        assert run_workers(1, body) == [-2.0]

    def test_gradients_that_are_on_their_way_arrive_first(self):
        def body(session):
            (weight,) = zeros(1)
            first = wrapped(weight)
            (weight * 2 * session.rank).sum().backward()
            with pytest.raises(BytePSError, match=r"same parameters was made while the gradients of noname\.0 are on"):
                wrapped(weight)
            first.step()
            return weight.item()

        assert run_workers(2, body) == [-1.0] * 2

    def test_parameters_may_move_from_one_to_another(self):
        def body(session):
            kept, moved = zeros(2)
            first = wrapped(kept, moved)
            second = None
            for _ in range(3):
                ((kept + moved) * 2 * session.rank).sum().backward()
                first.step()
                if second is None:
                    second = bps.DistributedOptimizer(torch.optim.SGD([first.param_groups.pop()], lr=1.0))
                else:
                    second.step()
                first.zero_grad()
                second.zero_grad()
            last = {each.name for each in session.submitted[-2:]}
            return kept.item(), moved.item(), last

        expected = (-3.0, -3.0, {"Gradient.noname.0", "Gradient2.noname.0"})
        assert run_workers(2, body) == [expected] * 2

    def test_parameters_that_are_thawed_by_two(self):
        def body(session):
            frozen, other, more = zeros(3)
            frozen.requires_grad_(False)
            first, second = wrapped(frozen, other), wrapped(frozen, more)
            frozen.requires_grad_()
            ((frozen + other + more) * 2 * session.rank).sum().backward()
            first.step()
            second.step()
            with pytest.raises(BytePSError, match=r"made later averages noname\.0"):
                first.step()
            return [each.item() for each in (frozen, other, more)]

        assert run_workers(2, body) == [[-2.0, -1.0, -1.0]] * 2

    def test_a_thawed_parameter_of_an_exclusive_owner(self):
        def body(session):
            layer = nn.Linear(1, 1)
            layer.bias.requires_grad_(False)
            model = DistributedDataParallel(layer)
            optimizer = wrapped(layer.bias)
            layer.bias.requires_grad_()
            model(torch.ones(1, 1)).sum().backward()
            with pytest.raises(ValueError, match="averaged by a DistributedDataParallel already"):
                optimizer.step()

        run_workers(2, body)


class TestStepsLeftOut:
    """A ``synchronize()`` whose step is left out counts for no later one."""

    @pytest.mark.parametrize("scaled", [False, True])
    def test_a_worker_without_gradient_in_the_next_step(self, scaled):
        def body(session):
            (weight,) = zeros(1)
            optimizer = wrapped(weight)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            (weight * float("inf")).sum().backward()
            optimizer.synchronize()
            weight.grad = None  # as model.zero_grad() does it
            loss = (weight * 2 * session.rank).sum()
            loss = scaler.scale(loss) if scaled else loss
            if session.rank:
                loss.backward()
            if scaled:
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
            else:
                optimizer.step()
            return weight.item(), len(session.submitted)

        assert run_workers(2, body) == [(-1.0, 2)] * 2

    def test_a_gradient_may_be_replaced_within_skip_synchronize(self):
        def body(session):
            (weight,) = zeros(1)
            optimizer = wrapped(weight)
            (weight * 8 * session.rank).sum().backward()
            optimizer.synchronize()
            weight.grad = weight.grad.clamp(max=1 + session.rank)  # whatever is there is taken
            with optimizer.skip_synchronize():
                optimizer.step()
            return weight.item(), len(session.submitted)

        assert run_workers(2, body) == [(-1.0, 1), (-2.0, 1)]


class TestInterruptedWaits:
    """As in a notebook, which goes on after a Ctrl-C."""

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_the_wait_can_be_taken_up_again(self, place):
        def body(session):
            weights = zeros(3)
            optimizer = wrapped(*weights)
            submit, interrupts = session.submit, []

            def interrupted(spec, *rest, **options):
                pending = submit(spec, *rest, **options)
                if session.rank == 0 and spec.name == f"Gradient.noname.{place}" and not interrupts:
                    wait = pending.wait

                    def once():
                        if interrupts:
                            return wait()
                        interrupts.append(spec.name)
                        raise KeyboardInterrupt

                    pending.wait = once
                return pending

            session.submit = interrupted
            for step in range(3):
                optimizer.zero_grad()
                sum((each * (index + 1) * 2 * session.rank).sum() for index, each in enumerate(weights)).backward()
                if session.rank == 0 and step == 0:
                    with pytest.raises(KeyboardInterrupt):
                        optimizer.step()
                    with pytest.raises(BytePSError, match=r"call step\(\) or synchronize\(\) first"):
                        optimizer.zero_grad()
                optimizer.step()
            return [each.item() for each in weights], len(session.submitted)

        assert run_workers(2, body) == [([-3.0, -6.0, -9.0], 9)] * 2

    def test_no_backward_pass_comes_in_between(self):
        def body(session):
            first, second = zeros(2)
            optimizer = wrapped(first, second)
            submit = session.submit

            def interrupted(spec, *rest, **options):
                pending = submit(spec, *rest, **options)
                wait = pending.wait

                def once():
                    pending.wait = wait
                    raise KeyboardInterrupt

                pending.wait = once if spec.name.endswith("1") else wait
                return pending

            session.submit = interrupted
            (first + second).sum().backward()
            with pytest.raises(KeyboardInterrupt):
                optimizer.synchronize()
            with pytest.raises(BytePSError, match=r"synchronize\(\) was interrupted: call it again"):
                first.sum().backward()

        run_workers(1, body)


class TestParametersThatComeAndGo:
    """Names stay names of one parameter, and what has left is exchanged no more."""

    def test_places_that_are_taken_count_on(self):
        def body(session):
            first, second, third, fourth = zeros(4)
            optimizer = wrapped(first, second)
            ((first + second) * 2 * session.rank).sum().backward()
            optimizer.step()
            del optimizer.param_groups[0]
            optimizer.add_param_group({"params": [third]})
            optimizer.add_param_group({"params": [fourth]}, [("noname.3", fourth)])
            optimizer.add_param_group({"params": [zeros(1)[0]]})
            for _ in range(2):
                optimizer.zero_grad()
                ((second + third + fourth) * 2 * session.rank).sum().backward()
                optimizer.step()
            last = [each.name for each in session.submitted[-4:]]
            return [each.item() for each in (first, second, third, fourth)], sorted(last)

        names = [f"Gradient.noname.{place}" for place in (1, 2, 3, 4)]
        assert run_workers(2, body) == [([-1.0, -3.0, -2.0, -2.0], names)] * 2

    def test_one_that_leaves_after_a_backward_pass_of_one_worker(self):
        def body(session):
            left, kept = zeros(2)
            optimizer = wrapped(left, kept)
            for step in range(4):
                optimizer.zero_grad()
                ((kept + left * session.rank) * 2).sum().backward(inputs=[kept, left] if session.rank else [kept])
                if step == 1:
                    del optimizer.param_groups[0]
                optimizer.step()
            return left.item(), kept.item(), [each.name for each in session.submitted].count("Gradient.noname.0")

        assert run_workers(2, body) == [(-1.0, -8.0, 2)] * 2

    def test_one_that_returns(self):
        def body(session):
            away, kept = zeros(2)
            optimizer = wrapped(away, kept)
            group = None
            for step in range(5):
                optimizer.zero_grad()
                away.grad = None
                ((away + kept) * 2 * session.rank).sum().backward()
                optimizer.step()
                if step == 0:
                    group = optimizer.param_groups.pop(0)
                if step == 2:
                    optimizer.param_groups.append(group)
            return away.item(), kept.item()

        assert run_workers(2, body) == [(-3.0, -5.0)] * 2


class TestPassesThroughTheParametersOfAnother:
    """A generator's backward pass goes through its discriminator."""

    @staticmethod
    def train(recipe):
        def body(session):
            generator, judge = zeros(2)
            with torch.no_grad():
                judge.fill_(1.0)
            own, other = wrapped(generator), wrapped(judge)
            factor = 2 * session.rank
            for _ in range(2):
                own.zero_grad()
                recipe(lambda: torch.sum(generator * judge * factor), generator, judge)
                own.step()
                other.zero_grad()
                (judge * 4 * session.rank).sum().backward()
                other.step()
            return generator.item(), judge.item()

        return run_workers(2, body)

    def test_both_recipes_train(self):
        def without(loss, generator, judge):
            judge.requires_grad_(False)
            loss().backward()
            judge.requires_grad_(True)

        def within(loss, generator, judge):
            loss().backward(inputs=[generator])

        expected = [(0.0, -3.0)] * 2  # judge: 1, -1, -3; generator: -1, then +1
        assert self.train(without) == expected
        assert self.train(within) == expected

    def test_the_error_names_them(self):
        hint = r"was for other parameters.* requires_grad_\(False\) on these during it, or backward\(inputs=\.\.\.\)"
        with pytest.raises(BytePSError, match=hint):
            self.train(lambda loss, *_: loss().backward())
