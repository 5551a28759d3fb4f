"""What ``byteps`` is where there is no package of that name: modules of BytePS's names, on byteps_py.

This folder is loaded under the name ``byteps``, see :mod:`byteps_py.compat.finder`, so Python finds its modules by
itself.  They import what they offer from byteps_py, by its own name.
"""

from __future__ import annotations

from byteps_py.compat import VERSION as __version__

__all__ = ["__version__"]
