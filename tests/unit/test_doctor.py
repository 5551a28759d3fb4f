"""``bps doctor`` as a whole, and its checks of variables, of the own address and of what is installed."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence

import pytest

from byteps_py import cli
from byteps_py.doctor import address, command, examination
from byteps_py.doctor.address import check_address
from byteps_py.doctor.examination import CHECKS, examine
from byteps_py.doctor.findings import Finding, Severity, note, ok, problem, warning
from byteps_py.doctor.install import check_install, judge_frameworks, judge_zmq
from byteps_py.doctor.loading import Loaded, Loader
from byteps_py.doctor.report import as_json, as_text, has_problem
from byteps_py.doctor.scheduler import check_scheduler
from byteps_py.doctor.situation import Situation, observe
from byteps_py.doctor.variables import check_variables
from byteps_py.errors import TransportError
from byteps_py.role import Role
from byteps_py.transport.resolve import UnresolvedName

JOB = {
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


class NothingInstalled(Loader):
    def load(self) -> list[list[Loaded]]:
        return [[Loaded("byteps_py.kernels.native")]]


def shown(findings: Iterator[Finding] | Sequence[Finding]) -> list[tuple[str, str]]:
    return [(each.severity.value, each.text) for each in findings]


def about_variables(environ: dict[str, str], role: Role | None = None) -> list[tuple[str, str]]:
    return shown(check_variables(observe(environ, role, 30)))


class TestSituation:
    def test_without_a_job(self) -> None:
        found = observe({"PATH": "/bin"}, None, 5)
        assert (found.role, found.job, found.server, found.worker, found.timeout) == (None, None, None, None, 5)
        assert found.read("no/such/file") == ""

    def test_of_all_roles_and_of_one(self) -> None:
        every = observe(JOB, None, 5)
        assert every.job is not None
        assert every.server is not None
        assert every.worker is not None
        one = observe({**JOB, "DMLC_ROLE": "Server"}, None, 5)
        assert (one.role, one.worker) == (Role.SERVER, None)
        assert observe({**JOB, "DMLC_ROLE": "server"}, Role.WORKER, 5).role is Role.WORKER

    def test_bad_values_do_not_hide_the_rest(self) -> None:
        found = observe({**JOB, "DMLC_NUM_WORKER": "two", "BYTEPS_PARTITION_BYTES": "-1", "DMLC_ROLE": "x"}, None, 5)
        assert found.role is None
        assert found.job is not None
        assert found.worker is not None
        assert (found.job.root_port, found.worker.partition_bytes) == (9000, None)
        assert observe({**JOB, "DMLC_PS_ROOT_PORT": "x"}, None, 5).job is None

    @pytest.mark.parametrize("role", [None, *Role])
    def test_a_worker_that_is_alone(self, role: Role | None) -> None:
        alone = {**JOB, "DMLC_NUM_WORKER": "1"}
        assert observe(alone, role, 5).job is None
        ((severity, text),) = shown(check_scheduler(observe(alone, role, 5)))
        assert severity == "ok"
        kind = "server" if role is Role.SERVER else "scheduler"
        assert text == (
            f"none was looked for, since no {kind} is needed: with DMLC_NUM_WORKER=1 the worker machine does all by "
            "itself (BYTEPS_FORCE_DISTRIBUTED=1 changes that)"
        )
        for more in ({"BYTEPS_FORCE_DISTRIBUTED": "1"}, {"DMLC_NUM_WORKER": "x"}):
            assert observe({**alone, **more}, role, 5).job is not None
        several = observe({**alone, "BYTEPS_LOCAL_SIZE": "2"}, role, 5)
        assert (several.job is None) == (role in (Role.SCHEDULER, Role.SERVER)), "they read no such variable"

    def test_a_scheduler_that_nobody_has_named(self) -> None:
        for environ in ({"DMLC_ROLE": "worker"}, {**JOB, "DMLC_PS_ROOT_PORT": "x"}):
            ((severity, text),) = shown(check_scheduler(observe(environ, None, 5)))
            assert severity == "note"
            assert text == "none was looked for: DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT do not say where it is"

    def test_what_torchrun_says(self) -> None:
        started = {"TORCHELASTIC_RUN_ID": "1", "GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "WORLD_SIZE": "2"}
        found = observe({**JOB, **started, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None, 5)
        assert found.role is Role.WORKER
        assert found.worker is not None
        assert found.worker.worker_id == 1


class TestVariables:
    def test_nothing_is_scolded_where_there_is_no_job(self) -> None:
        ((severity, text),) = about_variables({"PATH": "/bin", "OMP_NUM_THREADS": "2", "http_proxy": "x"})
        assert severity == "ok"
        assert text.startswith("no distributed job is described here")

    def test_all_problems_are_told(self) -> None:
        bad = {
            "DMLC_ROLE": "worker",
            "DMLC_NUM_WORKER": "two",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_NUM_SERVER": "1",
            "BYTEPS_KERNELS": "fast",
            "BYTEPS_LOCAL_RANK": "3",
            "BYTEPS_PARTITION_BYTE": "5",
            "BYTEPS_SERVER_ENABLE_SCHEDULE": "1",
        }
        found = about_variables(bad)
        problems = [text for severity, text in found if severity == "problem"]
        assert [text.split()[0].split("=")[0] for text in problems] == [
            "DMLC_NUM_WORKER",
            "DMLC_PS_ROOT_PORT",
            "BYTEPS_KERNELS",
            "BYTEPS_LOCAL_RANK",
        ]
        (misspelt,) = (text for severity, text in found if severity == "warning")
        assert misspelt.endswith("did you mean BYTEPS_PARTITION_BYTES?")
        reason = "a round is summed as soon as its last contribution is there"
        assert ("note", f"BYTEPS_SERVER_ENABLE_SCHEDULE=1 has no effect here: {reason}") in found
        assert "ok" not in {severity for severity, _ in found}

    def test_good_ones(self) -> None:
        assert about_variables(JOB) == [("ok", "the variables of all roles are good")]
        assert about_variables(JOB, Role.SERVER) == [("ok", "the variables of a server are good")]
        ((severity, text),) = about_variables({**JOB, "DMLC_NUM_WORKER": "1"}, Role.WORKER)
        assert severity == "ok"
        assert "a job of its own" in text
        ((severity, text),) = about_variables({**JOB, "DMLC_NUM_WORKER": "1"}, Role.SERVER)
        assert severity == "warning"
        assert text.startswith("this server would end at once, since no server is needed: with DMLC_NUM_WORKER=1")

    def test_those_that_come_too_late(self) -> None:
        found = about_variables({**JOB, "BYTEPS_VISIBLE_CPU_CORES": "0"}, Role.WORKER)
        assert "only bpslaunch binds" in found[0][1]
        assert found[0][0] == "warning"

    def test_those_that_contradict_each_other(self) -> None:
        found = about_variables({**JOB, "DMLC_NODE_HOST": "10.0.0.2", "DMLC_INTERFACE": "eth0", "HTTP_PROXY": "x"})
        assert found[0] == ("note", "DMLC_INTERFACE has no effect: DMLC_NODE_HOST goes before it")
        assert found[1][1].startswith("http_proxy: not used")

    def test_processes_of_other_launchers(self) -> None:
        ((severity, text),) = about_variables({"SLURM_STEP_NUM_TASKS": "4"})
        assert severity == "warning"
        assert "SLURM_STEP_NUM_TASKS=4, but DMLC_ROLE is not set" in text
        found = about_variables({"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2"})
        assert found[0][0] == "problem"
        assert found[0][1].startswith("torchrun has started 2 processes, but DMLC_PS_ROOT_URI is not set")
        ((severity, text), *_) = about_variables({"BYTEPS_LOCAL_SIZE": "2"})
        assert severity == "problem"
        assert text.startswith("DMLC_ROLE is not set, but BYTEPS_LOCAL_SIZE=2")


class TestOwnAddress:
    def test_it_is_chosen_as_a_server_chooses_it(self) -> None:
        found = list(check_address(observe(JOB, None, 30)))
        assert found[0].text.startswith("127.0.0.1 on lo (MTU ")
        assert found[0].facts["interface"] == "lo"
        assert [each.severity for each in found] == [Severity.OK, Severity.WARNING]
        assert list(check_address(observe({}, None, 30))) == []

    def test_an_interface_that_is_not_there(self) -> None:
        (found,) = check_address(observe({**JOB, "DMLC_INTERFACE": "nope0"}, None, 30))
        assert found.severity is Severity.PROBLEM
        assert "DMLC_INTERFACE=nope0 is no network interface of this machine: there are " in found.text

    def test_an_address_of_another_machine(self) -> None:
        found = list(check_address(observe({**JOB, "DMLC_NODE_HOST": "192.0.2.77"}, None, 30)))
        assert "DMLC_NODE_HOST=192.0.2.77 is no address of this machine" in found[-1].text

    def test_a_loopback_address_while_the_scheduler_is_elsewhere(self) -> None:
        environ = {**JOB, "DMLC_NODE_HOST": "127.0.0.1", "DMLC_PS_ROOT_URI": "192.0.2.77"}
        warned = [each.text for each in check_address(observe(environ, None, 30)) if each.severity is Severity.WARNING]
        assert "nobody on another machine reaches it" in warned[0]

    def test_names_that_are_not_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def look_up(host: str, port: int) -> list[str]:
            if host == "127.0.0.1":
                return [host]
            raise UnresolvedName(f"the host name {host!r} cannot be resolved")

        monkeypatch.setattr(address, "resolve", look_up)
        (found,) = check_address(observe({**JOB, "DMLC_NODE_HOST": "nowhere"}, None, 30))
        assert found.text == "DMLC_NODE_HOST: the host name 'nowhere' cannot be resolved"
        assert found.severity is Severity.PROBLEM
        (found,) = check_address(observe({**JOB, "DMLC_PS_ROOT_URI": "nowhere"}, None, 30))
        assert found.severity is Severity.NOTE


def test_a_scheduler_whose_name_is_impossible() -> None:
    situation = observe({**JOB, "DMLC_PS_ROOT_URI": "a..b"}, None, 30)
    (found,) = check_scheduler(situation)
    assert found.severity is Severity.PROBLEM
    assert "the host name 'a..b'" in found.text
    assert list(check_scheduler(observe({}, None, 30))) == []


class TestInstall:
    def test_here(self) -> None:
        first, *others = check_install(Situation({}, loader=NothingInstalled()))
        assert first.text.startswith("byteps_py ")
        assert set(first.facts["versions"]) == {"byteps_py", "Python", "numpy", "pyzmq", "libzmq"}  # type: ignore[call-overload]
        assert ("note", "no framework is installed: only arrays of NumPy can be exchanged") in shown(others)

    def test_libzmq(self) -> None:
        assert list(judge_zmq("4.3.5")) == []
        assert shown(judge_zmq("4.2.5"))[0][0] == "note"

    def test_frameworks(self) -> None:
        steps = [Loaded("torch", "2.6.0+cpu"), Loaded("sklearn", "1.5")]
        assert shown(judge_frameworks(steps, "2.1.0")) == [("ok", "torch 2.6.0+cpu")]
        assert shown(judge_frameworks([Loaded("torch", "2.5.1")], "2.1.0"))[1][0] == "warning"
        ((severity, text),) = shown(judge_frameworks([Loaded("torch", error="ImportError: no")], "2.1.0"))
        assert (severity, text) == ("warning", "torch is installed but cannot be imported: ImportError: no")
        (found,) = judge_frameworks([Loaded("torch", error="it was not imported within 24 s", late=True)], "2.1.0")
        assert found.text == "torch is installed, but it was not imported within 24 s"
        assert "importtime" in found.remedy
        (found,) = judge_frameworks([Loaded("mxnet", error="AttributeError: bool")], "1.26.4")
        assert found.text.startswith("mxnet cannot be imported with numpy 1.26.4, which has dropped names")
        assert "numpy<1.24" in found.remedy
        ((_, text),) = shown(judge_frameworks([Loaded("mxnet", error="OSError: x")], "1.23.5"))
        assert text == "mxnet is installed but cannot be imported: OSError: x"
        assert shown(judge_frameworks([Loaded("torch", "2.6"), Loaded("sklearn", error="E: x")], "2"))[1][0] == "note"


class TestExaminations:
    def test_one_check_that_fails_and_one_that_hangs(self) -> None:
        over = threading.Event()

        def fails(situation: Situation) -> Iterator[Finding]:
            yield ok("so far so good")
            raise KeyError("x")

        def hangs(situation: Situation) -> Iterator[Finding]:
            yield note("it begins")
            over.wait()

        found = examine(
            Situation({}, timeout=0.5), {"bad": fails, "good": lambda situation: [ok("fine")], "late": hangs}
        )
        over.set()
        assert list(found) == ["bad", "good", "late"]
        assert shown(found["bad"]) == [("ok", "so far so good"), ("warning", "this check failed: KeyError: 'x'")]
        assert shown(found["good"]) == [("ok", "fine")]
        assert shown(found["late"]) == [("note", "it begins"), ("problem", "this check has not ended within 0.5 s")]
        assert has_problem(found)

    def test_every_module_with_a_check_is_asked(self) -> None:
        assert {check.__module__.rpartition(".")[2] for check in CHECKS.values()} == set(CHECKS)


FINDINGS = {
    "cores": [ok("2 cores"), warning("many threads", "set fewer")],
    "scheduler": [problem("nobody there", "start it", verdict="refused"), note("by the way"), note("and so on")],
}


class TestReports:
    def test_text(self) -> None:
        assert as_text(FINDINGS) == (
            "cores      ok       2 cores\n"
            "           warning  many threads\n"
            "                    -> set fewer\n"
            "scheduler  problem  nobody there\n"
            "                    -> start it\n"
            "           note     by the way\n"
            "           note     and so on\n"
            "\n"
            "1 problem, 1 warning, 2 notes"
        )
        assert as_text({"cores": [ok("2 cores")]}).endswith("\n\nnothing to complain about")

    def test_a_remedy_of_several_is_told_once(self) -> None:
        found = {"cores": [problem("one", "set it"), problem("two", "set it"), warning("three", "unset it")]}
        assert as_text(found).splitlines()[:5] == [
            "cores  problem  one",
            "       problem  two",
            "                -> set it",
            "       warning  three",
            "                -> unset it",
        ]

    def test_text_in_a_terminal(self) -> None:
        long = {"cores": [note(" ".join(["word"] * 20), " ".join(["do"] * 30))]}
        lines = as_text(long, 60).splitlines()
        assert max(map(len, lines)) <= 60
        assert [line for line in lines if line.startswith(" " * 19 + "do")], "remedies are indented"
        assert len(as_text(long, 20).splitlines()) == 4, "too narrow to break"

    def test_json(self) -> None:
        told = json.loads(as_json(FINDINGS, Role.SERVER))
        assert (told["role"], told["problem"]) == ("server", True)
        assert told["findings"][2] == {
            "check": "scheduler",
            "severity": "problem",
            "text": "nobody there",
            "remedy": "start it",
            "facts": {"verdict": "refused"},
        }
        assert told["findings"][0]["remedy"] is None
        assert json.loads(as_json({}, None)) == {"role": None, "problem": False, "findings": []}


class TestCommand:
    def test_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[object] = []
        monkeypatch.setattr(command, "run", lambda *words, json: seen.append((*words[1:], json)) or 1)
        assert cli.main(["doctor"]) == 1
        assert cli.main(["doctor", "--role", "Server", "--timeout", "2.5", "--json"]) == 1
        assert seen == [(None, 30.0, False), (Role.SERVER, 2.5, True)]

    @pytest.mark.parametrize("words", [["--timeout", "0"], ["--timeout", "soon"], ["--role", "king"], ["extra"]])
    def test_wrong_usage(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as error:
            cli.main(["doctor", *words])
        assert error.value.code == 2
        assert words[-1] in capsys.readouterr().err

    def test_nobody_sees_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(examination.examine, "__defaults__", ({"fine": lambda _: [ok("fine")]},))
        monkeypatch.setattr("sys.stdout", None)
        assert command.run({}, None, 30, json=False) == 0

    def test_the_log_is_as_it_was(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        def complains(situation: Situation) -> list[Finding]:
            logging.getLogger("byteps_py.transport").warning("noise")
            raise TransportError("x")

        monkeypatch.setattr(examination.examine, "__defaults__", ({"noisy": complains},))
        before = logging.getLogger("byteps_py").level
        assert command.run({}, None, 30, json=False) == 0
        assert logging.getLogger("byteps_py").level == before
        assert "this check failed: TransportError: x" in capsys.readouterr().out
