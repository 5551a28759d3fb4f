"""``byteps`` by name: scripts that were written for BytePS run unchanged.

::

    bpslaunch --compat -n 2 -- python old_script.py
    python -m byteps_py.compat old_script.py

``startup_folder`` brings a ``sitecustomize`` to every Python of the job, which asks :mod:`byteps_py.compat.finder` when
somebody imports ``byteps``.  Where there is no other package of that name it is the folder ``names``: modules of
BytePS's names that take what they offer from byteps_py, so there is one copy of everything.  See
``docs/decisions/0036``.
"""

from __future__ import annotations

from typing import Final

__all__ = ["VERSION"]

VERSION: Final = "0.2.5"
"""The version of BytePS whose names these are, for scripts that ask."""
