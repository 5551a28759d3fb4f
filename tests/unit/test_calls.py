"""Callers' threads: they submit, and move the data themselves while they wait."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from byteps_py import kernels
from byteps_py.errors import AgreementError, JobAborted, TransportError
from byteps_py.roles.calls import Calls
from byteps_py.roles.envelope import Envelope, open_frames
from byteps_py.roles.exchange import Exchange
from byteps_py.roles.light import HOLD_SECONDS
from byteps_py.roles.pending import Pending
from byteps_py.settings import WorkerSettings
from byteps_py.transport.base import Buffer, Message, WithoutLanes
from byteps_py.types import DType, Operation, Participant, Partition, ServerInfo, TensorSpec, make_key
from byteps_py.wire.bundle import ENTRY
from byteps_py.wire.control import Conflict, Declared, Placement, Welcome
from byteps_py.wire.header import Flag, Opcode, decode, encode

SETTINGS = WorkerSettings(
    num_worker=1, num_server=1, root_uri="127.0.0.1", root_port=9, force_distributed=True, partition_bytes=4 << 20
)
SERVER = Envelope(0, 77, 600, 1)
WELCOME = Welcome(77, 1, 0, (Participant(0, 0, 0, 1, "a", 1, 500),), (ServerInfo(0, "tcp://1.2.3.4:5", "a", 2, 600),))
LARGE = 1 << 16
"""Elements of float32: too large to travel with others."""


class Lane(WithoutLanes):
    """An endpoint whose only peer is a server at the other end of a lane, or of a socket."""

    def __init__(self, is_lane: bool = True) -> None:
        super().__init__()
        self.sent: list[tuple[list[bytes], int]] = []
        self.inbox: deque[Message] = deque()
        self.held: list[str] = []
        self.woken = 0
        self._is_lane = is_lane

    def connect(self, peer: bytes, address: str, identity: bytes = b"", connections: int = 1) -> None:
        assert (peer, identity) == (b"server-0", b"server-%016x" % 600)

    def is_lane(self, peer: bytes) -> bool:
        return self._is_lane

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> bool:
        self.sent.append(([bytes(each) for each in frames], threading.get_ident()))
        return True

    def receive_lanes(self) -> list[Message]:
        found = list(self.inbox)
        self.inbox.clear()
        return found

    def hold_lanes(self) -> None:
        self.held.append("hold")

    def resume_lanes(self) -> None:
        self.held.append("resume")

    def wake(self) -> None:
        self.woken += 1

    def wake_in(self, seconds: float) -> None:
        self.woken += 1

    def obstacle(self, peer: bytes) -> str:
        return ""

    def deliver(self, header: bytes, *frames: bytes) -> None:
        """A message of the server arrives in the lane."""
        self.inbox.append(Message(b"server-0", [memoryview(header), *map(memoryview, frames)]))
        self.wake_lanes()


class Bench:
    """The calls of one worker, and a thread that stands for the worker's."""

    def __init__(self, is_lane: bool = True) -> None:
        self.endpoint = Lane(is_lane)
        self.calls = Calls(self.endpoint, kernels.select("reference"), 1, None)  # type: ignore[arg-type]
        owner = threading.Thread(target=self._begin, args=(is_lane,))
        owner.start()
        owner.join()

    def _begin(self, is_lane: bool) -> None:
        exchange = Exchange(
            self.endpoint,  # type: ignore[arg-type]
            settings=SETTINGS,
            welcome=WELCOME,
            incarnation=500,
            kernels=kernels.select("reference"),
            times=None,
            now=time.monotonic(),
            lock=self.calls.lock,
        )
        self.calls.begin(exchange, is_lane)

    def place(self, name: str, tensor_id: int, count: int) -> TensorSpec:
        spec = TensorSpec(name, DType.FLOAT32, (count,))
        self.calls.declare([spec])
        self.calls.take_undeclared()
        placement = Placement(name, tensor_id, (Partition(make_key(tensor_id, 0), 0, count, 0),))
        self.calls.declared(time.monotonic(), Declared(1, (placement,)))
        return spec

    def submit(self, spec: TensorSpec, value: float = 1.0) -> Pending:
        return self.calls.submit(spec, np.full(spec.shape, value, np.float32), None, Operation.SUM)

    def answer(self, tensor_id: int, count: int, value: float) -> None:
        header = SERVER.header(Opcode.RESULT, make_key(tensor_id, 0), 1, count=count, length=4 * count, detail=1)
        self.endpoint.deliver(encode(header), np.full(count, value, np.float32).tobytes())

    def answer_many(self, tensor_id: int, count: int, value: float) -> None:
        table = np.zeros(1, ENTRY)
        table["key"], table["round"], table["count"] = make_key(tensor_id, 0), 1, count
        table["dtype"], table["operation"] = int(DType.FLOAT32), int(Operation.SUM)
        header = SERVER.header(Opcode.RESULT_MANY, 0, 1, detail=1, length=4 * count)
        self.endpoint.deliver(encode(header), table.tobytes(), np.full(count, value, np.float32).tobytes())


