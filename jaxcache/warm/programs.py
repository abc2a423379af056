"""A warm list: a TOML file that names the scripts to warm.

::

    [[script]]
    path = "train.py"                  # relative to the list
    args = ["--steps", "1"]
    env = { SIZE = "small" }
    platforms = ["cpu", "cuda"]        # one run for each
    devices = 8
    python = ".venv/bin/python"
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcache.errors import UsageError
from jaxcache.warm.run import Program

_FIELDS = {
    "path": str, "args": list, "env": dict, "platforms": list, "devices": int, "python": str,
}  # fmt: skip


def read_programs(path: str) -> list[Program]:
    """Read a warm list; scripts run in the folder of the list.

    Raises:
        UsageError: ``bad-list`` where the file cannot be read or says something else.
    """
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}", code="bad-list") from error
    scripts = document.get("script")
    if not isinstance(scripts, list) or not scripts:
        raise UsageError(f"{path} names no [[script]]", code="bad-list")
    folder = os.path.dirname(os.path.abspath(path))
    return [p for number, script in enumerate(scripts) for p in _programs(script, number, folder)]


def _programs(script: Mapping[str, Any], number: int, folder: str) -> Iterator[Program]:
    place = f"[[script]] number {number + 1}"
    for name, value in script.items():
        if name not in _FIELDS:
            raise UsageError(
                f"{place} has a field {name!r}", code="bad-list",
                hint=f"known are {', '.join(_FIELDS)}",
            )  # fmt: skip
        if not isinstance(value, _FIELDS[name]):
            raise UsageError(f"{name} of {place} is of the wrong type", code="bad-list")
    if "path" not in script:
        raise UsageError(f"{place} has no path", code="bad-list")
    python = script.get("python")
    if python and os.sep in python:
        python = os.path.join(folder, python)
    for platform in script.get("platforms") or [None]:
        yield Program(
            script=script["path"],
            arguments=tuple(str(a) for a in script.get("args", ())),
            env={str(k): str(v) for k, v in script.get("env", {}).items()},
            cwd=folder,
            python=python,
            platform=None if platform is None else str(platform),
            devices=script.get("devices"),
        )
