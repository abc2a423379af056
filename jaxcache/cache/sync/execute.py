"""Carry entries over: each is read whole, checked, and only then written, never over another."""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.leftovers import delete_leftovers
from jaxcache.cache.pair import write_atime
from jaxcache.cache.parallel import ByteBudget
from jaxcache.cache.prune.execute import remove
from jaxcache.cache.prune.removal import Execution
from jaxcache.cache.scan import Progress
from jaxcache.cache.sync.ledgers import carry_segments
from jaxcache.cache.sync.plan import SyncPlan, Transfer
from jaxcache.cache.sync.signatures import write_signatures
from jaxcache.cache.verify.check import recorded_digest
from jaxcache.entry.codec import HEAD_BYTES, CodecError, read_head
from jaxcache.errors import UntrustedError
from jaxcache.model import CUT_SHORT, GRACE_NS, FileInfo, Problem, result_repr
from jaxcache.store.ahead import REQUESTS_AT_ONCE, in_order
from jaxcache.store.base import ChangedError, ExistsError, MissingError, Store, StoreError

#: A serialized executable is a protobuf message of less than 2 GiB, and zstd adds little.
MAX_ENTRY_BYTES = (2 << 30) + (16 << 20)
#: What all workers together hold in memory.
_BUDGET_BYTES = 256 << 20