def in_background(pending: Pending) -> threading.Thread:
    thread = threading.Thread(target=pending.wait)
    thread.start()
    return thread


def until(condition: object) -> None:
    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_waits_takes_the_result_itself() -> None:
    bench = Bench()
    spec = bench.place("w", 0, LARGE)
    pending = bench.submit(spec)
    assert bench.endpoint.sent[0][1] == threading.get_ident()
    bench.answer(0, LARGE, 3.0)
    assert pending.wait().max() == 3.0
    assert bench.endpoint.held == ["hold"]


def test_the_lanes_go_back_when_nobody_has_waited_for_a_while() -> None:
    bench = Bench()
    for round_ in (1, 2):
        bench.submit(bench.place(f"w{round_}", round_, 8))
        pending = bench.submit(bench.place(f"v{round_}", 10 + round_, 8))
        bench.answer_many(10 + round_, 8, 3.0)
        pending.wait()
    assert bench.endpoint.held == ["hold"]
    now = time.monotonic()
    left = bench.calls.turn(now, ())
    assert left is not None
    assert 0 < left <= HOLD_SECONDS
    bench.calls.turn(now + 2 * HOLD_SECONDS, ())
    assert bench.endpoint.held == ["hold", "resume"]


def test_they_go_back_at_once_if_somebody_sleeps() -> None:
    bench = Bench()
    first, second = bench.submit(bench.place("a", 0, 8)), bench.submit(bench.place("b", 1, 8))
    one = in_background(first)
    until(lambda: bench.endpoint.held == ["hold"])
    other = in_background(second)
    until(lambda: bench.calls._keeper.sleepers == 1)
    bench.answer_many(0, 8, 6.0)
    one.join(10)
    assert bench.endpoint.held == ["hold", "resume"]
    bench.answer_many(1, 8, 5.0)
    bench.calls.turn(time.monotonic(), ())
    other.join(10)
    assert second.over()


def test_a_light_tensor_leaves_when_somebody_waits_or_looks() -> None:
    bench = Bench()
    spec = bench.place("w", 0, 8)
    pending = bench.submit(spec, 2.0)
    assert bench.endpoint.sent == []
    assert not pending.done()
    frames, _ = bench.endpoint.sent[0]
    assert decode(frames[0], len(frames[2])).opcode is Opcode.PUSH_MANY
    bench.answer_many(0, 8, 4.0)
    assert pending.wait().tolist() == [4.0] * 8


def test_of_two_who_wait_one_drives_and_both_get_their_results() -> None:
    bench = Bench()
    first, second = bench.submit(bench.place("a", 0, 8)), bench.submit(bench.place("b", 1, 8))
    one = in_background(first)
    until(lambda: bench.endpoint.held == ["hold"])
    other = in_background(second)
    bench.answer_many(1, 8, 5.0)
    other.join(10)
    assert second.over()
    bench.answer_many(0, 8, 6.0)
    one.join(10)
    assert (first.output[0], second.output[0]) == (6.0, 5.0)
    assert bench.endpoint.held == ["hold"]


def test_the_workers_thread_goes_on_with_the_lanes_when_nobody_waits() -> None:
    bench = Bench()
    pending = bench.submit(bench.place("w", 0, LARGE))
    bench.answer(0, LARGE, 7.0)
    bench.calls.turn(time.monotonic(), ())
    assert pending.over()


def test_what_comes_by_a_socket_ends_the_wait_of_who_drives() -> None:
    bench = Bench()
    pending = bench.submit(bench.place("w", 0, LARGE))
    waiting = in_background(pending)
    until(lambda: bench.endpoint.held == ["hold"])
    header = SERVER.header(Opcode.RESULT, 0, 1, count=LARGE, length=4 * LARGE, detail=1)
    frames = [memoryview(encode(header)), memoryview(bytes(4 * LARGE))]
    bench.calls.turn(time.monotonic(), [Message(b"server-0", frames)])
    waiting.join(10)
    assert pending.output.max() == 0


