"""Facts that earlier scans read out of entries, kept outside the cache to spare reading.

One file per cache directory, safe to delete at any time. A row counts only while name, size,
modification time and inode of the entry (of JAX's, also of its ``-atime`` file) are what they were
when it was read: the file is always right, the index only spares opening it. Files younger than two
seconds are not indexed, because a second write in the same tick would not show; that of an object,
whose inode here is made of its ETag, would.

The format is ours alone: a line of magic, rows of integers, the texts that some of them number,
NUL-separated names, and a CRC-32 over all of it. A file that is damaged, or of another version,
counts as absent.
"""

import contextlib
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice
from typing import Any, ClassVar, Self

from jaxcache.cache.scan import HeaderFacts
from jaxcache.core.atomic import make_private_directory, replace_file
from jaxcache.entry.codec import EntryHeader
from jaxcache.entry.summary import EntrySummary
from jaxcache.model import FileInfo

_MAX_BYTES = 1 << 30
_CRC_BYTES = 4
#: What every file system takes, with room for a suffix.
_LONGEST_NAME = 200


def _index_path(directory: str, url: str) -> str:
    """Return the path of the index of the cache at ``url``."""
    name = url.replace("%", "%25").replace("/", "%2F")
    if "://" in url or len(os.fsencode(name)) > _LONGEST_NAME:
        import hashlib  # takes OpenSSL along

        name = hashlib.sha256(os.fsencode(url)).hexdigest()[:32]
    return os.path.join(directory, f"{name}.idx")


