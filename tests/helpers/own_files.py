"""The files below a cache's ``.jaxcache``, as the table in ``SECURITY.md`` lists them."""

import re
from pathlib import Path
from typing import Any

from conftest import REPOSITORY

_TABLE = (REPOSITORY / "SECURITY.md").read_text().partition("## The files below")[2]
ROWS = re.findall(r"^\| `([\w./-]+)` \|", _TABLE.partition("\n## ")[0], re.MULTILINE)


def is_in_table(name: str) -> bool:
    """Whether a row describes a file below ``.jaxcache``."""
    pattern = "|".join(re.sub("[A-Z]+", "[^/]+", re.escape(row)) for row in ROWS)
    return re.fullmatch(pattern, name) is not None


def state(directory: Path) -> dict[str, Any]:
    """What is in a directory, with contents and dates."""
    return {
        str(p.relative_to(directory)): (
            p.lstat().st_mtime_ns,
            p.read_bytes() if p.is_file() else None,
        )
        for p in sorted(directory.rglob("*"))
    } | {"": directory.stat().st_mtime_ns}
