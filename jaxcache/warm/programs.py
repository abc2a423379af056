"""A warm list: a TOML file that names the scripts and functions to warm.

::

    [[script]]
    path = "train.py"                  # relative to the list
    args = ["--steps", "1"]
    env = { SIZE = "small" }
    platforms = ["cpu", "cuda"]        # one run for each
    devices = 8
    python = ".venv/bin/python"

    [[function]]
    name = "models:step"               # or "models.py:step"
    args = ["f32[8,128]", { w = "f32[128,4]", b = "f32[4]" }]
    kwargs = { rate = 0.1 }
    static = { train = true }
    committed = false
    # and env, platforms, devices, python, as for a script
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from jaxcache.errors import UsageError
from jaxcache.warm.arguments import check_fields, names_function, read_table
from jaxcache.warm.run import Program

_COMMON = {"env": dict, "platforms": list, "devices": int, "python": str}
_SCRIPT = {"path": str, "args": list, **_COMMON}
_FUNCTION = {
    "name": str,
    "args": list,
    "kwargs": dict,
    "static": dict,
    "committed": bool,
    **_COMMON,
}


def read_programs(path: str) -> list[Program]:
    """Read a warm list; scripts and functions run in the folder of the list.

    Raises:
        UsageError: ``bad-list`` where the file cannot be read or says something else.
    """
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", code="bad-list") from error
    folder = os.path.dirname(os.path.abspath(path))
    programs: list[Program] = []
    for kind, known, read in (
        ("script", _SCRIPT, _read_script),
        ("function", _FUNCTION, _read_function),
    ):
        tables = document.get(kind, [])
        if not isinstance(tables, list):
            raise UsageError(f"{kind} in {path} is no [[{kind}]]", code="bad-list")
        for number, table in enumerate(tables):
            place = f"[[{kind}]] number {number + 1}"
            check_fields(table, known, place)
            programs += _on_platforms(read(table, place), table, folder)
    if not programs:
        raise UsageError(f"{path} names no [[script]] and no [[function]]", code="bad-list")
    return programs


def _read_script(table: Mapping[str, Any], place: str) -> Program:
    if "path" not in table:
        raise UsageError(f"{place} has no path", code="bad-list")
    return Program(table["path"], tuple(str(a) for a in table.get("args", ())))


def _read_function(table: Mapping[str, Any], place: str) -> Program:
    name = table.get("name", "")
    if not names_function(name):
        raise UsageError(f"{place} has no name such as models:step", code="bad-list")
    call = {k: v for k, v in table.items() if k not in _COMMON and k != "name"}
    return Program(call=read_table(name, call, place))


def _on_platforms(program: Program, table: Mapping[str, Any], folder: str) -> Iterator[Program]:
    """The program with what scripts and functions have in common, once for each platform."""
    python = table.get("python")
    if python and os.sep in python:
        python = os.path.join(folder, python)
    for platform in table.get("platforms") or [None]:
        yield replace(
            program,
            env={str(k): str(v) for k, v in table.get("env", {}).items()},
            cwd=folder,
            python=python,
            platform=None if platform is None else str(platform),
            devices=table.get("devices"),
        )
