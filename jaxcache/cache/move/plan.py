"""A move: what a source offers, what is decided about each item, and how it ended.

:class:`Check` is the one check that every entry passes, from any source to any target.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO, NamedTuple, Protocol

from jaxcache.cache.archive import hash_chunks, read_chunks
from jaxcache.cache.bundle.format import Manifest, Origin, make_origin
from jaxcache.cache.files import EntryFile
from jaxcache.cache.ledger.record import Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.prune.removable import Execution, Removal
from jaxcache.cache.verify.check import CheckedContent, ImportPolicy, read_content, recorded_digest
from jaxcache.entry.codec import HEAD_BYTES, CodecError, read_entry_header
from jaxcache.entry.decode import decode_payload
from jaxcache.entry.names import FileKind
from jaxcache.errors import ExitCode
from jaxcache.model import FileInfo, Problem, ProblemKind, result_repr
from jaxcache.store.base import Store, StoreError
from jaxcache.store.concurrency import ByteBudget


class MoveAction(StrEnum):
    """The decision about one file, or how it ended instead."""

    WRITE = "write"
    """The target does not have it."""
    HEAL = "heal"
    """The target has a damaged file, which is replaced."""
    REPLACE = "replace"
    """The target has another sound file, which is replaced as requested."""
    SAME = "same"
    """The target has the same payload."""
    KEEP = "keep"
    """The target has another sound file, which stays."""
    BLOCKED = "blocked"
    """Something that is not an entry has its name, or one that differs in case only."""
    LEFT = "left"
    """It is not wanted, or cannot hit in the target."""
    DAMAGED = "damaged"
    """``verify`` would call it damaged, or it is not the one that the ledger records."""
    UNTRUSTED = "untrusted"
    """No trusted key vouches for it, and one must."""
    PRESENT = "present"
    """The target has a file of its name; its payload was not compared."""
    NO_ROOM = "no-room"
    """The limit of the target leaves no room for it."""
    STRAY = "stray"
    """No cache takes a file of its name."""
    UNFINISHED = "unfinished"
    """It is young and truncated, so its writer may not have finished."""
    GONE = "gone"
    """The source lost it since it was listed."""
    OVERTAKEN = "overtaken"
    """Another process wrote it first."""
    FAILED = "failed"
    """It could not be read or written."""
    UNTRIED = "untried"
    """An earlier failure ended the move."""


WRITES = frozenset({MoveAction.WRITE, MoveAction.HEAL, MoveAction.REPLACE})
_UNREAD = (MoveAction.STRAY, MoveAction.DAMAGED, MoveAction.UNFINISHED, MoveAction.FAILED)


class ItemFacts(NamedTuple):
    """The contents of an entry or of a file, from a check or from a manifest."""

    sha256: str
    """Digest of an entry's payload, or of the bytes of any other file."""
    content_bytes: int
    codec: str = ""
    compile_seconds: int = 0
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One entry or side file that a source offers; times are nanoseconds since the epoch."""

    name: str
    key: str | None
    """None for a side file."""
    size_bytes: int
    """The size of its file, in the cache that it comes from."""
    created_ns: int
    used_ns: int | None = None
    """The date for its ``-atime`` file; None where its creation is the best date."""
    info: FileInfo | None = None
    """Its file, where the source is a store."""
    facts: ItemFacts | None = None
    """None where nothing has read it yet."""
    events: tuple[Event, ...] = ()
    """The events of the ledger that travel with it."""

    @property
    def content_bytes(self) -> int:
        """The size of its payload; if the file was not read, the size of the file."""
        return self.facts.content_bytes if self.facts else self.size_bytes

    @property
    def is_unknown(self) -> bool:
        """Whether it was read, and is an entry in an unknown format."""
        return bool(self.key and self.facts and self.facts.codec in ("", "unknown"))

    @property
    def sha256(self) -> str | None:
        """The digest of its contents, where it is known."""
        return self.facts.sha256 if self.facts else None


def bundle_items(manifest: Manifest) -> Iterator[Item]:
    """Yield what a bundle holds, in the order of its stream."""
    for entry in manifest.items:
        facts = ItemFacts(
            entry.payload_sha256,
            entry.payload_bytes,
            entry.codec,
            entry.compile_seconds,
            manifest.origin_of(entry),
        )
        yield Item(
            entry.file,
            entry.key,
            entry.size_bytes,
            entry.created_ns,
            entry.atime_ns,
            facts=facts,
            events=entry.ledger,
        )
    for file in manifest.files:
        facts = ItemFacts(file.sha256, file.size_bytes)
        yield Item(file.name, None, file.size_bytes, file.created_ns, facts=facts)


@dataclass(frozen=True, slots=True)
class Step:
    """The decision about one item, or how it ended."""

    item: Item
    action: MoveAction
    detail: str = ""
    """For people."""
    kind: ProblemKind | None = None
    differs: bool = False
    """The target has another payload under its key, not only another header."""
    there: FileInfo | None = None
    """The file that it replaces, as it was looked at."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.item.name

    @property
    def key(self) -> str | None:
        """The key of an entry."""
        return self.item.key

    @property
    def replaces_damaged(self) -> bool:
        """Whether the target has a damaged file of this name."""
        return self.there is not None

    @property
    def is_left_out(self) -> bool:
        """Whether its file was never read whole, so that nothing came of it."""
        return self.action in _UNREAD and self.item.facts is None

    @property
    def problem(self) -> Problem:
        """The step as a problem of its file."""
        default: ProblemKind = "unreadable" if self.action is MoveAction.FAILED else "stray-file"
        return Problem(self.name, self.kind or default, self.detail, self.key)


