"""``verify``: check every file of a cache and report what is wrong, changing nothing.

Three levels. ``quick`` opens each entry's first bytes and walks its frame. ``full`` decompresses
everything and decodes the payloads. ``load`` also has the user's own JAX deserialize each entry,
in child processes that may die of it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from jaxcache import model
from jaxcache.cache.files import find_leftovers
from jaxcache.cache.scan import NO_AIDS, UnknownFormats
from jaxcache.cache.selection import Selection
from jaxcache.cache.verify.check import EntryCheck
from jaxcache.entry.summary import Entry, ScanResult
from jaxcache.layouts import Layout
from jaxcache.options import Level, VerifyOptions
from jaxcache.store.base import MissingError, Store, StoreError, same_file
from jaxcache.units import NS_PER_SECOND, format_count

#: Problems that are only notes: they do not mean damage.
INFORMATIONAL: frozenset[model.ProblemKind] = frozenset({
    "unsealed", "missing-source", "legacy-name", "not-loadable-here", "changed-since-recorded",
    "unknown-directory", "unknown-format",
})  # fmt: skip
#: What makes a file worthless: its compiler fails on it, or must not be trusted with it.
CORRUPT: frozenset[model.ProblemKind] = frozenset({
    "empty", "truncated", "bad-codec", "trailing-bytes", "bad-header", "bad-payload",
    "digest-mismatch", "checksum-mismatch", "load-failed", "load-crashed",
    "key-mismatch", "wrong-class", "source-mismatch", "dangling-reference",
})  # fmt: skip
#: Of those, the ones that a file has too while it, or the file that it goes with, is being written.
_UNFINISHED: frozenset[model.ProblemKind] = frozenset(
    {*model.CUT_SHORT, "source-mismatch", "dangling-reference"}
)
#: Between two looks at young files; one that is wrong and did not change is not being written.
_SECOND_LOOK_SECONDS = 1.0
_WORLD_WRITABLE = 0o002
_PROGRESS_EVERY = 64


class Loader(Protocol):
    """Deserializes entries with a real JAX."""

    def __call__(self, store: Store, files: Sequence[Any]) -> Iterable[model.Problem]:
        """Yield ``load-failed``, ``load-crashed`` and ``not-loadable-here``."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings in a cache."""

    __repr__ = model.result_repr

    cache_dir: str
    level: Level
    checked: int
    """Entries looked at."""
    ok: int
    """Entries without any problem."""
    proven: int
    """Those of them whose bytes are provably as written: by checksum or recorded digest."""
    problems: tuple[model.Problem, ...]
    files: Mapping[str, model.FileInfo] = field(default_factory=dict)
    """Every file with a problem, as it was looked at."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """Every entry with a problem, by file."""
    young: frozenset[str] = frozenset()
    """Files with a problem that may still be being written."""
    grace_seconds: float = 0.0
    """The age below which a file is young."""
    unit: str = "entry"
    """The name of what was checked: ``file`` where an entry consists of several."""
    python: str | None = None
    """The Python whose JAX loaded the entries, where one was named."""

    def __str__(self) -> str:
        """Return the sums; what cannot be proven is not called unchanged."""
        parts = []
        if self.level == "quick":
            parts.append(f"{self.ok:,} passed the quick checks (contents not read)")
        elif self.ok:
            if self.level == "load":
                elsewhere = sum(p.kind == "not-loadable-here" for p in self.problems)
                parts.append(f"{self.ok - elsewhere:,} loaded by jax")
            if self.proven:
                parts.append(f"{self.proven:,} match their checksum")
            failing = {p.file for p in self.failures}
            changed = {p.file for p in self.problems if p.kind == "changed-since-recorded"}
            anew = len(changed & self.entries.keys() - failing)
            if unproven := self.ok - self.proven - anew:
                parts.append(f"{unproven:,} without visible damage (no checksum)")
            if anew:
                parts.append(f"{anew:,} changed since recorded")
        unknown = sum(p.kind == "unknown-format" for p in self.problems)
        if unknown:
            parts.append(f"{unknown:,} in a format that jaxcache does not know")
        if bad := self.checked - self.ok - unknown:
            parts.append(f"{bad:,} with problems")
        checked = format_count(self.checked, self.unit)
        return f"{checked} checked: {', '.join(parts) or 'none there'}"

    @property
    def failures(self) -> tuple[model.Problem, ...]:
        """The problems that are more than informational."""
        return tuple(p for p in self.problems if p.kind not in INFORMATIONAL)


def verify(
    store: Store,
    layout: Layout,
    options: VerifyOptions,
    *,
    now_ns: int,
    loader: Loader | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Verification:
    """Verify a cache.

    Raises:
        NoCacheError: the directory cannot be listed.
        UsageError: the layout knows no such level.
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    selection = Selection.parse(options.keys, options.filters)
    scan_result = layout.scans.scan(store, NO_AIDS, model.Depth.DATED, deep=False)
    # What a filter reads of entries may bring findings of its own, which the checks repeat.
    read = scan_result
    depth = selection.scan_depth(has_headers=layout.has_headers)
    if depth >= model.Depth.OPENED:
        read = layout.scans.scan(store, NO_AIDS, depth, deep=False)
    chosen = {e.file for e in selection.pick(read.entries, now_ns)}
    entries = {e.file: e for e in scan_result.entries if e.file in chosen}
    files = layout.checks.files_to_check(store, scan_result, entries, options)
    problems = [p for p in scan_result.problems if p.file in entries]
    checks: dict[str, EntryCheck] = {}
    check = partial(layout.checks.check, store, scan_result, options=options)
    for done, (name, checked) in enumerate(check(files), 1):
        checks[name] = checked
        if done % _PROGRESS_EVERY == 0 or done == len(files):
            model.report_progress(done, len(files))
    files = [f for f in files if not checks[f.info.name].missing]
    # What is from the future may be new as well, where the clock of a server is ahead of ours.
    new_ns = now_ns - options.grace_seconds * NS_PER_SECOND
    doubtful = [f for f in files if f.info.mtime_ns > new_ns and checks[f.info.name].problems]
    if doubtful:
        wait(_SECOND_LOOK_SECONDS)
    growing = _check_again(store, doubtful, check, checks)
    files = [f for f in files if not checks[f.info.name].missing]
    for file in files:
        problems.extend(checks[file.info.name].problems)
    problems = [*UnknownFormats(store).rename(problems)]
    unknown = {p.file for p in problems if p.kind == "unknown-format"}
    if loader is not None and options.level == "load":
        bad = {p.file for p in problems if p.kind not in INFORMATIONAL} | unknown
        sound = [f for f in files if f.info.name not in bad]
        problems.extend(loader(store, sound))
    problems.extend(layout.checks.check_beside(scan_result, files, checks, options))
    if not (options.keys or options.filters):
        problems.extend(_about_directory(store, scan_result))
    failing = {p.file for p in problems if p.kind not in INFORMATIONAL} | unknown
    infos = _infos(store, scan_result, files, {p.file for p in problems})
    unproven = {p.file for p in problems if p.kind not in CORRUPT - _UNFINISHED | INFORMATIONAL}
    return Verification(
        cache_dir=store.url,
        level=options.level,
        checked=len(files),
        ok=sum(f.info.name not in failing for f in files),
        proven=sum(checks[f.info.name].proven and f.info.name not in failing for f in files),
        problems=tuple(problems),
        files=infos,
        entries={name: e for name, e in entries.items() if name in infos},
        young=frozenset(
            name
            for name, info in infos.items()
            if name in growing
            or (name in unproven and abs(now_ns - info.mtime_ns) < now_ns - new_ns)
        ),
        grace_seconds=options.grace_seconds,
        unit="entry" if layout.single_file_entries else "file",
        python=options.python,
    )


