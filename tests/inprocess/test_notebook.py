"""``%load_ext jaxcache`` in a real notebook, run by a real kernel."""

import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from processes import sh

from jaxcache.render.warm import headline, phases_line
from jaxcache.warm.report.report import Module, Report

CELLS = [
    "import jax, jax.numpy as jnp, jaxcache, os\n"
    "jaxcache.enable(os.environ['CACHE'], tiers=[os.environ['TIER']])\n"
    "x = jnp.ones((8, 8))",
    "%load_ext jaxcache",
    "@jax.jit\ndef step(x):\n    return jnp.sin(x) @ x",
    "%%jaxcache\nlater = step(x)\n@jax.jit\ndef own(x):\n    return x + 1\nown(x)\nlater.shape",
    "%jaxcache",
    "with jaxcache.watch() as report:\n    jax.jit(lambda x: x * 2)(x)\nreport",
    "jaxcache.last_misses()",
    "%jaxcache report",
    "%%jaxcache\nraise KeyError('of the cell')",
    "jax.clear_caches()",
    "%%jaxcache\nstep(x);",
]
#: The ledger learns at the end alone.
WARM = """
from jaxcache.cli.main import main
from jaxcache.warm import account
account._LEARN_SECONDS = 1e6
main()
"""
#: The cell that fails, as it should.
FAILS = 8


def write_notebook(path: Path, sources: list[str]) -> None:
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "execution_count": None,
            "metadata": {"tags": ["raises-exception"] if number == FAILS else []},
            "outputs": [],
            "source": cell,
        }
        for number, cell in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    document = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4}
    path.write_text(json.dumps(document | {"nbformat_minor": 5}))


def execute(
    directory: Path, sources: list[str], env: dict[str, str], *words: str | Path
) -> tuple[list[dict[str, Any]], str]:
    """Execute a notebook; return its cells, and what the command printed.

    Args:
        words: what runs the Python that executes it.
    """
    for module in ("nbconvert", "ipykernel"):
        pytest.importorskip(module)
    write_notebook(directory / "in.ipynb", sources)
    convert = ("jupyter", "nbconvert", "--execute", "--to", "notebook", "--output", "out.ipynb")
    command = [*words, sys.executable, "-m", *convert, directory / "in.ipynb"]
    done = sh(command, env=env, cwd=directory)
    assert done.returncode == 0, done.stderr
    return json.loads((directory / "out.ipynb").read_text())["cells"], done.stdout


def shown(cell: dict[str, Any], kind: str) -> str:
    """Everything that a cell shows of one kind."""
    data = (output.get("data", {}) for output in cell["outputs"])
    return "".join("".join(d.get(kind, "")) for d in data)


@pytest.mark.jax
def test_cells_show_what_they_compiled(tmp_path: Path, inside_environment: dict[str, str]) -> None:
    pytest.importorskip("plotly")
    env = inside_environment | {"CACHE": str(tmp_path / "cache"), "TIER": str(tmp_path / "tier")}
    del env["JAX_COMPILATION_CACHE_DIR"]
    run = (sys.executable, "-m", "jaxcache", "run", "--json", "-C", tmp_path / "cache", "--")
    cells, printed = execute(tmp_path, CELLS, env, *run)

    cold, cold_text = shown(cells[3], "text/html"), shown(cells[3], "text/plain")
    assert " running" in cold and "compile" in cold and "jit_step" in cold
    assert "In[3]:1" in cold_text, "the function's own cell and line"
    assert "In[4]:3" in cold_text, "a function of this cell, whose first line is the magic"
    assert cold_text.startswith("0 of 2 hits")
    assert "(8, 8)" in cold_text, "the value of the cell"
    status = shown(cells[4], "text/plain")
    assert str(tmp_path / "cache") in status and "live    on" in status
    assert "0 of 2 hits" in status.partition("kernel")[2]
    assert "<table>" in shown(cells[5], "text/html")
    assert "jit__lambda" in shown(cells[6], "text/html")
    page = shown(cells[7], "text/html")
    assert "srcdoc=" in page and len(page) < 500_000
    streams = [o for o in cells[7]["outputs"] if o["output_type"] == "stream"]
    assert streams == [], "IPython warns of a bare frame"
    errors = [o for o in cells[FAILS]["outputs"] if o["output_type"] == "error"]
    assert [o["ename"] for o in errors] == ["KeyError"]
    traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(errors[0]["traceback"]))
    assert "Cell In[9], line 2\n" in traceback
    assert "no compiles" in shown(cells[FAILS], "text/plain")
    assert shown(cells[-1], "text/plain").startswith("1 of 1 hits")
    assert "Array" not in shown(cells[-1], "text/plain"), "the semicolon hides the value"

    summary = json.loads(printed)["summary"]
    before = summary["compile_requests"] - 4  # what the first cell compiled: jnp.ones
    assert summary["hits"] == 1
    written = {path.name for path in (tmp_path / "cache").glob("*-cache")}
    assert summary["written"] == before + 3 == len(written)
    assert {path.name for path in (tmp_path / "tier").glob("*-cache")} == written, "at its end"