class StaysError(Exception):
    """A sound item does not travel: it is not wanted, or not signed."""

    def __init__(self, action: MoveAction, reason: str, facts: ItemFacts) -> None:
        super().__init__(reason)
        self.action = action
        self.reason = reason
        self.facts = facts


#: The actions that make an outcome partial.
LACKING = frozenset(
    {
        MoveAction.STRAY,
        MoveAction.BLOCKED,
        MoveAction.DAMAGED,
        MoveAction.UNFINISHED,
        MoveAction.FAILED,
        MoveAction.UNTRIED,
    }
)


class Parcel(Protocol):
    """One item between source and target: whole and checked."""

    @property
    def step(self) -> Step: ...
    @property
    def facts(self) -> ItemFacts: ...
    @property
    def mtime_ns(self) -> int: ...

    def frame(self) -> Iterator[Any]:
        """Yield the bytes of its file, sealed.

        Raises:
            ChangedError: the file in the source has been replaced.
        """

    def payload(self) -> Iterator[Any]:
        """Yield its contents.

        Raises:
            JaxcacheError: ``changed``.
        """

    def close(self) -> None:
        """Free what it holds."""


class MoveSource(Protocol):
    """A store or a bundle that entries come from."""

    remote: bool
    budget_bytes: int
    """The memory that the files and payloads under way may take."""

    @property
    def store(self) -> Store | None:
        """The cache that it is; None for a bundle."""

    def run_records(self) -> Mapping[str, bytes]:
        """Return the records of programs' runs, by name."""

    def take(self, step: Step) -> Any:
        """Read what must be read in order; called by one thread, in the order of the plan."""

    def open(self, step: Step, taken: Any) -> Parcel:
        """Read the rest and check all of it; called by any thread.

        Raises:
            CodecError: it is damaged.
            StaysError, StoreError
        """


class MoveTarget:
    """Whatever entries go into; this one takes everything and writes nothing, for dry runs."""

    remote = False
    is_stream = False
    """Whether parcels must come in the order of the plan; then progress counts bytes."""
    workers = 16
    """Threads that read, check and write: most of their time goes into syncing."""
    batch = 8
    """The most files that one call of :meth:`put` takes, and keeps open."""

    def put(self, parcels: list[Parcel]) -> Iterator[StoreError | None]:
        """Write files in order, and yield for each None or why it was not written."""
        return iter([None] * len(parcels))

    def settle(self, written: Mapping[str, Step]) -> None:
        """Write what depends on all of them, such as signatures; called after an interrupt, too."""


class Steps:
    """Steps under what they came to."""

    __slots__ = ()
    steps: tuple[Step, ...]

    @property
    def writes(self) -> tuple[Step, ...]:
        """The steps that write, or that were written."""
        return self.of(*WRITES)

    @property
    def size_bytes(self) -> int:
        """The sizes of the entries and side files that write, or that were written."""
        return sum(step.item.size_bytes for step in self.writes)

    def of(self, *actions: MoveAction) -> tuple[Step, ...]:
        """Return the steps with these actions."""
        return tuple(step for step in self.steps if step.action in actions)

    def count(self, *actions: MoveAction) -> int:
        """Return the number of steps with these actions."""
        return len(self.of(*actions))


@dataclass(frozen=True, slots=True)
class Plan(Steps):
    """The decision about every item that a source offers."""

    __repr__ = result_repr

    source: str
    target: str
    steps: tuple[Step, ...]
    entries: int = 0
    """The entries of the source, selected or not."""
    with_atimes: bool = False
    """Whether new entries get an ``-atime`` file."""
    removals: tuple[Removal, ...] = ()
    """Entries to remove from the target to make room."""
    unmet: bool = False
    """The target exceeds its limit even after the removals."""
    segments: tuple[FileInfo, ...] = ()
    """Segments of the ledger to copy."""
    runs: bool = False
    """Whether the records of programs' runs go, too."""
    records: bool = True
    """Whether the target's ledger records what arrives."""
    by_name: bool = False
    """Whether names alone were compared: what another process writes meanwhile is as good, and the
    ledger records no digests."""
    check: "Check | None" = None
    """What each entry of a store must pass."""

    transfers = Steps.writes
    """The same, as ``push`` calls them."""

    @property
    def conflicts(self) -> tuple[Step, ...]:
        """The steps whose key has another payload in the target."""
        return tuple(step for step in self.steps if step.differs)


