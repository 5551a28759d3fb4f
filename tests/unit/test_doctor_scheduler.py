"""What is asked of a scheduler, and what is said of its answers and of those who do not answer."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from byteps_py.doctor.address import interface_of, judge, judge_name
from byteps_py.doctor.findings import Finding
from byteps_py.doctor.inquiry import EXCHANGES, Answer, Exchange, best_clock, inquire
from byteps_py.doctor.loading import Loaded, Loader
from byteps_py.doctor.scheduler import compare_software, is_another_job, judge_answer, judge_probes, own_software
from byteps_py.settings import JobSettings
from byteps_py.transport.loopback import LoopbackNetwork
from byteps_py.transport.probe import Finding as Probed
from byteps_py.transport.probe import Verdict
from byteps_py.types import Role
from byteps_py.wire.control import Inquiry, Refused, Status, Waiting, decode_control, encode_control
from byteps_py.wire.inquiry import Software
from tests.helpers.messages import CONTROL

ADDRESS = "tcp://127.0.0.1:9000"
JOB = JobSettings(num_worker=2, num_server=1, root_uri="head", root_port=9000, job_id="digits")
STATUS = CONTROL["status"]
assert isinstance(STATUS, Status)
OWN = Software(Role.WORKER, "0.1.0", "Python 3.11.7, numpy 2.1.0", 1, "this host")
GREETS = Probed(Verdict.GREETS, "somebody")
REFUSED = Probed(Verdict.REFUSED, "connections are refused (nothing listens there)")


def shown(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(each.severity.value, each.text) for each in findings]


class TestClock:
    def test_the_least_round_trip_counts(self) -> None:
        slow = Exchange(asked=10.0, theirs=15.0, answered=12.0)
        fast = Exchange(asked=20.0, theirs=23.05, answered=20.1)
        assert best_clock((slow, fast, slow)) == pytest.approx((3.0, 0.05))

    @pytest.mark.parametrize("offset", [-7.0, 0.0, 1e6])
    def test_the_truth_lies_within_the_bound(self, offset: float) -> None:
        for there, back in ((0.0, 1.0), (1.0, 0.0), (0.3, 0.1)):
            found, bound = best_clock((Exchange(100.0, 100.0 + there + offset, 100.0 + there + back),))
            assert abs(found - offset) <= bound + 1e-9


@contextmanager
def somebody(answer: Callable[[Inquiry], list[bytes]]) -> Iterator[LoopbackNetwork]:
    """Listens in the place of a scheduler."""
    network = LoopbackNetwork()
    endpoint = network.endpoint(b"s")
    endpoint.listen(ADDRESS)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            for message in endpoint.receive(0.05):
                said = decode_control(message.frames[0])
                assert isinstance(said, Inquiry)
                for frame in answer(said):
                    endpoint.send(message.peer, [frame])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield network
    finally:
        over.set()
        thread.join()
        endpoint.close()


def ask(answer: Callable[[Inquiry], list[bytes]], timeout: float = 30.0) -> Answer:
    with somebody(answer) as network:
        endpoint = network.endpoint(b"doctor-1")
        try:
            return inquire(endpoint, ADDRESS, timeout)
        finally:
            endpoint.close()


class TestInquire:
    def test_answers(self) -> None:
        def answer(inquiry: Inquiry) -> list[bytes]:
            assert isinstance(STATUS, Status)
            late = msgspec.structs.replace(STATUS, number=inquiry.number + 100)
            right = msgspec.structs.replace(STATUS, number=inquiry.number)
            return [encode_control(each) for each in (late, Waiting("patience"), right)]

        found = ask(answer)
        assert found.status is not None
        assert found.status.number == 1
        assert len(found.exchanges) == EXCHANGES
        assert all(each.round_trip >= 0 and each.theirs == 1.7e9 for each in found.exchanges)
        assert not found.refusal

    def test_nobody_answers(self) -> None:
        assert ask(lambda inquiry: [], timeout=0.2) == Answer()

    def test_another_version(self) -> None:
        found = ask(lambda inquiry: [b"BPSc\x63\x80"])
        assert found.status is None
        assert "speaks protocol version 99, this process 1" in found.misunderstood
        assert not found.refusal

    def test_a_scheduler_that_knows_no_inquiries(self) -> None:
        found = ask(lambda inquiry: [encode_control(Refused("a control message is malformed"))])
        assert (found.refusal, found.misunderstood) == ("a control message is malformed", "")


class TestProbes:
    def test_nothing_is_said_of_who_greets(self) -> None:
        assert list(judge_probes("head:9000", {"10.0.0.1": GREETS}, False)) == []

    @pytest.mark.parametrize(
        ("verdict", "remedy"),
        [
            (Verdict.REFUSED, "start it"),
            (Verdict.SILENT, "firewall"),
            (Verdict.UNREACHABLE, "routes"),
            (Verdict.FOREIGN, "end what listens there"),
            (Verdict.UNTRIED, "open files"),
        ],
    )
    def test_each_obstacle_has_its_remedy(self, verdict: Verdict, remedy: str) -> None:
        (found,) = judge_probes("head:9000", {"10.0.0.1": Probed(verdict, "so it is")}, False)
        assert (found.severity.value, found.text) == ("problem", "the scheduler at head:9000: so it is")
        assert remedy in found.remedy

    def test_one_of_several_addresses(self) -> None:
        (found,) = judge_probes("head:9000", {"fd00::1": REFUSED, "10.0.0.1": GREETS}, False)
        assert found.severity.value == "warning"
        assert "head:9000 (fd00::1): connections are refused" in found.text

    def test_a_scheduler_that_is_yet_to_be_started(self) -> None:
        (found,) = judge_probes("head:9000", {"10.0.0.1": REFUSED}, True)
        assert found.severity.value == "note"


class TestAnswers:
    def test_a_job_that_waits(self) -> None:
        exchange = Exchange(1.7e9, 1.7e9 + 0.5, 1.7e9 + 0.001)
        found = shown(judge_answer(JOB, "head:9000", Answer(STATUS, (exchange,))))
        assert found[0] == (
            "ok",
            "the scheduler at head:9000 (byteps_py 0.1.0, pid 4242 on node-a) answers; its job 'digits' is gathering, "
            "5 s after its start: 1 of 2 worker machines complete (3 processes), 0 of 1 server",
        )
        assert found[1] == ("note", "it waits for 1 of 1 servers; workers 2/2")
        assert found[2] == ("ok", "its clock is 499.5 ms ahead of this one's, give or take 0.5 ms")

    def test_a_clock_that_is_wrong(self) -> None:
        exchange = Exchange(1.7e9, 1.7e9 - 3600, 1.7e9 + 1)
        found = list(judge_answer(JOB, "head:9000", Answer(STATUS, (exchange,))))
        (clock,) = (each for each in found if "clock" in each.text)
        assert clock.severity.value == "note"
        assert "3600500.0 ms behind" in clock.text
        assert clock.facts == {"offset_s": -3600.5, "bound_s": 0.5}

    @pytest.mark.parametrize("role", [None, Role.SCHEDULER, Role.WORKER])
    def test_a_suspended_job_goes_on_with_whatever_numbers(self, role: Role | None) -> None:
        assert isinstance(STATUS, Status)
        missing = "the workers, of which none has called resume() yet"
        suspended = msgspec.structs.replace(
            STATUS, state="suspended", num_worker=4, num_server=3, servers=3, missing=missing
        )
        found = list(judge_answer(JOB, "head:9000", Answer(suspended), role))
        assert [each.severity.value for each in found] == ["ok", "note"]
        assert found[0].text.endswith("its job 'digits' is suspended, 5 s after its start: 3 servers in reserve")
        assert found[1].text == f"it waits for {missing}"
        assert "call resume()" in found[1].remedy
        assert not is_another_job(JOB, suspended)
        assert is_another_job(JOB, msgspec.structs.replace(suspended, job_id="else"))
        assert is_another_job(JOB, msgspec.structs.replace(suspended, state="running"))

    def test_another_job(self) -> None:
        assert isinstance(STATUS, Status)
        other = msgspec.structs.replace(STATUS, job_id="else", num_worker=4, num_server=3, state="ending")
        found = shown(judge_answer(JOB, "head:9000", Answer(other)))
        problems = [text for severity, text in found if severity == "problem"]
        assert "belongs to job 'else', this process to job 'digits'" in problems[0]
        assert problems[1:] == [
            "DMLC_NUM_WORKER is 2 here and 4 at the scheduler",
            "DMLC_NUM_SERVER is 1 here and 3 at the scheduler",
        ]
        assert ("note", "its job is ending: who comes now is too late") in found

    def test_another_job_where_a_scheduler_is_to_be_started(self) -> None:
        assert isinstance(STATUS, Status)
        other = msgspec.structs.replace(STATUS, job_id="else", num_worker=1, workers=1)
        (first,) = judge_answer(JOB, "head:9000", Answer(other), Role.SCHEDULER)
        assert first.severity.value == "problem"
        assert first.text == (
            "the scheduler at head:9000 (byteps_py 0.1.0, pid 4242 on node-a) is there already: it belongs to another "
            "job, 'else' of 1 worker machine and 1 server; this one is 'digits' of 2 worker machines and 1 server"
        )
        assert first.remedy.startswith("choose another DMLC_PS_ROOT_PORT for this job")
        assert "BYTEPS_JOB_ID" not in first.remedy, "this one does not want to join that job"
        *_, last = judge_answer(JOB, "head:9000", Answer(msgspec.structs.replace(other, missing="")))
        assert last.text.endswith("start: 1 of 1 worker machine complete (1 process), 0 of 1 server")

    def test_no_answer(self) -> None:
        (silent,) = judge_answer(JOB, "head:9000", Answer())
        assert silent.text == "who listens at head:9000 speaks ZeroMQ, but does not answer as a scheduler of byteps_py"
        (other,) = judge_answer(JOB, "head:9000", Answer(misunderstood="the peer speaks protocol version 2"))
        assert other.text.endswith("another version of byteps_py: the peer speaks protocol version 2")
        (server,) = judge_answer(JOB, "head:9000", Answer(refusal="a server of a job listens there"))
        assert server.text.endswith("refuses to tell how a job stands: a server of a job listens there")
        assert {silent.severity.value, other.severity.value, server.severity.value} == {"problem"}


class Installed(Loader):
    """A host with one framework that can be imported and one that cannot."""

    def load(self) -> list[list[Loaded]]:
        kernels = Loaded("byteps_py.kernels.native")
        return [
            [kernels, Loaded("torch", "2.6.0"), Loaded("sklearn", "1.5")],
            [kernels, Loaded("mxnet", "1.9.1", error="AttributeError: bool")],
        ]


class TestSoftware:
    def test_it_agrees(self) -> None:
        scheduler = Software(Role.SCHEDULER, "0.1.0", "Python 3.11.7, numpy 2.1.0", 1, "a")
        workers = Software(Role.WORKER, "0.1.0", "Python 3.11.7, numpy 2.1.0, torch 2.6.0", 3, "b")
        (found,) = compare_software(OWN, (scheduler, workers))
        common = "byteps_py 0.1.0, Python 3.11.7, numpy 2.1.0 (all 5 processes)"
        assert found.text == f"the versions agree: {common}, torch 2.6.0 (3 of 5, none on this host)"
        own = msgspec.structs.replace(OWN, others=f"{OWN.others}, torch 2.6.0")
        (found,) = compare_software(own, (scheduler, workers))
        assert found.text == f"the versions agree: {common}, torch 2.6.0 (4 of 5)"
        assert found.facts == {"processes": {"byteps_py": 5, "Python": 5, "numpy": 5, "torch": 4}}

    def test_frameworks_of_this_host_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("torch", "mxnet"):  # what this process has loaded is not what the loader found
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(__version__="1.0"))  # type: ignore[arg-type]
        own = own_software(Installed())
        assert own.others == f"Python {platform.python_version()}, numpy {np.__version__}, torch 2.6.0"
        workers = Software(Role.WORKER, own.version, own.others.replace("torch 2.6.0", "torch 2.7.0"), 2, "b")
        assert shown(compare_software(own, (workers,))) == [
            ("warning", "versions of torch differ: 2.6.0 on this host; 2.7.0 on 2 workers (b)")
        ]

    def test_it_differs(self) -> None:
        scheduler = Software(Role.SCHEDULER, "0.2.0", "Python 3.12.1", 1, "a")
        old = Software(Role.WORKER, "0.1.0", "Python 3.11.7, torch 2.6.0", 3, "b")
        new = Software(Role.WORKER, "0.1.0", "Python 3.11.7, torch 2.7.0", 1, "c")
        assert shown(compare_software(OWN, (scheduler, old, new))) == [
            (
                "warning",
                "versions of byteps_py differ: "
                "0.1.0 on this host, 3 workers (b), 1 worker (c); 0.2.0 on 1 scheduler (a)",
            ),
            (
                "note",
                "versions of Python differ: "
                "3.11.7 on this host, 3 workers (b), 1 worker (c); 3.12.1 on 1 scheduler (a)",
            ),
            ("warning", "versions of torch differ: 2.6.0 on 3 workers (b); 2.7.0 on 1 worker (c)"),
        ]

    def test_members_that_do_not_say(self) -> None:
        silent = Software(Role.SERVER, "0.1.0", "", 2, "a")
        assert [each.severity.value for each in compare_software(OWN, (silent,))] == ["ok"]


class TestAddress:
    """What is said of an address and of a name."""

    @pytest.mark.parametrize(
        ("numeric", "interface", "is_here", "words"),
        [
            ("127.0.0.1", "lo", True, "127.0.0.1 is loopback"),
            ("172.17.0.2", "eth0", True, "172.17.0.2 on eth0 belongs to a bridge of Docker"),
            ("192.168.5.1", "docker0", True, "a bridge of Docker"),
            ("169.254.3.4", "eth0", True, "link-local"),
            ("fe80::1%eth0", "eth0", True, "link-local"),
            ("10.9.9.9", "", False, "is no address of this machine"),
        ],
    )
    def test_one_that_is_doubtful(self, numeric: str, interface: str, is_here: bool, words: str) -> None:
        (found,) = judge(numeric, interface, JOB, is_here)
        assert found.severity.value == "warning"
        assert words in found.text
        assert found.remedy

    def test_one_that_is_good(self) -> None:
        assert list(judge("10.0.0.2", "eth0", JOB, True)) == list(judge("fd00::2", "eth0", JOB, True)) == []
        alone = JobSettings(num_worker=1, num_server=1, root_uri="head", root_port=9000)
        assert list(judge("127.0.0.1", "lo", alone, True)) == [], "all workers run here"
        assert interface_of("10.0.0.2", {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"]}) == "eth0"
        assert interface_of("10.0.0.9", {"lo": ["127.0.0.1"]}) == ""

    @pytest.mark.parametrize(
        ("targets", "words"),
        [
            (["10.0.0.2", "fd00::2"], "IPv4 and IPv6 (10.0.0.2, fd00::2)"),
            (["10.0.0.2", "10.0.0.3"], "several addresses (10.0.0.2, 10.0.0.3)"),
            (["127.0.1.1"], "is 127.0.1.1 here: the machine's own name"),
        ],
    )
    def test_a_name(self, targets: list[str], words: str) -> None:
        (found,) = judge_name(JOB, targets)
        assert words in found.text

    def test_a_name_that_is_good(self) -> None:
        assert list(judge_name(JOB, ["10.0.0.2"])) == []
        numeric = JobSettings(num_worker=1, num_server=1, root_uri="127.0.0.1", root_port=9000)
        assert list(judge_name(numeric, ["127.0.0.1"])) == []
