"""One example of every message: the golden files hold their bytes, and the fuzz tests start from them."""

from __future__ import annotations

import struct

from byteps_py.types import (
    DType,
    Operation,
    Participant,
    Partition,
    Role,
    ServerInfo,
    TensorSpec,
    make_key,
    make_tensor_id,
)
from byteps_py.wire import control
from byteps_py.wire.control import ControlMessage
from byteps_py.wire.header import Flag, Header, Opcode
from byteps_py.wire.inquiry import Software

JOB = 0x0123456789ABCDEF
WORKER = 0x1122334455667788
SERVER = 0x99AABBCCDDEEFF00
PROCESS = control.ProcessInfo(host="node-a", host_id="boot:4026531836", pid=4242, started=98765)

DATA: dict[str, tuple[Header, bytes | None]] = {
    "push": (
        Header(
            opcode=Opcode.PUSH,
            sender=1,
            job=JOB,
            incarnation=WORKER,
            epoch=2,
            key=make_key(7, 3),
            round=5,
            dtype=DType.FLOAT32,
            operation=Operation.AVERAGE,
            flags=Flag.WANT_RESULT,
            step=41,
            offset=3072,
            count=2,
            length=8,
        ),
        struct.pack("<2f", 1.0, -2.5),
    ),
    "push-absent": (
        Header(
            opcode=Opcode.PUSH,
            sender=1,
            job=JOB,
            incarnation=WORKER,
            epoch=2,
            key=make_key(8, 0),
            round=1,
            dtype=DType.BFLOAT16,
            operation=Operation.BROADCAST,
            flags=Flag.ABSENT | Flag.WANT_RESULT,
            root=513,
            count=1000,
        ),
        None,
    ),
    "push-partial": (
        Header(
            opcode=Opcode.PUSH,
            sender=1,
            job=JOB,
            incarnation=WORKER,
            epoch=2,
            key=make_key(8, 0),
            round=3,
            dtype=DType.BFLOAT16,
            operation=Operation.SUM,
            flags=Flag.PARTIAL | Flag.WANT_RESULT,
            detail=3,
            count=2,
            length=8,
        ),
        struct.pack("<2f", 1.0, -2.5),
    ),
    "push-difference": (
        Header(
            opcode=Opcode.PUSH,
            sender=1,
            job=JOB,
            incarnation=WORKER,
            epoch=2,
            key=make_key(7, 3),
            round=6,
            dtype=DType.FLOAT32,
            operation=Operation.DIFFERENCE,
            flags=Flag.WANT_RESULT,
            step=42,
            offset=3072,
            count=2,
            length=8,
        ),
        struct.pack("<2f", 1.0, -2.5),
    ),
    "result-difference": (
        Header(
            opcode=Opcode.RESULT,
            sender=3,
            job=JOB,
            incarnation=SERVER,
            epoch=0,
            key=make_key(7, 3),
            round=6,
            dtype=DType.FLOAT32,
            operation=Operation.DIFFERENCE,
            detail=4,
            step=42,
            offset=3072,
            count=2,
            length=8,
        ),
        struct.pack("<2f", 3.5, 0.25),
    ),
    "push-rows": (
        Header(
            opcode=Opcode.PUSH,
            sender=1,
            job=JOB,
            incarnation=WORKER,
            epoch=2,
            key=make_key(7, 3),
            round=5,
            dtype=DType.FLOAT32,
            operation=Operation.AVERAGE,
            flags=Flag.WANT_RESULT | Flag.ROWS,
            step=41,
            offset=3072,
            count=1024,
            length=48,
        ),
        struct.pack("<2Q2q4f", 2, 2, 1536, 2047, 1.0, -2.5, 0.5, -1.25),
    ),
    "pull": (
        Header(opcode=Opcode.PULL, sender=0, job=JOB, incarnation=WORKER, epoch=0, key=make_key(7, 3), round=5),
        None,
    ),
    "accept": (
        Header(
            opcode=Opcode.ACCEPT,
            sender=3,
            job=JOB,
            incarnation=SERVER,
            epoch=0,
            key=0,
            round=0,
            detail=2,
            length=32,
        ),
        struct.pack("<4Q", make_key(7, 3), 5, make_key(8, 0), 1),
    ),
    "result": (
        Header(
            opcode=Opcode.RESULT,
            sender=3,
            job=JOB,
            incarnation=SERVER,
            epoch=0,
            key=make_key(7, 3),
            round=5,
            dtype=DType.INT8,
            detail=4,
            step=41,
            count=3,
            length=3,
        ),
        b"\x01\xff\x80",
    ),
    "result-rows": (
        Header(
            opcode=Opcode.RESULT,
            sender=3,
            job=JOB,
            incarnation=SERVER,
            epoch=0,
            key=make_key(7, 3),
            round=5,
            dtype=DType.INT8,
            flags=Flag.ROWS,
            detail=4,
            step=41,
            count=12,
            length=27,
        ),
        struct.pack("<2Qq3b", 1, 3, 2, 1, -1, -128),
    ),
    "missing": (
        Header(opcode=Opcode.MISSING, sender=3, job=JOB, incarnation=SERVER, epoch=0, key=make_key(7, 3), round=5),
        None,
    ),
    "reject": (
        Header(
            opcode=Opcode.REJECT,
            sender=3,
            job=JOB,
            incarnation=SERVER,
            epoch=0,
            key=make_key(7, 3),
            round=5,
            detail=1,
            length=16,
        ),
        b"worker 1 left: 3",
    ),
    "probe": (
        Header(
            opcode=Opcode.PROBE, sender=3, job=JOB, incarnation=WORKER, epoch=0, key=make_key(0, 0), round=2, length=3
        ),
        b"abc",
    ),
    "probed": (
        Header(opcode=Opcode.PROBED, sender=3, job=JOB, incarnation=SERVER, epoch=0, key=make_key(0, 0), round=2),
        None,
    ),
    "waiting": (
        Header(
            opcode=Opcode.WAITING,
            sender=3,
            job=JOB,
            incarnation=SERVER,
            epoch=0,
            key=make_key(7, 3),
            round=5,
            detail=2,
            length=8,
        ),
        struct.pack("<2I", 0, 70000),
    ),
}
"""By the name of the golden file: header and payload."""

