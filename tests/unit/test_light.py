"""Light tensors of a worker: what travels together, and what becomes of it."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_py.core.pipeline import Pipeline
from byteps_py.core.window import Window
from byteps_py.errors import JobAborted, RemoteProtocolError
from byteps_py.roles.envelope import Envelope, open_bundle
from byteps_py.roles.light import BUNDLE_BYTES, BUNDLE_ENTRIES, HOLD_SECONDS, Light
from byteps_py.roles.pending import Pending
from byteps_py.roles.tensors import Tensor
from byteps_py.telemetry.spans import WorkerSpans
from byteps_py.telemetry.stages import WorkerTimes
from byteps_py.telemetry.window import Window as Steps
from byteps_py.transport.base import Buffer, Message
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.types import DType, Operation, Partition, TensorSpec, make_key
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.control import Placement
from byteps_py.wire.header import Flag, Header, Opcode, decode

WHOLE = Message(b"server-0", [])
ME, SERVER = Envelope(1, 7, 500, 1), Envelope(0, 7, 600, 1)


class Changed:
    """The stamp of memory that was changed meanwhile."""

    def intact(self) -> bool:
        return False


class Bench:
    """A worker's light tensors at time 0, and what it sends."""

    def __init__(self, servers: int = 1, times: WorkerTimes | None = None) -> None:
        self.sent: list[tuple[int, list[Buffer]]] = []
        self.pipeline = Pipeline(servers, Window(1 << 20), 0)
        endpoint = LoopbackNetwork().endpoint(b"me")
        self.light = Light(endpoint, self._send, ME, self.pipeline, servers, times)
        self._placed = 0

    def _send(self, server: int, frames: list[Buffer], now: float) -> None:
        # What is sent must not change later: kept as bytes, except where a test looks at the very memory.
        self.sent.append((server, [bytes(each) for each in frames]))

    def tensor(self, count: int = 4, server: int = 0, dtype: DType = DType.FLOAT32) -> Tensor:
        name = f"t{self._placed}"
        made = Tensor(TensorSpec(name, dtype, (count,)))
        made.place(Placement(name, self._placed, (Partition(make_key(self._placed, 0), 0, count, server),)))
        self._placed += 1
        return made

    def submit(self, tensor: Tensor, value: float | None = 1.0, now: float = 0.0) -> Pending | None:
        pending = Pending(tensor.spec, None)
        source = None if value is None else np.full(tensor.spec.shape, value, tensor.spec.dtype.storage)
        taken = self.light.submit(now, tensor, source, pending, Operation.SUM, 3)
        return pending if taken else None

    def last(self) -> tuple[Header, np.ndarray[tuple[int], np.dtype[np.void]], bytes]:
        """Header, entries and payload of the message sent last."""
        header, table, payload = open_bundle([memoryview(each) for each in self.sent[-1][1]])
        return header, np.frombuffer(table, ENTRY), bytes(payload)

    def answer(self, tensors: list[Tensor], values: list[float | None], *, round_: int = 1) -> tuple[Header, Message]:
        table, payload = np.zeros(len(tensors), ENTRY), b""
        for entry, tensor, value in zip(table, tensors, values, strict=True):
            spec, partition = tensor.spec, tensor.light
            assert partition is not None
            flags = Flag.ABSENT if value is None else Flag.NONE
            entry["key"], entry["round"], entry["place"], entry["count"] = partition.key, round_, len(payload), 0
            entry["count"], entry["dtype"], entry["operation"], entry["flags"] = spec.count, spec.dtype, 1, flags
            if value is not None:
                payload += np.full(spec.shape, value, spec.dtype.storage).tobytes()
                payload += bytes(-len(payload) % 8)
        header = SERVER.header(Opcode.RESULT_MANY, 0, 1, detail=len(tensors), length=len(payload))
        frames = [memoryview(b""), memoryview(table.tobytes()), memoryview(payload)]
        return header, Message(b"server-0", frames)


