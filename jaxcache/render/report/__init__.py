"""The HTML file: plotly.js if installed, our script and the data that it draws, and a policy.

Everything that comes from the cache is inside one block of JSON in which ``<``, ``>`` and ``&``
are escaped, so that no name can end the block; the script puts names into the page as text only.
The Content-Security-Policy allows the two scripts by their SHA-256 and no request at all.
"""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jaxcache.cache.explain.keys import Churn
from jaxcache.cache.overview import Overview, SizeForecast
from jaxcache.cache.prune.removable import Removal
from jaxcache.render.columns import SHOWN_HASH_DIGITS, removal_name
from jaxcache.render.view import View, to_document, versioned
from jaxcache.units import NS_PER_SECOND, format_count, format_install, format_size

#: What a file of ours begins with: such a file may be replaced without asking.
MARK = "<!DOCTYPE html>\n<!-- jaxcache report -->\n"
#: Entries that are drawn one by one; the smallest beyond count in every sum all the same.
MOST_DRAWN = 20_000
_CHURN_ROWS = 40


def report_view(overview: Overview, file: str, size_bytes: int) -> View:
    """Return the view of ``report``: which file was written."""
    entries = overview.entries
    document = {
        "cache_dir": overview.cache_dir,
        "file": file,
        "size_bytes": size_bytes,
        "entries": len(entries),
    }
    held = (
        f"{format_count(len(entries), 'entry')}, {format_size(sum(e.size_bytes for e in entries))}"
    )
    notes = [f"wrote {file} ({format_size(size_bytes)}): {held}"]
    if not load_plotly():
        notes.append(f"charts are left out: {format_install('report')}")
    return View(document, records=[versioned(document)], page=(), notes=notes)


def report_html(overview: Overview, *, version: str, charts: bool = True) -> str:
    """The whole file; without plotly, or charts, its script draws bars alone."""
    here = resources.files(__package__)
    script = here.joinpath("report.js").read_text("utf-8")
    library = load_plotly() if charts else ""
    data = json_for_html(page_data(overview, version=version))
    parts = {
        "POLICY": _policy(library, script),
        "STYLE": here.joinpath("report.css").read_text("utf-8"),
        "LIBRARY": library,
        "DATA": data,
        "SCRIPT": script,
    }
    page = here.joinpath("report.html").read_text("utf-8")
    first, *later_parts = page.split("{{")
    pieces = [MARK, first]
    for piece in later_parts:
        name, _, text = piece.partition("}}")
        pieces += [parts[name], text]
    return "".join(pieces)


def load_plotly() -> str:
    """Read the script that draws the charts; empty where the extra ``report`` is not installed."""
    try:
        library = resources.files("plotly") / "package_data" / "plotly.min.js"
    except ModuleNotFoundError:
        return ""
    # The page is not XML, and a stray end tag would end the script; plotly.js holds neither.
    return library.read_text("utf-8").replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def json_for_html(value: Any) -> str:
    """Return JSON that is safe inside a script element, with any text."""
    text = json.dumps(to_document(value), separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_data(overview: Overview, *, version: str) -> dict[str, Any]:
    """Return the data of the page's script: bytes, seconds, times in epoch seconds."""
    entries = overview.entries
    modules: dict[str, int] = {}
    platforms: dict[str, int] = {}
    drawn = entries[:MOST_DRAWN]
    return {
        "jaxcache": version,
        "cache_dir": overview.cache_dir,
        "made": overview.made_ns // NS_PER_SECOND,
        "totals": {
            "entries": len(entries),
            "size": sum(e.size_bytes for e in entries),
            "seconds": math.fsum(e.compile_seconds or 0.0 for e in entries),
            # The header's whole seconds, rounded down: a 0 is unknown unless recorded exactly.
            "unknown": sum(not e.compile_seconds and e.key not in overview.exact for e in entries),
            "directory": overview.directory_bytes,
            "sealed": sum(e.sealed for e in entries),
            "problems": len(overview.problems),
            "modules": len({e.module for e in entries}),
            "hits": overview.uses.hits,
            "misses": overview.uses.misses,
            "saved": overview.uses.saved_seconds,
        },
        "entries": {
            "hash": "".join(e.hash[:SHOWN_HASH_DIGITS] for e in drawn),
            "module": [_number(modules, e.module or "(no module)") for e in drawn],
            "platform": [_number(platforms, e.platform) for e in drawn],
            "size": [e.size_bytes for e in drawn],
            "seconds": [e.compile_seconds and round(e.compile_seconds, 3) for e in drawn],
            "created": [e.created_ns // NS_PER_SECOND for e in drawn],
            "used": [e.last_used_ns // NS_PER_SECOND for e in drawn],
        },
        "undrawn": {
            "entries": len(entries) - len(drawn),
            "size": sum(e.size_bytes for e in entries[MOST_DRAWN:]),
        },
        "modules": list(modules),
        "platforms": list(platforms),
        "prune": {policy: _forecasts(steps) for policy, steps in overview.forecasts},
        "churn": [_churn(c) for c in overview.churn[:_CHURN_ROWS]],
    }


def _number(numbers: dict[str, int], name: str) -> int:
    """Return the number of a name: names are numbered in the order in which they first come."""
    return numbers.setdefault(name, len(numbers))


def _forecasts(steps: Sequence[SizeForecast]) -> list[dict[str, Any]]:
    return [
        {
            "bound": s.max_size_bytes,
            "entries": s.entries,
            "others": s.others,
            "freed": s.freed_bytes,
            "lost": round(s.lost_compile_seconds, 3),
            "costliest": [_removal(r) for r in s.costliest],
        }
        for s in steps
    ]


def _removal(removal: Removal) -> list[Any]:
    """Name, bytes, seconds, last use."""
    return [
        removal_name(removal),
        removal.size_bytes,
        removal.compile_seconds,
        removal.last_used_ns // NS_PER_SECOND,
    ]


def _churn(churn: Churn) -> dict[str, Any]:
    return {
        "module": churn.module,
        "keys": churn.keys,
        "size": churn.size_bytes,
        "seconds": round(churn.compile_seconds, 3),
        "causes": [f"{c.component}: {c.meaning}" for c in churn.causes[:2]],
    }
