"""Which libzmq moves the bytes."""

from __future__ import annotations

import zmq

__all__ = ["zmq_versions"]


def zmq_versions() -> tuple[str, str]:
    """The versions of pyzmq and of the libzmq that it has loaded."""
    return zmq.pyzmq_version(), zmq.zmq_version()
