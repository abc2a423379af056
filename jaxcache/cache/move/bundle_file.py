"""A bundle as the target of a move: one solid stream, its manifest, and the file in its place.

The same cache gives the same bytes: the bundle does not record when or where it was made.
"""

import contextlib
import hashlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from jaxcache.cache.archive import Packer, read_chunks, write_file
from jaxcache.cache.bundle import format as bundle_format
from jaxcache.cache.move import plan as plans
from jaxcache.cache.move.execute import move
from jaxcache.cache.move.export_plan import ExportPlan
from jaxcache.cache.move.stores import StoreSource, portable_records
from jaxcache.cache.trust import sign_header
from jaxcache.cache.verify.check import ImportPolicy
from jaxcache.errors import JaxcacheError, UsageError, system_errors_as
from jaxcache.model import Problem
from jaxcache.store import check_location, is_remote
from jaxcache.store.base import Store, StoreError, cannot_make

#: What the default costs and gives is in docs/bundles.md.
DEFAULT_LEVEL = 12
SMALL_LEVEL = 19
_LEFT_OUT = (
    plans.MoveAction.STRAY,
    plans.MoveAction.DAMAGED,
    plans.MoveAction.UNFINISHED,
    plans.MoveAction.FAILED,
)


class BundleTarget(plans.MoveTarget):
    """The stream of a bundle, which parcels enter in the order of the plan."""

    is_stream = True
    workers = 4  # that read and check while one compresses

    def __init__(self, out: BinaryIO, level: int, size_bytes: int) -> None:
        self._stream = Packer(out, level, bundle_format.stream_parameters(level, size_bytes))
        self._items: list[bundle_format.BundleItem] = []
        self._files: list[bundle_format.SideFile] = []
        self._origins: dict[bundle_format.Origin, int] = {}
        self._content_bytes = 0

    def put(self, parcels: list[plans.Parcel]) -> Iterator[StoreError | None]:
        """Compress the contents of each parcel."""
        for parcel in parcels:
            size = 0
            for chunk in parcel.payload():
                self._stream.add(chunk)
                size += len(chunk)
            self._content_bytes += size
            item = parcel.step.item
            facts = parcel.facts
            if item.key is None:
                self._files.append(
                    bundle_format.SideFile(item.name, size, facts.sha256, max(0, parcel.mtime_ns))
                )
            else:
                self._items.append(self._describe(item, facts))
            yield None

    def _describe(self, item: plans.Item, facts: plans.ItemFacts) -> bundle_format.BundleItem:
        origin = facts.origin or bundle_format.Origin()
        return bundle_format.BundleItem(
            key=item.key or "",
            legacy=item.key == item.name,
            codec="unknown" if replace(item, facts=facts).is_unknown else facts.codec,
            compile_seconds=facts.compile_seconds,
            size_bytes=item.size_bytes,
            payload_bytes=facts.content_bytes,
            payload_sha256=facts.sha256,
            created_ns=item.created_ns,
            atime_ns=item.used_ns,
            origin=self._origins.setdefault(origin, len(self._origins)),
            ledger=item.events,
        )

    def finish(self, store: Store, plan: ExportPlan) -> bundle_format.Manifest:
        """End the stream, and describe it."""
        if self._content_bytes:
            self._stream.finish()
        return bundle_format.Manifest(
            tuple(self._items),
            tuple(self._files),
            tuple(self._origins),
            self._stream.digest.hex(),
            self._content_bytes,
            plan.since,
            portable_records(store, {item.key for item in self._items}),
            plan.layout,
        )

    @property
    def packed_bytes(self) -> int:
        """The size of the stream."""
        return self._stream.packed_bytes


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The content of a bundle that was written."""

    manifest: bundle_format.Manifest
    manifest_sha256: str
    packed_manifest: bytes
    stream: BinaryIO
    stream_bytes: int
    outcome: plans.Outcome

    @property
    def left_out(self) -> tuple[Problem, ...]:
        """The files that were to travel and did not; those that had no chance come first."""
        planned = {step.name for step in self.outcome.plan.writes}
        steps = sorted(self.outcome.of(*_LEFT_OUT), key=lambda step: step.name in planned)
        return tuple(step.problem for step in steps)

    @property
    def size_bytes(self) -> int:
        """The size of the bundle without its header and signatures."""
        return self.stream_bytes + len(self.packed_manifest)


def write_stream(
    store: Store,
    plan: ExportPlan,
    *,
    level: int | None = None,
    directory: str | None = None,
    allow_large: bool = True,
) -> ExportResult:
    """Compress what a plan names into a nameless temporary file, and describe it.

    Damaged entries are left out and reported. Memory is bounded for any cache.

    Args:
        level: of zstd; by default :data:`DEFAULT_LEVEL`, or :data:`SMALL_LEVEL` where that makes a
            bundle larger than the files, as it does of sealed ones.
        allow_large: see :class:`jaxcache.cache.verify.check.ImportPolicy`.
        directory: for the temporary file; by default the system's directory for those.

    Raises:
        JaxcacheError: ``changed`` where a large entry changed while it was read; ``io-error``
            where the temporary file cannot be written.
    """
    levels = (DEFAULT_LEVEL, SMALL_LEVEL) if level is None else (level,)
    failure = f"cannot write a temporary file in {directory or tempfile.gettempdir()}"
    with system_errors_as(JaxcacheError, failure, code="io-error"):
        for number, chosen in enumerate(levels, 1):
            with contextlib.ExitStack() as opened:  # closing flushes, and may fail as well
                out: BinaryIO = opened.enter_context(tempfile.TemporaryFile(dir=directory))
                written = _write(store, plan, out, chosen, allow_large)
                out.flush()
                small = written.size_bytes <= written.manifest.source_bytes
                if small or number == len(levels):
                    opened.pop_all()  # the file outlives this function
                    return written
    raise AssertionError("there is always a last level")


def _write(
    store: Store, plan: ExportPlan, out: BinaryIO, level: int, allow_large: bool
) -> ExportResult:
    def same(item: plans.Item, facts: plans.ItemFacts) -> str | None:
        held = plan.known.get(item.key or "")
        computed = (facts.sha256, facts.compile_seconds)
        return (
            "there already"
            if held and computed == (held.payload_sha256, held.header_seconds)
            else None
        )

    check = plans.Check(ImportPolicy(allow_large=allow_large), plan.ledger, origins=True, fits=same)
    target = BundleTarget(out, level, plan.size_bytes)
    outcome = move(
        StoreSource(store, check),
        target,
        plans.Plan(plan.cache_dir, "", plan.steps),
        now_ns=plan.now_ns,
    )
    manifest = target.finish(store, plan)
    packed = bundle_format.pack_manifest(bundle_format.encode_manifest(manifest))
    out.seek(0)
    return ExportResult(
        manifest, hashlib.sha256(packed).hexdigest(), packed, out, target.packed_bytes, outcome
    )


_FAST_LEVEL = 1
SUFFIX = ".jxb"


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """A bundle that was written, by ``export``, ``copy`` or ``ci save``."""

    source: str
    """The cache or the bundle that it was made from."""
    file: str
    size_bytes: int
    manifest: bundle_format.Manifest
    manifest_sha256: str
    signatures: int
    left_out: tuple[Problem, ...] = ()
    left: tuple[Problem, ...] = ()
    """Side files that do not travel."""


def written_bundle(bundle: bundle_format.Bundle, file: str) -> WrittenBundle:
    """Describe an opened bundle, as ``file``."""
    summary = (bundle.size_bytes, bundle.manifest, bundle.manifest_sha256, len(bundle.signatures))
    return WrittenBundle(bundle.name, file, *summary)


def write_bundle(
    store: Store,
    plan: ExportPlan,
    file: str,
    private_keys: Sequence[Any] = (),
    *,
    target: Store | None = None,
    level: int | None = None,
) -> WrittenBundle:
    """Write what a plan names as a bundle, which appears whole.

    Args:
        file: its path, or ``-`` for standard output; with a target, the name of its object there.

    Raises:
        JaxcacheError: ``io-error``, ``changed``; StoreError
    """
    directory = None if target or file == "-" else os.path.dirname(os.path.abspath(file))
    exported = write_stream(store, plan, level=level, directory=directory)
    with exported.stream:
        chunks = bundle_bytes(exported, private_keys)
        if target:
            size_bytes = target.write(file, chunks).size_bytes
        elif file == "-":
            file = "standard output"
            size_bytes = sum(map(sys.stdout.buffer.write, chunks))
        else:
            write_file(file, chunks)
            size_bytes = os.stat(file).st_size
    return WrittenBundle(
        plan.cache_dir,
        file,
        size_bytes,
        exported.manifest,
        exported.manifest_sha256,
        len(private_keys),
        exported.left_out,
        tuple(s.problem for s in exported.outcome.of(plans.MoveAction.LEFT) if s.key is None),
    )


def bundle_bytes(exported: ExportResult, private_keys: Sequence[Any] = ()) -> Iterator[bytes]:
    """The bytes of a bundle from front to back, signed with the given keys."""
    header = bundle_format.pack_header(
        exported.packed_manifest, exported.stream_bytes, len(private_keys)
    )
    yield sign_header(header, private_keys)
    yield exported.packed_manifest
    exported.stream.seek(0)
    yield from read_chunks(exported.stream)


def make_temporary_bundle(
    store: Store, plan: ExportPlan
) -> tuple[bundle_format.Bundle, ExportResult]:
    """A temporary bundle, for a copy from directory to directory.

    Raises:
        JaxcacheError: ``io-error``: no room in the directory for temporary files.
    """
    exported = write_stream(store, plan, level=_FAST_LEVEL, allow_large=False)
    with exported.stream:
        # Its entries were checked as they were read, and no other process can write to it.
        return replace(_keep(bundle_bytes(exported), store.url), refused={}), exported


def check_file_path(path: str) -> None:
    """Refuse a URL, or what looks like one, where a file is meant.

    Raises:
        UsageError: ``bad-url``.
    """
    check_location(path)
    if is_remote(path):
        raise UsageError(
            f"{path} is not a file",
            code="bad-url",
            hint="push and pull, or ci save and ci restore, talk to buckets",
        )


def is_bundle_name(location: str) -> bool:
    """Return whether a source or target is a bundle, or would be one, and not a cache.

    An existing path is decided by its kind; a new one, and a URL, by the suffix.
    """
    named = location.endswith(SUFFIX)
    if is_remote(location):
        return named
    return not os.path.isdir(location) and (named or location == "-" or os.path.lexists(location))


#: Endings of archives, which a bundle is not.
_OTHER_FORMATS = (
    *(".tar", ".gz", ".tgz", ".zip", ".bz2", ".xz", ".zst", ".7z"),
    *(".txt", ".log", ".json", ".csv", ".html", ".md", ".py"),
)


def check_file_name(path: str) -> None:
    """Refuse to overwrite anything but a bundle.

    Raises:
        UsageError: ``exists``, ``bad-path``.
        JaxcacheError: ``io-error``: nothing can be written there.
    """
    if path == "-":
        raise UsageError("- is not a file; only export writes to standard output")
    check_file_path(path)
    if path.lower().endswith(_OTHER_FORMATS):
        raise UsageError(
            f"{path} is the name of another format: a bundle ends in .jxb",
            code="bad-path",
            hint="name it .jxb; only jaxcache reads it",
        )
    if os.path.lexists(path) and not bundle_format.is_bundle(path):
        raise UsageError(
            f"{path} exists and is not a bundle",
            code="exists",
            hint="name another file, or remove it",
        )
    if reason := cannot_make(path):
        raise JaxcacheError(f"cannot write {path}: {reason}", code="io-error")


def spool(source: BinaryIO, name: str = "standard input") -> bundle_format.Bundle:
    """Read a bundle from a pipe or a bucket into a nameless temporary file, and open it.

    Raises:
        BundleError
        JaxcacheError: ``io-error``.
    """
    start = source.read(len(bundle_format.MAGIC))
    if start != bundle_format.MAGIC:
        raise bundle_format.BundleError(f"{name} is not a bundle", code="not-a-bundle", hint=None)
    return _keep(itertools.chain([start], read_chunks(source)), name)


def _keep(chunks: Iterable[bytes], name: str) -> bundle_format.Bundle:
    """A bundle in a nameless temporary file, which is closed with it."""
    failure = f"cannot keep the bundle in {tempfile.gettempdir()}"
    hint = "set TMPDIR to another directory for temporary files"
    with (
        system_errors_as(JaxcacheError, failure, code="io-error", hint=hint),
        contextlib.ExitStack() as opened,  # closing flushes, and may fail as well
    ):
        file: BinaryIO = opened.enter_context(tempfile.TemporaryFile())
        file.writelines(chunks)
        file.flush()
        bundle = bundle_format.read_bundle(file, name)
        opened.pop_all()
    return bundle
