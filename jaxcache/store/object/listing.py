"""List objects page by page, going on after a failed request; and the metadata of an object."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from jaxcache.core.system import resident_bytes
from jaxcache.errors import NoCacheError
from jaxcache.model import FileInfo
from jaxcache.store.object.retry import TRAFFIC, Requests

#: Names of user metadata. ``mtime`` is rclone's: seconds since the epoch with a fraction.
_MTIME = "mtime"
_SHA256 = "sha256"
_HEX_DIGITS = 64
_NS = 1_000_000_000
#: Years 1970 to 2262: no real file has other times, and no file system takes all of them.
_MAX_NS = 1 << 63


def attributes_of(digest: str, mtime_ns: int | None) -> dict[str, str]:
    """Return the metadata to put: the SHA-256 of the bytes, and the time of the entry."""
    if mtime_ns is None:
        return {_SHA256: digest}
    return {_SHA256: digest, _MTIME: f"{mtime_ns // _NS}.{mtime_ns % _NS:09d}"}


def digest_in(attributes: Any) -> str | None:
    """The SHA-256 that an object was put with; other clients leave none."""
    value = attributes.get(_SHA256)
    return value if isinstance(value, str) and len(value) == _HEX_DIGITS else None


def info_of(meta: Any, attributes: Any = None) -> FileInfo:
    """Return an object as a file, with its recorded date, or else the date of its upload."""
    mtime_ns = min(max(int(meta["last_modified"].timestamp() * _NS), 0), _MAX_NS - 1)
    modified = (attributes or {}).get(_MTIME)
    if modified is not None:
        with suppress(ArithmeticError, ValueError):
            given_ns = Decimal(modified) * _NS
            mtime_ns = int(given_ns) if 0 <= given_ns < _MAX_NS else mtime_ns
    return file_info(meta["path"], meta["size"], mtime_ns, meta)


def file_info(name: str, size_bytes: int, mtime_ns: int, meta: Any) -> FileInfo:
    """The same of an object whose size and time are known."""
    # Azure quotes ETags in headers and not in listings.
    etag = (meta["e_tag"] or "").strip('"')
    # A number that changes with the ETag, for the index, which keeps numbers.
    inode = int.from_bytes(hashlib.blake2b(etag.encode(), digest_size=8).digest(), "big") >> 1
    return FileInfo(name, "file", size_bytes, mtime_ns, 0, inode, 0, -1, etag)


#: Behind every name that begins with the directory before it.
_LAST = "\U0010ffff"
#: A server whose answers have contained no name in this time is given up.
PAGE_SECONDS = 60.0
#: A page of 1,000 names takes less than a megabyte; a server may answer with more than was asked.
MAX_PAGE_MEMORY_BYTES = 256 << 20
#: What a listing takes in memory ends with these two: under 2 GB.
MAX_OBJECTS = 2_000_000
MAX_LISTED_CHARACTERS = 256 << 20
#: After the first minute, a listing that names fewer objects a second is given up.
SLOWEST_NAMES = 100
#: S3, GCS and Azure allow 1,024 bytes.
_MAX_NAME_LENGTH = 4096
_LOOK_SECONDS = 0.05


class ListPager:
    """Lists the objects below a directory, again for each call of :meth:`objects`.

    Args:
        can_skip: the service lists in order of names, and can begin anywhere.
    """

    def __init__(self, client: Any, requests: Requests, *, can_skip: bool) -> None:
        self.client = client
        self.can_skip = can_skip
        self.page = 1000 if can_skip else 5000  # names per answer: S3 and GCS, and Azure
        self._requests = requests
        self._ahead: dict[str, _Pages] = {}

    def request_ahead(self, lead: str) -> None:
        """Send the first request of the next listing of ``lead`` now, whose answer it awaits."""
        self._ahead[lead] = _Pages(self, lead)
        self._ahead[lead].request()

    def objects(
        self, lead: str, *, after: str | None = None, past_directories: bool = False
    ) -> Iterator[Any]:
        """Yield obstore's description of every object whose name begins with ``lead``.

        Args:
            lead: empty, or a directory with its slash.
            after: begin after this name.
            past_directories: of a directory that fills a whole page, do not read the rest.
        """
        pages = self._ahead.pop(lead, None) or _Pages(self, lead)
        if after:
            pages.go_on_behind(after)
        while page := self._requests.send(None, "", pages.next):
            yield from page
            if not (past_directories and self.can_skip):
                continue
            first, last = (page[i]["path"][len(lead) :].partition("/") for i in (0, -1))
            if last[1] and first[:2] == last[:2] and len(page) == self.page:
                pages.go_on_behind(f"{lead}{last[0]}/{_LAST}")


class _Request:
    """The next page of obstore's listing, which passes over empty pages silently."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._answer: Any = None
        self._done = threading.Event()
        self._before_bytes = resident_bytes(os.getpid())
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            self._answer = next(self._stream, ())
        except BaseException as error:
            self._answer = error
        self._done.set()

    def page(self, seconds: float) -> Sequence[Any]:
        """Wait for it.

        Raises:
            NoCacheError: it does not arrive within the time, or takes too much memory.
        """
        deadline = time.monotonic() + seconds
        while not self._done.wait(_LOOK_SECONDS):
            if time.monotonic() > deadline:
                raise _bad_listing(
                    f"its listing names nothing for {PAGE_SECONDS:.0f} s, or fewer than "
                    f"{SLOWEST_NAMES} objects a second"
                )
            if resident_bytes(os.getpid()) - self._before_bytes > MAX_PAGE_MEMORY_BYTES:
                raise _bad_listing(
                    f"a page of its listing needs over {MAX_PAGE_MEMORY_BYTES >> 20} MiB of memory"
                )
        if isinstance(self._answer, BaseException):
            raise self._answer
        page: Sequence[Any] = self._answer
        return page


