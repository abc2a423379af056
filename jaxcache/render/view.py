"""Views: results as data that the command line prints in any format, and as JSON documents.

A document has the names and units of the JSON contract. It follows from its class, a dataclass or
NamedTuple: the fields in their order, times (``*_ns``) as RFC 3339 under ``*_at``, durations as
floats, missing and infinite values null. Text that is not valid Unicode, or would act on a
terminal, is escaped as ``\\xNN``. :data:`SHAPES` holds the exceptions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from jaxcache.units import printable, rfc3339


class Column(NamedTuple):
    """One column of rows, in a pipe and on a terminal.

    Attributes:
        value: what a pipe gets of a row; None where the column is for people only.
        text: what a terminal shows of a row; None where the column is for pipes only.
        elastic: gives way, with an ellipsis, where the width does not suffice.
        least: what it keeps in any case, while others can give way.
        cut: where the ellipsis goes; in the middle of a key it leaves both module and hash.
        spare: left out where a column that is cut at its end would get less than ``least``.
        style: of every cell.
        styles: of the cells with these texts: what is good, what is wrong.
    """

    title: str
    value: Callable[[Any], Any] | None = None
    text: Callable[[Any], str] | None = None
    right: bool = False
    elastic: bool = False
    least: int = 8
    cut: Literal["middle", "end"] = "middle"
    spare: bool = False
    style: str = ""
    styles: Mapping[str, str] = MappingProxyType({})


class Table(NamedTuple):
    """Rows for people.

    Attributes:
        below: lines under each row.
        limit: the most rows to show; a line contains the number of the others.
        more: how to see the others.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    below: Callable[[Any], Iterable[str | None]] | None = None
    limit: int | None = None
    more: str = ""


class Line(NamedTuple):
    """A text, broken between words where it is too long; a word is never broken.

    Attributes:
        lead: what stands before it; further lines begin under the text.
        whole: not broken at all, because it is copied.
    """

    text: str
    lead: str = ""
    style: str = ""
    lead_style: str = ""
    whole: bool = False


Block = Table | Line | str


class View(NamedTuple):
    """A result with everything that printing it takes; what is not printed is not made.

    Attributes:
        document: what ``--json`` prints, see :mod:`jaxcache.render.view`.
        rows: what a pipe gets, one line each.
        columns: of ``rows``; without any, a row is a sequence of values.
        keys: what ``--quiet`` prints; None is left out.
        records: what ``--jsonl`` prints, one line each; default: the rows.
        page: what a terminal shows; default: a table of the rows.
        notes: what goes to standard error, for people.
        headline: what a terminal shows before the page; beside rows in a pipe it is a note.
    """

    document: Any
    rows: Iterable[Any] = ()
    columns: Sequence[Column] = ()
    keys: Iterable[str | None] = ()
    records: Iterable[Any] | None = None
    page: Iterable[Block] | None = None
    notes: Iterable[Block] = ()
    headline: str = ""


SCHEMA_VERSION = 1

Document = dict[str, Any]

