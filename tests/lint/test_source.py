"""What holds of the source of the package: imports, names, private names of JAX, Python 3.10."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest
from conftest import REPOSITORY
from grimp import build_graph
from processes import sh

from jaxcache.render.view import SHAPES

PACKAGE = REPOSITORY / "jaxcache"

#: The top package names for type checkers what it imports when asked for.
_TOP = "jaxcache"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = build_graph(_TOP, cache_dir=None)
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules - {_TOP}}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def _types(module: ast.Module) -> Iterator[str]:
    """Yield the names of a module's classes and type aliases, such as ``Guard = Callable[…]``."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in module.body:
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            names = (t.id for t in node.targets if isinstance(t, ast.Name))
            yield from (name for name in names if name[0].isupper() and not name.isupper())


def test_no_public_type_has_the_name_of_another() -> None:
    names = Counter(
        name
        for path in PACKAGE.rglob("*.py")
        for name in _types(ast.parse(path.read_text()))
        if not name.startswith("_")
    )
    assert not {name for name, count in names.items() if count > 1}
    assert set(SHAPES) <= set(names)


#: Files by subject. No file is added here.
_NAMES = ("__init__", "cache", "compiling", "listening", "targets", "tracing")
_SEAMS = {f"core/seams/{name}.py" for name in _NAMES}
_IMPORT = re.compile(r'^\s*(?:from|import) jax\._src|["\']jax\._src\.', re.MULTILINE)


def test_private_names_are_in_the_files_that_are_for_them() -> None:
    sources = {str(p.relative_to(PACKAGE)): p.read_text("utf-8") for p in PACKAGE.rglob("*.py")}
    assert {name for name, source in sources.items() if _IMPORT.search(source)} == _SEAMS


def test_the_files_that_other_files_name_are_there() -> None:
    files = sh(["git", "ls-files", "*.md", "tools"], cwd=REPOSITORY).stdout.split()
    texts = {name: (REPOSITORY / name).read_text("utf-8") for name in files if "." in name[-5:]}
    texts["Makefile"] = (REPOSITORY / "Makefile").read_text("utf-8")
    named = re.compile(
        r"\b(?:acted|cache|cli|conformance|core|entry|inprocess|integration|layouts|live|pairs|store|warm)/test_\w+\.py"
    )
    missing = {
        f"{name}: {test}"
        for name, text in texts.items()
        for test in named.findall(text)
        if not (REPOSITORY / "tests" / test).is_file()
    }
    walks = texts["CONTRIBUTING.md"].partition("## Five walks")[2].partition("\n## ")[0]
    modules = re.findall(r"`([\w/]+\.py)`", walks)
    assert len(modules) > 40
    missing |= {module for module in modules if not (PACKAGE / module).is_file()}
    assert not missing
