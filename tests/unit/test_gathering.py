"""What is said while a job is not complete."""

from __future__ import annotations

from byteps_py.core.actions import Log, Send
from byteps_py.core.gathering import Gathering
from byteps_py.core.launches import Launches
from byteps_py.core.roster import Member, Roster
from byteps_py.core.strangers import Strangers
from byteps_py.wire.control import Child, ProcessInfo, Vouch, Waiting
from tests.helpers.registrations import process, server, worker


class Waiters:
    """A gathering with its roster."""

    def __init__(self, start_timeout: float = 120.0) -> None:
        self.roster = Roster(2, 1)
        strangers = Strangers("job", 1, ProcessInfo("host-s", "boot-of-host-s", 1, 1))
        self.launches = Launches(self.roster, strangers, lost_timeout=30.0)
        self.gathering = Gathering(self.roster, self.launches, start_timeout)

    def join(self, now: float, member: Member) -> list[object]:
        assert self.roster.add(member) is None
        return list(self.gathering.joined(now, member))

    def vouch(self, now: float) -> None:
        """The launcher on host-b vouches for its worker."""
        self.launches.vouch(now, b"l", Vouch("job", "x", 1, 1, (Child(0, process(7, "host-b")),)), is_waiting=True)

    def leave(self, peer: bytes) -> None:
        self.roster.remove(peer)
        self.gathering.removed()


class TestJoined:
    def test_progress_is_logged(self) -> None:
        waiters = Waiters()
        expected = "worker DMLC_WORKER_ID=0 (pid 1 on host-a) joined: workers 1/2, servers 0/1"
        assert waiters.join(0.0, worker(1, worker_id=0)) == [Log("info", expected)]

    def test_another_version_of_the_package_is_a_warning(self) -> None:
        waiters = Waiters()
        waiters.join(0.0, worker(1))
        assert len(waiters.join(0.0, server(2))) == 1
        text = (
            "byteps_py is 0.1.0 on worker (pid 1 on host-a) and 0.2.0 on worker (pid 3 on host-a): "
            "install the same version everywhere"
        )
        assert waiters.join(0.0, worker(3, version="0.2.0"))[1:] == [Log("warning", text)]


class TestRemind:
    def test_before_the_first_process_only_the_log_hears_it(self) -> None:
        waiters = Waiters()
        found = {now: waiters.gathering.remind(float(now)) for now in range(200)}
        assert [now for now, actions in found.items() if actions] == [10, 20, 30, 40, 50, 60, 120, 180]
        assert found[10] == [Log("warning", "waiting 10 s for 2 of 2 workers; servers 0/1")]

    def test_later_everybody_hears_it_every_ten_seconds(self) -> None:
        waiters = Waiters()
        for now in range(25):
            waiters.gathering.remind(float(now))
        waiters.join(25.0, worker(1, worker_id=0))
        waiters.join(33.0, server(9))
        found = {now: waiters.gathering.remind(float(now)) for now in range(25, 125)}
        assert [now for now, actions in found.items() if actions] == list(range(35, 125, 10))
        text = "waiting 10 s for 1 of 2 workers: missing DMLC_WORKER_ID=1; servers 1/1"
        assert found[35] == [Log("warning", text), Send(b"w1", Waiting(text)), Send(b"s9", Waiting(text))]

    def test_a_worker_that_is_known_to_live_is_named(self) -> None:
        waiters = Waiters()
        waiters.join(0.0, worker(1, worker_id=0))
        waiters.vouch(1.0)
        (log, _) = waiters.gathering.remind(10.0)
        assert isinstance(log, Log)
        assert log.text == (
            "waiting 10 s for 1 of 2 workers: missing DMLC_WORKER_ID=1; servers 0/1; "
            "worker DMLC_WORKER_ID=1 runs on host-b (pid 7) but has not called init() yet"
        )


class TestFailure:
    def test_never_before_the_first_process(self) -> None:
        waiters = Waiters()
        for now in range(0, 10_000, 100):
            waiters.gathering.remind(float(now))
            assert waiters.gathering.failure(float(now)) is None

    def test_counts_from_the_first_registration(self) -> None:
        waiters = Waiters(start_timeout=120)
        waiters.gathering.remind(0.0)
        waiters.join(1000.0, worker(1, worker_id=0))
        waiters.join(1100.0, server(9))
        assert waiters.gathering.failure(1119.0) is None
        assert waiters.gathering.failure(1120.0) == (
            "waiting 120 s for 1 of 2 workers: missing DMLC_WORKER_ID=1; servers 1/1; "
            "gave up after BYTEPS_START_TIMEOUT=120 seconds"
        )

    def test_begins_anew_when_nobody_waits_any_more(self) -> None:
        waiters = Waiters(start_timeout=120)
        waiters.join(0.0, worker(1))
        waiters.leave(b"w1")
        assert waiters.gathering.failure(130.0) is None
        waiters.join(140.0, worker(2))
        assert waiters.gathering.failure(250.0) is None
        assert waiters.gathering.failure(260.0) is not None

    def test_goes_on_while_somebody_waits(self) -> None:
        waiters = Waiters(start_timeout=120)
        waiters.join(0.0, worker(1))
        waiters.join(100.0, worker(2))
        waiters.leave(b"w1")
        assert waiters.gathering.failure(120.0) is not None

    def test_no_limit(self) -> None:
        waiters = Waiters(start_timeout=0)
        waiters.join(0.0, worker(1))
        assert waiters.gathering.failure(1e9) is None

    def test_whoever_is_known_to_live_is_not_given_up(self) -> None:
        waiters = Waiters(start_timeout=120)
        waiters.join(0.0, worker(1, worker_id=0))
        waiters.join(0.0, server(9))
        for now in range(1000):
            waiters.vouch(float(now))
            assert waiters.gathering.failure(float(now)) is None
        assert waiters.gathering.failure(1028.0) is None
        failure = waiters.gathering.failure(1029.0)
        assert failure is not None
        assert "1 of 2 workers: missing DMLC_WORKER_ID=1; servers 1/1; gave up" in failure

    def test_others_are(self) -> None:
        waiters = Waiters(start_timeout=120)
        waiters.join(0.0, worker(1, worker_id=0))
        waiters.vouch(119.0)
        failure = waiters.gathering.failure(120.0)
        assert failure is not None
        assert "servers 0/1; worker DMLC_WORKER_ID=1 runs on host-b (pid 7) but" in failure
