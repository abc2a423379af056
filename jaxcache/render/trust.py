"""Show the keys and the projects that a user trusts."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxcache.render.view import Line, View

if TYPE_CHECKING:
    from jaxcache.cache.trust import TrustedKey, TrustedProject


def trust_view(
    keys: "Sequence[TrustedKey]", projects: "Sequence[TrustedProject]", directory: str
) -> View:
    """Make the view of trusted keys and projects."""
    rows = [(k.name, k.text) for k in keys]
    rows += [(p.path, f"{p.digest}{' (changed since: ignored)' * p.changed}") for p in projects]
    return View(
        {"cache_dir": directory, "keys": keys, "projects": projects},
        rows,
        records=[*keys, *projects],
        page=[Line(text, f"{name}  ", whole=True) for name, text in rows],
    )


def settings_lines(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return a line for each setting of a configuration file."""
    lines = []
    for name, value in table.items():
        if isinstance(value, dict):
            lines += settings_lines(value, f"{prefix}{name}.")
        else:
            lines.append(f"  {prefix}{name} = {json.dumps(value, default=str)}")
    return lines
