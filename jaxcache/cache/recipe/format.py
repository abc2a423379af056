"""The file of a recipe, byte by byte as docs/recipe.md has it; and the rows listed of it.

A header, and one zstd frame. The frame holds the manifest, then the blobs it speaks of, one after
the other: modules that resemble each other, and the paths that both they and the manifest name, are
stored once.
"""

import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from jaxcache.cache import archive
from jaxcache.cache.recipe import model
from jaxcache.cache.selection import read_sort, select_by_keys
from jaxcache.core.system import open_regular
from jaxcache.entry import zstd
from jaxcache.entry.contents import XlaCompileOptions
from jaxcache.entry.options import read_options
from jaxcache.entry.wire import Budget, WireError

MAGIC = b"\x89JXR\r\n\x1a\n"
VERSION = 1
SUFFIX = ".recipe"
#: Magic, version, reserved, length of the manifest, length of the content, length of the frame,
#: SHA-256 of the frame; little-endian.
_HEADER = struct.Struct("<8sHHIQQ32s")
HEADER_BYTES = _HEADER.size
KIND = archive.ArchiveKind("recipe", MAGIC, VERSION, _HEADER, model.RecipeError)
_MAX_MANIFEST_BYTES = 256 << 20
#: What is decompressed to a temporary file at the most.
_MAX_CONTENT_BYTES = 16 << 30
#: Beyond this size the slowest levels take minutes and gain little.
_PATIENT_BYTES = 64 << 20
_PATIENT_LEVEL = 19
_HASTY_LEVEL = 9

ReadBlob = Callable[[str], bytes]


def encode_recipe(recipe: model.Recipe, read_blob: ReadBlob) -> Iterator[bytes]:
    """Yield the bytes of a recipe; equal recipes give equal bytes, in any order of recording.

    Args:
        read_blob: returns the bytes of a blob by the SHA-256 that requests refer to.
    """
    recipe = sort_recipe(recipe)
    order = dict.fromkeys([r.bytecode for r in recipe.requests])
    order |= dict.fromkeys(sorted({r.options for r in recipe.requests}))
    blobs = [(digest, len(read_blob(digest))) for digest in order]
    manifest = model.encode_manifest(recipe, blobs)
    content_bytes = len(manifest) + sum(size for _, size in blobs)
    level = _PATIENT_LEVEL if content_bytes <= _PATIENT_BYTES else _HASTY_LEVEL
    names = zstd.library.CompressionParameter
    parameters = {names.window_log: archive.WINDOW_LOG, names.enable_long_distance_matching: 1}
    with tempfile.TemporaryFile() as frame:
        packer = archive.Packer(
            frame, level, parameters if content_bytes > 1 << 23 else {}, content_bytes
        )
        for piece in (manifest, *(read_blob(name) for name, _ in blobs)):
            packer.add(piece)
        packer.finish()
        yield _HEADER.pack(
            MAGIC, VERSION, 0, len(manifest), content_bytes, packer.packed_bytes, packer.digest
        )
        frame.seek(0)
        yield from archive.read_chunks(frame)


def sort_recipe(recipe: model.Recipe) -> model.Recipe:
    """The same recipe in the one order that a file has: by environment, module, then key."""
    place = sorted(range(len(recipe.environments)), key=lambda i: repr(recipe.environments[i]))
    new = {old: number for number, old in enumerate(place)}
    moved = (replace(r, environment=new[r.environment]) for r in recipe.requests)
    return replace(
        recipe,
        environments=tuple(recipe.environments[i] for i in place),
        requests=tuple(sorted(moved, key=_order)),
    )


def _order(request: model.Request) -> tuple[str, ...]:
    return (
        request.module,
        str(request.environment).zfill(9),
        request.key or "",
        request.bytecode,
        request.options,
        repr(request),
    )


def is_recipe(path: str) -> bool:
    """Return whether a file begins like a recipe."""
    return KIND.is_at(path)


