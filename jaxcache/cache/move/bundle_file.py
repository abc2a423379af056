"""Bring a bundle to its place, and a stream of bytes into a bundle."""

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from jaxcache.cache.archive import read_chunks, write_file
from jaxcache.cache.bundle.format import MAGIC, Bundle, is_bundle, pack_header, read_bundle
from jaxcache.cache.bundle.manifest import BundleError, Manifest
from jaxcache.cache.move.bundle_target import ExportResult, write_stream
from jaxcache.cache.move.export_plan import ExportPlan
from jaxcache.cache.move.plan import MoveAction
from jaxcache.cache.scan import Progress
from jaxcache.cache.trust import sign_header
from jaxcache.errors import JaxcacheError, UsageError, system_errors_as
from jaxcache.model import Problem
from jaxcache.store import cannot_make, check_location, is_remote
from jaxcache.store.base import Store

_FAST_LEVEL = 1
SUFFIX = ".jxb"


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """A bundle that was written, by ``export``, ``copy`` or ``ci save``."""

    source: str
    """The cache or the bundle that it was made from."""
    file: str
    size_bytes: int
    manifest: Manifest
    manifest_sha256: str
    signatures: int
    left_out: tuple[Problem, ...] = ()
    left: tuple[Problem, ...] = ()
    """Side files that do not travel."""


def written_bundle(bundle: Bundle, file: str) -> WrittenBundle:
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
    progress: Progress | None = None,
) -> WrittenBundle:
    """Write what a plan names as a bundle, which appears whole.

    Args:
        file: its path, or ``-`` for standard output; with a target, the name of its object there.

    Raises:
        JaxcacheError: ``io-error``, ``changed``; StoreError
    """
    directory = None if target or file == "-" else os.path.dirname(os.path.abspath(file))
    exported = write_stream(store, plan, level=level, directory=directory, progress=progress)
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
        tuple(s.problem for s in exported.outcome.of(MoveAction.LEFT) if s.key is None),
    )


def bundle_bytes(exported: ExportResult, private_keys: Sequence[Any] = ()) -> Iterator[bytes]:
    """The bytes of a bundle from front to back, signed with the given keys."""
    header = pack_header(exported.packed_manifest, exported.stream_bytes, len(private_keys))
    yield sign_header(header, private_keys)
    yield exported.packed_manifest
    exported.stream.seek(0)
    yield from read_chunks(exported.stream)


def make_temporary_bundle(store: Store, plan: ExportPlan) -> tuple[Bundle, ExportResult]:
    """A temporary bundle, for a copy from directory to directory.

    Raises:
        JaxcacheError: ``io-error``: no room in the directory for temporary files.
    """
    exported = write_stream(store, plan, level=_FAST_LEVEL, allow_large=False)
    with exported.stream:
        # Its entries were checked as they were read, and nobody else can write to it.
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

    Of a path it is decided by what is there; where nothing is, and of a URL, by the suffix.
    """
    named = location.endswith(SUFFIX)
    if is_remote(location):
        return named
    return not os.path.isdir(location) and (named or location == "-" or os.path.lexists(location))


#: Endings of archives, which a bundle is not.
_OTHER_FORMATS = (".tar", ".gz", ".tgz", ".zip", ".bz2", ".xz", ".zst", ".7z")


def check_file_name(path: str) -> None:
    """Refuse to overwrite anything but a bundle.

    Raises:
        UsageError: ``exists``, ``bad-path``.
        JaxcacheError: ``io-error``: nothing can be written there.
    """
    if path == "-":
        raise UsageError("- is not a file", hint="jaxcache export - writes to standard output")
    check_file_path(path)
    if path.lower().endswith(_OTHER_FORMATS):
        raise UsageError(
            f"{path} is the name of another format: a bundle ends in .jxb",
            code="bad-path",
            hint="name it .jxb; jaxcache import reads it, and tar and unzip do not",
        )
    if os.path.lexists(path) and not is_bundle(path):
        raise UsageError(
            f"{path} exists and is not a bundle",
            code="exists",
            hint="name another file, or remove it",
        )
    if reason := cannot_make(path):
        raise JaxcacheError(f"cannot write {path}: {reason}", code="io-error")


def spool(source: BinaryIO, name: str = "standard input") -> Bundle:
    """Read a bundle from a pipe or a bucket into a nameless temporary file, and open it.

    Raises:
        BundleError
        JaxcacheError: ``io-error``.
    """
    start = source.read(len(MAGIC))
    if start != MAGIC:
        raise BundleError(f"{name} is not a bundle", code="not-a-bundle", hint=None)
    return _keep(itertools.chain([start], read_chunks(source)), name)


def _keep(chunks: Iterable[bytes], name: str) -> Bundle:
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
        bundle = read_bundle(file, name)
        opened.pop_all()
    return bundle
