"""Results as JSON documents, in the names and units of the JSON contract.

Every document carries ``schema_version`` and ``cache_dir``. Sizes are integer bytes, durations
float seconds, times RFC 3339 in UTC, missing values null. Text that is no valid Unicode, or would
act on a terminal, is escaped as ``\\xNN``.
"""

from typing import TYPE_CHECKING, Any

from jaxcache.cache.listing import Listing, Summary
from jaxcache.entry.names import printable
from jaxcache.model import Entry, GraphEntry, Problem
from jaxcache.units import rfc3339

if TYPE_CHECKING:
    from jaxcache.cache.groups import Group

SCHEMA_VERSION = 1

Document = dict[str, Any]


def envelope(cache_dir: str) -> Document:
    """The fields that every document begins with."""
    return {"schema_version": SCHEMA_VERSION, "cache_dir": printable(cache_dir)}


def entry_document(entry: Entry) -> Document:
    """One entry, as in ``ls``: ``entries[]`` and ``show``: ``entry``."""
    document = _entry_document(entry)
    return document | _graph_fields(entry) if isinstance(entry, GraphEntry) else document


def _graph_fields(entry: GraphEntry) -> Document:
    """What the entries of torch's compilers have beside."""
    return {
        "function": entry.function and printable(entry.function),
        "devices": list(map(printable, entry.devices)),
        "guards": entry.guards and printable(entry.guards),
        "torch_version": entry.torch_version,
        "references": list(map(printable, entry.references)),
    }


def _entry_document(entry: Entry) -> Document:
    return {
        "key": printable(entry.key),
        "module": printable(entry.module),
        "hash": entry.hash,
        "file": printable(entry.file),
        "size_bytes": entry.size_bytes,
        "payload_bytes": entry.payload_bytes,
        "codec": entry.codec,
        "sealed": entry.sealed,
        "compile_seconds": entry.compile_seconds,
        "created_at": rfc3339(entry.created_ns),
        "last_used_at": rfc3339(entry.last_used_ns),
        "last_used_from": entry.last_used_from,
        "platform": entry.platform,
        "target": entry.target and printable(entry.target),
        "problems": list(entry.problems),
        "signature": entry.signature and printable(entry.signature),
        "source": entry.source and printable(entry.source),
        "tuning": entry.tuning,
    }


def problem_document(problem: Problem) -> Document:
    """One finding."""
    return {
        "key": problem.key and printable(problem.key),
        "file": printable(problem.file),
        "kind": problem.kind,
        "detail": problem.detail,
    }


def summary_document(summary: Summary) -> Document:
    """Sums over entries."""
    return {
        "entries": summary.entries,
        "size_bytes": summary.size_bytes,
        "payload_bytes": summary.payload_bytes,
        "compile_seconds": summary.compile_seconds,
    }


def group_document(group: "Group") -> Document:
    """One group of entries."""
    return {
        "name": printable(group.name),
        **summary_document(group.summary),
        "last_used_at": rfc3339(group.last_used_ns),
    }


def listing_document(listing: Listing) -> Document:
    """What ``ls --json`` prints."""
    return {
        **envelope(listing.cache_dir),
        "entries": [entry_document(e) for e in listing.entries],
        "summary": summary_document(listing.summary),
        "problems": [problem_document(p) for p in listing.problems],
    }
