"""The Python interface."""

import doctest
import os
import shutil
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY

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


def test_the_page_about_it_is_true(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", tmp_path / "cache")
    dated_ns = time.time_ns() - 86_400 * 10**9
    for file in (tmp_path / "cache").iterdir():
        os.utime(file, ns=(dated_ns, dated_ns))
    monkeypatch.chdir(tmp_path)
    page = REPOSITORY / "docs" / "api.md"
    failed, tried = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert (failed, tried > 15) == (0, True)


def test_plans_change_nothing_until_executed(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache")
    cache = jaxcache.open(tmp_path / "cache")
    before = {p.name: p.read_bytes() for p in (tmp_path / "cache").iterdir()}
    plans = [
        cache.plan_prune(max_entries=1, grace="0s"),
        cache.plan_removal("jit_mlp*"),
        cache.plan_seal(),
        cache.plan_repair(cache.verify(level="quick")),
    ]
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "cache").iterdir()}
    for plan in plans:
        cache.execute(plan)  # type: ignore[call-overload]
    assert len(list(cache.entries())) == 1
    with pytest.raises(TypeError, match="no plan"):
        cache.execute("rm -rf")  # type: ignore[call-overload]
    with pytest.raises(UsageError):
        cache.plan_prune()


def test_an_import_can_be_refused(corpus: Path, tmp_path: Path) -> None:
    jaxcache.open(corpus / "0.10.2-cpu-zstd").export(tmp_path / "one.jxb", "jit_mlp*")
    target = jaxcache.open(tmp_path / "new", create=True)
    seen = []
    assert target.import_(tmp_path / "one.jxb", accept=lambda plan: seen.append(plan)) is None
    assert [len(plan.writes) for plan in seen] == [1]
    assert list(target.entries()) == []
    with pytest.raises(UsageError, match="is no bundle"):
        target.export(__file__)


@pytest.mark.jax
def test_warm_reports(tmp_path: Path, jax_python: str) -> None:
    (tmp_path / "job.py").write_text("import jax; jax.jit(lambda x: x * 2)(1.0)\n")
    cache = jaxcache.open(tmp_path / "cache", create=True)
    report = cache.warm(tmp_path / "job.py", python=jax_python, timeout="5m")
    assert report.script_exit_code == 0
    assert report.count("written") == len(list(cache.entries())) > 0
