"""JSON Schemas of the documents of ``--json``, from the classes that the documents are made of.

``documents.py`` names the type of each document, and ``meanings.toml`` what each field means. A schema
admits fields and values that it does not name, because later releases add some (docs/promise.md).
"""

import functools
import importlib
import json
import pkgutil
import tomllib
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import jaxcache
from jaxcache.cli.metering import REMOTE_COMMANDS
from jaxcache.render.view import SCHEMA_VERSION, ShapeField, shape_of
from tools.generate.documents import DOCUMENTS, ERROR, Metered, Time

Schema = dict[str, Any]
BASE = "https://raw.githubusercontent.com/jaxcache/jaxcache/main/docs/schemas/"
#: By a class or command, and for ``every`` other one: what each field means.
MEANINGS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("meanings.toml").read_text("utf-8")
)
#: What runs in the user's Python, and needs a jax.
_FOREIGN = (
    "jaxcache.injected",
    "jaxcache.inprocess",
    "jaxcache.live",
    "jaxcache.warm.compiling.cl",
)
_PLAIN: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
    Time: {"type": "string", "format": "date-time"},
    Any: {},
    object: {},
}


def schemas() -> dict[str, str]:
    """Return the text of each schema by the name of its file."""
    texts = {}
    for name, kind in {**DOCUMENTS, "error": ERROR}.items():
        file = f"{name.replace(' ', '-')}.json"
        schema = _Maker(name).document(kind)
        texts[file] = json.dumps(schema, indent=1, sort_keys=True) + "\n"
    return texts


