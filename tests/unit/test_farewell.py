"""SIGTERM to a worker without a handler: it dies of it as ever, but says so first."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from byteps_py.roles.farewell import Farewell

pytestmark = pytest.mark.timeout(60)

BEGIN = """
import os, signal, sys, time
from byteps_py.roles.farewell import Farewell
farewell = Farewell(lambda text: print(text, flush=True))
print(farewell.in_force, flush=True)
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    """A program that must not come to its end by itself: it would take a minute."""
    code = f"{BEGIN}{body}\ntime.sleep(60)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)


def test_it_says_so_and_dies_of_the_signal() -> None:
    result = run("os.kill(os.getpid(), signal.SIGTERM)")
    assert result.stdout == "True\nwas terminated by SIGTERM\n"
    assert (result.returncode, result.stderr) == (-signal.SIGTERM, "")


def test_the_same_signal_twice_is_one() -> None:
    """`timeout` and `make` send it so; the first one must have its time."""
    body = (
        "from byteps_py.roles.farewell import _library\n"
        "farewell.close()\n"
        "event = os.eventfd(0)\n"
        "assert _library().byteps_farewell(event, 1000)\n"
        "for _ in range(3): os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('waits', os.eventfd_read(event), flush=True)"
    )
    result = run(body)
    assert (result.stdout, result.returncode) == ("True\nwaits 1\n", -signal.SIGTERM)


def test_a_signal_that_came_just_before_the_end_of_the_job_is_not_forgotten() -> None:
    body = (
        "from byteps_py.roles.farewell import _library\n"
        "farewell.close()\n"
        "event = os.eventfd(0)\n"
        "assert _library().byteps_farewell(event, 300)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "_library().byteps_no_farewell()"
    )
    assert run(body).returncode == -signal.SIGTERM


def test_a_thread_that_looks_late_sees_the_signal_and_the_end() -> None:
    """Both have come before it could run."""
    body = (
        "farewell.close()\nfarewell._event = os.eventfd(1)\n"
        "os.eventfd_write(farewell._event, 1 << 32)\nfarewell._watch()"
    )
    result = run(body)
    assert (result.stdout, result.returncode) == ("True\nwas terminated by SIGTERM\n", -signal.SIGTERM)


def test_it_dies_also_if_nothing_can_be_said() -> None:
    body = "farewell._say = lambda text: 1 / 0\nos.kill(os.getpid(), signal.SIGTERM)"
    assert run(body).returncode == -signal.SIGTERM


def test_it_dies_also_if_no_thread_can_say_anything() -> None:
    """The main thread holds the interpreter's lock for a minute."""
    body = "if not os.fork():\n    time.sleep(0.5)\n    os.kill(os.getppid(), signal.SIGTERM)\n    os._exit(0)\n"
    result = run(f"{body}sum(range(10**11))")
    assert (result.stdout, result.returncode) == ("True\n", -signal.SIGTERM)


def test_what_python_knows_of_the_signal_is_unchanged() -> None:
    result = run("print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)\nsys.exit()")
    assert result.stdout == "True\nTrue\n"


def test_a_handler_that_the_program_sets_up_later_counts() -> None:
    result = run("signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nos.kill(os.getpid(), signal.SIGTERM)")
    assert (result.stdout, result.returncode) == ("True\n", 5)


def test_a_handler_that_was_there_before_counts() -> None:
    code = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{BEGIN}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (result.stdout, result.returncode) == ("False\n", 0)


def test_a_forked_child_dies_without_a_word() -> None:
    body = (
        "child = os.fork()\n"
        "if not child: time.sleep(60)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "sys.exit()"
    )
    assert run(body).stdout == "True\n-15\n"


def test_a_forked_child_may_have_its_own() -> None:
    body = (
        "child = os.fork()\n"
        "if not child:\n"
        "    own = Farewell(lambda text: print('child', text, flush=True))\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "sys.exit()"
    )
    assert run(body).stdout == "True\nchild was terminated by SIGTERM\n-15\n"


def test_the_first_process_of_a_container_ignores_it_as_ever() -> None:
    """The kernel does that; it must not say goodbye and then live on."""
    unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespace of process ids can be made here: {error}")
    code = f"{BEGIN}assert os.getpid() == 1\nos.kill(1, signal.SIGTERM)\nprint('lives')"
    result = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (result.stdout, result.returncode) == ("False\nlives\n", 0), result.stderr


def test_a_command_that_is_started_dies_without_a_word() -> None:
    body = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "child.terminate()\n"
        "print(child.wait())\n"
        "sys.exit()"
    )
    assert run(body).stdout == "True\n-15\n"


def test_after_the_end_of_the_job_all_is_as_before() -> None:
    result = run("farewell.close()\nfarewell.close()\nos.kill(os.getpid(), signal.SIGTERM)")
    assert (result.stdout, result.returncode) == ("True\n", -signal.SIGTERM)


def test_closing_leaves_a_handler_of_the_program_alone() -> None:
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nfarewell.close()\nos.kill(os.getpid(), signal.SIGTERM)"
    )
    assert run(body).returncode == 5


def test_without_the_extension_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "byteps_py.kernels._native", None)
    farewell = Farewell(lambda text: None)
    assert not farewell.in_force
    farewell.close()
