"""``verify`` in several processes finds what it finds in one."""

import os
import shutil
from pathlib import Path

import pytest

from jaxcache.cache.ledger.record import PAYLOAD, Event, digest_facts
from jaxcache.cache.ledger.write import append
from jaxcache.cache.verify.run_checks import verify
from jaxcache.layouts import load_layout
from jaxcache.options import VerifyOptions
from jaxcache.store.local import LocalStore

JAX = load_layout("jax")
NOW_NS = 4 * 10**18


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    copied = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache"))
    paths = sorted(copied.glob("*-cache"))
    data = bytearray(paths[0].read_bytes())
    data[len(data) // 2] ^= 0x40
    paths[0].write_bytes(data)
    paths[1].write_bytes(paths[1].read_bytes()[:-3])
    facts = digest_facts("0" * 64, LocalStore(copied).info(paths[2].name))
    append(LocalStore(copied), [Event(paths[2].name.removesuffix("-cache"), PAYLOAD, 5, facts)])
    return copied


def test_processes_find_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = verify(LocalStore(cache), JAX, VerifyOptions(jobs=1), now_ns=NOW_NS)
    assert {p.kind for p in alone.failures} >= {"truncated", "digest-mismatch"}
    monkeypatch.setattr("jaxcache.cache.verify.check.SPREAD_ABOVE", 2)
    # Whatever is checked in this process would end it.
    monkeypatch.setattr("jaxcache.cache.verify.check.check_entry", None)
    told: list[tuple[int, int]] = []
    spread = verify(
        LocalStore(cache),
        JAX,
        VerifyOptions(jobs=2),
        now_ns=NOW_NS,
        progress=lambda *n: told.append(n),
    )
    assert spread == alone
    assert told[-1] == (alone.checked, alone.checked)


def test_where_no_process_can_be_had_one_does_it_all(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = verify(LocalStore(cache), JAX, VerifyOptions(jobs=1), now_ns=NOW_NS)
    monkeypatch.setattr("jaxcache.cache.verify.check.SPREAD_ABOVE", 2)

    def refused(*args: object, **options: object) -> None:
        raise OSError(os.strerror(11))

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refused)
    assert verify(LocalStore(cache), JAX, VerifyOptions(jobs=2), now_ns=NOW_NS) == alone


def test_entries_that_grow_beyond_a_bound_stay_with_the_threads(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.cache.verify.check.SPREAD_ABOVE", 1)
    monkeypatch.setattr("jaxcache.cache.verify.check.MAX_FILE_BYTES", 10)
    monkeypatch.setattr("jaxcache.cache.verify.check.spread", None)
    assert verify(LocalStore(cache), JAX, VerifyOptions(jobs=2), now_ns=NOW_NS).checked == 7
