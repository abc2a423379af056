"""``jaxcache report``."""

import contextlib
import os
from typing import Annotated

from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import JsonOutput
from jaxcache.errors import UsageError
from jaxcache.options import CacheLocation
from jaxcache.options.declare import FLAG, TEXT, option

EXAMPLE = "jaxcache report cache.html"
EXIT_CODES = (0, 1, 2, 10)


def command(
    file: Annotated[str, option("file", TEXT, "The HTML file to write.", metavar="FILE")],
    place: CacheLocation,
    force: Annotated[
        bool, option("--force", FLAG, "Replace FILE even if it is not a report.")
    ] = False,
    *,
    output: JsonOutput,
) -> None:
    """Write a report of a cache as one HTML file.

    The file opens in any browser, without a network. Its interactive charts need plotly
    (pip install 'jaxcache[report]'); its tables, sums and the slider of prune do not.
    """
    from jaxcache import __version__
    from jaxcache.cli.output import emit, write_file
    from jaxcache.render.report import report_html, report_view

    _check_replaceable(file, force=force)
    cache = open_handle(place)
    overview = cache.overview()
    page = report_html(overview, version=__version__).encode()
    write_file(file, [page])
    emit(output.form, report_view(overview, file, len(page)))


def _check_replaceable(path: str, *, force: bool) -> None:
    """Refuse to overwrite anything but a report.

    Raises:
        UsageError: ``exists``.
    """
    from jaxcache.render.report import MARK

    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory", code="exists", hint="name a file in it")
    if force or not os.path.lexists(path):
        return
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.read(len(MARK)) == MARK.encode():
            return
    raise UsageError(
        f"{path} exists and is not a report",
        code="exists",
        hint="name another file, or add --force to replace it",
    )
