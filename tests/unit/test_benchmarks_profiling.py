"""benchmarks/profiling.py sorts what perf reports."""

from __future__ import annotations

import pytest

from benchmarks import profiling

REPORT = """
    30.00%|150|[kernel.kallsyms]|[k] rep_movs_alternative
    20.00%|100|_native.abi3.so|[.] sum_float32_avx512
    15.00%|75|libc.so.6|[.] __memmove_avx_unaligned_erms
    10.00%|50|[kernel.kallsyms]|[k] tcp_sendmsg_locked
    10.00%|50|libpython3.11.so.1.0|[.] _PyEval_EvalFrameDefault
     8.00%|40|libzmq-1.so.5|[.] 0x0000000000061d2c
     5.00%|25|_native.abi3.so|[.] copy_scaled_float32
     2.00%|10|libgomp.so.1|[.] gomp_team_barrier_wait

"""


def test_what_was_done() -> None:
    found = profiling.summarise(REPORT)
    assert found["shares"] == pytest.approx(
        {
            "system, copying": 0.3,
            "sum": 0.2,
            "copy": 0.2,
            "system, other": 0.1,
            "Python": 0.1,
            "libzmq": 0.08,
            "other": 0.02,
        }
    )
    assert found["top"][0] == (0.3, "[kernel.kallsyms]", "rep_movs_alternative")
    assert len(found["top"]) == 8
    assert found["samples"] == 500


def test_its_text() -> None:
    first, second, *_ = profiling.as_text(profiling.summarise(REPORT)).splitlines()
    assert first.startswith("byteps_py, CPU time, 500 samples: system, copying 30%, sum 20%, copy 20%")
    assert second == "   30.0%  rep_movs_alternative  ([kernel.kallsyms])"


def test_few_samples_are_said_to_be_too_few() -> None:
    first, second, *_ = profiling.as_text(profiling.summarise(REPORT.replace("|150|", "|149|"))).splitlines()
    assert "499 samples" in first
    assert second == "  (below 500 samples are too few for shares; use a longer --seconds)"


def test_lines_that_are_none() -> None:
    assert profiling.summarise("# header\n\nsomething|else|was|here\n") == {"samples": 0, "shares": {}, "top": []}
