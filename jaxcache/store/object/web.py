"""List what a web server shows: WebDAV, or the page of links that servers make of a folder.

``python -m http.server``, Apache (mod_autoindex), nginx (autoindex) and Caddy (file_server browse)
make such pages. They tell no sizes that a program could rely on, so each file costs a request.
"""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from jaxcache.errors import NoCacheError
from jaxcache.store.ahead import in_order
from jaxcache.store.base import MissingError, StoreError
from jaxcache.store.object.failures import first_line
from jaxcache.store.object.listing import Lister, Listing
from jaxcache.store.object.patience import Requests
from jaxcache.store.object.traffic import Traffic

_MAX_PAGE_BYTES = 64 << 20
_TIMEOUT_SECONDS = 60
_MAX_DEPTH = 4


class WebLister(Lister):
    """As :class:`Lister`, for ``http://`` and ``https://``."""

    def __init__(
        self, client: Any, url: str, listing: Listing, requests: Requests, traffic: Traffic
    ) -> None:
        super().__init__(client, listing, requests, traffic)
        self._url = url
        self._speaks_dav = True

    def objects(
        self, lead: str, *, after: str | None = None, past_folders: bool = False
    ) -> Iterator[Any]:
        """See :meth:`Lister.objects`."""
        if self._speaks_dav:
            try:
                yield from list(super().objects(lead, after=after, past_folders=past_folders))
            except (StoreError, NoCacheError) as error:
                if error.code not in _NO_DAV:
                    raise
                self._speaks_dav = False
            else:
                return
        yield from self._linked(lead, 1 if past_folders else _MAX_DEPTH)

    def _linked(self, lead: str, depth: int) -> Iterator[Any]:
        """Yield the files that a folder's page links to, and those of its folders."""
        links = self._requests.send("list", lead, lambda: _links(f"{self._url}/{quote(lead)}"))
        names = [lead + link for link in links if not link.endswith("/")]
        yield from (meta for meta in in_order(self._look, names) if meta is not None)
        for link in links:
            if link.endswith("/") and depth > 1:
                yield from self._linked(lead + link, depth - 1)
            elif link.endswith("/"):  # only that there is a folder is of interest
                yield {"path": f"{lead}{link}?"}

    def _look(self, name: str) -> Any:
        import obstore

        try:
            return self._requests.send("head", name, lambda: obstore.head(self._client, name))
        except (MissingError, StoreError):
            return None


#: How servers that know no WebDAV say so.
_NO_DAV = frozenset({
    "not-supported", "store-error", "unavailable", "no-cache", "permission-denied", "bad-request",
})  # fmt: skip
_NAME = re.compile(r"[^/?#]+/?")


def _links(url: str) -> list[str]:
    """Names on a folder's page, each once; those of folders end in a slash."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as page:  # noqa: S310 - http(s)
            text = page.read(_MAX_PAGE_BYTES).decode("utf-8", "replace")
            place = urlsplit(page.url).path
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise OSError(f"status code: {error.code}") from error
    except urllib.error.URLError as error:
        raise OSError(f"HTTP error: {first_line(str(error.reason))}") from error
    parser = _Links()
    parser.feed(text)
    found: dict[str, None] = {}
    for link in parser.links:
        own = link.removeprefix(place) if link.startswith("/") else link.removeprefix("./")
        if _NAME.fullmatch(own) and own not in ("../", "./", ".", ".."):
            name = unquote(own, errors="surrogateescape")
            if "/" not in name.rstrip("/"):
                found[name] = None
    return list(found)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep where an ``a`` leads to."""
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]
