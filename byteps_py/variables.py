"""What an environment variable is, and the kinds of value that it may hold.

A kind is a pair: the form, for people ("a whole number from 1 to 65535"), and the function from text to value, which
raises ValueError.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = [
    "Finding",
    "Variable",
    "boolean",
    "choice",
    "core_lists",
    "examine",
    "host",
    "integer",
    "label",
    "port_range",
    "seconds",
    "team",
    "text",
    "variable",
    "variables_of",
]


@dataclass(frozen=True)
class Variable:
    """One setting, and the environment variables that give it.

    Attributes:
        name: as the user spells it.
        form: what a value looks like, for error messages ("a whole number from 1 to 65535").
        parse: text to value; raises ValueError.
        default: text of the default for the documentation; None marks a variable that must be set.
        meaning: one line.
        further: more names for the same setting; ``name`` goes before the first of them, that before the next.
        mistaken: words in small letters that people write here by mistake, each with what to do instead.
    """

    name: str
    form: str
    parse: Callable[[str], Any]
    default: str | None
    meaning: str
    further: tuple[str, ...] = ()
    mistaken: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they are looked for."""
        return self.name, *self.further

    def find(self, environ: Mapping[str, str]) -> tuple[str, str] | None:
        """Name and text of the first one that is set; None where none is. An empty value counts as not set."""
        return next(((name, environ[name]) for name in self.names if environ.get(name, "").strip()), None)


_MAX_TEXT = 255
"""Longest text that a variable may hold: it must fit into messages."""


def integer(low: int, high: int) -> tuple[str, Callable[[str], int]]:
    def parse(text: str) -> int:
        word = text.strip()
        # int() alone would take 1_0 and the digits of every script
        if not (word.isascii() and word.removeprefix("-").isdigit() and low <= int(word) <= high):
            raise ValueError(text)
        return int(word)

    return f"a whole number from {low} to {high}", parse


def team(low: int, high: int) -> tuple[str, Callable[[str], int]]:
    """OpenMP takes a list, one number for each level of nesting; the outermost is the one that matters here."""
    form, parse = integer(low, high)
    return form, lambda text: parse(text.partition(",")[0])


def seconds(low: float, high: float) -> tuple[str, Callable[[str], float]]:
    def parse(text: str) -> float:
        # float() alone would take 1_0 and the digits of every script; nan and infinities are in no range
        value = float(text) if text.isascii() and "_" not in text else math.nan
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return f"a number of seconds from {low:.0f} to {high:.0f}", parse


def choice(*allowed: str) -> tuple[str, Callable[[str], str]]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            raise ValueError(text)
        return value

    return "one of " + ", ".join(allowed), parse


def boolean() -> tuple[str, Callable[[str], bool]]:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

    def parse(text: str) -> bool:
        value = words.get(text.strip().lower())
        if value is None:
            raise ValueError(text)
        return value

    return "0 or 1", parse


def port_range() -> tuple[str, Callable[[str], tuple[int, int]]]:
    """First and last port of a range, both included."""

    _, parse_port = integer(1, 65535)

    def parse(text: str) -> tuple[int, int]:
        low, dash, high = text.partition("-")
        first, last = parse_port(low), parse_port(high if dash else low)
        if first > last:
            raise ValueError(text)
        return first, last

    return "two ports from 1 to 65535, such as 20000-20099", parse


def core_lists() -> tuple[str, Callable[[str], tuple[frozenset[int], ...]]]:
    """Lists of processor cores, one for each process of a machine."""

    _, parse_number = integer(0, 65535)

    def parse_item(text: str) -> range:
        low, dash, high = text.partition("-")
        first, last = parse_number(low), parse_number(high if dash else low)
        if first > last:
            raise ValueError(text)
        return range(first, last + 1)

    def parse(text: str) -> tuple[frozenset[int], ...]:
        lists = [[parse_item(item) for item in each.split(",")] for each in text.split(":")]
        return tuple(frozenset(core for item in items for core in item) for items in lists)

    return "a list of cores for each process, such as 0-3,8:4-7,9", parse


def text(form: str, longest: int = _MAX_TEXT) -> tuple[str, Callable[[str], str]]:
    def parse(text: str) -> str:
        word = text.strip()
        if not 0 < len(word) <= longest or not word.isprintable():
            raise ValueError(text)
        return word

    return form, parse


def label() -> tuple[str, Callable[[str], str]]:
    """A name that may be shown in a table, and that hardly changes when it becomes a file name."""
    form, parse_text = text("letters, digits, blanks and any of -._=+,")

    def parse(text: str) -> str:
        word = parse_text(text)
        if not re.fullmatch(r"[A-Za-z0-9 ._=+,-]+", word):
            raise ValueError(text)
        return word

    return form, parse


def host() -> tuple[str, Callable[[str], str]]:
    """An address or a name; what else may stand in a URL is none, and would only be found out by waiting for it."""
    form = "a host name or an address"
    _, parse_text = text(form)

    def parse(text: str) -> str:
        word = parse_text(text)
        bare = word[1:-1] if word.startswith("[") and word.endswith("]") else word
        if ":" in bare:
            ipaddress.IPv6Address(bare)
        elif not re.fullmatch(r"[\w.-]+", bare):
            raise ValueError(text)
        return bare

    return form, parse


def variable(
    name: str,
    kind: tuple[str, Callable[[str], Any]],
    meaning: str,
    default: object = dataclasses.MISSING,
    shown: str = "",
    further: tuple[str, ...] = (),
    mistaken: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A dataclass field that is read from ``name``; without ``default`` the variable must be set."""
    form, parse = kind
    required = default is dataclasses.MISSING
    text = None if required else (shown or ("" if default is None else str(default)))
    metadata = {"variable": Variable(name, form, parse, text, meaning, further, mistaken)}
    if required:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def variables_of(table: type) -> Iterator[tuple[str, Variable]]:
    """``(field name, variable)`` of a dataclass whose fields are made by :func:`variable`, in their order."""
    for each in dataclasses.fields(table):
        yield each.name, each.metadata["variable"]


@dataclass(frozen=True)
class Finding:
    """What an environment says about one field of a table.

    Attributes:
        field: its name in the class.
        variable: what gives it.
        value: the value in force; None where there is a problem.
        origin: the name of the variable that gave it; empty for the default.
        text: what was found there.
        problem: what is wrong with it; empty if nothing is.
        missing: whether the problem is that a variable is not set.
    """

    field: str
    variable: Variable
    value: Any = None
    origin: str = ""
    text: str = ""
    problem: str = ""
    missing: bool = False


def examine(table: type, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at each variable of a table by itself. Pure."""
    return (_examine(each, environ) for each in dataclasses.fields(table))


def _examine(field: dataclasses.Field[Any], environ: Mapping[str, str]) -> Finding:
    variable: Variable = field.metadata["variable"]
    if (found := variable.find(environ)) is not None:
        name, text = found
        try:
            return Finding(field.name, variable, variable.parse(text), name, text)
        except ValueError:
            hint = variable.mistaken.get(text.strip().lower(), "")
            problem = f"{name}={text!r} must be {variable.form} ({variable.meaning}){hint and ': '}{hint}"
            return Finding(field.name, variable, origin=name, text=text, problem=problem)
    if field.default is dataclasses.MISSING:
        problem = f"{variable.name} is not set: {variable.meaning}; expected {variable.form}"
        return Finding(field.name, variable, problem=problem, missing=True)
    return Finding(field.name, variable, field.default)
