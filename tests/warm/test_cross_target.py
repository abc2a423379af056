"""Entries that ``compile`` may keep, and those that it delivers anew."""

import io
import os
import shutil
from pathlib import Path

import pytest
import zstandard
from bundling import first_entry, payload_of
from ways import OLD_NS, old_copy

from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError
from jaxcache.store.local import LocalStore
from jaxcache.warm.crosshost.cross_target import Delivery


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


def test_a_truncated_entry_is_none_that_compile_may_keep(there: Path) -> None:
    torn, empty, *_ = sorted(there.glob("*-cache"))
    good = {path: path.read_bytes() for path in (torn, empty)}
    torn.write_bytes(good[torn][:-20])
    empty.write_bytes(b"")
    for path in good:
        os.utime(path, ns=(OLD_NS, OLD_NS))
    delivery = Delivery(LocalStore(there))
    for path, data in good.items():
        key = key_of(path.name) or ""
        assert not delivery.has(key)
        assert delivery.take(path.name, io.BytesIO(data), key) is not None
        assert delivery.has(key)
        assert payload_of(path) == zstandard.decompress(data, max_output_size=1 << 24)[4:]


def test_a_directory_is_no_entry_that_compile_may_keep(there: Path, tmp_path: Path) -> None:
    entry, here = first_entry(there), tmp_path / "here"
    (here / entry.name).mkdir(parents=True)
    delivery, key = Delivery(LocalStore(here)), key_of(entry.name) or ""
    assert not delivery.has(key)
    with pytest.raises(JaxcacheError, match="a dir has its name"):
        delivery.take(entry.name, io.BytesIO(entry.read_bytes()), key)
    (here / entry.name).rmdir()
    shutil.copy(entry, here)
    assert delivery.take(entry.name, io.BytesIO(entry.read_bytes()), key) is None
