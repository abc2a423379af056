"""Buckets: a real S3 server process, a proxy before it that counts and spoils requests, Azure's."""

import base64
import contextlib
import email.utils
import hmac
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from conftest import RunCli

#: What S3 clients read; the server believes any key.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
_HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive"}


#: Lines of JSON on its standard input fill buckets: filling goes past HTTP because a test of ten
#: thousand objects must not take a minute to set up.
_S3_SERVER = """
import json, logging, sys
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
for line in sys.stdin:
    order = json.loads(line)
    backend = s3_backends["123456789012"]["aws"]
    for name in order["names"]:
        backend.put_object(order["bucket"], name, order["data"].encode())
    print("done", flush=True)
server.stop()
"""


class S3Server:
    """A server process and its URL."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin and process.stdout
        self._in, self._out = process.stdin, process.stdout
        self.endpoint = f"http://127.0.0.1:{int(self._out.readline())}"

    def fill(self, url: str, names: Iterable[str], data: str = "x") -> None:
        """Make many equal objects."""
        bucket, _, directory = url.removeprefix("s3://").partition("/")
        order = {"bucket": bucket, "names": [f"{directory}/{n}" for n in names], "data": data}
        self._in.write(json.dumps(order) + "\n")
        self._in.flush()
        assert self._out.readline() == "done\n"

    def put(self, url: str, name: str, data: bytes, **metadata: str) -> None:
        """Put an object past the proxy and past jaxcache, as any other client would."""
        headers = {f"x-amz-meta-{field}": value for field, value in metadata.items()}
        headers |= {"Content-Type": "application/octet-stream", "Authorization": "AWS any:key"}
        place = f"{self.endpoint}/{url.removeprefix('s3://')}/{name}"
        request = urllib.request.Request(place, data, headers, method="PUT")
        urllib.request.urlopen(request).close()


@contextlib.contextmanager
def run_s3_server() -> Iterator[S3Server]:
    """Run moto's server on a port of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", _S3_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"},
    )
    try:
        yield S3Server(process)
    finally:
        process.kill()
        process.communicate()


def make_bucket(endpoint: str, name: str) -> None:
    """Make a bucket."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()


@dataclass
class Seen:
    """One request that came through."""

    method: str
    name: str
    """Of the object, without its bucket."""
    query: dict[str, list[str]]
    body: bytes
    status: int = 0

    @property
    def verb(self) -> str:
        """As :mod:`jaxcache.store.object.retry` names it."""
        if self.method == "GET":
            return "list" if "list-type" in self.query else "get"
        return "delete" if self.method == "POST" else self.method.lower()


#: Spoils a request: gets it and says how, or None.
#: A number is a status, "drop" closes before anything happens, "lose" closes after the server has
#: done it, "truncate" sends half of the answer, "shorten" does and announces no more, "junk" sends
#: as many other bytes, "slow" waits a moment, "hang" answers nothing until the proxy ends,
#: "drip" sends the answer a byte now and then.
Fault = Callable[[Seen], "int | str | None"]


@dataclass
class Proxy:
    """What passed, and what is to be spoiled."""

    endpoint: str = ""
    seen: list[Seen] = field(default_factory=list)
    fault: Fault | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    def counts(self) -> Counter[str]:
        """Requests by verb."""
        return Counter(s.verb for s in self.seen)

    def names(self, verb: str) -> list[str]:
        """Objects that such requests were about."""
        return [s.name for s in self.seen if s.verb == verb]

    def forget(self) -> None:
        """Begin anew."""
        with self.lock:
            self.seen.clear()
            self.fault = None


def times(count: int, how: "int | str", *verbs: str) -> Fault:
    """Spoil the first ``count`` requests of these kinds."""
    left = iter([how] * count)  # which is safe between threads
    return lambda seen: next(left, None) if seen.verb in verbs else None


@contextlib.contextmanager
def run_proxy(upstream: str) -> Iterator[Proxy]:
    """Run a proxy before a server."""
    proxy = Proxy()
    host = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle_one_request()

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            name = unquote(parts.path.lstrip("/").partition("/")[2])
            seen = Seen(self.command, name, parse_qs(parts.query, keep_blank_values=True), body)
            with proxy.lock:
                proxy.seen.append(seen)
                fault = proxy.fault
            how = fault(seen) if fault else None  # it may wait, each request by itself
            if how == "hang":
                proxy.ended.wait()
            if how in ("drop", "hang"):
                self.close_connection = True
                return
            if isinstance(how, int):
                seen.status = how
                self.answer(how, [], b"<Error><Code>Spoiled</Code></Error>")
                return
            if how == "slow":
                time.sleep(0.3)
            with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                data = answer.read()
                seen.status = answer.status
                length = answer.getheader("Content-Length")
            if how == "lose":
                self.close_connection = True
                return
            if how == "shorten":
                data = data[: len(data) // 2]
            if how == "junk":
                data = os.urandom(len(data))
            self.answer(answer.status, answer.getheaders(), data, length, how)

        def answer(
            self,
            status: int,
            headers: list[tuple[str, str]],
            data: bytes,
            length: str | None = None,
            how: str | None = None,
        ) -> None:
            self.send_response_only(status)
            for header, value in headers:
                if header.lower() not in _HOP_HEADERS:
                    self.send_header(header, value)
            # The answer to HEAD announces a length and has no body.
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            if how == "drip":
                for place in range(len(data)):
                    self.wfile.write(data[place : place + 1])
                    if proxy.ended.wait(0.05):
                        break
                return
            is_half = how == "truncate"
            self.wfile.write(data[: len(data) // 2] if is_half else data)
            self.close_connection = self.close_connection or is_half

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


#: The emulator's well-known account (Microsoft Learn, "Use the Azurite emulator").
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@contextlib.contextmanager
def run_azurite(program: str, directory: Path) -> Iterator[int]:
    """Run Azure's blob emulator with a container; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [program, "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
    )
    try:
        assert process.stdout
        while "successfully listen" not in process.stdout.readline():
            if process.poll() is not None:
                raise RuntimeError("the Azure emulator did not start")
        _make_container(port)
        yield port
    finally:
        process.kill()
        process.communicate()