def test_who_begins_to_wait_during_a_copy_is_woken_after_it() -> None:
    """The worker's thread lets the lock go while it copies a large result; a wait may begin then."""
    bench = Bench()
    pending = bench.submit(bench.place("w", 0, LARGE))
    assert bench.calls.exchange is not None
    copying, may_go_on = threading.Event(), threading.Event()
    result = bench.calls.exchange._copy_out.result

    def slowly(*arguments: object) -> bool:
        bench.calls.lock.release()
        copying.set()
        may_go_on.wait(10)
        bench.calls.lock.acquire()
        return result(*arguments)  # type: ignore[arg-type]

    bench.calls.exchange._copy_out.result = slowly  # type: ignore[method-assign, assignment]
    bench.answer(0, LARGE, 7.0)
    bench.endpoint.wait_lanes(0)
    turning = threading.Thread(target=bench.calls.turn, args=(time.monotonic(), ()))
    turning.start()
    assert copying.wait(10)
    waiting = in_background(pending)
    until(lambda: bench.endpoint.held == ["hold"])
    woken: list[int] = []
    wake = bench.endpoint.wake_lanes
    bench.endpoint.wake_lanes = lambda: (woken.append(1), wake())[1]  # type: ignore[method-assign]
    may_go_on.set()
    turning.join(10)
    waiting.join(10)
    assert pending.over()
    assert woken == [1]


class SlowKernels:
    """Copies when it may; ``copying`` is set while it waits for that."""

    def __init__(self) -> None:
        self.copying, self.may_go_on = threading.Event(), threading.Event()
        self._kernels = kernels.select("reference")

    def copy(self, out: object, source: object, nbytes: int, threads: int, *, far: bool = False) -> None:
        self.copying.set()
        assert self.may_go_on.wait(10)
        self._kernels.copy(out, source, nbytes, threads, far=far)


def slow_copies(bench: Bench) -> SlowKernels:
    slow = SlowKernels()
    assert bench.calls.exchange is not None
    bench.calls.exchange._copy_out._kernels = slow  # type: ignore[assignment]
    return slow


def test_the_job_may_end_while_a_result_is_copied() -> None:
    bench = Bench()
    pending = bench.submit(bench.place("w", 0, LARGE))
    slow = slow_copies(bench)
    thread, errors = in_background_catching(pending)
    bench.answer(0, LARGE, 7.0)
    assert slow.copying.wait(10)
    ending = threading.Thread(target=bench.calls.end, args=(JobAborted("over"),))
    ending.start()
    until(lambda: bench.calls.ended is not None)
    assert not pending.over()  # its memory is still written to
    slow.may_go_on.set()
    thread.join(10)
    ending.join(10)
    assert [str(each) for each in errors] == ["over"]


def test_a_result_that_comes_twice_is_copied_once() -> None:
    bench = Bench()
    pending = bench.submit(bench.place("w", 0, LARGE))
    slow = slow_copies(bench)
    bench.answer(0, LARGE, 7.0)
    turning = threading.Thread(target=bench.calls.turn, args=(time.monotonic(), ()))
    turning.start()
    assert slow.copying.wait(10)
    waiting = in_background(pending)
    until(lambda: bench.endpoint.held == ["hold"])
    bench.answer(0, LARGE, 8.0)
    until(lambda: not bench.endpoint.inbox)
    assert not pending.over()
    slow.may_go_on.set()
    turning.join(10)
    waiting.join(10)
    assert pending.output.max() == 7.0


def test_what_is_interrupted_half_way_ends_the_job() -> None:
    bench = Bench()
    spec = bench.place("w", 0, 8)

    def interrupted(*arguments: object) -> bool:
        raise KeyboardInterrupt

    assert bench.calls._light is not None
    bench.calls._light.submit = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        bench.submit(spec)
    with pytest.raises(JobAborted, match=r"interrupted half-way \(KeyboardInterrupt\(\)\)"):
        bench.calls.turn(time.monotonic(), ())


