"""Which OpenMP runtimes are found in memory, and what is said of them and of how they wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps_py.doctor import loading
from byteps_py.doctor.findings import Finding, Severity
from byteps_py.doctor.loading import Loaded, Loader, Runtime, openmp_runtimes
from byteps_py.doctor.openmp import judge_policy, judge_runtimes
from byteps_py.settings import ServerSettings, WorkerSettings

MAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 fd:01 131 /usr/bin/python3.11
7f1200000000-7f1200021000 rw-p 00000000 00:00 0
7f12a0000000-7f12a0008000 r--p 00000000 fd:01 999 /usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0
7f12a0008000-7f12a0040000 r-xp 00008000 fd:01 999 /usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0
7f12b0000000-7f12b0008000 r--p 00000000 fd:01 998 /opt/my env/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0
7f12c0000000-7f12c0008000 r--p 00000000 fd:01 997 /opt/intel/libiomp5.so
7f12c1000000-7f12c1008000 r--p 00000000 fd:01 996 /usr/lib/llvm-16/lib/libomp.so.5
7f12c2000000-7f12c2008000 r--p 00000000 fd:01 995 /opt/torch/lib/libomp-1a2b.so (deleted)
7f12d0000000-7f12d0008000 r--p 00000000 fd:01 994 /opt/scipy/_decomp_update.cpython-311-x86_64-linux-gnu.so
7f12d1000000-7f12d1008000 r--p 00000000 fd:01 993 /usr/lib/libgomp-plugin-nvptx.so.1.0.0.txt
7f12d2000000-7f12d2008000 r--p 00000000 fd:01 992 /usr/lib/libompstub.so
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
"""
OURS = Runtime("/usr/lib/libgomp.so.1", "GNU")
THEIRS = Runtime("/opt/torch/lib/libiomp5.so", "Intel")
COPY = Runtime("/opt/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0", "GNU")
JOB = {"num_worker": 2, "num_server": 1, "root_uri": "127.0.0.1", "root_port": 9}


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.severity.value, each.text) for each in findings]


def test_runtimes_in_a_recorded_map() -> None:
    assert openmp_runtimes(MAPS) == (
        Runtime("/opt/intel/libiomp5.so", "Intel"),
        Runtime("/opt/my env/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0", "GNU"),
        Runtime("/opt/torch/lib/libomp-1a2b.so", "LLVM"),
        Runtime("/usr/lib/llvm-16/lib/libomp.so.5", "LLVM"),
        Runtime("/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0", "GNU"),
    )
    assert openmp_runtimes("") == ()


class TestRuntimes:
    def test_one_for_all_and_a_copy_that_is_nobodys_fault(self) -> None:
        steps = [
            Loaded("kernels", runtimes=(OURS,)),
            Loaded("torch", "2.6.0", runtimes=(OURS,)),
            Loaded("sklearn", "1.5", runtimes=(COPY, OURS)),
        ]
        assert told(list(judge_runtimes(steps))) == [
            (
                "note",
                f"sklearn has an OpenMP runtime of its own, {COPY.path} (GNU): harmless while sklearn itself "
                "computes nothing",
            ),
            ("ok", "the kernels of byteps_py and torch use the same OpenMP runtime /usr/lib/libgomp.so.1 (GNU)"),
        ]

    def test_another_one_of_a_framework(self) -> None:
        steps = [Loaded("kernels", runtimes=(OURS,)), Loaded("torch", "2.6.0", runtimes=(THEIRS, OURS))]
        first, last = judge_runtimes(steps)
        assert first.severity is Severity.WARNING
        assert "torch brings another runtime, /opt/torch/lib/libiomp5.so (Intel)" in first.text
        assert "OMP_NUM_THREADS" in first.remedy
        assert first.facts == {"libraries": [THEIRS.path, OURS.path]}
        assert last.text == "the kernels of byteps_py use the OpenMP runtime /usr/lib/libgomp.so.1 (GNU)"

    def test_what_cannot_be_imported_brings_nothing(self) -> None:
        steps = [Loaded("kernels", runtimes=(OURS,)), Loaded("torch", error="ImportError: x", runtimes=(OURS, THEIRS))]
        assert [each.severity for each in judge_runtimes(steps)] == [Severity.OK]
        assert list(judge_runtimes([Loaded("kernels", error="ImportError: x")])) == []


