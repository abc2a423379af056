"""``prune``, ``rm`` and ``pin``: what goes, what stays, and who is asked."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from acting import refused
from command_line import error_of, show_on_terminal
from conftest import CORPUS, RunCli
from failing import let_fail
from object_server import Proxy, S3Server
from terminal import Terminal, without_style
from ways import told

from jaxcache.cache.ledger.record import COMPILE, HIT, PIN, Event
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, compact, pinned_keys
from jaxcache.core.ledger import DAY_NS, day_segment
from jaxcache.core.names import LEDGER_DIR
from jaxcache.store import open_store

OLD = "--grace=0s"


@pytest.fixture
def cache(capped_cache: Path) -> Path:
    return capped_cache


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.iterdir()}


def test_dry_run_and_execution_print_the_same(run_cli: RunCli, cache: Path) -> None:
    args = ("prune", "-C", cache, "--max-size", "20kB")
    before = names(cache)
    dry = told(run_cli, *args, "--dry-run")
    assert names(cache) == before
    wet = told(run_cli, *args, "--yes")
    assert wet["longest_lock_seconds"] >= 0
    assert dry == wet | {"dry_run": True, "longest_lock_seconds": None}
    assert wet["kept"] == 7 - len(wet["removed"]) == len(list(cache.glob("*-cache")))
    assert sum(p.stat().st_size for p in cache.iterdir()) == wet["size_bytes_after"] <= 20_000


def test_without_terminal_it_wants_yes(run_cli: RunCli, cache: Path) -> None:
    for command in (("prune", "--max-entries", "1"), ("rm", "jit_mlp")):
        assert "[needs-yes]" in refused(run_cli, 2, *command, "-C", cache)
    done = run_cli("prune", "--max-size", "1GB", "-C", cache)  # nothing goes, so nothing is asked
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to remove: 7 entries" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "prune --max-entries 1 -C {cache} --yes",
        "rm jit_* -C {cache} --yes",
        "push {cache} --max-size 20kB --prune-remote -C {other} --yes",
        "push {other} --max-size 20kB --prune-remote -C {cache} --yes",
        "ci save {cache} --max-size 20kB --save-if always -C {other}",
    ],
)
def test_nothing_is_removed_where_the_disk_may_hide_a_pin(
    run_cli: RunCli, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    other = Path(shutil.copytree(CORPUS / "0.8.3-cpu-zstd", tmp_path / "other"))
    entry, *_ = cache.glob("*-cache")
    run_cli("pin", entry.name.removesuffix("-cache"), "-C", cache)
    before = names(cache), names(other)
    let_fail(monkeypatch, "fetch", ".jsonl")
    words = line.format(cache=cache, other=other).split()
    assert "[pins-unread]" in refused(run_cli, 1, *words)
    assert before[0] <= names(cache)
    assert before[1] <= names(other)


def test_a_use_by_uncapped_jax_counts_beside_an_older_stamp(run_cli: RunCli, cache: Path) -> None:
    """A run with JAX's cap left ``-atime`` files; later runs without one move access times only."""
    then_ns = time.time_ns() - 20 * DAY_NS
    used, *others = sorted(cache.glob("*-cache"))
    for path in (used, *others):
        os.utime(path, ns=(then_ns, then_ns))
        stamp = path.with_name(path.name.replace("-cache", "-atime"))
        stamp.write_bytes(then_ns.to_bytes(8, "little"))
    os.utime(used, ns=(time.time_ns(), then_ns))
    removed = told(run_cli, "prune", "-C", cache, "--unused-for", "7d", "-n")["removed"]
    assert {r["file"] for r in removed} == {path.name for path in others}
    (entry,) = told(run_cli, "ls", "-C", cache, "--filter", "unused<1d")["entries"]
    assert (entry["file"], entry["last_used_from"]) == (used.name, "fs-atime")


def test_neither_a_copy_nor_its_source_was_used(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    """``cp -r`` reads and writes each file, one right after the other."""
    cache = Path(shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "old"))
    now_ns, then_ns = time.time_ns(), time.time_ns() - 40 * DAY_NS
    keys = sorted(p.name.removesuffix("-cache") for p in cache.glob("*-cache"))
    append(open_store(str(cache)), [Event(key, COMPILE, then_ns) for key in keys])
    for written_ns in (now_ns, then_ns):
        for number, key in enumerate(keys):
            dates = (now_ns + number * 1000, written_ns + number * 1000)
            os.utime(cache / f"{key}-cache", ns=dates)
        listed = run_cli("ls", "-C", cache, "--filter", "unused>30d", "-q")
        assert len(listed.stdout.split()) == 7
    words = ("prune", "-C", cache, "--unused-for", "7d")
    assert "[no-record-of-use]" in refused(run_cli, 1, *words, "-n")
    append(open_store(str(cache)), [Event(keys[0], HIT, now_ns)])
    run_cli(*words, "-y")
    assert [p.name for p in cache.glob("*-cache")] == [f"{keys[0]}-cache"]


