"""Check of OpenMP: which runtimes a training process has in memory, and how their idle threads wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from byteps_py.doctor.findings import Finding, note, ok, warning
from byteps_py.doctor.loading import COMPANIONS, Loaded, Runtime
from byteps_py.doctor.situation import Situation
from byteps_py.settings import ServerSettings, WorkerSettings

__all__ = ["check_openmp", "judge_policy", "judge_runtimes"]

_LONG_SPIN: Final = 1_000_000
"""Rounds of libgomp's loop, about a millisecond's worth and more."""
_ENDLESS: Final = ("infinite", "infinity")
_BLOCKTIME_KINDS: Final = ("Intel", "LLVM")


def check_openmp(situation: Situation) -> Iterator[Finding]:
    """Runtimes of processes that import the kernels and what is installed; the policy of this environment."""
    kinds: set[str] = set()
    for steps in situation.loader.load():
        yield from judge_runtimes(steps)
        kinds |= {runtime.kind for step in steps for runtime in step.runtimes if step.name not in COMPANIONS}
    yield from judge_policy(situation.environment, situation.server, situation.worker, kinds)


def judge_runtimes(steps: Sequence[Loaded]) -> Iterator[Finding]:
    """Which step brought which runtime. Pure.

    Args:
        steps: what one process had in memory after each import, the kernels first.
    """
    before: tuple[Runtime, ...] = ()
    shared: list[str] = []
    for index, step in enumerate(steps):
        new = [each for each in step.runtimes if each not in before]
        paths = ", ".join(f"{each.path} ({each.kind})" for each in new)
        if step.error or (index and not step.runtimes):
            continue
        if index == 0:
            before = step.runtimes
        elif step.name in COMPANIONS:
            if new:
                yield note(
                    f"{step.name} has an OpenMP runtime of its own, {paths}: harmless while {step.name} itself "
                    "computes nothing",
                    libraries=_paths(new),
                )
        elif new:
            yield warning(
                f"the kernels of byteps_py use {_shown(before)}, but {step.name} brings another runtime, {paths}: each "
                "has threads of its own, and knows nothing of the other's",
                "set OMP_WAIT_POLICY=passive and OMP_NUM_THREADS to half of the cores of the process, or install a "
                f"{step.name} that links to libgomp.so.1",
                libraries=_paths(step.runtimes),
            )
        else:
            shared.append(step.name)
    if before:
        names = " and ".join(["the kernels of byteps_py", *shared])
        yield ok(
            f"{names} use {'the same OpenMP runtime' if shared else 'the OpenMP runtime'} {_shown(before)}",
            libraries=_paths(before),
        )


def judge_policy(
    environ: Mapping[str, str], server: ServerSettings | None, worker: WorkerSettings | None, kinds: set[str]
) -> Iterator[Finding]:
    """How idle threads wait. Pure.

    Args:
        environ: the environment.
        server, worker: the settings of these roles, if they are concerned.
        kinds: of the runtimes that are in memory.
    """
    general = environ.get("OMP_WAIT_POLICY", "").strip().lower()
    if server is not None:
        yield _policy("servers", server.omp_wait_policy)
    if worker is not None:
        yield _policy("workers", worker.omp_wait_policy)
    elif server is None:
        yield _policy("this process", general or None)
    spin = environ.get("GOMP_SPINCOUNT", "").strip().lower()
    if spin:
        rounds = _LONG_SPIN if spin in _ENDLESS else _rounds(spin)
        text = f"GOMP_SPINCOUNT={spin} goes before OMP_WAIT_POLICY: an idle thread looks so often before it sleeps"
        if rounds >= _LONG_SPIN:
            yield warning(text, "unset it, unless each thread has a core of its own")
        else:
            yield note(text)
    block = environ.get("KMP_BLOCKTIME", "").strip().lower()
    used = kinds.intersection(_BLOCKTIME_KINDS)
    if block and not used:
        yield note(f"KMP_BLOCKTIME={block} has no effect: no OpenMP runtime of Intel or LLVM is loaded")
    elif block in _ENDLESS:
        yield warning(f"KMP_BLOCKTIME={block}: idle threads never sleep", "set it to 0 or 1, or unset it")
    elif used and not block and not general:
        yield note(
            "idle threads of the OpenMP runtime of Intel or LLVM spin for 200 ms before they sleep",
            "set KMP_BLOCKTIME=1 or OMP_WAIT_POLICY=passive where processes share cores",
        )


def _policy(who: str, policy: str | None) -> Finding:
    if policy == "active":
        text = f"{who}: OMP_WAIT_POLICY=active, idle threads of OpenMP spin, which keeps their cores busy"
        return note(
            text, "good only where every thread has a core to itself: see docs/omp-wait-policy.md", policy=policy
        )
    if policy == "passive":
        return ok(f"{who}: OMP_WAIT_POLICY=passive, idle threads of OpenMP sleep", policy=policy)
    return ok(
        f"{who}: OMP_WAIT_POLICY is not set, idle threads of OpenMP (libgomp) spin for about 1 ms, then sleep",
        policy=policy,
    )


def _rounds(text: str) -> float:
    """The number of rounds, with the suffixes that libgomp knows; 0 for what it does not understand."""
    scale = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}.get(text[-1:], 1.0)
    digits = text[:-1].strip() if scale > 1 else text
    return float(digits) * scale if digits.isascii() and digits.isdigit() else 0.0


def _shown(runtimes: Sequence[Runtime]) -> str:
    return ", ".join(f"{each.path} ({each.kind})" for each in runtimes) or "none"


def _paths(runtimes: Sequence[Runtime]) -> list[str]:
    return [each.path for each in runtimes]
