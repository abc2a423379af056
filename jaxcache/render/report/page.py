"""The HTML file: plotly.js if installed, our script and the data, and a policy against all else.

Everything that comes from the cache is inside one block of JSON in which ``<``, ``>`` and ``&``
are escaped, so that no name can end the block; the script puts names into the page as text only.
The Content-Security-Policy allows the two scripts by their SHA-256 and no request at all.
"""

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from jaxcache.cache.overview import Overview
from jaxcache.render.document import to_document
from jaxcache.render.report.data import page_data

#: What a file of ours begins with: such a file may be replaced without asking.
MARK = "<!DOCTYPE html>\n<!-- jaxcache report -->\n"


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
    allowed = " ".join(f"'sha256-{_digest(s)}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def json_for_html(value: Any) -> str:
    """JSON that can stand inside a script element, whatever its texts are."""
    text = json.dumps(to_document(value), separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
