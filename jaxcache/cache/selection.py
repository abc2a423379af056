"""The choice of entries: KEY arguments, ``--filter`` and ``--sort``."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple, Protocol, TypeVar

from jaxcache.entry.summary import Entry
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.model import Depth
from jaxcache.units import NS_PER_SECOND, parse_duration_seconds, parse_size_bytes

AnyEntry = TypeVar("AnyEntry", bound=Entry)


class HasKey(Protocol):
    """Something that a KEY argument can pick."""

    @property
    def key(self) -> str: ...

    @property
    def module(self) -> str: ...

    @property
    def hash(self) -> str: ...


_Named = TypeVar("_Named", bound=HasKey)

#: Where a narrow table has cut a key.
_CUT = "…"


#: The shortest prefix that names an entry to be removed.
REMOVAL_PREFIX = 4


def select_by_keys(
    entries: Sequence[_Named], wanted: Sequence[str], *, shortest_prefix: int = 1
) -> list[_Named]:
    """Pick entries by KEY arguments, in the entries' own order; all of them if none is given.

    A KEY is a full key, a unique prefix of a key or of its hash, a key as a narrow table shows it
    (``jit_train…5f3a91c``), the name of a module or of a torch graph's function, or a glob over
    keys and names.

    Raises:
        UsageError: ``short-prefix``.
        JaxcacheError: ``no-match`` or ``ambiguous-key``.
    """
    if not wanted:
        return list(entries)
    picked = {id(e) for text in wanted for e in _match_key(entries, text, shortest_prefix)}
    return [e for e in entries if id(e) in picked]


def _match_key(entries: Sequence[_Named], text: str, shortest_prefix: int) -> list[_Named]:
    if any(c in text for c in "*?["):
        matches = [e for e in entries if any(fnmatchcase(name, text) for name in _names(e))]
    elif not (matches := [e for e in entries if text and text in _names(e)]):
        matches = [
            e for e in entries if text and (e.key.startswith(text) or e.hash.startswith(text))
        ]
        if matches and len(text) < shortest_prefix:
            raise UsageError(
                f"{text!r} is too short to name an entry here",
                code="short-prefix",
                hint=f"write at least {shortest_prefix} characters of the key or hash",
            )
        if not matches and _CUT in text:
            shown = re.compile(".*".join(map(re.escape, text.split(_CUT))), re.DOTALL)
            matches = [e for e in entries if shown.match(e.key)]
        if len({e.key for e in matches}) > 1:
            shown_keys = [e.key[: len(e.module) + 13] for e in matches[:3]]
            more = ["…"] if len(matches) > 3 else []
            raise JaxcacheError(
                f"{text!r} matches {len(matches)} entries: {', '.join(shown_keys + more)}",
                code="ambiguous-key",
                hint=f"write more of the hash, or the glob {text + '*'!r} for all of them",
            )
    if not matches:
        from difflib import get_close_matches

        modules = {e.module.removeprefix("jit_"): e.module for e in entries}
        near = get_close_matches(text.removeprefix("jit_"), modules, 1)
        hint = f"did you mean {modules[near[0]]!r}?" if near else "jaxcache ls -q prints every key"
        raise JaxcacheError(f"no entry matches {text!r}", code="no-match", hint=hint)
    return matches


def _names(entry: HasKey) -> tuple[str, ...]:
    """The names that an entry shares with others, and its key."""
    return entry.key, entry.module, getattr(entry, "function", None) or ""


def fits_key(key: str, text: str) -> bool:
    """Whether a KEY argument may mean a key, of which there need be no entry.

    It is a prefix of the key or of its hash, or a glob over key or module.
    """
    module, _, digest = key.rpartition("-")
    return (
        fnmatchcase(key, text)
        or fnmatchcase(module, text)
        or (text != "" and (key.startswith(text) or digest.startswith(text)))
    )


class _Field(NamedTuple):
    """A field: how it is read from an entry, and from the text of a filter."""

    read: Callable[[Entry, int], Any]
    parse: Callable[[str], Any]
    depth: Depth
    glob: bool = False


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(f"{text!r} is neither true nor false", code="bad-filter")
    return text == "true"


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return parse_duration_seconds(text)
    if math.isnan(seconds):
        raise UsageError(f"{text!r} is not a duration", code="bad-filter")
    return seconds


def _text(read: Callable[[Entry], Any], depth: Depth) -> _Field:
    return _Field(lambda e, _: read(e), str, depth, glob=True)


_FIELDS: dict[str, _Field] = {
    "key": _text(lambda e: e.key, Depth.LISTED),
    "module": _text(lambda e: e.module, Depth.LISTED),
    "hash": _text(lambda e: e.hash, Depth.LISTED),
    "size": _Field(lambda e, _: e.size_bytes, parse_size_bytes, Depth.LISTED),
    "payload": _Field(lambda e, _: e.payload_bytes, parse_size_bytes, Depth.OPENED),
    "compile": _Field(lambda e, _: e.compile_seconds, _parse_seconds, Depth.OPENED),
    "age": _Field(
        lambda e, now: (now - e.created_ns) / NS_PER_SECOND, parse_duration_seconds, Depth.LISTED
    ),
    "unused": _Field(
        lambda e, now: (now - e.last_used_ns) / NS_PER_SECOND, parse_duration_seconds, Depth.DATED
    ),
    "used-from": _text(lambda e: e.last_used_from, Depth.DATED),
    "codec": _text(lambda e: e.codec, Depth.OPENED),
    "sealed": _Field(lambda e, _: e.sealed, _parse_bool, Depth.OPENED),
    "platform": _text(lambda e: e.platform, Depth.DECODED),
    "target": _text(lambda e: e.target, Depth.DECODED),
    "signature": _text(lambda e: e.signature, Depth.DECODED),
    "source": _text(lambda e: e.source, Depth.DECODED),
    "jaxlib": _text(lambda e: e.jaxlib, Depth.LISTED),
    "function": _text(lambda e: getattr(e, "function", None), Depth.DECODED),
    "problem": _text(lambda e: e.problems, Depth.DECODED),
}
_OPERATORS = {"=": eq, "==": eq, "!=": ne, ">": gt, ">=": ge, "<": lt, "<=": le}
_EXPRESSION = r"\s*(?P<field>[a-z_-]+)\s*(?P<op>==|!=|>=|<=|=|>|<)\s*(?P<value>.+?)\s*"


class Filter(NamedTuple):
    """One ``--filter`` expression, such as ``size>1MB``."""

    field: str
    op: str
    value: Any

    def matches(self, entry: Entry, now_ns: int) -> bool:
        """Whether the entry fits; an entry whose field is unknown fits no filter on it."""
        field = _FIELDS[self.field]
        actual = field.read(entry, now_ns)
        if actual is None:
            return False
        if field.glob:
            values = actual if isinstance(actual, tuple) else (actual,)
            return any(fnmatchcase(v, self.value) for v in values) == (self.op != "!=")
        return bool(_OPERATORS[self.op](actual, self.value))


def parse_filter(text: str) -> Filter:
    """Read a filter expression: a field, an operator, a value.

    Raises:
        UsageError: ``bad-filter``.
    """
    match = re.fullmatch(_EXPRESSION, text)
    field = _FIELDS.get(match["field"]) if match else None
    if not match or not field:
        raise UsageError(
            f"cannot read the filter {text!r}",
            code="bad-filter",
            hint=f"write FIELD OP VALUE, such as 'size>1MB'; fields: {', '.join(_FIELDS)}",
        )
    if field.glob and match["op"] not in ("=", "==", "!="):
        raise UsageError(
            f"{match['field']} is text and knows only = and != in {text!r}", code="bad-filter"
        )
    return Filter(match["field"], match["op"], field.parse(match["value"]))


class _Sort(NamedTuple):
    """A field to sort by."""

    read: Callable[[Entry], Any]
    depth: Depth
    descending: bool = True
    """Whether its natural order puts the largest first."""


_SORTS = {
    "key": _Sort(lambda e: e.key, Depth.LISTED, descending=False),
    "size": _Sort(lambda e: e.size_bytes, Depth.LISTED),
    "payload": _Sort(lambda e: e.payload_bytes or 0, Depth.OPENED),
    "compile": _Sort(lambda e: e.compile_seconds or 0.0, Depth.OPENED),
    "created": _Sort(lambda e: e.created_ns, Depth.LISTED),
    "used": _Sort(lambda e: e.last_used_ns, Depth.DATED),
    "platform": _Sort(lambda e: (e.platform, e.target or ""), Depth.DECODED, descending=False),
}


def sort_entries(entries: Iterable[Entry], by: str) -> list[Entry]:
    """Sort by ``FIELD`` or ``FIELD:asc`` / ``FIELD:desc``; equal ones by key.

    Raises:
        UsageError: ``bad-sort``.
    """
    field, is_descending = read_sort(by, {name: spec.descending for name, spec in _SORTS.items()})
    by_key = sorted(entries, key=lambda e: e.key)
    return sorted(by_key, key=_SORTS[field][0], reverse=is_descending)


def read_sort(by: str, descending: Mapping[str, bool]) -> tuple[str, bool]:
    """Return the field of a ``--sort``, and whether the order is descending.

    Args:
        descending: the order of each field where ``by`` names none.

    Raises:
        UsageError: ``bad-sort``.
    """
    field, _, order = by.partition(":")
    if field not in descending or order not in ("", "asc", "desc"):
        raise UsageError(
            f"cannot sort by {by!r}",
            code="bad-sort",
            hint=f"one of {', '.join(descending)}, optionally followed by :asc or :desc",
        )
    return field, order == "desc" if order else descending[field]


class Selection(NamedTuple):
    """The entries wanted and their order, checked before any work is done."""

    keys: tuple[str, ...]
    filters: tuple[Filter, ...]
    sort: str

    @classmethod
    def parse(
        cls, keys: Sequence[str] = (), filters: Sequence[str] = (), sort: str = "key"
    ) -> "Selection":
        """Read what the user typed.

        Raises:
            UsageError: ``bad-filter`` or ``bad-sort``.
        """
        sort_entries((), sort)
        return cls(tuple(keys), tuple(parse_filter(text) for text in filters), sort)

    @property
    def depth(self) -> Depth:
        """How much must be read of entries to select and sort them."""
        filters = (_FIELDS[f.field].depth for f in self.filters)
        return max([_SORTS[self.sort.partition(":")[0]].depth, *filters])

    def scan_depth(self, *, has_headers: bool) -> Depth:
        """Return the depth of the scan that this selection needs."""
        # A key may be the name of a function, which only the graphs contain.
        is_inside = not has_headers and (self.keys or self.depth >= Depth.OPENED)
        return Depth.DECODED if is_inside else self.depth

    def pick(
        self, entries: Sequence[Entry], now_ns: int, *, shortest_prefix: int = 1
    ) -> list[Entry]:
        """The entries that every KEY and filter allows, in their own order.

        Raises:
            JaxcacheError: a KEY fits nothing, or more than it may.
        """
        chosen = select_by_keys(entries, self.keys, shortest_prefix=shortest_prefix)
        return [e for e in chosen if all(f.matches(e, now_ns) for f in self.filters)]

    def pick_sorted(self, entries: Sequence[Entry], now_ns: int) -> list[Entry]:
        """The same, sorted."""
        return sort_entries(self.pick(entries, now_ns), self.sort)
