"""Commands on a root: a directory above several caches."""

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxcache.cli.opening import Opened, open_cache
from jaxcache.cli.options import Format
from jaxcache.errors import ExitCode, JaxcacheError
from jaxcache.options import Consent, ListOptions, Place, VerifyOptions
from jaxcache.store.location import index_folder, locate_cache
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


def find_root(place: Place) -> Root | None:
    """Return the root that the options name; None where they name one cache."""
    from jaxcache.cache.root import find_caches

    if place.layout is not None and place.cache_dir is None:
        return None
    path = locate_cache(place.cache_dir).path
    caches = find_caches(path)
    return Root(os.path.abspath(path), caches) if caches else None


def list_root(root: Root, options: ListOptions, place: Place, form: Format) -> None:
    """Print a row for each cache, of the entries that the options choose.

    Raises:
        JaxcacheError: a KEY fits nothing in any of the caches.
    """
    from jaxcache.cache.listing import list_cache
    from jaxcache.cache.root import RootSums, sum_up_listing
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.root import sums_view

    now_ns = time.time_ns()
    rows: list[CacheSums] = []
    lacking: list[JaxcacheError] = []
    for name in root.names:
        opened = root.open(name, place.layout)
        with progress_bar(f"reading {name}") as progress:
            try:
                listing = list_cache(
                    *opened,
                    options.replace(limit=None),
                    heads=not form.is_keys,
                    details=form.is_json or form.is_table,
                    index_folder=opened.index_folder,
                    now_ns=now_ns,
                    workers=available_cores(),
                    progress=progress,
                )
            except JaxcacheError as error:
                if error.code != "no-match":
                    raise
                lacking.append(error)
                continue
        rows.append(sum_up_listing(name, listing, opened.ledger))
    if lacking and not rows:
        raise lacking[0]
    emit(form, sums_view(RootSums(root.path, tuple(rows)), now_ns=now_ns, measured=False))


def count_root(root: Root, place: Place, form: Format) -> None:
    """Print the sums of each cache, and those over all."""
    from jaxcache.cache.root import RootSums, sum_up_stats
    from jaxcache.cache.stats import count_cache
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.render.root import sums_view

    now_ns = time.time_ns()
    rows: list[CacheSums] = []
    for name in root.names:
        opened = root.open(name, place.layout)
        with progress_bar(f"reading {name}") as progress:
            stats = count_cache(
                *opened,
                index_folder(),
                now_ns=now_ns,
                workers=available_cores(),
                progress=progress,
            )
        rows.append(sum_up_stats(name, stats, opened.ledger))
    emit(form, sums_view(RootSums(root.path, tuple(rows)), now_ns=now_ns, measured=True))


def verify_root(
    root: Root, options: VerifyOptions, place: Place, consent: Consent, form: Format, *, fix: bool
) -> int:
    """Verify each cache; with ``fix``, repair each; return the exit code."""
    from jaxcache.cache.verify.examine import verify
    from jaxcache.cli.output import emit
    from jaxcache.cli.terminal.progress import progress_bar
    from jaxcache.cli.verify import repair_problems
    from jaxcache.render.root import verification_of_root_view
    from jaxcache.warm.loading import make_loader

    found = {}
    is_bad = False
    for name in root.names:
        opened = root.open(name, place.layout)
        loader = make_loader(options) if opened.layout.stands_alone else None
        with progress_bar(f"verifying {name}") as progress:
            one = verify(*opened, options, now_ns=time.time_ns(), loader=loader, progress=progress)
        repair = None
        if fix or consent.dry_run:
            repair = repair_problems(opened, one, False, consent.dry_run, consent.yes)
        is_bad |= bool(repair.unsolved(one.failures) if repair else one.failures)
        found[name] = (one, repair)
    emit(form, verification_of_root_view(root.path, found))
    return ExitCode.PROBLEMS if is_bad else ExitCode.DONE
