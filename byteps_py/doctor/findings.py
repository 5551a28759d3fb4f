"""What a check has found: how bad it is, in words, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Finding", "Severity", "count", "note", "ok", "problem", "warning"]


class Severity(enum.Enum):
    """How bad a finding is, from nothing on."""

    OK = "ok"
    """As it should be."""
    NOTE = "note"
    """Good to know."""
    WARNING = "warning"
    """May cost speed, or a job of another kind."""
    PROBLEM = "problem"
    """A job as the environment describes it fails, hangs or crawls."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        severity: how bad it is.
        text: what was found.
        remedy: what to do; empty where nothing is to be done.
        facts: the same for programs, in types that JSON has.
    """

    severity: Severity
    text: str
    remedy: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


def ok(text: str, **facts: object) -> Finding:
    """A finding that is as it should be."""
    return Finding(Severity.OK, text, "", facts)


def note(text: str, remedy: str = "", **facts: object) -> Finding:
    """A finding that is good to know."""
    return Finding(Severity.NOTE, text, remedy, facts)


def warning(text: str, remedy: str, **facts: object) -> Finding:
    """A finding that may cost something."""
    return Finding(Severity.WARNING, text, remedy, facts)


def problem(text: str, remedy: str, **facts: object) -> Finding:
    """A finding that a job cannot live with."""
    return Finding(Severity.PROBLEM, text, remedy, facts)


def count(number: float, noun: object, plural: str = "") -> str:
    """``1 core``, ``1.5 cores``, ``2 cores``; ``plural`` where an s is not enough."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {noun if number == 1 else plural or f'{noun}s'}"
