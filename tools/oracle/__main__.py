"""Print the table of the oracle: ``python -m tools.oracle PYTHON...``.

Each cell is one trial in a directory of its own. Plain JAX counts its own hits in processes without
jaxcache: over what jaxcache filled, and before jaxcache reports on what plain JAX filled.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.oracle.world import (
    REPOSITORY,
    SPELLINGS,
    WAYS,
    World,
    faults,
    faults_after_plain,
    faults_of_full,
)

WORKERS = 2
#: A directory from the environment, and one that the program sets.
SPELLINGS_OF_WAYS = (".jc", "code")


class Trial(NamedTuple):
    """One cell of the table."""

    table: str
    row: str
    column: str
    check: Callable[[], list[str]]


class SkippedError(Exception):
    """A trial that cannot run here, with the reason."""


def make_world(python: str, name: str, **options: object) -> World:
    """Make a world in a directory of its own."""
    top = Path(tempfile.mkdtemp(prefix="oracle-")) / "world"
    return World(top, python, SPELLINGS[name], **options)  # type: ignore[arg-type]


def removed_after(check: Callable[[World], list[str]], world: World) -> list[str]:
    """Run a check, and remove its world."""
    try:
        return check(world)
    finally:
        shutil.rmtree(world.top.parent, ignore_errors=True)


def trials_of_spellings(python: str, version: str) -> Iterator[Trial]:
    """Every spelling, in both orders."""
    orders = {"jaxcache, then JAX": faults, "JAX, then jaxcache": faults_after_plain}
    for name, spelling in SPELLINGS.items():
        for order, check in orders.items():

            def run(name: str = name, check: Callable[[World], list[str]] = check) -> list[str]:
                return removed_after(check, make_world(python, name))

            def refuse(reason: str = spelling.cannot) -> list[str]:
                raise SkippedError(reason)

            yield Trial(f"spelling, {order}", name, version, refuse if spelling.cannot else run)


def trials_of_ways(python: str, version: str) -> Iterator[Trial]:
    """Every way to fill, then plain JAX, then jaxcache."""
    for way in WAYS:
        for name in SPELLINGS_OF_WAYS:

            def run(name: str = name, way: str = way) -> list[str]:
                return removed_after(lambda world: faults(world, way), make_world(python, name))

            yield Trial(f"way to fill, {name}", way, version, run)


def start_with_environment(world: World) -> None:
    """Activate the environment of the world's Python."""
    prefix = Path(world.python).parent.parent
    path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
    world.extra |= {"VIRTUAL_ENV": str(prefix), "PATH": path}
    world.finds_python = True