class Failed(NamedTuple):
    """A file that could not be read or written."""

    transfer: Transfer
    reason: str


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of executing a plan."""

    __repr__ = result_repr

    carried: tuple[Transfer, ...]
    overtaken: tuple[Transfer, ...] = ()
    """Files that another process carried first."""
    gone: tuple[Transfer, ...] = ()
    """Removed from the source since it was listed."""
    unfinished: tuple[Transfer, ...] = ()
    """Still being written, as it seems: they go over next time."""
    damaged: tuple[Problem, ...] = ()
    """Left behind: what is rotten must not spread."""
    untrusted: tuple[Transfer, ...] = ()
    """Left behind: no key that this user trusts has signed them."""
    failed: tuple[Failed, ...] = ()
    segments: int = 0
    """Segments of the ledger that were carried."""
    removed: Execution | None = None
    """Entries removed from the target to make room."""

    @property
    def carried_bytes(self) -> int:
        """Sizes of the entries and side files that went over."""
        return sum(t.info.size_bytes for t in self.carried)

    @property
    def complete(self) -> bool:
        """Return whether everything is there that was to come."""
        lacking = self.damaged or self.failed or self.untrusted or self.unfinished
        return not (lacking or (self.removed and self.removed.failed))


TransferOutcome = Literal["carried", "overtaken", "gone", "unfinished", "untrusted"]


def execute(
    source: Store,
    target: Store,
    plan: SyncPlan,
    *,
    now_ns: int,
    jobs: int = REQUESTS_AT_ONCE,
    signers: Sequence[Any] = (),
    progress: Progress | None = None,
) -> Synced:
    """Carry out a plan.

    Room is made first. Signatures and ledger come last: they speak of entries that are there.

    Args:
        jobs: files under way at once.
        signers: private keys that vouch for what goes over.

    Raises:
        NoCacheError: a store cannot be reached any more; what went over until then is whole, and
            another run does the rest.
        LockedError: see :func:`jaxcache.cache.prune.execute.remove`.
    """
    delete_leftovers(target)
    removed = remove(target, plan.removals) if plan.removals else None
    carrier = _Carrier(source, target, plan, now_ns)
    outcomes: list[TransferOutcome | Problem | Failed] = []
    for outcome in in_order(carrier.carry, plan.transfers, workers=jobs):
        outcomes.append(outcome)
        if progress:
            progress(len(outcomes), len(plan.transfers))
    if carrier.digests and signers:
        write_signatures(target, carrier.digests, signers, now_ns=now_ns)
    carried = {t.key or "" for t, o in zip(plan.transfers, outcomes, strict=True) if o == "carried"}
    segments = carry_segments(source, target, plan.segments, carried) if plan.segments else 0
    return _sum_up(plan.transfers, outcomes, segments, removed)


class _Carrier:
    def __init__(self, source: Store, target: Store, plan: SyncPlan, now_ns: int) -> None:
        self._source, self._target, self._now_ns = source, target, now_ns
        self._with_atimes, self._gate = plan.with_atimes, plan.gate
        self._ledger = Ledger() if source.remote else Ledger.load(source)
        self._budget, self._decoding = ByteBudget(_BUDGET_BYTES), ByteBudget(_BUDGET_BYTES)
        self.digests: dict[str, str] = {}
        """Digests of the files that were carried, by name."""

    def carry(self, transfer: Transfer) -> TransferOutcome | Problem | Failed:
        """Bring one file over and say what became of it."""
        with self._budget.take(2 * transfer.info.size_bytes):
            try:
                data, info = self._source.fetch(transfer.info.name, limit=MAX_ENTRY_BYTES)
            except MissingError:
                return "gone"
            except ChangedError:
                return "unfinished"
            except StoreError as error:
                return Failed(transfer, error.reason)
            try:
                return self._deliver(transfer, data, info)
            except (ExistsError, ChangedError, MissingError):
                return "overtaken"
            except StoreError as error:
                return Failed(transfer, error.reason)

    def _deliver(
        self, transfer: Transfer, data: bytes, info: FileInfo
    ) -> TransferOutcome | Problem | Failed:
        name = info.name
        try:
            digest = self._check(transfer, data, info)
        except UntrustedError:
            return "untrusted"
        except CodecError as error:
            if error.kind in CUT_SHORT and self._may_grow(info.mtime_ns):
                return "unfinished"
            return Problem(name, error.kind, error.detail, transfer.key)
        if self._with_atimes and transfer.file:
            write_atime(self._target, transfer.file.info.name, transfer.last_used_ns)
        if transfer.there is not None:
            self._target.rewrite(name, [data], expected=transfer.there)
        else:
            self._target.write(name, [data], mtime_ns=info.mtime_ns, replace=False)
        self.digests[name] = digest
        return "carried"

    def _check(self, transfer: Transfer, data: bytes, info: FileInfo) -> str:
        """The SHA-256 of the payload, or of a side file; an entry is checked whole.

        Raises:
            CodecError: it is damaged, or another one than the ledger knows.
            UntrustedError: no trusted key has signed it.
        """
        if transfer.file is None:
            digest = hashlib.sha256(data).hexdigest()
            if not self._gate.is_signed(info.name, digest):
                raise UntrustedError(f"no trusted key has signed {info.name}")
            return digest
        head = read_head(data[:HEAD_BYTES], len(data))
        with self._decoding.take(head.content_bytes or 8 * len(data)):
            content = self._gate.check_entry(info.name, io.BytesIO(data), len(data))
        file = transfer.file._replace(info=info)
        known = recorded_digest(file, self._ledger.record(file.key_text))
        if known not in (None, content.payload_sha256):
            raise CodecError("digest-mismatch", "its payload is not the one in the ledger")
        return content.payload_sha256

    def _may_grow(self, mtime_ns: int) -> bool:
        return not self._source.remote and abs(self._now_ns - mtime_ns) < GRACE_NS


def _sum_up(
    transfers: Sequence[Transfer],
    outcomes: Sequence[TransferOutcome | Problem | Failed],
    segments: int,
    removed: Execution | None,
) -> Synced:
    def of(kind: TransferOutcome) -> tuple[Transfer, ...]:
        return tuple(t for t, o in zip(transfers, outcomes, strict=True) if o == kind)

    return Synced(
        carried=of("carried"),
        overtaken=of("overtaken"),
        gone=of("gone"),
        unfinished=of("unfinished"),
        untrusted=of("untrusted"),
        damaged=tuple(o for o in outcomes if isinstance(o, Problem)),
        failed=tuple(o for o in outcomes if isinstance(o, Failed)),
        segments=segments,
        removed=removed,
    )
