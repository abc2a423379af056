"""Put what ``show`` found on standard output, or into a file."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jaxcache.cache.show import Shown, ShownKernels
from jaxcache.cli.options import Format
from jaxcache.cli.output import (
    print_json,
    print_lines,
    terminal_width,
    wants_color,
    write_file,
)
from jaxcache.render import show as render
from jaxcache.render.show import show_tsv

if TYPE_CHECKING:
    from jaxcache.layouts.torch.show import ShownGraph


def print_shown(found: "Sequence[Shown | ShownGraph]", form: Format, *, now_ns: int) -> None:
    """Print entries: one document each, one document of all, TSV, or pages."""
    render = _renderer(found[0])
    documents = map(render.show_document, found)
    if form is Format.JSON and len(found) == 1:
        print_json(next(documents))
    elif form is Format.JSON:
        first = next(documents)
        shared = {name: first[name] for name in ("schema_version", "cache_dir")}
        print_json({**shared, "entries": [render.entry_contents(s) for s in found]})
    elif form is Format.JSONL:
        print_lines(json.dumps(d) for d in documents)
    elif form is Format.TSV:
        for document in documents:
            print_lines(show_tsv(document))
    else:
        width, color = terminal_width(), wants_color()
        pages = (render.show_page(s, now_ns=now_ns, width=width, color=color) for s in found)
        print("\n\n".join(pages))


def _renderer(shown: "Shown | ShownGraph") -> Any:
    """Return the module that renders what was found."""
    if isinstance(shown, Shown):
        return render
    from jaxcache.render import graph

    return graph


def print_kernels(shown: ShownKernels, form: Format) -> None:
    """Print XLA's kernel cache."""
    document = render.kernels_document(shown)
    if form is Format.JSON:
        print_json(document)
    elif form is Format.JSONL:
        print_lines(json.dumps(k) for k in document["side_cache"]["kernels"])
    elif form is Format.TSV:
        print_lines(
            "\t".join("" if k[n] is None else str(k[n]) for n in k)
            for k in document["side_cache"]["kernels"]
        )
    else:
        print(render.kernels_page(shown, width=terminal_width(), color=wants_color()))


def write_payload(chunks: Iterable[bytes], target: str) -> None:
    """Write a payload to a file; ``-`` is standard output. See :func:`write_file`."""
    if target == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    write_file(target, chunks)
