"""The folder by which Python knows the name ``byteps``.

It stands first in ``PYTHONPATH`` and holds nothing but a ``sitecustomize.py``, which Python imports before a program
begins.  So whatever starts Python in the end, a shell script or a data loader, the name is known there too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

__all__ = ["FOLDER", "with_startup_folder"]

FOLDER: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compat", "python-path")
_VARIABLE: Final = "PYTHONPATH"


def with_startup_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with the folder first in ``PYTHONPATH``, once. Pure."""
    before = environ.get(_VARIABLE, "")
    if before.split(os.pathsep)[0] == FOLDER:
        return dict(environ)
    # An empty part would mean the working folder, so none may arise.
    return {**environ, _VARIABLE: f"{FOLDER}{os.pathsep}{before}" if before else FOLDER}