#: By class: the fields that are left out (``-name``), or all fields of the document in their
#: order. ``name=path`` takes an attribute of another name, ``name=#path`` the number of things in
#: it, ``*path`` every field of a part. ``name{…}`` is an object of further fields, and
#: ``name=path{…}`` one of the attribute's, or a list of such objects where that is a sequence.
SHAPES = {
    "CiKey": "key restore_keys components{*environment environment_digest=environment.digest "
    "files_digest=files.digest files=#files.names}",
    "Comparison": "module=right.module left_key=left.key right_key=right.key "
    "outcome=right.outcome source=right.source compared_with differences",
    "Diagnosis": "cache_dir=facts.cache.path interpreter=facts.interpreter no_jax "
    "settings=facts.settings entries=#facts.cache.entries decoded=#facts.cache.contents findings",
    "Diff": "cache_dir=left.location left right equal same only_left only_right differing",
    "Difference": "-title -brief",
    "ChurnCause": "-title",
    "Entry": "-jaxlib",
    "Finding": "trap severity seen cost fix files upstream",
    "GraphEntry": "-dependants -jaxlib",
    "GraphDetails": "cache_dir entry nearest=nearest{key=left.key differences} tier=entry.module "
    "root=graph.root seconds{total=graph.seconds forward=graph.forward_seconds "
    "backward=graph.backward_seconds} source_key=graph.source_key bundled=contents.bundled "
    "files=files{file=name size_bytes created_at=mtime_ns} missing "
    "environment=contents.environment globals=contents.globals "
    "key_components=contents.components{component=name hash text} problems",
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
    "function=request.function file=request.file line=request.line components=request.components "
    "compile_options=options{num_replicas num_partitions flags_changed}",
    "Interpreter": "-flags -cpu_features",
    "Listing": "-cache_size_bytes -record_bytes -cache_entries",
    "Memory": "argument_bytes output_bytes temp_bytes alias_bytes constant_bytes code_bytes "
    "total_bytes",
    "DiffEntry": "key size_bytes payload_bytes payload_sha256 compile_seconds",
    "BundleItem": "key size_bytes payload_bytes payload_sha256 compile_seconds",
    "ContentMismatch": "key=left.key payload_differs left right",
    "Process": "process pid process_id python=executable jax jaxlib cache_dir settings counters",
    "ProfileDifference": "component left=target right=here meaning fix prevents",
    "Problem": "key file kind detail",
    "LedgerRecord": "-key -entry_bytes -removed_ns -arrived_ns -file_inode -compiled_ns -run "
    "-sketch",
    "Removal": "key file=file.name kind size_bytes compile_seconds last_used_at reason",
    "Report": "cache_dir modules functions processes summary{compile_requests hits misses hit_rate "
    "written skipped uncacheable refused errors phases longest compile_seconds saved_seconds "
    "wall_seconds} notes unobserved timed_out interrupted script_exit_code",
    "Restoration": "cache_dir dry_run restored=restored{key file size_bytes=info.size_bytes} "
    "left=left{key=entry.key file=entry.info.name reason}",
    "RestoreResult": "cache_dir source cache_hit=hit lookup_only=done.dry_run entries found "
    "present written left_out untrusted stored_seconds outlook=outlooks.counts misses trouble "
    "failed=done.failed{file=name detail}",
    "SaveResult": "cache_dir=plan.cache_dir target=plan.target dry_run saved why=plan.why "
    "finished=plan.finished key=plan.key digest=plan.digest entries=#plan.kept "
    "new=plan.usage.new.key used=plan.usage.used.key unused=plan.usage.unused.key "
    "unknown=plan.usage.unknown.key witness=plan.usage.witness dropped=plan.dropped "
    "saved_seconds=plan.usage.saved_seconds new_seconds=plan.usage.new_seconds written "
    "size_bytes pruned left_out=left_out.file failed",
    "SealResult": "sealed=sealed{key=entry.key codec=entry.codec size_bytes=entry.size_bytes "
    "size_bytes_after} skipped=skipped{key=entry.key size_bytes=entry.size_bytes reason} "
    "failed=failed{key=entry.key size_bytes=entry.size_bytes reason} problems",
    "EntryDetails": "cache_dir entry program=contents.program source=contents.source "
    "memory=contents.memory device=contents.device compile_options=contents.compile_options "
    "format=contents.format written_in_cache_dir=contents.written_in_cache_dir provenance "
    "differing_arguments problems",
    "SkippedRemoval": "key=removal.key file=removal.file.name why detail",
    "Step": "key file=name size_bytes=item.size_bytes replaces_damaged",
    "Stats": "cache_dir total size_bytes directory_bytes sealed orphan_atimes never_used files "
    "by_platform by_codec by_age by_module problems",
    "Summary": "-unread -is_least",
    "TierRefusal": "tier reason entries refused_at=at_ns",
    "TorchBreak": "reason detail file line compile_id process",
    "TorchReport": "cache_dir graphs=modules compiles graph_breaks processes summary{aotautograd "
    "fxgraph compiles=#compiles recompiles graph_breaks=broken_graphs compile_seconds "
    "saved_seconds wall_seconds} notes unobserved timed_out interrupted script_exit_code",
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
    if kind.__name__ in SHAPES or hasattr(kind, "_fields") or hasattr(kind, "__dataclass_fields__"):
        return {n: to_document(v) for n, v in fields_of(value).items()}
    return [to_document(v) for v in value]


class ShapeField(NamedTuple):
    """One field of a document."""

    name: str
    """Empty for every field of a part."""
    path: str
    """Of the attribute; empty for an object of the same value."""
    counts: bool = False
    """Whether the number of things is meant."""
    parts: "tuple[ShapeField, ...]" = ()
    """The fields of an object."""


def shape_of(kind: type) -> tuple[ShapeField, ...]:
    """Return the fields of the document of a class."""
    text = SHAPES.get(kind.__name__, "-")
    if text.startswith("-"):
        from dataclasses import fields  # which text alone does without

        out = {word[1:] for word in text.split()}
        names = getattr(kind, "_fields", None) or [f.name for f in fields(kind)]
        return tuple(
            ShapeField(f"{n[:-3]}_at" if n.endswith("_ns") else n, n) for n in names if n not in out
        )
    levels: list[list[ShapeField]] = [[]]
    for word in text.replace("{", "= { ").replace("}", " } ").split():
        if word == "{":
            levels.append([])
        elif word == "}":
            parts = tuple(levels.pop())
            levels[-1][-1] = levels[-1][-1]._replace(parts=parts)
        elif word.startswith("*"):
            levels[-1].append(ShapeField("", word[1:]))
        else:
            name, equals, path = word.partition("=")
            if not equals:
                path = f"{name[:-3]}_ns" if name.endswith("_at") else name
            levels[-1].append(ShapeField(name, path.strip("#="), path.startswith("#")))
    return tuple(levels[0])


def fields_of(value: Any) -> Document:
    """Return the fields of a document with the values that they are made of."""
    kind = type(value)
    if (reader := _READERS.get(kind)) is None:
        reader = _READERS[kind] = _make_reader(shape_of(kind))
    return reader(value)


def versioned(document: Document) -> Document:
    """Return a document as it stands alone, with the version of the contract."""
    return {"schema_version": SCHEMA_VERSION, **document}


_READERS: dict[type, Callable[[Any], Document]] = {}


def _make_reader(shape: tuple[ShapeField, ...]) -> Callable[[Any], Document]:
    getters = [(field.name, _make_getter(field)) for field in shape]

    def read(value: Any) -> Document:
        document: Document = {}
        for name, get in getters:
            if name:
                document[name] = get(value)
            else:
                document |= fields_of(get(value))
        return document

    return read


def _make_getter(field: ShapeField) -> Callable[[Any], Any]:
    read = _make_reader(field.parts)
    if not field.path:
        return read
    get = _through_none(field.path) if "." in field.path else attrgetter(field.path)
    convert: Callable[[Any], Any]
    if field.parts:
        convert = lambda v: [*map(read, v)] if isinstance(v, tuple | list) else read(v)  # noqa: E731
    elif field.name.endswith("_at"):
        convert = rfc3339
    elif field.name.endswith("_seconds"):
        convert = float
    elif field.counts:
        convert = len
    else:
        return get
    return lambda value: None if (found := get(value)) is None else convert(found)


def _through_none(path: str) -> Callable[[Any], Any]:
    """Return a getter of a path: None after what is None, a list after what is a sequence."""
    first, _, later = path.partition(".")
    if not later:
        return attrgetter(first)
    inner = _through_none(later)

    def get(value: Any) -> Any:
        part = getattr(value, first)
        if type(part) in (tuple, list):
            return [*map(inner, part)]
        return None if part is None else inner(part)

    return get
