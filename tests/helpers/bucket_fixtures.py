"""Fixtures of buckets: a real S3 server behind a proxy, and Azure's emulator."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import RunCli

if TYPE_CHECKING:
    from object_server import Proxy, S3Server


@pytest.fixture(scope="session")
def s3_server() -> "Iterator[S3Server]":
    """A real S3 server process."""
    pytest.importorskip("moto")
    from object_server import run_s3_server

    with run_s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def _s3_proxy(s3_server: "S3Server") -> "Iterator[Proxy]":
    from object_server import run_proxy

    with run_proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def s3(_s3_proxy: "Proxy", monkeypatch: pytest.MonkeyPatch) -> "Iterator[Proxy]":
    """A proxy before the S3 server, which the environment points to."""
    from object_server import CREDENTIALS

    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": _s3_proxy.endpoint}).items():
        monkeypatch.setenv(name, value)
    _s3_proxy.forget()
    yield _s3_proxy
    _s3_proxy.forget()


@pytest.fixture
def bucket(s3: "Proxy", s3_server: "S3Server") -> str:
    """The URL of a directory in a bucket of one's own."""
    from object_server import make_bucket

    name = f"bucket-{os.urandom(6).hex()}"
    make_bucket(s3_server.endpoint, name)
    return f"s3://{name}/team/cache"


@pytest.fixture
def remote(run_cli: RunCli, local: Path, bucket: str, s3: "Proxy") -> str:
    """The entries of ``local`` in a bucket."""
    assert run_cli("push", bucket, "-C", local).returncode == 0
    s3.forget()
    return bucket


@pytest.fixture(scope="session")
def _azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = os.environ.get("JAXCACHE_TEST_AZURITE") or shutil.which("azurite-blob")
    if not program:
        pytest.skip("no azurite-blob (npm install azurite), and JAXCACHE_TEST_AZURITE is not set")
    from object_server import run_azurite

    with run_azurite(program, tmp_path_factory.mktemp("azurite")) as port:
        yield port


@pytest.fixture
def azure(_azurite: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a directory in a container of Azure's emulator."""
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{_azurite}")
    return f"az://container/{os.urandom(6).hex()}"