def over(bench: Bench, tensors: list[Tensor]) -> None:
    """As the exchange does after results."""
    bench.pipeline.give_back([each.light.key >> 32 for each in tensors if each.light is not None])


def test_what_is_submitted_before_somebody_waits_travels_together() -> None:
    bench = Bench()
    tensors = [bench.tensor(4), bench.tensor(3, dtype=DType.FLOAT16), bench.tensor(1)]
    for index, each in enumerate(tensors):
        assert bench.submit(each, float(index + 1)) is not None
    assert bench.sent == []
    bench.light.hurry(0.1)
    header, entries, payload = bench.last()
    assert (header.opcode, header.detail, header.round, len(bench.sent)) == (Opcode.PUSH_MANY, 3, 1, 1)
    assert [int(each) for each in entries["place"]] == [0, 16, 24]
    assert np.frombuffer(payload, np.float32, 4, 0).tolist() == [1, 1, 1, 1]
    assert np.frombuffer(payload, np.float16, 3, 16).tolist() == [2, 2, 2]
    assert np.frombuffer(payload, np.float32, 1, 24).tolist() == [3]
    assert set(entries["step"]) == {3}
    assert set(entries["flags"]) == {int(Flag.WANT_RESULT)}


def test_results_are_copied_out_and_complete_the_operations() -> None:
    bench = Bench()
    tensors = [bench.tensor(), bench.tensor()]
    pending = [bench.submit(each) for each in tensors]
    bench.light.hurry(0.0)
    arrived = bench.light.results(0.2, *bench.answer(tensors, [5.0, None]))
    assert [each.pending for each in arrived] == pending
    first, second = (each.pending for each in arrived)
    assert (first.output.tolist(), first.absent) == ([5, 5, 5, 5], False)
    assert (second.output.tolist(), second.absent) == ([0, 0, 0, 0], True)
    assert bench.light.flights == {}
    assert bench.light.results(0.3, *bench.answer(tensors, [6.0, 6.0])) == []
    assert first.output.tolist() == [5, 5, 5, 5]


def test_a_result_that_is_named_twice_counts_once() -> None:
    bench = Bench()
    tensor = bench.tensor()
    bench.submit(tensor)
    bench.light.hurry(0.0)
    (flight,) = bench.light.results(0.1, *bench.answer([tensor, tensor], [5.0, 6.0]))
    assert flight.pending.output.tolist() == [6, 6, 6, 6]


def test_an_absent_contribution_takes_no_room() -> None:
    bench = Bench()
    bench.submit(bench.tensor(), None)
    bench.submit(bench.tensor(), 2.0)
    bench.light.hurry(0.0)
    _, entries, payload = bench.last()
    assert (entries["flags"].tolist(), entries["place"].tolist(), len(payload)) == ([3, 2], [0, 0], 16)


def test_one_round_of_a_tensor_at_a_time() -> None:
    bench = Bench()
    tensor = bench.tensor()
    assert bench.submit(tensor) is not None
    assert bench.submit(tensor) is None
    bench.light.hurry(0.0)
    bench.light.results(0.1, *bench.answer([tensor], [1.0]))
    over(bench, [tensor])
    assert bench.submit(tensor) is not None
    bench.light.hurry(0.2)
    assert bench.last()[1]["round"].tolist() == [2]


def test_a_full_bundle_goes_at_once() -> None:
    bench = Bench()
    large = BUNDLE_BYTES // 16 // 4
    for _ in range(17):
        bench.submit(bench.tensor(large))
    assert len(bench.sent) == 1
    assert bench.last()[0].detail == 16
    many = Bench()
    for _ in range(BUNDLE_ENTRIES + 1):
        many.submit(many.tensor(1))
    assert many.last()[0].detail == BUNDLE_ENTRIES


def test_nothing_is_held_back_for_long() -> None:
    bench = Bench()
    bench.submit(bench.tensor(), now=5.0)
    assert bench.light.tick(5.0) == 5.0 + HOLD_SECONDS
    assert (bench.sent, bench.light.held) == ([], 1)
    bench.light.tick(5.0 + HOLD_SECONDS)
    assert (len(bench.sent), bench.light.held) == (1, 0)


