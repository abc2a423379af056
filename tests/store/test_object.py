"""The object store: the conformance suite against a real S3 server and in memory; faults."""

import hashlib
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conformance import StoreConformance
from conftest import RunCli, clean_environment
from hostile_bucket import serve
from object_server import CREDENTIALS, Proxy, S3Server, Seen, times
from processes import sh

from jaxcache.errors import JaxcacheError, NoCacheError, UsageError
from jaxcache.store import make_store, open_store
from jaxcache.store.base import ExistsError, MissingError, NewFile, Store, StoreError
from jaxcache.store.concurrency import map_ordered
from jaxcache.store.object import retry
from jaxcache.store.object import store as object_store
from jaxcache.store.object.retry import TRAFFIC, find_meaning
from jaxcache.store.object.store import open_object_store
from jaxcache.units import format_install


class TestS3(StoreConformance):
    """An S3 server keeps every promise, by the means that base.py names."""

    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return open_store(bucket)


class TestMemory(StoreConformance):
    """So does a store in memory."""

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Store:
        return open_store(f"memory://{request.node.nodeid.encode().hex()}-{id(request)}")


class TestAzure(StoreConformance):
    """And Azure's emulator, where there is one."""

    @pytest.fixture
    def store(self, azure: str) -> Store:
        return open_store(azure)


def test_a_url_says_which_store(bucket: str, tmp_path: Path) -> None:
    assert open_store(f"{bucket}/").url == bucket
    assert open_store(bucket).remote
    (tmp_path / "a b").mkdir()
    local = open_store(f"file://{tmp_path}/a%20b")
    assert (local.url, local.remote) == (str(tmp_path / "a b"), False)
    assert make_store(f"file://localhost{tmp_path}/new").url == str(tmp_path / "new")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("s3://key:secret@bucket/x", "bad-url"),
        ("s3://bucket/x?token=1", "bad-url"),
        ("https://host/x?signature=secret", "bad-url"),
        ("s3://key:secret@[x/", "bad-url"),
        ("s3:///x", "bad-url"),
        ("s3://bucket/x#y", "bad-url"),
        ("s3://[x/", "bad-url"),
        ("file://host/x", "bad-url"),
        ("ftp://host/x", "unknown-store"),
    ],
)
def test_urls_that_make_no_sense(url: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert caught.value.code == code
    assert "secret" not in caught.value.message


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['obstore'] = None\n"
        "from jaxcache.cli.main import run; sys.exit(run(['ls', '-C', 's3://bucket/x']))"
    )
    done = sh([sys.executable, "-c", script], env=clean_environment(tmp_path))
    assert (done.returncode, "buckets need jaxcache[remote]" in done.stderr) == (2, True)
    assert done.stderr.endswith(f"  hint: {format_install('remote')}\n")


@pytest.mark.parametrize("how", [500, "drop", "lose", "truncate", "slow"])
def test_every_request_survives_a_bad_network(bucket: str, s3: Proxy, how: int | str) -> None:
    store = open_store(bucket)
    data = bytes(range(256)) * 1000
    verbs = ["list", "head", "get", "put", "delete"]

    def fault(seen: Seen) -> int | str | None:
        if seen.verb not in verbs:
            return None
        verbs.remove(seen.verb)
        return how

    s3.fault = fault
    seen = store.write("a", [data], replace=False)
    assert store.fetch("a", limit=len(data)).data == data
    with store.open("a") as file:
        assert file.read() == data
    assert store.read("a", limit=10) == data[:10]
    assert [i.name for i in store.list()] == ["a"]
    assert store.delete("a", expected=seen)
    assert list(store.list()) == []


