"""Ports, addresses and neighbours, with real processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.helpers.jobs import free_port, free_range, has_version_six, job, running

pytestmark = pytest.mark.timeout(90)

VERSION_SIX = pytest.mark.skipif(not has_version_six(), reason="this machine has no IPv6")
SUM = "print('sum', bps.push_pull(np.ones(2, np.float32), 'x')[0])\nbps.shutdown()\n"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user's process")
OTHER_USER = 65534
LOAD = (
    "import email.parser, encodings.idna\n"
    "import byteps_py.kernels.native, byteps_py.kernels.native_ledger, byteps_py.objects\n"
    "import byteps_py.operations, byteps_py.ports.holders\n"
    "import byteps_py.session, byteps_py.version\n"
)
"""What is imported late, and may lie in a folder that another user cannot read."""


def namespaces_may_be_made() -> bool:
    made = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return made.returncode == 0


LAUNCH = (sys.executable, "-m", "byteps_py.launcher.main")
MOUNTS = pytest.mark.skipif(not namespaces_may_be_made(), reason="needs root: file systems of its own")


def variables(role: str, port: int | None = None, host: str = "127.0.0.1") -> dict[str, str]:
    """The environment of a process of a job of one worker and one server."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    return {
        **clean,
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": str(port or free_port()),
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


class TestInterface:
    def test_every_role_lists_the_interfaces_where_the_name_is_wrong(self, tmp_path: Path) -> None:
        with running(tmp_path, SUM, workers=1, DMLC_INTERFACE="no0") as made:
            assert set(made.wait(40).values()) == {2}
            for name in made.processes:
                text = "DMLC_INTERFACE=no0 is no network interface of this machine: there are "
                assert text in made.output(name)
                assert "lo (127.0.0.1" in made.output(name)

    def test_the_server_says_which_address_it_has_and_why(self, tmp_path: Path) -> None:
        with running(tmp_path, SUM, workers=1, DMLC_INTERFACE="lo", BYTEPS_LOG_LEVEL="info") as made:
            assert set(made.wait(40).values()) == {0}
            text = "the own address is 127.0.0.1, the address of interface lo (DMLC_INTERFACE)"
            assert text in made.output("server0")


class TestKubernetes:
    def test_the_scheduler_listens_everywhere_whatever_its_service_is_called(self, tmp_path: Path) -> None:
        with job(tmp_path, DMLC_PS_ROOT_URI="no-such-service.invalid", DMLC_USE_KUBERNETES="1") as made:
            made.scheduler()
            everywhere = "[::]" if Path("/proc/net/if_inet6").exists() else "0.0.0.0"
            made.wait_for("scheduler", f"listening at tcp://{everywhere}:")


