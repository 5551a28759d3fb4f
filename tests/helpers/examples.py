"""Runs the examples in jobs of bpslaunch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def launch(
    workers: int, servers: int, example: str, *arguments: str, transport: str = "auto", compat: bool = False
) -> dict[str, Any]:
    """Run an example by bpslaunch; returns the object in the last line of worker 0."""
    command = [sys.executable, "-m", "byteps_py.launcher", "-n", str(workers)]
    command += ["--compat"] if compat else []
    command += ["-s", str(servers)] if servers else []
    command += ["--", sys.executable, str(EXAMPLES / example), "--seed", "1", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
    environ["BYTEPS_TRANSPORT"] = transport
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (last,) = (line for line in done.stdout.splitlines() if line.startswith(("[worker 0] {", "{")))
    return json.loads(last.removeprefix("[worker 0] "))  # type: ignore[no-any-return]
