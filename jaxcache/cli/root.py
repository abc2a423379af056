"""Commands on a root: a directory above several caches."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxcache.api import Cache, Detail
from jaxcache.cli.options import Format
from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options import ListOptions

if TYPE_CHECKING:
    from jaxcache.cache.root import CacheSums
    from jaxcache.options.query import DoctorOptions

#: How much of each entry a format shows.
DETAIL = {
    Format.KEYS: Detail.KEYS,
    Format.TSV: Detail.ROWS,
    Format.JSONL: Detail.RECORDS,
    Format.TABLE: Detail.SCREEN,
    Format.JSON: Detail.DOCUMENT,
}


def list_root(root: Cache, options: ListOptions, form: Format) -> None:
    """Print a row for each cache, of the entries that the options choose.

    Raises:
        JaxcacheError: a KEY fits nothing in any of the caches.
    """
    from jaxcache.cache.root import sum_up_listing

    unmatched: list[JaxcacheError] = []
    detail = min(DETAIL[form], Detail.RECORDS)  # the size of a directory is not shown

    def sum_up(name: str, cache: Cache) -> "CacheSums | None":
        try:
            listing = cache.select(options=options.replace(limit=None), detail=detail)
        except JaxcacheError as error:
            if error.code != "no-match":
                raise
            unmatched.append(error)
            return None
        return sum_up_listing(name, listing, cache.ledger)

    if not _print_sums(root, form, sum_up, measured=False):
        raise unmatched[0]


def count_root(root: Cache, form: Format) -> None:
    """Print the sums of each cache, and those over all."""
    from jaxcache.cache.root import sum_up_stats

    _print_sums(root, form, lambda name, cache: sum_up_stats(name, cache.stats()), measured=True)


def _print_sums(
    root: Cache,
    form: Format,
    sum_up: "Callable[[str, Cache], CacheSums | None]",
    *,
    measured: bool,
) -> bool:
    """Sum up each cache, without those that have no row; return whether any has one."""
    from jaxcache.cache.root import RootSums
    from jaxcache.cli.output import emit
    from jaxcache.render.root import sums_view

    rows = tuple(row for name, cache in root.members.items() if (row := sum_up(name, cache)))
    if rows:
        sums = RootSums(root.path, rows)
        emit(form, sums_view(sums, now_ns=root.clock(), measured=measured))
    return bool(rows)


def diagnose_root(root: Cache, options: "DoctorOptions", form: Format, *, dry_run: bool) -> int:
    """Examine each cache, and the root itself; return the exit code."""
    from jaxcache.cache.doctor.run_checks import diagnose
    from jaxcache.cache.root import find_unused, find_used_as_cache
    from jaxcache.cli.output import emit
    from jaxcache.render.root import diagnosis_of_root_view
    from jaxcache.warm.child.query import query_settings

    interpreter, settings, no_jax = query_settings(options.python, os.environ)
    diagnoses = {}
    for name, cache in root.members.items():
        if not cache.layout.single_file_entries:  # doctor -C examines one of torch
            continue
        with root.progress(f"reading {name}") as progress:
            diagnoses[name] = diagnose(
                cache.location.path,
                settings=(),  # they concern the cache that JAX is set to use
                interpreter=interpreter,
                max_decoded=options.max_decoded or None,
                fix=options.fix,
                dry_run=dry_run,
                progress=progress,
            )
    used_ns = {
        name: max((entry.last_used_ns for entry in one.facts.cache.entries), default=None)
        for name, one in diagnoses.items()
    }
    setting = next((s.value for s in settings if s.name == "jax_compilation_cache_dir"), None)
    findings = [
        *find_used_as_cache(root.path, setting),
        *find_unused(root.path, used_ns, now_ns=root.clock()),
    ]
    emit(
        form, diagnosis_of_root_view(root.path, findings, diagnoses, settings, interpreter, no_jax)
    )
    is_wrong = any(f.severity == "problem" for f in findings) or any(
        one.wrong for one in diagnoses.values()
    )
    return ExitCode.PROBLEMS if is_wrong else ExitCode.DONE