class TestNames:
    @pytest.mark.parametrize("host", ["localhost", pytest.param("::1", marks=VERSION_SIX)])
    def test_a_job_by_name_and_by_version_six(self, tmp_path: Path, host: str) -> None:
        with running(tmp_path, SUM, DMLC_PS_ROOT_URI=host, DMLC_NODE_HOST=host) as made:
            assert set(made.wait(40).values()) == {0}, made.everything()
            assert "sum 2.0" in made.output("worker1")

    def test_a_name_that_nobody_knows(self, tmp_path: Path) -> None:
        unknown = "the host name 'no-such-host.invalid' cannot be resolved ("
        with running(
            tmp_path, SUM, workers=1, DMLC_PS_ROOT_URI="no-such-host.invalid", BYTEPS_START_TIMEOUT="2"
        ) as made:
            assert set(made.wait(40).values()) == {1}
            for name in made.processes:
                assert unknown in made.output(name)
                assert "(BYTEPS_START_TIMEOUT)" in made.output(name)

    @MOUNTS
    def test_a_name_that_appears_late(self, tmp_path: Path) -> None:
        """All in a file system of its own, where ``/etc/hosts`` gets the name when all processes have missed it."""
        hosts, script = tmp_path / "hosts", tmp_path / "script"
        hosts.write_text("127.0.0.1 localhost\n")
        script.write_text(
            f"mount --bind {hosts} /etc/hosts\n"
            f'python() {{ {sys.executable} "$@" 2>&1; }}\n'
            'for role in scheduler server; do DMLC_ROLE=$role python -m byteps_py $role & pids+=" $!"; done\n'
            f'DMLC_ROLE=worker DMLC_WORKER_ID=0 python -c "$CODE" & pids+=" $!"\n'
            "read line\n"
            f"echo 127.0.0.2 scheduler.test >> {hosts}\n"
            "for pid in $pids; do wait $pid || echo status $?; done\n"
        )
        environ = {
            **variables("worker", host="scheduler.test"),
            "CODE": f"import numpy as np, byteps_py as bps\nbps.init()\n{SUM}",
        }
        command = ["unshare", "-m", "--kill-child", "bash", str(script)]
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as shell:
            assert shell.stdin is not None
            assert shell.stdout is not None
            seen = ""
            while seen.count("'scheduler.test' cannot be resolved") < 3:
                line = shell.stdout.readline()
                assert line, seen
                seen += line
            rest = shell.communicate("go\n", timeout=60)[0]
        assert "sum 1.0" in rest, seen + rest
        assert "status" not in rest


