"""One meaning per class name: documents, and readers of the code, find a class by it."""

import ast
from collections import Counter
from pathlib import Path

import jaxcache
from jaxcache.render.document import SHAPES

PACKAGE = Path(jaxcache.__file__).parent
#: ``jaxside`` and ``live`` import nothing of each other.
_TWICE = {"UnknownJaxError"}


def test_no_public_class_has_the_name_of_another() -> None:
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == _TWICE
    assert set(SHAPES) <= set(names)
