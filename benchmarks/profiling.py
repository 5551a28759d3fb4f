"""Where the CPU time of a job goes: samples by ``perf``, sorted into what was done."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.side import SideError

FREQUENCY = 499
"""Samples per second of CPU time; not a round number, so that nothing periodic is in step with it."""
ENOUGH = 500
"""Samples with which a share of a tenth is known to about three hundredths, at 95 %."""
_TOP = 12
_COPYING = ("copy", "memmove", "memcpy", "memset", "movs", "clear_page")


def available() -> bool:
    """Whether ``perf`` is installed."""
    return shutil.which("perf") is not None


def during(pids: Sequence[int], seconds: float, action: Callable[[], object]) -> dict[str, Any]:
    """Sample processes for ``seconds`` while ``action`` goes on.

    Returns:
        ``samples``, how many; ``shares``, from what was done to its share of them; and ``top``, the most frequent
        functions, as ``(share, object file, function)``.

    Raises:
        SideError: perf does not work here; the message has its own words.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.fspath(Path(folder) / "perf.data")
        record = ["perf", "record", "-q", "-F", str(FREQUENCY), "-o", path, "-p", ",".join(map(str, pids))]
        with subprocess.Popen([*record, "--", "sleep", str(seconds)], stderr=subprocess.PIPE, text=True) as recording:
            action()
            _, said = recording.communicate()
        if recording.returncode:
            raise SideError(f"perf record has ended with status {recording.returncode}: {said.strip()}")
        report = ["perf", "report", "-i", path, "--stdio", "-q", "-t", "|", "-F", "overhead,sample,dso,symbol"]
        done = subprocess.run(report, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SideError(f"perf report has ended with status {done.returncode}: {done.stderr.strip()}")
    return summarise(done.stdout)


def summarise(report: str) -> dict[str, Any]:
    """Sort the lines of ``perf report``, ``12.34%|61|object file|[k] function``."""
    shares: dict[str, float] = {}
    found: list[tuple[float, str, str]] = []
    samples = 0
    for line in report.splitlines():
        fields = [each.strip() for each in line.split("|")]
        if len(fields) < 4 or not fields[0].endswith("%"):
            continue
        share, binary, function = float(fields[0].rstrip("%")) / 100, fields[2], fields[3]
        samples += int(fields[1])
        kind = _kind(binary, function)
        shares[kind] = shares.get(kind, 0.0) + share
        found.append((share, binary, function.partition(" ")[2]))
    ordered = sorted(shares.items(), key=lambda each: -each[1])
    return {"samples": samples, "shares": dict(ordered), "top": sorted(found, key=lambda each: -each[0])[:_TOP]}


def as_text(profile: dict[str, Any]) -> str:
    """Shares in a line, and the functions, one on each."""
    words = ", ".join(f"{kind} {share:.0%}" for kind, share in profile["shares"].items() if share >= 0.005)
    lines = [f"byteps_py, CPU time, {profile['samples']} samples: {words}"]
    if profile["samples"] < ENOUGH:
        lines[0] += f"\n  (below {ENOUGH} samples are too few for shares; use a longer --seconds)"
    return "\n".join(lines + [f"  {share:6.1%}  {function}  ({binary})" for share, binary, function in profile["top"]])


def _kind(binary: str, function: str) -> str:
    copying = any(word in function.lower() for word in _COPYING)
    if function.startswith("[k]"):
        return "system, copying" if copying else "system, other"
    if binary.startswith("_native"):
        return "copy" if copying else "sum"
    if copying:
        return "copy"
    if "zmq" in binary:
        return "libzmq"
    if "python" in binary or "multiarray" in binary or "msgspec" in binary or "cffi" in binary:
        return "Python"
    return "other"
