"""What is documented of the Python interface: its page, its help, each example, each type."""

import doctest
import os
import pydoc
import re
import shutil
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import sh

import jaxcache
from jaxcache.cli.commands import COMMANDS


def test_help_begins_with_what_a_user_needs() -> None:
    text = pydoc.render_doc(jaxcache, renderer=pydoc.plaintext)
    start = text.partition("PACKAGE CONTENTS")[0]
    assert "PYTEST" not in start.partition("help(jaxcache.open)")[0]
    assert all(f"\n    {name}" in start for name in ("open(", "watch(", "enable(", "JaxcacheError"))
    shown = pydoc.render_doc(jaxcache.watch, renderer=pydoc.plaintext)
    with jaxcache.watch() as report:
        names = dir(report)
    for name in ("compile_requests", "hits", "compile_seconds", "modules", "functions", "notes"):
        assert f"``{name}``" in shown
        assert name in names


def dated_copy(source: Path, target: Path) -> None:
    """Copy a cache whose entries are a day old."""
    shutil.copytree(source, target)
    dated_ns = time.time_ns() - 86_400 * 10**9
    for file in target.iterdir():
        os.utime(file, ns=(dated_ns, dated_ns))


def test_the_page_about_it_is_true(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated_copy(corpus / "0.12.0.1-cuda13-h200-zstd", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    page = REPOSITORY / "docs" / "api.md"
    failed, tried = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert (failed, tried > 15) == (0, True)


def test_every_command_has_a_counterpart_that_is_there() -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (`.*?) \| (`.*?) \|$", page, re.MULTILINE))
    named = {word for cell in rows for word in re.findall(r"`([a-z -]+)`", cell)}
    assert named == set(COMMANDS) - {"completion"}
    for cell in rows.values():
        for call in re.findall(r"`([A-Za-z_.]+)`", cell):
            module, _, name = call.rpartition(".")
            owner = import_module(module) if module else jaxcache.Cache
            assert hasattr(owner, name), call


#: These run the user's jax.
RUNS_JAX = {
    *("warm", "warm_function", "run", "compile", "explain_script", "diagnose", "examine"),
    *("hlo", "open_recipe"),
}


PROGRAM = """\
import jax

def double(x):
    return x + x

if __name__ == "__main__":
    print(jax.jit(double)(jax.numpy.ones(3)))
"""


def public_methods() -> list[str]:
    names = [name for name in dir(jaxcache.Cache) if not name.startswith("_")]
    return [name for name in names if callable(getattr(jaxcache.Cache, name))]


@pytest.mark.parametrize(
    "with_jax", [False, pytest.param(True, marks=pytest.mark.jax)], ids=["alone", "with jax"]
)
def test_the_example_of_each_method_is_true(
    with_jax: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_jax:
        pytest.importorskip("jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    wrong = {}
    for name in (*public_methods(), "open"):
        if (name in RUNS_JAX) == with_jax:
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            dated_copy(corpus / "0.10.2-cpu-zstd", Path("cache"))
            Path("train.py").write_text(PROGRAM)
            wrong[name] = fault_of_example(name)
    assert {name: fault for name, fault in wrong.items() if fault} == {}


def fault_of_example(name: str) -> str:
    """What is wrong with the example of a method, run here; empty if it is true."""
    known = {
        "sys": sys,
        "jaxcache": jaxcache,
        "cache": jaxcache.open("cache"),
        "other": jaxcache.open("other", create=True),
    }
    method = jaxcache.open if name == "open" else getattr(jaxcache.Cache, name)
    found = doctest.DocTestFinder(recurse=False).find(method, name, globs=known, module=False)
    if not found or not found[0].examples:
        return "no example"
    printed: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found[0], out=printed.append)
    return "".join(printed)


def test_a_typed_program_calls_every_public_function() -> None:
    client = REPOSITORY / "tests" / "lint" / "typed_client.py"
    called = set(re.findall(r"\.(\w+)", client.read_text("utf-8")))
    assert {*public_methods(), *jaxcache.__all__} - called == set()
    checked = sh(
        [sys.executable, "-m", "mypy", "--strict", "tests/lint/typed_layouts.py", str(client)],
        cwd=REPOSITORY,
    )
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


def test_open_is_listed_and_needs_no_argument(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"open", "enable", "Cache", "JaxcacheError"} <= set(dir(jaxcache))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(corpus / "0.10.2-cpu-zstd"))
    assert jaxcache.open().stats().total.entries == 7