def field_tables() -> str:
    """Return a table of all fields for each document, as the site shows them."""
    commands: dict[str, list[str]] = {}
    for file, text in schemas().items():
        schema = json.loads(text)
        rows = "\n".join(dict.fromkeys(_rows(schema, schema["$defs"], "")))
        commands.setdefault(rows, []).append(file.removesuffix(".json"))
    parts = ["## Fields"]
    for rows, names in commands.items():
        title = ", ".join(f"`{name}`" for name in names)
        parts.append(f"### {title}\n\n| field | type | meaning |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _rows(schema: Schema, definitions: Schema, path: str) -> Iterator[str]:
    """Yield a row for each field below a schema; a class inside itself is not entered again."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        inner = {n: s for n, s in definitions.items() if n != name}
        schema, definitions = definitions.get(name, {}), inner
    for variant in schema.get("anyOf", ()):
        yield from _rows(variant, definitions, path)
    if "items" in schema:
        yield from _rows(schema["items"], definitions, f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _rows(schema["additionalProperties"], definitions, f"{path}.*")
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}".removeprefix(".")
        meaning = field.get("description", "")
        values = [*field.get("examples", ()), *field.get("items", {}).get("examples", ())]
        if any(str(value) not in meaning for value in values):
            meaning += f" ({', '.join(map(str, values))})"
        meaning = meaning.replace("<", "&lt;").replace("|", "\\|")
        yield f"| `{here}` | {_type_of(field)} | {meaning} |"
        yield from _rows(field, definitions, here)


def _type_of(field: Schema) -> str:
    """Return the type of a field in words."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_type_of, field["anyOf"])))
    if "const" in field:
        return str(field["const"])
    kind = field.get("type", "object" if "$ref" in field else "any")
    return kind if isinstance(kind, str) else " or ".join(sorted(kind, key="null".__eq__))


class _Maker:
    """Makes one schema, and collects the definitions that it refers to."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.definitions: dict[str, Schema] = {}

    def document(self, kind: Any) -> Schema:
        name = self.command
        metered = [Metered] if name in REMOTE_COMMANDS else []
        variants = [self.object_of(k, *metered) for k in _members(kind)]
        for variant in variants:
            if name != "error":
                variant["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
                variant["required"] = sorted({*variant["required"], "schema_version", "cache_dir"})
                variant["properties"].setdefault("cache_dir", {"type": ["string", "null"]})
                variant["properties"] = self._described("document", variant["properties"])
        body = variants[0] if len(variants) == 1 else {"anyOf": variants}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"{BASE}{name.replace(' ', '-')}.json",
            "title": f"jaxcache {name} --json" if name != "error" else "an error under --json",
            "$defs": self.definitions,
            **body,
        }

    def schema(self, kind: Any) -> Schema:
        """Return the schema of a type."""
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return (
                self.object_of(kind) if is_typeddict(arguments[-1]) else self.schema(arguments[0])
            )
        if origin is NotRequired:
            return self.schema(arguments[0])
        if origin is Literal:
            return {"type": "string", "examples": list(arguments)}
        if origin in (Union, types.UnionType):
            return _any_of([self.schema(member) for member in arguments])
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"type": "string", "examples": [member.value for member in kind]}
        if origin is tuple and arguments[1:] != (...,):
            return {"type": "array", "prefixItems": [self.schema(a) for a in arguments]}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.schema(arguments[1])}
        if isinstance(origin, type) and issubclass(origin, Collection | Iterable):
            return {"type": "array", "items": self.schema(arguments[0])}
        return self._reference(kind)

    def _reference(self, kind: Any) -> Schema:
        name = kind.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a type may hold itself
            self.definitions[name] = self.object_of(kind)
        return {"$ref": f"#/$defs/{name}"}

    def object_of(self, *kinds: Any) -> Schema:
        """Return the schema of an object with the fields of several classes."""
        parts = [part for kind in kinds for part in _parts(kind)]
        properties: dict[str, Schema] = {}
        optional: set[str] = set()
        for part in parts:
            if is_typeddict(part):
                hints = get_type_hints(part, include_extras=True)
                fields = {name: self.schema(hint) for name, hint in hints.items()}
                properties |= self._described(part.__name__, fields)
                optional |= part.__optional_keys__
            else:
                properties |= self._fields(part)
        return _object(properties, optional)

    def _fields(self, kind: type, shape: tuple[ShapeField, ...] | None = None) -> dict[str, Schema]:
        """Return the fields of a class as ``render/view.py`` writes them."""
        properties: dict[str, Schema] = {}
        for field in shape_of(kind) if shape is None else shape:
            name = field.name
            if not field.path:
                properties[name] = _object(self._fields(kind, field.parts))
                continue
            hint = _attribute(kind, field.path)
            if field.parts:
                properties[name] = self._parts_of(hint, field.parts)
            elif not name:
                properties |= self._fields(hint)
            elif name.endswith("_at"):
                properties[name] = self._retype(hint, Time)
            elif name.endswith("_seconds"):
                properties[name] = self._retype(hint, float)
            else:
                properties[name] = self._retype(hint, int) if field.counts else self.schema(hint)
        return self._described(kind.__name__, properties)

    def _described(self, owner: str, properties: dict[str, Schema]) -> dict[str, Schema]:
        """Add to each field what it means: in its class, in this command, or everywhere."""
        for table in (MEANINGS.get(name, {}) for name in (owner, self.command, "every")):
            for name in table.keys() & properties.keys():
                properties[name] = {"description": table[name], **properties[name]}
        return properties

    def _parts_of(self, hint: Any, shape: tuple[ShapeField, ...]) -> Schema:
        """Return the schema of an attribute of which some fields are shown, or of each in a list."""
        kinds = [k for k in _members(hint) if k is not type(None)]
        if get_origin(kinds[0]) in (tuple, list):
            return {"type": "array", "items": self._parts_of(get_args(kinds[0])[0], shape)}
        schema = _object(self._fields(kinds[0], shape))
        return _any_of([schema, {"type": "null"}]) if len(kinds) < len(_members(hint)) else schema

    def _retype(self, kind: Any, shown: Any) -> Schema:
        """Return the schema of a number as it is shown, null where it may be missing."""
        return self.schema(shown | None if type(None) in _members(kind) else shown)


def _object(properties: dict[str, Schema], optional: Collection[str] = ()) -> Schema:
    required = sorted(properties.keys() - set(optional))
    return {"type": "object", "properties": properties, "required": required}


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Annotated else (kind,)


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _any_of(schemas: list[Schema]) -> Schema:
    """Join schemas: plain types as a list, anything else by ``anyOf``."""
    if all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        return {"type": sorted(schema["type"] for schema in schemas)}
    return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]


def _attribute(kind: Any, path: str) -> Any:
    """Return the type of an attribute by its path; optional where a part of the path is."""
    first, _, later = path.partition(".")
    hint = _hints(kind).get(first)
    if hint is None:
        accessor = getattr(kind, first)
        if not isinstance(accessor, property | functools.cached_property):
            return type(accessor)
        function = getattr(accessor, "fget", None) or accessor.func
        hint = _typed(function)["return"]
    if not later:
        return hint
    members = _members(hint)
    if get_origin(hint) in (tuple, list):
        return list[_attribute(get_args(hint)[0], later)]  # type: ignore[misc]
    inner = _attribute(next(m for m in members if m is not type(None)), later)
    return inner | None if type(None) in members else inner


def _hints(kind: Any) -> dict[str, Any]:
    assert is_dataclass(kind) or hasattr(kind, "_fields"), kind
    return _typed(kind)


def _typed(subject: Any) -> dict[str, Any]:
    try:
        return get_type_hints(subject, include_extras=True)
    except NameError:  # an import for types alone
        return get_type_hints(subject, localns=_namespace(), include_extras=True)


@functools.cache
def _namespace() -> dict[str, Any]:
    """Return every class of the package by name: no public name is used twice."""
    names: dict[str, Any] = {}
    for found in pkgutil.walk_packages(jaxcache.__path__, "jaxcache."):
        if not found.name.startswith(_FOREIGN):
            names |= vars(importlib.import_module(found.name))
    return names
