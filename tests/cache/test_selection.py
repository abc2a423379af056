"""KEY arguments that name nothing choose nothing, wherever they are taken."""

import shutil
from pathlib import Path

import pytest
from conftest import CORPUS

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.ledger.write import pin, pinned_keys, unpin
from jaxcache.cache.scan import scan
from jaxcache.cache.selection import select_by_keys
from jaxcache.cache.verify.repair import restore
from jaxcache.core.names import QUARANTINE_DIR
from jaxcache.errors import JaxcacheError
from jaxcache.layouts import load_layout
from jaxcache.store.local import LocalStore

JAX = load_layout("jax")


@pytest.fixture
def single(tmp_path: Path) -> LocalStore:
    """A cache of one entry, where every prefix is unique."""
    source = min((CORPUS / "0.12.0.1-cpu-zstd").glob("*-cache"))
    shutil.copy(source, tmp_path)
    return LocalStore(tmp_path)


def test_an_empty_key_is_none(single: LocalStore) -> None:
    entries = scan(single).entries
    assert select_by_keys(entries, [entries[0].hash[:4]]) == list(entries)
    with pytest.raises(JaxcacheError, match="no entry matches ''"):
        select_by_keys(entries, [""])


def test_an_empty_key_unpins_nothing(single: LocalStore) -> None:
    (key,) = pin(single, JAX, ["*"], now_ns=1)
    with pytest.raises(JaxcacheError, match="no pinned entry matches ''"):
        unpin(single, [""], now_ns=2)
    assert pinned_keys(Ledger.load(single)) == [key]
    assert unpin(single, [key[:9]], now_ns=2) == [key]


def test_an_empty_key_restores_nothing(single: LocalStore) -> None:
    (entry,) = scan(single).entries
    single.rename(entry.file, f"{QUARANTINE_DIR}/x/{entry.file}")
    with pytest.raises(JaxcacheError, match="nothing in quarantine matches ''"):
        restore(single, JAX, keys=[""])
    assert not scan(single).entries
    restore(single, JAX, keys=[entry.hash[:4]])
    assert [e.file for e in scan(single).entries] == [entry.file]
