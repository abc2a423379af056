"""``verify`` from Python: what keeps an entry from being read, and the words of the result."""

import os
import shutil
from pathlib import Path

import pytest
import zstandard
from failing import let_fail

import jaxcache
from jaxcache.cache.ledger.record import PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.write import append
from jaxcache.cache.seal import execute_seal, plan_seal
from jaxcache.cache.verify.repair import quarantine_directory
from jaxcache.cache.verify.run_checks import Verification, verify
from jaxcache.layouts import load_layout
from jaxcache.model import reporting_to
from jaxcache.options import SealOptions, VerifyOptions
from jaxcache.store.base import MissingError, StoreError
from jaxcache.store.local import LocalStore

JAX = load_layout("jax")
NOW_NS = 4 * 10**18
ENTRIES = 7


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache"))


def look(store: LocalStore, **options: object) -> Verification:
    return verify(store, JAX, VerifyOptions(**options), now_ns=NOW_NS)  # type: ignore[arg-type]


def seal(cache: Path) -> None:
    store = LocalStore(cache)
    execute_seal(store, plan_seal(store, SealOptions()), jobs=1, now_ns=NOW_NS)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreError("x", "input/output error", code="io-error"), "unreadable"),
        (StoreError("x", "not the bytes that were sent", code="checksum-mismatch"), None),
    ],
)
def test_an_entry_that_cannot_be_read_is_a_finding(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: StoreError, kind: str | None
) -> None:
    let_fail(monkeypatch, "open", error=error)
    found = look(LocalStore(cache))
    assert {p.kind for p in found.failures} == {kind or error.code}
    assert {p.detail for p in found.failures} == {error.reason}
    assert (found.checked, found.ok) == (ENTRIES, 0)
    assert str(found) == "7 entries checked: 7 with problems"


def test_an_entry_that_goes_meanwhile_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_fail(monkeypatch, "open", error=MissingError("x"))
    found = look(LocalStore(cache))
    assert (found.checked, found.problems) == (0, ())


@pytest.mark.parametrize(
    "options", [{"level": "quick"}, {"decode": False}, {}], ids=["quick", "no-payload", "full"]
)
def test_only_what_is_not_sealed_is_unsealed(cache: Path, options: dict[str, object]) -> None:
    found = look(LocalStore(cache), **options)
    assert {p.kind for p in found.problems} == {"unsealed"} and len(found.problems) == ENTRIES
    seal(cache)
    shutil.rmtree(cache / ".jaxcache")  # with its digests
    found = look(LocalStore(cache), **options)
    assert (found.problems, found.ok) == ((), ENTRIES)
    assert found.proven == (0 if options.get("level") == "quick" else ENTRIES)


def test_of_two_in_quarantine_the_later_comes_back(cache: Path) -> None:
    path = next(cache.glob("jit_mlp-*"))
    content = zstandard.decompress(path.read_bytes())
    path.unlink()
    for level in (1, 9):
        away = cache / quarantine_directory(level * 10**18) / path.name
        away.parent.mkdir(parents=True)
        away.write_bytes(zstandard.ZstdCompressor(level).compress(content))
    later = away.read_bytes()
    done = jaxcache.open(cache).restore()
    assert (len(done.restored), len(done.left)) == (1, 1)
    assert path.read_bytes() == later


def test_a_new_entry_is_not_held_to_the_digest_of_its_damaged_one(cache: Path) -> None:
    path = next(cache.glob("jit_mlp-*"))
    whole = path.read_bytes()
    os.utime(path, (1e9, 1e9))
    facts = digest_facts("ab" * 32, LocalStore(cache).info(path.name))
    key = path.name.removesuffix("-cache")
    append(LocalStore(cache), [Event(key, PAYLOAD, 5, facts)])
    opened = jaxcache.open(cache)
    opened.execute(opened.plan_repair(opened.verify()))
    assert not path.exists()
    path.write_bytes(whole)  # as JAX compiles it anew, by chance as large
    assert {p.kind for p in opened.verify().problems} == {"unsealed"}
    path.unlink()
    opened.restore()  # keeps its time, so it is reported again
    assert [p.kind for p in opened.verify().failures] == ["digest-mismatch"]


# ``verify`` in several processes finds what it finds in one.


@pytest.fixture
def spread_cache(cache: Path) -> Path:
    paths = sorted(cache.glob("*-cache"))
    data = bytearray(paths[0].read_bytes())
    data[len(data) // 2] ^= 0x40
    paths[0].write_bytes(data)
    paths[1].write_bytes(paths[1].read_bytes()[:-3])
    facts = digest_facts("0" * 64, LocalStore(cache).info(paths[2].name))
    append(LocalStore(cache), [Event(paths[2].name.removesuffix("-cache"), PAYLOAD, 5, facts)])
    return cache


def test_processes_find_the_same(spread_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = verify(LocalStore(spread_cache), JAX, VerifyOptions(jobs=1), now_ns=NOW_NS)
    assert {p.kind for p in alone.failures} >= {"truncated", "digest-mismatch"}
    monkeypatch.setattr("jaxcache.cache.verify.check.SPREAD_ABOVE", 2)
    # Whatever is checked in this process would end it.
    monkeypatch.setattr("jaxcache.cache.verify.check.check_entry", None)
    told: list[tuple[int, int]] = []
    with reporting_to(lambda *n: told.append(n)):
        spread = verify(LocalStore(spread_cache), JAX, VerifyOptions(jobs=2), now_ns=NOW_NS)
    assert spread == alone
    assert told[-1] == (alone.checked, alone.checked)


def test_where_no_process_can_be_had_one_does_it_all(
    spread_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = verify(LocalStore(spread_cache), JAX, VerifyOptions(jobs=1), now_ns=NOW_NS)
    monkeypatch.setattr("jaxcache.cache.verify.check.SPREAD_ABOVE", 2)

    def refused(*args: object, **options: object) -> None:
        raise OSError(os.strerror(11))

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refused)
    assert verify(LocalStore(spread_cache), JAX, VerifyOptions(jobs=2), now_ns=NOW_NS) == alone


def test_entries_that_grow_beyond_a_bound_stay_with_the_threads(
    spread_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.cache.verify.check.SPREAD_ABOVE", 1)
    monkeypatch.setattr("jaxcache.cache.verify.check.MAX_FILE_BYTES", 10)
    monkeypatch.setattr("jaxcache.cache.verify.check.spread", None)
    assert verify(LocalStore(spread_cache), JAX, VerifyOptions(jobs=2), now_ns=NOW_NS).checked == 7
