"""The layer follows no link below a cache's ``.jaxcache``: nothing is changed behind one."""

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest
from conftest import GiveAway
from own_files import is_in_table, state

from jaxcache.core.atomic import open_directory
from jaxcache.core.seams.cache import Load
from jaxcache.live import files, loading
from jaxcache.live.evictor import Evictor
from jaxcache.live.helper import DirectoryStore
from jaxcache.live.process import Counters
from jaxcache.live.uses import UseLog
from live.conftest import RunLive, entries

KEY = "jit_f-" + "a" * 64
#: What another user may turn into a link, below the cache directory.
LINKS = [
    ".jaxcache",
    ".jaxcache/live",
    ".jaxcache/live/loading",
    ".jaxcache/live/leases",
    ".jaxcache/live/totals",
    ".jaxcache/live/totals.lock",
    ".jaxcache/live/sweep",
    ".jaxcache/live/starts",
    ".jaxcache/ledger",
    ".jaxcache/quarantine",
]


def victim_directory(tmp_path: Path) -> Path:
    """A directory of somebody else, with files that no cache wrote."""
    victim = tmp_path / "victim"
    (victim / "live" / "loading").mkdir(parents=True)
    (victim / "ledger").mkdir()
    for name in ("thesis.tex", "notes", "12-0123456789ab", "live/loading/7-00112233aabb", "lock"):
        (victim / name).write_text("precious\n")
        os.utime(victim / name, (0, 0))
    return victim


def use_everything(root: str) -> None:
    """Call what touches ``.jaxcache``, as a program does that goes on whatever fails."""
    settings = {"max-size": 1, "max-entries": 1, "unused-for": None, "policy": "lru"}

    uses, marks = UseLog(root, {}), loading.Loading(root)
    uses.hit(KEY)
    for call in (
        lambda: loading.find_dead(root),
        lambda: marks.begin(KEY),
        marks.close,
        uses.flush,
        lambda: loading.write_last_run(
            root, "0" * 16, loading.LastRun([], (Load(KEY, b"", (0,), True),))
        ),
        lambda: loading.read_last_run(root, "0" * 16),
        lambda: loading.forget_runs_with(root, {KEY}),
        lambda: Counters().save_totals(root),
        lambda: loading.Leases(root, 1.0, Counters())._try(KEY),
        lambda: files.quarantine_entry(root, KEY),
        lambda: Evictor(root, settings, Counters(), print).evict(),
    ):
        with contextlib.suppress(OSError):
            call()


@pytest.mark.parametrize("link", LINKS)
def test_nothing_behind_a_link_is_touched(
    unprivileged: Path, give_away: GiveAway, link: str
) -> None:
    """The cache is that user's, and everybody may write it; the victim is who runs the program."""
    victim, cache = victim_directory(unprivileged), unprivileged / "cache"
    path = cache / link
    path.parent.mkdir(parents=True)
    is_file = link.rpartition("/")[2] in ("leases", "totals", "totals.lock", "sweep")
    path.symlink_to(victim / "notes" if is_file else victim)
    (cache / f"{KEY}-cache").write_bytes(b"entry")
    for directory in (cache, *(p for p in cache.rglob("*") if p.is_dir() and not p.is_symlink())):
        directory.chmod(0o777)
    give_away(cache)
    before = state(victim)
    use_everything(str(cache))
    assert state(victim) == before


def test_a_missing_file_behind_a_link_is_not_made(tmp_path: Path) -> None:
    victim, cache = victim_directory(tmp_path), tmp_path / "cache"
    (cache / ".jaxcache/live").mkdir(parents=True)
    for name in ("leases", "totals.lock", "sweep"):
        (cache / ".jaxcache/live" / name).symlink_to(victim / f"new-{name}")
    (cache / ".lockfile").symlink_to(victim / "new-lockfile")
    before = state(victim)
    use_everything(str(cache))
    assert state(victim) == before


def test_a_tier_directory_is_not_left_through_a_link(tmp_path: Path) -> None:
    victim, tier = victim_directory(tmp_path), tmp_path / "tier"
    tier.mkdir()
    (tier / ".jaxcache").symlink_to(victim)
    store = DirectoryStore(str(tier))
    before = state(victim)
    for call in (
        lambda: store.write(".jaxcache/live/runs/x", b"1", replace=True),
        lambda: store.create(".jaxcache/live/leases/x", b"1"),
        lambda: store.delete(".jaxcache/notes"),
        lambda: store.read(".jaxcache/notes", 100),
    ):
        with pytest.raises(OSError):
            call()
    assert state(victim) == before