def test_quarantined_entries_go_before_sound_ones(run_cli: RunCli, cache: Path) -> None:
    (broken,) = cache.glob("jit_mlp-*-cache")
    size = broken.stat().st_size
    broken.write_bytes(b"x" * size)
    assert run_cli("verify", "-C", cache, "--fix", OLD, "-y", "-q").returncode == 0
    limit = told(run_cli, "stats", "-C", cache)["size_bytes"] - 1
    removed = told(run_cli, "prune", "-C", cache, "--max-size", limit, OLD, "-n")["removed"]
    found = [(r["size_bytes"], r["reason"], "/quarantine/" in r["file"]) for r in removed]
    assert found == [(8, "max-size", True), (size, "max-size", True)]  # its -atime, and no other


def test_used_since_a_marker_file(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.touch()
    used = min(cache.glob("jit_loss*-atime"))
    used.write_bytes((marker.stat().st_mtime_ns + 1).to_bytes(8, "little"))
    assert run_cli("prune", "-C", cache, "--used-since", marker, "-y").returncode == 0
    assert [p.name.partition("-")[0] for p in cache.glob("*-cache")] == ["jit_loss"]


@pytest.mark.parametrize(
    "line",
    ["prune --max-entries 0", "prune --max-entries 0 --grace 36500d", "rm *", "seal", "pin *"],
)
def test_a_read_only_cache_is_left_alone(run_cli: RunCli, unprivileged: Path, line: str) -> None:
    cache = Path(shutil.copytree(CORPUS / "0.12.0.1-cpu-zstd-maxsize", unprivileged / "cache"))
    cache.chmod(0o555)
    options = {"seal": ("--json", "--dry-run"), "pin *": ("--json",)}
    for more in options.get(line, ("--yes", "--dry-run")):
        done = run_cli(*line.split(), "-C", cache, more, "--json", cwd=unprivileged)
        assert (done.returncode, error_of(done)) == (10, "read-only")


# ``prune`` and ``rm`` on a terminal: the question, and what follows it.


def test_a_person_is_asked_and_may_decline(cache: Path, tmp_path: Path) -> None:
    for answer, limit, code, words, left in (
        ("n", 6, 1, ("would remove 1 entry", "[y/N]"), 7),
        ("y", 0, 2, ("would empty",), 7),
        ("y", 6, 0, ("removed 1 entry",), 6),
    ):
        command = [sys.executable, "-m", "jaxcache", "prune", f"--max-entries={limit}", "-C", cache]
        terminal = Terminal(command, home=tmp_path, width=100, env={"TERM": "dumb"})
        terminal.press(f"{answer}\n")
        assert (terminal.finish(), len(list(cache.glob("*-cache")))) == (code, left)
        assert all(text in terminal.text for text in words)
    # What the question has listed is not listed again.
    assert terminal.text.count("COMPILE") == 1


def test_a_person_is_told_how_to_keep_the_bound(cache: Path, tmp_path: Path) -> None:
    shown = []
    for line in ("size=20kB", "size=20kB -q", "size=20kB --json", "size=20kB -n", "entries=1"):
        copy = shutil.copytree(cache, tmp_path / line)
        words = ["prune", "-C", copy, "-y", *f"--max-{line}".split()]
        shown.append(show_on_terminal(words, home=tmp_path, width=100).stdout)
    says, *others = (" ".join(without_style(text).split()) for text in shown)
    assert (says.count("the cache can grow again"), says.count("COMPILE")) == (1, 1)
    assert "JAXCACHE_LIVE=1 JAXCACHE_LIVE_MAX_SIZE=20000" in says
    assert "JAX_COMPILATION_CACHE_MAX_SIZE=20000 (JAX needs the package filelock for it)" in says
    assert not any("can grow again" in text for text in others)


# ``prune`` of a bucket goes by what its clients told of their use.


@pytest.fixture
def prune(run_cli: RunCli, bucket: str) -> Callable[..., Any]:
    return partial(told, run_cli, "prune", "-C", bucket, OLD, "-y")


@pytest.fixture
def filled(run_cli: RunCli, bucket: str, local: Path) -> list[str]:
    """Seven entries in the bucket; their keys."""
    shutil.rmtree(local / ".jaxcache", ignore_errors=True)
    assert run_cli("push", bucket, "-C", local).returncode == 0
    return sorted(p.name.removesuffix("-cache") for p in local.glob("*-cache"))


@pytest.fixture
def tell(bucket: str, s3_server: S3Server) -> Callable[..., None]:
    """Write what clients leave at the end of a day."""

    def write(clients: Sequence[int], days_ago: int, keys: list[str]) -> None:
        day = time.time_ns() // DAY_NS - days_ago
        at_ns = time.time_ns() - days_ago * DAY_NS
        hits = [{"key": key, "kind": "hit", "at_ns": at_ns, "count": 2} for key in keys]
        text = "".join(f"{json.dumps(hit)}\n" for hit in hits)
        names = [f"{LEDGER_DIR}/{day_segment(day, f'{client:016x}')}" for client in clients]
        s3_server.fill(bucket, names, text)

    return write


def test_what_clients_use_outlives_what_nobody_uses(
    run_cli: RunCli, bucket: str, filled: list[str], tell: Callable[..., None], prune: Any
) -> None:
    time.sleep(1.1)  # the times of objects are whole seconds
    for rule in ("--unused-for=1s", "--used-since=0s"):
        assert "[no-record-of-use]" in refused(run_cli, 1, "prune", "-C", bucket, OLD, "-y", rule)
    tell([1], 0, filled[:2])
    tell([2], 0, filled[1:4])
    for policy in ("lru", "cost"):
        document = prune("--max-entries", "4", "--policy", policy, "-n")
        assert {r["key"] for r in document["removed"]} == set(filled[4:])
        assert document["evidence"] == {"mtime": 3}


def test_prune_makes_one_segment_of_the_days_that_are_over(
    bucket: str,
    filled: list[str],
    tell: Callable[..., None],
    prune: Callable[..., Any],
    s3: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests grow with the clients of the days since the last prune, not with all of them."""
    monkeypatch.setattr("jaxcache.cache.prune.execute.COMPACT_ABOVE", 16)
    clients = range(20)
    tell(clients, 3, filled[:4])
    tell([0], 0, filled[:1])
    assert len(prune("--max-entries", "6", "--policy", "lru")["removed"]) == 1
    ledger = Ledger.load(open_store(bucket))
    record = ledger.record(filled[1])
    assert record and record.hits == 2 * len(clients)
    today = [name for name in ledger.segments if int(name.partition("-")[0]) % DAY_NS == 0]
    assert len(today) >= 1 and len(ledger.segments) <= 4
    s3.seen.clear()
    prune("--max-entries", "5", "--policy", "lru")
    assert s3.counts().get("get", 0) <= 10


def test_pins_that_were_compacted_since_the_listing_count(bucket: str, filled: list[str]) -> None:
    store = open_store(bucket)
    for key in filled[:2]:
        assert append(store, [Event(key, PIN, time.time_ns())])
    listed = list(store.list(LEDGER_DIR))
    compact(store)
    assert {*store.list(LEDGER_DIR)}.isdisjoint(listed)
    assert sorted(pinned_keys(Ledger.load(store, listed=listed))) == filled[:2]


# ``rm`` and ``pin``.


def test_rm_looks_for_the_key_before_it_asks(run_cli: RunCli, cache: Path) -> None:
    assert "[no-match]" in refused(run_cli, 1, "rm", "-C", cache, "jit_typo")
    (path,) = cache.glob("jit_mlp-*-cache")
    digest = path.name.removesuffix("-cache").rpartition("-")[2]
    assert "[short-prefix]" in refused(run_cli, 2, "rm", "-C", cache, digest[:3], "-y")
    assert path.exists()
    assert run_cli("rm", "-C", cache, digest[:4], "-y").returncode == 0
    assert not path.exists()


def test_pins_are_listed_honoured_and_taken_back(run_cli: RunCli, cache: Path) -> None:
    assert run_cli("pin", "-C", cache).stdout == ""
    key = run_cli("pin", "-C", cache, "jit_ml").stdout.strip()
    assert key.startswith("jit_mlp-")
    assert told(run_cli, "pin", "-C", cache)["pinned"] == [key]
    assert "[pinned]" in refused(run_cli, 1, "rm", "-C", cache, "jit_mlp", "--yes")
    assert run_cli("pin", "--remove", "-C", cache).returncode == 2
    assert run_cli("pin", "--remove", "-C", cache, key[:20]).stdout.strip() == key
    assert run_cli("pin", "-C", cache).stdout == ""
