"""Put what ``show`` found on standard output, or into a file."""

import json
import sys
from collections.abc import Iterable, Sequence

from jaxcache.cache.show import Shown, ShownKernels
from jaxcache.cli.options import Format
from jaxcache.cli.output import (
    print_json,
    print_lines,
    terminal_width,
    wants_color,
    write_file,
)  # fmt: skip
from jaxcache.render import show as render


def print_shown(found: Sequence[Shown], form: Format, *, now_ns: int) -> None:
    """Print entries: one document each, one document of all, TSV, or pages."""
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
            print_lines(render.show_tsv(document))
    else:
        width, color = terminal_width(), wants_color()
        pages = (render.show_page(s, now_ns=now_ns, width=width, color=color) for s in found)
        print("\n\n".join(pages))


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