def write_notebook(world: World, directory: str) -> str:
    """Write the program as a notebook."""
    if directory:
        shutil.copy(world.directory / "program.py", world.directory / directory)
    source = "import program; program.main()"
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    document = {
        "cells": [{**cell, "id": "one", "source": source}],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = Path(directory, "program.ipynb")
    (world.directory / path).write_text(json.dumps(document))
    return str(path)


def check_notebook(world: World, directory: str) -> list[str]:
    """Fill by ``warm NOTEBOOK``, and execute it with nbconvert, which enters its directory."""
    probe = [world.python, "-c", "import nbconvert, ipykernel"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        raise SkippedError("this Python has no nbconvert")
    path = write_notebook(world, directory)
    done = world.run_jaxcache("warm", *world.choice, path)
    if done.returncode:
        return [f"warm {path}: {done.stderr}"]
    convert = ("-m", "nbconvert", "--execute", "--to", "notebook", "--output", "out", path)
    return faults_of_full(world, f"warm {path}", (world.python, *convert))


def check_command(world: World, *command: str) -> list[str]:
    """Fill with ``run -- CMD``, and start the same command without jaxcache."""
    done = world.run_jaxcache("run", "--", *command)
    if done.returncode:
        return [f"run: {done.stderr}"]
    return faults_of_full(world, "run", command)


def trials_of_starts(python: str, version: str, tool: str) -> Iterator[Trial]:
    """Every way to start the program."""

    def active(world: World) -> list[str]:
        start_with_environment(world)
        return faults(world, command=("python", "program.py"))

    def as_tool(world: World) -> list[str]:
        world.jaxcache = (tool, "-m", "jaxcache")
        return active(world)

    def together(world: World) -> list[str]:
        world.processes = 2
        one = f"{world.python} program.py"
        # One after the other while the cache fills, so that nobody compiles what another does.
        return check_command(
            world, "sh", "-c", f"[ -e full ] || {one}; touch full; {one} & {one}; wait"
        )

    starts: dict[str, Callable[[World], list[str]]] = {
        "python program.py": lambda world: check_command(world, world.python, "program.py"),
        "python -m program": lambda world: check_command(world, world.python, "-m", "program"),
        "environment active": active,
        "jaxcache as a tool": as_tool,
        "notebook, nbconvert": lambda world: check_notebook(world, ""),
        "notebook elsewhere": lambda world: check_notebook(world, "x"),
        "pytest": lambda world: check_command(
            world, world.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "program.py"
        ),
        "two processes": together,
    }
    for start, check in starts.items():

        def run(check: Callable[[World], list[str]] = check) -> list[str]:
            return removed_after(check, make_world(python, ".jc"))

        yield Trial("start, .jc", start, version, run)


def make_tool(directory: Path) -> str:
    """Make an environment that has jaxcache and what it needs, and no jax."""
    venv.create(directory, with_pip=True)
    python = str(directory / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(REPOSITORY)], check=True)
    return python


def judge(trial: Trial) -> tuple[Trial, str, list[str]]:
    """Run one trial: its mark, and what is wrong."""
    try:
        wrong = trial.check()
    except SkippedError as reason:
        return trial, f"— ({reason})", []
    except AssertionError as error:
        wrong = [str(error)]
    return trial, "**wrong**" if wrong else "ok", wrong


def print_tables(results: list[tuple[Trial, str, list[str]]]) -> None:
    """Print how many trials of each kind end how, then the trials by name, and what is wrong below."""
    columns = list(dict.fromkeys(trial.column for trial, _, _ in results))
    print(f"| trials | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    tables: dict[str, dict[str, str]] = {}
    for table in dict.fromkeys(trial.table for trial, _, _ in results):
        cells = []
        for column in columns:
            of_column = [
                (t, mark) for t, mark, _ in results if (t.table, t.column) == (table, column)
            ]
            counts = Counter(mark.partition(" (")[0] for _, mark in of_column)
            cells.append(", ".join(f"{count} {mark}" for mark, count in counts.items()))
            tables.setdefault(table, {}).update({t.row: mark for t, mark in of_column})
        print(f"| {table} | {' | '.join(cells)} |")
    for table, rows in tables.items():
        names = (row + mark.removeprefix("—") * mark.startswith("—") for row, mark in rows.items())
        print(f"\n**{table}**: {'; '.join(names)}.")
    for trial, _, wrong in results:
        for line in wrong:
            print(f"\nwrong: JAX {trial.column}, {trial.table}, {trial.row}: {line}")


def main(pythons: list[str]) -> int:
    """Run every trial; 1 where one is wrong."""
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="oracle-tool-") as directory:
        tool = make_tool(Path(directory))
        for python in pythons:
            ask = [python, "-c", "import jax; print(jax.__version__)"]
            told = subprocess.run(ask, capture_output=True, text=True, check=True)
            version = told.stdout.strip()
            trials += trials_of_spellings(python, version)
            trials += trials_of_ways(python, version)
            trials += trials_of_starts(python, version, tool)
        results = []
        with ThreadPoolExecutor(WORKERS) as pool:
            for result in pool.map(judge, trials):
                results.append(result)
                trial, mark, wrong = result
                print(f"{trial.column} {trial.table}, {trial.row}: {mark} {wrong}", file=sys.stderr)
    print_tables(results)
    return 1 if any(wrong for _, _, wrong in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
