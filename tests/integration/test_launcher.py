"""``bpslaunch`` with real processes: what reaches the command, what comes out, and that everything ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from byteps_py.launcher.processes import module_command
from tests.helpers.jobs import free_port
from tests.helpers.launches import FOR_EVER, JOIN, PYTHON, SLEEP, TRAIN, Launch, launches, running, still_there, until

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    with launches(tmp_path) as start:
        yield start


# What reaches the command.


def test_words_arrive_as_they_are(launch: Callable[..., Launch]) -> None:
    words = ["a b", 'quo"te', "it's", "new\nline", "", "$HOME", "; exit 9", "*", "-n", "--", "ünï"]
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    launched = launch("-n", "1", PYTHON, "-c", show, *words)
    assert launched.wait() == 0
    assert json.loads(launched.out_lines[0].removeprefix("[worker 0] ")) == words


def test_each_worker_knows_its_place(launch: Callable[..., Launch]) -> None:
    show = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k[:4] in ('DMLC', 'BYTE')}))"
    foreign = {"DMLC_NUM_WORKER": "7", "DMLC_PS_ROOT_URI": "10.0.0.1"}
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, "-c", JOIN + show, env=foreign)
    assert launched.wait() == 0
    found = [json.loads(line.split("] ", 1)[1]) for line in sorted(launched.out_lines)]
    assert [each["BYTEPS_LOCAL_RANK"] for each in found] == ["0", "1"]
    for each in found:
        assert each["DMLC_ROLE"] == "worker"
        assert each["DMLC_NUM_WORKER"] == "1"
        assert each["DMLC_PS_ROOT_URI"] == "127.0.0.1"
    assert "these are not used: DMLC_NUM_WORKER=7 DMLC_PS_ROOT_URI=10.0.0.1" in launched.err
    assert re.search(r"bpslaunch: 2 workers, 1 server, scheduler on 127\.0\.0\.1:\d+, job [0-9a-f]{16}; ", launched.err)


@pytest.mark.parametrize(("count", "expected"), [("1", ["[worker 0] hello"]), ("2", ["[worker 0] ", "[worker 1] "])])
def test_one_worker_alone_reads_standard_input(
    launch: Callable[..., Launch], tmp_path: Path, count: str, expected: list[str]
) -> None:
    (tmp_path / "input").write_text("hello")
    with (tmp_path / "input").open("rb") as stdin:
        launched = launch("-n", count, PYTHON, "-c", JOIN + "import sys; print(sys.stdin.read())", stdin=stdin)
        assert launched.wait() == 0
    assert sorted(launched.out_lines) == expected


def test_a_signal_with_a_meaning_of_its_own_reaches_the_worker(launch: Callable[..., Launch]) -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('usr1')); print('up'); signal.pause()"
    launched = launch("-n", "1", PYTHON, "-c", code)
    until(lambda: "up" in launched.out)
    launched.signal(signal.SIGUSR1)
    assert launched.wait() == 0
    assert launched.out_lines == ["[worker 0] up", "[worker 0] usr1"]


# What comes out.


def test_stdout_stays_stdout_and_stderr_stays_stderr(launch: Callable[..., Launch]) -> None:
    code = "import sys; print('to out'); print('to err', file=sys.stderr); sys.stdout.write('unfinished')"
    launched = launch("-n", "1", PYTHON, "-c", code)
    assert launched.wait() == 0
    assert launched.out == "[worker 0] to out\n[worker 0] unfinished"
    assert [line for line in launched.err.splitlines() if "bpslaunch:" not in line] == ["[worker 0] to err"]


def test_output_is_not_buffered(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "1", PYTHON, "-c", "import time; print('now', end=''); time.sleep(1000)")
    until(lambda: launched.out == "[worker 0] now")
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 143


@pytest.mark.parametrize("options", [("-n", "1"), ("-n", "2", "-s", "1")])
def test_no_prefix(launch: Callable[..., Launch], options: tuple[str, ...]) -> None:
    launched = launch("--no-prefix", *options, PYTHON, "-c", JOIN + "print('{}')")
    assert launched.wait() == 0
    assert launched.out_lines == ["{}"] * int(options[1])


def test_megabytes_without_a_newline_use_no_memory(launch: Callable[..., Launch]) -> None:
    code = "import sys; w = sys.stdout.buffer.write; [w(b'x' * 1000000) for _ in range(50)]; sys.stdin.read()"
    launched = launch("-n", "1", PYTHON, "-c", code, stdin=subprocess.PIPE)
    expected = 50_000_000 + len("[worker 0] ")
    until(lambda: launched.out_path.stat().st_size == expected)
    status = Path(f"/proc/{launched.process.pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]
    assert peak < 120_000, "much more than Python and NumPy need"
    assert launched.process.stdin is not None
    launched.process.stdin.close()
    assert launched.wait() == 0
    assert launched.out_path.read_bytes() == b"[worker 0] " + b"x" * 50_000_000


def test_a_slow_reader_loses_nothing(launch: Callable[..., Launch]) -> None:
    reading, writing = os.pipe()
    launched = launch("-n", "1", PYTHON, "-c", "for i in range(200000): print(i)", stdout=writing)
    os.close(writing)
    time.sleep(1.0)
    with os.fdopen(reading) as pipe:
        assert pipe.read().splitlines() == [f"[worker 0] {i}" for i in range(200000)]
    assert launched.wait() == 0


def test_the_command_learns_that_nobody_reads(launch: Callable[..., Launch]) -> None:
    reading, writing = os.pipe()
    code = "import time\nwhile True: print('line'); time.sleep(0.01)"
    launched = launch("-n", "1", PYTHON, "-c", code, stdout=writing)
    os.close(writing)
    assert os.read(reading, 10) == b"[worker 0]"
    os.close(reading)
    assert launched.wait() == 1
    assert "BrokenPipeError" in launched.err


def test_a_reader_that_does_not_read_does_not_stop_ctrl_c(launch: Callable[..., Launch]) -> None:
    reading, writing = os.pipe()
    launched = launch("-n", "1", PYTHON, "-c", "while True: print('line' * 1000)", stdout=writing)
    os.close(writing)
    # Once the launcher has filled the pipe it would block, if it could.
    until(lambda: launched.children().keys() == {"guard", "worker 0"})
    time.sleep(1.0)
    launched.signal(signal.SIGINT)
    assert launched.wait(15) == 130
    os.close(reading)


# How it ends.


def test_a_command_that_never_joins_its_job(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "echo", "hello")
    assert launched.wait() == 0
    assert sorted(launched.out_lines) == ["[worker 0] hello", "[worker 1] hello"]


def test_a_job_that_ends_well(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "2", "--", PYTHON, "-c", TRAIN, "5")
    assert launched.wait() == 0
    assert sorted(line for line in launched.out_lines if "sum" in line) == ["[worker 0] sum 3.0", "[worker 1] sum 3.0"]
    assert len(launched.err.splitlines()) == 1, launched.err


def test_the_exit_status_is_that_of_the_failed_command(launch: Callable[..., Launch]) -> None:
    started = time.monotonic()
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, "-c", "import sys; sys.exit(3)")
    assert launched.wait() == 3
    assert time.monotonic() - started < 10
    assert re.search(r"bpslaunch: worker [01] \(pid \d+\) exited with status 3", launched.err)


@pytest.mark.parametrize("victim", ["scheduler", "server", "worker 0", "worker 1", "guard"])
def test_the_death_of_any_process_ends_all_others(launch: Callable[..., Launch], victim: str) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER)
    processes = running(launched)
    assert processes.keys() == {"scheduler", "server", "worker 0", "worker 1", "guard"}
    pid = processes[victim].pid
    processes[victim].kill()
    assert launched.wait(10) == 137
    name = {"server": "server 0", "guard": "the launcher's guard"}.get(victim, victim)
    assert f"bpslaunch: {name} (pid {pid}) was killed by signal 9 (SIGKILL)" in launched.err
    assert still_there(processes) == []


def test_the_others_name_the_lost_one(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER)
    victim = running(launched)["worker 1"]
    victim.kill()
    assert launched.wait(10) == 137
    for label in ("[worker 0]", "[server 0]", "[scheduler]"):
        lines = [line for line in launched.err.splitlines() if line.startswith(label)]
        assert any("worker 1" in line and str(victim.pid) in line for line in lines), launched.err


def test_the_launchers_own_death_ends_all(launch: Callable[..., Launch]) -> None:
    code = f"import subprocess; subprocess.Popen(['sleep', '1000'])\n{TRAIN}"
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, "-c", code, "1000000")
    processes = running(launched)
    for name in ("worker 0", "worker 1"):
        (helper,) = processes[name].children()
        processes[f"helper of {name}"] = helper
    launched.process.kill()
    launched.wait()
    until(lambda: not still_there(processes), 10)


def test_a_process_that_cannot_be_asked_is_killed(launch: Callable[..., Launch]) -> None:
    stubborn = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    code = f"{stubborn}\nif os.environ['BYTEPS_LOCAL_RANK'] == '1': sys.exit(4)\ntime.sleep(1000)"
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, "-c", code)
    started = time.monotonic()
    assert launched.wait() == 4
    assert time.monotonic() - started < 15
    assert "still running, and killed now: worker 0" in launched.err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_job(launch: Callable[..., Launch], number: signal.Signals, status: int) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *FOR_EVER)
    processes = running(launched)
    # As a terminal does it: to the whole foreground group, which the children are not part of.
    os.killpg(launched.process.pid, number)
    assert launched.wait(10) == status
    assert still_there(processes) == []
    assert f"bpslaunch: {number.name}: ending the job" in launched.err
    if number == signal.SIGINT:
        lines = [line for line in launched.err.splitlines()[1:] if line and "still running" not in line]
        assert lines == ["bpslaunch: SIGINT: ending the job"]


def test_a_worker_may_end_in_its_own_way_after_a_signal(launch: Callable[..., Launch]) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: print('saved')); print('up'); signal.pause()"
    launched = launch("-n", "2", "-s", "1", "--", PYTHON, "-c", code)
    until(lambda: launched.out.count("up") == 2)
    launched.signal(signal.SIGTERM)
    assert launched.wait(10) == 143
    assert launched.out.count("saved") == 2


def test_a_second_signal_kills(launch: Callable[..., Launch]) -> None:
    code = "import signal; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN); print('up')\n"
    launched = launch("-n", "1", PYTHON, "-c", f"{code}while True: signal.pause()")
    until(lambda: "up" in launched.out)
    launched.signal(signal.SIGINT)
    until(lambda: "ending the job" in launched.err)
    time.sleep(1.2)
    launched.signal(signal.SIGINT)
    assert launched.wait(3) == 130
    assert "interrupted again" in launched.err


def test_what_a_process_leaves_running_is_ended(launch: Callable[..., Launch]) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid)"
    launched = launch("-n", "1", PYTHON, "-c", code)
    assert launched.wait(10) == 0
    pid = int(launched.out_lines[0].split()[-1])
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_daemon_is_ended_too(launch: Callable[..., Launch]) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
    launched = launch("-n", "1", PYTHON, "-c", code)
    assert launched.wait(10) == 0
    assert launched.processes() == {}


def test_workers_that_end_without_joining(launch: Callable[..., Launch]) -> None:
    """Nothing is waited for, and nothing is said about a scheduler and a server that nobody needed."""
    for command, status in (("true", 0), ("exit 7", 7)):
        launched = launch("-n", "2", "--", "sh", "-c", command)
        started = time.monotonic()
        assert launched.wait() == status
        assert time.monotonic() - started < 10
        expected = re.compile("exited with status 7|no worker called init|joined the job")  # if the scheduler was up
        assert [line for line in launched.err.splitlines()[1:] if not expected.search(line)] == []


def test_a_worker_that_ends_well_without_joining_while_another_waits(launch: Callable[..., Launch]) -> None:
    code = "import os\nif os.environ['BYTEPS_LOCAL_RANK'] == '0': raise SystemExit(0)\n" + JOIN
    launched = launch("-n", "2", "--", PYTHON, "-c", code)
    assert launched.wait(30) == 1
    assert re.search(r"ended with status 0 before it joined the job", launched.err), launched.err


def test_an_idle_launcher_uses_no_cpu(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "-s", "1", "--", *SLEEP)
    until(lambda: launched.out.count("up") == 2)
    watched = [psutil.Process(launched.process.pid), launched.children()["guard"]]
    before = [sum(each.cpu_times()[:2]) for each in watched]
    time.sleep(3)
    used = [sum(each.cpu_times()[:2]) - earlier for each, earlier in zip(watched, before, strict=True)]
    assert max(used) < 0.05
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 143


# What cannot be started.


def test_no_such_command(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "2", "no-such-command")
    assert launched.wait() == 127
    assert launched.err == "bpslaunch: there is no command 'no-such-command'\n"


def test_a_command_that_cannot_be_executed(launch: Callable[..., Launch], tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\x00\x01\x02")
    launched = launch("-n", "2", str(tmp_path / "data"))
    assert launched.wait() == 126
    assert launched.err.startswith(f"bpslaunch: '{tmp_path}/data' is not an executable file: name the program")
    (tmp_path / "data").chmod(0o755)
    launched = launch("-n", "2", str(tmp_path / "data"))
    assert launched.wait(10) == 126
    assert f"worker 0 cannot be started: '{tmp_path}/data': Exec format error: it is no program" in launched.err


def test_a_script_without_a_first_line(launch: Callable[..., Launch], tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("echo hello\n")
    (tmp_path / "train.sh").chmod(0o755)
    launched = launch("-n", "2", str(tmp_path / "train.sh"))
    assert launched.wait() == 126
    assert f"has no first line such as #!/bin/bash; run it with 'bash {tmp_path}/train.sh'" in launched.err


def test_too_few_descriptors(launch: Callable[..., Launch]) -> None:
    launched = launch("-n", "30", "sleep", "1000", before=("sh", "-c", 'ulimit -n 64; exec "$@"', "sh"))
    assert launched.wait() == 1
    text = r"worker \d+ cannot be started: Too many open files: raise the limit \(ulimit -n, now 64\)"
    assert re.search(text, launched.err), launched.err
    assert launched.processes() == {}


def test_usage_errors_start_nothing(launch: Callable[..., Launch]) -> None:
    for words, text in (
        (("-n", "2"), "the command that the workers run is missing"),
        (("-n", "2", "-s", "0", "true"), "-s 0 with 2 workers"),
    ):
        launched = launch(*words)
        assert launched.wait() == 2
        assert text in launched.err


# One role of a job that spans machines.


@pytest.fixture
def job() -> dict[str, str]:
    return {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
    }


@pytest.mark.parametrize("role", ["worker", "server", "scheduler"])
def test_every_missing_variable_is_told(launch: Callable[..., Launch], job: dict[str, str], role: str) -> None:
    launched = launch("true", env={"DMLC_ROLE": role})
    assert launched.wait() == 2
    assert [line.split()[1] for line in launched.err.splitlines()] == list(job)


def test_a_bad_role(launch: Callable[..., Launch]) -> None:
    launched = launch("true", env={"DMLC_ROLE": "boss"})
    assert launched.wait() == 2
    assert launched.err == "bpslaunch: DMLC_ROLE='boss' must be one of scheduler, server, worker\n"


def test_four_launchers_make_a_job(launch: Callable[..., Launch], job: dict[str, str]) -> None:
    workers = [
        launch(PYTHON, "-c", TRAIN, "3", env={**job, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(index)})
        for index in range(2)
    ]
    server = launch("ignored", env={**job, "DMLC_ROLE": "SERVER"})
    scheduler = launch(env={**job, "DMLC_ROLE": "scheduler"})
    assert [each.wait() for each in (*workers, server, scheduler)] == [0, 0, 0, 0]
    assert [each.out_lines[-1] for each in workers] == ["[worker 0] sum 3.0", "[worker 1] sum 3.0"]


def test_two_workers_on_one_machine(launch: Callable[..., Launch], job: dict[str, str]) -> None:
    local = {**job, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    other = {**job, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1"}
    code = "import byteps_py as bps; bps.init(); print(bps.rank(), bps.size(), bps.local_rank(), bps.local_size())"
    workers = [launch(PYTHON, "-c", code, env=env) for env in (local, other)]
    services = [launch(env={**job, "DMLC_ROLE": role}) for role in ("scheduler", "server")]
    assert [each.wait() for each in (*workers, *services)] == [0, 0, 0, 0]
    assert sorted(workers[0].out_lines) == ["[worker 0.0] 0 3 0 2", "[worker 0.1] 1 3 1 2"]
    assert workers[1].out_lines == ["[worker 1] 2 3 0 1"]


def test_the_only_machine_runs_the_whole_job(launch: Callable[..., Launch], job: dict[str, str]) -> None:
    only = {**job, "DMLC_NUM_WORKER": "1", "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    launched = launch(PYTHON, "-c", TRAIN, "2", env=only)
    assert launched.wait() == 0
    assert sorted(launched.out_lines)[-1] == "[worker 1] sum 3.0"
    assert "the whole job runs here" in launched.err
    for role in ("scheduler", "server"):
        service = launch(env={**only, "DMLC_ROLE": role})
        assert service.wait() == 0
        assert f"no {role} is needed" in service.err


def test_the_scheduler_learns_of_a_worker_that_failed_before_it_joined(
    launch: Callable[..., Launch], job: dict[str, str]
) -> None:
    services = [launch(env={**job, "DMLC_ROLE": role}) for role in ("scheduler", "server")]
    until(lambda: "listening at" in services[0].err)
    good = launch(PYTHON, "-c", TRAIN, "3", env={**job, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0"})
    bad = launch(PYTHON, "-c", "raise SystemExit(5)", env={**job, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1"})
    assert bad.wait() == 5
    assert [each.wait(15) for each in (good, *services)] == [1, 1, 1]
    pid = re.search(r"worker 1 \(pid (\d+)\) exited with status 5", bad.err)[1]  # type: ignore[index]
    for each in (good, *services):
        text = rf"worker DMLC_WORKER_ID=1 \(pid {pid} on \S+\) ended with status 5 before it joined the job"
        assert re.search(text, each.err), each.err


@pytest.mark.parametrize(("end", "status"), [("raise SystemExit(3)", 3), ("raise ValueError('too hot')", 1)])
def test_the_status_and_the_name_are_those_of_the_worker_that_failed(
    end: str, status: int, launch: Callable[..., Launch]
) -> None:
    """Whoever waits for it fails too, but later."""
    body = (
        "import numpy as np, byteps_py as bps\nbps.init()\nfor step in range(40):\n"
        f"    if step == 20 and bps.rank() == 1: {end}\n    bps.push_pull(np.ones(3), 'x')\n"
    )
    for _ in range(3):
        job = launch("-n", "3", "-s", "1", "--", PYTHON, "-c", body)
        assert job.wait() == status, job.err
        first = next(line for line in job.err.splitlines() if line.startswith("bpslaunch: ") and "exited" in line)
        assert "worker 1 (pid " in first, job.err
        assert f"exited with status {status}" in first, job.err


def test_services_do_not_import_from_the_working_folder(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "queue.py").write_text("raise RuntimeError('imported from the working folder')")
    body = "import sys; sys.path[:1] = []; import byteps_py as bps; bps.init(); print(bps.push_pull([1.0], 'x'))"
    job = launch("-n", "2", "-s", "1", "--", PYTHON, "-P" if sys.version_info >= (3, 11) else "-u", "-c", body)
    assert job.wait() == 0, job.err
    assert "working folder" not in job.err


def test_modules_that_python_itself_needs_are_not_taken_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("types", "contextlib", "warnings", "operator", "keyword", "signal"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported from the working folder')")
    run = subprocess.run(
        module_command("byteps_py", "--version"), cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_a_killed_launcher_is_named(launch: Callable[..., Launch]) -> None:
    job = launch("-n", "2", "-s", "1", "--", *FOR_EVER)
    until(lambda: job.out.count("first") == 2)
    job.signal(signal.SIGKILL)
    job.wait()
    until(lambda: f"bpslaunch (pid {job.process.pid}) was killed" in job.err)
