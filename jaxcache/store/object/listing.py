"""List objects page by page, going on where a failed request left off."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jaxcache.errors import NoCacheError
from jaxcache.store.object.patience import Requests
from jaxcache.store.object.traffic import TRAFFIC

#: Behind every name that begins with the folder before it.
_LAST = "\U0010ffff"
#: A server that has not given one name in this time, whatever it answers, gives none.
PAGE_SECONDS = 60.0
#: A page of 1,000 names takes less than a megabyte; a server may answer with more than was asked.
MAX_PAGE_MEMORY_BYTES = 256 << 20
MAX_OBJECTS = 20_000_000
#: S3, GCS and Azure allow 1,024 bytes.
_MAX_NAME_LENGTH = 4096
_LOOK_SECONDS = 0.05


class Lister:
    """Lists what lies below a folder, anew for each call of :meth:`objects`.

    Args:
        can_skip: the service lists in order of names, and can begin anywhere.
    """

    def __init__(self, client: Any, requests: Requests, *, can_skip: bool) -> None:
        self.client, self.can_skip = client, can_skip
        self.page = 1000 if can_skip else 5000  # names per answer: S3 and GCS, and Azure
        self._requests = requests

    def objects(
        self, lead: str, *, after: str | None = None, past_folders: bool = False
    ) -> Iterator[Any]:
        """Yield obstore's description of every object whose name begins with ``lead``.

        Args:
            lead: empty, or a folder with its slash.
            after: begin behind this name.
            past_folders: of a folder that fills a whole page, do not read the rest.
        """
        pages = _Pages(self, lead)
        if after:
            pages.go_on_behind(after)
        while page := self._requests.send(None, "", pages.next):
            yield from page
            if not (past_folders and self.can_skip):
                continue
            first, last = (page[i]["path"][len(lead) :].partition("/") for i in (0, -1))
            if last[1] and first[:2] == last[:2] and len(page) == self.page:
                pages.go_on_behind(f"{lead}{last[0]}/{_LAST}")


def _next_page(stream: Any) -> Sequence[Any]:
    """The next page of obstore's listing, which goes through empty pages without a word.

    Raises:
        NoCacheError: nothing came for :data:`PAGE_SECONDS`, or it takes too much memory.
    """
    found: list[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            found.append(next(stream, ()))
        except BaseException as error:
            found.append(error)
        done.set()

    before, deadline = _resident_bytes(), time.monotonic() + PAGE_SECONDS
    threading.Thread(target=work, daemon=True).start()
    while not done.wait(_LOOK_SECONDS):
        if time.monotonic() > deadline or _resident_bytes() - before > MAX_PAGE_MEMORY_BYTES:
            raise NoCacheError(
                f"its listing has given no name for {PAGE_SECONDS:.0f} s, or is absurdly large",
                code="bad-listing",
                hint="check the endpoint; another run begins anew",
            )
    if isinstance(found[0], BaseException):
        raise found[0]
    page: Sequence[Any] = found[0]
    return page


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not on every system
        return 0


class _Pages:
    def __init__(self, lister: Lister, lead: str) -> None:
        self._lister, self._lead = lister, lead
        self._after: str | None = None
        self._first: str | None = None
        self._seen = 0
        self._stream: Any = None

    def next(self) -> Sequence[Any]:
        """The next page; empty at the end."""
        import obstore

        if self._stream is None:
            folder = self._lead.rstrip("/") or None
            self._stream = obstore.list(
                self._lister.client, folder, offset=self._after, chunk_size=self._lister.page
            )
        first = self._after is None
        try:
            page = _next_page(self._stream)
        except Exception:
            TRAFFIC.add("list")
            self._stream = None
            raise
        if page or first:  # the end of a listing is known without asking
            TRAFFIC.add("list")
        if page:
            self._check(page)
            self._after = page[-1]["path"]
        return page

    def _check(self, page: Sequence[Any]) -> None:
        """Refuse a listing that begins anew, or never ends."""
        start = page[0]["path"]
        self._seen += len(page)
        again = start == self._first or (
            self._lister.can_skip and self._first is not None and start <= (self._after or "")
        )
        if again or self._seen > MAX_OBJECTS:
            raise NoCacheError(
                "its listing repeats itself" if again else f"it lists over {MAX_OBJECTS} objects",
                code="bad-listing",
                hint="check the endpoint and the folder in the URL",
            )
        if any(len(row["path"]) > _MAX_NAME_LENGTH for row in page):
            raise NoCacheError(
                f"it lists a name of more than {_MAX_NAME_LENGTH:,} characters",
                code="bad-listing",
                hint="check the endpoint: no object store has such names",
            )
        self._first = self._first or start

    def go_on_behind(self, name: str) -> None:
        self._after, self._stream = name, None
