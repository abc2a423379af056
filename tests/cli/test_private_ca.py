"""Buckets behind a proxy whose certificate only a private authority vouches for."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RunCli
from object_server import Proxy

pytest.importorskip("cryptography")
from tls_proxy import TlsProxy, run_tls_proxy

#: A name of Kubernetes, as where MinIO serves a cluster; only the proxy knows it.
HOST = "objects.team.svc.cluster.local"
ENTRIES = 7


@pytest.fixture
def behind(s3: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsProxy]:
    """A proxy through which the bucket is reached, and which nobody trusts yet."""
    for name in ("AWS_ALLOW_HTTP", "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with run_tls_proxy(s3.endpoint, HOST, tmp_path) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://{HOST}")
        yield proxy


def entries(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*-cache")}


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_push_and_pull_through_a_proxy_with_a_private_authority(
    spawn_cli: RunCli, bucket: str, local: Path, tmp_path: Path, behind: TlsProxy, variable: str
) -> None:
    trust = {variable: str(behind.authority)}
    pushed = spawn_cli("push", bucket, "-C", local, env=trust)
    assert pushed.returncode == 0, pushed.stderr
    pulled = spawn_cli("pull", bucket, "-C", tmp_path / "new", env=trust)
    assert pulled.returncode == 0, pulled.stderr
    assert entries(tmp_path / "new") == entries(local)
    assert len(entries(local)) == ENTRIES
    assert set(behind.tunnels) == {f"{HOST}:443"}


def test_an_authority_that_nobody_trusts_is_named_as_the_cause(
    spawn_cli: RunCli, bucket: str, local: Path, behind: TlsProxy
) -> None:
    done = spawn_cli("push", bucket, "-C", local)
    assert done.returncode == 10, done.stderr
    assert "certificate" in done.stderr
    assert "AWS_CA_BUNDLE" in done.stderr


@pytest.mark.parametrize(
    ("content", "fault"), [(None, "cannot be read"), ("text", "holds no certificate")]
)
def test_a_bundle_without_certificates_is_refused_by_name(
    run_cli: RunCli,
    bucket: str,
    local: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    fault: str,
) -> None:
    path = tmp_path / "authorities.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    done = run_cli("push", bucket, "-C", local)
    assert done.returncode == 2, done.stderr
    assert f"AWS_CA_BUNDLE names {path}, which {fault}" in done.stderr


@pytest.mark.jax
def test_a_tier_behind_the_proxy_is_hit(
    spawn_cli: RunCli, bucket: str, jax_python: str, tmp_path: Path, behind: TlsProxy
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import jax; print(jax.jit(lambda x: x * 2 + 1)(20.5))\n")
    trust = {"AWS_CA_BUNDLE": str(behind.authority)}

    def run(*words: str) -> None:
        shutil.rmtree(tmp_path / "own", ignore_errors=True)
        command = ("warm", "--live", "--portable", "--tier", bucket, "-C", tmp_path / "own")
        done = spawn_cli(*command, *words, "--python", jax_python, program, env=trust)
        assert done.returncode == 0, done.stderr

    run()
    run("--fail-on-miss")
    assert behind.tunnels