def _bad_listing(message: str) -> NoCacheError:
    hint = "check the endpoint and the directory in the URL"
    return NoCacheError(message, code="bad-listing", hint=hint)


class _Pages:
    def __init__(self, lister: ListPager, lead: str) -> None:
        self._lister = lister
        self._lead = lead
        self._after: str | None = None
        self._first: str | None = None
        self._objects = 0
        self._characters = 0
        self._waited_seconds = 0.0
        self._stream: Any = None
        self._request: _Request | None = None

    def request(self) -> _Request:
        """Ask for the next page, which :meth:`next` awaits."""
        import obstore

        if self._stream is None:
            directory = self._lead.rstrip("/") or None
            self._stream = obstore.list(
                self._lister.client, directory, offset=self._after, chunk_size=self._lister.page
            )
        if self._request is None:
            if self._after is None:
                TRAFFIC.add("list")
            self._request = _Request(self._stream)
        return self._request

    def next(self) -> Sequence[Any]:
        """The next page; empty at the end."""
        request = self.request()
        self._request = None
        first = self._after is None
        earned_seconds = PAGE_SECONDS + self._objects / SLOWEST_NAMES - self._waited_seconds
        began = time.monotonic()
        try:
            page = request.page(min(PAGE_SECONDS, earned_seconds))
        except Exception:
            if not first:
                TRAFFIC.add("list")
            self._stream = None
            raise
        self._waited_seconds += time.monotonic() - began
        if page and not first:  # the end of a listing is known without asking
            TRAFFIC.add("list")
        if page:
            self._check(page)
            self._after = page[-1]["path"]
        return page

    def _check(self, page: Sequence[Any]) -> None:
        """Refuse a listing that begins again, or never ends."""
        start = page[0]["path"]
        again = start == self._first or (
            self._lister.can_skip and self._first is not None and start <= (self._after or "")
        )
        if again:
            raise _bad_listing("its listing repeats itself")
        self._objects += len(page)
        self._characters += sum(len(row["path"]) for row in page)
        if self._objects > MAX_OBJECTS:
            raise _bad_listing(f"it lists over {MAX_OBJECTS:,} objects")
        if self._characters > MAX_LISTED_CHARACTERS:
            raise _bad_listing(f"its names have over {MAX_LISTED_CHARACTERS:,} characters together")
        if any(len(row["path"]) > _MAX_NAME_LENGTH for row in page):
            raise _bad_listing(f"it lists a name of more than {_MAX_NAME_LENGTH:,} characters")
        self._first = self._first or start

    def go_on_behind(self, name: str) -> None:
        self._after = name
        self._stream = self._request = None
