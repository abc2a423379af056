"""Put the entries of a bundle into a cache: check all of it, plan, then write.

Nothing is written before every byte of the bundle has been compared with the digests in its
manifest. Entries are written as sealed frames, each atomically and its ``-atime`` before it, so
that whatever interrupts an import leaves whole entries, and a second run does the rest. No lock is
taken: JAX looks at a new entry only under its final name, and never at ours before.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from jaxcache.cache.archive import read_chunks
from jaxcache.cache.bundle.format import Bundle, ContentReader, Refusal, check_stream
from jaxcache.cache.bundle.manifest import JAX, BundleError, BundleItem, Manifest, SideFile
from jaxcache.cache.gate import Gate, Signed, check_payload_pieces, read_content
from jaxcache.cache.inventory import Inventory, take_inventory
from jaxcache.cache.scan import Progress
from jaxcache.entry.codec import CodecError
from jaxcache.errors import ExitCode, JaxcacheError, UsageError
from jaxcache.model import FileInfo, result_repr
from jaxcache.store.ahead import in_order
from jaxcache.store.base import MissingError, Store, StoreError

ON_CONFLICT = ("keep", "replace", "fail")


class ImportAction(StrEnum):
    """The action of an import for one entry or file of a bundle."""

    WRITE = "write"
    """It is not there yet."""
    HEAL = "heal"
    """The entry that is there is damaged, and is replaced."""
    REPLACE = "replace"
    """Another one is there, and is replaced as asked."""
    SAME = "same"
    """The same payload is there."""
    KEEP = "keep"
    """Another one is there, and stays."""
    BLOCKED = "blocked"
    """Something that is no entry has its name."""
    LEFT = "left"
    """It was not asked for."""
    DAMAGED = "damaged"
    """``verify`` would call it damaged, so it stays out."""
    UNTRUSTED = "untrusted"
    """No trusted key vouches for it, and one has to."""


WRITES = frozenset({ImportAction.WRITE, ImportAction.HEAL, ImportAction.REPLACE})


@dataclass(frozen=True, slots=True)
class ImportStep:
    """The action for one entry or file."""

    subject: BundleItem | SideFile
    action: ImportAction
    detail: str = ""
    """For people."""
    differs: bool = False
    """The payload under the key here is another one, not only its header."""
    there: FileInfo | None = None

    @property
    def name(self) -> str:
        """The name of the file in the cache."""
        return self.subject.file if isinstance(self.subject, BundleItem) else self.subject.name

    @property
    def content_bytes(self) -> int:
        """Its size in the stream."""
        subject = self.subject
        return subject.payload_bytes if isinstance(subject, BundleItem) else subject.size_bytes


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The steps of an import, in the order of the bundle."""

    __repr__ = result_repr

    cache_dir: str
    bundle: str
    steps: tuple[ImportStep, ...]
    with_atimes: bool
    """Whether entries get an ``-atime`` file."""

    def count(self, *actions: ImportAction) -> int:
        """Return the number of steps with these actions."""
        counts = Counter(step.action for step in self.steps)
        return sum(counts[a] for a in actions)

    @property
    def writes(self) -> tuple[ImportStep, ...]:
        """The steps that write."""
        return tuple(s for s in self.steps if s.action in WRITES)

    @property
    def conflicts(self) -> tuple[ImportStep, ...]:
        """Steps whose key has another payload here."""
        return tuple(s for s in self.steps if s.differs)


