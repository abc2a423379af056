"""Print what ``explain`` finds."""

import os
from collections.abc import Sequence

from jaxcache.cache.explain.churn import find_churn
from jaxcache.cache.explain.sides import Explanation
from jaxcache.cli.options import Format
from jaxcache.cli.output import (
    note,
    print_json,
    print_json_lines,
    print_lines,
    terminal_width,
    wants_color,
)
from jaxcache.options.run import WarmOptions
from jaxcache.render import explain as render
from jaxcache.store.base import Store


def script_options(path: str, python: str | None, *, document: bool) -> WarmOptions:
    """How ``explain SCRIPT`` runs it."""
    cache_dir = path if "://" in path else os.path.abspath(path)
    return WarmOptions(cache_dir=cache_dir, python=python, stdout_to_stderr=document)


def print_script(script: str, arguments: Sequence[str], options: WarmOptions, form: Format) -> None:
    """Run a script and explain its misses."""
    from jaxcache.warm.explain import explain_script

    explanation, exit_code = explain_script(script, arguments, options)
    print_explanation(explanation, options.cache_dir, form)
    if exit_code:
        note(f"{script} ended with exit code {exit_code}")


def print_churn(store: Store, form: Format) -> None:
    """Print the modules with many keys."""
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
