"""Stores of bytes. :func:`open_store` picks the store for a location."""

import os
from typing import TYPE_CHECKING

from jaxcache.core.remote import SERVICES
from jaxcache.errors import NoCacheError, UsageError, system_errors_as

if TYPE_CHECKING:  # a completion needs names alone
    from jaxcache.store.base import Store

#: Suffixes of file names. ``.old`` or ``.d``, for example, may also be a directory.
_FILE_ENDS = (".jxb", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".txt", ".json")


def is_remote(location: str) -> bool:
    """Whether a location is a URL of an object store and no path."""
    return location.partition("://")[0] in SERVICES and "://" in location


def check_location(location: str) -> None:
    """Refuse what looks like a URL but is not, which would become a strange local directory.

    Raises:
        UsageError: ``bad-url``.
    """
    scheme, colon, remainder = location.partition(":")
    if colon and scheme.lower() in {*SERVICES, "file"} and not remainder.startswith("//"):
        path = remainder.lstrip("/")
        raise UsageError(
            f"{location} is not a URL: after {scheme}: come two slashes",
            code="bad-url",
            hint=f"write {scheme}://{path or 'BUCKET/PREFIX'}, or ./{location} for a directory",
        )


def check_directory_name(location: str) -> None:
    """Refuse to make a directory where the name is a file's; ``NAME/`` is a directory in any case.

    Raises:
        UsageError: ``bad-path``.
    """
    path = local_path(location)
    if path == "-" or (path.lower().endswith(_FILE_ENDS) and not os.path.lexists(path)):
        raise UsageError(
            f"{path} does not exist and is the name of a file, not of a directory",
            code="bad-path",
            hint=f"export, copy and ci save write bundles, as FILE.jxb; {path}/ is a directory",
        )


def find_store(location: str) -> "Store | None":
    """Open the store at a path or URL; None where no directory is yet.

    Raises:
        NoCacheError: it exists but cannot be read, or cannot be made.
        UsageError: a URL of a kind that no store serves, or a name for a file.
    """
    if is_remote(location) or os.path.lexists(path := local_path(location)):
        return open_store(location)
    check_directory_name(location)
    from jaxcache.store.base import cannot_make

    if reason := cannot_make(path):
        raise NoCacheError(f"cannot make {path}: {reason}", code="io-error")
    return None


def check_made(path: str) -> None:
    """Refuse a directory that cannot be made, which permissions alone do not show, as in ``/proc``.

    Raises:
        NoCacheError: ``io-error``.
    """
    from jaxcache.core.names import TEMP_PREFIX

    above = os.path.abspath(path)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    probe = os.path.join(above, f"{TEMP_PREFIX}{os.urandom(8).hex()}")
    with system_errors_as(NoCacheError, f"cannot make {path}", code="io-error"):
        os.mkdir(probe, 0o700)
        os.rmdir(probe)


def make_store(location: str) -> "Store":
    """Open the store at a path or URL, making the directory if it does not exist.

    Raises:
        NoCacheError: it cannot be made.
        UsageError: a URL of a kind that no store serves.
    """
    if not is_remote(location):
        path = local_path(location)
        with system_errors_as(NoCacheError, f"cannot make {path}", code="io-error"):
            os.makedirs(path, exist_ok=True)
    return open_store(location)


def open_store(location: str) -> "Store":
    """Open the store at a path or URL; for an object store, without sending a request.

    Raises:
        NoCacheError: nothing there, or not readable.
        UsageError: a URL of a kind that no store serves.
        JaxcacheError: ``no-obstore`` where the extra ``remote`` is not installed.
    """
    if is_remote(location):
        from jaxcache.store.object.store import open_object_store

        return open_object_store(location)
    from jaxcache.store.local import LocalStore

    return LocalStore(local_path(location))


def check_tier(location: str) -> None:
    """Refuse a tier that no program can open, with the environment as it is.

    Raises:
        UsageError: ``bad-url`` or ``unknown-store``.
    """
    if is_remote(location):
        from jaxcache.store.object.store import check_url

        check_url(location)
    else:
        local_path(location)


def require_writable(store: "Store") -> None:
    """Refuse to change a cache that cannot be changed, before any work.

    Raises:
        NoCacheError: ``read-only``.
    """
    if not store.writable:
        raise NoCacheError(
            f"{store.url} cannot be written",
            code="read-only",
            hint="an http:// URL is only read; name the bucket by its own URL, such as s3://BUCKET/PREFIX"
            if store.remote
            else f"this user may not write there, or it is mounted read-only: ls -ld {store.url}",
        )


def local_path(location: str) -> str:
    """The path that a path or a ``file://`` URL names.

    Raises:
        UsageError: ``bad-url``, or ``unknown-store`` for any other URL.
    """
    check_location(location)
    scheme, separator, remainder = location.partition("://")
    if not separator:
        return location
    if scheme == "file":
        from urllib.parse import unquote

        host, slash, path = remainder.partition("/")
        if slash and host in ("", "localhost"):
            return unquote(slash + path, errors="surrogateescape")
        raise UsageError(
            f"{location} does not name an absolute path", code="bad-url", hint="file:///PATH"
        )
    raise UsageError(
        f"no store serves {scheme}://",
        code="unknown-store",
        hint=f"a path, or one of {', '.join(f'{s}://' for s in ('s3', 'gs', 'az', 'https'))}",
    )
