"""Recipes: every compile request of a run, in one file that compiles without the script.

First the content of a recipe as data: processes, what each of them requested, the JSON of it, and
what is refused. Then the file, byte by byte as docs/recipe.md has it, and the rows listed of it: a
header, and one zstd frame. The frame holds the manifest, then the blobs it speaks of, one after the
other: modules that resemble each other, and the paths that both they and the manifest name, are
stored once.
"""

import json
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, BinaryIO, TypeVar

from jaxcache.cache import allow_lists, archive
from jaxcache.cache.archive import ArchiveError, parse_manifest
from jaxcache.cache.selection import read_sort, select_by_keys
from jaxcache.cache.untrusted_json import Digest, FieldError, Many, Scalar, Seconds, Text, build
from jaxcache.core.machine import read_release
from jaxcache.core.names import parse_key
from jaxcache.core.system import open_regular
from jaxcache.core.wire import Budget, WireError
from jaxcache.entry import zstd
from jaxcache.entry.contents import XlaCompileOptions
from jaxcache.entry.options import read_options

#: Larger assignments are damage.
MAX_DEVICES = 1 << 20
Number = Annotated[int, range(MAX_DEVICES)]
LargeNumber = Annotated[int, range(1 << 40)]
_HINT = "get the file again, or record it again: jaxcache warm --record FILE SCRIPT"
T = TypeVar("T")
FORMAT = 1
_MAX_BLOB_BYTES = 1 << 40

#: Settings that JAX hashes, or that change the devices that it hashes, and the type of each.
#: Nothing else of a recipe reaches the environment of a worker.
KEY_SETTINGS: Mapping[str, type] = {
    "jax_compilation_cache_include_metadata_in_key": bool,
    "jax_remove_custom_partitioning_ptr_from_cache_key": bool,
    "jax_mock_gpu_topology": str,
    "jax_mock_num_gpu_processes": int,
}


