"""``trust``, and what signatures allow."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import RunCli


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / "0.4.38-cpu-zstd", tmp_path / "cache"))


@pytest.fixture
def key(run_cli: RunCli) -> str:
    pytest.importorskip("cryptography")
    done = run_cli("trust", "keygen", "ci")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().partition("\t")[2]


def require_signed(tmp_path: Path) -> None:
    directory = tmp_path / ".config" / "jaxcache"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.toml").write_text("require-signed = true\n")


def test_trust(run_cli: RunCli, key: str, cache: Path, tmp_path: Path) -> None:
    private = tmp_path / ".config" / "jaxcache" / "ci.key"
    assert private.stat().st_mode & 0o777 == 0o600
    unsigned, signed = tmp_path / "unsigned.jxb", tmp_path / "signed.jxb"
    run_cli("export", unsigned, "-C", cache)
    assert run_cli("export", signed, "--sign", "ci", "-C", cache).returncode == 0
    warned = run_cli("import", signed, "-C", tmp_path / "w")
    assert (warned.returncode, "unknown key" in warned.stderr) == (0, True)
    assert f"jaxcache trust add NAME '{key}'" in warned.stderr
    require_signed(tmp_path)
    for bundle in (unsigned, signed):
        refused = run_cli("import", bundle, "-C", tmp_path / "new", "--json")
        assert refused.returncode == 12
        assert json.loads(refused.stderr)["error"]["exit_code"] == 12
        assert not (tmp_path / "new").exists()
    assert run_cli("trust", "add", "builders", key).returncode == 0
    assert json.loads(run_cli("trust", "list", "--json").stdout)["keys"] == [
        {"name": "builders", "public_key": key}
    ]
    done = run_cli("import", signed, "-C", tmp_path / "new", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["signed_by"] == ["builders"]
    assert run_cli("import", unsigned, "-C", tmp_path / "new").returncode == 12
    assert run_cli("copy", unsigned, tmp_path / "other").returncode == 12
    assert run_cli("trust", "remove", "builders").returncode == 0
    assert run_cli("import", signed, "-C", tmp_path / "new").returncode == 12


def test_a_broken_signature_is_refused_even_where_none_is_required(
    run_cli: RunCli, key: str, cache: Path, tmp_path: Path
) -> None:
    signed = tmp_path / "signed.jxb"
    run_cli("export", signed, "--sign", "ci", "-C", cache)
    data = bytearray(signed.read_bytes())
    data[60] ^= 1
    signed.write_bytes(data)
    refused = run_cli("import", signed, "-C", tmp_path / "new")
    assert (refused.returncode, "bad-signature" in refused.stderr) == (12, True)


def test_no_project_takes_the_switch_back(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "cache.jxb"
    assert run_cli("export", bundle, "-C", cache).returncode == 0
    require_signed(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.jaxcache]\nrequire-signed = false\n")
    assert run_cli("import", bundle, "-C", tmp_path / "new").returncode == 12


def test_an_empty_name_names_no_key(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    for command in (("trust", "keygen", ""), ("export", "a.jxb", "--sign", "", "-C", cache)):
        done = run_cli(*command)
        assert (done.returncode, "an empty name" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / ".config" / "jaxcache" / ".key").exists()


def test_keys_are_looked_after(run_cli: RunCli, key: str, cache: Path, tmp_path: Path) -> None:
    directory = tmp_path / ".config" / "jaxcache"
    assert run_cli("trust", "keygen", "ci").returncode == 1
    (directory / "ci.key").chmod(0o644)
    loose = run_cli("export", tmp_path / "x.jxb", "--sign", "ci", "-C", cache)
    assert (loose.returncode, "unsafe-permissions" in loose.stderr) == (12, True)
    assert run_cli("export", tmp_path / "x.jxb", "--sign", "no", "-C", cache).returncode == 2
    run_cli("trust", "add", "a", key)
    assert run_cli("trust", "add", "a", key).returncode == 0
    other = key[:-6] + ("AAAAA=" if not key.endswith("AAAAA=") else "BBBBA=")
    assert run_cli("trust", "add", "a", other).returncode == 2
    for words in (["add", "b", "junk"], ["add", "b"], ["frobnicate"], ["add", "a b", key]):
        assert run_cli("trust", *words).returncode == 2
    assert run_cli("trust", "remove", "nobody").returncode == 1
    (directory / "trusted-keys").chmod(0o666)
    assert run_cli("trust", "list").returncode == 12


def test_a_key_that_is_not_there(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    done = run_cli("export", tmp_path / "x.jxb", "--sign", "nobody", "-C", cache)
    assert done.returncode == 2
    assert "nobody.key: no such file or directory [bad-key]" in done.stderr
    assert "jaxcache trust keygen" in done.stderr