def test_a_file_is_read_up_to_a_limit_and_no_other_thing_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(path)
    assert files.read_file(str(path), 5) == files.read_file(str(tmp_path / "link"), 5) == b"bytes"
    assert files.read_file(str(tmp_path / "none"), 5) is None
    assert files.read_start(str(path), 2) == b"by"
    for name in ("file", "fifo"):
        with pytest.raises(OSError, match="not a regular file, or too large"):
            files.read_file(str(tmp_path / name), 4)
    with open_directory(str(tmp_path)) as directory:
        assert files.read_file("file", 5, directory=directory) == b"bytes"
        with pytest.raises(OSError, match="symbolic links"):
            files.read_file("link", 5, directory=directory)


def test_a_directory_of_ours_is_made_only_where_something_is_written(tmp_path: Path) -> None:
    root = tmp_path / "new"
    for parts in ((), ("live",)):
        with (
            pytest.raises(FileNotFoundError),
            files.own_directory_of(str(root), *parts, make=False),
        ):
            pass
    assert not root.exists()
    with files.own_directory_of(str(root), "live"):
        assert (root / ".jaxcache" / "live").is_dir()


def test_an_entry_is_removed_and_moved_with_its_stamp(tmp_path: Path) -> None:
    with open_directory(str(tmp_path)) as directory:
        files.write_whole(directory, f"{KEY}-cache", b"entry")
        before_ns = time.time_ns()
        files.write_stamp(directory, KEY)
    stamp = (tmp_path / f"{KEY}-atime").read_bytes()
    assert (len(stamp), before_ns <= int.from_bytes(stamp, "little")) == (8, True)
    assert files.quarantine_entry(str(tmp_path), KEY)
    (moved,) = (tmp_path / ".jaxcache" / "quarantine").iterdir()
    assert {path.name for path in moved.iterdir()} == {f"{KEY}-cache", f"{KEY}-atime"}
    shutil.copytree(moved, tmp_path, dirs_exist_ok=True)
    for _ in range(2):
        files.remove_entry(str(tmp_path), KEY)
    assert sorted(os.listdir(tmp_path)) == [".jaxcache", "CACHEDIR.TAG"]
    (tmp_path / f"{KEY}-atime").touch()
    assert not files.quarantine_entry(str(tmp_path), KEY)


def test_a_use_is_noted_of_no_other_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    os.utime(victim, ns=(10**18, 10**18))
    (tmp_path / "jit_f-cache").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        files.touch(str(tmp_path / "jit_f-cache"))
    assert victim.stat().st_atime_ns == 10**18
    files.touch(str(victim))
    assert victim.stat().st_atime_ns > victim.stat().st_mtime_ns == 10**18


@pytest.mark.jax
def test_forged_files_of_the_layer_change_no_result(run_live: RunLive, tmp_path: Path) -> None:
    """Each file of ``.jaxcache/live`` holds rubbish, then is a link to a file of the user's."""
    settings = {
        "JAXCACHE_LIVE_MAX_SIZE": "1GB",
        "JAXCACHE_LIVE_PRELOAD": "1",
        "JAXCACHE_LIVE_SINGLE_FLIGHT": "2s",
        "JAXCACHE_LIVE_TIERS": str(tmp_path / "tier"),
    }
    first = run_live(**settings)
    keys = [path.name.removesuffix("-cache") for path in entries(tmp_path / "cache")]
    own = tmp_path / "cache" / ".jaxcache"
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    written = [p.relative_to(own).as_posix() for p in own.rglob("*") if p.is_file()]
    assert all(map(is_in_table, written)), written
    names = ("totals", "refused", "loading/7-00112233aabb", "starts/x", f"spool/x/{keys[0]}")
    forged = {*(own / "live" / name for name in names), *(own / "live").rglob("*")}
    for forge in (lambda p: p.write_bytes(b"\xff[" * 50_000), lambda p: p.symlink_to(precious)):
        for path in [p for p in forged if not p.is_dir()]:
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            forge(path)
        again = run_live(**settings)
        assert again.result == first.result
        assert again["hits_local"] == len(keys)
        assert precious.read_text() == "precious"
