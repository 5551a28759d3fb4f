"""Findings for people, and for programs."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from byteps_py.doctor.findings import Finding, Severity, count
from byteps_py.role import Role

__all__ = ["as_json", "as_text", "has_problem"]

Findings = Mapping[str, Sequence[Finding]]
_INDENT = 2
_NARROWEST = 30


def has_problem(findings: Findings) -> bool:
    """Whether anything is a problem."""
    return any(each.severity is Severity.PROBLEM for found in findings.values() for each in found)


def as_text(findings: Findings, columns: int = 0) -> str:
    """In aligned columns: check, severity, what was found; below it the remedy, once for neighbours that share it.

    Args:
        findings: of each check.
        columns: where lines are to be broken; 0 for nowhere, which suits programs that look for words.
    """
    width = max(map(len, findings), default=0) + _INDENT
    second = max(len(each.value) for each in Severity) + _INDENT
    lines = []
    for name, found in findings.items():
        for index, each in enumerate(found):
            label = "" if index else name
            rows = _break(each.text, columns - width - second)
            if each.remedy and each.remedy != next((other.remedy for other in found[index + 1 : index + 2]), ""):
                rows += _break(f"-> {each.remedy}", columns - width - second, "   ")
            lines.append(f"{label:{width}}{each.severity.value:{second}}{rows[0]}")
            lines += [f"{'':{width + second}}{row}" for row in rows[1:]]
    return "\n".join([*lines, "", _summary(findings)])


def _break(text: str, columns: int, indent: str = "") -> list[str]:
    """Lines of ``text``; one where there is no room for a sensible line."""
    if columns < _NARROWEST:
        return [text]
    return textwrap.wrap(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def as_json(findings: Findings, role: Role | None) -> str:
    """One JSON object: ``role`` (null: all), ``problem``, and ``findings`` in the order of the text."""
    rows = [
        {
            "check": name,
            "severity": each.severity.value,
            "text": each.text,
            "remedy": each.remedy or None,
            "facts": dict(each.facts),
        }
        for name, found in findings.items()
        for each in found
    ]
    shown = {"role": None if role is None else str(role), "problem": has_problem(findings), "findings": rows}
    return json.dumps(shown, indent=2)


def _summary(findings: Findings) -> str:
    counts = Counter(each.severity for found in findings.values() for each in found)
    words = [
        count(counts[each], each.value) for each in (Severity.PROBLEM, Severity.WARNING, Severity.NOTE) if counts[each]
    ]
    return ", ".join(words) or "nothing to complain about"
