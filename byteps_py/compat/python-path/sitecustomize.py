"""Python imports this before a program begins, see ``byteps_py/startup_folder.py``.

Every Python comes by here, those of other environments too, so nothing is loaded: byteps_py is looked for when somebody
asks for ``byteps``, in the path that the program has then.  Nor is anything written here that Python 3.6 cannot read.
"""

import os
import sys

TYPE_CHECKING = False  # the module typing takes time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ()


class _Finder:
    """Stands before all other finders, which it asks itself: see ``byteps_py/compat/finder.py``."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "byteps":
            return None
        try:
            from byteps_py.compat.finder import find
        except (ImportError, SyntaxError) as error:  # the latter from a Python that is too old
            return self._find_without(error)
        return find(self)

    def _find_without(self, error: Exception) -> "ModuleSpec":
        """This Python has no byteps_py. It may have a byteps."""
        for each in sys.meta_path:
            ask = None if each is self else getattr(each, "find_spec", None)
            found = None if ask is None else ask("byteps", None)
            if found is not None and found.origin is not None:
                return found  # type: ignore[no-any-return]
        raise ImportError(
            "byteps stands for byteps_py here, as `bpslaunch --compat` or `python -m byteps_py.compat` has asked for, "
            f"but {sys.executable} cannot import that: {error}: install byteps_py there"
        ) from error


def _run_the_next() -> None:
    """Import the ``sitecustomize`` that would have been found without this one, if there is one."""
    own = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        sys.modules[__name__] = own
        if error.name != __name__:
            raise


sys.meta_path.insert(0, _Finder())
if __name__ == "sitecustomize":
    sys.path[:] = [each for each in sys.path if each != os.path.dirname(__file__)]
    _run_the_next()
