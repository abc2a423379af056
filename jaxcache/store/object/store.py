"""A cache in an object store. The promises, and what takes the place of which: store/base.py.

Credentials and endpoints come from the environment variables that each provider's own tools use;
docs/remote.md lists them.
"""

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from jaxcache.core import remote as remote_names
from jaxcache.errors import NoCacheError, UsageError
from jaxcache.model import FileInfo
from jaxcache.store import base
from jaxcache.store.concurrency import map_ordered
from jaxcache.store.object import retry
from jaxcache.store.object.listing import ListPager, attributes_of, digest_in, file_info, info_of
from jaxcache.units import format_install

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_Result = TypeVar("_Result")
#: The most that S3 takes in one request (5 GiB, "Amazon S3 quotas"), and far more than the 2 GiB
#: that a serialized executable can have.
MAX_OBJECT_BYTES = 5 << 30
#: Opened objects up to this size are held in memory, larger ones in a temporary file.
_HELD_BYTES = 1 << 20
#: Up to this many objects are looked at one by one before they are deleted, more by a listing.
_LOOK_SINGLY = 100
#: Keys in one deleting request of S3.
_DELETE_AT_ONCE = 1000


class ObjectStore:
    """Objects under one prefix of a bucket; :class:`jaxcache.store.base.Store` has the contract.

    Args:
        client: an obstore store that does not retry by itself.
        url: what to call it; without credentials, and without a slash at its end.
        can_skip: the service lists in order of names, and can begin anywhere.
        writable: False refuses writes before they are tried; credentials may still forbid them.
    """

    keeps_atime = False
    remote = True
    path = None
    root = None  # who may do what is a matter of the provider's policies

    def __init__(self, client: Any, url: str, *, can_skip: bool, writable: bool = True) -> None:
        self.url = url
        self.writable = writable
        self._client = client
        self._requests = retry.Requests(url)
        self._lister = ListPager(client, self._requests, can_skip=can_skip)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def request_listings(self, *prefixes: str) -> None:
        """Send the first requests of the next listings of directories, before they are awaited."""
        for prefix in prefixes:
            self._lister.request_ahead(_lead(prefix))

    def list(self, prefix: str = "", *, start: str = "") -> Iterator[FileInfo]:
        """Yield the files in a directory; its directories are inferred from objects below them."""
        lead = _lead(prefix)
        directories: set[str] = set()
        first = lead + start[:-1] if start else None
        for meta in self._lister.objects(lead, after=first, past_directories=True):
            name = meta["path"][len(lead) :]
            if not name.startswith(start):
                if self._lister.can_skip and name > start:
                    return
                continue
            directory, inside, _ = name.partition("/")
            if not inside:
                if directory:  # the prefix itself, which some tools make an empty object of
                    yield info_of(meta)
            elif directory not in directories:
                directories.add(directory)
                yield FileInfo(lead + directory, "dir", 0, 0, 0, 0, 0, -1)

    def walk(self, prefix: str) -> Iterator[FileInfo]:
        lead = _lead(prefix)
        yield from (info_of(m) for m in self._lister.objects(lead) if len(m["path"]) > len(lead))

    def info(self, name: str) -> FileInfo:
        return self._get(
            "head", name, lambda result: info_of(result.meta, result.attributes), head=True
        )

    def read(self, name: str, *, limit: int) -> bytes:
        base.check_name(name)
        if not limit:
            return b""
        try:
            data = self._get("get", name, partial(self._receive, name), range=(0, limit))
        except retry.OutOfRangeError:
            return b""
        except base.StoreError as error:
            if error.code != "no-ranges":
                raise
            with self.open(name) as file:  # a simple web server
                return file.read(limit)
        retry.TRAFFIC.add(received_bytes=len(data))
        return data

    def read_many(self, names: Sequence[str], *, limit: int) -> Iterator[bytes | base.StoreError]:
        return map_ordered(lambda name: base.or_error(lambda: self.read(name, limit=limit)), names)

    def open(self, name: str) -> BinaryIO:
        """Copy an object to where it can be read back and forth, in one request.

        Raises:
            MissingError, StoreError: ``checksum-mismatch`` where it was written with a digest
                that does not fit.
        """

        def take(result: Any) -> BinaryIO:
            # which a read result no longer contains
            meta = result.meta
            attributes = result.attributes
            _check_size(name, meta, MAX_OBJECT_BYTES)
            file = tempfile.SpooledTemporaryFile(_HELD_BYTES)  # noqa: SIM115 - the caller's
            digest = hashlib.sha256()
            try:
                for chunk in self._requests.receive(name, result):
                    file.write(chunk)
                    digest.update(chunk)
                _check_whole(file.tell(), meta)
                _check_digest(name, digest.hexdigest(), attributes)
                file.seek(0)
            except BaseException:
                file.close()
                raise
            retry.TRAFFIC.add(received_bytes=meta["size"])
            return cast("BinaryIO", file)

        return self._get("get", name, take)

    def open_many(self, names: Sequence[str]) -> Iterator[BinaryIO | base.StoreError]:
        return map_ordered(lambda name: base.or_error(lambda: self.open(name)), names)

    def fetch(self, name: str, *, limit: int) -> base.FetchedFile:
        """Read a whole object; the digest that it was written with is checked.

        Objects of other writers have none.
        """

        def take(result: Any) -> base.FetchedFile:
            meta = result.meta
            attributes = result.attributes
            _check_size(name, meta, limit)
            data = self._receive(name, result)
            _check_whole(len(data), meta)
            retry.TRAFFIC.add(received_bytes=len(data))
            if digest_in(attributes) is not None:
                _check_digest(name, hashlib.sha256(data).hexdigest(), attributes)
            return base.FetchedFile(data, info_of(meta, attributes))

        return self._get("get", name, take)

    def _receive(self, name: str, result: Any) -> bytes:
        return b"".join(self._requests.receive(name, result))

    def _get(
        self, verb: retry.Verb, name: str, take: Callable[[Any], _Result], **options: Any
    ) -> _Result:
        import obstore

        base.check_name(name)
        return self._requests.send(
            verb, name, lambda: take(obstore.get(self._client, name, options=cast("Any", options)))
        )

    def write(
        self,
        name: str,
        chunks: Iterable[bytes],
        *,
        mtime_ns: int | None = None,
        replace: bool = True,
    ) -> FileInfo:
        """Write an object; all of it is held in memory."""
        base.check_name(name)
        return self._put(name, chunks, "overwrite" if replace else "create", mtime_ns)

    def write_many(self, files: Sequence[base.NewFile]) -> Iterator[FileInfo | base.StoreError]:
        return (base.or_error(partial(self._write_new, file)) for file in files)

    def sync_names(self, names: Iterable[str]) -> None:
        """An object is durable when it has its name."""

    def _write_new(self, file: base.NewFile) -> FileInfo:
        name, chunks, mtime_ns, replace, expected = file
        if expected is not None:
            return self.rewrite(file, expected)
        return self.write(name, chunks, mtime_ns=mtime_ns, replace=replace)

    def rewrite(self, file: base.NewFile, expected: FileInfo, guard: base.Guard = None) -> FileInfo:
        name, chunks, mtime_ns, *_ = file
        try:
            meta, before = self._get(
                "head", name, lambda now: (now.meta, info_of(now.meta, now.attributes)), head=True
            )
        except base.MissingError as error:
            raise base.ChangedError(name) from error
        if not base.same_file(before, expected):
            raise base.ChangedError(name)
        data = b"".join(chunks)
        unchanged = {n: meta[n] for n in ("e_tag", "version") if meta[n]}  # GCS goes by the latter
        with guard or nullcontext():
            now_ns = before.mtime_ns if mtime_ns is None else mtime_ns
            return self._put(name, [data], unchanged, now_ns)

    def _put(self, name: str, chunks: Iterable[bytes], mode: Any, mtime_ns: int | None) -> FileInfo:
        import obstore

        if not self.writable:
            raise base.StoreError(name, f"{self.url} is read-only", code="read-only")
        data = b"".join(chunks)
        if len(data) > MAX_OBJECT_BYTES:
            raise base.StoreError(name, f"{len(data)} bytes are too many for an object")
        digest = hashlib.sha256(data).hexdigest()
        attributes = attributes_of(digest, mtime_ns)
        tries = 0

        def put() -> Any:
            nonlocal tries
            tries += 1
            return obstore.put(
                self._client, name, data, mode=mode, attributes=attributes, use_multipart=False
            )

        try:
            done = self._requests.send("put", name, put, sent_bytes=len(data))
        except (base.ExistsError, base.ChangedError):
            # The first try may have arrived though its answer did not.
            if tries > 1 and (ours := self._if_ours(name, digest)) is not None:
                return ours
            raise
        now_ns = time.time_ns() if mtime_ns is None else mtime_ns
        return file_info(name, len(data), now_ns, done)

    def _if_ours(self, name: str, digest: str) -> FileInfo | None:
        def take(result: Any) -> FileInfo | None:
            same = digest_in(result.attributes) == digest
            return info_of(result.meta, result.attributes) if same else None

        try:
            return self._get("head", name, take, head=True)
        except base.MissingError:
            return None

    def rename(self, name: str, new_name: str, *, replace: bool = False) -> None:
        """Write under the new name, then delete: see :mod:`jaxcache.store.base`."""
        base.check_name(new_name)
        data, info = self.fetch(name, limit=MAX_OBJECT_BYTES)
        self._put(new_name, [data], "overwrite" if replace else "create", info.mtime_ns)
        self.delete(name, expected=info)

    def delete(self, name: str, *, expected: FileInfo | None = None) -> bool:
        """Look, then delete: see :mod:`jaxcache.store.base`."""
        try:
            now = self.info(name)
        except base.MissingError:
            return False
        if expected is not None and not base.same_file(now, expected):
            return False
        return self._delete_one(name)

    def delete_many(self, files: Sequence[FileInfo]) -> Iterator[base.StoreError | bool]:
        """Delete what is still as it was seen; cheapest where sorted by name."""
        for start in range(0, len(files), _DELETE_AT_ONCE):
            batch = files[start : start + _DELETE_AT_ONCE]
            now = self._look(batch)
            same = [f.name for f in batch if f.name in now and base.same_file(now[f.name], f)]
            outcomes = dict(zip(same, self._delete_each(same), strict=True))
            yield from (outcomes.get(file.name, False) for file in batch)

    def _delete_each(self, names: Sequence[str]) -> Iterator[base.StoreError | bool]:
        """Delete in one request; where that fails, one by one, to know which of them it was."""
        try:
            if names:
                self._delete(names)
        except base.StoreError:
            yield from map_ordered(
                lambda name: base.or_error(lambda: self._delete_one(name)), names
            )
        else:
            yield from (True for _ in names)

    def _delete_one(self, name: str) -> bool:
        with suppress(
            base.MissingError
        ):  # an earlier try may have arrived though its answer did not
            self._delete([name])
        return True

    def _look(self, files: Sequence[FileInfo]) -> dict[str, FileInfo]:
        """Return their current state: one listing of that stretch of names, or one request each."""
        if len(files) > _LOOK_SINGLY and self._lister.can_skip:
            names = {f.name for f in files}
            last = max(names)
            infos = {}
            for meta in self._lister.objects("", after=min(names)[:-1]):
                if meta["path"] in names:
                    infos[meta["path"]] = info_of(meta)
                if meta["path"] >= last:
                    break
            return infos
        looks = map_ordered(lambda file: base.or_error(lambda: self.info(file.name)), files)
        return {info.name: info for info in looks if isinstance(info, FileInfo)}

    def _delete(self, names: Sequence[str]) -> None:
        import obstore

        if not self.writable:
            raise base.StoreError(names[0], f"{self.url} is read-only", code="read-only")
        self._requests.send("delete", names[0], lambda: obstore.delete(self._client, names))

    def delete_abandoned(self, name: str) -> bool:  # noqa: ARG002
        """Never: an object is whole, or not there."""
        return False

    def hold(self, name: str) -> AbstractContextManager[None]:
        """Hold nothing: no other process could check whether the writer still lives."""
        base.check_name(name)
        return nullcontext()

    def lock(self, *, timeout_seconds: float) -> AbstractContextManager[None]:  # noqa: ARG002
        """Hold nothing: no other process would respect it; see :mod:`jaxcache.store.base`."""
        return nullcontext()