def test_each_server_has_its_own() -> None:
    bench = Bench(servers=2)
    for index in range(4):
        bench.submit(bench.tensor(server=index % 2))
    bench.light.hurry(0.0)
    assert [(server, decode(frames[0], 32).detail) for server, frames in bench.sent] == [(0, 2), (1, 2)]


def test_a_bundle_without_an_answer_is_asked_about_one_by_one() -> None:
    bench = Bench()
    tensors = [bench.tensor(), bench.tensor()]
    for each in tensors:
        bench.submit(each)
    bench.light.hurry(0.0)
    bench.light.results(0.1, *bench.answer(tensors[:1], [1.0]))
    assert bench.light.tick(0.2) == 1.0
    bench.sent.clear()
    bench.light.tick(1.0)
    asked = [decode(frames[0], None) for _, frames in bench.sent]
    assert [(each.opcode, each.key, each.round) for each in asked] == [(Opcode.PULL, make_key(1, 0), 1)]


def test_what_a_server_lacks_is_pushed_alone() -> None:
    bench = Bench()
    tensors = [bench.tensor(2), bench.tensor(2)]
    bench.submit(tensors[0], 1.0)
    bench.submit(tensors[1], 2.0)
    bench.light.hurry(0.0)
    bench.light.again(0.5, make_key(1, 0))
    frames = bench.sent[-1][1]
    header = decode(frames[0], len(frames[1]))
    assert (header.opcode, header.key, header.round, header.step) == (Opcode.PUSH, make_key(1, 0), 1, 3)
    assert np.frombuffer(frames[1], np.float32).tolist() == [2, 2]