def verify_bundle(
    bundle: Bundle,
    progress: Progress | None = None,
    *,
    signed: Signed | None = None,
    allow_large: bool = False,
    atomic: bool = False,
) -> Bundle:
    """Compare every byte of a bundle with its digests and check its entries; write nothing.

    Args:
        signed, allow_large: the policy of the target, see :class:`jaxcache.cache.gate.Gate`.
        atomic: refuse all of it for one entry that must not come in.

    Returns:
        The bundle, which now says what of it must not come in.

    Raises:
        BundleError
        JaxcacheError: ``bad-bundle`` or ``untrusted``, with ``atomic``.
    """
    refused = dict(bundle.refused or {})
    if bundle.refused is None:
        check_stream(bundle)
        refused.update(_damaged(bundle, progress, allow_large))
    gate = Gate(signed=signed)
    for name, _, digest in _contents(bundle.manifest):
        if name not in refused and not gate.is_signed(name, digest):
            refused[name] = Refusal("no trusted key has signed it", untrusted=True)
    if atomic and refused:
        name, (reason, untrusted) = next(iter(refused.items()))
        raise JaxcacheError(
            f"{bundle.name}: {name}: {reason}; with --atomic nothing is imported",
            code="untrusted" if untrusted else "bad-bundle",
            exit_code=ExitCode.UNTRUSTED if untrusted else ExitCode.PROBLEMS,
        )
    return replace(bundle, refused=refused)


def _damaged(
    bundle: Bundle, progress: Progress | None, allow_large: bool
) -> Iterator[tuple[str, Refusal]]:
    content, done, entries = ContentReader(bundle), 0, len(bundle.manifest.items)
    for number, (name, size, expected) in enumerate(_contents(bundle.manifest)):
        pieces, error = content.take(size), None
        if number < entries:
            digest, error = check_payload_pieces(name, pieces, allow_large=allow_large)
        else:
            digest = _digest(pieces)
        if digest != expected:
            raise BundleError(f"{bundle.name}: the payload of {name} does not match its digest")
        if error is not None:
            yield name, Refusal(error.detail)
        done += size
        if progress:
            progress(done, bundle.manifest.content_bytes)
    content.end()


