"""Bring a bundle to its place: a file, a file in parts, or standard output."""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from jaxcache.cache.bundle.export import ExportPlan
from jaxcache.cache.bundle.fields import BundleError
from jaxcache.cache.bundle.format import MAGIC, Bundle, is_bundle, pack_header, read_bundle
from jaxcache.cache.bundle.pack import Exported, write_stream
from jaxcache.cache.bundle.parts import part_name
from jaxcache.cache.trust import sign_header
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.store import check_location, is_remote
from jaxcache.store.atomic import delete_all_abandoned, new_file, open_folder, sync_folder
from jaxcache.store.base import Store

_CHUNK_BYTES = 1 << 20
#: Smaller parts make no sense, and a thousand of them are enough.
_MIN_PART_BYTES = 1 << 16
_MAX_PARTS = 999
_FAST_LEVEL = 1


def bundle_bytes(exported: Exported, private_keys: Sequence[Any] = ()) -> Iterator[bytes]:
    """The bytes of a bundle from front to back, signed with the given keys."""
    header = pack_header(exported.packed_manifest, exported.stream_bytes, len(private_keys))
    yield sign_header(header, private_keys)
    yield exported.packed_manifest
    exported.stream.seek(0)
    while chunk := exported.stream.read(_CHUNK_BYTES):
        yield chunk


def bundle_chunks(bundle: Bundle) -> Iterator[bytes]:
    """The bytes of an opened bundle from front to back, as they are."""
    bundle.file.seek(0)
    while chunk := bundle.file.read(_CHUNK_BYTES):
        yield chunk


def make_in_between(
    store: Store, plan: ExportPlan, *, allow_large: bool = False
) -> tuple[Bundle, Exported]:
    """A bundle that nobody keeps, for a copy from directory to directory.

    Args:
        allow_large: see :class:`jaxcache.cache.gate.Gate`.

    Raises:
        JaxcacheError: ``io-error``: no room in the folder for temporary files.
    """
    exported = write_stream(store, plan, level=_FAST_LEVEL, allow_large=allow_large)
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
            f"{path} is not a file", code="bad-url",
            hint="push and pull, or ci save and ci restore, talk to buckets",
        )  # fmt: skip


def check_target(path: str, *, in_parts: bool = False) -> None:
    """Refuse to overwrite anything but a bundle.

    Args:
        in_parts: also look at the names of its parts.

    Raises:
        UsageError: ``exists``.
    """
    check_file_path(path)
    there = [path] if os.path.lexists(path) and not is_bundle(path) else []
    if in_parts and not is_bundle(part_name(path, 1)):
        numbers = range(1, _MAX_PARTS + 1)
        there += [name for n in numbers if os.path.lexists(name := part_name(path, n))]
    if there:
        raise UsageError(
            f"{there[0]} exists and is no bundle",
            code="exists",
            hint="name another file, or remove it",
        )


def write_file(path: str, chunks: Iterable[bytes], *, split_bytes: int | None = None) -> list[str]:
    """Write a bundle atomically, or in parts of ``split_bytes`` that appear together.

    Returns:
        The names of the files.

    Raises:
        UsageError: ``bad-split``.
        JaxcacheError: ``io-error``; nothing is left behind.
    """
    if split_bytes is not None and split_bytes < _MIN_PART_BYTES:
        raise UsageError(f"parts hold at least {_MIN_PART_BYTES} bytes", code="bad-split")
    try:
        with open_folder(os.path.dirname(path)) as folder, contextlib.ExitStack() as held:
            delete_all_abandoned(folder)
            temps: list[str] = []
            for piece in _pieces(chunks, split_bytes):
                if len(temps) == _MAX_PARTS:
                    raise UsageError(f"more than {_MAX_PARTS} parts", code="bad-split")
                temps.append(held.enter_context(new_file(folder, piece))[0])
            names = [path] if split_bytes is None else _part_names(path, len(temps))
            for temp, name in zip(temps, names, strict=True):
                os.replace(temp, os.path.basename(name), src_dir_fd=folder, dst_dir_fd=folder)
            if path not in names and os.path.lexists(path) and is_bundle(path):
                os.unlink(path)  # it would be read instead of its parts
            sync_folder(folder)
    except OSError as error:
        raise JaxcacheError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}", code="io-error"
        ) from error
    return names


def _part_names(path: str, count: int) -> list[str]:
    number = count + 1
    while is_bundle(part_name(path, 1)) and os.path.exists(stale := part_name(path, number)):
        os.unlink(stale)  # of a longer bundle before
        number += 1
    return [part_name(path, i + 1) for i in range(count)]


def _pieces(chunks: Iterable[bytes], split_bytes: int | None) -> Iterator[Iterable[bytes]]:
    """Cut a stream of bytes into pieces; each must be consumed before the next."""
    if split_bytes is None:
        yield chunks
        return
    rest = iter(chunks)
    held = b""

    def piece(size: int) -> Iterator[bytes]:
        nonlocal held
        while size:
            held = held or next(rest, b"")
            if not held:
                return
            part, held = held[:size], held[size:]
            size -= len(part)
            yield part

    while held or (held := next(rest, b"")):
        yield piece(split_bytes)


def spool(source: BinaryIO) -> Bundle:
    """Read a bundle from a pipe into a nameless temporary file, and open it.

    Raises:
        BundleError
        JaxcacheError: ``io-error``.
    """
    start = source.read(len(MAGIC))
    if start != MAGIC:
        raise BundleError("standard input is no bundle", code="not-a-bundle", hint=None)
    rest = iter(lambda: source.read(_CHUNK_BYTES), b"")
    return _keep(itertools.chain([start], rest), "standard input")


def _keep(chunks: Iterable[bytes], name: str) -> Bundle:
    """A bundle in a nameless temporary file, which is closed with it."""
    try:
        with contextlib.ExitStack() as opened:  # closing flushes, and may fail as well
            file: BinaryIO = opened.enter_context(tempfile.TemporaryFile())
            file.writelines(chunks)
            file.flush()
            bundle = read_bundle(file, name)
            opened.pop_all()
    except OSError as error:
        raise JaxcacheError(
            f"cannot keep the bundle in {tempfile.gettempdir()}: "
            f"{(error.strerror or str(error)).lower()}",
            code="io-error",
            hint="TMPDIR names another folder for temporary files",
        ) from error
    return bundle
