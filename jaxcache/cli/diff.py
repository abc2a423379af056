"""``jaxcache diff``."""

from typing import Annotated

import typer

from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode
from jaxcache.options import LayoutChoice

EXAMPLE = "jaxcache diff host0.jxb host1.jxb"
EXIT_CODES = (0, 1, 2, 10)


def command(
    left: Annotated[str, typer.Argument(metavar="A", help="A cache directory or a bundle.")],
    right: Annotated[
        str, typer.Argument(metavar="B", help="The cache directory or bundle to compare with.")
    ],
    place: LayoutChoice,
    output: Output,
) -> int:
    """Compare two caches or bundles; exit with 1 if they differ.

    Entries are compared by what they hold, not by how they are compressed.
    """
    from jaxcache.cache.diff import diff_sides
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.layouts.sides import check_same_layout, open_side
    from jaxcache.render.diff import diff_view
    from jaxcache.store import open_store

    with progress_bar("reading") as progress:
        sides = [open_side(s, open_store, progress, layout=place.layout) for s in (left, right)]
    check_same_layout(*sides)
    difference = diff_sides(*sides)
    emit(output.form, diff_view(difference))
    return ExitCode.DONE if difference.equal else ExitCode.PROBLEMS
