"""The launcher is killed with SIGKILL, at any moment: nothing of its job is left, whatever the command has started."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers.launches import FOR_EVER, PYTHON, TRAIN, Launch, launches, running, until

pytestmark = pytest.mark.timeout(120)

GONE_SECONDS = 10.0
"""A process that takes no notice of SIGTERM has 3 s; the rest is for a busy machine."""
TRAIN_SH = f"""
sleep 1001 &
nohup sleep 1002 > nohup.out 2>&1 &
timeout 100 {PYTHON} -c 'import time; time.sleep(1003)' &
setsid {PYTHON} -c 'import time; time.sleep(1004)' &
(setsid sh -c 'env -u BYTEPS_LAUNCH_ID sleep 1005 & wait' &)
sh -c 'env -u BYTEPS_LAUNCH_ID setsid sleep 1006 & wait' &
(env -u BYTEPS_LAUNCH_ID sleep 1007 &)
(trap "" TERM; sleep 1008) &
set -m
sleep 1009 &
set +m
{PYTHON} train.py 1000000
"""
"""In the background, detached, in a process group or session of its own, without the launch's mark, deaf to SIGTERM."""
SLEEPERS = range(1001, 1010)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    with launches(tmp_path) as start:
        yield start


def scripts(folder: Path, script: str = TRAIN_SH) -> str:
    """Writes ``train.sh`` and ``train.py``; returns the path of the former."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "train.sh").write_text(f"cd {folder}\n{script}")
    return str(folder / "train.sh")


def all_gone(launched: Launch) -> None:
    """Wait until nothing is left of a launch that was killed."""
    until(lambda: not launched.processes(), GONE_SECONDS)


def test_whatever_a_script_has_started_is_ended(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "1", "--", "bash", scripts(tmp_path))
    running(launched)
    commands = " ".join(launched.processes().values())
    assert [seconds for seconds in SLEEPERS if commands.count(str(seconds)) < 2] == []
    launched.signal(signal.SIGKILL)
    launched.wait()
    all_gone(launched)
    assert f"bpslaunch (pid {launched.process.pid}) was killed: ending its processes" in launched.err


def test_the_same_holds_for_an_orderly_end(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "1", "--", "bash", scripts(tmp_path, TRAIN_SH.replace("1000000", "3")))
    assert launched.wait() == 0
    assert launched.processes() == {}


def test_timeout_kills_the_launcher(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    words = ("-n", "2", "-s", "1", "--", "bash", scripts(tmp_path))
    launched = launch(*words, before=("timeout", "--foreground", "-s", "KILL", "4"))
    assert launched.wait() == 128 + signal.SIGKILL
    all_gone(launched)


def test_a_launch_inside_a_launch(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    inner = (PYTHON, "-m", "byteps_py.launcher", "-n", "2", "-s", "1", "--", PYTHON, str(tmp_path / "train.py"), "9999")
    launched = launch("-n", "1", *inner)
    until(lambda: launched.out.count("first") == 2)
    assert len(launched.processes()) == 7
    launched.signal(signal.SIGKILL)
    launched.wait()
    all_gone(launched)


def test_the_guard_is_killed_together_with_the_launcher(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER)
    guard = running(launched)["guard"]
    guard.suspend()
    launched.signal(signal.SIGKILL)
    guard.kill()
    launched.wait()
    all_gone(launched)


def test_a_command_without_the_mark(launch: Callable[..., Launch]) -> None:
    """Some programs overwrite their environment, to be called something else by ps."""
    launched = launch("-n", "1", "env", "-u", "BYTEPS_LAUNCH_ID", "sh", "-c", "(sleep 1001 &); echo up; sleep 1002")
    until(lambda: "up" in launched.out)
    launched.signal(signal.SIGKILL)
    launched.wait()
    all_gone(launched)


def test_helpers_may_be_started_to_save(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """SIGTERM goes to what the launch has started, and not to what that starts in order to end well."""
    (tmp_path / "train.sh").write_text(
        "trap 'sh -c \"sleep 1; echo > saved\"; exit 0' TERM\necho up\nwhile true; do sleep 0.1; done\n"
    )
    # Not into a pipe to the launcher: to write there, when it is gone, is the end of bash.
    launched = launch("-n", "1", "bash", "-c", f"cd {tmp_path}; setsid bash train.sh > log 2>&1 & wait")
    until(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    launched.signal(signal.SIGKILL)
    launched.wait()
    all_gone(launched)
    assert (tmp_path / "saved").exists()


def test_data_loaders(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "load.py").write_text(
        "import torch\nimport byteps_py.torch as bps\nfrom torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    bps.init()\n"
        "    for index, _ in enumerate(DataLoader(range(10**9), num_workers=2)):\n"
        "        if index == 0: print('first', flush=True)\n"
    )
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, str(tmp_path / "load.py"))
    until(lambda: launched.out.count("first") == 2, 60)
    assert len(launched.processes()) == 3 + 2 * 3
    launched.signal(signal.SIGKILL)
    launched.wait()
    all_gone(launched)


def test_the_first_moments(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """While the guard and the first processes are being started."""
    moments = random.Random(1)
    for _ in range(5):
        launched = launch("-n", "2", "-s", "1", "--", "bash", scripts(tmp_path))
        own = psutil.Process(launched.process.pid)
        until(own.children)
        time.sleep(moments.uniform(0.0, 0.05))
        launched.signal(signal.SIGKILL)
        launched.wait()
        all_gone(launched)


def test_random_moments(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    moments = random.Random(2)
    script = scripts(tmp_path, f"sleep 1001 &\ntimeout 100 {PYTHON} train.py 1000000\n")
    killed = 0
    for _ in range(20):
        launched = launch("-n", "2", "-s", "1", "--", "bash", script)
        time.sleep(moments.uniform(0.0, 3.0))
        killed += launched.process.poll() is None
        launched.signal(signal.SIGKILL)
        launched.wait()
        all_gone(launched)
    assert killed == 20


def test_a_process_whose_id_was_given_away_is_left_alone(tmp_path: Path) -> None:
    """The guard is told of a process that has ended; another one that leads a session has its id now."""
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        from byteps_py.launcher import sweep

        started = sweep.read_started(stranger.pid)
        words = [PYTHON, "-I", "-S", sweep.__file__, "1", "0", "no-such-launch"]
        told = b"%d %d\n" % (stranger.pid, started - 1)
        guard = subprocess.run(words, input=told, timeout=20, check=True, capture_output=True)
        assert guard.stderr == b"bpslaunch (pid 1) was killed: ending its processes\n"
        assert stranger.poll() is None
        # It is what the guard was told, and nothing else, that saves it.
        subprocess.run(words, input=b"%d %d\n" % (stranger.pid, started), timeout=20, check=True, capture_output=True)
        assert os.waitstatus_to_exitcode(os.waitpid(stranger.pid, 0)[1]) == -signal.SIGTERM
        stranger.returncode = -signal.SIGTERM
    finally:
        if stranger.returncode is None:
            stranger.kill()
            stranger.wait()
