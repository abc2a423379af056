"""Entries put together by the value of one field."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxcache.cache.listing import Summary, summarize
from jaxcache.errors import UsageError
from jaxcache.model import Entry


@dataclass(frozen=True, slots=True)
class Group:
    """Entries that share the value of one field."""

    name: str
    summary: Summary
    last_used_ns: int
    """The latest use of any of them."""


_GROUPS: dict[str, Callable[[Entry], str]] = {
    "module": lambda e: e.module,
    "platform": lambda e: e.platform,
    "target": lambda e: e.target or "unknown",
    "codec": lambda e: e.codec,
}


def group_entries(entries: Iterable[Entry], by: str) -> list[Group]:
    """Group entries by a field, the largest group first.

    Raises:
        UsageError: ``bad-group``.
    """
    if by not in _GROUPS:
        raise UsageError(
            f"cannot group by {by!r}", code="bad-group", hint=f"one of {', '.join(_GROUPS)}"
        )
    read = _GROUPS[by]
    members: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        members[read(entry)].append(entry)
    groups = [
        Group(name, summarize(some), max(e.last_used_ns for e in some))
        for name, some in members.items()
    ]
    return sorted(groups, key=lambda g: (-g.summary.size_bytes, g.name))
