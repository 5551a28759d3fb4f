"""How sphinx makes HTML of README.md, docs/ and the docstrings: `make docs`, where a warning is an error.

The source directory is the root of the repository, so that a link from one page to another is the same file for a
reader of the repository and for sphinx. Nothing is fetched: names of Python, NumPy and torch are not linked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from unittest.mock import MagicMock

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

# As much of MXNet as its plugin needs to be imported: MXNet cannot be installed beside a newer NumPy.
sys.modules["mxnet"] = mxnet = MagicMock()
mxnet.__version__ = "1.9.1"
mxnet.gluon.Trainer = type("Trainer", (), {})
mxnet.optimizer.Optimizer = type("Optimizer", (), {})

project = "byteps_py"
author = "The byteps_py developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/*.md"]
exclude_patterns = [".*", "docs/_build", "build", "dist", "byteps_py", "csrc", "launcher", "tests"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a table of contents may skip a level
add_module_names = False
toc_object_entries_show_parents = "hide"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {each: each for each in ("npt.ArrayLike", "npt.DTypeLike", "npt.NDArray")}
autodoc_inherit_docstrings = False  # those of torch and MXNet are not ours, nor are their links
napoleon_use_ivar = False

nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(np|npt|numpy|torch|mx|mxnet|collections|concurrent|datetime|enum|msgspec|typing)\..*"),
    (r"py:.*", r"(.*\.)?_\w+"),  # what is private to us
    (r"py:exc", r"(DeferredInitialization|MXNet)Error"),
]

html_theme = "furo"
pygments_style = "default"  # which shows the lines of a diff in red and green
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {"light_css_variables": {"code-font-size": "75%"}}
html_title = "byteps_py"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


class CommandHelp(Directive):
    """``.. command-help:: byteps_py ab``: what ``python -m byteps_py ab --help`` prints, as it prints it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        command = [sys.executable, "-m", *self.arguments[0].split(), "--help"]
        environ = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0 or not done.stdout.startswith("usage: "):
            raise self.error(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr or done.stdout}")
        return [nodes.literal_block(done.stdout, done.stdout, language="none")]


def add_decisions(_: Sphinx, page: str, source: list[str]) -> None:
    """The table of decisions is written by hand; that they are below it in the tree of pages, only sphinx is told."""
    if page == "docs/decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def find_public_name(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.Element
) -> nodes.Element | None:
    """What docstrings call by its own module, or without one, is shown in the package that exports it:
    ``byteps_py.torch.ops.poll`` as ``byteps_py.torch.poll``."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    package, _, name = (target if target.startswith("byteps_py.") else f"{node.get('py:module')}.{target}").rpartition(
        "."
    )
    domain = env.domains.python_domain
    for home in (package.rpartition(".")[0], "byteps_py", "byteps_py.errors"):
        if f"{home}.{name}" in domain.objects:
            return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], f"{home}.{name}", node, text)
    return None


def setup(app: Sphinx) -> None:
    app.add_directive("command-help", CommandHelp)
    app.connect("source-read", add_decisions)
    app.connect("missing-reference", find_public_name)
