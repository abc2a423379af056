"""Quarantine: ``.jaxcache/quarantine/<when>/<file>``, where JAX does not look."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxcache.cache.entry_files import atime_name, move_entry_in
from jaxcache.cache.scan import NO_AIDS
from jaxcache.cache.selection import fits_key
from jaxcache.cache.under_lock import run_under_lock
from jaxcache.core.names import QUARANTINE_DIR
from jaxcache.entry.names import FileKind, split_name
from jaxcache.errors import JaxcacheError
from jaxcache.model import FileInfo, result_repr
from jaxcache.options import VerifyOptions
from jaxcache.store import open_store
from jaxcache.store.base import Store, StoreError, same_file
from jaxcache.units import rfc3339

if TYPE_CHECKING:
    from jaxcache.layouts.base import Layout


@dataclass(frozen=True, slots=True)
class QuarantinedEntry:
    """One entry in quarantine."""

    key: str
    file: str
    """Its name in the cache."""
    info: FileInfo
    atime: FileInfo | None


@dataclass(frozen=True, slots=True)
class Restoration:
    """The entries that were restored, and those that were not, with the reason."""

    __repr__ = result_repr

    cache_dir: str
    dry_run: bool
    restored: tuple[QuarantinedEntry, ...]
    left: tuple[tuple[QuarantinedEntry, str], ...]


def quarantine_directory(now_ns: int) -> str:
    """The directory for what is moved away now; one per call, so that nothing is ever replaced."""
    when = re.sub("[-:]", "", rfc3339(now_ns)[:19])
    return f"{QUARANTINE_DIR}/{when}Z-{now_ns % 10**9:09d}"


def list_quarantine(store: Store, key_of: Callable[[str], str | None]) -> list[QuarantinedEntry]:
    """List the entries in quarantine, the latest first.

    Args:
        key_of: of a file's name in the cache.
    """
    files = {i.name: i for i in store.walk(QUARANTINE_DIR) if i.type == "file"}
    entries = []
    for name in sorted(files, reverse=True):
        inside = name.removeprefix(f"{QUARANTINE_DIR}/")
        file = inside.partition("/")[2] or inside
        if key := key_of(file):
            entries.append(
                QuarantinedEntry(key, file, files[name], files.get(atime_name(name) or ""))
            )
    return entries


def restore(
    store: Store, layout: "Layout", *, keys: Sequence[str] = (), dry_run: bool = False
) -> Restoration:
    """Move entries from quarantine back to where they were.

    A damaged entry stays in quarantine, and so does one that its compiler has written again.

    Raises:
        JaxcacheError: ``no-match`` where a KEY fits nothing in quarantine.
        LockedError
    """
    files = list_quarantine(store, layout.key_of)
    dated = any(split_name(i.name)[0] is FileKind.ATIME for i in store.list())
    for text in keys:
        if not any(fits_key(q.key, text) for q in files):
            raise JaxcacheError(
                f"nothing in quarantine matches {text!r}",
                code="no-match",
                hint="without KEY, every undamaged entry is restored",
            )
    wanted = [q for q in files if not keys or any(fits_key(q.key, text) for text in keys)]
    damage = _find_damage(store, layout, wanted)
    restored: list[QuarantinedEntry] = []
    unrestored: list[tuple[QuarantinedEntry, str]] = []

    def bring_back(item: QuarantinedEntry) -> None:
        try:
            present = store.info(item.file)
        except StoreError:
            pass
        else:
            if same_file(present, item.info):  # a restoration was killed between its two names
                if not dry_run:
                    store.delete(item.info.name)
                restored.append(item)
            else:
                unrestored.append((item, "the cache has a newer one"))
            return
        if reason := damage.get(item.info.name):
            unrestored.append((item, reason))
            return
        if any(other.file == item.file for other in restored):
            unrestored.append((item, "a later one was restored"))
            return
        if not dry_run:
            try:
                used_ns = item.info.mtime_ns if dated else None
                move_entry_in(store, item.info.name, item.file, item.atime, used_ns=used_ns)
            except StoreError as error:
                unrestored.append((item, error.reason))
                return
        restored.append(item)

    if dry_run:
        for item in wanted:
            bring_back(item)
    else:
        run_under_lock(store, bring_back, wanted, file_lock=layout.removals.file_lock)
    return Restoration(store.url, dry_run, tuple(restored), tuple(unrestored))


def _find_damage(
    store: Store, layout: "Layout", items: Sequence[QuarantinedEntry]
) -> dict[str, str]:
    """Check entries in quarantine; the damage of each damaged one, by its name there.

    A directory of quarantine has its entries under the names that they have in a cache.
    """
    # Code of torch is recorded after its grace: never, because a check changes nothing here.
    options = VerifyOptions(level="full", grace_seconds=math.inf)
    names = {item.info.name for item in items}
    damage: dict[str, str] = {}
    for directory in {i.info.name.removesuffix(f"/{i.file}") for i in items}:
        inner = open_store(f"{store.url}/{directory}")
        scan = layout.scans.scan(inner, NO_AIDS, headers=False, details=False, deep=False)
        chosen = {e.file for e in scan.entries if f"{directory}/{e.file}" in names}
        files = layout.checks.files_to_check(inner, scan, chosen, options)
        for name, checked in layout.checks.check(inner, scan, files, options):
            for problem in checked.problems:
                damage[f"{directory}/{name}"] = f"{problem.kind}: {problem.detail}"
    return damage
