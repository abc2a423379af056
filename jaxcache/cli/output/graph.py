"""Put what ``show`` found in a cache of torch's compilers on standard output."""

import json
from collections.abc import Sequence

from jaxcache.cli.options import Format
from jaxcache.cli.output import print_json, print_lines, terminal_width, wants_color
from jaxcache.layouts.torch.show import ShownGraph
from jaxcache.render import graph as render
from jaxcache.render.document import envelope
from jaxcache.render.show import show_tsv


def print_graphs(found: Sequence[ShownGraph], form: Format, *, now_ns: int) -> None:
    """Print graphs: one document each, one document of all, TSV, or pages."""
    if form is Format.JSON and len(found) == 1:
        print_json(render.graph_document(found[0]))
    elif form is Format.JSON:
        shared = envelope(found[0].cache_dir)
        print_json({**shared, "entries": [render.graph_contents(s) for s in found]})
    elif form is Format.JSONL:
        print_lines(json.dumps(render.graph_document(s)) for s in found)
    elif form is Format.TSV:
        for shown in found:
            print_lines(show_tsv(render.graph_document(shown)))
    else:
        width, color = terminal_width(), wants_color()
        pages = (render.graph_page(s, now_ns=now_ns, width=width, color=color) for s in found)
        print("\n\n".join(pages))
