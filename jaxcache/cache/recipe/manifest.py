"""The JSON of a recipe, checked on the way in: nothing in it is believed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from jaxcache.cache.allowed import is_allowed_setting
from jaxcache.cache.recipe.model import Environment, Recipe, RecipeError, Request
from jaxcache.cache.untrusted_json import Fields, parse_json
from jaxcache.core.names import parse_key

FORMAT = 1
#: JSON values take far more memory than their text: so many of them at most.
MAX_VALUES = 4 << 20
_MAX_BLOB_BYTES = 1 << 40
#: Larger assignments are damage.
_MAX_DEVICES = 1 << 20
_MAX_ID = 1 << 40
_MAX_OCCURRENCES = 1 << 40

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


class RecipeManifest:
    """A manifest that has been read: its recipe wants the digests of the blobs first."""

    def __init__(self, data: bytes | bytearray) -> None:
        """Read a manifest.

        Raises:
            RecipeError: anything in it is not what :func:`encode_manifest` writes.
        """
        document = parse_json(data, RecipeError, max_values=MAX_VALUES)
        self._top = Fields(document, "the manifest", RecipeError)
        if (number := self._top.whole("format", 1 << 16)) != FORMAT:
            raise RecipeError(
                f"its manifest has format {number}, and only {FORMAT} is known",
                code="unknown-recipe",
                hint="a newer jaxcache wrote it: upgrade this one",
            )
        self.blob_sizes = self._top.wholes("blobs", _MAX_BLOB_BYTES)

    def recipe(self, digests: Sequence[str]) -> Recipe:
        """Make the recipe.

        Args:
            digests: SHA-256 of each blob, in order.

        Raises:
            RecipeError
        """
        environments = tuple(_environment(v) for v in self._top.items_of("environments"))
        requests = tuple(
            _request(v, digests, len(environments)) for v in self._top.items_of("requests")
        )
        return Recipe(environments, requests, self._top.texts("notes"))


def _environment(value: object) -> Environment:
    read = Fields(value, "an environment", RecipeError)
    process_count = _whole(read, "process_count", 1, _MAX_DEVICES)
    process_id = _whole(read, "process_id", 0, _MAX_DEVICES)
    if not process_id < process_count:
        raise RecipeError("its manifest has a process beyond the last one")
    return Environment(
        jax_version=read.text("jax_version") or "",
        jaxlib_version=read.text("jaxlib_version") or "",
        platform=read.text("platform") or "",
        device_count=_whole(read, "device_count", 1, _MAX_DEVICES),
        process_count=process_count,
        process_id=process_id,
        xla_flags=_flags(read, "xla_flags"),
        libtpu_init_args=_flags(read, "libtpu_init_args"),
        argv_flags=_flags(read, "argv_flags"),
        settings=_settings(read.values.get("settings", {})),
        **{name: read.text(name, optional=True) for name in _ENVIRONMENT_TEXTS},
    )


_ENVIRONMENT_TEXTS = tuple(f.name for f in fields(Environment) if f.type == str | None)


def _flags(read: Fields, name: str) -> tuple[str, ...]:
    flags = read.texts(name)
    if not all(f and not any(c.isspace() or c == "\0" for c in f) for f in flags):
        raise RecipeError(f"its manifest has {name} that are not flags")
    return flags


def _settings(value: object) -> dict[str, bool | int | str]:
    read = Fields(value, "the settings", RecipeError)
    for name, chosen in read.values.items():
        if name not in KEY_SETTINGS or type(chosen) is not KEY_SETTINGS[name]:
            raise RecipeError(f"its manifest has a setting {name[:100]!r} that is invalid")
        if not is_allowed_setting(name, chosen):
            raise RecipeError(f"its manifest has a setting {name} that is invalid")
    return dict(read.values)


def _request(value: object, digests: Sequence[str], environments: int) -> Request:
    read = Fields(value, "a request", RecipeError)
    shape = read.wholes("device_shape", _MAX_DEVICES)
    ids = read.wholes("device_ids", _MAX_ID)
    if not ids or _product(shape) != len(ids):
        raise RecipeError(
            "its manifest has a device assignment whose shape differs from the declared one"
        )
    executable = None
    if "executable_device_ids" in read.values:
        executable = read.wholes("executable_device_ids", _MAX_ID)
    module = read.text("module") or ""
    components = Fields(read.values.get("components", {}), "the components", RecipeError)
    return Request(
        module=module,
        bytecode=digests[read.whole("bytecode", len(digests))],
        options=digests[read.whole("options", len(digests))],
        environment=read.whole("environment", environments),
        device_ids=ids,
        device_shape=shape,
        executable_device_ids=executable,
        key=_read_key(read, module),
        components={name: components.text(name) or "" for name in components.values},
        callbacks=_whole(read, "callbacks", 0, _MAX_OCCURRENCES),
        refusals=read.texts("refusals"),
        doubts=read.texts("doubts"),
        stubbed=read.flag("stubbed"),
        function=read.text("function", optional=True),
        file=read.text("file", optional=True),
        line=read.whole("line", 1 << 31) if "line" in read.values else None,
        compile_seconds=read.seconds("compile_seconds"),
        occurrences=_whole(read, "occurrences", 1, _MAX_OCCURRENCES),
    )


def _read_key(read: Fields, module: str) -> str | None:
    text = read.text("key", optional=True)
    if text is None:
        return None
    key = f"{module}-{text}" if parse_key(text) and not parse_key(text).module else text  # type: ignore[union-attr]
    if parse_key(key) is None or "/" in key or "\0" in key:
        raise RecipeError(f"its manifest names {key[:300]!r}, which is not a JAX cache key")
    return key


def _product(shape: Sequence[int]) -> int:
    total = 1
    for length in shape:
        total *= length
        if total > _MAX_DEVICES:
            return -1
    return total


def _whole(read: Fields, name: str, default: int, below: int) -> int:
    return read.whole(name, below) if name in read.values else default
