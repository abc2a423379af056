"""Whose records accuse an entry: only those that this user made of this very file."""

import json
import shutil
import time
from pathlib import Path

import pytest
from conftest import GiveAway, RunCli

from jaxcache.cache.ledger.record import HIT, PAYLOAD, PIN, REMOVED, Event, digest_facts
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import append, pinned_keys
from jaxcache.live.uses import read_digests, read_ledger
from jaxcache.store.local import LocalStore

LATE_NS = 2**62


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    """A cache of entries without a checksum."""
    return Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache"))


def entries(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("*-cache")}


def forge(of: Path, into: Path, *, at_ns: int = 5) -> None:
    """Write a ledger that calls every entry of a cache another one, and pins them."""
    store, target = LocalStore(of), LocalStore(into)
    for name in entries(of):
        key = name.removesuffix("-cache")
        info = store.info(name)
        append(target, [Event(key, PAYLOAD, at_ns, digest_facts("ab" * 32, info))])
        append(target, [Event(key, PIN, at_ns)])


def put_away(run_cli: RunCli, cache: Path) -> list[str]:
    """The entries that ``verify --fix`` moves to quarantine."""
    before = entries(cache)
    done = run_cli("verify", "--fix", "--json", "-C", cache, "--grace", "0s")
    assert done.returncode == 0, done.stdout
    return sorted(before.keys() - entries(cache).keys())


@pytest.mark.parametrize("at_ns", [5, LATE_NS])
@pytest.mark.parametrize("own", [True, False])
def test_a_pulled_ledger_neither_accuses_nor_pins(
    run_cli: RunCli, cache: Path, tmp_path: Path, give_away: GiveAway, own: bool, at_ns: int
) -> None:
    source = tmp_path / "source"
    shutil.copytree(cache, source)
    forge(cache, source, at_ns=at_ns)
    if not own:
        give_away(source / ".jaxcache" / "ledger")
    done = run_cli("pull", source, "-C", cache, "--json")
    assert json.loads(done.stdout)["carried"] == []
    assert put_away(run_cli, cache) == []
    assert pinned_keys(Ledger.load(LocalStore(cache))) == []


def test_a_segment_of_another_user_accuses_nothing(
    run_cli: RunCli, cache: Path, give_away: GiveAway
) -> None:
    forge(cache, cache)
    give_away(cache / ".jaxcache" / "ledger")
    assert put_away(run_cli, cache) == []


def test_a_foreign_segment_does_not_bind_an_own_digest_to_another_file(
    run_cli: RunCli, cache: Path, give_away: GiveAway
) -> None:
    store = LocalStore(cache)
    path = next(cache.glob("jit_mlp-*-cache"))
    key = path.name.removesuffix("-cache")
    facts = digest_facts("ab" * 32, store.info(path.name))
    append(store, [Event(key, PAYLOAD, 5, {"payload_sha256": facts.pop("payload_sha256")})])
    before = set((cache / ".jaxcache" / "ledger").iterdir())
    append(store, [Event(key, PAYLOAD, 6, facts)])
    assert put_away(run_cli, cache) == []
    for segment in set((cache / ".jaxcache" / "ledger").iterdir()) - before:
        give_away(segment)
    assert put_away(run_cli, cache) == []


