"""List objects page by page, going on where a failed request left off."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jaxcache.store.object.patience import Requests
from jaxcache.store.object.traffic import Traffic

#: Behind every name that begins with the folder before it.
_LAST = "\U0010ffff"


class Listing(NamedTuple):
    """How a service lists."""

    page: int
    """Names per answer."""
    can_skip: bool
    """It lists in order of names and can begin anywhere."""


class Lister:
    """Lists what lies below a folder, anew for each call of :meth:`objects`."""

    def __init__(self, client: Any, listing: Listing, requests: Requests, traffic: Traffic) -> None:
        self._client, self._listing = client, listing
        self._requests, self._traffic = requests, traffic

    @property
    def can_skip(self) -> bool:
        """Whether beginning in the middle spares requests."""
        return self._listing.can_skip

    def objects(
        self, lead: str, *, after: str | None = None, past_folders: bool = False
    ) -> Iterator[Any]:
        """Yield obstore's description of every object whose name begins with ``lead``.

        Args:
            lead: empty, or a folder with its slash.
            after: begin behind this name.
            past_folders: of a folder that fills a whole page, do not read the rest.
        """
        pages = _Pages(self._client, lead, self._listing.page, self._traffic)
        if after:
            pages.go_on_behind(after)
        while page := self._requests.send(None, "", pages.next):
            yield from page
            if not (past_folders and self._listing.can_skip):
                continue
            first, last = (page[i]["path"][len(lead) :].partition("/") for i in (0, -1))
            if last[1] and first[:2] == last[:2] and len(page) == self._listing.page:
                pages.go_on_behind(f"{lead}{last[0]}/{_LAST}")


class _Pages:
    def __init__(self, client: Any, lead: str, size: int, traffic: Traffic) -> None:
        self._client, self._lead, self._size, self._traffic = client, lead, size, traffic
        self._after: str | None = None
        self._stream: Any = None

    def next(self) -> Sequence[Any]:
        """The next page; empty at the end."""
        import obstore

        if self._stream is None:
            folder = self._lead.rstrip("/") or None
            self._stream = obstore.list(
                self._client, folder, offset=self._after, chunk_size=self._size
            )
        first = self._after is None
        try:
            page: Sequence[Any] = next(self._stream, ())
        except Exception:
            self._traffic.add("list")
            self._stream = None
            raise
        if page or first:  # the end of a listing is known without asking
            self._traffic.add("list")
        if page:
            self._after = page[-1]["path"]
        return page

    def go_on_behind(self, name: str) -> None:
        self._after, self._stream = name, None