class TestPolicy:
    def test_of_a_job(self) -> None:
        server = ServerSettings(**JOB)  # type: ignore[arg-type]
        worker = WorkerSettings(**JOB, omp_wait_policy="active")  # type: ignore[arg-type]
        assert [each[0] for each in told(list(judge_policy({}, server, worker, {"GNU"})))] == ["ok", "note"]

    def test_of_one_process(self) -> None:
        (found,) = judge_policy({}, None, None, {"GNU"})
        assert found.text.startswith("this process: OMP_WAIT_POLICY is not set")
        (found,) = judge_policy({"OMP_WAIT_POLICY": " PASSIVE "}, None, None, {"GNU"})
        assert found.facts == {"policy": "passive"}

    @pytest.mark.parametrize(
        ("environ", "kinds", "severity", "words"),
        [
            ({"GOMP_SPINCOUNT": "infinity"}, {"GNU"}, Severity.WARNING, "GOMP_SPINCOUNT=infinity goes before"),
            ({"GOMP_SPINCOUNT": "30G"}, {"GNU"}, Severity.WARNING, "GOMP_SPINCOUNT=30g"),
            ({"GOMP_SPINCOUNT": "1000"}, {"GNU"}, Severity.NOTE, "GOMP_SPINCOUNT=1000"),
            ({"GOMP_SPINCOUNT": "many"}, {"GNU"}, Severity.NOTE, "GOMP_SPINCOUNT=many"),
            ({"KMP_BLOCKTIME": "0"}, {"GNU"}, Severity.NOTE, "KMP_BLOCKTIME=0 has no effect"),
            ({"KMP_BLOCKTIME": "infinite"}, {"Intel"}, Severity.WARNING, "idle threads never sleep"),
            ({}, {"GNU", "LLVM"}, Severity.NOTE, "spin for 200 ms"),
        ],
    )
    def test_other_variables(self, environ: dict[str, str], kinds: set[str], severity: Severity, words: str) -> None:
        found = list(judge_policy(environ, None, None, kinds))[-1]
        assert found.severity is severity
        assert words in found.text

    def test_a_good_block_time(self) -> None:
        assert len(list(judge_policy({"KMP_BLOCKTIME": "1"}, None, None, {"Intel"}))) == 1


class TestLoader:
    """With packages that are made for it: a framework takes seconds."""

    @pytest.fixture
    def packages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        for name, text in {
            "good_one": "__version__ = '3.1'\nprint('hello')\n",
            "odd_one": "import numpy\nnumpy.no_such_name\n",
            "slow_one": "import time\ntime.sleep(600)\n",
            "last_one": "import os, sys\nprint('x' * 400 + '\\nbad news', file=sys.stderr, flush=True)\nos._exit(3)\n",
            "companion": "__version__ = '1'\n",
        }.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="ascii")
        monkeypatch.syspath_prepend(tmp_path)
        return {"PYTHONPATH": str(tmp_path), "PATH": ""}

    def test_each_framework_in_a_process_of_its_own(
        self, packages: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loading, "FRAMEWORKS", ("good_one", "absent_one", "odd_one", "last_one"))
        monkeypatch.setattr(loading, "COMPANIONS", ("companion",))
        loader = Loader(packages, 60)
        good, odd, last = loader.load()
        assert [(each.name, each.version, each.error) for each in good[1:]] == [
            ("good_one", "3.1", ""),
            ("companion", "1", ""),
        ]
        assert [each.kind for each in good[0].runtimes] == ["GNU"], "the kernels bring one"
        assert odd[1].error.startswith("AttributeError: module 'numpy' has no attribute 'no_such_name'")
        assert last[1].error == "the process that imported it ended with status 3: bad news"
        assert loader.load()[0] is good, "once is enough"

    def test_files_of_the_working_directory_are_not_in_the_way(
        self, packages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = tmp_path / "here"
        here.mkdir()
        for name in ("json", "runpy", "numpy", "good_one"):
            (here / f"{name}.py").write_text("raise SystemExit('the wrong one')\n", encoding="ascii")
        monkeypatch.chdir(here)
        monkeypatch.setattr(loading, "FRAMEWORKS", ("good_one",))
        monkeypatch.setattr(loading, "COMPANIONS", ())
        ((kernels, good),) = Loader(packages, 60).load()
        assert (kernels.error, good.version, good.error) == ("", "3.1", "")

    def test_one_that_takes_too_long(self, packages: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "FRAMEWORKS", ("slow_one",))
        monkeypatch.setattr(loading, "COMPANIONS", ())
        ((kernels, slow),) = Loader(packages, 0.5).load()
        assert (kernels.runtimes, slow.name) == ((), "slow_one")
        assert (slow.error, slow.late) == ("it was not imported within 0.5 s", True)

    def test_without_any(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "FRAMEWORKS", ())
        monkeypatch.setattr(loading, "COMPANIONS", ())
        ((kernels,),) = Loader(None, 60).load()
        assert kernels.error == ""
        assert loading.is_installed("numpy")
        assert not loading.is_installed("numpy.no.such")
