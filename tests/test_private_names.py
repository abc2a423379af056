"""The private names of JAX are in few files, each with the versions that it was tried on."""

import re
from pathlib import Path

_PACKAGE = Path(__file__).parents[1] / "jaxcache"
#: Files by subject. No file is added here.
_NAMES = ("__init__", "cache", "compiling", "listening", "targets", "tracing")
_SEAMS = {f"core/seams/{name}.py" for name in _NAMES}
_IMPORT = re.compile(r'^\s*(?:from|import) jax\._src|["\']jax\._src\.', re.MULTILINE)


def test_private_names_are_in_the_files_that_are_for_them() -> None:
    sources = {str(p.relative_to(_PACKAGE)): p.read_text("utf-8") for p in _PACKAGE.rglob("*.py")}
    assert {name for name, source in sources.items() if _IMPORT.search(source)} == _SEAMS


def test_each_of_them_names_the_versions_it_was_tried_on() -> None:
    for name in _SEAMS:
        assert re.search(r"\b0\.4\.\d\d|\b0\.1[12]\b", (_PACKAGE / name).read_text("utf-8")), name
