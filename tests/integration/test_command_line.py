"""``bpslaunch`` as it is typed: words, options, dry runs, roles and the shell's completion, with real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import byteps_py
from tests.helpers.jobs import free_port, free_range
from tests.helpers.terminal import terminal

pytestmark = pytest.mark.timeout(90)

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SHOW_WORDS = "import json, sys; print(json.dumps(sys.argv[1:]))"
PUSH_PULL = "import byteps_py as bps, numpy as np; bps.init(); print(bps.push_pull(np.ones(3), 'x'))"


def start(*words: str, folder: Path | None = None, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "byteps_py.launcher", *words],
        cwd=folder,
        env={**os.environ, "PATH": PATH, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Wait for the end, which must come; a launcher that stays is ended with its processes."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        pytest.fail(f"it did not end:\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*words: str, folder: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return finish(start(*words, folder=folder, **environ))


@pytest.fixture
def job() -> dict[str, str]:
    return {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
    }


# What reaches the command.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("--num", "4", "--num-workers", "5", "-n6", "-s", "0", "--dry-run", "--version", "-h")),
        (("--",), ("--", "-n", "--", "-x")),
        (("-n1", "--num-servers=0"), ("", "a b", 'quo"te', "it's", "new\nline", "\t", "$HOME", "`x`", "*", "\\", "#")),
        (("--no-prefix",), ("\udcff\udcfe", "ünï", "\x01")),
    ],
)
def test_every_word_after_the_command_is_the_commands(
    options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(SHOW_WORDS)
    done = run(*options, sys.executable, "t.py", *words, folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert json.loads(done.stdout.removeprefix("[worker 0] ")) == list(words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--num", "4", "true"),
            "there is no option '--num' (did you mean --num-workers or --num-servers or --numa-binding?); ",
        ),
        (("-n", "true"), "argument -n/--num-workers: 'true' must be a whole number from 1 to 65535 (is it missing "),
        (("-n", "2", "--"), "the command that the workers run is missing"),
    ],
)
def test_usage_errors(words: tuple[str, ...], text: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    usage, error = done.stderr.splitlines()
    assert usage == "usage: bpslaunch [options] [--] COMMAND ..."
    assert error.startswith(f"bpslaunch: error: {text}")


# Dry runs.


def blocks(text: str) -> dict[str, str]:
    """The commands that a dry run printed, by the labels of their processes."""
    found = re.findall(r"^# (.*)\n((?:.*\\\n)*.*)\n", text, re.MULTILINE)
    assert found
    return dict(found)


def run_in_shell(commands: list[str], environ: Mapping[str, str]) -> str:
    """Run all commands at once, in a shell that has just these variables and ``PATH``; they must succeed.

    Returns what they print to standard output.
    """
    script = "".join(f"{command} &\njobs+=($!)\n" for command in commands)
    script = f'jobs=()\n{script}for each in "${{jobs[@]}}"; do wait $each || exit 1; done\n'
    done = subprocess.run(
        ["bash", "-c", script],
        env={**environ, "PATH": PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_a_dry_run_are_the_job(tmp_path: Path) -> None:
    foreign = {"DMLC_NUM_WORKER": "7", "BYTEPS_LOCAL_RANK": "3"}
    done = run("--dry-run", "-n", "2", sys.executable, "-c", PUSH_PULL, folder=tmp_path, **foreign)
    assert done.returncode == 0
    commands = blocks(done.stdout)
    assert list(commands) == ["scheduler", "server 0", "worker 0", "worker 1"]
    assert commands["scheduler"].startswith("env -u BYTEPS_LOCAL_RANK \\\n")
    assert "    DMLC_NUM_WORKER=1 \\\n" in commands["worker 1"]
    port = int(re.findall(r"DMLC_PS_ROOT_PORT=(\d+)", done.stdout)[0])
    with socket.socket() as free:
        free.bind(("127.0.0.1", port))
    assert run_in_shell(list(commands.values()), {**os.environ, **foreign}).count("[2. 2. 2.]") == 2


def test_a_dry_run_of_each_role(job: dict[str, str]) -> None:
    commands: list[str] = []
    for role, machine, options in (
        ("scheduler", None, ()),
        ("server", None, ("--omp-num-threads", "1")),
        ("worker", "0", ("-n", "2")),
        ("worker", "1", ()),
    ):
        environ = {"DMLC_ROLE": role} | ({} if machine is None else {"DMLC_WORKER_ID": machine})
        done = run("--dry-run", *options, sys.executable, "-c", PUSH_PULL, **job, **environ)
        assert done.returncode == 0, done.stderr
        commands += blocks(done.stdout).values()
    assert len(commands) == 5
    # The shell has none of the variables that were there when this was printed.
    assert run_in_shell(commands, {"HOME": os.environ["HOME"]}).count("[3. 3. 3.]") == 3


@pytest.mark.parametrize(
    ("words", "environ", "status", "text"),
    [
        (("-n", "2", "no-such-command"), {}, 127, "bpslaunch: there is no command 'no-such-command'\n"),
        (("true",), {"DMLC_ROLE": "worker"}, 2, "bpslaunch: DMLC_NUM_WORKER is not set"),
        (("-n", "2", "true"), {"BYTEPS_GRACE_PERIOD": "soon"}, 2, "bpslaunch: BYTEPS_GRACE_PERIOD='soon' must be"),
    ],
)
def test_a_dry_run_has_the_errors_of_a_start(
    words: tuple[str, ...], environ: dict[str, str], status: int, text: str
) -> None:
    for dry_run in ((), ("--dry-run",)):
        done = run(*dry_run, *words, **environ)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith(text)


# Roles.


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("wroker", "DMLC_ROLE='wroker' must be one of scheduler, server, worker: did you mean worker?"),
        ("joint", "DMLC_ROLE='joint' must be one of scheduler, server, worker"),
    ],
)
def test_a_role_that_is_none(role: str, text: str) -> None:
    done = run("true", DMLC_ROLE=role)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"bpslaunch: {text}\n")


def test_a_role_that_is_empty_is_none() -> None:
    done = run("echo", "alone", DMLC_ROLE=" ")
    assert (done.returncode, done.stdout) == (0, "[worker 0] alone\n")


def test_one_command_line_for_all_machines(job: dict[str, str]) -> None:
    """BytePS users type the same everywhere; only the environment differs."""
    words = ("-n", "2", sys.executable, "-c", PUSH_PULL)
    services = [start(*words, **job, DMLC_ROLE=role) for role in ("SCHEDULER", "Server")]
    workers = [start(*words, **job, DMLC_ROLE="worker", DMLC_WORKER_ID=str(index)) for index in range(2)]
    done = [finish(each) for each in (*workers, *services)]
    assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
    for index in range(2):
        lines = [f"[worker {index}.{local}] [4. 4. 4.]" for local in range(2)]
        assert sorted(done[index].stdout.splitlines()) == lines
    for service, role in zip(done[2:], ("scheduler", "server"), strict=True):
        first = service.stderr.splitlines()[0]
        assert first.startswith(f"bpslaunch: a {role} starts no workers, so this is not used: -n 2 {sys.executable} -c")


def test_the_number_of_servers_does_not_go_with_a_role(job: dict[str, str]) -> None:
    done = run("-s", "2", "true", **job, DMLC_ROLE="worker")
    assert done.returncode == 2
    assert done.stderr.startswith("bpslaunch: -s starts servers for a whole job on this machine, but DMLC_ROLE=worker")


# Logs, and how long the start may take.


def test_each_role_of_a_job_has_a_log_of_its_own(job: dict[str, str], tmp_path: Path) -> None:
    logs = ("--log-dir", str(tmp_path / "new" / "logs"))
    services = [start(*logs, **job, DMLC_ROLE=role) for role in ("scheduler", "server")]
    numbered = start(*logs, sys.executable, "-c", PUSH_PULL, **job, DMLC_ROLE="worker", DMLC_WORKER_ID="1")
    unnumbered = start(*logs, "-n", "2", sys.executable, "-c", PUSH_PULL, **job, DMLC_ROLE="worker")
    done = [finish(each) for each in (*services, numbered, unnumbered)]
    assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
    host = re.sub(r"[ .]", "-", socket.gethostname())
    found = {path.name: path.read_text() for path in (tmp_path / "new" / "logs").iterdir()}
    server = f"server-{host}-pid-{services[1].pid}.log"
    workers = [f"worker-{host}-pid-{unnumbered.pid}-local-{index}.log" for index in range(2)]
    assert found.keys() == {"scheduler.log", server, "worker-1.log", *workers}
    for name in ("worker-1.log", *workers):
        assert found[name] == "[3. 3. 3.]\n"
    # What a service prints is what it would print by itself.
    for name, service in (("scheduler.log", done[0]), (server, done[1])):
        assert found[name] == service.stderr
        assert "listening at" in found[name]


LATE = (
    "import os, time, byteps_py as bps\n"
    "if os.environ['BYTEPS_LOCAL_RANK'] == '1': time.sleep(float(os.environ['LATE']))\n"
    "bps.init(); print('joined')"
)


def test_a_start_that_takes_too_long_is_ended_if_that_is_asked_for() -> None:
    done = run("--start-timeout", "2", "-n", "2", sys.executable, "-c", LATE, LATE="1000")
    assert done.returncode == 1
    assert re.search(r"BYTEPS_START_TIMEOUT=2\b", done.stderr), done.stderr


def test_a_whole_job_has_all_the_time_that_it_needs() -> None:
    done = run("-n", "2", sys.executable, "-c", LATE, LATE="3", BYTEPS_START_TIMEOUT="1")
    assert (done.returncode, done.stdout.count("joined")) == (0, 2), done.stderr
    first = done.stderr.splitlines()[0]
    assert first == "bpslaunch: the whole job runs here, so these are not used: BYTEPS_START_TIMEOUT=1"


# Ports.


def test_two_jobs_at_once_share_a_range_of_ports() -> None:
    ports = "{}-{}".format(*free_range(4))
    words = ("-n", "2", sys.executable, "-c", PUSH_PULL)
    for done in [finish(each) for each in [start(*words, BYTEPS_PORT_RANGE=ports) for _ in range(2)]]:
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["[worker 0] [2. 2. 2.]", "[worker 1] [2. 2. 2.]"]


def test_a_range_that_is_exhausted() -> None:
    ports = "{}-{}".format(*free_range(2))
    done = run("-n", "2", "-s", "2", "true", BYTEPS_PORT_RANGE=ports)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"bpslaunch: BYTEPS_PORT_RANGE={ports} has 2 of the 3 free ports that the scheduler and the servers "
        "of this job need on 127.0.0.1: widen it, or end what uses its ports\n"
    )


# Completion.


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the completion scripts, and something to complete."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        for name, command in (
            ("bpslaunch", ("byteps_py.launcher", "--completion", shell)),
            ("bps", ("byteps_py", "completion", shell)),
        ):
            with (folder / f"{name}.{shell}").open("wb") as output:
                subprocess.run([sys.executable, "-m", *command], stdout=output, check=True, timeout=30)
    (folder / "logs of today").mkdir()
    (folder / "training.py").touch()
    return folder


COMPLETED = {
    "bpslaunch --num": ["--num-servers", "--num-workers", "--numa-binding"],
    "bpslaunch --numa-binding so": ["socket"],
    "bpslaunch -n 2 --dr": ["--dry-run"],
    "bpslaunch -n2 --omp-wait-policy ": ["active", "passive"],
    "bpslaunch --worker-omp-wait-policy = a": ["active"],
    "bpslaunch --worker-omp-wait-policy =": ["active", "passive"],
    "bpslaunch --omp-wait-policy = active --start": ["--start-timeout"],
    "bpslaunch --completion ": ["bash", "zsh"],
    "bpslaunch --log-dir log": ["logs of today"],
    "bpslaunch -n ": [],
    "bpslaunch -n 2 compge": ["compgen"],
    "bpslaunch -n 2 -- compge": ["compgen"],
    "bpslaunch -n 2 python --num": [],
    "bpslaunch -n 2 -- -x --num": [],
    "bps ser": ["server"],
    "bps completion ": ["bash", "zsh"],
    "bps server --he": ["--help"],
    "bps server ": [],
    "bps ab --num": ["--num-servers", "--num-workers"],
    "bps ab --vary x=1,2 --out log": ["logs of today"],
    "bps ab --vary x=1,2 compge": ["compgen"],
    "bps ab --out x -- compge": ["compgen"],
    "bps ab --out x python --num": [],
    "bps ab repor": ["report"],
    "bps ab --dry-run repor": [],
    "bps ab --out ab repor": [],
    "bps ab -- repor": [],
    "bps ab --dry-run report log": [],
    "bps ab report log": ["logs of today"],
    "bps ab report x --o": ["--out"],
}
"""Words up to the cursor, as bash splits them, and what is offered."""


def test_completion_in_bash(scripts: Path) -> None:
    program = "source ./bpslaunch.bash; source ./bps.bash\n"
    for line in COMPLETED:
        last = '""' if line.endswith(" ") else ""
        program += f"COMP_WORDS=({line}{last}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _{line.split()[0]}\n"
        program += "echo ':'; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=scripts, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""
    found = [sorted(filter(None, each.split("\n"))) for each in done.stdout.split(":\n")[1:]]
    assert dict(zip(COMPLETED, found, strict=True)) == COMPLETED


def test_a_command_that_is_in_two_folders_is_offered_once_in_bash(scripts: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my-command").touch(0o755)
    program = "source ./bps.bash; COMP_WORDS=(bps ab my-c); COMP_CWORD=2; _bps; printf '%s\\n' \"${COMPREPLY[@]}\""
    path = f"{tmp_path}/one:{tmp_path}/two:{PATH}"
    done = subprocess.check_output(["bash", "--norc", "-c", program], cwd=scripts, env={"PATH": path}, timeout=30)
    assert done == b"my-command\n"


def test_completion_of_the_command_is_left_to_its_own_in_bash(scripts: Path) -> None:
    program = (
        "_command_offset() { COMPREPLY=(from $1); }; source ./bpslaunch.bash; COMP_WORDS=(bpslaunch -n 2 git che); "
        'COMP_CWORD=4; _bpslaunch; echo "${COMPREPLY[@]}"'
    )
    assert subprocess.check_output(["bash", "-c", program], cwd=scripts, timeout=30) == b"from 3\n"


def environment_of_a_person(folder: Path) -> dict[str, str]:
    # Marks the processes as ours for the look around after each test, as everything else in the environment.
    return {**os.environ, "PATH": PATH, "HOME": str(folder), "PS1": "> ", "TERM": "xterm", "COLUMNS": "200"}


def test_a_person_completes_in_bash(scripts: Path) -> None:
    with terminal(["bash", "--norc", "--noediting", "-i"], scripts, environment_of_a_person(scripts)) as person:
        person.type("set -o emacs; bind 'set enable-bracketed-paste off'; source ./bpslaunch.bash; echo re''ady\n")
        person.wait_for("ready")
        for typed, completed in (
            ("bpslaunch -n 2 --dr\t", "--dry-run "),
            ("bpslaunch --omp-wait-policy=p\t", "--omp-wait-policy=passive "),
            ("bpslaunch --log-dir lo\t", "logs\\ of\\ today/"),
            ("bpslaunch -n 2 cat trai\t", "cat training.py "),
        ):
            person.type(typed)
            person.wait_for(completed)
            person.type("\x15")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh on this machine")
def test_a_person_completes_in_zsh(scripts: Path) -> None:
    with terminal(["zsh", "-f", "-i"], scripts, environment_of_a_person(scripts)) as person:
        person.type("autoload -Uz compinit; compinit -u -D; source ./bpslaunch.zsh; source ./bps.zsh; print re''ady\n")
        person.wait_for("ready")
        for typed, completed in (
            ("bpslaunch -n 2 --dr\t", "--dry-run"),
            ("bpslaunch --omp-wait-policy=p\t", "--omp-wait-policy=passive"),
            ("bpslaunch --log-dir lo\t", "logs\\ of\\ today/"),
            ("bpslaunch -n 2 cat trai\t", "cat training.py"),
            ("bpslaunch -n 2 -- cat trai\t", "-- cat training.py"),
            ("bps sch\t", "bps scheduler"),
            ("bps ab --vary x=1,2 --dr\t", "--dry-run"),
            ("bps ab --vary x=1,2 cat trai\t", "cat training.py"),
            ("bps ab report lo\t", "logs\\ of\\ today/"),
            ("bps ab repor\t", "bps ab report"),
            # Not the subcommand, but a command of that name, whose words are files.
            ("bps ab --dry-run report trai\t", "report training.py"),
        ):
            person.type(typed)
            person.wait_for(completed)
            person.type("\x15")


# What is known of itself.


@pytest.mark.parametrize(("module", "name"), [("byteps_py", "byteps_py"), ("byteps_py.launcher", "bpslaunch")])
def test_versions(module: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=30, check=True
    )
    assert re.fullmatch(rf"{name} \d+\.\d+\.\d+\S*\n", done.stdout)


def test_the_launcher_loads_little() -> None:
    """It is there as long as the job, and a person waits for its first line."""
    code = (
        "import sys, types; package = sys.modules['byteps_py'] = types.ModuleType('byteps_py'); "
        "package.__path__ = [sys.argv[1]]; import byteps_py.launcher.main; "
        "print([name for name in sys.argv[2:] if name in sys.modules])"
    )
    heavy = ("numpy", "zmq", "msgspec", "cffi", "psutil", "torch", "logging", "asyncio", "importlib.metadata")
    words = [sys.executable, "-c", code, str(Path(byteps_py.__file__).parent), *heavy]
    assert subprocess.check_output(words, text=True, timeout=30) == "[]\n"


def test_whoever_reads_may_have_seen_enough() -> None:
    """``bps env | head -1``: no traceback."""
    words = [sys.executable, "-m", "byteps_py", "env"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "byteps_py", "env"],
        ["-m", "byteps_py", "--version"],
        ["-m", "byteps_py", "--help"],
        ["-m", "byteps_py", "ab", "--help"],
        ["-m", "byteps_py", "completion", "bash"],
        ["-m", "byteps_py", "plan", "--workers", "2", "--link", "1Gbit", "--bytes", "1MB"],
        ["-m", "byteps_py.launcher", "--help"],
        ["-m", "byteps_py.launcher", "--version"],
        ["-m", "byteps_py.launcher", "--completion", "zsh"],
    ],
    ids=" ".join,
)
def test_standard_output_that_is_closed_or_full(words: list[str]) -> None:
    """Nobody wants to see it, which is no fault; a full disk is one, and is told in one line."""
    line = shlex.join([sys.executable, *words])
    as_ever, closed, full = (
        subprocess.run(["bash", "-c", line + there], capture_output=True, text=True, timeout=60, check=False)
        for there in ("", " >&-", " >/dev/full")
    )
    assert closed.returncode == as_ever.returncode
    if words[2:] == ["--help"]:  # argparse prints it elsewhere then, and does not look whether it can
        assert (full.returncode, full.stderr) == (0, as_ever.stderr)
    else:
        assert closed.stderr == as_ever.stderr
        assert full.returncode == 1
        assert re.fullmatch(r"(bps \w+|bps|bpslaunch): standard output: No space left on device\n", full.stderr)