def test_what_an_interruption_has_lost_is_failed_at_the_end() -> None:
    bench = Bench()
    pending = bench.submit(bench.place("w", 0, 8))
    assert bench.calls.exchange is not None
    bench.calls.hurry()
    flights = bench.calls.exchange.light._flights
    thread, errors = in_background_catching(pending)
    until(lambda: bench.calls._keeper.driver)
    with bench.calls.lock:
        flights.clear()  # as an interruption between the two steps of a result would leave it
    bench.calls.end(JobAborted("over"))
    thread.join(10)
    assert [str(each) for each in errors] == ["over"]


def test_nothing_is_begun_after_an_interruption() -> None:
    bench = Bench()
    spec = bench.place("w", 0, 8)
    bench.calls._break(KeyboardInterrupt())
    for attempt in (lambda: bench.submit(spec), lambda: bench.calls.declare([spec])):
        with pytest.raises(JobAborted, match="half-way"):
            attempt()


def test_a_driver_that_is_displaced_leaves_the_lanes_to_others() -> None:
    bench = Bench()
    pending = bench.submit(bench.place("w", 0, LARGE))
    waiting = in_background(pending)
    until(lambda: bench.endpoint.held == ["hold"])
    bench.calls.turn(time.monotonic() + 60.0, ())  # as if it had not looked for a minute
    assert bench.calls._keeper.driver == 0
    bench.endpoint.wake_lanes()
    until(lambda: bench.calls._keeper.sleepers == 1)
    bench.answer(0, LARGE, 7.0)
    bench.calls.turn(time.monotonic(), ())
    waiting.join(10)
    assert pending.output.max() == 7.0


def test_a_driver_that_is_gone_without_a_word_is_missed() -> None:
    bench = Bench()
    now = time.monotonic()
    with bench.calls.lock:
        assert bench.calls._keeper.take(4242)
    pending = bench.submit(bench.place("w", 0, LARGE))
    bench.answer(0, LARGE, 7.0)
    left = bench.calls.turn(now + 1.0, ())
    assert left is not None
    assert left <= 2.1
    assert not pending.over()
    bench.calls.turn(now + 4.0, ())
    assert pending.over()
    assert bench.endpoint.held == ["hold", "resume"]


def test_a_message_of_a_stranger_is_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    header = SERVER.header(Opcode.PULL, 0, 1)
    bench.calls.turn(time.monotonic(), [Message(b"worker-9", [memoryview(encode(header))])])
    assert "BYTEPS_LOCAL_REDUCE must be equal there" in caplog.text


def test_a_result_over_a_part_of_its_source_is_no_reason_to_lend_it() -> None:
    bench = Bench()
    spec = bench.place("w", 0, LARGE)
    whole = np.arange(LARGE + 8, dtype=np.float32)
    bench.endpoint.owns = lambda buffer: True  # type: ignore[method-assign]
    seen: list[int] = []
    bench.endpoint.send = lambda peer, frames: bool(  # type: ignore[method-assign]
        seen.append(np.frombuffer(frames[1], np.uint8).ctypes.data) or True
    )
    bench.calls.submit(spec, whole[:-8], whole[8:], Operation.SUM)
    assert seen != [whole.ctypes.data]


def test_sockets_are_left_to_the_thread_that_owns_them() -> None:
    bench = Bench(is_lane=False)
    spec = bench.place("w", 0, LARGE)
    woken = bench.endpoint.woken
    bench.submit(spec)
    assert bench.endpoint.sent == []
    assert bench.endpoint.woken == woken + 1

    def owner() -> None:
        bench.calls.exchange = None
        exchange = Exchange(
            bench.endpoint,  # type: ignore[arg-type]
            settings=SETTINGS,
            welcome=WELCOME,
            incarnation=500,
            kernels=kernels.select("reference"),
            times=None,
            now=time.monotonic(),
        )
        bench.calls.begin(exchange, has_lanes=False)
        bench.calls.submit(TensorSpec("w", DType.FLOAT32, (LARGE,)), np.zeros(LARGE, np.float32), None, Operation.SUM)

    thread = threading.Thread(target=owner)
    thread.start()
    thread.join(10)
    assert len(bench.endpoint.sent) == 1
    header, _ = open_frames([memoryview(each) for each in bench.endpoint.sent[0][0]])
    assert header.flags is Flag.WANT_RESULT


def test_what_was_deferred_is_sent_at_the_next_turn() -> None:
    bench = Bench(is_lane=False)
    bench.submit(bench.place("w", 0, LARGE))
    bench.calls.turn(time.monotonic(), ())
    assert len(bench.endpoint.sent) == 1


