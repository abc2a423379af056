"""The one check that every entry passes, from any source to any target."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from jaxcache.cache.admission import CheckedContent, ImportPolicy, read_content
from jaxcache.cache.archive import hash_chunks, read_chunks
from jaxcache.cache.bundle.manifest import make_origin
from jaxcache.cache.inventory import EntryFile
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.move.items import Item, ItemFacts, MoveAction, StaysError
from jaxcache.cache.verify.check import recorded_digest
from jaxcache.entry.codec import HEAD_BYTES, CodecError, read_entry_header
from jaxcache.entry.decode import decode_origin
from jaxcache.entry.names import FileKind
from jaxcache.model import FileInfo
from jaxcache.store.base import StoreError
from jaxcache.store.concurrency import ByteBudget

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
        with self._decoding.take(header.content_bytes or 8 * info.size_bytes):
            content = read_content(
                file, info.size_bytes, item.name, allow_large=self.policy.allow_large
            )
        if not header.checksum:  # a right checksum outweighs a record
            self._compare(item, info, content.payload_sha256)
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

    def _compare(self, item: Item, info: FileInfo, digest: str) -> None:
        """Compare a digest with the ledger.

        Raises:
            CodecError: ``digest-mismatch``.
        """
        record = self.ledger.record(item.key or "") if self.ledger else None
        recorded = recorded_digest(EntryFile(info, item.key or "", FileKind.ENTRY), record)
        if recorded not in (None, digest):
            raise CodecError("digest-mismatch", "its payload is not the one in the ledger")

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
            origin = make_origin(content.decoded or decode_origin(content.buffered))
        return ItemFacts(
            content.payload_sha256,
            content.payload_bytes,
            content.codec,
            content.compile_seconds,
            origin,
        )
