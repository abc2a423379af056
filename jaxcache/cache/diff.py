"""The difference between two caches or bundles, by payload and not by file."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from jaxcache.cache.bundle.format import JAX, Bundle, BundleItem
from jaxcache.cache.files import require_objects, take_inventory
from jaxcache.cache.ledger.record import LedgerRecord, fold
from jaxcache.cache.scan import UnknownFormats, load_ledger
from jaxcache.cache.verify.check import CheckedContent, read_content
from jaxcache.entry.codec import CodecError
from jaxcache.model import Problem, report_progress, result_repr
from jaxcache.store.base import MissingError, Store, StoreError


class DiffEntry(NamedTuple):
    """One entry of one side."""

    key: str
    payload_sha256: str
    payload_bytes: int
    size_bytes: int
    compile_seconds: float
    """As the ledger has it, else the whole seconds of the header."""
    header_seconds: float = 0.0
    program: frozenset[tuple[str, str]] = frozenset()
    """What its key hashes, but for the compile options; empty where nothing recorded it."""


@dataclass(frozen=True, slots=True)
class DiffSide:
    """A cache directory or a bundle."""

    __repr__ = result_repr

    location: str
    entries: dict[str, DiffEntry]
    damaged: tuple[Problem, ...] = ()
    reference: str = ""
    """SHA-256 of a bundle's manifest; empty for a directory."""
    files: frozenset[str] = frozenset()
    """Names that determine the bytes of their files, in layouts that have such names."""
    layout: str = JAX
    times_count: bool = True
    """Whether two entries that differ only in compile time have different contents."""


class ContentMismatch(NamedTuple):
    """One key with two contents."""

    left: DiffEntry
    right: DiffEntry

    @property
    def payload_differs(self) -> bool:
        """Not only the header: two compiles under one key gave two executables."""
        return self.left.payload_sha256 != self.right.payload_sha256


@dataclass(frozen=True, slots=True)
class Diff:
    """Two sides compared; every list is sorted by key."""

    __repr__ = result_repr

    left: DiffSide
    right: DiffSide
    only_left: tuple[DiffEntry, ...]
    only_right: tuple[DiffEntry, ...]
    differing: tuple[ContentMismatch, ...]
    same: int

    @property
    def equal(self) -> bool:
        """Return whether both hold the same entries, and none is damaged."""
        differing = (*self.only_left, *self.only_right, *self.left.damaged, *self.right.damaged)
        return not differing and not self.differing


def read_bundle(bundle: Bundle) -> DiffSide:
    """Read the manifest of a bundle."""
    entries = {
        i.key: _hold(fold(i.key, i.ledger), i, i.key, i.size_bytes) for i in bundle.manifest.items
    }
    return DiffSide(bundle.name, entries, reference=bundle.manifest_sha256)


def _hold(
    record: LedgerRecord | None, content: BundleItem | CheckedContent, key: str, size_bytes: int
) -> DiffEntry:
    header = content.compile_seconds
    exact = record.compile_seconds if record else None
    seconds = header if exact is None else exact
    parts = (record and record.components) or {}
    program = frozenset(part for part in parts.items() if part[0] != "compile_options")
    return DiffEntry(
        key, content.payload_sha256, content.payload_bytes, size_bytes, seconds, header, program
    )


def read_side(store: Store) -> DiffSide:
    """Read every entry of a cache.

    Raises:
        NoCacheError
    """
    entries: dict[str, DiffEntry] = {}
    damaged: list[Problem] = []
    inventory = take_inventory(store)
    require_objects(store, inventory.entries)
    ledger = load_ledger(store, inventory)
    files = sorted(inventory.entries, key=lambda e: e.info.name)
    opened = store.open_many([file.info.name for file in files])
    for done, (file, stream) in enumerate(zip(files, opened, strict=True), 1):
        size = file.info.size_bytes
        key = file.key_text
        try:
            if isinstance(stream, StoreError):
                raise stream
            with stream:
                content = read_content(stream, size)
        except CodecError as error:
            damaged.append(Problem(file.info.name, error.kind, error.detail, key))
        except MissingError:
            continue
        except StoreError as error:
            damaged.append(Problem(file.info.name, "unreadable", error.reason, key))
        else:
            entries[key] = _hold(ledger.record(key) if ledger else None, content, key, size)
        report_progress(done, len(files))
    return DiffSide(store.url, entries, UnknownFormats(store).rename(damaged))


def diff_sides(left: DiffSide, right: DiffSide) -> Diff:
    """Compare two sides, key by key."""
    both = sorted(left.entries.keys() & right.entries.keys())
    pairs = [ContentMismatch(left.entries[k], right.entries[k]) for k in both]
    times = left.times_count and right.times_count
    differing = [
        p
        for p in pairs
        if p.payload_differs or (times and p.left.header_seconds != p.right.header_seconds)
    ]
    return Diff(
        left,
        right,
        _only(left.entries, right.entries),
        _only(right.entries, left.entries),
        tuple(differing),
        len(pairs) - len(differing),
    )


def _only(these: dict[str, DiffEntry], others: dict[str, DiffEntry]) -> tuple[DiffEntry, ...]:
    return tuple(these[k] for k in sorted(these.keys() - others.keys()))


def sum_sizes(held: Iterable[DiffEntry]) -> tuple[int, float]:
    """Bytes and compile seconds at stake."""
    entries = list(held)
    return sum(h.size_bytes for h in entries), float(sum(h.compile_seconds for h in entries))
