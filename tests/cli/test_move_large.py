"""Entries that inflate far come only where that is allowed, in every way in which entries move."""

import os
import time
from pathlib import Path

import pytest
import zstandard
from bundling import first_entry, padded, payload_of
from conftest import RunCli
from ways import MOVES, OLD_NS, WAYS, names, old_copy, told

import jaxcache
from jaxcache.cache.move.execute import carry_out
from jaxcache.cache.move.stores import make_source
from jaxcache.cache.move.sync import plan_sync
from jaxcache.store.local import LocalStore


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


@pytest.mark.parametrize("way", [*MOVES, "restore", "save"])
def test_an_entry_that_inflates_far_comes_only_where_that_is_allowed(
    run_cli: RunCli, there: Path, tmp_path: Path, way: str
) -> None:
    large = first_entry(there)
    content = bytes(4) + padded(payload_of(large), 300 << 20)
    large.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(large, ns=(OLD_NS, OLD_NS))
    words = WAYS[way](there, tmp_path / "here")
    assert run_cli(*words).returncode == (0 if way == "restore" else 3)
    assert names(tmp_path / "here") == names(there) - {large.name}
    done = run_cli(*words, "--allow-large")
    assert (done.returncode, names(tmp_path / "here")) == (0, names(there)), done.stderr


def test_a_dry_save_into_a_bundle_takes_a_large_entry_as_the_real_one_does(
    run_cli: RunCli, there: Path, tmp_path: Path
) -> None:
    content = bytes(4) + padded(payload_of(first_entry(there)), 300 << 20)
    first_entry(there).write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(first_entry(there), ns=(OLD_NS, OLD_NS))
    for dry in (("--dry-run",), ()):
        assert run_cli("ci", "save", tmp_path / "b.jxb", "-C", there, *dry).returncode == 0


def test_python_and_the_command_send_the_same_to_a_bucket(
    run_cli: RunCli, there: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = first_entry(there)
    content = bytes(4) + padded(payload_of(entry), 300 << 20)
    entry.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(entry, ns=(OLD_NS, OLD_NS))
    source = LocalStore(there)
    plan = plan_sync(source, Remote(there.parent), now_ns=time.time_ns())
    (there.parent / "far").mkdir()
    far = Remote(there.parent / "far")
    done = carry_out(make_source(source, plan), far, plan, now_ns=time.time_ns())
    assert done.complete and len(done.carried) == len(names(there))
    assert len(told(run_cli, "push", bucket, "-C", there)["carried"]) == len(names(there))


class Remote(LocalStore):
    """A directory that counts as a bucket."""

    remote = True


def test_python_takes_what_a_directory_refuses_only_if_told_so(there: Path, tmp_path: Path) -> None:
    entry = first_entry(there)
    content = bytes(4) + padded(payload_of(entry), 300 << 20)
    entry.write_bytes(zstandard.ZstdCompressor(level=1).compress(content))
    os.utime(entry, ns=(OLD_NS, OLD_NS))
    here = jaxcache.open(tmp_path / "here", create=True)
    refused = jaxcache.open(there).push(here)
    assert refused is not None and [p.file for p in refused.damaged] == [entry.name]
    allowed = jaxcache.open(there).push(here, allow_large=True)
    assert allowed is not None and [s.name for s in allowed.carried] == [entry.name]