@dataclass(frozen=True, slots=True)
class Outcome(Steps):
    """A plan, and how each of its steps ended."""

    __repr__ = result_repr

    plan: Plan
    steps: tuple[Step, ...]
    """As in the plan; a step that did not end as planned has another action."""
    dry_run: bool = False
    rolled_back: bool = False
    """Nothing was kept, because not all of it could be written."""
    written_bytes: int = 0
    """The sizes of the files that were written, sealed as they are."""
    segments: int = 0
    """Segments of the ledger that were copied."""
    removed: Execution | None = None
    """Entries removed from the target to make room."""

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    written = Steps.writes
    """The steps that were written; in a dry run, those that would be."""
    carried = Steps.writes
    """The same, as ``push`` calls them."""

    carried_bytes = Steps.size_bytes

    @property
    def damaged(self) -> tuple[Problem, ...]:
        """The damaged entries that were not written."""
        return tuple(step.problem for step in self.of(MoveAction.DAMAGED))

    @property
    def failed(self) -> tuple[Step, ...]:
        """The files that could not be read or written."""
        return self.of(MoveAction.FAILED)

    @property
    def complete(self) -> bool:
        """Whether the target has everything that was to come."""
        return self.exit_code is ExitCode.DONE

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ended like this."""
        if self.of(MoveAction.UNTRUSTED):
            return ExitCode.UNTRUSTED
        unremoved = self.removed is not None and self.removed.failed
        if self.of(*LACKING) or self.plan.unmet or unremoved:
            return ExitCode.PARTIAL
        return ExitCode.DONE


#: A serialized executable is a protobuf message of less than 2 GiB, and zstd adds little.
MAX_ENTRY_BYTES = (2 << 30) + (16 << 20)
#: What all payloads hold in memory while they are decoded.
_DECODING_BYTES = 256 << 20


class CheckedItem(NamedTuple):
    """An entry that passed, or a file that is not one."""

    facts: ItemFacts
    content: CheckedContent | None = None
    sealed: bool = True
    """Whether its file detects corruption by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Checks size, header, frame, ratio, structure, module, digest and signature, in this order."""

    policy: ImportPolicy
    """The policy of the target."""
    ledger: Ledger | None = None
    """Records which payload each entry had."""
    origins: bool = False
    """Whether to find out which compiler made an entry, and for which device."""
    fits: Callable[[Item, ItemFacts], str | None] | None = None
    """Returns why a sound entry is not wanted, or None."""
    _decoding: ByteBudget = field(default_factory=lambda: ByteBudget(_DECODING_BYTES))

    def read(self, item: Item, file: BinaryIO, info: FileInfo) -> CheckedItem:
        """Check the file of an item from end to end.

        A payload that this user's or root's ledger records of this very file is not decoded again.

        Raises:
            CodecError: it is damaged, or another one than the ledger records.
            StaysError, StoreError
        """
        if item.key is None:
            facts = ItemFacts(hash_chunks(read_chunks(file)), info.size_bytes)
            self._check_signed(item.name, facts)
            return CheckedItem(facts)
        self.check_size(item, info)
        header = read_entry_header(file.read(HEAD_BYTES), info.size_bytes)
        record = self.ledger.record(item.key) if self.ledger else None
        digest = recorded_digest(EntryFile(info, item.key, FileKind.ENTRY), record)
        with self._decoding.take(header.content_bytes or 8 * info.size_bytes):
            content = read_content(
                file, info.size_bytes, item.name, allow_large=self.policy.allow_large, sound=digest
            )
        # A right checksum outweighs a record.
        if not header.checksum and digest not in (None, content.payload_sha256):
            raise CodecError("digest-mismatch", "its payload is not the one in the ledger")
        facts = self._facts(content)
        self._check_signed(item.name, facts)
        unwanted = self.fits(item, facts) if self.fits else None
        if unwanted:
            raise StaysError(MoveAction.LEFT, unwanted, facts)
        return CheckedItem(facts, content, header.checksum)

    def check_size(self, item: Item, info: FileInfo) -> None:
        """Refuse a file that is larger than any entry, unless that is allowed.

        Raises:
            StoreError
        """
        if info.size_bytes > MAX_ENTRY_BYTES and not self.policy.allow_large:
            reason = f"holds more than {MAX_ENTRY_BYTES} bytes"
            raise StoreError(item.name, reason, code="too-large")

    def _check_signed(self, name: str, facts: ItemFacts) -> None:
        """Check that a trusted key vouches for contents, where one must.

        Raises:
            StaysError
        """
        if not self.policy.is_signed(name, facts.sha256):
            raise StaysError(MoveAction.UNTRUSTED, "no trusted key has signed it", facts)

    def _facts(self, content: CheckedContent) -> ItemFacts:
        origin = None
        if self.origins:
            decoded = content.decoded or decode_payload(content.buffered, parts="origin")
            origin = make_origin(decoded)
        return ItemFacts(
            content.payload_sha256,
            content.payload_bytes,
            content.codec,
            content.compile_seconds,
            origin,
        )
