"""Results as JSON documents, in the names and units of the JSON contract.

A document follows from its class, a dataclass or NamedTuple: the fields in their order, times
(``*_ns``) as RFC 3339 under ``*_at``, durations as floats, missing and infinite values null. Text
that is not valid Unicode, or would act on a terminal, is escaped as ``\\xNN``. :data:`SHAPES` holds
the exceptions.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from operator import attrgetter
from typing import Any

from jaxcache.units import printable, rfc3339

SCHEMA_VERSION = 1

Document = dict[str, Any]

#: By class: the fields that are left out (``-name``), or all fields of the document in their
#: order. ``name=path`` takes an attribute of another name, ``*path`` every field of a part.
SHAPES = {
    "Comparison": "module=right.module left_key=left.key right_key=right.key "
    "outcome=right.outcome source=right.source compared_with differences",
    "Diff": "cache_dir=left.location left right equal same only_left only_right differing",
    "Difference": "-title -brief",
    "ChurnCause": "-title",
    "Entry": "-jaxlib",
    "Finding": "trap severity seen cost fix mendable files upstream",
    "GraphEntry": "-dependants -jaxlib",
    "Group": "name *summary last_used_at",
    "Host": "python jax=machine.jax_version jaxlib=machine.jaxlib_version "
    "codec=machine.codec platform=origin.platform "
    "target=origin.target",
    "RecipeRow": "module=request.module key=request.key hash=request.hash bytecode_bytes "
    "compile_seconds=request.compile_seconds occurrences=request.occurrences "
    "platform=environment.platform environment=request.environment "
    "process_id=environment.process_id device_ids=request.device_ids "
    "device_shape=request.device_shape executable_device_ids=request.executable_device_ids "
    "callbacks=request.callbacks refusal doubts=request.doubts stubbed=request.stubbed "
    "function=request.function file=request.file line=request.line components=request.components",
    "Interpreter": "-flags -cpu_features",
    "Listing": "-cache_size_bytes -ledger_bytes -cache_entries",
    "Memory": "argument_bytes output_bytes temp_bytes alias_bytes constant_bytes code_bytes "
    "total_bytes",
    "DiffEntry": "key size_bytes payload_bytes payload_sha256 compile_seconds",
    "BundleItem": "key size_bytes payload_bytes payload_sha256 compile_seconds",
    "ContentMismatch": "key=left.key payload_differs left right",
    "Process": "process pid process_id python=executable jax jaxlib cache_dir settings counters",
    "ProfileDifference": "component left=target right=here meaning fix prevents",
    "Problem": "key file kind detail",
    "LedgerRecord": "-key -removed_ns -arrived_ns -file_inode -compiled_ns -run -sketch",
    "Removal": "key file=file.name kind size_bytes compile_seconds last_used_at reason",
    "EntryDetails": "cache_dir entry program=contents.program source=contents.source "
    "memory=contents.memory device=contents.device compile_options=contents.compile_options "
    "format=contents.format written_in_cache_dir=contents.written_in_cache_dir provenance "
    "differing_arguments problems",
    "SkippedRemoval": "key=removal.key file=removal.file.name why detail",
    "Step": "key file=name size_bytes=item.size_bytes replaces_damaged",
    "Stats": "cache_dir total size_bytes directory_bytes sealed orphan_atimes files by_platform "
    "by_codec by_age by_module problems",
    "Summary": "-unread",
    "TierRefusal": "tier reason entries refused_at=at_ns",
    "TorchBreak": "reason detail file line compile_id process",
    "TrustedKey": "name public_key=text",
    "Use": "pid executable cache_dir=opened jax_compilation_cache_dir=setting "
    "jax_enable_compilation_cache=enabled live",
}
_AS_IT_IS = (type(None), bool, int)


def to_document(value: Any) -> Any:
    """Turn a result, or anything made of results, into what ``json`` writes."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is float:
        return value if isfinite(value) else None  # JSON has no infinity
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(k)): to_document(v) for k, v in value.items()}
    if kind.__name__ in SHAPES or hasattr(kind, "_fields") or is_dataclass(value):
        return {n: to_document(v) for n, v in fields_of(value).items()}
    return [to_document(v) for v in value]


def fields_of(value: Any) -> Document:
    """Return the fields of a document with the values that they are made of."""
    kind = type(value)
    if (reader := _READERS.get(kind)) is None:
        reader = _READERS[kind] = _make_reader(kind)
    return reader(value)


def versioned(document: Document) -> Document:
    """Return a document as it stands alone, with the version of the contract."""
    return {"schema_version": SCHEMA_VERSION, **document}


_READERS: dict[type, Callable[[Any], Document]] = {}


def _make_reader(kind: type) -> Callable[[Any], Document]:
    words = SHAPES.get(kind.__name__, "-").split()
    if words[0].startswith("-"):
        out = {w[1:] for w in words}
        all_names = getattr(kind, "_fields", None) or [f.name for f in fields(kind)]
        names = [name for name in all_names if name not in out]
        words = [f"{n[:-3]}_at" if n.endswith("_ns") else n for n in names]
    readers = [(w.partition("=")[0], _make_getter(w)) for w in words]

    def read(value: Any) -> Document:
        document: Document = {}
        for name, get in readers:
            part = get(value)
            if name.startswith("*"):
                document |= fields_of(part)
            else:
                document[name] = part
        return document

    return read


def _make_getter(word: str) -> Callable[[Any], Any]:
    name, _, path = word.partition("=")
    path = path or name.removeprefix("*")
    if name.endswith("_at"):
        get_ns = attrgetter(path if path.endswith("_ns") else f"{path[:-3]}_ns")
        return lambda value: None if (ns := get_ns(value)) is None else rfc3339(ns)
    get = _through_none(path) if "." in path else attrgetter(path)
    if name.endswith("_seconds"):
        return lambda value: None if (seconds := get(value)) is None else float(seconds)
    return get


def _through_none(path: str) -> Callable[[Any], Any]:
    """Return a getter of an attribute of an attribute, None where that one is None."""
    first, _, later = path.partition(".")
    inner = attrgetter(later)
    return lambda value: None if (part := getattr(value, first)) is None else inner(part)