def test_an_acceptance_returns_the_window_and_is_counted_once() -> None:
    times = WorkerTimes()
    bench = Bench(times=times)
    tensor = bench.tensor(BUNDLE_BYTES // 32 // 4)
    tensors = [tensor]
    while bench.submit(tensor) is not None:
        tensor = bench.tensor(BUNDLE_BYTES // 32 // 4)
        tensors.append(tensor)
    assert len(tensors) > 16 * 32
    assert bench.light.unaccepted == len(tensors) - 1
    bench.light.accepted(1.0, 18)  # which was not sent yet
    bench.light.hurry(0.0)
    for number in range(1, 20):
        bench.light.accepted(1.0, number)
        bench.light.accepted(2.0, number)
    assert bench.submit(tensor) is not None
    assert times.push.count == len(tensors) - 1
    assert times.push.seconds == pytest.approx(times.push.count)


def test_few_bundles_are_on_their_way_at_a_time() -> None:
    """Each has a buffer, however little is in it: who looks for every result by itself sends many."""
    bench = Bench()
    taken = 0
    for _ in range(200):
        taken += bench.submit(bench.tensor()) is not None
        bench.light.hurry(0.0)
    assert 60 < taken < 70


def test_what_cannot_be_taken_leaves_the_tensor_free() -> None:
    bench = Bench()
    tensor = bench.tensor()

    def full(nbytes: int) -> None:
        raise MemoryError

    allocate = bench.light._endpoint.allocate
    bench.light._endpoint.allocate = full  # type: ignore[method-assign,assignment]
    with pytest.raises(MemoryError):
        bench.submit(tensor)
    bench.light._endpoint.allocate = allocate  # type: ignore[method-assign]
    assert bench.submit(tensor) is not None


def test_buffers_are_used_again_when_all_results_are_here() -> None:
    bench = Bench()
    tensors = [bench.tensor(), bench.tensor()]
    for round_ in (1, 2, 3):
        for each in tensors:
            assert bench.submit(each, float(round_)) is not None
        bench.light.hurry(0.0)
        bench.light.results(0.1, *bench.answer(tensors, [1.0, 1.0], round_=round_))
        over(bench, tensors)
    assert len(bench.light._spare) == 1


def test_a_failed_contribution_is_told_and_its_buffer_never_used_again() -> None:
    bench = Bench()
    tensors = [bench.tensor(), bench.tensor()]
    pending = [bench.submit(each) for each in tensors]
    bench.light.hurry(0.0)
    bench.light.fail([make_key(0, 0)], JobAborted("why"))
    assert pending[0] is not None
    with pytest.raises(JobAborted, match="why"):
        pending[0].wait()
    bench.light.results(0.1, *bench.answer(tensors, [1.0, 1.0]))
    assert bench.light.flights == {}
    assert bench.light._spare == []


def test_a_trace_hears_of_what_fails() -> None:
    spans = WorkerSpans(Steps(1, 2))
    bench = Bench(times=spans)
    tensors = [bench.tensor(), bench.tensor(), bench.tensor()]
    for each in tensors:
        bench.submit(each)
    bench.light.fail([make_key(1, 0)], JobAborted("why"))
    bench.light.hurry(0.0)
    bench.light.fail([make_key(0, 0)], JobAborted("why"))
    bench.light.results(0.1, *bench.answer(tensors[2:], [1.0]))
    (cargo,) = spans.cargo
    assert cargo.failed.keys() == {make_key(0, 0), make_key(1, 0)}
    assert [keys for _, _, keys in cargo.results] == [[make_key(2, 0)]]
    assert not spans._bundles


@pytest.mark.parametrize("fault", ["count", "dtype", "operation", "place"])
def test_a_result_of_another_kind_is_refused(fault: str) -> None:
    bench = Bench()
    tensor = bench.tensor()
    bench.submit(tensor)
    bench.light.hurry(0.0)
    header, message = bench.answer([tensor], [1.0])
    table = np.frombuffer(bytearray(message.frames[1]), ENTRY)
    table[fault] = {"count": 5, "dtype": int(DType.INT32), "operation": 2, "place": 8}[fault]
    message.frames[1] = memoryview(table.tobytes())
    with pytest.raises(RemoteProtocolError, match="a result for 't0'"):
        bench.light.results(0.1, header, message)
    assert len(bench.light.flights) == 1


def test_results_that_change_meanwhile_do_not_count() -> None:
    bench = Bench()
    tensor = bench.tensor()
    bench.submit(tensor)
    bench.light.hurry(0.0)
    header, message = bench.answer([tensor], [1.0])
    with pytest.raises(RemoteProtocolError, match="changed while"):
        bench.light.results(0.1, header, message._replace(stamp=Changed()))
    assert len(bench.light.flights) == 1


def test_a_result_that_comes_alone() -> None:
    bench = Bench()
    tensor = bench.tensor()
    pending = bench.submit(tensor)
    bench.light.hurry(0.0)
    header = SERVER.header(Opcode.RESULT, make_key(0, 0), 1, count=4, length=16)
    wrong = SERVER.header(Opcode.RESULT, make_key(0, 0), 1, count=3, length=12)
    with pytest.raises(RemoteProtocolError, match="another shape"):
        bench.light.result(0.1, wrong, memoryview(bytes(12)), WHOLE)
    payload = memoryview(np.full(4, 9, np.float32)).cast("B")
    with pytest.raises(RemoteProtocolError, match="changed while"):
        bench.light.result(0.1, header, payload, WHOLE._replace(stamp=Changed()))
    (flight,) = bench.light.result(0.1, header, payload, WHOLE)
    assert flight.pending is pending
    assert flight.pending.output.tolist() == [9, 9, 9, 9]


def test_a_scalar_travels_too() -> None:
    bench = Bench()
    tensor = Tensor(TensorSpec("s", DType.FLOAT64, ()))
    tensor.place(Placement("s", 0, (Partition(0, 0, 1, 0),)))
    pending = Pending(tensor.spec, None)
    assert bench.light.submit(0.0, tensor, np.array(2.5), pending, Operation.SUM, 0)
    bench.light.hurry(0.0)
    bench.light.results(0.1, *bench.answer([tensor], [7.0]))
    assert float(pending.output) == 7.0
