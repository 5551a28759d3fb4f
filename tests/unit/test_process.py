"""Identity of processes, and proof that one is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from byteps_py.roles import process
from byteps_py.roles.process import describe_process, describe_this_process, is_proven_gone, is_running
from byteps_py.wire.control import ProcessInfo

STAT = "4242 (python3) {} 1 4242 1 0 -1 4194304 100 0 0 0 0 0 0 0 20 0 1 0 {} 3133440 384 18446744073709551615"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until its standard input is closed."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def fake_proc(root: Path, pid: int, stat: str | None) -> None:
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text("boot\n")
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").write_text("")
    if stat is not None:
        (root / str(pid)).mkdir()
        (root / str(pid) / "stat").write_text(stat)


class TestDescribe:
    def test_this_process(self) -> None:
        here = describe_this_process()
        assert here.pid == os.getpid()
        assert here.started > 0
        assert here.host
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert here.host_id == f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
        assert describe_this_process() == here

    def test_a_child_has_the_same_host_and_its_own_start(self, child: subprocess.Popen[bytes]) -> None:
        here, other = describe_this_process(), describe_process(child.pid)
        assert (other.host, other.host_id) == (here.host, here.host_id)
        assert other.pid == child.pid
        assert other.started >= here.started

    def test_an_unknown_pid_has_no_start(self) -> None:
        assert describe_process(2**31 - 1).started == 0

    def test_without_proc_no_two_processes_share_a_host_id(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(process, "_PROC", tmp_path / "absent")
        here = describe_this_process()
        assert here.started == 0
        assert str(os.getpid()) in here.host_id


class TestRunning:
    def test_a_living_process_runs(self, child: subprocess.Popen[bytes]) -> None:
        assert is_running(describe_process(child.pid), describe_this_process())

    def test_a_stopped_one_does_not(self, child: subprocess.Popen[bytes]) -> None:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert not is_running(describe_process(child.pid), describe_this_process())

    def test_a_zombie_does_not(self, child: subprocess.Popen[bytes]) -> None:
        info = describe_process(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(info, describe_this_process())

    def test_what_cannot_be_seen_is_not_known_to_run(self, child: subprocess.Popen[bytes]) -> None:
        info, here = describe_process(child.pid), describe_this_process()
        assert not is_running(msgspec.structs.replace(info, host_id="elsewhere"), here)
        assert not is_running(msgspec.structs.replace(info, started=info.started - 1), here)
        assert not is_running(msgspec.structs.replace(info, started=0), here)
        assert not is_running(msgspec.structs.replace(info, pid=0), here)
        child.kill()
        child.wait()
        assert not is_running(info, here)


class TestProvenGone:
    def test_a_living_process_is_not(self, child: subprocess.Popen[bytes]) -> None:
        assert is_proven_gone(describe_process(child.pid), describe_this_process()) is None
        assert is_proven_gone(describe_this_process(), describe_this_process()) is None

    def test_a_reaped_process_is(self, child: subprocess.Popen[bytes]) -> None:
        info = describe_process(child.pid)
        child.kill()
        child.wait()
        assert is_proven_gone(info, describe_this_process()) == f"its process {info.pid} on {info.host} is gone"

    def test_a_zombie_is(self, child: subprocess.Popen[bytes]) -> None:
        info = describe_process(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        how = is_proven_gone(info, describe_this_process())
        assert how == f"its process {info.pid} on {info.host} has ended and waits to be reaped"

    def test_a_reused_process_id_is(self, child: subprocess.Popen[bytes]) -> None:
        info = describe_process(child.pid)
        earlier = msgspec.structs.replace(info, started=info.started - 1)
        how = is_proven_gone(earlier, describe_this_process())
        assert how is not None
        assert "another process" in how

    def test_an_unknown_start_is_no_proof(self, child: subprocess.Popen[bytes]) -> None:
        info = msgspec.structs.replace(describe_process(child.pid), started=0)
        assert is_proven_gone(info, describe_this_process()) is None

    def test_another_host_is_no_proof(self, child: subprocess.Popen[bytes]) -> None:
        info = msgspec.structs.replace(describe_process(child.pid), host_id="elsewhere")
        child.kill()
        child.wait()
        assert is_proven_gone(info, describe_this_process()) is None

    def test_a_hidden_process_is_no_proof(
        self, child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        info = describe_process(child.pid)
        fake_proc(tmp_path, child.pid, None)
        monkeypatch.setattr(process, "_PROC", tmp_path)
        assert is_proven_gone(info, info) is None

    def test_a_process_of_another_user_is_no_proof(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(pid: int, signal: int) -> None:
            raise PermissionError(pid, signal)

        monkeypatch.setattr(os, "kill", refuse)
        assert is_proven_gone(describe_this_process(), describe_this_process()) is None

    @pytest.mark.parametrize("state", ["Z", "X", "x"])
    def test_states_that_are(self, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_proc(tmp_path, os.getpid(), STAT.format(state, 77))
        monkeypatch.setattr(process, "_PROC", tmp_path)
        info = ProcessInfo("host-a", "same", os.getpid(), 77)
        assert is_proven_gone(info, info) is not None

    @pytest.mark.parametrize("state", ["R", "S", "D", "T", "t", "I"])
    def test_states_that_are_not(self, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_proc(tmp_path, os.getpid(), STAT.format(state, 77))
        monkeypatch.setattr(process, "_PROC", tmp_path)
        info = ProcessInfo("host-a", "same", os.getpid(), 77)
        assert is_proven_gone(info, info) is None

    def test_a_pid_that_names_a_group_is_never_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "kill", lambda pid, signal: pytest.fail("kill was called"))
        info = ProcessInfo("host-a", "same", 0, 77)
        assert is_proven_gone(info, info) is None


class TestParseStat:
    @pytest.mark.parametrize("name", ["python3", "a b", "a) Z 1 1 1", "(((", ") R 0"])
    def test_the_name_may_hold_anything(self, name: str) -> None:
        text = STAT.replace("python3", name).format("S", 5)
        assert process._parse_stat(text) == ("S", 5)

    @pytest.mark.parametrize("text", ["", "4242", "4242 (x) S 1 2", STAT.format("S", "abc")])
    def test_anything_else_tells_nothing(self, text: str) -> None:
        assert process._parse_stat(text) is None
