"""Groups of workers over all roles: their sums are those of the members, bit by bit, whatever others do meanwhile."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteps_py.errors import AgreementError, ParticipantLeft
from byteps_py.session import Session
from byteps_py.types import DType, Operation, TensorSpec
from byteps_py.wire.control import CONTROL_MAGIC, FormGroup, Group, GroupFormed, GroupKnown, decode_control
from tests.helpers.cluster import cluster
from tests.helpers.fake_session import FakeSession, reduce, run_workers
from tests.helpers.jobs import job

SUM, AVERAGE, BROADCAST = Operation.SUM, Operation.AVERAGE, Operation.BROADCAST
ROUNDS = """
import hashlib
import ml_dtypes
from byteps_py.session import current
from byteps_py.types import DType, Operation, TensorSpec
session, groups = current(), [(0, 2), (0, 1), (1, 2), (0, 1, 2)]
def values(dtype, rank, step, count):
    random = np.random.default_rng([dtype, rank, step])
    if dtype is DType.BFLOAT16:
        return random.standard_normal(count).astype(ml_dtypes.bfloat16).view(np.uint16)
    whole = random.standard_normal(count) if dtype.is_floating else random.integers(1, 40, count)
    return whole.astype(dtype.storage)
def begin(ranks, dtype, step, count):
    group, operation = session.form_group(ranks[::-1]), list(Operation)[step % 3]
    spec = TensorSpec(f'{ranks} {dtype.label} {count}', dtype, (count,), group)
    may_be_absent = session.rank != ranks[-1]
    is_absent = may_be_absent and (operation is Operation.BROADCAST or step in (3, 4) and session.rank == ranks[0])
    mine = None if is_absent else values(dtype, session.rank, step, count)
    return session.submit(spec, mine, None, operation, root=ranks[-1], step=step)
"""
RUN = (
    ROUNDS
    + """
digests = {ranks: hashlib.sha256() for ranks in groups if session.rank in ranks}
assert [session.form_group(ranks) for ranks in digests] == [session.form_group(ranks) for ranks in digests]
for step in range(7):
    pending = [(ranks, begin(ranks, dtype, step, count)) for count in (7, 3001) for dtype in DType for ranks in digests]
    for ranks, each in pending:
        digests[ranks].update(each.wait().tobytes())
for ranks, digest in digests.items():
    print('the bits of', ranks, 'are', digest.hexdigest())
"""
)
"""Every dtype, in one partition and in several, of three groups that overlap, and of all; some contribute nothing."""


def wanted() -> dict[str, str]:
    """What ``RUN`` is to print, by group."""

    class Alone:
        """A session to whom ``ROUNDS`` submits what one worker contributes."""

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def form_group(self, ranks: Sequence[int]) -> int:
            return 0

        def submit(self, spec: TensorSpec, mine: Any, output: None, *rest: Any, **more: Any) -> Any:
            return mine

    with pytest.MonkeyPatch.context() as patch:
        spaces: list[dict[str, Any]] = [{"np": np} for _ in range(3)]
        for rank, space in enumerate(spaces):
            patch.setattr("byteps_py.session.current", lambda rank=rank: Alone(rank))
            exec(ROUNDS, space)
    found = {}
    for ranks in spaces[0]["groups"]:
        digest = hashlib.sha256()
        for step in range(7):
            for count in (7, 3001):
                for dtype in DType:
                    sources = [spaces[rank]["begin"](ranks, dtype, step, count) for rank in ranks]
                    present = [each for each in sources if each is not None]
                    divisor = len(ranks) if list(Operation)[step % 3] is AVERAGE else 1
                    digest.update(reduce(dtype, present, divisor).tobytes())
        found[str(ranks)] = digest.hexdigest()
    return found


@pytest.mark.parametrize(
    ("transport", "kernels", "reduces"),
    [("shm", "native", "off"), ("tcp", "reference", "off"), ("shm", "native", "on")],
)
def test_the_bits_are_those_of_the_members(transport: str, kernels: str, reduces: str, tmp_path: Path) -> None:
    environ = {"BYTEPS_TRANSPORT": transport, "BYTEPS_KERNELS": kernels, "BYTEPS_LOCAL_REDUCE": reduces}
    nodes = 1 if reduces == "on" else 3
    with job(tmp_path, nodes, 2, BYTEPS_PARTITION_BYTES="4096", **environ) as made:
        made.scheduler()
        for index in range(2):
            made.server(index)
        for rank in range(3):
            place = {"DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": str(rank), "BYTEPS_LOCAL_SIZE": "3"}
            made.worker(rank, RUN, **(place if nodes == 1 else {}))
        assert set(made.wait(100).values()) == {0}, made.everything()
        expected = wanted()
        for rank in range(3):
            printed = dict(re.findall(r"the bits of (.*) are (\w+)", made.output(f"worker{rank}")))
            members = [ranks for ranks in expected if str(rank) in ranks]
            assert printed == {ranks: expected[ranks] for ranks in members}, made.everything()


def push(session: Any, name: str, group: int, count: int = 5, operation: Operation = SUM, **more: Any) -> Any:
    """The result where each worker contributes its rank + 1."""
    mine = np.full(count, session.rank + 1, np.float32)
    return session.submit(TensorSpec(name, DType.FLOAT32, (count,), group), mine, None, operation, **more).wait()


def test_sums_are_grouped_by_node() -> None:
    """Of four workers on nodes of one and three: the order of the additions shows in the last bits."""
    sources = [np.random.default_rng(rank).standard_normal(1000).astype(np.float32) for rank in range(4)]
    first, second, third, fourth = sources
    sums = {(0, 2, 3): first + (third + fourth), (0, 1, 2, 3): first + (second + third + fourth)}
    assert (sums[0, 2, 3] != (first + third) + fourth).any()

    def run(session: Session) -> None:
        for ranks, total in sums.items():
            if session.rank in ranks:
                spec = TensorSpec(str(ranks), DType.FLOAT32, (1000,), session.form_group(ranks))
                got = session.submit(spec, sources[session.rank], None, SUM).wait()
                assert got.tobytes() == total.tobytes()

    with cluster(4, 2, sizes=(1, 3), partition_bytes=512) as made:
        made.each(run)


def test_who_has_left_concerns_its_own_groups() -> None:
    def run(session: Session) -> list[str]:
        groups = {ranks: session.form_group(ranks) for ranks in ((0, 1), (1, 2), (0, 2)) if session.rank in ranks}
        for ranks, group in groups.items():
            assert push(session, str(ranks), group).tolist() == [sum(ranks) + 2.0] * 5
        if session.rank == 2:
            session.close()
            return []
        told = []
        if session.rank == 1:
            with pytest.raises(ParticipantLeft) as caught:
                push(session, "(1, 2)", groups[1, 2])
            told.append(str(caught.value))
        for _ in range(3):
            assert push(session, "(0, 1)", groups[0, 1], operation=AVERAGE).tolist() == [1.5] * 5
        alone = session.form_group([session.rank])
        assert push(session, f"mine {session.rank}", alone).tolist() == [session.rank + 1] * 5
        return told

    with cluster(3, 2, sizes=(2, 1)) as made:
        _, told, _ = made.each(run)
    assert "'(1, 2)': worker 2 left the job before it contributed to round 2" in told[0]


def test_what_is_lost_or_comes_twice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that forming groups takes, the first message of each kind and receiver is lost, all others come twice."""
    monkeypatch.setattr("byteps_py.roles.requests.REPEAT_SECONDS", 0.1)
    kinds = (FormGroup, Group, GroupKnown, GroupFormed)
    lost: set[tuple[type, int]] = set()

    def run(session: Session) -> None:
        for ranks in ((0, 1), (1, 2), (0, 2)):
            if session.rank in ranks:
                group = session.form_group(ranks)
                for round_ in (1, 2):
                    assert push(session, str(ranks), group, 300).tolist() == [sum(ranks) + 2.0] * 300, round_

    with cluster(3, 2, partition_bytes=512) as made:
        deliver = made.network.deliver

        def disturb(receiver: Any, message: Any) -> None:
            if bytes(message.frames[0][:4]) == CONTROL_MAGIC:
                what = type(decode_control(message.frames[0])), id(receiver)
                if what[0] in kinds and what not in lost:
                    lost.add(what)
                    return
            deliver(receiver, message)
            deliver(receiver, message)

        made.network.deliver = disturb
        made.each(run)
    assert sorted(kind.__name__ for kind, _ in lost) == sorted(
        ["FormGroup", "GroupKnown", *["Group"] * 2, *["GroupFormed"] * 3]
    )


