"""Read the cheap facts of every entry: sizes, codec, compile seconds, last use."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxcache.cache.inventory import EntryFile, Inventory, take_inventory
from jaxcache.entry.codec import HEAD_BYTES, HEADER_BYTES, CodecError, Head, read_head
from jaxcache.entry.names import FileKind
from jaxcache.model import Entry, FileInfo, LastUsedFrom, Problem, ProblemKind
from jaxcache.store.base import Store, StoreError

#: Called with (done, total) now and then.
Progress = Callable[[int, int], None]

_ATIME_BYTES = 8
#: The largest first block a zstd frame can have, with room for its headers.
_FIRST_BLOCK_BYTES = 128 * 1024 + 64
_PROGRESS_EVERY = 512


@dataclass(frozen=True, slots=True)
class Scan:
    """A cache as it was seen: its entries, everything else in it, and what is wrong."""

    entries: tuple[Entry, ...]
    inventory: Inventory
    problems: tuple[Problem, ...]


def scan(
    store: Store,
    *,
    heads: bool = True,
    deep: bool = False,
    only: Callable[[EntryFile], bool] | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Scan a cache directory.

    A bad entry is an entry with problems; a file that vanishes while the scan runs is left out.

    Args:
        heads: read the start of each entry, for codec, payload size, seal and seconds. Without
            it those are unknown, and the scan opens no entry.
        deep: also take inventory of side caches (see :func:`take_inventory`).
        only: read only the entries for which this is true; the inventory stays whole.

    Raises:
        NoCacheError: the directory cannot be listed.
    """
    inventory = take_inventory(store, deep=deep)
    wanted = [e for e in inventory.entries if only is None or only(e)]
    problems: list[Problem] = []
    entries = tuple(read_entries(store, wanted, inventory.atimes, problems, heads, progress))
    problems.extend(inventory.problems())
    return Scan(entries, inventory, tuple(problems))


def read_entries(
    store: Store,
    files: Sequence[EntryFile],
    atimes: dict[str, FileInfo],
    problems: list[Problem],
    heads: bool,
    progress: Progress | None,
) -> Iterator[Entry]:
    """Yield an :class:`Entry` per file, in order, adding what is wrong to ``problems``."""
    starts: Iterable[bytes | StoreError | None]
    if heads:
        starts = store.read_many([f.info.name for f in files], limit=HEAD_BYTES)
    else:
        starts = (None for _ in files)
    stamps = _read_atimes(store, files, atimes)
    keeps_atime = store.keeps_atime
    for done, (file, start, stamp) in enumerate(zip(files, starts, stamps, strict=True)):
        if progress and done % _PROGRESS_EVERY == 0:
            progress(done, len(files))
        entry = _entry(store, file, start, stamp, keeps_atime, problems)
        if entry:
            yield entry
    if progress:
        progress(len(files), len(files))


def _read_atimes(
    store: Store, files: Sequence[EntryFile], atimes: dict[str, FileInfo]
) -> Iterator[bytes | StoreError | None]:
    """The content of each entry's ``-atime`` file; None where it has none."""
    keys = [f.key_text if f.kind is FileKind.ENTRY else "" for f in files]
    found = store.read_many(
        [atimes[key].name for key in keys if key in atimes], limit=2 * _ATIME_BYTES
    )
    return (next(found) if key in atimes else None for key in keys)


def _entry(
    store: Store,
    file: EntryFile,
    start: bytes | StoreError | None,
    stamp: bytes | StoreError | None,
    keeps_atime: bool,
    problems: list[Problem],
) -> Entry | None:
    info, key = file.info, file.key_text
    kinds: list[ProblemKind] = []

    def found(kind: ProblemKind, detail: str) -> None:
        kinds.append(kind)
        problems.append(Problem(info.name, kind, detail, key))

    head: Head | None = None
    if isinstance(start, bytes):
        try:
            head = _read_whole_head(store, info, start)
        except CodecError as error:
            found(error.kind, error.detail)
        except StoreError as error:
            found("unreadable", error.reason)
    elif start is not None:
        if start.code == "missing":
            return None  # deleted since the listing
        found("unreadable", start.reason)
    if file.kind is FileKind.LEGACY_ENTRY:
        found("legacy-name", "no -cache suffix: only JAX up to 0.4.30 reads it")
    used_ns, used_from = _last_used(info, stamp, keeps_atime)
    if stamp is not None and used_from != "atime-file":
        found("bad-atime", "its -atime file does not hold 8 bytes")
    content = head.content_bytes if head else None
    return Entry(
        key=key,
        module=file.key.module,
        hash=file.key.hash,
        file=info.name,
        size_bytes=info.size_bytes,
        payload_bytes=None if content is None else content - HEADER_BYTES,
        codec=head.codec if head else "unknown",
        sealed=head.checksum if head else False,
        compile_seconds=None if head is None or head.compile_seconds is None
        else float(head.compile_seconds),
        created_ns=info.mtime_ns,
        last_used_ns=used_ns,
        last_used_from=used_from,
        problems=tuple(kinds),
    )  # fmt: skip


def _read_whole_head(store: Store, info: FileInfo, start: bytes) -> Head:
    head = read_head(start, info.size_bytes)
    if head.compile_seconds is None:
        head = read_head(store.read(info.name, limit=_FIRST_BLOCK_BYTES), info.size_bytes)
    return head


def _last_used(
    info: FileInfo, stamp: bytes | StoreError | None, keeps_atime: bool
) -> tuple[int, LastUsedFrom]:
    """When an entry was last read: JAX's own record, else the file system's, else its birth."""
    if isinstance(stamp, bytes) and len(stamp) == _ATIME_BYTES:
        return int.from_bytes(stamp, "little"), "atime-file"
    if keeps_atime and info.atime_ns > info.mtime_ns:
        return info.atime_ns, "fs-atime"
    return info.mtime_ns, "mtime"