def test_the_end_of_the_job_ends_every_wait() -> None:
    bench = Bench()
    waits = [in_background_catching(bench.submit(bench.place(name, index, 8))) for index, name in enumerate("ab")]
    until(lambda: bench.endpoint.held == ["hold"])
    bench.calls.end(JobAborted("over"))
    for thread, errors in waits:
        thread.join(10)
        assert [str(each) for each in errors] == ["over"]
    with pytest.raises(JobAborted, match="over"):
        bench.submit(TensorSpec("a", DType.FLOAT32, (8,)))
    with pytest.raises(JobAborted, match="over"):
        bench.calls.declare([TensorSpec("c", DType.FLOAT32, (8,))])


def in_background_catching(pending: Pending) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def wait() -> None:
        try:
            pending.wait()
        except JobAborted as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, errors


def test_a_conflict_fails_what_is_on_its_way_and_what_comes_later() -> None:
    bench = Bench()
    light, large = bench.place("w", 0, 8), bench.place("v", 1, LARGE)
    pending = [bench.submit(light), bench.submit(large)]
    for name in ("w", "v"):
        bench.calls.conflict(time.monotonic(), Conflict(name, f"{name} is another tensor there"))
    for each, name in zip(pending, ("w", "v"), strict=True):
        with pytest.raises(AgreementError, match=f"{name} is another"):
            each.wait()
    for spec in (light, large):
        with pytest.raises(AgreementError, match="is another"):
            bench.submit(spec).wait()


def test_operations_wait_for_the_placement_of_their_tensor() -> None:
    bench = Bench()
    spec = TensorSpec("w", DType.FLOAT32, (8,))
    pending = bench.submit(spec)
    assert [each.spec for each in bench.calls.take_undeclared()] == [spec]
    assert bench.calls.waiting
    bench.calls.declared(time.monotonic(), Declared(1, (Placement("w", 0, (Partition(0, 0, 8, 0),)),)))
    assert not bench.calls.waiting
    bench.answer(0, 8, 2.0)
    assert pending.wait().tolist() == [2.0] * 8


def test_an_array_of_the_arena_is_pushed_from_where_it_lies() -> None:
    bench = Bench()
    spec = bench.place("w", 0, LARGE)
    array = bench.calls.empty((LARGE,), np.dtype(np.float32))
    assert (array.shape, array.dtype, array.flags.writeable) == ((LARGE,), np.float32, True)
    array.fill(1.0)
    bench.endpoint.owns = lambda buffer: buffer is array  # type: ignore[method-assign]
    renewed: list[object] = []
    bench.endpoint.renew = renewed.append  # type: ignore[method-assign]
    seen: list[int] = []
    bench.endpoint.send = lambda peer, frames: bool(  # type: ignore[method-assign]
        seen.append(np.frombuffer(frames[1], np.uint8).ctypes.data) or True
    )
    bench.calls.submit(spec, array, array, Operation.SUM)
    assert seen == [array.ctypes.data]
    assert renewed == []  # another part of the same allocation may be on its way


def test_empty_arrays_of_any_shape() -> None:
    calls = Bench().calls
    assert calls.empty((), np.dtype(np.float64)).shape == ()
    assert calls.empty((0, 3), np.dtype(np.int8)).shape == (0, 3)
    assert calls.empty((2, 3), np.dtype(np.int64)).flags.c_contiguous


@pytest.mark.parametrize("shape", [(10**13,), (2**32, 2**32), (2**40, 2**40, 2**40)])
def test_an_empty_array_that_is_too_large_is_refused_at_once(shape: tuple[int, ...]) -> None:
    with pytest.raises(TransportError, match=r"no memory left for \d+ bytes .*: \d+ bytes .* are available"):
        Bench().calls.empty(shape, np.dtype(np.float32))


def test_a_forked_child_does_not_wait_for_its_parents_operation() -> None:
    """In a process of its own: this one may have threads, and must not be forked then."""
    script = """
import os
from byteps_py.errors import NotInitializedError
from unit.test_calls import Bench
bench = Bench()
pending = bench.submit(bench.place("w", 0, 8))
if not os.fork():
    bench.calls.lock.acquire()  # as another thread of the parent may have had it
    bench.endpoint.send = None
    pending.done()
    refused = 0
    for attempt in (pending.wait, lambda: bench.calls.submit(pending.spec, None, None, None)):
        try:
            attempt()
        except NotInitializedError:
            refused += 1
    os._exit(5 + refused)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    here = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "7\n", done.stderr