class RecipeFile:
    """A recipe that has been read and checked, with its blobs in a nameless temporary file.

    Args:
        path: of the file.

    Raises:
        RecipeError: it cannot be read, is not a recipe, or is damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._content: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        try:
            with open_regular(path) as file:
                self.size_bytes = os.fstat(file.fileno()).st_size
                self.digest, manifest_bytes = self._unpack(file)
            self._read(manifest_bytes)
        except model.RecipeError as error:
            self.close()
            raise error.about(path) from error
        except OSError as error:
            self.close()
            reason = (error.strerror or str(error)).lower()
            raise model.RecipeError(
                f"cannot read {path}: {reason}", code="no-recipe", hint=None
            ) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RecipeFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary file."""
        self._content.close()

    def blob(self, digest: str) -> bytes:
        """The bytes of a module or of options, by the digest that a request names."""
        at, size_bytes = self._places[digest]
        self._content.seek(at)
        return self._content.read(size_bytes)

    def blob_bytes(self, digest: str) -> int:
        """Return the size of a blob."""
        return self._places[digest][1]

    def _unpack(self, file: BinaryIO) -> tuple[str, int]:
        """Check header and digest, and decompress the frame; its digest, and where blobs begin."""
        reserved, manifest_bytes, content_bytes, frame_bytes, digest = KIND.read_header(file)
        if reserved:
            raise model.RecipeError("has an invalid header")
        if frame_bytes != self.size_bytes - HEADER_BYTES:
            short = frame_bytes > self.size_bytes - HEADER_BYTES
            raise model.RecipeError("is cut off" if short else "unexpected data after its end")
        if manifest_bytes > min(content_bytes, _MAX_MANIFEST_BYTES):
            raise model.RecipeError("announces a larger manifest than any recipe has")
        if content_bytes > _MAX_CONTENT_BYTES:
            raise model.RecipeError("announces more than any recipe holds")
        if archive.hash_range(file, HEADER_BYTES, frame_bytes) != digest:
            raise model.RecipeError("is damaged: its digest does not match")
        for chunk in archive.unpack_range(file, HEADER_BYTES, frame_bytes, KIND):
            if self._content.tell() + len(chunk) > content_bytes:
                raise model.RecipeError("holds more than it announces")
            self._content.write(chunk)
        if self._content.tell() != content_bytes:
            raise model.RecipeError("holds less than it announces")
        return digest.hex(), manifest_bytes

    def _read(self, manifest_bytes: int) -> None:
        end = self._content.tell()
        self._content.seek(0)
        manifest = model.RecipeManifest(self._content.read(manifest_bytes))
        at = manifest_bytes
        if at + sum(manifest.blob_sizes) != end:
            raise model.RecipeError("its manifest does not match its content")
        digests = []
        self._places = {}
        for size_bytes in manifest.blob_sizes:
            digests.append(archive.hash_range(self._content, at, size_bytes).hex())
            self._places[digests[-1]] = (at, size_bytes)
            at += size_bytes
        self.recipe = manifest.recipe(digests)


def open_recipe(path: str) -> RecipeFile:
    """Open a recipe; see :class:`RecipeFile`.

    Raises:
        RecipeError
    """
    return RecipeFile(path)


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """One request of a recipe, as far as it can be read without jax."""

    request: model.Request
    environment: model.Environment
    bytecode_bytes: int
    refusal: str | None
    """Why it cannot be compiled; a name in :data:`jaxcache.cache.recipe.model.REFUSALS`."""
    options: XlaCompileOptions | None
    """None where they cannot be read."""

    @property
    def key(self) -> str:
        """The key, or the module's name if it has no key."""
        return self.request.name

    @property
    def module(self) -> str:
        """The module's name."""
        return self.request.module

    @property
    def hash(self) -> str:
        """The hexadecimal part of the key; empty if it has no key."""
        return self.request.hash or ""


def list_recipe(
    file: RecipeFile, *, keys: Sequence[str] = (), sort: str = "key", limit: int | None = None
) -> list[RecipeRow]:
    """The requests of a recipe that fit the KEY arguments.

    Args:
        sort: ``key``, ``size`` or ``compile``, with ``:asc`` or ``:desc``.

    Raises:
        UsageError: no such sort.
        JaxcacheError: ``no-match`` or ``ambiguous-key``.
    """
    name, is_descending = read_sort(sort, {"key": False, "size": True, "compile": True})
    listed = select_by_keys([_listed(r, file) for r in file.recipe.requests], list(keys))
    measures: dict[str, Callable[[RecipeRow], Any]] = {
        "key": lambda x: x.key,
        "size": lambda x: x.bytecode_bytes,
        "compile": lambda x: x.request.compile_seconds or 0.0,
    }
    listed.sort(key=measures[name], reverse=is_descending)
    return listed[:limit]


def _listed(request: model.Request, file: RecipeFile) -> RecipeRow:
    environment = file.recipe.environment_of(request)
    try:
        options = read_options(memoryview(file.blob(request.options)), None, Budget())
    except (WireError, ValueError):
        options = None
    return RecipeRow(
        request,
        environment,
        file.blob_bytes(request.bytecode),
        model.refuse(request, environment, file.blob),
        options and options.compile_options,
    )
