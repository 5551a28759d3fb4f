"""Every benchmark runs, tiny: real jobs, checked results, and figures where they are looked for."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import byteps_py as bps
from tests.helpers.launches import OWN_GROUP, until
from tests.helpers.namespaces import why_not

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--seconds", "0.001", "--warmup", "0", "--pairs", "1")
KEYS = {
    *("ours", "peer", "ratio_median", "cpu_s_per_gb", "peer_cpu_s_per_gb", "messages_per_step", "peak_pss_mb"),
    *("verified", "latency_us", "peer_latency_us", "latency_ratio", "time_ratio_median", "settings", "environment"),
}
MXNET_PYTHON = os.environ.get("BPS_TEST_MXNET_PYTHON", "")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def run(folder: Path, name: str, *words: str, status: int = 0) -> tuple[str, dict[str, Any]]:
    """Standard output, and the content of the JSON file."""
    path = folder / "figures.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", *words, "--json", os.fspath(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr, json.loads(path.read_text()) if path.exists() else {}


def test_push_pull_alone(tmp_path: Path) -> None:
    out, found = run(tmp_path, "push_pull", *TINY, "--tensors", "3", "--bytes", "10000", "--workers", "3")
    assert found.keys() >= KEYS
    assert found["verified"] is True
    assert len(found["ours"]) == 1
    assert found["ours"][0] > 0
    assert (found["peer"], found["ratio_median"]) == ([], None)
    names = {*(f"worker-{index}" for index in range(3)), "server-0", "server-1", "scheduler-0"}
    assert found["peak_pss_mb"].keys() >= names
    assert found["settings"]["variables"]["OMP_NUM_THREADS"]
    assert found["environment"]["cores"] >= 1
    assert "3 workers, 2 servers, 3 x 2500 float32" in out


def test_push_pull_with_one_worker_still_goes_to_a_server(tmp_path: Path) -> None:
    words = ("--workers", "1", "--servers", "1", "--tensors", "2", "--bytes", "100", "--dtype", "float16")
    _, found = run(tmp_path, "push_pull", *TINY, *words)
    assert found["verified"] is True
    assert "server-0" in found["peak_pss_mb"]


@pytest.mark.skipif(not hasattr(bps, "empty"), reason="byteps_py has no empty()")
def test_push_pull_of_arrays_in_the_arena(tmp_path: Path) -> None:
    _, found = run(tmp_path, "push_pull", *TINY, "--tensors", "2", "--bytes", "100000", "--arena", "yes")
    assert found["verified"] is True


@needs_torch
@pytest.mark.parametrize(
    ("peer", "tensors", "windows"), [("gloo", "3", {"1", "10"}), ("gloo-fused", "3", {"1"}), ("gloo", "1", {"1"})]
)
def test_push_pull_and_gloo(tmp_path: Path, peer: str, tensors: str, windows: set[str]) -> None:
    out, found = run(tmp_path, "push_pull", *TINY, "--peer", peer, "--tensors", tensors, "--bytes", "1024")
    assert found["verified"] is True
    assert found["peer_windows"].keys() == windows
    assert found["ratio_median"] == pytest.approx(found["ours"][0] / found["peer"][0])
    assert found["latency_ratio"] == pytest.approx(found["latency_us"]["p50"] / found["peer_latency_us"]["p50"])
    assert "ours over the peer's" in out
    assert "one at a time" in out
    assert ("10 in flight" in out) == ("10" in windows)


@pytest.mark.skipif(not MXNET_PYTHON, reason="BPS_TEST_MXNET_PYTHON names no Python with MXNet")
def test_push_pull_and_mxnet(tmp_path: Path) -> None:
    words = ("--peer", "mxnet", "--peer-python", MXNET_PYTHON, "--tensors", "3", "--bytes", "1024")
    _, found = run(tmp_path, "push_pull", *TINY, *words)
    assert found["verified"] is True
    assert found["peer"][0] > 0
    assert {"worker-1", "server-1", "scheduler-0"} <= found["peer_peak_pss_mb"].keys()


def test_settings_that_our_processes_refuse_have_their_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "many")
    out, found = run(tmp_path, "push_pull", *TINY, "--tensors", "1", "--bytes", "100", status=2)
    assert "byteps_py: a process has ended with status 2 in 'verify'" in out
    assert "BYTEPS_PARTITION_BYTES" in out
    assert found == {}


def test_the_transport_that_is_exported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYTEPS_TRANSPORT", "tcp")
    out, found = run(tmp_path, "push_pull", *TINY, "--tensors", "1", "--bytes", "100")
    assert "transport tcp, arena no" in out
    assert found["settings"]["transport"] == found["settings"]["variables"]["BYTEPS_TRANSPORT"] == "tcp"


def test_the_workload_of_ab(tmp_path: Path) -> None:
    steps = [sys.executable, os.fspath(ROOT / "benchmarks" / "steps.py"), "--steps", "3", "--bytes", "1000"]
    command = [sys.executable, "-m", "byteps_py.launcher", "-n", "2", "-s", "1", "--", *steps]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[worker 0] ")
    assert "steps/s" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_push_pull_ends_with_all_of_its_processes(number: signal.Signals) -> None:
    words = ("--bytes", "1000", "--seconds", "1000", "--pairs", "1")
    command = [sys.executable, "-m", "benchmarks.push_pull", *words]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **OWN_GROUP
    ) as process:
        family = psutil.Process(process.pid)
        until(lambda: sum("benchmarks.bps_worker" in " ".join(_words(each)) for each in family.children(True)) >= 2)
        children = family.children(recursive=True)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert not any(each.is_running() for each in children)


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_ceilings(tmp_path: Path) -> None:
    words = ("--seconds", "0.05", "--repeats", "1", "--bytes", "65536", "--beyond", "1000000")
    out, found = run(tmp_path, "raw_transport", *words)
    assert found["verified"] is True
    assert all(found[key] > 0 for key in ("tcp", "unix", "memcpy_cached", "memcpy", "zmq_echo"))
    assert list(found["zmq_echo_by_in_flight"]) == ["2", "4", "8", "16"]
    assert "pyzmq echo" in out


def test_the_echo_in_turn_with_push_pull(tmp_path: Path) -> None:
    words = ("--push-pull", "--seconds", "0.05", "--warmup", "0", "--pairs", "1", "--bytes", "65536", "--tensors", "2")
    _, found = run(tmp_path, "raw_transport", *words)
    assert found["ratio_median"] == pytest.approx(found["ours"][0] / found["echo"][0])
    assert found["settings"]["variables"]["BYTEPS_TRANSPORT"] == "tcp"


@needs_torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_train_step(tmp_path: Path) -> None:
    words = ("--model", "resnet18", "--batch", "2", "--pixels", "32", "--alone")
    out, found = run(tmp_path, "train_step", *TINY, *words)
    assert found["verified"] is True
    assert found["ratio_median"] == pytest.approx(found["ours"][0] / found["peer"][0])
    assert found["alone"][0] > 0
    assert "resnet18, 11.7 M parameters" in out
    assert found["settings"]["variables"]["BYTEPS_TRANSPORT"] == "auto"


@needs_torch
def test_network(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    words = ("--layout", "mixed", "--workers", "2", "--servers", "1", "--bytes", "1000003", "--tensors", "2")
    out, found = run(tmp_path, "network", *words, "--mbit", "100", "--steps", "1", "--pairs", "1", "--peer", "gloo")
    assert found["verified"] is True
    wanted = {"seconds", "optimum_s", "over_optimum", "peer_seconds", "peer_over_ours", "planned_s"}
    assert all(found[name] > 0 for name in wanted)
    assert 5e6 < found["goodput_bytes_per_s"] < 12.5e6
    assert found["optimum_s"] == pytest.approx(1_000_000 / found["goodput_bytes_per_s"], rel=0.01)
    assert found["all_seconds"][0][0] > 0.9 * found["optimum_s"]
    assert "mixed: 2 workers, 1 servers" in out


@pytest.mark.parametrize("words", [("--mbit", "0"), ("--layout", "ring"), ("--workers", "1"), ("--servers", "0")])
def test_network_refuses(tmp_path: Path, words: tuple[str, ...]) -> None:
    run(tmp_path, "network", *words, status=2)


def test_sparse(tmp_path: Path) -> None:
    words = ("--rows", "5000", "--width", "8", "--rounds", "2", "--transport", "tcp")
    out, found = run(tmp_path, "sparse", *words)
    assert "the results are equal, bit for bit" in out
    assert found["rows"]["sent"] >= 50 * (8 * 4 + 8)
    assert found["dense"]["sent"] >= 5000 * 8 * 4
    assert 0 < found["bytes_ratio"] < 0.05
    assert len(found["rows"]["all_seconds"]) == 2
    assert found["environment"]["cores"] >= 1