def _lead(prefix: str) -> str:
    return f"{base.check_name(prefix.rstrip('/'))}/" if prefix else ""


def _check_size(name: str, meta: Any, limit: int) -> None:
    if meta["size"] > limit:
        raise base.StoreError(name, f"holds more than {limit} bytes", code="too-large")


def _check_whole(seen_bytes: int, meta: Any) -> None:
    if seen_bytes != meta["size"]:  # worded as retry.py knows a broken connection
        raise OSError(f"unexpected end: {seen_bytes} of {meta['size']} bytes")


def _check_digest(name: str, computed: str, attributes: Any) -> None:
    digest = digest_in(attributes)
    if digest is not None and digest != computed:
        raise base.StoreError(name, "its bytes are not the ones sent", code="checksum-mismatch")


#: A stalled connection is given up after the first; a slow transfer of a large entry after the
#: second.
_CLIENT = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=60),
    "timeout": timedelta(minutes=15),
}
#: Memory stores of this process, by the name in their URL.
_MEMORY: dict[str, Any] = {}


def open_object_store(url: str) -> ObjectStore:
    """Open the store at a URL. No request is sent: what is wrong there shows at the first one.

    Raises:
        UsageError: the URL is malformed, or holds credentials; ``no-obstore`` without the extra.
        NoCacheError: ``no-credentials`` where the configuration of the environment is unusable.
    """
    parts = check_url(url)
    service = remote_names.SERVICES[parts.scheme]
    with _as_usage_errors():
        options = remote_names.connection(service, _CLIENT)
    shown = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    obstore = _import_obstore()
    if service == "memory":
        client = _MEMORY.setdefault(shown, obstore.store.MemoryStore())
    else:
        client = _connect(obstore, url, shown, service, options)
    can_skip = service in ("s3", "gs")
    return ObjectStore(client, shown, can_skip=can_skip, writable=service != "http")


