"""What a source offers, item by item, and what is decided about each."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from jaxcache.model import FileInfo, Problem, ProblemKind

if TYPE_CHECKING:
    from jaxcache.cache.bundle.manifest import Manifest, Origin
    from jaxcache.cache.ledger.record import Event


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
    origin: "Origin | None" = None


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
    events: "tuple[Event, ...]" = ()
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


def bundle_items(manifest: "Manifest") -> Iterator[Item]:
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
