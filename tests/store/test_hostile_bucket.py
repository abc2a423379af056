"""Servers that mean harm, and settings that would send requests where nobody wants them."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import REPOSITORY, RunCli
from object_server import CREDENTIALS
from processes import sh

from jaxcache.errors import JaxcacheError
from jaxcache.store import open_store

pytest.importorskip("obstore")
from jaxcache.store.object import retry
from jaxcache.store.object import store as object_store


@pytest.fixture
def hostile(request: pytest.FixtureRequest) -> Iterator[str]:
    """The endpoint of a server that does what the mode says."""
    process = subprocess.Popen(
        [sys.executable, REPOSITORY / "tests" / "helpers" / "hostile_bucket.py", request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    yield f"http://127.0.0.1:{process.stdout.readline().split()[0]}"
    process.kill()
    process.communicate()


def requests_at(endpoint: str) -> int:
    with urllib.request.urlopen(f"{endpoint}/seen") as answer:
        return len(json.load(answer))


#: As the command line, with less patience for a listing that gives nothing.
IMPATIENT = (
    "import sys; from jaxcache.store.object import listing; listing.PAGE_SECONDS = 2.0\n"
    "from jaxcache.cli.main import run; sys.exit(run(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    "hostile", ["page", "empty", "large", "long", "wide", "trickle"], indirect=True
)
def test_a_listing_that_never_ends_is_given_up(hostile: str, tmp_path: Path) -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
    done = sh(
        [sys.executable, "-c", limits + IMPATIENT, "ls", "-C", "s3://b/x"],
        env={
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": hostile,
            "PYTHONPATH": str(REPOSITORY),
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
        },
    )
    assert done.returncode == 10, done.stderr
    assert "[bad-listing]" in done.stderr
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
def test_an_endpoint_that_is_none_is_refused_without_repeating_its_password(
    run_cli: RunCli, endpoint: str
) -> None:
    done = run_cli(
        "ls", "-C", "s3://b/x", "--debug", env={**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}
    )
    assert done.returncode == 2, done.stderr
    assert "AWS_ENDPOINT_URL" in done.stderr
    assert "[bad-url]" in done.stderr
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
def test_an_object_that_drips_is_requested_once(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte is in time for the connection, and all of them are not in time for the request."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": hostile}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(object_store._CLIENT, "timeout", timedelta(seconds=1))
    monkeypatch.setattr(retry, "_REPEAT_SECONDS", 0.5)
    store = open_store("s3://b/x")
    with pytest.raises(JaxcacheError):
        store.fetch("jit_f-cache", limit=1 << 20)
    assert requests_at(hostile) == 1
