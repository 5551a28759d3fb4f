"""The rules of the house as functions over source text: each returns one line per breach.

A module is a dotted name and its source. Every import counts, also those under ``TYPE_CHECKING`` and inside functions:
an arrow that runs back is a design fault even where Python would not trip over it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PACKAGE = "byteps_py"
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "role", "version", "entry", "startup_folder"),
    ("types",),
    ("variables", "standard_output"),
    (
        "record_settings",
        "network_settings",
        "binding_settings",
        "trace_settings",
        "asynchronous_settings",
        "place_settings",
    ),
    ("completion",),
    ("settings", "torchrun"),
    ("known_names",),
    ("ports",),
    ("wire",),
    ("kernels",),
    ("compression",),
    ("core",),
    ("sim",),
    ("transport",),
    ("telemetry",),
    ("roles",),
    ("session",),
    ("suspension",),
    ("operations", "objects"),
    ("rows",),
    ("__init__",),
    ("torch", "mxnet"),
    ("tune", "plan", "traces"),
    ("env_report",),
    ("doctor",),
    ("cli",),
    ("compat",),
    ("__main__",),
)
"""From the bottom up: a module imports from its own part and from lower rows. ``__init__`` is the package itself."""

LAUNCHER_MAY_IMPORT = frozenset(
    {"errors", "role", "variables", "completion", "binding_settings", "trace_settings", "settings", "known_names"}
    | {"ports", "version", "entry", "plan", "standard_output", "startup_folder"}
)
"""The launcher stands apart, so that starting processes loads next to nothing; ``plan`` only for ``-s auto``."""

IMPURE = frozenset(
    {"asyncio", "concurrent", "datetime", "logging", "multiprocessing", "os", "queue", "random", "secrets", "select"}
    | {"selectors", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid", "zmq"}
)
"""What core/ must not import: sockets, threads, clocks, the environment, randomness."""

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

Sources = Mapping[str, str]


def read_sources(root: Path) -> dict[str, str]:
    """Every module of the package in ``root``, the launcher behind its symlink included."""
    found: dict[str, str] = {}
    for folder in (root / PACKAGE, root / PACKAGE / "launcher"):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts)] = path.read_text(encoding="utf-8")
    return found


def part_of(module: str) -> str:
    """The part of the house that a module of ours belongs to: ``byteps_py.core.pipeline`` is in ``core``."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def imports(module: str, source: str, known: Iterable[str] = ()) -> Iterator[tuple[str, int]]:
    """``(absolute module, line)`` of every import statement; names imported from a package that are modules of it
    (they are in ``known``) count as those modules."""
    modules = set(known)
    package = module.removesuffix(".__init__") if module.endswith(".__init__") else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner if inner in modules or f"{inner}.__init__" in modules else base), node.lineno


def layer_breaches(sources: Sources) -> Iterator[str]:
    """Imports of ours that run from a lower part to a higher one, and parts that have no place in the list."""
    height = {name: row for row, names in enumerate(LAYERS) for name in names}
    for module, source in sources.items():
        here = part_of(module)
        if here not in height and here != "launcher":
            yield f"{module}: {here!r} has no place in the list of layers"
            continue
        for target, line in _own_imports(module, source, sources):
            there = part_of(target)
            if there == here:
                continue
            if here == "launcher":
                allowed = there in LAUNCHER_MAY_IMPORT
            else:
                allowed = there in height and height[there] < height[here]
            if not allowed:
                yield f"{module}:{line} imports {target}: {here} must not know {there}"


def cycles(sources: Sources) -> Iterator[str]:
    """Each cycle of imports among our modules, once."""
    graph = {
        _plain(module): {_plain(target) for target, _ in _own_imports(module, source, sources)} - {_plain(module)}
        for module, source in sources.items()
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> Iterator[str]:
        if module in path:
            yield " -> ".join((*path[path.index(module) :], module))
        elif module not in done:
            for target in sorted(graph.get(module, ())):
                yield from visit(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        yield from visit(module, ())


def foreign_breaches(sources: Sources) -> Iterator[str]:
    """``zmq`` outside transport/, a framework outside its plugin, anything impure in core/."""
    for module, source in sources.items():
        here = part_of(module)
        for target, line in imports(module, source, sources):
            top = target.partition(".")[0]
            if top == "zmq" and here != "transport":
                yield f"{module}:{line} imports zmq, which only transport/ may"
            elif top in ("torch", "mxnet") and here != top:
                yield f"{module}:{line} imports {top}, which only the plugin {top}/ may"
            elif here == "core" and (top in IMPURE or target.startswith("numpy.random")):
                yield f"{module}:{line} imports {target}, but core/ is pure"


def environment_breaches(sources: Sources) -> Iterator[str]:
    """Reads and writes of the environment outside settings.py and the entry points."""
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    for module, source in sources.items():
        if part_of(module) in ("settings", "cli", "__main__", "launcher"):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute):
                touched = node.attr in names
            else:
                touched = isinstance(node, ast.ImportFrom) and any(alias.name in names for alias in node.names)
            if touched:
                line = getattr(node, "lineno", 0)
                yield f"{module}:{line} touches the environment, which only settings.py and entry points may"


def export_breaches(sources: Sources) -> Iterator[str]:
    """Modules with content and no ``__all__``, and names in ``__all__`` that the module does not bind."""
    for module, source in sources.items():
        tree = ast.parse(source)
        content = [node for node in tree.body if not _is_preamble(node)]
        if not content or module.endswith("__main__"):
            continue
        exported = [node for node in content if isinstance(node, ast.Assign) and _binds(node) == {"__all__"}]
        if not exported:
            yield f"{module} has no __all__"
            continue
        bound = {name for node in content for name in _binds(node)}
        if "__getattr__" not in bound:
            missing = set(ast.literal_eval(exported[0].value)) - bound
            yield from (f"{module} exports {name}, which it does not define" for name in sorted(missing))


def size_breaches(sources: Sources) -> Iterator[str]:
    """Modules and functions that have grown too long."""
    for module, source in sources.items():
        lines = len(source.splitlines())
        if lines > MAX_MODULE_LINES:
            yield f"{module} has {lines} lines, more than {MAX_MODULE_LINES}"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield f"{module}:{node.lineno} {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"


def _own_imports(module: str, source: str, sources: Sources) -> Iterator[tuple[str, int]]:
    for target, line in imports(module, source, sources):
        if target.partition(".")[0] == PACKAGE:
            yield target, line


def _plain(module: str) -> str:
    return module.removesuffix(".__init__")


def _is_preamble(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _binds(node: ast.AST) -> set[str]:
    """Names that a statement at module level binds; those under ``if`` and ``try`` as well."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, (ast.stmt, ast.ExceptHandler))]
    return {name for each in inner for name in _binds(each)}