class RecipeError(ArchiveError):
    """The file is not a recipe, or is damaged or hostile."""

    def __init__(self, message: str, *, hint: str | None = _HINT, code: str = "bad-recipe") -> None:
        super().__init__(message, code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings of one process that enter its keys, and all that starting another takes."""

    jax_version: Text
    jaxlib_version: Text
    platform: Text
    """As JAX's backend names itself: ``cpu``, ``gpu``, ``cuda``, ``tpu``."""
    device_count: Number = 1
    """Devices of this platform in the process."""
    process_count: Number = 1
    process_id: Number = 0
    xla_flags: tuple[Text, ...] = ()
    """The items of ``XLA_FLAGS``, as set."""
    libtpu_init_args: tuple[Text, ...] = ()
    argv_flags: tuple[Text, ...] = ()
    """Command-line items that JAX hashes because they begin with ``--xla``."""
    settings: Mapping[Text, bool | int | str] = field(default_factory=dict)
    """Settings of JAX that enter keys, by JAX's names; those at their defaults are left out."""
    cache_dir: Text | None = None
    """The cache directory; JAX 0.4.36 to 0.10.x hashes it."""
    jaxlib_digest: Text | None = None
    python_version: Text | None = None
    platform_version: Text | None = None
    device_kind: Text | None = None
    topology_fingerprint: Text | None = None
    key_settings: Mapping[Text, Scalar] | None = None
    """The settings of JAX that the environment set and that act on keys, through the modules."""


@dataclass(frozen=True, slots=True)
class Request:
    """One compile, requested any number of times."""

    module: Text
    bytecode: Digest
    """SHA-256 of the StableHLO module as MLIR bytecode."""
    options: Digest
    """SHA-256 of the serialized ``CompileOptionsProto``."""
    environment: Number
    """Index into the environments of the recipe."""
    device_ids: tuple[LargeNumber, ...]
    """The device assignment, row by row."""
    device_shape: tuple[Number, ...]
    """Replicas and partitions, or however JAX has arranged the devices."""
    executable_device_ids: tuple[LargeNumber, ...] | None = None
    """Devices that the executable is for, where they are not just ``device_ids``."""
    key: Text | None = None
    """None where the run ended before JAX had made it, or JAX made none."""
    components: Mapping[Text, Text] = field(default_factory=dict)
    """SHA-256 of each part of the key, by JAX's name for it."""
    callbacks: LargeNumber = 0
    """Host callbacks that the executable was given."""
    refusals: tuple[Text, ...] = ()
    """Why it cannot be compiled again: ``custom-partitioning``, ``pgle``."""
    doubts: tuple[Text, ...] = ()
    """Reasons why the program may ask for another module when it runs; only where it was collected
    without executing."""
    stubbed: bool = False
    """It was answered with zeros and has never been compiled."""
    function: Text | None = None
    file: Text | None = None
    line: Annotated[int, range(1 << 31)] | None = None
    compile_seconds: Seconds | None = None
    occurrences: LargeNumber = 1

    @property
    def name(self) -> str:
        """The key, or the module's name if it has no key."""
        return self.key or self.module

    @property
    def hash(self) -> str | None:
        """The hexadecimal part of the key."""
        parsed = parse_key(self.key) if self.key else None
        return parsed.hash if parsed else None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything but the bytes of the modules and options."""

    environments: tuple[Environment, ...]
    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()
    """Remarks for the reader: a run that ended early, functions that were not reached."""

    def environment_of(self, request: Request) -> Environment:
        """The process that requested it."""
        return self.environments[request.environment]

    @property
    def compile_seconds(self) -> float:
        """The sum of the known compile times, each module once."""
        return math.fsum(r.compile_seconds or 0.0 for r in self.requests)


def encode_manifest(recipe: Recipe, blobs: Sequence[tuple[str, int]]) -> bytes:
    """The manifest in one order, without spaces: equal recipes are equal bytes.

    Args:
        blobs: SHA-256 and size of each, in their order in the file. Requests refer to them by
            position; the digests themselves are not written, because they follow from the bytes.
    """
    position = {digest: number for number, (digest, _) in enumerate(blobs)}
    requests = []
    for request in recipe.requests:
        values = _values(request)
        values["bytecode"] = position[request.bytecode]
        values["options"] = position[request.options]
        if request.key:
            usual = request.key == f"{request.module}-{request.hash}"
            values["key"] = request.hash if usual else request.key
        requests.append(values)
    document = {
        "format": FORMAT,
        "blobs": [size for _, size in blobs],
        "environments": [_values(e) for e in recipe.environments],
        "notes": list(recipe.notes),
        "requests": requests,
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _values(of: Any) -> dict[str, Any]:
    """The fields that are not at their defaults."""
    values = {}
    for spec in fields(of):
        value = getattr(of, spec.name)
        default = spec.default_factory() if callable(spec.default_factory) else spec.default
        if default is MISSING or value != default:
            values[spec.name] = list(value) if isinstance(value, tuple) else value
    return {n: dict(v) if isinstance(v, Mapping) else v for n, v in values.items()}


@dataclass(frozen=True, slots=True)
class _Document:
    """A manifest as it is in the file."""

    blobs: Many[Annotated[int, range(_MAX_BLOB_BYTES)]]
    environments: Many[Environment]
    requests: Many[Any]
    notes: tuple[Text, ...] = ()


class RecipeManifest:
    """A manifest that has been read: its recipe wants the digests of the blobs first."""

    def __init__(self, data: bytes | bytearray) -> None:
        """Read a manifest.

        Raises:
            RecipeError: anything in it is not what :func:`encode_manifest` writes.
        """
        self._document = _build(_Document, parse_manifest(data, RecipeError, "recipe"))
        self.blob_sizes = self._document.blobs

    def recipe(self, digests: Sequence[str]) -> Recipe:
        """Make the recipe.

        Args:
            digests: SHA-256 of each blob, in order.

        Raises:
            RecipeError
        """
        environments = self._document.environments
        for environment in environments:
            _check_environment(environment)
        requests = tuple(_request(row, digests) for row in self._document.requests)
        if not all(request.environment < len(environments) for request in requests):
            raise RecipeError("its manifest has a request of an environment that it does not list")
        return Recipe(environments, requests, self._document.notes)


def _build(kind: type[T], document: object) -> T:
    try:
        return build(kind, document)
    except FieldError as error:
        raise RecipeError(f"in its manifest, {error}") from error


def _check_environment(environment: Environment) -> None:
    if not environment.process_id < environment.process_count:
        raise RecipeError("its manifest has a process beyond the last one")
    for flag in (*environment.xla_flags, *environment.libtpu_init_args, *environment.argv_flags):
        if not flag or any(c.isspace() or c == "\0" for c in flag):
            raise RecipeError(f"its manifest has {flag[:100]!r} that is not a flag")
    for name, chosen in environment.settings.items():
        is_key_setting = type(chosen) is KEY_SETTINGS.get(name)
        if not is_key_setting or not allow_lists.is_allowed_setting(name, chosen):
            raise RecipeError(f"its manifest has a setting {name[:100]!r} that is invalid")


def _request(row: object, digests: Sequence[str]) -> Request:
    values = dict(row) if isinstance(row, dict) else {}
    for name in ("bytecode", "options"):
        number = values.get(name)
        if type(number) is not int or not 0 <= number < len(digests):
            raise RecipeError(f"its manifest has a request whose {name} it does not list")
        values[name] = digests[number]
    request = _build(Request, values)
    if not request.device_ids or _product(request.device_shape) != len(request.device_ids):
        raise RecipeError(
            "its manifest has a device assignment whose shape differs from the declared one"
        )
    return replace(request, key=_whole_key(request)) if request.key is not None else request


def _whole_key(request: Request) -> str:
    """Return the key of a request, of which a manifest may hold the hash alone."""
    text = request.key or ""
    parsed = parse_key(text)
    key = f"{request.module}-{text}" if parsed and not parsed.module else text
    if parse_key(key) is None or "/" in key or "\0" in key:
        raise RecipeError(f"its manifest names {key[:300]!r}, which is not a JAX cache key")
    return key


def _product(shape: Sequence[int]) -> int:
    total = 1
    for length in shape:
        total *= length
        if total > MAX_DEVICES:
            return -1
    return total


#: The first JAX whose executables may have host callbacks that are given to them when loaded.
_CALLBACKS_SINCE = (0, 12)

#: Why a request cannot be compiled from a recipe, in a sentence.
REFUSALS = {
    "host-callbacks": "it calls back into the Python that recorded it; compiled without, it would "
    "make later runs crash on JAX before 0.12",
    "custom-partitioning": "it holds a pointer to a partitioner of the process that recorded it",
    "pgle": "it was compiled with a profile (PGLE), which is not in the recipe; its key is that of "
    "any profile (_resolve_compilation_strategy in jax/_src/compiler.py), and what is made without "
    "would be taken for it",
    "flags-file": "XLA_FLAGS names a file, which is not in the recipe",
    "path-in-flags": "its XLA flags name a path, which need not mean the same here",
    "unknown-option": "it sets a flag or a compile option that may name a file or start a program",
    "unreadable-options": "its compile options cannot be read",
}


def refuse(request: Request, environment: Environment, blob: Callable[[str], bytes]) -> str | None:
    """Return why a request cannot be compiled, a key of :data:`REFUSALS`; None if it can.

    Args:
        blob: gives the bytes of the options.
    """
    for reason in request.refusals:
        if reason in REFUSALS:
            return reason
    if request.callbacks and read_release(environment.jax_version) < _CALLBACKS_SINCE:
        return "host-callbacks"
    flags = (*environment.xla_flags, *environment.libtpu_init_args, *environment.argv_flags)
    if not all(f.startswith("--") for f in flags):
        return "flags-file"
    if any("/" in f and not allow_lists.LEFT_OUT.match(f) for f in flags):
        return "path-in-flags"
    allowed = (
        *(allow_lists.is_allowed_flag(f) for f in environment.xla_flags),
        *(allow_lists.is_allowed_flag(f, tpu=True) for f in environment.libtpu_init_args),
    )
    try:
        if all(allowed) and not any(allow_lists.refused_options(blob(request.options))):
            return None
    except (WireError, ValueError):
        return "unreadable-options"
    return "unknown-option"


MAGIC = b"\x89JXR\r\n\x1a\n"
VERSION = 1
SUFFIX = ".recipe"
#: Magic, version, reserved, length of the manifest, length of the content, length of the frame,
#: SHA-256 of the frame; little-endian.
_HEADER = struct.Struct("<8sHHIQQ32s")
HEADER_BYTES = _HEADER.size
KIND = archive.ArchiveKind("recipe", MAGIC, VERSION, _HEADER, RecipeError)
_MAX_MANIFEST_BYTES = 256 << 20
#: What is decompressed to a temporary file at the most.
_MAX_CONTENT_BYTES = 16 << 30
#: Beyond this size the slowest levels take minutes and gain little.
_PATIENT_BYTES = 64 << 20
_PATIENT_LEVEL = 19
_HASTY_LEVEL = 9

ReadBlob = Callable[[str], bytes]


def encode_recipe(recipe: Recipe, read_blob: ReadBlob) -> Iterator[bytes]:
    """Yield the bytes of a recipe; equal recipes give equal bytes, in any order of recording.

    Args:
        read_blob: returns the bytes of a blob by the SHA-256 that requests refer to.
    """
    recipe = sort_recipe(recipe)
    order = dict.fromkeys([r.bytecode for r in recipe.requests])
    order |= dict.fromkeys(sorted({r.options for r in recipe.requests}))
    blobs = [(digest, len(read_blob(digest))) for digest in order]
    manifest = encode_manifest(recipe, blobs)
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


def sort_recipe(recipe: Recipe) -> Recipe:
    """The same recipe in the one order that a file has: by environment, module, then key."""
    place = sorted(range(len(recipe.environments)), key=lambda i: repr(recipe.environments[i]))
    new = {old: number for number, old in enumerate(place)}
    moved = (replace(r, environment=new[r.environment]) for r in recipe.requests)
    return replace(
        recipe,
        environments=tuple(recipe.environments[i] for i in place),
        requests=tuple(sorted(moved, key=_order)),
    )


def _order(request: Request) -> tuple[str, ...]:
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
        except RecipeError as error:
            self.close()
            raise error.about(path) from error
        except OSError as error:
            self.close()
            reason = (error.strerror or str(error)).lower()
            raise RecipeError(f"cannot read {path}: {reason}", code="no-recipe") from error
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

    def select(
        self, keys: Sequence[str] = (), *, sort: str = "key", limit: int | None = None
    ) -> "list[RecipeRow]":
        """Return the requests that fit the KEY arguments.

        Args:
            sort: ``key``, ``size`` or ``compile``, with ``:asc`` or ``:desc``.

        Raises:
            UsageError: no such sort.
            JaxcacheError: ``no-match`` or ``ambiguous-key``.
        """
        name, is_descending = read_sort(sort, {"key": False, "size": True, "compile": True})
        listed = select_by_keys([_listed(r, self) for r in self.recipe.requests], keys)
        measures: dict[str, Callable[[RecipeRow], Any]] = {
            "key": lambda x: x.key,
            "size": lambda x: x.bytecode_bytes,
            "compile": lambda x: x.request.compile_seconds or 0.0,
        }
        listed.sort(key=measures[name], reverse=is_descending)
        return listed[:limit]

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
            raise RecipeError("has an invalid header")
        if frame_bytes != self.size_bytes - HEADER_BYTES:
            short = frame_bytes > self.size_bytes - HEADER_BYTES
            raise RecipeError("is cut off" if short else "unexpected data after its end")
        if manifest_bytes > min(content_bytes, _MAX_MANIFEST_BYTES):
            raise RecipeError("announces a larger manifest than any recipe has")
        if content_bytes > _MAX_CONTENT_BYTES:
            raise RecipeError("announces more than any recipe holds")
        if archive.hash_range(file, HEADER_BYTES, frame_bytes) != digest:
            raise RecipeError("is damaged: its digest does not match")
        for chunk in archive.unpack_range(file, HEADER_BYTES, frame_bytes, KIND):
            if self._content.tell() + len(chunk) > content_bytes:
                raise RecipeError("holds more than it announces")
            self._content.write(chunk)
        if self._content.tell() != content_bytes:
            raise RecipeError("holds less than it announces")
        return digest.hex(), manifest_bytes

    def _read(self, manifest_bytes: int) -> None:
        end = self._content.tell()
        self._content.seek(0)
        manifest = RecipeManifest(self._content.read(manifest_bytes))
        at = manifest_bytes
        if at + sum(manifest.blob_sizes) != end:
            raise RecipeError("its manifest does not match its content")
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

    request: Request
    environment: Environment
    bytecode_bytes: int
    refusal: str | None
    """Why it cannot be compiled; a name in :data:`jaxcache.cache.recipe.REFUSALS`."""
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


def _listed(request: Request, file: RecipeFile) -> RecipeRow:
    environment = file.recipe.environment_of(request)
    try:
        options = read_options(memoryview(file.blob(request.options)), None, Budget())
    except (WireError, ValueError):
        options = None
    return RecipeRow(
        request,
        environment,
        file.blob_bytes(request.bytecode),
        refuse(request, environment, file.blob),
        options and options.compile_options,
    )
