"""Builds the extension ``byteps_py.kernels._native`` from the C files beside this one; ``setup.py`` names it.

The flags keep results exact: no multiplication and addition is contracted into one rounding, and nothing is tuned
to the machine that builds (each instruction set has a file of its own and is chosen when called).
"""

from pathlib import Path

from cffi import FFI

# Relative to setup.py, as setuptools wants sources.
_DIRECTORY = "csrc"
_SOURCES = (
    "dispatch.c",
    "level_baseline.c",
    "level_avx2.c",
    "level_avx512.c",
    "farewell.c",
    "ledger.c",
    "lend.c",
    "memory.c",
    "rows.c",
)
_HEADERS = ("cdefs.h", "kernels.h", "convert.h", "half_f16c.h", "sum.h", "level.h")

ffibuilder = FFI()
ffibuilder.cdef((Path(__file__).parent / "cdefs.h").read_text(encoding="utf-8"))
ffibuilder.set_source(
    "byteps_py.kernels._native",
    '#include "kernels.h"',
    sources=[f"{_DIRECTORY}/{name}" for name in _SOURCES],
    depends=[f"{_DIRECTORY}/{name}" for name in _HEADERS],
    include_dirs=[_DIRECTORY],
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-ffp-contract=off",
        "-fno-trapping-math",
        "-fopenmp",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
    ],
    extra_link_args=["-fopenmp"],
    libraries=["m", "rt"],
)
