"""``jaxcache diff``."""

from typing import Annotated

import typer

from jaxcache.cli.options import Format, Output
from jaxcache.errors import ExitCode
from jaxcache.options import LayoutChoice

EXAMPLE = "jaxcache diff host0.jxb host1.jxb"
EXIT_CODES = (0, 1, 2, 10)


def command(
    left: Annotated[str, typer.Argument(metavar="A", help="A cache directory or a bundle.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    place: LayoutChoice,
    output: Output,
) -> int:
    """Compare two caches or bundles; exit with 1 if they differ.

    Entries are compared by what they hold, not by how they are compressed.
    """
    from jaxcache.cache.diff import diff_sides
    from jaxcache.cli.output import note, print_json, print_json_lines, print_lines
    from jaxcache.cli.terminal import terminal_width, wants_color
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.layouts.sides import check_same_layout, open_side
    from jaxcache.render import bundle as render
    from jaxcache.store import open_store

    form = output.form
    with progress_bar("reading") as progress:
        sides = [open_side(s, open_store, progress, layout=place.layout) for s in (left, right)]
    check_same_layout(*sides)
    found = diff_sides(*sides)
    if form is Format.JSON:
        print_json(render.diff_document(found))
    elif form is Format.JSONL:
        print_json_lines(render.diff_lines(found))
    elif form is Format.KEYS:
        print_lines(render.diff_keys(found))
    elif form is Format.TSV:
        print_lines(render.diff_rows(found))
    elif not found.equal:
        print(render.diff_table(found, width=terminal_width(), color=wants_color()))
    if form in (Format.TSV, Format.TABLE):
        note(render.diff_summary(found))
    return ExitCode.DONE if found.equal else ExitCode.PROBLEMS
