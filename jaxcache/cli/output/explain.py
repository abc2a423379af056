"""Read the sides that ``explain`` was given, and print what it finds."""

import os
from collections.abc import Sequence
from dataclasses import replace

from jaxcache.cache.explain.churn import find_churn
from jaxcache.cache.explain.compare import explain
from jaxcache.cache.explain.known import KnownCache
from jaxcache.cache.explain.reports import read_run
from jaxcache.cache.explain.sides import Explanation, Side
from jaxcache.cli.options import Format
from jaxcache.cli.output import (
    note,
    print_json,
    print_json_lines,
    print_lines,
    terminal_width,
    wants_color,
)
from jaxcache.errors import JaxcacheError, NoCacheError, UsageError
from jaxcache.render import explain as render
from jaxcache.store import open_store
from jaxcache.warm.run import WarmOptions


def print_sides(given: Sequence[str], path: str, form: Format, *, explicit: bool) -> None:
    """Explain two sides, or one key against the nearest other one of its module.

    Args:
        explicit: the cache was named, so it must be there.
    """
    known = _open(path, explicit=explicit)
    sides = [_side(text, known) for text in given]
    if len(sides) == 1:
        sides.insert(0, (_others(sides[0][0], known), known))
    shared = {c.key for c in sides[0][0].compiles} & {c.key for c in sides[1][0].compiles}
    left, right = (_complete(*side, shared) for side in sides)
    print_explanation(explain(left, right), path, form)


def _open(path: str, *, explicit: bool) -> KnownCache | None:
    try:
        return KnownCache(open_store(path))
    except NoCacheError:
        if explicit:
            raise
        return None


def _side(text: str, known: KnownCache | None) -> tuple[Side, KnownCache | None]:
    """A side, and the cache that knows more of its keys."""
    if os.path.isdir(text):
        cache = KnownCache(open_store(text))
        return cache.whole(), cache
    if os.path.isfile(text):
        return read_run(text), known
    if known is None:
        raise UsageError(f"there is no run {text}, and no cache whose key it could be")
    return known.side(text), known


def _others(side: Side, known: KnownCache | None) -> Side:
    """Every other key of the modules of a side."""
    if known is None or side.is_run:
        raise UsageError(
            "explain takes two runs", hint="or a script, or a key: jaxcache explain --help"
        )
    mine = {c.key for c in side.compiles}
    modules = {c.module for c in side.compiles}
    others = (c for c in known.whole().compiles if c.module in modules and c.key not in mine)
    found = tuple(others)
    if not found:
        raise JaxcacheError(
            f"{side.name} is the only key of its module", code="no-match",
            hint="explain a script or a saved run against it",
        )  # fmt: skip
    return Side("the other keys of the module", found, is_run=False)


def _complete(side: Side, known: KnownCache | None, shared: set[str | None]) -> Side:
    """Open the entries of a side, but for the keys that the other side has too."""
    if known is None:
        return side
    compiles = (c if c.key in shared else known.complete(c) for c in side.compiles)
    return replace(side, compiles=tuple(compiles))


def script_options(path: str, python: str | None, *, document: bool) -> WarmOptions:
    """How ``explain SCRIPT`` runs it."""
    cache_dir = path if "://" in path else os.path.abspath(path)
    return WarmOptions(cache_dir, python=python, stdout_to_stderr=document)


def print_script(script: str, arguments: Sequence[str], options: WarmOptions, form: Format) -> None:
    """Run a script and explain its misses."""
    from jaxcache.warm.explain import explain_script

    explanation, exit_code = explain_script(script, arguments, options)
    print_explanation(explanation, options.cache_dir, form)
    if exit_code:
        note(f"{script} ended with exit code {exit_code}")


def print_churn(path: str, form: Format) -> None:
    """Print the modules with many keys."""
    store = open_store(path)
    churns = find_churn(store)
    if form is Format.JSON:
        print_json(render.churn_document(churns, store.url))
    elif form is Format.JSONL:
        print_json_lines(map(render.churn_row, churns))
    elif form is Format.TSV:
        print_lines(render.churn_tsv(churns))
    elif churns:
        print(render.churn_table(churns, width=terminal_width(), color=wants_color()))
    else:
        print("no module has three keys or more")


def print_explanation(explanation: Explanation, path: str, form: Format) -> None:
    """Print what differs; ``path`` is the cache."""
    if form is Format.JSON:
        print_json(render.explain_document(explanation, path))
    elif form is Format.JSONL:
        print_json_lines(map(render.comparison_document, explanation.comparisons))
    elif form is Format.TSV:
        print_lines(render.explain_tsv(explanation))
    else:
        print(render.explain_page(explanation, width=terminal_width()))
