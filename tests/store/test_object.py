"""The object store: the conformance suite against a real S3 server and in memory; faults."""

import hashlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import clean_environment
from object_server import Proxy, S3Server, Seen, times
from processes import sh

sys.path.insert(0, str(Path(__file__).parent))
from conformance import StoreConformance

from jaxcache.errors import JaxcacheError, NoCacheError, UsageError
from jaxcache.store import make_store, open_store
from jaxcache.store.base import ExistsError, MissingError, NewFile, Store, StoreError
from jaxcache.store.object.retry import TRAFFIC
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
    made = make_store(f"file://localhost{tmp_path}/new")
    assert made.url == str(tmp_path / "new")


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


def test_a_bucket_that_is_not_there(s3: Proxy) -> None:
    store = open_store("s3://no-such-bucket/x")
    for attempt in (lambda: list(store.list()), lambda: store.write("a", [b"x"])):
        with pytest.raises(NoCacheError) as caught:
            attempt()
        assert caught.value.code == "no-bucket"
        assert "s3://no-such-bucket/x" in caught.value.message


def test_no_credentials_at_all(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(NoCacheError) as caught:
        list(open_store(bucket).list())
    assert caught.value.code == "no-credentials"
    assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "")


def test_every_scheme_of_a_service_has_its_hint(bucket: str, s3: Proxy) -> None:
    s3.fault = times(99, 401, "list")
    with pytest.raises(NoCacheError) as caught:
        list(open_store(bucket.replace("s3://", "s3a://")).list())
    assert caught.value.code == "no-credentials"
    assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "")


def test_nobody_listens(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(NoCacheError) as caught:
        list(open_store(bucket).list())
    assert caught.value.code == "no-network"


@pytest.mark.parametrize(
    ("status", "verb", "code"),
    [
        (403, "list", "permission-denied"),
        (403, "get", "permission-denied"),
        (403, "put", "read-only"),
        (401, "list", "no-credentials"),
    ],
)
def test_refusals_have_names(bucket: str, s3: Proxy, status: int, verb: str, code: str) -> None:
    store = open_store(bucket)
    store.write("a", [b"x"])
    s3.fault = times(99, status, verb)
    attempt = {
        "list": lambda: list(store.list()),
        "get": lambda: store.read("a", limit=1),
        "put": lambda: store.write("b", [b"x"]),
    }[verb]
    with pytest.raises(JaxcacheError) as caught:
        attempt()
    assert caught.value.code == code
    assert len([s for s in s3.seen if s.status == status]) == 1  # asked once


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['obstore'] = None\n"
        "from jaxcache.cli.main import run; sys.exit(run(['ls', '-C', 's3://bucket/x']))"
    )
    done = sh([sys.executable, "-c", script], env=clean_environment(tmp_path))
    assert done.returncode == 2
    assert "buckets need jaxcache[remote]" in done.stderr
    assert done.stderr.endswith(f"  hint: {format_install('remote')}\n")


@pytest.mark.parametrize("how", [500, 502, "drop", "lose", "truncate", "slow"])
def test_every_request_survives_a_bad_network(bucket: str, s3: Proxy, how: int | str) -> None:
    store = open_store(bucket)
    data = bytes(range(256)) * 1000
    verbs = ("list", "head", "get", "put", "delete")

    def fault(seen: object, spoilt: set[str] = set()) -> int | str | None:  # noqa: B006
        verb = seen.verb  # type: ignore[attr-defined]
        if verb in verbs and verb not in spoilt:
            spoilt.add(verb)
            return how
        return None

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


def test_throttling_slows_down_and_says_so(
    bucket: str, s3: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(bucket)
    before = TRAFFIC.throttled
    s3.fault = times(2, 503, "put")
    store.write("a", [b"x"])
    s3.fault = times(1, 429, "get")
    assert store.read("a", limit=1) == b"x"
    assert TRAFFIC.throttled - before == 3
    said = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 1, "once in a while is enough"
    assert f"{bucket} asks to slow down" in said[0]


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


def test_an_object_larger_than_any_is_not_copied(
    bucket: str, s3: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.store.object.store.MAX_OBJECT_BYTES", 10)
    store = open_store(bucket)
    store.write("a", [b"x" * 10])
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


def test_a_long_listing_is_paged_and_a_page_that_fails_is_asked_again(
    bucket: str, s3: Proxy, s3_server: S3Server
) -> None:
    store = open_store(bucket)
    names = [f"jit_f-{i:064x}-cache" for i in range(2_100)]
    others = [f".jaxcache/quarantine/x/{i}" for i in range(2_100)]
    s3_server.fill(bucket, [*names, *others])
    before = TRAFFIC.requests["list"]
    found = {i.name: i.type for i in store.list()}
    assert found == {**dict.fromkeys(names, "file"), ".jaxcache": "dir"}
    # Of the directory, which fills the first pages, one page is read.
    assert s3.counts() == {"list": 4}
    assert TRAFFIC.requests["list"] - before == 4
    s3.forget()
    s3.fault = lambda seen: "truncate" if len(s3.seen) in (2, 5) else None
    assert len(list(store.walk(""))) == 4_200
    assert s3.counts() == {"list": 7}


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


def test_two_that_write_the_same_name_do_not_mix(bucket: str) -> None:
    stores = [open_store(bucket) for _ in range(4)]
    won: list[int] = []

    def write(number: int) -> None:
        try:
            stores[number].write("a", [bytes([number]) * 50_000], replace=False)
            won.append(number)
        except ExistsError:
            pass

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].read("a", limit=60_000) in [bytes([n]) * 50_000 for n in won]


def test_many_deletes_are_few_requests(bucket: str, s3: Proxy, s3_server: S3Server) -> None:
    store = open_store(bucket)
    s3_server.fill(bucket, [f"n{i:04d}" for i in range(1_500)])
    seen = sorted(store.list())
    changed = store.write("n0007", [b"changed"])
    s3.forget()
    outcomes = list(store.delete_many(seen))
    assert outcomes == [info.name != changed.name for info in seen]
    assert [i.name for i in store.list()] == ["n0007"]
    assert s3.counts()["delete"] == 2
    assert s3.counts()["head"] == 0


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


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory and the URL under which the standard library's web server shows it."""
    directory = tmp_path / "www" / "my cache"
    directory.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=directory.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    port = process.stdout.readline().split(" port ")[1].split()[0]
    yield directory, f"http://127.0.0.1:{port}/my%20cache"
    process.kill()
    process.communicate()


def test_a_web_server_without_webdav_is_read_by_name_and_never_listed_or_written(
    web: tuple[Path, str],
) -> None:
    directory, url = web
    store = open_store(url)
    (directory / "a-cache").write_bytes(b"onetwo")
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
    assert (directory / "a-cache").read_bytes() == b"onetwo"


def test_no_web_server_at_all() -> None:
    with pytest.raises(NoCacheError):
        list(open_store("http://127.0.0.1:9/x").list())
