"""Every public name is in the pages of docs/api; `make docs` tells whether they can be made."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
API = ROOT / "docs" / "api"
PAGES = {"byteps_py": "numpy.rst", "byteps_py.torch": "torch.rst", "byteps_py.mxnet": "mxnet.rst"}
_ENTRY = re.compile(r"^\.\. (?:auto)?(?:function|class|data|exception):: ([\w.]+)", re.MULTILINE)
_TOLD_ELSEWHERE = re.compile(r":func:`~byteps_py\.(\w+)`")
_MODULE = re.compile(r"^\.\. automodule:: ([\w.]+)\n(?:   :(?!no-members)[\w-]+:.*\n)*   :members:", re.MULTILINE)


def exported(module: str) -> set[str]:
    """The names in ``__all__``, read from the source: the framework of a plugin need not be here."""
    path = ROOT.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    (names,) = (
        ast.literal_eval(each.value)
        for each in ast.parse(source).body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"
    )
    return set(names)


def shown(page: str) -> set[str]:
    """The names that a page has an entry for, or says to be those of ``byteps_py``."""
    text = (API / page).read_text(encoding="utf-8")
    names = {name.rpartition(".")[2] for name in _ENTRY.findall(text)} | set(_TOLD_ELSEWHERE.findall(text))
    return names.union(*(exported(module) for module in _MODULE.findall(text)))


@pytest.mark.parametrize("module", PAGES)
def test_every_public_name_has_an_entry(module: str) -> None:
    missing = exported(module) - shown(PAGES[module]) - shown("errors.rst")
    assert not missing, f"add them to docs/api/{PAGES[module]}"


def test_every_error_has_an_entry() -> None:
    assert exported("byteps_py.errors") == shown("errors.rst")


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in API.iterdir():
        assert f"\napi/{page.stem}\n" in index
