"""The Python interface."""

import re
import shutil
import traceback
from pathlib import Path

import pytest
from conftest import REPOSITORY

import jaxcache
from jaxcache.errors import NoCacheError, UntrustedError, UsageError
from jaxcache.warm.torch.run import TorchReport


def test_a_cache_is_opened_listed_and_counted(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    entries = list(cache.entries())
    assert [e.platform for e in entries] == ["cpu"] * 7
    assert [*cache.select("jit_mlp*").entries] == [e for e in entries if e.module == "jit_mlp"]
    assert {e.platform for e in cache.select(details=False).entries} == {"unknown"}
    with pytest.raises(UsageError) as raised:
        cache.select(filters=["colour=red"])
    assert "hint: write FIELD OP VALUE" in "".join(traceback.format_exception(raised.value))
    with pytest.raises(NoCacheError):
        jaxcache.open(corpus / "gone")
    with pytest.raises(UsageError, match="an empty path names no cache"):
        jaxcache.open("")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(corpus / "0.10.2-cpu-zstd"))
    assert list(jaxcache.open().entries()) == entries
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        jaxcache.close  # noqa: B018
    with pytest.raises(TypeError, match="str is not a plan"):
        cache.execute("rm -rf")  # type: ignore[call-overload]


def test_results_are_short_to_read(capped_cache: Path) -> None:
    """And print as the last line of their command."""
    cache = jaxcache.open(capped_cache)
    entry = next(e for e in cache.entries() if e.module == "jit_mlp")
    assert re.fullmatch(
        r"<Entry jit_mlp-[0-9a-f]{12}: [0-9,]+ bytes, <1 s to compile, cpu \S+>", repr(entry)
    )
    plan = cache.plan_prune(max_entries=5, policy="lru", grace="0s")
    assert "removals=<2>, kept=5" in repr(plan)
    row = r"\n  <Removal jit_\w+-[0-9a-f]{12}: [0-9,]+ bytes, max-entries>"
    assert re.fullmatch(rf"would remove 2 entries \(.*{row}{row}", str(plan))
    for result, start in (
        (cache.stats(), "hits not recorded; "),
        (cache.select(), "7 entries, "),
        (cache.verify(), "7 entries checked: "),
        (cache.execute(plan), "removed 2 entries ("),
    ):
        assert str(result).startswith(start) and "\n" not in str(result)
        assert len(str(result)) < 160 and len(repr(result)) <= 500


def test_a_move_can_be_refused(corpus: Path, tmp_path: Path) -> None:
    source = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    source.export(tmp_path / "one.jxb", "jit_mlp*")
    target = jaxcache.open(tmp_path / "new", create=True)
    seen = []
    assert target.import_(tmp_path / "one.jxb", accept=seen.append) is None
    assert source.push(target, include="jit_mlp*", accept=seen.append) is None
    assert (len(seen[0].writes), len(seen[1].transfers)) == (1, 1)
    assert list(target.entries()) == []
    (notes := tmp_path / "notes").write_text("not to be replaced")
    with pytest.raises(UsageError, match="is not a bundle"):
        target.export(notes)


def test_the_users_rules_about_signatures_hold_in_python(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    source = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    target = jaxcache.open(tmp_path / "new", create=True)
    source.export(tmp_path / "x.jxb", "jit_mlp*")
    (tmp_path / "jaxcache").mkdir()
    (tmp_path / "jaxcache" / "config.toml").write_text("require-signed = true\n")
    with pytest.raises(UntrustedError):
        target.import_(tmp_path / "x.jxb")
    pushed = source.push(target)
    assert pushed and not pushed.carried
    assert list(target.entries()) == []


def test_a_cache_of_torch_is_one_too(golden: Path, corpus: Path, tmp_path: Path) -> None:
    cache = jaxcache.open(shutil.copytree(golden, tmp_path / "torch"))
    assert cache.layout.name == "torch"
    entries = list(cache.entries())
    found = cache.verify()
    assert found.ok == found.checked >= cache.stats().total.entries == len(entries) > 0
    assert cache.plan_prune(max_entries=0, grace=0).removals
    cache.export(tmp_path / "t.jxb")
    for refused in (
        cache.plan_seal,
        lambda: cache.compile(REPOSITORY / "tests/data/golden/inputs/some.recipe"),
        lambda: cache.show("x"),
        lambda: cache.push(jaxcache.open(corpus / "0.10.2-cpu-zstd")),
        lambda: jaxcache.open(corpus / "0.10.2-cpu-zstd").import_(tmp_path / "t.jxb"),
    ):
        with pytest.raises(UsageError) as caught:
            refused()
        assert caught.value.code == "other-layout"


def test_a_run_on_a_cache_of_torch_is_not_one_of_jax(torch_cache: Path, tmp_path: Path) -> None:
    cache = jaxcache.open(torch_cache)
    before = sorted(torch_cache.rglob("*"))
    assert isinstance(cache.run("sh", "-c", "true"), TorchReport)
    with pytest.raises(UsageError, match="--platform is for JAX's cache"):
        cache.warm(tmp_path / "train.py", platform="cpu")
    with pytest.raises(UsageError, match="are for JAX's cache"):
        cache.warm_function("train.py:f")
    assert "TORCHINDUCTOR_CACHE_DIR" in {s.name for s in cache.diagnose().facts.settings}
    with pytest.raises(UsageError, match="--decode is for JAX's cache"):
        cache.diagnose(max_decoded=3)
    assert sorted(torch_cache.rglob("*")) == before
