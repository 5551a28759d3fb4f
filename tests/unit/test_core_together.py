"""Pipelines, deliveries and aggregations together, over a network in memory that delays, reorders, loses and repeats.

Whatever the network does, every contribution counts exactly once, every result is right, and nothing waits for ever.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_py.types import Operation, group_of, make_key, make_tensor_id, split_key
from tests.helpers.core_job import ITEMSIZE, Call, Job, Network, Stuck, check_results, digits, expected, make_tensor

LAYERS = 50
PERFECT = Network()
BAD = Network(delay=0.01, jitter=0.5, loss=0.2, duplication=0.2)
SEEDS = range(15)


def shuffled(calls: Sequence[Call], chance: random.Random) -> list[Call]:
    """Another order of the calls, but the same one on each tensor."""
    tensors = [call.tensor_id for call in calls]
    chance.shuffle(tensors)
    per_tensor = {tensor: iter([call for call in calls if call.tensor_id == tensor]) for tensor in set(tensors)}
    return [next(per_tensor[tensor]) for tensor in tensors]


def random_job(
    seed: int, network: Network, num_workers: int, num_servers: int, window_bytes: int, num_groups: int = 0
) -> Job:
    """A few tensors of several partitions, a few steps, all operations, some contributions absent.

    There may be groups of workers, which overlap, with tensors of their own.
    """
    chance = random.Random(seed)
    groups = {
        group: sorted(chance.sample(range(num_workers), chance.randint(1, num_workers)))
        for group in range(1, num_groups + 1)
    }
    tensors = {
        tensor: make_tensor(tensor, [chance.randrange(6) for _ in range(chance.randrange(1, 5))], num_servers)
        for tensor in [*range(4), *(make_tensor_id(group, number) for group in groups for number in range(2))]
    }
    members = {tensor: groups.get(group_of(make_key(tensor, 0)), range(num_workers)) for tensor in tensors}
    calls = [
        Call(
            tensor,
            chance.choice([each for each in Operation if not each.is_asynchronous]),
            step,
            chance.choice(members[tensor]),
            -tensor,
        )
        for step in range(4)
        for tensor in tensors
    ]
    scripts = [
        [
            replace(call, absent=chance.random() < 0.2)
            for call in shuffled(calls, chance)
            if rank in members[call.tensor_id]
        ]
        for rank in range(num_workers)
    ]
    return Job(
        scripts,
        tensors,
        num_servers,
        window_bytes,
        nodes=[chance.randrange(2) for _ in range(num_workers)],
        groups=groups,
        network=network,
        seed=seed,
        spread=chance.choice((0.0, 1.0)),
    )


class TestExactlyOnce:
    @settings(deadline=None, max_examples=60)
    @given(
        seed=st.integers(0, 2**32),
        num_workers=st.integers(1, 5),
        num_servers=st.integers(1, 3),
        window=st.sampled_from([0, ITEMSIZE, 10 * ITEMSIZE, 1 << 20]),
        num_groups=st.integers(0, 3),
        network=st.builds(
            Network,
            delay=st.sampled_from([0.0, 0.01, 3.0]),
            jitter=st.sampled_from([0.0, 0.1, 5.0]),
            loss=st.sampled_from([0.0, 0.1, 0.4]),
            duplication=st.sampled_from([0.0, 0.1, 0.5]),
        ),
    )
    def test_any_network(
        self, seed: int, num_workers: int, num_servers: int, window: int, num_groups: int, network: Network
    ) -> None:
        job = random_job(seed, network, num_workers, num_servers, window, num_groups)
        job.run()
        check_results(job)
        assert all(server.aggregation.waiting() == [] for server in job.servers)

    def test_the_network_of_these_tests_does_err(self) -> None:
        """What is lost is asked for, and what comes twice comes to the core."""
        job = random_job(1, BAD, 3, 2, 1 << 20)
        job.run()
        check_results(job)
        assert job.lost > 50
        assert job.repeated > 50
        assert job.questions > 20

    def test_a_contribution_that_counts_twice_would_be_seen(self) -> None:
        job = random_job(1, PERFECT, 3, 1, 1 << 20)
        job.run()
        worker = job.workers[0]
        index = next(
            index
            for index, call in enumerate(job.scripts[0])
            if call.operation is Operation.SUM
            and not call.absent
            and worker.outcomes[index].result is not None
            and len(worker.outcomes[index].result) > 0  # type: ignore[arg-type]
        )
        result = worker.outcomes[index].result
        assert result is not None
        tensor = job.tensors[job.scripts[0][index].tensor_id]
        part = next(each for each in tensor if each.count)
        result[part.offset : part.offset + part.count] += digits(0, job.scripts[0][index], part)
        with pytest.raises(AssertionError):
            check_results(job)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_many_rounds_of_one_tensor(self, seed: int) -> None:
        tensors = {0: make_tensor(0, [3, 3, 1], 2)}
        script = [Call(0, step=step) for step in range(60)]
        job = Job([script] * 3, tensors, 2, 4 * ITEMSIZE, network=BAD, seed=seed)
        job.run()
        check_results(job)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_same_seed_same_job(self, seed: int) -> None:
        """The machines themselves have no source of chance."""
        ends = []
        for _ in range(2):
            job = random_job(seed, BAD, 3, 2, 5 * ITEMSIZE)
            job.run()
            ends.append((job.clock.now, job.lost, job.questions))
        assert ends[0] == ends[1]


class TestNoDeadlock:
    """The two orders of design section 5 that lead small windows into trouble."""

    def opposite(self, num_servers: int, accept_late: bool = False) -> Job:
        """Two workers push all layers in opposite order, with a window of one partition."""
        tensors = {layer: make_tensor(layer, [4], num_servers) for layer in range(LAYERS)}
        forward = [Call(layer) for layer in range(LAYERS)]
        return Job(
            [forward, forward[::-1]], tensors, num_servers, 4 * ITEMSIZE, network=PERFECT, accept_late=accept_late
        )

    @pytest.mark.parametrize("num_servers", [1, 2, 7])
    def test_opposite_orders_and_a_window_of_one_partition(self, num_servers: int) -> None:
        job = self.opposite(num_servers)
        job.run()
        check_results(job)
        assert job.questions == 0
        # One partition at a time, each accepted after one round trip, and the last result.
        assert job.last_end <= 2 * PERFECT.delay * (LAYERS + 1)

    @pytest.mark.parametrize("num_servers", [1, 2])
    def test_they_would_deadlock_if_the_window_opened_with_the_result(self, num_servers: int) -> None:
        with pytest.raises(Stuck, match="nothing ended"):
            self.opposite(num_servers, accept_late=True).run()

    @pytest.mark.parametrize("seed", SEEDS)
    def test_opposite_orders_on_a_bad_network(self, seed: int) -> None:
        job = self.opposite(2)
        job.network = BAD
        job.chance.seed(seed)
        job.run()
        check_results(job)

    @pytest.mark.parametrize("priorities", ["by layer", "equal"])
    @pytest.mark.parametrize("window_partitions", [1, 4])
    def test_all_workers_in_one_order_and_a_small_window(self, window_partitions: int, priorities: str) -> None:
        num_workers = num_servers = 4
        tensors = {layer: make_tensor(layer, [4] * 8, num_servers) for layer in range(LAYERS)}
        script = [Call(layer, priority=-layer if priorities == "by layer" else 0) for layer in range(LAYERS)]
        window = window_partitions * 4 * ITEMSIZE
        job = Job([script] * num_workers, tensors, num_servers, window, network=PERFECT)
        job.run()
        check_results(job)
        assert job.questions == 0
        # No server is idle while it has something to do: all partitions, in as few round trips as the window allows.
        per_server = LAYERS * 8 // num_servers
        assert job.last_end <= 2 * PERFECT.delay * (per_server / window_partitions + 1) + 1e-9

    def test_workers_begin_at_different_servers(self) -> None:
        tensors = {0: make_tensor(0, [4] * 8, 4)}
        job = Job([[Call(0)]] * 4, tensors, 4, 1 << 20, network=PERFECT)
        job.run()
        assert [worker.first_pushes[0].server for worker in job.workers] == [0, 1, 2, 3]
        for worker in job.workers:
            assert {start.server for start in worker.first_pushes[:4]} == {0, 1, 2, 3}

    @pytest.mark.parametrize("seed", SEEDS)
    def test_every_worker_in_an_order_of_its_own(self, seed: int) -> None:
        chance = random.Random(seed)
        tensors = {layer: make_tensor(layer, [4, 4], 3) for layer in range(LAYERS)}
        calls = [Call(layer, step=step) for step in range(2) for layer in range(LAYERS)]
        scripts = [[replace(call, priority=chance.randrange(5)) for call in shuffled(calls, chance)] for _ in range(4)]
        job = Job(scripts, tensors, 3, 4 * ITEMSIZE, network=replace(PERFECT, jitter=0.01), seed=seed)
        job.run()
        check_results(job)

    def test_a_slow_worker_is_not_flooded_with_questions(self) -> None:
        """One worker comes 500 s late; what waits for it asks with long pauses."""
        tensors = {0: make_tensor(0, [4], 1)}
        job = Job([[Call(0)], [Call(0)]], tensors, network=PERFECT)
        job.delays = {1: 500.0}
        job.run()
        check_results(job)
        assert 5 < job.questions <= 25


@pytest.mark.parametrize("network", [PERFECT, BAD], ids=["perfect", "bad"])
@pytest.mark.parametrize("seed", SEEDS)
class TestRejection:
    def test_a_disagreement_ends_the_tensor_for_everybody_with_one_reason(self, seed: int, network: Network) -> None:
        """Worker 1 skips a step of tensor 2; tensors 0, 1 and 3 do not notice."""
        chance = random.Random(seed)
        tensors = {tensor: make_tensor(tensor, [4, 4, 4], 2) for tensor in range(4)}
        calls = [Call(tensor, step=step) for step in range(4) for tensor in tensors]
        scripts = [shuffled(calls, chance) for _ in range(3)]
        scripts[1] = [replace(c, step=c.step + (c.tensor_id == 2 and c.step >= 1)) for c in scripts[1]]
        job = Job(scripts, tensors, 2, 4 * ITEMSIZE, network=network, seed=seed, spread=0.2)
        job.run()
        for worker, script in zip(job.workers, scripts, strict=True):
            first = True
            for index, call in enumerate(script):
                rejection = worker.outcomes[index].rejection
                nth = [each.tensor_id for each in script[:index]].count(call.tensor_id)
                if call.tensor_id != 2 or nth == 0:
                    assert rejection is None
                    result = worker.outcomes[index].result
                    assert result is not None
                    assert result.tolist() == expected_list(job, worker.rank, index)
                    continue
                assert rejection is not None
                assert rejection.departed is None
                assert split_key(rejection.key)[0] == 2
                if first:
                    assert "worker 1 pushes SUM of 4 int64 elements at step 2" in rejection.reason
                    assert "at step 1" in rejection.reason
                    first = False

    def test_who_leaves_early_is_named_to_the_others(self, seed: int, network: Network) -> None:
        """Worker 2 makes one step fewer and leaves."""
        chance = random.Random(seed)
        tensors = {tensor: make_tensor(tensor, [4, 4], 2) for tensor in range(3)}
        calls = [Call(tensor, step=step) for step in range(3) for tensor in tensors]
        scripts = [shuffled(calls, chance) for _ in range(3)]
        scripts[2] = [call for call in scripts[2] if call.step < 2]
        job = Job(scripts, tensors, 2, 4 * ITEMSIZE, network=network, seed=seed, leaves=[2])
        job.run()
        for worker, script in zip(job.workers, scripts, strict=True):
            for index, call in enumerate(script):
                outcome = worker.outcomes[index]
                if call.step < 2:
                    assert outcome.result is not None
                    assert outcome.result.tolist() == expected_list(job, worker.rank, index)
                else:
                    assert outcome.rejection is not None
                    assert outcome.rejection.departed == 2
                    assert "worker 2 left the job before it contributed to round 3" in outcome.rejection.reason


def expected_list(job: Job, rank: int, index: int) -> list[int]:
    values = expected(job, rank, index)
    assert values is not None
    return [int(value) for value in values]
