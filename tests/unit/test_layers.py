"""The rules of the house, walked over the syntax trees of the package: see design in docs/overview.md.

Each rule is tested twice: the package keeps it, and a small source that breaks it is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.helpers import architecture
from tests.helpers.architecture import Sources

ROOT = Path(__file__).resolve().parents[2]
SOURCES = architecture.read_sources(ROOT)

Rule = Callable[[Sources], Iterable[str]]
RULES: tuple[Rule, ...] = (
    architecture.layer_breaches,
    architecture.cycles,
    architecture.foreign_breaches,
    architecture.environment_breaches,
    architecture.export_breaches,
    architecture.size_breaches,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    assert list(rule(SOURCES)) == []


def test_the_walk_sees_the_whole_house() -> None:
    assert {"byteps_py.__init__", "byteps_py.core.aggregation", "byteps_py.wire.header"} <= SOURCES.keys()
    assert "byteps_py.launcher.__init__" in SOURCES, "the symlink byteps_py/launcher is broken"
    assert (ROOT / "byteps_py" / "launcher").is_symlink()


BREACHES: tuple[tuple[Rule, Sources, str], ...] = (
    (
        architecture.layer_breaches,
        {"byteps_py.core.pipeline": "from byteps_py.transport import base", "byteps_py.transport.base": ""},
        "byteps_py.core.pipeline:1 imports byteps_py.transport.base: core must not know transport",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.wire.header": "if TYPE_CHECKING:\n    from byteps_py.session import Session"},
        "byteps_py.wire.header:2 imports byteps_py.session: wire must not know session",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.roles.server": "def late():\n    import byteps_py.cli"},
        "byteps_py.roles.server:2 imports byteps_py.cli: roles must not know cli",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.errors": "from . import types", "byteps_py.types": ""},
        "byteps_py.errors:1 imports byteps_py.types: errors must not know types",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.session": "import byteps_py"},
        "byteps_py.session:1 imports byteps_py: session must not know __init__",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.mxnet.trainer": "from byteps_py.torch import optimizer"},
        "byteps_py.mxnet.trainer:1 imports byteps_py.torch: mxnet must not know torch",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.launcher.local": "from byteps_py.session import init"},
        "byteps_py.launcher.local:1 imports byteps_py.session: launcher must not know session",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.session": "from byteps_py.launcher import main", "byteps_py.launcher.main": ""},
        "byteps_py.session:1 imports byteps_py.launcher.main: session must not know launcher",
    ),
    (
        architecture.layer_breaches,
        {"byteps_py.utils": ""},
        "byteps_py.utils: 'utils' has no place in the list of layers",
    ),
    (
        architecture.cycles,
        {
            "byteps_py.core.a": "from byteps_py.core import b",
            "byteps_py.core.b": "def late():\n    from byteps_py.core.c import thing",
            "byteps_py.core.c": "from .a import thing",
        },
        "byteps_py.core.a -> byteps_py.core.b -> byteps_py.core.c -> byteps_py.core.a",
    ),
    (
        architecture.cycles,
        {
            "byteps_py.core.__init__": "from byteps_py.core.a import x",
            "byteps_py.core.a": "from byteps_py.core import y",
        },
        "byteps_py.core -> byteps_py.core.a -> byteps_py.core",
    ),
    (
        architecture.foreign_breaches,
        {"byteps_py.roles.server": "import zmq.utils"},
        "byteps_py.roles.server:1 imports zmq, which only transport/ may",
    ),
    (
        architecture.foreign_breaches,
        {"byteps_py.session": "def late():\n    from torch import nn"},
        "byteps_py.session:2 imports torch, which only the plugin torch/ may",
    ),
    (
        architecture.foreign_breaches,
        {"byteps_py.torch.bridge": "import mxnet"},
        "byteps_py.torch.bridge:1 imports mxnet, which only the plugin mxnet/ may",
    ),
    (
        architecture.foreign_breaches,
        {"byteps_py.core.delivery": "import time"},
        "byteps_py.core.delivery:1 imports time, but core/ is pure",
    ),
    (
        architecture.environment_breaches,
        {"byteps_py.session": "import os\nhome = os.environ['HOME']"},
        "byteps_py.session:2 touches the environment, which only settings.py and entry points may",
    ),
    (
        architecture.environment_breaches,
        {"byteps_py.session": "import os as system\nhome = system.getenv('HOME')"},
        "byteps_py.session:2 touches the environment, which only settings.py and entry points may",
    ),
    (
        architecture.environment_breaches,
        {"byteps_py.session": "from os import environ as variables"},
        "byteps_py.session:1 touches the environment, which only settings.py and entry points may",
    ),
    (
        architecture.export_breaches,
        {"byteps_py.wire.frame": "def decode(): ..."},
        "byteps_py.wire.frame has no __all__",
    ),
    (
        architecture.export_breaches,
        {"byteps_py.wire.frame": "__all__ = ['decode', 'encode']\nif True:\n    def encode(): ..."},
        "byteps_py.wire.frame exports decode, which it does not define",
    ),
    (
        architecture.size_breaches,
        {"byteps_py.wire.frame": "x = 1\n" * 401},
        "byteps_py.wire.frame has 401 lines, more than 400",
    ),
    (
        architecture.size_breaches,
        {"byteps_py.wire.frame": "class C:\n  def long(self):\n" + "    x = 1\n" * 60},
        "byteps_py.wire.frame:2 long has 61 lines, more than 60",
    ),
)


@pytest.mark.parametrize(("rule", "sources", "breach"), BREACHES)
def test_a_breach_is_caught(rule: Rule, sources: Sources, breach: str) -> None:
    assert list(rule(sources)) == [breach]


@pytest.mark.parametrize("name", sorted(architecture.IMPURE))
def test_core_may_import_nothing_impure(name: str) -> None:
    sources = {"byteps_py.core.delivery": f"from {name} import something"}
    assert len(list(architecture.foreign_breaches(sources))) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_good_module_breaks_no_rule(rule: Rule) -> None:
    good = {
        "byteps_py.cli": "import os\n__all__ = ['main']\nfrom byteps_py.session import init\ndef main(): os.environ",
        "byteps_py.core.pipeline": "__all__ = ['A']\nimport math\nfrom byteps_py.core.parts import A\nprint(math.pi)",
        "byteps_py.core.parts": "from byteps_py.types import DType\n__all__ = ['A']\nA: int = 1",
        "byteps_py.torch.ops": "import torch\nimport byteps_py\n__all__ = []",
        "byteps_py.transport.zmq": "import zmq\n__all__ = []\nfrom byteps_py.transport.base import Endpoint",
        "byteps_py.core.__init__": '"""Only a docstring."""\nfrom __future__ import annotations',
    }
    assert list(rule(good)) == []