def check_url(url: str) -> "SplitResult":
    """Split the URL of a store that a program can open with the environment as it is.

    Raises:
        UsageError: ``bad-url``.
    """
    with _as_usage_errors():
        parts = remote_names.split_url(url)
        if remote_names.SERVICES[parts.scheme] != "memory":
            remote_names.check_endpoints()
        return parts


@contextlib.contextmanager
def _as_usage_errors() -> Iterator[None]:
    try:
        yield
    except remote_names.RemoteError as error:
        raise UsageError(str(error), code="bad-url", hint=error.hint) from error


def _import_obstore() -> Any:
    try:
        import obstore.store
    except ImportError as error:
        raise UsageError(
            "buckets need jaxcache[remote]", code="no-obstore", hint=format_install("remote")
        ) from error
    return obstore


def _connect(obstore: Any, url: str, shown: str, service: str, options: Mapping[str, Any]) -> Any:
    if "credential_provider" not in options and not remote_names.has_credentials(service):
        raise NoCacheError(
            f"no credentials for {shown}",
            code="no-credentials",
            hint=f"{retry.CREDENTIAL_HINTS[service]}; JAXCACHE_INSTANCE_CREDENTIALS=true for those "
            "that a cloud gives its machines",
        )
    try:
        return obstore.store.from_url(url, **options)
    except Exception as error:
        failure = retry.find_meaning(error, url=shown, verb="list", name="")
        if failure.code in ("no-credentials", "no-bucket"):
            raise failure from error
        raise UsageError(
            f"cannot open {shown}: {retry.first_line(str(error))}", code="bad-url"
        ) from error
