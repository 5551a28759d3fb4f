"""The helper that makes hosts says why it cannot, before anything is made."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.helpers import namespaces


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ip" else f"/bin/{name}")
    assert namespaces.why_not.__wrapped__() == "ip not installed (ip is in the package iproute2)"


def test_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.why_not.__wrapped__() == "network namespaces need root"


def test_the_failure_of_a_first_attempt_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: object, count: int) -> None:
        raise RuntimeError("unshare: Operation not permitted")

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces, "network", refuse)
    assert namespaces.why_not.__wrapped__() == "no network namespaces here: unshare: Operation not permitted"


def test_the_rule_for_a_port_stands_before_that_for_the_own_addresses() -> None:
    for reject, kind in ((False, "blackhole"), (True, "prohibit")):
        rules = namespaces.rules_against(9000, reject)
        assert rules[-1] == f"rule add pref 5 ipproto tcp dport 9000 {kind}"
        assert rules.index("rule add pref 9 table local") < rules.index("rule del pref 0")  # never without any
