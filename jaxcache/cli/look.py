"""``jaxcache ls``, ``show``, ``stats`` and ``report``."""

import contextlib
import os

from jaxcache.api import Cache
from jaxcache.api.compiling import runner_of
from jaxcache.api.handle import kind_of_file
from jaxcache.cli.opening import open_handle
from jaxcache.cli.output import Format, JsonOutput, Output, emit, print_lines, write_file
from jaxcache.errors import ExitCode, UsageError
from jaxcache.model import Depth
from jaxcache.options import GROUP_FIELDS, CacheLocation, ListOptions, flag, option
from jaxcache.units import printable_lines

#: How much of each entry a format shows; the others show all.
_DEPTHS = {Format.KEYS: Depth.LISTED, Format.TSV: Depth.OPENED}


def ls(
    *,
    place: CacheLocation,
    options: ListOptions,
    group_by: str | None = option(
        f"--group-by {'|'.join(GROUP_FIELDS)}", "List one row for each value of this field."
    ),
    output: Output,
) -> None:
    """List the entries of a cache.

    Also the modules of a recipe (-C FILE.recipe) and the entries of a bundle (-C FILE.jxb). In a
    pipe each line is key, bytes, compile seconds, time of the last use, problems, with tabs between
    them and no header; --long adds platform, target, signature, source, and
    for torch the function.
    """
    _list(open_handle(place), options, output.form, group_by)


def _list(cache: Cache, options: ListOptions, form: Format, group_by: str | None = None) -> None:
    """Print what is in a cache, a bundle or a recipe."""
    if cache.kind == "recipe":
        if options.filters or group_by or options.long:
            raise UsageError("--filter, --group-by and --long are not for recipes")
        from jaxcache.render import recipe

        sort = "key" if options.sort == "used" else options.sort  # a recipe records no use
        with cache.open_recipe() as file:
            listed = file.select(options.keys, sort=sort, limit=options.limit)
            emit(form, recipe.listing_view(file, listed))
        return
    from jaxcache.render.listing import listing_view

    depth = _DEPTHS.get(form, Depth.DECODED)
    sums = form is Format.JSON
    listing = cache.select(options=options, group_by=group_by, depth=depth, sums=sums)
    view = listing_view(
        listing,
        now_ns=cache.clock(),
        group_by=group_by,
        sort=options.sort,
        limit=options.limit,
        long=options.long,
    )
    emit(form, view)


def show(
    *,
    key: str = option(
        "key KEY|FILE",
        "Key, prefix or module glob; the file of an entry; a bundle or recipe.",
    ),
    inside: str | None = option("inside [KEY]", "In a bundle or recipe.", show_default=False),
    place: CacheLocation,
    hlo: bool = flag("--hlo", "Print the optimized HLO as text, through jaxlib."),
    payload: str | None = option(
        "--payload FILE", "Write the decompressed executable to FILE (- for stdout)."
    ),
    python: str | None = option("--python PYTHON", "Python with jaxlib, for --hlo."),
    verbose: bool = flag("--verbose -v", "Show all shapes, opcodes and CPU features."),
    wanted: JsonOutput,
) -> int:
    """Show what is inside an entry.

    Also in a bundle or recipe: show FILE [KEY], or show KEY -C FILE.
    """
    writes = hlo or payload is not None
    if hlo and payload is not None:
        raise UsageError("--hlo and --payload cannot be combined")
    if writes and wanted.form.is_json:
        raise UsageError("--hlo and --payload cannot be combined with --json or --jsonl")
    is_container = os.path.isfile(key) and kind_of_file(key) != "cache"
    if inside is not None and not is_container:
        raise UsageError(f"{key} is neither a bundle nor a recipe", code="not-a-bundle")
    cache = open_handle(key, place.layout) if is_container else open_handle(place)
    chosen = inside if is_container else key
    if cache.kind == "recipe" and writes:
        raise UsageError("--hlo and --payload are for entries: a recipe holds none")
    if cache.kind == "recipe" or not chosen:
        _list(cache, ListOptions(keys=(chosen,) if chosen else (), sort="key"), wanted.form)
    elif writes:
        if payload is not None:
            write_file(payload, cache.payload(chosen))
        else:
            print(printable_lines(cache.hlo(chosen, python=python)), end="")
    else:
        return _show_entry(cache, chosen, wanted.form, verbose=verbose)
    return ExitCode.DONE


def _show_entry(cache: Cache, key: str, form: Format, *, verbose: bool) -> int:
    from jaxcache.render.show import show_view

    shown = cache.show_all(key)
    sections = runner_of(shown[0].compiler).pages.sections
    emit(form, show_view(shown, sections, now_ns=cache.clock(), verbose=verbose))
    return ExitCode.PROBLEMS if any(s.damaged for s in shown) else ExitCode.DONE


def stats(
    *,
    place: CacheLocation,
    prometheus: bool = flag("--prometheus", "Print in Prometheus text format."),
    long: bool = flag(
        "--long -l", "In a bucket, read every entry, for codec, compile time and platform."
    ),
    output: JsonOutput,
) -> None:
    """Summarize a cache: hits, entries, size, compile time, age."""
    from jaxcache.render.stats import stats_prometheus, stats_view

    if prometheus and output.form.is_json:
        raise UsageError("--prometheus and --json cannot be combined")
    cache = open_handle(place)
    stats = cache.stats(long=long)
    live = cache.live_stats(stats)
    if prometheus:
        print_lines(stats_prometheus(stats, live.totals))
    else:
        emit(output.form, stats_view(stats, live, cache.readable[1].words, now_ns=cache.clock()))


def report(
    *,
    file: str = option("file FILE", "The HTML file to write."),
    place: CacheLocation,
    force: bool = flag("--force", "Replace FILE even if it is not a report."),
    output: JsonOutput,
) -> None:
    """Write a report of a cache as one HTML file.

    The file opens in any browser, without a network. Its interactive charts need plotly
    (pip install 'jaxcache[report]'); its tables, sums and the slider of prune do not.
    """
    from jaxcache import __version__
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
