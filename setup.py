"""What pyproject.toml cannot say: the C extension, the packages behind a symlink, and what is missing if it fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel
from setuptools.errors import CCompilerError, ExecError, PlatformError

if not sys.platform.startswith("linux"):
    sys.exit(f"byteps_py runs on Linux only, and this is {sys.platform}.")

_EDITABLE = ".editable"
_OPENMP_PROBE = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"


class BuildKernels(build_ext):
    """Compiles the kernels, or ends with one sentence that names what is missing."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (CCompilerError, ExecError, PlatformError) as error:
            print(error, file=sys.stderr)
            sys.exit(f"byteps_py cannot compile its kernels: {self._missing()}.")

    def _missing(self) -> str:
        compiler = list(getattr(self.compiler, "compiler", ["cc"]))
        if shutil.which(compiler[0]) is None:
            return f"there is no C compiler {compiler[0]!r}; install gcc (Debian: apt install gcc libc6-dev)"
        header = Path(sysconfig.get_path("include"), "Python.h")
        if not header.exists():
            return f"the headers of Python are not installed ({header}); install them (Debian: apt install python3-dev)"
        if not _links_with_openmp(compiler):
            return f"{compiler[0]!r} cannot compile and link C with OpenMP; install gcc with libgomp and libc6-dev"
        return f"{compiler[0]!r} failed as shown above, though it knows OpenMP; gcc 9 or later is needed"


class EditableInstallation(editable_wheel):
    """Puts a folder that holds nothing but the package into ``sys.path``.

    By default setuptools makes a finder instead, which Python asks after all folders: a folder byteps_py without an
    ``__init__.py`` in the user's own, such as the clone itself seen from outside, would then be taken for the package.
    The root of the clone cannot be in ``sys.path``, since it has a ``tests`` and a ``launcher``.
    """

    def finalize_options(self) -> None:
        package = Path(_EDITABLE, "byteps_py")
        package.parent.mkdir(exist_ok=True)
        if not package.is_symlink():
            package.symlink_to(Path("..", "byteps_py"))
        self.distribution.package_dir = {"": _EDITABLE}
        super().finalize_options()


def _links_with_openmp(compiler: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text(_OPENMP_PROBE, encoding="utf-8")
        command = [*compiler, "-fopenmp", str(source), "-o", str(Path(directory, "probe"))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


# One wheel for all Pythons from the oldest supported one on; free-threaded builds have no stable ABI.
_STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    # find_packages follows the symlink byteps_py/launcher.
    packages=find_packages(include=["byteps_py", "byteps_py.*"]),
    package_data={"byteps_py": ["py.typed"], "byteps_py.kernels": ["*.pyi"], "byteps_py.compat": ["python-path/*.py"]},
    cffi_modules=["csrc/build_kernels.py:ffibuilder"],
    cmdclass={"build_ext": BuildKernels, "editable_wheel": EditableInstallation},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if _STABLE_ABI else {},
)
