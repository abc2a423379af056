"""Another user puts a link or a FIFO in the place of a file whose directory both may write."""

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli

from jaxcache.cache.bundle.format import is_bundle
from jaxcache.cache.ci.usage import records_reads
from jaxcache.cache.trust import load_trusted
from jaxcache.cli.output import write_file
from jaxcache.errors import JaxcacheError, UntrustedError
from jaxcache.live.files import touch
from jaxcache.store.local import LocalStore

_OLD_NS = 10**18


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of this user that nothing may change."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    os.utime(path, ns=(_OLD_NS, _OLD_NS))
    return path


def times(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_atime_ns, status.st_mtime_ns


def test_a_trial_of_access_times_changes_no_other_file(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()

    def put_links() -> None:
        for path in cache.iterdir():
            path.unlink()
            path.symlink_to(victim)

    utime = os.utime

    def utime_of_links(*words: Any, **options: Any) -> None:
        put_links()
        utime(*words, **options)

    store = LocalStore(cache)
    expected = records_reads(store)
    monkeypatch.setattr(os, "utime", utime_of_links)
    assert records_reads(store) == expected
    assert times(victim) == (_OLD_NS, _OLD_NS)


def test_a_use_is_noted_of_no_other_file(victim: Path, tmp_path: Path) -> None:
    (tmp_path / "jit_f-cache").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        touch(str(tmp_path / "jit_f-cache"))
    assert times(victim) == (_OLD_NS, _OLD_NS)
    touch(str(victim))
    assert times(victim)[0] > times(victim)[1] == _OLD_NS


@pytest.mark.parametrize("command", [("import",), ("show",), ("target", "show")])
def test_no_fifo_is_waited_for(run_cli: RunCli, tmp_path: Path, command: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "cache.jxb")
    assert not is_bundle(str(tmp_path / "cache.jxb"))
    done = run_cli(*command, tmp_path / "cache.jxb", "-C", tmp_path)
    assert done.returncode not in (0, 70), done.stderr


def test_no_fifo_names_trusted_keys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trusted-keys")
    with pytest.raises(UntrustedError, match="not a regular file"):
        load_trusted(tmp_path)


def test_a_file_in_the_place_of_a_pipe_is_not_written_to(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def put_link() -> None:
        pipe.unlink(missing_ok=True)
        pipe.symlink_to(victim)

    exists = os.path.exists

    def exists_for_the_last_time(path: str) -> bool:
        found = exists(path)
        put_link()
        return found

    monkeypatch.setattr(os.path, "exists", exists_for_the_last_time)
    with pytest.raises(JaxcacheError, match="taken the place"):
        write_file(str(pipe), [b"report"])
    assert victim.read_bytes() == b"precious"
