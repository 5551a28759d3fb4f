"""Choosing the kernels by name."""

from __future__ import annotations

import sys

import pytest

from byteps_py import kernels
from byteps_py.errors import KernelError


@pytest.mark.parametrize("name", ["native", "reference"])
def test_each_is_known_by_its_name(name: str) -> None:
    assert kernels.select(name).name == name


def test_another_name_is_refused() -> None:
    with pytest.raises(KernelError, match="no kernels 'fast'; choose native or reference"):
        kernels.select("fast")


def test_without_the_extension_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "byteps_py.kernels.native", raising=False)
    monkeypatch.setitem(sys.modules, "byteps_py.kernels._native", None)
    with pytest.raises(KernelError, match=r"not built: run `pip install -e \.`") as caught:
        kernels.select("native")
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert kernels.select("reference").name == "reference"