def _digest(pieces: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _contents(manifest: Manifest) -> list[tuple[str, int, str]]:
    """(name, bytes, SHA-256) in the order of the stream."""
    return [
        *((i.file, i.payload_bytes, i.payload_sha256) for i in manifest.items),
        *((f.name, f.size_bytes, f.sha256) for f in manifest.files),
    ]


def plan_import(
    store: Store | None,
    bundle: Bundle,
    *,
    cache_dir: str,
    on_conflict: str = "keep",
    side_caches: bool = True,
    wanted: Callable[[BundleItem], bool] | None = None,
    progress: Progress | None = None,
) -> ImportPlan:
    """Look at what is there already, and decide for each entry.

    Args:
        store: the cache; None where its directory does not exist yet.
        on_conflict: what to do where the same key has another payload or header that is sound.
        wanted: whether to bring an entry in at all; every one if None.

    Raises:
        UsageError: ``on_conflict`` is none of :data:`ON_CONFLICT`.
        JaxcacheError: ``conflict`` where it is ``fail`` and there is one.
    """
    if bundle.manifest.layout != JAX:
        raise BundleError(
            f"{bundle.name} holds a cache of {bundle.manifest.layout}, not of JAX",
            code="other-layout",
            hint="put it into a cache with: jaxcache import",
        )
    there = _there(store)
    inventory = take_inventory(store) if store else Inventory()
    refused = (bundle if bundle.refused is not None else verify_bundle(bundle)).refused or {}
    gate, manifest = Gate(there), bundle.manifest
    subjects: list[BundleItem | SideFile] = [*manifest.items]
    subjects += manifest.files if side_caches else ()

    def plan_step(subject: BundleItem | SideFile) -> ImportStep:
        name = subject.file if isinstance(subject, BundleItem) else subject.name
        if name in refused:
            action = ImportAction.UNTRUSTED if refused[name].untrusted else ImportAction.DAMAGED
            return ImportStep(subject, action, refused[name].reason)
        if wanted is not None and isinstance(subject, BundleItem) and not wanted(subject):
            return ImportStep(subject, ImportAction.LEFT)
        if reason := gate.refuse_name(name):
            return ImportStep(subject, ImportAction.BLOCKED, reason)
        if name not in there or store is None:
            return ImportStep(subject, ImportAction.WRITE)
        if isinstance(subject, BundleItem):
            return _entry_step(store, subject, there[name], on_conflict)
        return file_step(store, subject, there[name], on_conflict)

    remote = store is not None and store.remote
    steps = in_order(plan_step, subjects) if remote else map(plan_step, subjects)
    with_atimes = _wants_atimes(inventory, manifest)
    return plan_of(steps, len(subjects), bundle, cache_dir, on_conflict, progress, with_atimes)


def plan_of(
    steps: Iterable[ImportStep],
    total: int,
    bundle: Bundle,
    cache_dir: str,
    on_conflict: str,
    progress: Progress | None,
    with_atimes: bool = False,
) -> ImportPlan:
    """Collect the steps of an import, whatever the layout.

    Raises:
        UsageError, JaxcacheError: see :func:`plan_import`.
    """
    if on_conflict not in ON_CONFLICT:
        raise UsageError(f"{on_conflict!r} is not one of {', '.join(ON_CONFLICT)}")
    taken: list[ImportStep] = []
    for step in steps:
        taken.append(step)
        if progress:
            progress(len(taken), total)
    kept = [s for s in taken if s.action is ImportAction.KEEP]
    if on_conflict == "fail" and kept:
        what = "entries" if bundle.manifest.layout == JAX else "files"
        raise JaxcacheError(
            f"{len(kept)} {what} are there already with other contents, {kept[0].name} first",
            code="conflict",
            hint="--on-conflict keep or replace decides for all of them",
        )
    return ImportPlan(cache_dir, bundle.name, tuple(taken), with_atimes)


def _there(store: Store | None) -> dict[str, FileInfo]:
    """Everything in the root and in XLA's folder, by name."""
    if store is None:
        return {}
    from jaxcache.core.names import AUTOTUNE_DIR

    found = {info.name: info for info in store.list()}
    found.update((info.name, info) for info in store.list(AUTOTUNE_DIR))
    return found


def _wants_atimes(inventory: Inventory, manifest: Manifest) -> bool:
    """A cache has ``-atime`` files for all its entries or for none: JAX with a cap before 0.11.2
    fails on the first that lacks one, and JAX without a cap writes none."""
    if inventory.atimes:
        return True
    return not inventory.entries and any(i.atime_ns is not None for i in manifest.items)


def _entry_step(store: Store, item: BundleItem, there: FileInfo, on_conflict: str) -> ImportStep:
    if there.type != "file":
        return ImportStep(item, ImportAction.BLOCKED, f"a {there.type} has its name")
    try:
        with store.open(there.name) as file:
            content = read_content(file, there.size_bytes, there.name, sound=item.payload_sha256)
    except CodecError as error:
        return ImportStep(item, ImportAction.HEAL, error.detail, there=there)
    except MissingError:
        return ImportStep(item, ImportAction.WRITE)
    except StoreError as error:
        return ImportStep(item, ImportAction.BLOCKED, error.reason)
    if content.payload_sha256 == item.payload_sha256:
        if content.compile_seconds == item.compile_seconds:
            return ImportStep(item, ImportAction.SAME)
        detail = f"took {content.compile_seconds} s here and {item.compile_seconds} s there"
        return ImportStep(item, _chosen(on_conflict, header_only=True), detail, there=there)
    return ImportStep(
        item, _chosen(on_conflict), "another payload is here", differs=True, there=there
    )


def _chosen(on_conflict: str, *, header_only: bool = False) -> ImportAction:
    if header_only:  # the same executable: how long it took to compile is nobody's conflict
        return ImportAction.REPLACE if on_conflict == "replace" else ImportAction.SAME
    return ImportAction.REPLACE if on_conflict == "replace" else ImportAction.KEEP


def file_step(store: Store, wanted: SideFile, there: FileInfo, on_conflict: str) -> ImportStep:
    """Compare a file with the one of its name that is there."""
    if there.type != "file":
        return ImportStep(wanted, ImportAction.BLOCKED, f"a {there.type} has its name")
    try:
        with store.open(there.name) as file:
            digest = _digest(read_chunks(file))
    except MissingError:
        return ImportStep(wanted, ImportAction.WRITE)
    except StoreError as error:
        return ImportStep(wanted, ImportAction.BLOCKED, error.reason)
    if digest == wanted.sha256:
        return ImportStep(wanted, ImportAction.SAME)
    return ImportStep(
        wanted, _chosen(on_conflict), "another one is here", differs=True, there=there
    )
