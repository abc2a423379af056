"""The removable files of a cache, with the facts that rules and policies need."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from jaxcache.cache.ledger.segments import LEDGER_DIR
from jaxcache.cache.ledger.tuning import UNTUNED, tuning_of
from jaxcache.cache.leftovers import is_temporary
from jaxcache.cache.prune.policy import Candidate, UseRecord, estimate_hits
from jaxcache.cache.prune.removal import Hold, Reason, Removal, Subject
from jaxcache.cache.scan import Scan
from jaxcache.cache.verify.quarantine import QUARANTINE_DIR
from jaxcache.entry.names import FileKind
from jaxcache.model import FileInfo, ProblemKind
from jaxcache.units import NS_PER_SECOND

#: Looks up what the ledger knows of a key; None where it knows nothing.
Lookup = Callable[[str], UseRecord | None]

#: Problems that do not keep JAX from using an entry; any other makes it worth nothing.
_HARMLESS: frozenset[ProblemKind] = frozenset(
    {"legacy-name", "bad-atime", "missing-atime", "unsealed", "unreadable"}
)


@dataclass(slots=True)
class Item:
    """One thing that could go, with all that a rule asks about it."""

    removal: Removal
    legacy: bool
    created_ns: int
    candidate: Candidate
    dated: bool
    held_by: Hold | None
    """The reason why no rule or bound may remove it."""
    untuned: bool = False
    reason: Reason | None = None
    """Set once something takes it."""

    @property
    def protected(self) -> bool:
        """Whether it must stay."""
        return self.held_by is not None


def removable_entries(
    seen: Scan,
    *,
    now_ns: int,
    grace_seconds: float,
    keep: Collection[str] = (),
    lookup: Lookup | None = None,
) -> Iterator[Item]:
    """Yield every entry.

    Args:
        grace_seconds: younger ones are protected; so are those in ``keep`` and pinned ones.
        lookup: the ledger.
    """
    inventory = seen.inventory
    files = {f.info.name: f for f in inventory.entries}
    grace_ns = int(grace_seconds * NS_PER_SECOND)
    for entry in seen.entries:
        file = files[entry.file]
        known = lookup(entry.key) if lookup else None
        used_ns = min(entry.last_used_ns, now_ns)
        seconds, exact, hits = entry.compile_seconds, False, 0
        if known:
            used_ns = max(used_ns, min(known.last_hit_ns or 0, now_ns))
            hits = known.hits
            if known.compile_seconds is not None:
                seconds, exact = known.compile_seconds, True
        worthless = not _HARMLESS.issuperset(entry.problems)
        legacy = file.kind is FileKind.LEGACY_ENTRY
        atime = None if legacy else inventory.atimes.get(entry.key)
        removal = Removal(
            "entry", file.info, atime, entry.key, entry.module, "requested", used_ns, seconds
        )
        yield Item(
            removal=removal,
            legacy=legacy,
            created_ns=entry.created_ns,
            candidate=Candidate(
                entry.file,
                removal.size_bytes,
                used_ns,
                0.0 if worthless else seconds,
                exact or worthless,
                estimate_hits(hits, entry.created_ns, used_ns),
            ),
            dated=entry.last_used_from != "mtime" or bool(known and known.last_hit_ns),
            held_by=(
                "kept"
                if entry.key in keep
                else "pinned"
                if known and known.pinned
                else _young(entry.created_ns, now_ns, grace_ns)
            ),
            untuned=tuning_of(known, entry.created_ns, entry.size_bytes) == UNTUNED,
        )


def removable_others(
    seen: Scan, wanted: Collection[Subject], *, now_ns: int, grace_seconds: float
) -> Iterator[Item]:
    """Yield the files of the ``wanted`` kinds that are no entries."""
    grace_ns = int(grace_seconds * NS_PER_SECOND)
    for subject, info in _other_files(seen):
        if subject in wanted:
            used_ns = min(max(info.mtime_ns, info.atime_ns), now_ns)
            removal = Removal(subject, info, None, None, "", "requested", used_ns, None)
            yield Item(
                removal=removal,
                legacy=False,
                created_ns=info.mtime_ns,
                candidate=Candidate(info.name, info.size_bytes, used_ns, None),
                dated=True,
                held_by=_young(info.mtime_ns, now_ns, grace_ns),
            )


def _young(created_ns: int, now_ns: int, grace_ns: int) -> Hold | None:
    return "young" if abs(now_ns - created_ns) < grace_ns else None


def _other_files(seen: Scan) -> Iterator[tuple[Subject, FileInfo]]:
    for _, info in seen.inventory.orphan_atimes():
        yield "orphan-atime", info
    for other in seen.inventory.others:
        if other.info.type != "file":
            continue
        if other.kind is FileKind.TEMP or is_temporary(other.info.name):
            yield "temp-file", other.info
        elif other.kind in (FileKind.KERNEL_CACHE, FileKind.AUTOTUNE):
            yield "side-cache", other.info
        elif other.info.name.startswith(f"{QUARANTINE_DIR}/"):
            yield "quarantine", other.info


def total_bytes(seen: Scan) -> int:
    """Sum up what a bound on the size counts: all but the ledger, which bounds itself.

    An entry that vanished during the scan counts nothing.
    """
    there = {e.file for e in seen.entries}
    inventory = seen.inventory
    return (
        sum(f.info.size_bytes for f in inventory.entries if f.info.name in there)
        + sum(info.size_bytes for info in inventory.atimes.values())
        + sum(
            o.info.size_bytes
            for o in inventory.others
            if o.info.type == "file" and not o.info.name.startswith(f"{LEDGER_DIR}/")
        )
    )
