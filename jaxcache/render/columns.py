"""Columns that several tables have."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxcache.core.names import parse_key
from jaxcache.entry.names import split_name
from jaxcache.render.view import Column
from jaxcache.units import format_ago, format_compile, format_size, rfc3339

if TYPE_CHECKING:
    from jaxcache.cache.prune.removable import Removal

Get = Callable[[Any], Any]
#: A prefix of a hash that is unique in any cache of sane size.
SHOWN_HASH_DIGITS = 12


def short_key(module: str, digits: str) -> str:
    """Return a key as tables show it: short enough to read, long enough to be used as KEY."""
    return (f"{module}-" if module else "") + digits[:SHOWN_HASH_DIGITS]


def text_column(title: str, get: Get, **others: Any) -> Column:
    """Return a column that shows what a pipe gets; what is missing is empty."""
    return Column(title, get, lambda row: "" if (v := get(row)) is None else str(v), **others)


def key_column(get: Get, title: str = "KEY") -> Column:
    """Return the column of a key, or of a file that belongs to none, which people see short."""
    return Column(title, get, lambda row: short_name(get(row)), elastic=True, least=16)


def short_name(name: str) -> str:
    """Return a key, or the key of an entry's file, as tables show it; any other name as it is."""
    key = parse_key(split_name(name)[1] or name)
    return short_key(*key) if key else name


def removal_name(removal: "Removal") -> str:
    """Return the key of what is removed as tables show it, or the name of its file."""
    if not removal.key:
        return removal.file.name
    return short_key(removal.module, removal.key.removeprefix(f"{removal.module}-"))


def count_column(title: str, get: Get) -> Column:
    """Return the column of a number of things."""
    return Column(title, get, lambda row: f"{get(row):,}", right=True)


def size_column(get: Get, title: str = "SIZE") -> Column:
    """Return the column of a size in bytes, empty where it is unknown."""
    return Column(
        title, get, lambda row: "" if (v := get(row)) is None else format_size(v), right=True
    )


def seconds_column(
    get: Get, show: Callable[[Any], str] = format_compile, title: str = "COMPILE"
) -> Column:
    """Return the column of a duration."""
    return Column(title, get, lambda row: show(get(row)), right=True)


def duration_column(get: Get) -> Column:
    """Return the column of a compile time in a report, empty where it is unknown."""
    return seconds_column(get, lambda s: "" if s is None else format_compile(s))


def used_column(now_ns: int) -> Column:
    """Return the column of a last use, empty if it is not known."""
    return Column(
        "USED",
        lambda row: None if row.last_used_ns is None else rfc3339(row.last_used_ns),
        lambda row: "" if row.last_used_ns is None else format_ago(row.last_used_ns, now_ns),
        right=True,
    )
