"""No module imports itself by way of others, not even for types alone."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
#: The top package names for type checkers what it imports when asked for.
_TOP = "jaxcache"


def _modules() -> dict[str, Path]:
    paths = (_ROOT / _TOP).rglob("*.py")
    names = {".".join(path.relative_to(_ROOT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def _imports(name: str, modules: dict[str, Path]) -> set[str]:
    imported: set[str] = set()
    package = f"{name}.x" if modules[name].name == "__init__.py" else name
    for node in ast.walk(ast.parse(modules[name].read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level)[:1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            names = [f"{source}.{alias.name}" for alias in node.names]
            imported.update(name if name in modules else source for name in names)
    return (imported & modules.keys()) - {name}


def test_no_circle() -> None:
    modules = _modules()
    graph = {name: _imports(name, modules) for name in modules.keys() - {_TOP}}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
