"""``jaxcache diff``."""

from typing import Annotated

from jaxcache.cli.options import Output
from jaxcache.errors import ExitCode
from jaxcache.options import LayoutChoice
from jaxcache.options.declare import TEXT, option

EXAMPLE = "jaxcache diff host0.jxb host1.jxb"
EXIT_CODES = (0, 1, 2, 10)


def command(
    left: Annotated[str, option("left", TEXT, "A cache directory or a bundle.", metavar="A")],
    right: Annotated[
        str, option("right", TEXT, "The cache directory or bundle to compare with.", metavar="B")
    ],
    place: LayoutChoice,
    output: Output,
) -> int:
    """Compare two caches or bundles; exit with 1 if they differ.

    Entries are compared by what they hold, not by how they are compressed.
    """
    from jaxcache.cli.opening import open_handle
    from jaxcache.cli.output import emit
    from jaxcache.render.diff import diff_view

    cache, other = (open_handle(side, place.layout) for side in (left, right))
    difference = cache.diff(other)
    emit(output.form, diff_view(difference))
    return ExitCode.DONE if difference.equal else ExitCode.PROBLEMS
