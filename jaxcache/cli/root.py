"""Commands on a root: a directory above several caches."""

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxcache.cli.opening import Opened, open_cache
from jaxcache.cli.options import Format
from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options import CacheLocation, ListOptions
from jaxcache.options.query import DoctorOptions
from jaxcache.store.location import index_directory, locate_cache
from jaxcache.units import available_cores

if TYPE_CHECKING:
    from jaxcache.cache.root import CacheSums


class Root:
    """A root of caches.

    Attributes:
        path: its directory.
        names: the directories of its caches, relative to it.
    """

    def __init__(self, path: str, caches: Sequence[str]) -> None:
        self.path = path
        self.names = tuple(os.path.relpath(cache, path) for cache in caches)

    def open(self, name: str, layout: str | None = None) -> Opened:
        """Open one of its caches."""
        return open_cache(os.path.join(self.path, name), layout)


def find_root(place: CacheLocation) -> Root | None:
    """Return the root that the options name; None where they name one cache."""
    from jaxcache.cache.root import find_caches

    if place.layout is not None and place.cache_dir is None:
        return None
    path = locate_cache(place.cache_dir).path
    caches = find_caches(path)
    return Root(os.path.abspath(path), caches) if caches else None


def list_root(root: Root, options: ListOptions, place: CacheLocation, form: Format) -> None:
    """Print a row for each cache, of the entries that the options choose.

    Raises:
        JaxcacheError: a KEY fits nothing in any of the caches.
    """
    from jaxcache.cache.listing import list_cache
    from jaxcache.cache.root import sum_up_listing

    unmatched: list[JaxcacheError] = []

    def sum_up(name: str, opened: Opened, **scan_options: Any) -> "CacheSums | None":
        try:
            listing = list_cache(
                *opened,
                options.replace(limit=None),
                headers=not form.is_keys,
                details=form.is_json or form.is_table,
                index_directory=opened.index_directory,
                **scan_options,
            )
        except JaxcacheError as error:
            if error.code != "no-match":
                raise
            unmatched.append(error)
            return None
        return sum_up_listing(name, listing, opened.ledger)

    rows = _read_caches(root, place, sum_up)
    if unmatched and not rows:
        raise unmatched[0]
    _print_sums(root, rows, form, measured=False)


def count_root(root: Root, place: CacheLocation, form: Format) -> None:
    """Print the sums of each cache, and those over all."""
    from jaxcache.cache.root import sum_up_stats
    from jaxcache.cache.stats import count_cache

    def sum_up(name: str, opened: Opened, **scan_options: Any) -> "CacheSums":
        return sum_up_stats(name, count_cache(*opened, index_directory(), **scan_options))

    _print_sums(root, _read_caches(root, place, sum_up), form, measured=True)


def _read_caches(
    root: Root, place: CacheLocation, sum_up: "Callable[..., CacheSums | None]"
) -> "list[CacheSums]":
    """Sum up each cache; those without a row are left out."""
    from jaxcache.cli.terminal.progress import progress_bar

    rows = []
    now_ns = time.time_ns()
    for name in root.names:
        opened = root.open(name, place.layout)
        with progress_bar(f"reading {name}") as progress:
            scan_options: dict[str, Any] = {"workers": available_cores(), "progress": progress}
            if row := sum_up(name, opened, now_ns=now_ns, **scan_options):
                rows.append(row)
    return rows


def _print_sums(root: Root, rows: "list[CacheSums]", form: Format, *, measured: bool) -> None:
    from jaxcache.cache.root import RootSums
    from jaxcache.cli.output import emit
    from jaxcache.render.root import sums_view

    sums = RootSums(root.path, tuple(rows))
    emit(form, sums_view(sums, now_ns=time.time_ns(), measured=measured))


def diagnose_root(root: Root, options: DoctorOptions, form: Format, *, dry_run: bool) -> int:
    """Examine each cache, and the root itself; return the exit code."""
    from jaxcache.cache.doctor.run_checks import diagnose
    from jaxcache.cache.root import find_unused, find_used_as_cache
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.root import diagnosis_of_root_view
    from jaxcache.warm.query import query_settings

    interpreter, settings, no_jax = query_settings(options.python, os.environ)
    diagnoses = {}
    for name in root.names:
        if not root.open(name).layout.single_file_entries:  # doctor -C examines one of torch
            continue
        with progress_bar(f"reading {name}") as progress:
            diagnoses[name] = diagnose(
                os.path.join(root.path, name),
                settings=(),  # they are about the cache that JAX is told to use
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
        *find_unused(root.path, used_ns, now_ns=time.time_ns()),
    ]
    emit(
        form, diagnosis_of_root_view(root.path, findings, diagnoses, settings, interpreter, no_jax)
    )
    is_wrong = any(f.severity == "problem" for f in findings) or any(
        one.wrong for one in diagnoses.values()
    )
    return ExitCode.PROBLEMS if is_wrong else ExitCode.DONE
