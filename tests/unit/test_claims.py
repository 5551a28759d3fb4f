"""A claim: one process at a time, until the end of the block."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from byteps_py.ports.claims import claim, claim_name
from tests.helpers.jobs import free_port


def test_two_never_claim_the_same_port() -> None:
    port = free_port()
    code = f"from byteps_py.ports.claims import claim\nwith claim({port}): pass"
    with claim(port):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert "Address already in use" in done.stderr
    with claim(port):
        pass


def test_others_can_be_claimed_meanwhile() -> None:
    port = free_port()
    with claim(port), claim(port - 1), pytest.raises(OSError, match="in use"), claim(port):
        pass


def test_lists_of_sockets_show_it_by_its_name() -> None:
    port = free_port()
    with claim(port):
        assert claim_name(port) in [each.laddr for each in psutil.net_connections("unix")]