def read_checked(path: str, magic: bytes) -> memoryview:
    """Return the bytes between the magic number and the checksum of an intact file.

    Raises:
        OSError, ValueError: it does not exist, is damaged, or is of another version.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise ValueError("too large")
        data = memoryview(file.read(_MAX_BYTES))
    body = data[:-_CRC_BYTES]
    if body[: len(magic)] != magic or zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        raise ValueError("damaged, or of another version")
    return body[len(magic) :]


def write_checked(path: str, magic: bytes, parts: Iterable[bytes]) -> None:
    """Write a file that :func:`read_checked` reads; where it cannot be written, do nothing."""
    with contextlib.suppress(OSError):
        directory = os.path.dirname(path)
        make_private_directory(directory)
        is_new = not os.path.exists(path)
        replace_file(path, _with_checksum(chain([magic], parts)), mode=0o600, durable=False)
        if is_new:
            _remove_files_of_gone_caches(directory)


def _remove_files_of_gone_caches(directory: str) -> None:
    """Remove the files of local caches that no longer exist; hashed names cannot be checked."""
    for name in os.listdir(directory):
        cache = name.rpartition(".")[0].replace("%2F", "/").replace("%25", "%")
        if cache.startswith("/") and not os.path.lexists(cache):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))


def _with_checksum(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts as they are made, then their checksum."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
        yield part
    yield checksum.to_bytes(_CRC_BYTES, "big")


_SETTLED_NS = 2_000_000_000
_IDENTITY = ("size", "mtime", "inode")
_INTEGER_BYTES = 8
#: Rows that are written in one piece.
_ROWS_AT_ONCE = 1_000


class FactIndex:
    """The index of one cache; :meth:`load` opens it, :meth:`save` writes what was learnt.

    The class of each layout lists the facts that it keeps. They are 64-bit integers after the
    identity of a file, a row for each; -1 is None.
    """

    magic: ClassVar[bytes]
    facts: ClassVar[tuple[str, ...]]
    texts: ClassVar[frozenset[str]]
    """Those of :attr:`facts` that number a text."""

    def __init__(self, path: str, *, now_ns: int) -> None:
        self.path = path
        self._settled_ns = now_ns - _SETTLED_NS
        self._starts: dict[str, int] = {}
        """Where the row of a file begins in the table."""
        self._table = array("q")
        self._width = len(_IDENTITY) + len(self.facts)
        self._texts: list[str] = []
        self._text_ids: dict[str, int] = {}
        self._learnt = 0

    @classmethod
    def load(cls, directory: str, url: str, *, now_ns: int) -> Self:
        """Open the index of the cache at ``url``; an empty one if none can be trusted.

        Args:
            now_ns: the time before anything is read; what is younger is not remembered.
        """
        index = cls(_index_path(directory, url), now_ns=now_ns)
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            index._read(read_checked(index.path, cls.magic))
        return index

    def __len__(self) -> int:
        return len(self._starts)

    def save(self, present: Iterable[str]) -> None:
        """Write the index, without the files that are gone; do nothing if little was learnt.

        A directory that cannot be written is not an error: the next scan reads the entries again.
        """
        if not self._learnt or self._learnt * 100 < len(self._starts):
            return
        starts = {name: at for name in present if (at := self._starts.get(name)) is not None}
        write_checked(self.path, self.magic, self._serialize(starts))

    def _row(self, info: FileInfo) -> "array[int] | None":
        """Return the row of a file; None if it has none, or the file has changed since."""
        start = self._starts.get(info.name)
        if start is None:
            return None
        row = self._table[start : start + self._width]
        same = tuple(row[:3]) == (info.size_bytes, info.mtime_ns, info.inode)
        return row if same else None

    def _is_settled(self, info: FileInfo) -> bool:
        """Whether a change of the file would show."""
        return (info.mtime_ns <= self._settled_ns or bool(info.etag)) and not info.inode >> 63

    def _put(self, info: FileInfo, facts: Iterable[int]) -> None:
        start = self._starts.setdefault(info.name, len(self._table))
        row = array("q", (info.size_bytes, info.mtime_ns, info.inode, *facts))
        self._table[start : start + self._width] = row  # at the end, this appends
        self._learnt += 1

    def _id(self, text: str | None) -> int:
        if text is None:
            return -1
        text_id = self._text_ids.setdefault(text, len(self._texts))
        if text_id == len(self._texts):
            self._texts.append(text)
        return text_id

    def _text(self, number: int) -> str | None:
        return None if number == -1 else self._texts[number]

    def _serialize(self, starts: dict[str, int]) -> Iterator[bytes]:
        """Yield the body in parts: a large cache has a large index."""
        texts = "".join(self._texts).encode("utf-8", "surrogatepass")
        lengths = array("q", map(len, self._texts))
        yield array("q", [len(starts), len(lengths), len(texts)]).tobytes()
        yield lengths.tobytes()
        remaining = iter(starts.values())
        while some := [*islice(remaining, _ROWS_AT_ONCE)]:
            yield b"".join(self._table[at : at + self._width].tobytes() for at in some)
        yield texts
        yield "\0".join(starts).encode("utf-8", "surrogateescape")

    def _read(self, data: memoryview) -> None:
        """Take over the body of a file that was found whole."""
        rows, texts_count, texts_bytes = _take(data, 0, 3)
        lengths = _take(data, 3, texts_count)
        table = _take(data, 3 + texts_count, rows * self._width)
        for number, name in enumerate(self.facts, len(_IDENTITY)):
            column = table[number :: self._width]
            if name in self.texts and not -1 <= min(column) <= max(column) < texts_count:
                return
        start = (3 + texts_count + len(table)) * _INTEGER_BYTES
        text = str(data[start : start + texts_bytes], "utf-8", "surrogatepass")
        texts = [text[end - n : end] for n, end in zip(lengths, accumulate(lengths), strict=True)]
        names = str(data[start + texts_bytes :], "utf-8", "surrogateescape")
        starts = range(0, len(table), self._width)
        self._starts = dict(zip(names.split("\0"), starts, strict=True))
        self._table = table
        self._texts = texts
        self._text_ids = {text: number for number, text in enumerate(texts)}


def _take(data: memoryview, start: int, count: int) -> "array[int]":
    """The integers from there on.

    Raises:
        ValueError: there are fewer.
    """
    values = array("q", data[start * _INTEGER_BYTES : (start + count) * _INTEGER_BYTES].tobytes())
    if len(values) != count:
        raise ValueError("too short")
    return values


class Index(FactIndex):
    """The index of a cache of JAX."""

    facts = (
        *("stamp_mtime", "stamp_inode", "stamp"),
        *("content", "seconds", "codec", "sealed", "head_kind", "head_detail"),
        *EntrySummary._fields[:-1],
        *("brief_kind", "brief_detail"),
    )
    texts = frozenset({"codec", "head_kind", "head_detail", *facts[9:]})
    magic = b"jaxcache-index 4 %08x\n" % zlib.crc32(repr(facts).encode())

    def __init__(self, path: str, *, now_ns: int) -> None:
        super().__init__(path, now_ns=now_ns)
        self._headers: dict[tuple[int, ...], tuple[EntryHeader | None, Any]] = {}
        self._summaries: dict[tuple[int, ...], EntrySummary] = {}

    def recall(
        self, files: Iterable[tuple[FileInfo, FileInfo | None]]
    ) -> Iterator[HeaderFacts | None]:
        """Yield the facts of each entry and its ``-atime`` file; None if either has changed."""
        for info, stamp in files:
            row = self._row(info)
            mtime_inode = (-1, -1) if stamp is None else (stamp.mtime_ns, stamp.inode)
            if row is None or mtime_inode != (row[3], row[4]):
                yield None
                continue
            stamp_bytes = stamp and row[5].to_bytes(8, "little", signed=True)
            header, problem = self._header(tuple(row[6:12]))
            summary = self._summary(tuple(row[12:]))
            yield HeaderFacts(header, problem, stamp_bytes, summary=summary)

    def learn(self, info: FileInfo, stamp: FileInfo | None, facts: HeaderFacts) -> None:
        """Remember what was read of one entry, if its files are settled and could be read."""
        summary = facts.summary
        if facts.gone or not self._is_settled(info):
            return
        if stamp is not None and not (
            facts.stamp is not None and len(facts.stamp) == 8 and self._is_settled(stamp)
        ):
            return
        if _is_unreadable(facts.problem) or (summary and _is_unreadable(summary.problem)):
            return
        stamp_row = (-1, -1, -1)
        if stamp is not None and facts.stamp is not None:
            used = int.from_bytes(facts.stamp, "little", signed=True)
            stamp_row = (stamp.mtime_ns, stamp.inode, used)
        self._put(info, (*stamp_row, *self._header_row(facts), *self._summary_row(summary)))

    def _header_row(self, facts: HeaderFacts) -> tuple[int, ...]:
        header = facts.header
        kind, detail = facts.problem or (None, None)
        if header is None:
            return (-1, -1, -1, -1, self._id(kind), self._id(detail))
        content = -1 if header.content_bytes is None else header.content_bytes
        seconds = -1 if header.compile_seconds is None else header.compile_seconds
        return (content, seconds, self._id(header.codec), int(header.checksum), -1, -1)

    def _summary_row(self, summary: EntrySummary | None) -> tuple[int, ...]:
        if summary is None:
            return (-1,) * (len(EntrySummary._fields) + 1)
        return tuple(map(self._id, (*summary[:-1], *(summary.problem or (None, None)))))

    def _header(self, row: tuple[int, ...]) -> tuple[EntryHeader | None, Any]:
        pair = self._headers.get(row)
        if pair is None:
            content, seconds, codec, sealed, kind, detail = row
            header = None
            if codec != -1:
                name: Any = self._texts[codec]
                header = EntryHeader(
                    name,
                    None if content < 0 else content,
                    bool(sealed),
                    None if seconds < 0 else seconds,
                )
            problem = None if kind == -1 else (self._text(kind), self._text(detail))
            pair = self._headers[row] = (header, problem)
        return pair

    def _summary(self, row: tuple[int, ...]) -> EntrySummary | None:
        if row[0] == -1:
            return None
        summary = self._summaries.get(row)
        if summary is None:
            facts: Any
            *facts, kind, detail = map(self._text, row)
            problem: Any = None if kind is None else (kind, detail)
            summary = self._summaries[row] = EntrySummary._make((*facts, problem))
        return summary


def _is_unreadable(problem: tuple[str, str] | None) -> bool:
    """Whether it may be gone next time without the file having changed."""
    return problem is not None and problem[0] == "unreadable"
