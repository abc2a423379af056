"""The commands that write, on a mount without hard links."""

import os
import shutil
from pathlib import Path

from conftest import RunCli

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.store import open_store


def test_every_command_writes_without_hard_links(
    run_cli: RunCli, without_links: Path, corpus: Path, tmp_path: Path
) -> None:
    source, cache, bundle = tmp_path / "source", without_links / "cache", tmp_path / "x.jxb"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", source, copy_function=shutil.copyfile)
    assert run_cli("pin", "*", "-C", source).returncode == 0
    keys = {p.name for p in source.glob("*-cache")}
    key = without_links / "keys" / "ours"
    for arguments in (
        ("export", bundle, "-C", source),
        ("import", bundle, "-C", cache, "--atomic"),
        ("pin", "*", "-C", cache),
        ("copy", cache, without_links / "copy"),
        ("trust", "keygen", key),
    ):
        done = run_cli(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    assert {p.name for p in cache.glob("*-cache")} == keys
    assert {p.name for p in (without_links / "copy").glob("*-cache")} == keys
    assert Ledger.load(open_store(str(cache)))
    assert key.stat().st_mode & 0o777 == 0o600
    damaged = min(cache.glob("*-cache"))
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-5])
    os.utime(damaged, (1_700_000_000, 1_700_000_000))
    assert run_cli("verify", "--fix", "-C", cache).returncode == 0
    (quarantined,) = cache.glob(".jaxcache/quarantine/*/*-cache")
    assert quarantined.name == damaged.name
    quarantined.write_bytes(sound)
    assert run_cli("verify", "--restore", "-C", cache).returncode == 0
    assert damaged.exists()
    assert not list(without_links.rglob(".jaxcache-tmp-*"))
