"""``verify``: look at every file of a cache and say what is wrong, changing nothing.

Three levels. ``quick`` opens each entry's first bytes and walks its frame. ``full`` decompresses
everything and decodes the payloads. ``load`` also has the user's own JAX deserialize each entry,
in child processes that may die of it.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from jaxcache.cache.budget import ByteBudget
from jaxcache.cache.inventory import EntryFile, Inventory, take_inventory
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.leftovers import find_leftovers
from jaxcache.cache.parallel import can_spread, spread
from jaxcache.cache.scan import Progress, read_entries
from jaxcache.cache.select import select_by_keys
from jaxcache.cache.verify.check import (
    SMALL_BYTES,
    Checked,
    check_decoded,
    check_entry,
    recorded_digest,
)
from jaxcache.entry.codec import HEAD_BYTES, CodecError, check_frame, read_head
from jaxcache.entry.names import FileKind
from jaxcache.model import Entry, FileInfo, Problem, ProblemKind
from jaxcache.options import Level, VerifyOptions
from jaxcache.store.ahead import REQUESTS_AT_ONCE
from jaxcache.store.base import Store, StoreError, same_file
from jaxcache.units import NS_PER_SECOND

#: What says something and accuses nothing.
INFORMATIONAL: frozenset[ProblemKind] = frozenset(
    {"unsealed", "missing-source", "legacy-name", "not-loadable-here"}
)
#: What makes a file worthless: its compiler fails on it, or must not be trusted with it.
CORRUPT: frozenset[ProblemKind] = frozenset({
    "empty", "truncated", "bad-codec", "trailing-bytes", "bad-header", "bad-payload",
    "module-mismatch", "digest-mismatch", "checksum-mismatch", "load-failed", "load-crashed",
    "key-mismatch", "wrong-class", "source-mismatch", "dangling-reference",
})  # fmt: skip
#: What all workers together may hold: compressed and decompressed entries.
_MEMORY_BYTES = 2 << 30
#: Fewer entries than this are decoded before other processes have started.
SPREAD_ABOVE = 400
#: Larger entries stay with the threads of one process, which share a bound on memory.
MAX_FILE_BYTES = 1 << 20
MAX_HELD_BYTES = 64 << 20
#: Entries that a process decodes at once: a quarter of a second of work.
_SPREAD_CHUNK = 100
#: A bad file that is young may be in the middle of being written: it is looked at again.
_SECOND_LOOK_SECONDS = 0.25
_WORLD_WRITABLE = 0o002
_PROGRESS_EVERY = 64


class Loader(Protocol):
    """Has a real JAX deserialize entries."""

    def __call__(
        self, store: Store, files: Sequence[EntryFile], progress: Progress | None
    ) -> Iterable[Problem]:
        """Yield ``load-failed``, ``load-crashed`` and ``not-loadable-here``."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings in a cache."""

    cache_dir: str
    level: Level
    checked: int
    """Entries looked at."""
    ok: int
    """Entries without any problem."""
    proven: int
    """Of those, the ones whose bytes are provably as written: by checksum or recorded digest."""
    problems: tuple[Problem, ...]
    files: Mapping[str, FileInfo] = field(default_factory=dict)
    """Every file with a problem, as it was looked at."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """Every entry with a problem, by file."""
    young: frozenset[str] = frozenset()
    """Files with a problem that may still be being written."""

    @property
    def failures(self) -> tuple[Problem, ...]:
        """The problems that are more than informational."""
        return tuple(p for p in self.problems if p.kind not in INFORMATIONAL)


def verify(
    store: Store,
    options: VerifyOptions,
    *,
    now_ns: int,
    loader: Loader | None = None,
    progress: Progress | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Verification:
    """Verify a cache.

    Raises:
        NoCacheError: the directory cannot be listed.
        JaxcacheError: a KEY fits nothing, or more than it may.
    """
    inventory = take_inventory(store)
    problems: list[Problem] = []
    entries = _choose(store, inventory, options, problems)
    files = [f for f in inventory.entries if f.info.name in entries]
    ledger = Ledger.load(store) if options.level != "quick" else Ledger()
    checks = dict(_check_all(store, files, ledger, options, progress))
    files = [f for f in files if not checks[f.info.name].missing]
    # What is from the future may be new as well, where the clock of a server is ahead of ours.
    new_ns = now_ns - options.grace_seconds * NS_PER_SECOND
    growing: set[str] = set()
    if doubtful := [f for f in files if f.info.mtime_ns > new_ns and checks[f.info.name].problems]:
        wait(_SECOND_LOOK_SECONDS)
        for file in doubtful:
            again = _look_again(store, file)
            if again is None:
                checks[file.info.name] = Checked(missing=True)
            else:
                if not same_file(again.info, file.info):
                    growing.add(file.info.name)
                checks.update(_check_all(store, [again], ledger, options, None))
        files = [f for f in files if not checks[f.info.name].missing]
    for file in files:
        problems.extend(checks[file.info.name].problems)
    bad = {p.file for p in problems}
    if options.level == "load" and loader is not None:
        sound = [f for f in files if f.info.name not in bad]
        problems.extend(loader(store, sound, progress))
    for file in files:
        problems.extend(_about_files(file, inventory, checks[file.info.name], options))
    if not options.keys:
        problems.extend(_about_directory(store, inventory))
    failing = {p.file for p in problems if p.kind not in INFORMATIONAL}
    infos = _infos(store, inventory, files, problems)
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
            if name in growing or _is_young(info, now_ns, options.grace_seconds)
        ),
    )


def _choose(
    store: Store, inventory: Inventory, options: VerifyOptions, problems: list[Problem]
) -> dict[str, Entry]:
    """The entries that are meant, by file; what their names and dates show goes to problems."""
    read, found = read_entries(store, inventory.entries, inventory.atimes, heads=False)
    chosen = {e.file: e for e in select_by_keys(read, options.keys)}
    problems.extend(p for p in found if p.file in chosen)
    return chosen


def _check_all(
    store: Store,
    files: Sequence[EntryFile],
    ledger: Ledger,
    options: VerifyOptions,
    progress: Progress | None,
) -> Iterator[tuple[str, Checked]]:
    """Check contents, by file name, in the order in which they are done."""
    for done, found in enumerate(_check_each(store, files, ledger, options), 1):
        yield found
        if progress and (done % _PROGRESS_EVERY == 0 or done == len(files)):
            progress(done, len(files))


def _check_each(
    store: Store, files: Sequence[EntryFile], ledger: Ledger, options: VerifyOptions
) -> Iterator[tuple[str, Checked]]:
    """Share the work: large entries among threads, many that are decoded among processes."""
    budget = ByteBudget(_MEMORY_BYTES)

    def digest_of(file: EntryFile) -> str | None:
        return recorded_digest(file, ledger.record(file.key_text))

    def check(file: EntryFile) -> Checked:
        if options.level == "quick":
            return _walk_frame(store, file)
        if not options.decode:
            return check_entry(store, file, digest_of(file), decode=False)
        with budget.take(_held_bytes(store, file)):
            return check_entry(store, file, digest_of(file), decode=True)

    elsewhere = _to_spread(store, files, options)
    # zstandard lets the interpreter go, so that threads help where much is decompressed.
    jobs = max(options.jobs or 1, REQUESTS_AT_ONCE if store.remote else 1)
    names = {f.info.name for f in elsewhere}
    here = [f for f in files if f.info.name not in names]
    threaded = [
        f
        for f in here
        if store.remote or ((options.jobs or 1) > 1 and f.info.size_bytes > SMALL_BYTES)
    ]
    names = {f.info.name for f in threaded}
    with ThreadPoolExecutor(jobs) as pool:
        running = [(f, pool.submit(check, f)) for f in threaded]
        try:
            if elsewhere:
                wanted = [(f, digest_of(f)) for f in elsewhere]
                found = spread(
                    check_decoded, store, wanted, workers=jobs, above=0, chunk=_SPREAD_CHUNK
                )
                yield from zip((f.info.name for f in elsewhere), found, strict=True)
            for file in here:
                if file.info.name not in names:
                    yield file.info.name, check(file)
            for file, future in running:
                yield file.info.name, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _to_spread(
    store: Store, files: Sequence[EntryFile], options: VerifyOptions
) -> Sequence[EntryFile]:
    """The entries to check in other processes; none where that does not pay."""
    alone = options.level == "quick" or (options.jobs or 1) < 2
    if alone or not options.decode or not can_spread(store):
        return ()
    fitting = [
        f
        for f in files
        if f.info.size_bytes <= MAX_FILE_BYTES and _held_bytes(store, f) <= MAX_HELD_BYTES
    ]
    return fitting if len(fitting) >= SPREAD_ABOVE else ()


def _held_bytes(store: Store, file: EntryFile) -> int:
    """Estimate the memory that decoding an entry takes, at most twice its payload."""
    if file.info.size_bytes <= SMALL_BYTES:
        return 0
    if store.remote:
        return 16 * file.info.size_bytes
    try:
        head = read_head(store.read(file.info.name, limit=HEAD_BYTES), file.info.size_bytes)
    except (StoreError, CodecError):
        return 0
    return 2 * (head.content_bytes or 8 * file.info.size_bytes)


def _walk_frame(store: Store, file: EntryFile) -> Checked:
    """Follow the block headers of an entry to its end."""
    try:
        with store.open(file.info.name) as opened:
            check_frame(opened, file.info.size_bytes)
            opened.seek(0)
            sealed = read_head(opened.read(HEAD_BYTES), file.info.size_bytes).checksum
    except CodecError as error:
        return Checked((Problem(file.info.name, error.kind, error.detail, file.key_text),))
    except StoreError as error:
        if error.code == "missing":
            return Checked(missing=True)
        return Checked((Problem(file.info.name, "unreadable", error.reason, file.key_text),))
    return Checked(unsealed=not sealed)


def _look_again(store: Store, file: EntryFile) -> EntryFile | None:
    try:
        return file._replace(info=store.info(file.info.name))
    except StoreError:
        return None


def _about_files(
    file: EntryFile, inventory: Inventory, check: Checked, options: VerifyOptions
) -> Iterator[Problem]:
    """Yield what is to be said of an entry beside its content."""
    name, key = file.info.name, file.key_text
    wanted = options.atimes or bool(inventory.atimes)
    if wanted and file.kind is FileKind.ENTRY and key not in inventory.atimes:
        detail = "no -atime file: JAX before 0.11.2 with a size cap stops writing at it"
        yield Problem(name, "missing-atime", detail, key)
    if check.unsealed and not check.problems:
        detail = "no checksum: neither JAX nor this check can prove its bytes; see jaxcache seal"
        yield Problem(name, "unsealed", detail, key)


def _about_directory(store: Store, inventory: Inventory) -> Iterator[Problem]:
    """Yield what is wrong with the files that are no entries, and with who may write."""
    yield from inventory.problems()
    for info in find_leftovers(store):
        yield Problem(info.name, "temp-file", "left by a broken write")
    root = store.root
    if root is None:
        return
    if root.mode & _WORLD_WRITABLE:
        detail = f"mode {root.mode & 0o7777:o}: anybody may put executables here"
        yield Problem(".", "unsafe-permissions", detail)
    user = os.geteuid() if hasattr(os, "geteuid") else None
    trusted = {0, root.owner, user}
    dated = ((i, k) for k, i in inventory.atimes.items())
    for info, key in (*((e.info, e.key_text) for e in inventory.entries), *dated):
        if info.mode & _WORLD_WRITABLE:
            detail = f"mode {info.mode & 0o7777:o}: anybody may change it"
            yield Problem(info.name, "unsafe-permissions", detail, key)
        if info.owner >= 0 and user is not None and info.owner not in trusted:
            yield Problem(info.name, "foreign-owner", f"belongs to user {info.owner}", key)


def _infos(
    store: Store, inventory: Inventory, files: Sequence[EntryFile], problems: Iterable[Problem]
) -> dict[str, FileInfo]:
    known = {f.info.name: f.info for f in files}
    known |= {i.name: i for i in inventory.atimes.values()}
    known |= {o.info.name: o.info for o in inventory.others}
    found: dict[str, FileInfo] = {}
    for name in {p.file for p in problems}:
        if name in known:
            found[name] = known[name]
        elif "/" in name:
            try:
                found[name] = store.info(name)
            except StoreError:
                continue
    return found


def _is_young(info: FileInfo, now_ns: int, grace_seconds: float) -> bool:
    """Whether a file is so new that it may still be being written."""
    return abs(now_ns - info.mtime_ns) < grace_seconds * NS_PER_SECOND
