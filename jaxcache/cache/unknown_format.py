"""Distinguish entries in a format that jaxcache does not know from damaged ones.

A newer JAX may put something before the compressed frame, or use another codec. Then a known codec
begins a little later in the file (:mod:`jaxcache.entry.codec` finds it), or several entries share a
start that no known codec has. What is in an unknown format stays, and travels as it is.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from jaxcache.core.names import ZSTD_MAGIC
from jaxcache.entry.codec import CodecError, detect_codec
from jaxcache.entry.names import key_of
from jaxcache.model import Problem
from jaxcache.store.base import Store

START_BYTES = 4
#: Starts to compare with, of the newest entries: in a bucket each is a request.
_MOST_READ = 1_000


class UnknownFormats:
    """The starts that several entries of a store share, read when the first is doubtful."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @cached_property
    def _shared(self) -> frozenset[bytes]:
        files = (i for i in self.store.list() if i.type == "file" and key_of(i.name))
        newest = sorted(files, key=lambda info: -info.mtime_ns)[:_MOST_READ]
        starts = self.store.read_many([info.name for info in newest], limit=START_BYTES)
        counts = Counter(start for start in starts if isinstance(start, bytes))
        return frozenset(s for s, count in counts.items() if count > 1 and _may_be_magic(s))

    def covers(self, error: CodecError) -> bool:
        """Return whether an entry with this error may be in an unknown format."""
        return error.kind == "unknown-format" or error.start in self._shared

    def rename(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return findings in which ``bad-codec`` is ``unknown-format`` where that may be so."""
        return tuple(self._rename(p) if p.kind == "bad-codec" else p for p in problems)

    def _rename(self, problem: Problem) -> Problem:
        (start,) = self.store.read_many([problem.file], limit=START_BYTES)
        return problem._replace(kind="unknown-format") if start in self._shared else problem


def _may_be_magic(start: bytes) -> bool:
    """Return whether a start may be that of a format, and not a disk's zeros or a flipped byte."""
    differing = sum(byte != known for byte, known in zip(start, ZSTD_MAGIC, strict=False))
    return len({*start}) > 1 < differing and detect_codec(start) == "unknown"