def _check_again(
    store: Store, files: Iterable[Any], check: Callable[..., Any], checks: dict[str, EntryCheck]
) -> set[str]:
    """Check some files again; return the names of those that changed after the first check."""
    growing = set()
    for file in files:
        again = _look_again(store, file)
        if again is None:
            checks[file.info.name] = EntryCheck(missing=True)
            continue
        if not same_file(again.info, file.info) or again.info.ctime_ns != file.info.ctime_ns:
            growing.add(file.info.name)
        checks.update(check([again]))
    return growing


def _look_again(store: Store, file: Any) -> Any:
    """Return the file as it is now, or as it was if it cannot be read; None if it is gone."""
    try:
        return file._replace(info=store.info(file.info.name))
    except MissingError:
        return None
    except StoreError:
        return file


def _about_directory(store: Store, scan_result: ScanResult) -> Iterator[model.Problem]:
    """Yield the problems of files that are not entries, and of write permissions."""
    problems = list(scan_result.inventory.problems())
    yield from problems
    named_files = {p.file for p in problems}
    for info in find_leftovers(store):
        if info.name not in named_files:
            yield model.Problem(info.name, "temp-file", "left by a broken write")
    root = store.root
    if root is None:
        return
    if root.mode & _WORLD_WRITABLE:
        detail = f"mode {root.mode & 0o7777:o}: anybody may put executables here"
        yield model.Problem(".", "unsafe-permissions", detail)
    trusted = {0, root.owner, os.geteuid()}
    for info, key in scan_result.inventory.trusted():
        if info.type == "symlink":
            continue  # it has no mode of its own, and nobody here follows it
        if info.mode & _WORLD_WRITABLE:
            detail = f"mode {info.mode & 0o7777:o}: anybody may change it"
            yield model.Problem(info.name, "unsafe-permissions", detail, key)
        if info.owner >= 0 and info.owner not in trusted:
            yield model.Problem(info.name, "foreign-owner", f"belongs to user {info.owner}", key)


def _infos(
    store: Store, scan_result: ScanResult, files: Sequence[Any], names: AbstractSet[str]
) -> dict[str, model.FileInfo]:
    """The files of those names, as they were looked at."""
    infos = (
        {i.name: i for _, i in scan_result.inventory.files() if i.name in names} if names else {}
    )
    infos |= {f.info.name: f.info for f in files if f.info.name in names}
    for name in names - infos.keys():
        if "/" in name:
            with contextlib.suppress(StoreError):
                infos[name] = store.info(name)
    return infos
