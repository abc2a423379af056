"""Recipes as data: processes, what each of them requested, the JSON of it, and what is refused."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar

from jaxcache.cache import allow_lists
from jaxcache.cache.archive import ArchiveError, parse_manifest
from jaxcache.cache.untrusted_json import Digest, FieldError, Many, Scalar, Seconds, Text, build
from jaxcache.core.machine import read_release
from jaxcache.core.names import parse_key
from jaxcache.entry.wire import WireError

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
