"""What docs/plan.md shows is what is printed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from byteps_py.plan.one_host import choose_servers

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_shows_what_is_printed() -> None:
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    rendered = runpy.run_path(str(ROOT / "scripts" / "plan_docs.py"))["render"](text)
    assert text.count("\n$ bps plan ") >= 3
    assert rendered == text, (
        "predictions have changed: run python scripts/plan_docs.py, and read what stands around them"
    )


def test_the_line_of_the_launcher_is_what_it_prints() -> None:
    text = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^bpslaunch: -s auto: (.*)$", text, re.MULTILINE)
    chosen = choose_servers(8, 16)
    assert line == f"{chosen.servers} servers for 8 workers: {chosen.reason}"
