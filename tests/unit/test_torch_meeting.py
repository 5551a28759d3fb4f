"""How the members of process groups meet, and which names their tensors have: several workers in this process."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from byteps_py.errors import AgreementError, JobAborted, TransportError, TransportTimeout, UnsupportedError  # noqa: E402
from byteps_py.torch import circle, meeting, process_group  # noqa: E402
from byteps_py.torch.circle import _pieces  # noqa: E402
from tests.helpers.fake_session import run_workers  # noqa: E402


class Options:
    """What torch gives to a backend's creator; without ranks it is for the default group."""

    def __init__(self, store, rank, size, ranks=(), name=None, seconds=60.0) -> None:
        self.global_ranks_in_group, self.timeout = list(ranks), timedelta(seconds=seconds)
        self.group_rank, self.group_size = rank, size
        self.group_id = f"g{len(ranks)}" if name is None else name
        self.store = dist.PrefixStore(self.group_id, store) if isinstance(store, dist.Store) else store


def from_root(group, value, root):
    opts = dist.BroadcastOptions()
    opts.rootRank = root
    tensor = torch.full((2,), value)
    group.broadcast([tensor], opts).wait()
    return tensor.tolist()


@pytest.fixture(autouse=True)
def _joined(monkeypatch):
    monkeypatch.setattr(process_group._session, "init", lambda: None)
    for name in ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_PORT"):
        monkeypatch.setenv(name, "9")
    monkeypatch.setenv("DMLC_PS_ROOT_URI", "127.0.0.1")


def test_ranks_are_exchanged_when_a_group_is_made() -> None:
    whole, part = dist.HashStore(), dist.HashStore()
    order = [2, 0, 1]

    def body(session):
        rank = order.index(session.rank)
        group = process_group.create(Options(whole, rank, 3))
        assert from_root(group, rank, 0) == [0, 0]
        if rank > 0:
            small = process_group.create(Options(part, rank - 1, 2, [1, 2]))
            assert from_root(small, rank, 1) == [2, 2]
        with pytest.raises(AgreementError, match="has 4 processes, but this job of byteps_py has 3 workers"):
            process_group.create(Options(whole, rank, 4))
        return group.rank(), group.size(), group.name()

    assert run_workers(3, body) == [(1, 3, "byteps"), (2, 3, "byteps"), (0, 3, "byteps")]


def test_a_new_default_group_may_have_other_groups_of_the_same_names() -> None:
    store = dist.HashStore()  # one for all, as under torchrun

    def body(session):
        results = []
        for members in ([0, 1], [1, 2], [0, 2]):
            world = process_group.create(Options(store, session.rank, 3, name="0", seconds=10))
            if session.rank in members:
                rank = members.index(session.rank)
                group = process_group.create(Options(store, rank, 2, members, name="1", seconds=10))
                results.append(from_root(group, session.rank, 1))
                group.shutdown()
            world.shutdown()
        return results

    assert run_workers(3, body) == [[[1, 1], [2, 2]], [[1, 1], [2, 2]], [[2, 2], [2, 2]]]


def test_a_creation_that_failed_on_one_side_does_not_keep_others_from_meeting() -> None:
    stores = [dist.HashStore(), dist.HashStore()]

    def body(session):
        world = process_group.create(Options(stores[0], session.rank, 2, name="0"))
        if session.rank == 0:
            with pytest.raises(TransportTimeout, match=r"rank 1 of a process group of 2 has not come within 0\.05"):
                process_group.create(Options(stores[0], 0, 2, [0, 1], name="1", seconds=0.05))
        world.shutdown()
        process_group.create(Options(stores[1], session.rank, 2, name="0", seconds=10))
        group = process_group.create(Options(stores[1], session.rank, 2, [0, 1], name="1", seconds=10))
        return from_root(group, session.rank, 1)

    assert run_workers(2, body) == [[1, 1], [1, 1]]


def test_members_of_other_jobs_are_named() -> None:
    store = dist.HashStore()
    store.set("g2/worker/0.1.0.1/1", "0 1")  # the very worker that rank 0 is
    with pytest.raises(AgreementError, match="rank 1 is worker 0 of 1, rank 0 is worker 0 of 1"):
        run_workers(1, lambda session: process_group.create(Options(store, 0, 2, [0, 1])))


