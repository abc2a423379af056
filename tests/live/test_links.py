"""The layer follows no link below a cache's ``.jaxcache``: nothing is changed behind one."""

import os
from pathlib import Path

import pytest
from conftest import GiveAway
from test_security import state

from jaxcache.live.evictor import Evictor
from jaxcache.live.files import quarantine_entry
from jaxcache.live.helper import DirectoryStore
from jaxcache.live.loading import (
    LastRun,
    Leases,
    Load,
    Loading,
    find_dead,
    forget_runs_with,
    read_last_run,
    write_last_run,
)
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

    def log() -> None:
        uses = UseLog(root, {})
        uses.hit(KEY)
        uses.flush()

    def load() -> None:
        loading = Loading(root)
        loading.begin(KEY)
        loading.close()

    for call in (
        lambda: find_dead(root),
        load,
        log,
        lambda: write_last_run(root, "0" * 16, LastRun([], (Load(KEY, b"", (0,), True),))),
        lambda: read_last_run(root, "0" * 16),
        lambda: forget_runs_with(root, {KEY}),
        lambda: Counters().save_totals(root),
        lambda: Leases(root, 1.0, Counters())._try(KEY),
        lambda: quarantine_entry(root, KEY),
        lambda: Evictor(root, settings, Counters(), print).evict(),
    ):
        try:
            call()
        except OSError:
            continue


@pytest.mark.parametrize("link", LINKS)
def test_nothing_behind_a_link_of_another_user_is_touched(
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


def test_foreign_files_among_those_of_loads_stay(tmp_path: Path) -> None:
    """Only what has the name and the content of such a file is removed."""
    directory = tmp_path / ".jaxcache/live/loading"
    directory.mkdir(parents=True)
    names = ("notes", "12-0123456789ab", "x-0123456789ab", ".bashrc")
    for name in names:
        (directory / name).write_text("precious\nfile\n")
    assert find_dead(str(tmp_path)) == (set(), set(), False)
    assert sorted(p.name for p in directory.iterdir()) == sorted(names)


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


@pytest.mark.jax
def test_a_program_removes_no_files_through_a_link(
    run_live: RunLive, tmp_path: Path, give_away: GiveAway
) -> None:
    victim, cache = victim_directory(tmp_path), tmp_path / "cache"
    (cache / ".jaxcache/live").mkdir(parents=True)
    (cache / ".jaxcache/live/loading").symlink_to(victim)
    give_away(cache)
    before = state(victim)
    ran = run_live()
    assert state(victim) == before
    assert len(entries(cache)) > 1
    assert ran["troubles"] == 0


@pytest.mark.jax
def test_forged_files_cost_a_compile_at_most(run_live: RunLive, tmp_path: Path) -> None:
    """The worst that the content of the layer's own files can do: an entry goes to quarantine."""
    tiers = {"JAXCACHE_LIVE_TIERS": str(tmp_path / "tier")}
    good = run_live(**tiers)
    cache = tmp_path / "cache"
    live = cache / ".jaxcache/live"
    (first,) = entries(cache, "first")
    (live / "loading").mkdir(exist_ok=True)
    (live / "loading" / "7-00112233aabb").write_text(
        f"jaxcache loads\n{first.name.removesuffix('-cache')}"
    )
    (live / "loading" / "8-00112233aabb").write_text("jaxcache loads\n../../../etc/passwd")
    for path in (*live.glob("runs/*"), *(tmp_path / "tier").glob(".jaxcache/live/runs/*")):
        path.write_text("../../../etc/passwd\n" * 10_000)
    (spool,) = (p for p in live.glob("spool/*") if p.is_dir())
    (spool / f"jit_gone-{'a' * 64}").write_text("replace")
    (spool / "notes").write_text("precious")
    (live / "totals").write_text('{"hits_local": -1e400, "misses": {}}')
    ran = run_live(**tiers)
    assert ran.result == good.result
    assert (ran["died_loading"], ran["troubles"]) == (1, 0)
    assert (spool / "notes").exists()
    assert (live / "loading" / "8-00112233aabb").exists()
