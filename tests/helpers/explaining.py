"""What ``explain --json`` prints."""

import json
from pathlib import Path
from typing import Any

from conftest import RunCli

KEY = "ab" * 32


def document(run_cli: RunCli, *args: str | Path) -> dict[str, Any]:
    done = run_cli("explain", "--json", *args)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def components(found: dict[str, Any]) -> set[str]:
    return {d["component"] for d in found["differences"]}