def _make_container(port: int) -> None:
    """Ask for a container, signed as Azure wants it."""
    date = email.utils.formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-12-02"
    resource = f"/{_AZURE_ACCOUNT}/{_AZURE_ACCOUNT}/container\nrestype:container"
    text = "PUT" + "\n" * 12 + f"{headers}\n{resource}"
    digest = hmac.digest(base64.b64decode(_AZURE_KEY), text.encode(), "sha256")
    signature = base64.b64encode(digest).decode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(
        "PUT",
        f"/{_AZURE_ACCOUNT}/container?restype=container",
        headers={
            "x-ms-date": date,
            "x-ms-version": "2021-12-02",
            "Content-Length": "0",
            "Authorization": f"SharedKey {_AZURE_ACCOUNT}:{signature}",
        },
    )
    assert connection.getresponse().status == 201
    connection.close()


# Fixtures.


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server process."""
    pytest.importorskip("moto")
    with run_s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def _s3_proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with run_proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def s3(_s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the S3 server, which the environment points to."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": _s3_proxy.endpoint}).items():
        monkeypatch.setenv(name, value)
    _s3_proxy.forget()
    yield _s3_proxy
    _s3_proxy.forget()


@pytest.fixture
def bucket(s3: Proxy, s3_server: S3Server) -> str:
    """The URL of a directory in a bucket of one's own."""
    name = f"bucket-{os.urandom(6).hex()}"
    make_bucket(s3_server.endpoint, name)
    return f"s3://{name}/team/cache"


@pytest.fixture
def remote(run_cli: RunCli, local: Path, bucket: str, s3: Proxy) -> str:
    """The entries of ``local`` in a bucket."""
    assert run_cli("push", bucket, "-C", local).returncode == 0
    s3.forget()
    return bucket


@pytest.fixture(scope="session")
def _azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = os.environ.get("JAXCACHE_TEST_AZURITE") or shutil.which("azurite-blob")
    if not program:
        pytest.skip("no azurite-blob (npm install azurite), and JAXCACHE_TEST_AZURITE is not set")
    with run_azurite(program, tmp_path_factory.mktemp("azurite")) as port:
        yield port


@pytest.fixture
def azure(_azurite: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a directory in a container of Azure's emulator."""
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{_azurite}")
    return f"az://container/{os.urandom(6).hex()}"
