"""Runs the checks: all at once, each on a thread of its own, with an end to each whatever it does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from byteps_py.doctor.address import check_address
from byteps_py.doctor.cores import check_cores
from byteps_py.doctor.findings import Finding, problem, warning
from byteps_py.doctor.install import check_install
from byteps_py.doctor.kernels import check_kernels
from byteps_py.doctor.limits import check_limits
from byteps_py.doctor.memory import check_memory
from byteps_py.doctor.openmp import check_openmp
from byteps_py.doctor.ports import check_ports
from byteps_py.doctor.scheduler import check_scheduler
from byteps_py.doctor.sharing import check_sharing
from byteps_py.doctor.situation import Situation
from byteps_py.doctor.variables import check_variables

__all__ = ["CHECKS", "Check", "examine"]

Check: TypeAlias = Callable[[Situation], Iterable[Finding]]

CHECKS: Final[Mapping[str, Check]] = {
    "variables": check_variables,
    "address": check_address,
    "scheduler": check_scheduler,
    "ports": check_ports,
    "sharing": check_sharing,
    "install": check_install,
    "kernels": check_kernels,
    "openmp": check_openmp,
    "cores": check_cores,
    "memory": check_memory,
    "limits": check_limits,
}
"""In the order in which they are reported."""


def examine(situation: Situation, checks: Mapping[str, Check] = CHECKS) -> dict[str, list[Finding]]:
    """The findings of each check.

    Each has ``situation.timeout`` seconds.  One that has not ended then, as the look-up of a name cannot be cut short,
    is left to itself on a daemon thread, and what it had found until then counts.
    """
    found: dict[str, list[Finding]] = {name: [] for name in checks}
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    deadline = time.monotonic() + situation.timeout
    for name, check in checks.items():
        arguments = (check, situation, found[name], lambda name=name: ended.put(name))
        threading.Thread(target=_run, args=arguments, name=f"check {name}", daemon=True).start()
    running = set(checks)
    while running and (left := deadline - time.monotonic()) > 0:
        try:
            running.discard(ended.get(timeout=left))
        except queue.Empty:
            break
    late = problem(
        f"this check has not ended within {situation.timeout:g} s",
        "look at what it asks: a name service or a file system that does not answer; or give it more time (--timeout)",
    )
    return {name: [*findings, late] if name in running else findings for name, findings in found.items()}


def _run(check: Check, situation: Situation, found: list[Finding], end: Callable[[], None]) -> None:
    try:
        for finding in check(situation):
            found.append(finding)  # noqa: PERF402  # one at a time: what is found before it fails or hangs counts
    except Exception as error:  # the other checks are worth something all the same
        text = f"this check failed: {type(error).__name__}: {error}"
        found.append(warning(text, "that is a fault of byteps_py: report it, please, with this line"))
    finally:
        end()
