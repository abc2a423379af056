"""One meaning per name of a type: documents, and readers of the code, find it by that name."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jaxcache
from jaxcache.render.view import SHAPES

PACKAGE = Path(jaxcache.__file__).parent


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