BUNDLES: dict[str, tuple[Header, bytes, bytes]] = {
    "push-many": (
        Header(
            opcode=Opcode.PUSH_MANY,
            sender=1,
            job=JOB,
            incarnation=WORKER,
            epoch=2,
            key=0,
            round=17,
            detail=2,
            length=8,
        ),
        struct.pack("<QQQIIHBBB3x", make_key(7, 0), 5, 41, 0, 2, 0, DType.FLOAT32, Operation.AVERAGE, 2)
        + struct.pack("<QQQIIHBBB3x", make_key(8, 0), 1, 41, 0, 1000, 0, DType.INT8, Operation.SUM, 3),
        struct.pack("<2f", 1.0, -2.5),
    ),
    "result-many": (
        Header(
            opcode=Opcode.RESULT_MANY,
            sender=3,
            job=JOB,
            incarnation=SERVER,
            epoch=0,
            key=0,
            round=1,
            detail=2,
            length=16,
        ),
        struct.pack("<QQQIIHBBB3x", make_key(9, 0), 5, 41, 0, 3, 4, DType.INT8, Operation.SUM, 0)
        + struct.pack("<QQQIIHBBB3x", make_key(7, 0), 5, 41, 8, 2, 2, DType.FLOAT32, Operation.AVERAGE, 0),
        b"\x01\xff\x80" + bytes(5) + struct.pack("<2f", 0.5, -1.25),
    ),
}
"""By the name of the golden file: header, table and payload."""