def test_a_write_whose_answer_was_lost_has_happened(bucket: str, s3: Proxy) -> None:
    store = open_store(bucket)
    s3.fault = times(1, "lose", "put")
    written = store.write("a", [b"mine"], replace=False)
    assert store.info("a").etag == written.etag
    s3.fault = times(1, "lose", "put")
    changed = store.rewrite(NewFile("a", [b"anew"]), written)
    assert store.read("a", limit=9) == b"anew"
    s3.fault = times(1, "drop", "put")
    with pytest.raises(ExistsError):  # that of another writer stays
        store.write("a", [b"other"], replace=False)
    assert store.info("a").etag == changed.etag


def test_an_object_that_is_not_what_was_sent_is_refused(bucket: str, s3_server: S3Server) -> None:
    store = open_store(bucket)
    store.write("a", [b"good"])
    s3_server.put(bucket, "a", b"evil", sha256=hashlib.sha256(b"good").hexdigest())
    for attempt in (lambda: store.fetch("a", limit=9), lambda: store.open("a")):
        with pytest.raises(StoreError) as caught:
            attempt()
        assert caught.value.code == "checksum-mismatch"


def test_a_time_that_no_file_can_have_is_none(bucket: str, s3_server: S3Server) -> None:
    store = open_store(bucket)
    for number, mtime in enumerate(("1e30", "-1", "1e999999", "nan", "2023-01-01", "99999999999")):
        s3_server.put(bucket, f"{number}", b"x", mtime=mtime)
        info = store.fetch(f"{number}", limit=9).info
        assert 0 < info.mtime_ns < 2**63
        assert abs(info.mtime_ns - time.time_ns()) < 10**13  # when it was put