@pytest.mark.jax
def test_a_cell_that_warm_runs_knows_what_changed(
    tmp_path: Path, inside_environment: dict[str, str]
) -> None:
    """And has the same number in the report as any other."""
    pytest.importorskip("IPython")
    del inside_environment["JAX_COMPILATION_CACHE_DIR"]
    step = "%%jaxcache\n@jax.jit\ndef step(x):\n    return jnp.{}(x) @ x\nstep(jnp.ones((8, 8)))"
    cells = [
        "%load_ext jaxcache\n"
        "import sys, time, jax, jaxcache, jax.numpy as jnp\n"
        "from _jaxcache.core import sketch\n"
        "make_sketch = sketch.make_sketch\n"
        "sketch.make_sketch = lambda *args: time.sleep(0.5) or make_sketch(*args)\n",
        step.format("sin"),
        step.format("cos"),
        "print(*(module.cause for module in jaxcache.last_misses()))",
    ]
    write_notebook(tmp_path / "in.ipynb", cells)
    command = [sys.executable, "-c", WARM, "warm", "-C", tmp_path / "cache", "in.ipynb"]
    done = sh(command, env=inside_environment, cwd=tmp_path)
    assert "sine → cosine at In[3]:4 in `step`\n" in done.stdout, done.stdout + done.stderr
    assert "In[2]:2" in done.stderr, done.stderr


#: The report of a run that did nothing.
_REPORT = Report(
    cache_dir="",
    modules=(),
    functions=(),
    processes=(),
    notes=(),
    script_exit_code=0,
    timed_out=False,
    interrupted=False,
    wall_seconds=0.0,
)


def test_the_line_of_phases_has_all_of_the_time() -> None:
    report = replace(_REPORT, wall_seconds=2.0, phase_seconds={"trace": 0.5})
    assert phases_line(report) == "2.0 s = 0.5 trace · 1.5 running"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((0.0, 0.0), "saved less than 1 s per hit (JAX stores whole seconds)"),
        ((0.0,), "saved less than 1 s (JAX stores whole seconds)"),
        ((None, 0.0), "saved time unknown"),
        ((), "0 s saved"),
        ((2.0, 0.0), "1.9 s saved"),
    ],
)
def test_whole_seconds_are_no_sum_of_nothing(seconds: tuple[float | None, ...], said: str) -> None:
    blank: dict[str, Any] = {f.name: None for f in fields(Module)} | {"occurrences": 1}
    made: list[dict[str, Any]] = [{"outcome": "hit", "compile_seconds": s} for s in seconds]
    made.append({"outcome": "written", "compile_seconds": 3.0})
    modules = tuple(Module(**{**blank, "retrieval_seconds": 0.1, **m}) for m in made)
    saved = sum(s - 0.1 for s in seconds if s)
    report = replace(_REPORT, modules=modules, saved_seconds=saved)
    assert headline(report).endswith(f" · {said}")


@pytest.mark.jax
@pytest.mark.slow
def test_the_cells_of_the_page(tmp_path: Path, inside_environment: dict[str, str]) -> None:
    del inside_environment["JAX_COMPILATION_CACHE_DIR"]
    page = (REPOSITORY / "docs" / "in-a-notebook.md").read_text()
    sources = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    cells, _ = execute(tmp_path, sources, inside_environment)
    assert "0 of 3 hits" in shown(cells[2], "text/plain")
    assert "3 of 3 hits" in shown(cells[4], "text/plain")
    assert "3 of 3 hits" in shown(cells[5], "text/plain")
    predicted = shown(cells[6], "text/plain")
    assert "jit_step would be compiled" in predicted
    assert "(line 2 of a cell)" in predicted, "no name of a temporary file"
    assert "sine → cosine at line 4 of a cell in `step`" in shown(cells[7], "text/plain")