def test_one_name_is_of_one_group() -> None:
    def run(session: Session) -> str:
        group = session.form_group([0, 1]) if session.rank == 0 else 0
        with pytest.raises(AgreementError) as caught:
            push(session, "w", group)
        return str(caught.value)

    with cluster(2, 1) as made:
        assert made.each(lambda session: session.form_group([1, 0])) == [0, 0]
    with cluster(3, 1) as made, ThreadPoolExecutor(2) as pool:
        for text in pool.map(run, made.sessions[:2]):
            assert "float32 (5,) of group 1 on worker 0" in text
            assert "float32 (5,) on worker 1" in text


def test_a_stall_names_the_members_that_are_missing(tmp_path: Path) -> None:
    body = (
        "from byteps_py.session import current\n"
        "from byteps_py.types import DType, Operation, TensorSpec\n"
        "session, mine = current(), np.ones(9, np.float32)\n"
        "if bps.rank() == 2: time.sleep(60)\n"
        "group = session.form_group([0, 1])\n"
        "if bps.rank() == 1: time.sleep(60)\n"
        "session.submit(TensorSpec('x', DType.FLOAT32, (9,), group), mine, None, Operation.SUM).wait()\n"
    )
    with job(tmp_path, 3, 1, BYTEPS_STALL_TIMEOUT="5") as made:
        made.scheduler()
        made.server()
        for rank in range(3):
            made.worker(rank, body)
        assert all(made.wait(60).values()), made.everything()
        named = re.findall(r"waiting \d s for the result of 'x': missing (.*); giving up", made.output("worker0"))
        assert named, made.everything()
        assert all(re.findall(r"worker (\d) \(pid", each) == ["1"] for each in named), made.everything()


def test_the_session_of_the_tests_does_the_same() -> None:
    def run(session: FakeSession) -> list[int]:
        groups = [session.form_group(ranks) for ranks in ((2, 0), (1, 0), (0, 1, 2)) if session.rank in ranks]
        assert groups == [session.form_group(ranks) for ranks in ((0, 2), (0, 1), (2, 1, 0)) if session.rank in ranks]
        if session.rank != 2:
            assert push(session, "a", groups[-2], operation=AVERAGE).tolist() == [1.5] * 5
        if session.rank != 1:
            assert push(session, "b", groups[0], operation=BROADCAST, root=2).tolist() == [3.0] * 5
        assert push(session, "c", 0).tolist() == [6.0] * 5
        with pytest.raises(ValueError, match="has not formed"):
            push(session, "d", 99)
        return groups

    first, second, third = run_workers(3, run)
    assert first[0] == third[0] > 0
    assert first[1] == second[0] > 0
    assert {first[0], first[1]} == {1, 2}
    assert first[2] == second[1] == third[1] == 0