def test_the_death_of_a_worker_ends_the_wait_for_it() -> None:
    store, ended = dist.HashStore(), []

    def body(session):
        if session.rank == 1:
            raise KeyError("worker dies")
        with pytest.raises(JobAborted, match="worker dies"):
            process_group.create(Options(store, 0, 2))
        ended.append(session)

    with pytest.raises(KeyError):
        run_workers(2, body)
    assert ended


class GoneStore:
    """As torch's, when the process that has it has died."""

    def set(self, key, value):
        raise RuntimeError("Connection reset by peer")


def test_a_store_that_is_gone_is_told_after_what_ended_the_job(monkeypatch) -> None:
    monkeypatch.setattr(meeting, "_WORD_SECONDS", 0.2)
    with pytest.raises(TransportError, match=r"store of torch.distributed.*Connection reset"):
        run_workers(1, lambda session: process_group.create(Options(GoneStore(), 0, 1)))
    monkeypatch.setattr(meeting, "_WORD_SECONDS", 60.0)

    def body(session):
        if session.rank == 0:
            time.sleep(0.1)
            raise KeyError("worker dies")
        with pytest.raises(JobAborted, match="worker dies"):
            process_group.create(Options(GoneStore(), 1, 2))

    with pytest.raises(KeyError):
        run_workers(2, body)


def names_after(session, first, work):
    """How many names ``work`` has added to those that were there when ``first`` came to its end."""
    first()
    before = {spec.name for spec in session.specs}
    work()
    return len({spec.name for spec in session.specs}), len({spec.name for spec in session.specs} - before)