class TestPorts:
    def test_a_stale_scheduler_is_named(self, tmp_path: Path) -> None:
        port = str(free_port())
        (old := tmp_path / "old").mkdir()
        with job(old, DMLC_PS_ROOT_PORT=port) as stale, job(tmp_path, DMLC_PS_ROOT_PORT=port) as made:
            stale.scheduler()
            stale.wait_for("scheduler", "listening at")
            made.scheduler()
            assert made.wait() == {"scheduler": 1}
            pid = stale.processes["scheduler"].pid
            user = psutil.Process(pid).username()
            assert f"port {port} on 127.0.0.1 is in use by process {pid} of user {user} since 20" in made.output(
                "scheduler"
            )
            assert f"maybe a stale one: end it by `kill {pid}`, or choose another DMLC_PS_ROOT_PORT" in made.output(
                "scheduler"
            )

    @AS_ROOT
    @pytest.mark.parametrize("seen_by", ["root", "a third user"])
    def test_a_process_of_another_user(self, tmp_path: Path, seen_by: str) -> None:
        """Two users on one host: only root sees whose process it is."""
        port = free_port()
        listen = (
            f"import socket, sys; s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True); input()"
        )
        with subprocess.Popen(
            ["/usr/bin/env", "-i", "/usr/bin/python3", "-c", listen],
            user=OTHER_USER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"up\n"
            become = "" if seen_by == "root" else f"{LOAD}os.setgroups([]); os.setuid(65533)\n"
            code = "import os, byteps_py.roles.scheduler, byteps_py.cli as cli"
            made = subprocess.run(
                [sys.executable, "-c", f"{code}\n{become}cli.main()", "scheduler"],
                env=variables("scheduler", port),
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            other.communicate(b"\n")
        whose = f"process {other.pid} of user nobody" if seen_by == "root" else "a process of another user (root sees"
        assert f"port {port} on 127.0.0.1 is in use by {whose}" in made.stderr

    def test_servers_share_a_range_and_one_too_many_names_who_holds_it(self, tmp_path: Path) -> None:
        low, high = free_range(3)
        with job(
            tmp_path, 1, 2, DMLC_PS_ROOT_PORT=str(low), BYTEPS_PORT_RANGE=f"{low}-{high}", BYTEPS_LOG_LEVEL="info"
        ) as made:
            made.scheduler()
            for index in range(2):
                made.server(index)
                made.wait_for(f"server{index}", "listening at")
            ports = {
                made.output(f"server{index}").partition("listening at tcp://127.0.0.1:")[2][:5] for index in range(2)
            }
            assert ports == {str(low + 1), str(high)}
            made.server(2)
            assert made.processes["server2"].wait(30) == 1
            text = made.output("server2")
            assert f"no port of BYTEPS_PORT_RANGE={low}-{high} is free: held are {low + 1} by process " in text
            assert f"process {made.processes['server1'].pid} of user" in text
            del made.processes["server2"]
            made.worker(0, SUM)
            assert set(made.wait(40).values()) == {0}, made.everything()

    def test_a_launched_job_keeps_to_a_range(self, tmp_path: Path) -> None:
        low, high = free_range(2)
        body = "import psutil; print(sorted(each.laddr.port for each in psutil.net_connections('tcp')))\n"
        done = launch(tmp_path, body, "-n", "2", "-s", "1", BYTEPS_PORT_RANGE=f"{low}-{high}")
        assert done.returncode == 0, done.stdout
        assert f"{low}, " in done.stdout
        assert f"{high}, " in done.stdout


@contextlib.contextmanager
def http_server(port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until_listening(port)
            yield
        finally:
            server.kill()


def wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens at {port}")


class TestWrongScheduler:
    def test_nobody_listens(self, tmp_path: Path) -> None:
        with job(tmp_path, 1, 1, BYTEPS_START_TIMEOUT="1") as made:
            made.worker(0, SUM)
            assert made.wait() == {"worker0": 1}
            text = made.output("worker0")
            assert "within 1 s (BYTEPS_START_TIMEOUT): connections are refused (nothing listens there): check" in text

    def test_another_program_listens(self, tmp_path: Path) -> None:
        with job(tmp_path, 1, 1, BYTEPS_START_TIMEOUT="1", DMLC_PS_ROOT_PORT=str(port := free_port())) as made:
            with http_server(port):
                made.worker(0, SUM)
                assert made.wait() == {"worker0": 1}
            assert "(BYTEPS_START_TIMEOUT): something that is not byteps_py listens there" in made.output("worker0")

    def test_a_server_is_taken_for_the_scheduler(self, tmp_path: Path) -> None:
        with job(tmp_path, 1, 1, BYTEPS_LOG_LEVEL="info", DMLC_PORT=str(port := free_port())) as made:
            made.scheduler()
            made.server(0)
            made.wait_for("server0", "listening at")
            made.worker(0, SUM, DMLC_PS_ROOT_PORT=str(port))
            assert made.processes["worker0"].wait(30) == 1
            text = "refused this process: a server of a job listens there, whose scheduler is at 127.0.0.1:"
            assert text in made.output("worker0")
            assert "check DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT" in made.output("worker0")


def launch(
    folder: Path, body: str, *options: str, limit: int | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """``bpslaunch`` of workers that join, sum and run ``body``; both streams in ``stdout``."""
    code = f"import numpy as np, byteps_py as bps\nbps.init()\n{body}{SUM}"
    limited = [] if limit is None else ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash"]
    base = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    return subprocess.run(
        [*limited, *LAUNCH, *options, "--", sys.executable, "-c", code],
        env={**base, "OMP_NUM_THREADS": "1", **environ},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


class TestFewFiles:
    def test_64_are_enough_for_a_small_job(self, tmp_path: Path) -> None:
        done = launch(tmp_path, "", "-n", "2", "-s", "1", limit=64)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("sum 2.0") == 2

    @pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
    def test_where_they_are_not_enough_every_role_says_so(self, tmp_path: Path, role: str) -> None:
        code = "import byteps_py as bps; bps.init()"
        command = [sys.executable, *(["-c", code] if role == "worker" else ["-m", "byteps_py", role])]
        done = subprocess.run(
            ["bash", "-c", 'ulimit -n 10; exec "$@"', "bash", *command],
            env=variables(role),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        assert "the limit of open files is too low: " in done.stderr
        assert "and `ulimit -n` is 10: raise it where this job is started" in done.stderr


class TestNeighbours:
    def test_two_launched_jobs_at_once(self, tmp_path: Path) -> None:
        low, high = free_range(4)
        with ThreadPoolExecutor() as pool:
            jobs = [
                pool.submit(launch, tmp_path, "", "-n", "2", "-s", "1", BYTEPS_PORT_RANGE=f"{low}-{high}")
                for _ in range(2)
            ]
        for each in jobs:
            assert each.result().returncode == 0, each.result().stdout
            assert each.result().stdout.count("sum 2.0") == 2

    def test_a_stale_worker_does_not_get_into_the_next_job_at_its_port(self, tmp_path: Path) -> None:
        """The scheduler of the first job is replaced while a worker of it is stopped."""
        port = str(free_port())
        (old := tmp_path / "old").mkdir()
        with job(old, 2, 1, DMLC_PS_ROOT_PORT=port) as stale:
            stale.scheduler()
            stale.worker(0, SUM)
            stale.wait_for("scheduler", "joined")
            stale.processes["worker0"].send_signal(signal.SIGSTOP)
            stale.kill("scheduler")
            with running(tmp_path, SUM, DMLC_PS_ROOT_PORT=port) as made:
                made.wait_for("scheduler", "joined")
                stale.processes["worker0"].send_signal(signal.SIGCONT)
                assert set(made.wait(40).values()) == {0}, made.everything()
                assert "sum 2.0" in made.output("worker0")
            assert stale.processes["worker0"].wait(40) == 1
            assert "was lost" in stale.output("worker0")

    @MOUNTS
    def test_a_read_only_file_system_but_for_one_folder_and_little_shared_memory(self, tmp_path: Path) -> None:
        script = (
            "set -e; mount --make-rprivate /; mount -t tmpfs -o size=64m tmpfs /dev/shm; "
            f"mount --bind {tmp_path} {tmp_path}; mount -o remount,ro,bind /; "
            'if touch /var/tmp/x /tmp/x 2>/dev/null; then exit 99; fi; exec "$@"'
        )
        big = "print('big', bps.push_pull(np.ones(24 << 20, np.float32), 'big')[-1])\n"
        code = f"import numpy as np, byteps_py as bps\nbps.init()\n{big}{SUM}"
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", script, "bash", *LAUNCH, "-n", "2", "-s", "1", sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": "/nonexistent", "TMPDIR": str(tmp_path)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=80,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("big 2.0") == 2

    @AS_ROOT
    def test_another_user_without_a_home(self, tmp_path: Path) -> None:
        """A job of root, and meanwhile one of a user who owns nothing."""
        tmp_path.chmod(0o755)
        code = (
            "import os, sys, threading\n"
            "from byteps_py.roles import scheduler, server\n"
            "from byteps_py.settings import SchedulerSettings, ServerSettings, read\n"
            "import numpy as np, byteps_py as bps\n"
            f"{LOAD}os.setgroups([]); os.setuid({OTHER_USER})\n"
            "ends = []\n"
            "for role, kind in ((scheduler, SchedulerSettings), (server, ServerSettings)):\n"
            "    body = lambda role=role, kind=kind: ends.append(role.run(read(kind)))\n"
            "    threading.Thread(target=body, daemon=True).start()\n"
            "bps.init()\n"
            "print('sum', bps.push_pull(np.ones(2, np.float32), 'x')[0])\n"
            "bps.shutdown()\n"
        )
        environ = variables("worker")
        del environ["HOME"]
        with running(tmp_path, f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)\n{SUM}") as made:
            made.wait_for("scheduler", "joined: workers 2/2")
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=environ,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            (tmp_path / "go").touch()
            assert set(made.wait(40).values()) == {0}, made.everything()
        assert done.returncode == 0, done.stderr
        assert done.stdout == "sum 1.0\n"