CONTROL: dict[str, ControlMessage] = {
    "register": control.Register(
        version="0.1.0",
        job_id="digits",
        role=Role.WORKER,
        process=PROCESS,
        incarnation=WORKER,
        num_worker=2,
        num_server=1,
        worker_id=1,
        local_rank=0,
        local_size=2,
        launch_id="a1b2",
        address="",
        partition_bytes=4096000,
        transport="auto",
        local_reduce="on",
        software="Python 3.11.7, numpy 2.1.0",
        enable_async=True,
        async_max_staleness=3,
        global_rank=3,
        resumes=True,
    ),
    "refused": control.Refused(reason="another job"),
    "waiting": control.Waiting(text="waiting 10 s for 1 of 2 workers"),
    "notice": control.Notice(text="was told to end (SIGTERM)"),
    "welcome": control.Welcome(
        job=JOB,
        epoch=0,
        rank=1,
        participants=(
            Participant(0, 0, 0, 1, "node-a", 4242, WORKER),
            Participant(1, 1, 0, 1, "node-b", 17, 2**64 - 1),
        ),
        servers=(ServerInfo(0, "tcp://10.0.0.3:40000", "node-c", 99, SERVER),),
    ),
    "declare": control.Declare(
        request=1,
        tensors=(TensorSpec("Gradient.weight", DType.FLOAT16, (3, 4)), TensorSpec("scalar", DType.INT64, (), 7)),
        link=300,
    ),
    "declared": control.Declared(
        request=1,
        placements=(
            control.Placement("Gradient.weight", 0, (Partition(make_key(0, 0), 0, 8, 1), Partition(1, 8, 4, 0))),
            control.Placement("scalar", make_tensor_id(7, 0), (Partition(make_key(make_tensor_id(7, 0), 0), 0, 1, 0),)),
        ),
        partition_bytes=300,
        window_bytes=301,
    ),
    "conflict": control.Conflict(name="w", text="tensor 'w' is float32 (3,) on worker 0 but int8 (3,) on worker 1"),
    "form-group": control.FormGroup(request=3, ranks=(0, 300)),
    "group": control.Group(group=7, ranks=(0, 300)),
    "group-known": control.GroupKnown(group=7),
    "group-formed": control.GroupFormed(request=3, group=7),
    "barrier": control.Barrier(number=300),
    "barrier-done": control.BarrierDone(number=300),
    "heartbeat": control.Heartbeat(job=JOB),
    "heartbeat-reply": control.HeartbeatReply(scheduler=PROCESS),
    "clock": control.Clock(number=300),
    "clock-reply": control.ClockReply(
        number=300, received=1_764_400_000_000_000_000, replied=1_764_400_000_000_012_345
    ),
    "bye": control.Bye(),
    "left": control.Left(rank=1),
    "suspended": control.Suspended(),
    "child-ended": control.ChildEnded(
        job_id="digits",
        process=PROCESS,
        status=-9,
        launch_id="a1b2",
        worker_id=1,
        local_rank=0,
        local_size=2,
        joined=True,
    ),
    "vouch": control.Vouch(
        job_id="digits", launch_id="a1b2", worker_id=None, local_size=2, children=(control.Child(1, PROCESS),)
    ),
    "vouched": control.Vouched(missing=(0, 300), joined=(1,)),
    "inquiry": control.Inquiry(number=300),
    "status": control.Status(
        number=300,
        job_id="digits",
        state="gathering",
        software=(
            Software(Role.SCHEDULER, "0.1.0", "Python 3.11.7, numpy 2.1.0", 1, "node-a"),
            Software(Role.WORKER, "0.1.0", "Python 3.11.7, numpy 2.1.0, torch 2.6.0", 3, "node-b"),
        ),
        pid=4242,
        num_worker=2,
        num_server=1,
        machines=1,
        workers=3,
        servers=0,
        missing="1 of 1 servers; workers 2/2",
        uptime=5_000_000_000,
        clock=1_700_000_000_000_000_000,
    ),
    "abort": control.Abort(reason="worker 1 (pid 17 on node-b) was lost"),
    "finished": control.Finished(),
}
"""By type tag, which is also the name of the golden file behind ``control-``."""