def test_an_object_larger_than_any(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(bucket)
    store.write("a", [b"x" * 10])
    monkeypatch.setattr("jaxcache.store.object.store.MAX_OBJECT_BYTES", 10)
    with store.open("a") as file:
        assert file.read() == b"x" * 10
    monkeypatch.setattr("jaxcache.store.object.store.MAX_OBJECT_BYTES", 9)
    with pytest.raises(StoreError) as caught:
        store.open("a")
    assert caught.value.code == "too-large"


def test_a_name_that_sounds_like_an_error_is_missing_like_any_other(bucket: str) -> None:
    store = open_store(bucket)
    for word in ("NoSuchBucket", "ContainerNotFound", "SlowDown", "InvalidRange", "ExpiredToken"):
        with pytest.raises(MissingError):
            store.read(f"jit_{word}-{0:064x}-cache", limit=1)


def test_an_object_that_no_path_can_name_is_told(bucket: str, s3_server: S3Server) -> None:
    s3_server.fill(bucket, ["a-cache", "/b-cache"])
    with pytest.raises(NoCacheError) as caught:
        list(open_store(bucket).list())
    assert caught.value.code == "bad-name"
    assert caught.value.hint


def test_a_page_that_fails_is_asked_again(bucket: str, s3: Proxy, s3_server: S3Server) -> None:
    store = open_store(bucket)
    names = [f"jit_f-{i:064x}-cache" for i in range(1_100)]
    others = [f".jaxcache/quarantine/x/{i}" for i in range(1_100)]
    s3_server.fill(bucket, [*names, *others])
    before = TRAFFIC.requests["list"]
    found = {i.name: i.type for i in store.list()}
    assert found == {**dict.fromkeys(names, "file"), ".jaxcache": "dir"}
    # Of the directory, which fills the first pages, one page is read.
    assert s3.counts() == {"list": 3}
    assert TRAFFIC.requests["list"] - before == 3
    s3.forget()
    s3.fault = lambda seen: "truncate" if len(s3.seen) in (2, 4) else None
    assert len(list(store.walk(""))) == 2_200
    assert s3.counts() == {"list": 5}


def test_a_listing_that_was_requested_ahead_is_requested_once(bucket: str, s3: Proxy) -> None:
    store = open_object_store(bucket)
    store.write("a", [b"x"])
    s3.seen.clear()
    store.request_listings("", "d")
    assert [i.name for i in store.list()] == ["a"]
    assert list(store.list("d")) == []
    assert s3.counts() == {"list": 2}
    store.write("b", [b"x"])
    assert [i.name for i in store.list()] == ["a", "b"]


def test_a_delete_of_many_that_fails_is_told_of_each(bucket: str, s3: Proxy) -> None:
    store = open_store(bucket)
    seen = [store.write(f"n{i}", [b"x"]) for i in range(5)]

    def fault(request: Seen) -> int | None:
        return 409 if request.verb == "delete" and b"n3<" in request.body else None

    s3.fault = fault
    outcomes = list(store.delete_many(seen))
    assert [o is True for o in outcomes] == [True, True, True, False, True]
    assert isinstance(outcomes[3], StoreError)
    s3.forget()
    assert [i.name for i in store.list()] == ["n3"]


def test_a_web_server_without_webdav_is_read_by_name(tmp_path: Path) -> None:
    file = tmp_path / "my cache" / "a-cache"
    file.parent.mkdir()
    file.write_bytes(b"onetwo")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        store = open_store(f"http://127.0.0.1:{server.server_port}/my%20cache")
        assert store.read("a-cache", limit=3) == b"one"
        assert store.fetch("a-cache", limit=9).data == b"onetwo"
        assert not store.writable
        with pytest.raises(NoCacheError, match="does not list"):
            list(store.list())
        for attempt in (
            lambda: store.write("a", [b"x"]),
            lambda: store.rename("a-cache", "b"),
            lambda: store.delete("a-cache"),
        ):
            with pytest.raises(JaxcacheError):
                attempt()
        server.shutdown()
    assert file.read_bytes() == b"onetwo"


# Servers that mean harm, and settings that would send requests where nobody wants them.


@pytest.fixture
def hostile(request: pytest.FixtureRequest) -> Iterator[str]:
    """The endpoint of a server that does what the mode says."""
    with serve(request.param) as server:
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def requests_at(endpoint: str) -> int:
    with urllib.request.urlopen(f"{endpoint}/seen") as answer:
        return len(json.load(answer))


#: As the command line, with less patience for a listing that gives nothing, or long names.
IMPATIENT = (
    "import sys; from jaxcache.store.object import listing\n"
    "listing.PAGE_SECONDS, listing.MAX_LISTED_CHARACTERS = 2.0, 16 << 20\n"
    "from jaxcache.cli.main import run; sys.exit(run(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    "hostile", ["page", "empty", "large", "long", "wide", "trickle"], indirect=True
)
def test_a_listing_that_never_ends_is_given_up(hostile: str, tmp_path: Path) -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
    done = sh(
        [sys.executable, "-c", limits + IMPATIENT, "ls", "-C", "s3://b/x"],
        env=clean_environment(tmp_path) | CREDENTIALS | {"AWS_ENDPOINT_URL": hostile},
    )
    assert (done.returncode, "[bad-listing]" in done.stderr) == (10, True), done.stderr
    assert "Traceback" not in done.stderr
    assert requests_at(hostile) < 20_000


@pytest.mark.parametrize(
    "endpoint",
    [
        "not a url",
        "",
        "http://",
        "127.0.0.1:9",
        "http://127.0.0.1:99999",
        "http://[::1",
        "ftp://x",
        "http://me:hunter2@127.0.0.1:9",
        "http://127.0.0.1:9/?sig=hunter2",
    ],
)
def test_an_endpoint_that_is_none_is_refused(run_cli: RunCli, endpoint: str) -> None:
    done = run_cli(
        "ls", "-C", "s3://b/x", "--debug", env={**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}
    )
    assert (done.returncode, "[bad-url]" in done.stderr) == (2, True), done.stderr
    assert "AWS_ENDPOINT_URL" in done.stderr
    for word in ("hunter2", "panicked", "PanicException"):
        assert word not in done.stderr


@pytest.mark.parametrize("url", ["s3://b/x", "gs://b/x", "az://b/x"])
@pytest.mark.parametrize("hostile", ["page"], indirect=True)
def test_the_metadata_address_is_asked_only_where_somebody_wants_that(
    run_cli: RunCli, hostile: str, url: str, tmp_path: Path
) -> None:
    env = {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AWS_REGION": "us-east-1", "HOME": str(tmp_path)}
    done = run_cli("ls", "-C", url, env=env)
    assert done.returncode == 10, done.stderr
    assert "JAXCACHE_INSTANCE_CREDENTIALS" in done.stderr
    if url.startswith("s3"):
        run_cli("ls", "-C", url, env={**env, "AWS_METADATA_ENDPOINT": hostile})
        assert requests_at(hostile) > 0


@pytest.mark.parametrize("hostile", ["drip"], indirect=True)
def test_a_dripping_object(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte is in time for the connection, and all of them are not in time for the request."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": hostile}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(object_store._CLIENT, "timeout", timedelta(seconds=1))
    monkeypatch.setattr(retry, "_REPEAT_SECONDS", 0.5)
    store = open_store("s3://b/x")
    with pytest.raises(JaxcacheError):
        store.fetch("jit_f-cache", limit=1 << 20)
    assert requests_at(hostile) == 1


# Requests ahead of their use: in order, and no more at once than the budget takes.


def test_no_more_is_under_way_than_the_budget_takes() -> None:
    lock, held, most = threading.Lock(), 0, 0

    def work(cost: int) -> int:
        nonlocal held, most
        with lock:
            held += cost
            most = max(most, held)
        time.sleep(0.001)
        with lock:
            held -= cost
        return cost

    costs = [1 + n % 3 for n in range(200)] + [50] + [1] * 20
    found = list(map_ordered(work, costs, workers=8, cost=lambda c: c, budget=6, wait=True))
    assert found == costs
    assert most == 50  # alone


@pytest.mark.parametrize("workers", [1, 2, 32])
def test_requests_ahead_keep_the_order(workers: int) -> None:
    for count in (50, 0, 1):
        found = list(map_ordered(str, iter(range(count)), workers=workers))
        assert found == [str(n) for n in range(count)]


#: By the code of what is raised for an object: the HTTP statuses and the exceptions of obstore.
MEANINGS = {
    "missing": (404, "FileNotFoundError", "NotFoundError"),
    "exists": ("AlreadyExistsError",),
    "changed": (412, "PreconditionError"),
    "out-of-range": (416, "<Code>InvalidRange</Code>"),
    "bad-name": ("InvalidPathError", "ValueError", "UnicodeEncodeError"),
    "not-supported": (405, 501, "NotSupportedError", "NotImplementedError"),
    "no-credentials": (401, "UnauthenticatedError", "169.254.169.254"),
    "permission-denied": (403, "PermissionDeniedError"),
    "throttled": (429, 503, "<Code>SlowDown</Code>"),
    "server": (408, 500, 502, 504),
    "connection": ("error sending request for url",),
    "no-network": ("InvalidCertificate(UnknownIssuer)",),
    "no-bucket": ("<Code>NoSuchBucket</Code>",),
    "store-error": (301, 400, 418, 499, "GenericError"),
}
#: Those that a listing has instead.
OF_LISTINGS = {"missing": "no-cache", "not-supported": "no-listing"} | dict.fromkeys(
    (301, 307, 400), "bad-request"
)


@pytest.mark.parametrize("code", MEANINGS)
def test_what_an_answer_of_a_server_means(code: str) -> None:
    for answer in MEANINGS[code]:
        is_kind = str(answer).endswith("Error")
        kind = type(str(answer) if is_kind else "GenericError", (Exception,), {})
        text = f"status code: {answer}" if isinstance(answer, int) else answer
        for verb, name in (("get", "a"), ("list", "")):
            error = find_meaning(kind(text), url="s3://bucket", verb=verb, name=name)
            of_listing = OF_LISTINGS.get(answer, OF_LISTINGS.get(code, code))
            told = getattr(error, "again", None) or error.code
            assert told == (of_listing if verb == "list" else code), (answer, verb)