def test_a_ledger_that_was_copied_accuses_nothing(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    """A copy has other inodes."""
    other = tmp_path / "other"
    shutil.copytree(cache, other)
    forge(cache, cache)
    shutil.copytree(cache / ".jaxcache", other / ".jaxcache")
    assert put_away(run_cli, other) == []


def test_a_right_checksum_outweighs_a_record(run_cli: RunCli, cache: Path) -> None:
    assert run_cli("seal", "-C", cache).returncode == 0
    forge(cache, cache)
    assert put_away(run_cli, cache) == []


@pytest.mark.parametrize("command", ["rm", "prune", "by hand"])
def test_an_entry_that_was_compiled_again_is_not_held_to_an_older_record(
    run_cli: RunCli, cache: Path, command: str
) -> None:
    """The same key and size, with other bytes: as from another script or machine."""
    path = next(cache.glob("jit_mlp-*-cache"))
    data, size_bytes = path.read_bytes(), path.stat().st_size
    key = path.name.removesuffix("-cache")
    store = LocalStore(cache)
    append(store, [Event(key, PAYLOAD, 5, digest_facts("ab" * 32, store.info(path.name)))])
    if command == "by hand":
        path.unlink()
    else:
        where = ("rm", key) if command == "rm" else ("prune", "--filter", "module=jit_mlp")
        more = () if command == "rm" else ("--older-than", "1s", "--grace", "0s")
        done = run_cli(*where, *more, "--yes", "-C", cache)
        assert done.returncode == 0, done.stderr
    path.write_bytes(data)
    assert path.stat().st_size == size_bytes
    assert put_away(run_cli, cache) == []


def test_compaction_does_not_make_a_foreign_record_ones_own(
    run_cli: RunCli, cache: Path, give_away: GiveAway
) -> None:
    forge(cache, cache)
    give_away(cache / ".jaxcache" / "ledger")
    for number in range(70):
        append(LocalStore(cache), [Event("k", "hit", number)])
    assert len(list((cache / ".jaxcache" / "ledger").iterdir())) < 60
    assert put_away(run_cli, cache) == []


def test_an_imported_record_is_marked(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    key = next(cache.glob("jit_mlp-*-cache")).name.removesuffix("-cache")
    append(LocalStore(cache), [Event(key, "compile", 5, {"compile_seconds": 1.5})])
    target = tmp_path / "target"
    assert run_cli("pull", cache, "-C", target).returncode == 0
    record = Ledger.load(LocalStore(target)).record(key)
    assert record is not None
    assert (record.compile_seconds, record.extra.get("imported")) == (1.5, True)


@pytest.mark.parametrize("own", [True, False])
def test_the_live_layer_takes_digests_of_this_user_alone(
    cache: Path, give_away: GiveAway, own: bool
) -> None:
    forge(cache, cache)
    if not own:
        give_away(cache / ".jaxcache" / "ledger")
    keys = {name.removesuffix("-cache") for name in entries(cache)}
    assert read_digests(str(cache)).keys() == (keys if own else set())


def test_a_hit_of_the_future_hides_no_other_from_the_live_layer(cache: Path) -> None:
    append(LocalStore(cache), [Event("k", HIT, 5), Event("k", HIT, LATE_NS)])
    append(LocalStore(cache), [Event("k", PIN, LATE_NS)])
    uses = read_ledger(str(cache))["k"]
    assert (uses.last_use_ns, uses.hits, uses.pinned) == (5, 1, True)


@pytest.mark.parametrize("command", ["pull", "import", "ci restore", "copy"])
@pytest.mark.parametrize("record", ["none", "hit", "removed"])
def test_an_arrival_is_a_use_where_no_hit_came_along(
    run_cli: RunCli, cache: Path, tmp_path: Path, command: str, record: str
) -> None:
    key = next(cache.glob("jit_mlp-*-cache")).name.removesuffix("-cache")
    target = tmp_path / "target"
    target.mkdir()
    if record == "hit":
        append(LocalStore(cache), [Event(key, HIT, 5)])
    elif record == "removed":  # the hit is of an entry that is gone
        append(LocalStore(target), [Event(key, HIT, 5), Event(key, REMOVED, 6)])
    started_ns = time.time_ns()
    if command == "pull":
        done = run_cli("pull", cache, "-C", target)
    elif command == "copy":
        done = run_cli("copy", cache, target)
    else:
        bundle = tmp_path / "bundle.jxb"
        assert run_cli("export", "-C", cache, bundle).returncode == 0
        options = ("--everything",) if command == "ci restore" else ()
        done = run_cli(*command.split(), bundle, *options, "-C", target)
    assert done.returncode == 0, done.stderr
    used_ns = read_ledger(str(target))[key].last_use_ns
    assert used_ns is not None
    assert (used_ns >= started_ns) == (record != "hit")
    rows = json.loads(run_cli("ls", key, "-C", target, "--json").stdout)["entries"]
    assert rows[0]["last_used_from"] == ("mtime" if record == "hit" else "arrival")
