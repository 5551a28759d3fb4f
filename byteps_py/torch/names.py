"""What the parameters of an optimizer are called in messages and on the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

__all__ = ["add_names", "check_names", "fill_names", "some"]


def check_names(
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None, groups: Sequence[dict[str, Any]]
) -> dict[torch.Tensor, str]:
    """Names in the order of the model; the first of several names of one tensor counts. Empty if there are none.

    Args:
        named_parameters: what the user gave.
        groups: the optimizer's ``param_groups``, whose parameters must all be named.

    Raises:
        ValueError: names are missing, doubled or malformed.
    """
    if named_parameters is None:
        return {}
    pairs = list(named_parameters)
    if not all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in pairs):
        raise ValueError("named_parameters must be pairs of name and tensor, such as model.named_parameters()")
    seen: set[str] = set()
    doubled = sorted({name for name, _ in pairs if name in seen or seen.add(name)})  # type: ignore[func-returns-value]
    if doubled:
        raise ValueError(f"named_parameters has several tensors of one name: {some(doubled)}; add a prefix per model")
    names: dict[torch.Tensor, str] = {}
    for name, parameter in pairs:
        names.setdefault(parameter, name)
    missing = [str(tuple(each.shape)) for group in groups for each in group["params"] if each not in names]
    if missing:
        raise ValueError(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters, of shape {some(missing)}: "
            "name all of them, or none"
        )
    return names


def add_names(
    names: dict[torch.Tensor, str], named_parameters: Iterable[tuple[str, torch.Tensor]], group: dict[str, Any]
) -> None:
    """Name the parameters of a group before it is added.

    Args:
        names: filled in place; nothing is added to them after an error.
        named_parameters: what the user gave.
        group: all of its parameters must be named.

    Raises:
        ValueError: names are missing, doubled (also with earlier ones) or malformed.
    """
    added = check_names(named_parameters, [group])
    used = set(names.values())
    taken = [label for parameter, label in added.items() if label in used and names.get(parameter) != label]
    if taken:
        raise ValueError(f"other parameters of this optimizer are called {some(taken)} already; add a prefix")
    for parameter, label in added.items():
        names.setdefault(parameter, label)


def fill_names(names: dict[torch.Tensor, str], groups: Sequence[dict[str, Any]]) -> None:
    """Name what has no name yet: as the optimizer itself calls it, if it was made from named parameters, or by place.

    A place that somebody has the name of, such as a parameter that has left its group, counts on.

    Args:
        names: filled in place.
        groups: the optimizer's ``param_groups``.
    """
    used = set(names.values())
    place = 0
    for group in groups:
        own = group.get("param_names") or ()
        for index, parameter in enumerate(group["params"]):
            if parameter not in names:
                places = (f"noname.{each}" for each in itertools.count(place))
                label = next(each for each in itertools.chain(own[index : index + 1], places) if each not in used)
                names[parameter] = label
                used.add(label)
            place += 1


def some(labels: Sequence[str]) -> str:
    """The first few of them, for a message."""
    shown = ", ".join(labels[:5])
    return shown if len(labels) <= 5 else f"{shown} and {len(labels) - 5} more"
