"""The Python interface."""

from pathlib import Path

import pytest

import jaxcache
from jaxcache.errors import NoCacheError, UsageError


def test_a_cache_is_opened_listed_and_counted(corpus: Path) -> None:
    cache = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    entries = list(cache.entries())
    assert len(entries) == 7
    assert cache.select("jit_mlp*").entries == (next(e for e in entries if e.module == "jit_mlp"),)
    assert cache.stats().total.entries == 7
    with pytest.raises(UsageError):
        cache.select(filters=["colour=red"])
    with pytest.raises(NoCacheError):
        jaxcache.open(corpus / "gone")


def test_the_package_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        jaxcache.close  # noqa: B018
