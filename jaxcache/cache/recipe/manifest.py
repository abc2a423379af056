"""The JSON of a recipe, checked on the way in: nothing in it is believed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Annotated, Any, TypeVar

from jaxcache.cache.allow_lists import is_allowed_setting
from jaxcache.cache.archive import parse_manifest
from jaxcache.cache.recipe.model import MAX_DEVICES, Environment, Recipe, RecipeError, Request
from jaxcache.cache.untrusted_json import FieldError, Many, Text, build
from jaxcache.core.names import parse_key

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


def encode_manifest(recipe: Recipe, blobs: Sequence[tuple[str, int]]) -> bytes:
    """The manifest in one order, without spaces: equal recipes are equal bytes.

    Args:
        blobs: SHA-256 and size of each, in the order in which they lie in the file. Requests name
            them by their position; the digests themselves are not written, they follow from the
            bytes.
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
        if not is_key_setting or not is_allowed_setting(name, chosen):
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