def test_tensors_of_many_sizes_have_a_few_names(monkeypatch) -> None:
    monkeypatch.setattr(circle, "_MOST_PIECE", 1 << 20)
    store = dist.HashStore()

    def body(session):
        group = process_group.create(Options(store, session.rank, 2))
        for count in [0, 1, 1000, 40_000, 40_003, 3_000_001, *range(2, 150, 2), *range(5000, 60_000, 5003)]:
            generator = torch.Generator().manual_seed(count)
            parts = [torch.randint(256, (count,), dtype=torch.uint8, generator=generator) for _ in range(2)]
            outputs = [torch.zeros(count, dtype=torch.uint8) for _ in range(2)]
            group.allgather([outputs], [parts[session.rank]]).wait()
            assert all(torch.equal(*pair) for pair in zip(outputs, parts, strict=True))
            summed = parts[session.rank].int()
            group.allreduce([summed]).wait()
            assert torch.equal(summed, parts[0].int() + parts[1].int())
        broadcast = {spec.name for spec in session.specs if "BROADCAST" in spec.name}
        others = {spec.name for spec in session.specs} - broadcast
        assert all(spec.count.bit_count() == 1 for spec in session.specs if spec.name in broadcast)
        return len(broadcast), len(others)

    for broadcast, others in run_workers(2, body):
        assert broadcast <= 2 * 4 * 20
        assert others <= 64 * 4 + 4 * 20 + 4


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_pieces_cover_everything_once_and_go_little_beyond(itemsize) -> None:
    for count in [1, 7, 4097, 5000, 65_535, 1_000_003, (16 << 20) // itemsize, (50 << 20) // itemsize + 1]:
        end = 0
        for first, size in _pieces(count, itemsize):
            assert first == end
            assert size.bit_count() == 1
            assert size * itemsize <= 16 << 20
            end = first + size
        assert count <= end <= max(count + count // 8, 2 * count if count * itemsize <= 8192 else 0, 64 // itemsize)
    assert list(_pieces(0, itemsize)) == []


def test_groups_that_come_and_go_use_the_same_names() -> None:
    store = dist.HashStore()

    def body(session):
        world = process_group.create(Options(store, session.rank, 2, name="0"))

        def epoch(number):
            group = process_group.create(Options(store, session.rank, 2, [0, 1], name=str(number)))
            group.allreduce([torch.zeros(3)]).wait()
            other = 1 - session.rank
            tensor = torch.full((3,), number)
            (group.recv if session.rank else group.send)([tensor], other, 5).wait()
            group.shutdown()

        epoch(1)
        before = {spec.name for spec in session.specs}
        for number in range(2, 8):
            epoch(number)
        assert {spec.name for spec in session.specs} == before
        # What is still under way on one member keeps the name of all.
        group = process_group.create(Options(store, session.rank, 2, [0, 1], name="8"))
        late = None if session.rank else group.barrier()
        group.shutdown()
        after = process_group.create(Options(store, session.rank, 2, [0, 1], name="9"))
        after.barrier().wait()
        assert late is None or not late.is_completed()
        world.barrier().wait()

    run_workers(2, body)


def test_messages_may_have_many_tags_but_not_any_number(monkeypatch) -> None:
    monkeypatch.setattr(process_group, "_MOST_TAGS", 3)
    store = dist.HashStore()

    def body(session):
        group = process_group.create(Options(store, session.rank, 2))
        for tag in range(3):
            tensor = torch.full((2,), float(tag))
            (group.recv if session.rank else group.send)([tensor], 1 - session.rank, tag).wait()
        with pytest.raises(UnsupportedError, match="tag 3 would be one more"):
            (group.recv if session.rank else group.send)([tensor], 1 - session.rank, 3)

    run_workers(2, body)


def test_a_call_that_fails_half_way_ends_the_group(monkeypatch) -> None:
    store = dist.HashStore()

    def body(session):
        group = process_group.create(Options(store, session.rank, 2))
        if session.rank == 1:
            with monkeypatch.context() as patch:
                patch.setattr(type(group._circle), "next_spec", broken)
                with pytest.raises(MemoryError):
                    group.allreduce([torch.zeros(3)])
            with pytest.raises(AgreementError, match=r"failed half-way on rank 1 .*no more.*cannot be used any more"):
                group.barrier()

    def broken(self, *arguments):
        raise MemoryError("no more")

    run_workers(2, body)


def test_calls_of_one_look_but_another_number_are_told_apart(monkeypatch) -> None:
    monkeypatch.setattr(circle, "_WORDS_SECONDS", 0.2)
    store = dist.HashStore()

    def body(session):
        group = process_group.create(Options(store, session.rank, 2))
        group.barrier().wait()
        if session.rank == 1:
            group._circle._calls += 4  # as one that has lost count
        with pytest.raises(AgreementError, match="different calls"):
            group.barrier().wait()

    run_workers(2, body)


def test_more_time_than_the_session_has_is_told(monkeypatch, caplog) -> None:
    monkeypatch.setenv("BYTEPS_STALL_TIMEOUT", "50")
    monkeypatch.setattr(process_group, "_warned", set())
    for seconds, times in ((50, 0), (60, 1), (60, 0), (70, 1)):  # once for each process
        caplog.clear()
        store = dist.HashStore()
        run_workers(2, lambda s, t=seconds, m=store: process_group.create(Options(m, s.rank, 2, seconds=t)))
        assert caplog.text.count("BYTEPS_STALL_TIMEOUT=50 s ends the job: set that variable to more than") == times


def test_nobody_goes_before_all_have_met() -> None:
    """Worker 0 has the store, and may end as soon as it has the group."""
    store, steps = dist.HashStore(), []

    class Slow:
        """Reads what worker 0 has written only when worker 0 would be through."""

        def set(self, key, value):
            store.set(key, value)

        def check(self, keys):
            if keys == ["worker/1.1/1"]:
                time.sleep(0.3)
            return store.check(keys)

        def get(self, key):
            return store.get(key)

    def body(session):
        options = Options(dist.HashStore(), session.rank, 2)
        options.store = store if session.rank == 0 else Slow()
        group = process_group.create(options)
        steps.append(session.rank)
        return group.size()

    original = meeting._ask

    def ask(session, question):
        found = original(session, question)
        if session.rank == 1:
            steps.append("asked")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meeting, "_ask", ask)
        assert run_workers(2, body) == [2, 2]
    assert steps.index(0) > max(index for index, each in enumerate(steps) if each == "asked")


def test_groups_of_one_name_and_other_members_where_the_default_group_is_another_backends() -> None:
    stores = [dist.HashStore(), dist.HashStore()]

    def body(session):
        results = []
        for store, members in zip(stores, ([0, 1], [1, 2]), strict=True):
            if session.rank in members:
                rank = members.index(session.rank)
                group = process_group.create(Options(store, rank, 2, members, name="1", seconds=10))
                results.append(from_root(group, session.rank, 1))
                group.shutdown()
        return results

    assert run_workers(3, body) == [[[1, 1]], [[1, 1], [2, 2]], [[2, 2]]]
