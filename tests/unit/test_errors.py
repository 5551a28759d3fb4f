"""The exception tree."""

from __future__ import annotations

import inspect
import re

import pytest

from byteps_py import errors


def _classes() -> list[type[Exception]]:
    return [getattr(errors, name) for name in errors.__all__]


def test_everything_that_is_defined_is_exported() -> None:
    defined = [name for name, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]
    assert sorted(defined) == sorted(errors.__all__)


def test_the_drawing_shows_the_tree() -> None:
    """Each line of the drawing: depth by its column, the class, and the built-ins in brackets."""
    drawn: list[tuple[int, str, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([ │├└─]+)([A-Z]\w+)(?: \((\w+)\))?", line)
        if found:
            drawn.append((len(found[1]), found[2], found[3] or ""))
    assert drawn[0][1] == "BytePSError"
    assert {name for _, name, _ in drawn} == set(errors.__all__)
    parents: list[tuple[int, str]] = []
    for column, name, builtin in drawn:
        parents = [each for each in parents if each[0] < column]
        bases = {base.__name__ for base in getattr(errors, name).__bases__}
        assert bases == ({parents[-1][1]} if parents else set()) | ({builtin} if builtin else set())
        parents.append((column, name))


@pytest.mark.parametrize("error", _classes(), ids=lambda error: error.__name__)
def test_everything_can_be_caught_at_once(error: type[Exception]) -> None:
    assert issubclass(error, errors.BytePSError)
    assert issubclass(error, RuntimeError)
    assert error.__doc__


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.SettingsError, ValueError),
        (errors.AgreementError, ValueError),
        (errors.NotInitializedError, ValueError),
        (errors.UnsupportedError, TypeError),
    ],
)
def test_the_built_in_that_users_catch_already(error: type[Exception], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise error("what, where, and what next")


class TestSettingsError:
    def test_one_problem(self) -> None:
        error = errors.SettingsError("A is not set")
        assert error.problems == ("A is not set",)
        assert str(error) == "A is not set"

    @pytest.mark.parametrize("kind", [list, tuple])
    def test_several_problems(self, kind: type) -> None:
        error = errors.SettingsError(kind(["A is not set", "B='x' must be a number"]))
        assert error.problems == ("A is not set", "B='x' must be a number")
        assert str(error) == "A is not set\nB='x' must be a number"
