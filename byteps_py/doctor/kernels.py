"""Check of the kernels: whether sums are made in C, and whether they are right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from byteps_py import kernels
from byteps_py.doctor.findings import Finding, note, ok, problem, warning
from byteps_py.doctor.situation import Situation
from byteps_py.errors import KernelError
from byteps_py.settings import wants_native_kernels
from byteps_py.types import DType

__all__ = ["check_kernels", "judge_level"]

_COUNT = 1 << 20
"""Elements of the sum that is tried: enough for a team."""


def check_kernels(situation: Situation) -> Iterator[Finding]:
    """Load the kernels and make a sum."""
    if not wants_native_kernels(situation.environment):
        yield warning("BYTEPS_KERNELS=reference: sums are made in NumPy, which is slow", "unset it")
        return
    try:
        chosen = kernels.select("native")
    except KernelError as error:
        remedy = (
            "install a C compiler with OpenMP (gcc, libgomp), and reinstall: `pip install --force-reinstall --no-deps`"
        )
        yield problem(str(error), remedy)
        return
    ones = np.ones(_COUNT, np.float32)
    total = np.empty_like(ones)
    threads = len(situation.cores)
    chosen.sum_groups(total, [ones, ones, ones], [3], DType.FLOAT32, _COUNT, 1, threads)
    if not np.array_equal(total, 3 * ones):
        yield problem(
            "a sum of ones is wrong", "reinstall byteps_py on this machine: it was built for another processor"
        )
        return
    team = chosen.team(threads)
    yield from judge_level(str(getattr(chosen, "level", "")), team, threads)


def judge_level(level: str, team: int, threads: int) -> Iterator[Finding]:
    """What is to be said of kernels that work. Pure.

    Args:
        level: the instruction set.
        team: how many threads shared work.
        threads: how many could have.
    """
    facts = {"level": level, "team": team}
    if level == "baseline":
        yield note("the kernels are in C, for the baseline of this processor: it has no AVX2", "", **facts)
    else:
        yield ok(f"the kernels are in C, for {level}", **facts)
    if team < threads:
        yield note(
            f"OpenMP gives a team of {team} where {threads} were asked for",
            "look at thread limits of OpenMP and of the system, if that was not meant",
            **facts,
        )
