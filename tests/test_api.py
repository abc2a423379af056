"""The Python interface."""

import os
import re
import shutil
import time
import traceback
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bundling import forged
from conftest import REPOSITORY

import jaxcache
from jaxcache.cache.ledger.record import HIT, Event
from jaxcache.cache.ledger.write import append
from jaxcache.errors import JaxcacheError, NoCacheError, UntrustedError, UsageError
from jaxcache.store import open_store
from jaxcache.warm.torch.run import TorchReport


def test_a_cache_is_opened_listed_and_counted(corpus: Path) -> None:
    cache = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    entries = list(cache.entries())
    assert len(entries) == 7
    assert cache.select("jit_mlp*").entries == (next(e for e in entries if e.module == "jit_mlp"),)
    assert cache.stats().total.entries == 7
    assert {e.platform for e in entries} == {"cpu"}
    assert {e.platform for e in cache.select(details=False).entries} == {"unknown"}
    with pytest.raises(UsageError) as raised:
        cache.select(filters=["colour=red"])
    assert "hint: write FIELD OP VALUE" in "".join(traceback.format_exception(raised.value))
    with pytest.raises(NoCacheError):
        jaxcache.open(corpus / "gone")
    with pytest.raises(UsageError, match="an empty path names no cache"):
        jaxcache.open("")


def test_results_are_short_to_read(corpus: Path) -> None:
    cache = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    first = next(e for e in cache.entries() if e.module == "jit_mlp")
    assert re.fullmatch(
        r"<Entry jit_mlp-[0-9a-f]{12}: [0-9,]+ bytes, \S+ s to compile, cpu \S+>", str(first)
    )
    plan = cache.plan_prune(max_entries=5)
    assert "removals=<2>, kept=5" in repr(plan)
    assert "options=PruneOptions(max_entries=5)" in repr(plan)
    results = [
        plan,
        cache.select(),
        cache.stats(),
        cache.verify(),
        cache.show("jit_mlp"),
        cache.plan_seal(),
    ]
    assert [r for r in map(repr, results) if len(r) > 500] == []


def test_the_package_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        jaxcache.close  # noqa: B018


def test_plans_change_nothing_until_executed(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache")
    cache = jaxcache.open(tmp_path / "cache")
    before = {p.name: p.read_bytes() for p in (tmp_path / "cache").iterdir()}
    plans = [
        cache.plan_prune(max_entries=1, keep=["jit_loss*"], grace="0s"),
        cache.plan_removal("jit_mlp*"),
        cache.plan_seal(),
        cache.plan_repair(cache.verify(level="quick")),
    ]
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "cache").iterdir()}
    for plan in plans:
        cache.execute(plan)  # type: ignore[call-overload]
    assert len(list(cache.entries())) == 1
    with pytest.raises(TypeError, match="not a plan"):
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
    (notes := tmp_path / "notes").write_text("not to be replaced")
    with pytest.raises(UsageError, match="is not a bundle"):
        target.export(notes)


def test_an_atomic_import_takes_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "b.jxb").write_bytes(forged(lambda d: None, b"no executable at all"))
    target = jaxcache.open(tmp_path / "new", create=True)
    with pytest.raises(JaxcacheError, match="with --atomic nothing is imported"):
        target.import_(tmp_path / "b.jxb", atomic=True)


def test_entries_come_back_from_quarantine_and_pins_hold(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache")
    cache = jaxcache.open(tmp_path / "cache")
    torn = min((tmp_path / "cache").glob("*-cache"))
    torn.write_bytes(torn.read_bytes()[:-5])
    repair = cache.execute(cache.plan_repair(cache.verify(level="quick", grace=0)))
    assert repair.actions == {torn.name: "quarantine"}
    assert [q.file for q, _ in cache.restore().left] == [torn.name]
    (away,) = (tmp_path / "cache" / ".jaxcache").rglob(torn.name)
    away.write_bytes((corpus / "0.10.2-cpu-zstd" / torn.name).read_bytes())
    assert [q.file for q in cache.restore(dry_run=True).restored] == [torn.name]
    assert not torn.exists()
    assert len(cache.restore().restored) == 1
    (key,) = cache.pin("jit_mlp*")
    assert cache.pins() == [key]
    assert cache.plan_prune(max_entries=0, grace=0).protected == 1
    assert cache.unpin("jit_mlp*") == [key]
    os.utime(torn, (9, 5))  # a copy of the directory has read all others at once
    assert cache.plan_prune(max_entries=0, grace=0, used_since=datetime.now(UTC)).kept == 0


def test_what_another_cache_lacks_is_pushed(corpus: Path, tmp_path: Path) -> None:
    source = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    target = jaxcache.open(tmp_path / "new", create=True)
    seen = []
    assert source.push(target, include=["jit_mlp*"], accept=lambda p: seen.append(p)) is None
    assert [len(plan.transfers) for plan in seen] == [1]
    assert list(target.entries()) == []
    done = source.push(target, max_size="20kB")
    assert done is not None
    assert 0 < done.carried_bytes <= 20_000
    whole = source.push(target)
    assert whole is not None
    assert source.diff(target).equal
    assert source.churn() == ()


def test_signed_bundles(corpus: Path, tmp_path: Path) -> None:
    trust = pytest.importorskip("jaxcache.cache.trust")
    pytest.importorskip("cryptography")
    public = trust.public_key_text(trust.generate_key(tmp_path / "me.key"))
    source = jaxcache.open(corpus / "0.12.0.1-cuda13-h200-zstd")
    source.export(tmp_path / "x.jxb", level=1, sign=[tmp_path / "me.key"])
    target = jaxcache.open(tmp_path / "new", create=True)
    with pytest.raises(UntrustedError):
        target.import_(tmp_path / "x.jxb", trusted=tmp_path)
    trust.add_trusted(tmp_path, "me", public)
    assert target.import_(tmp_path / "x.jxb", trusted=tmp_path) is not None
    assert source.export(tmp_path / "rest.jxb", since=tmp_path / "new").items == ()


def test_the_users_rules_about_signatures_hold_in_python(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = pytest.importorskip("jaxcache.cache.trust")
    pytest.importorskip("cryptography")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trust.generate_key(tmp_path / "me.key")
    source = jaxcache.open(corpus / "0.10.2-cpu-zstd")
    target = jaxcache.open(tmp_path / "new", create=True)
    source.export(tmp_path / "x.jxb", "jit_mlp*", sign=[tmp_path / "me.key"])
    data = bytearray((tmp_path / "x.jxb").read_bytes())
    data[60] ^= 1  # in the signature
    (tmp_path / "bad.jxb").write_bytes(data)
    with pytest.raises(UntrustedError, match="does not hold"):
        target.import_(tmp_path / "bad.jxb")
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
    assert cache.stats().total.entries == len(entries) > 0
    found = cache.verify()
    assert found.ok == found.checked >= len(entries)
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
    report = cache.run("sh", "-c", "true")
    assert isinstance(report, TorchReport)
    with pytest.raises(UsageError, match="--platform is for JAX's cache"):
        cache.warm(tmp_path / "train.py", platform="cpu")
    with pytest.raises(UsageError, match="are for JAX's cache"):
        cache.warm_function("train.py:f")
    assert "TORCHINDUCTOR_CACHE_DIR" in {s.name for s in cache.diagnose().facts.settings}
    with pytest.raises(UsageError, match="--decode is for JAX's cache"):
        cache.diagnose(max_decoded=3)
    assert sorted(torch_cache.rglob("*")) == before


def test_a_directory_that_jax_shares_with_torch(golden: Path, corpus: Path, tmp_path: Path) -> None:
    shared = shutil.copytree(golden, tmp_path / "shared")
    shutil.copytree(corpus / "0.10.2-cpu-zstd", shared, dirs_exist_ok=True)
    cache = jaxcache.open(shared, layout="jax")
    assert cache.show("jit_mlp").entry.module == "jit_mlp"
    assert len(cache.plan_seal().todo) == 7
    pushed = cache.push(jaxcache.open(tmp_path / "other", create=True))
    assert pushed and pushed.complete and len(pushed.carried) >= 7


def test_a_diagnosis_without_jax(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache")
    (tmp_path / "cache").chmod(0o777)
    cache = jaxcache.open(tmp_path / "cache")
    found = cache.diagnose(python="/nonexistent")
    assert found.no_jax
    assert "unsafe-permissions" in {f.trap for f in found.findings}


@pytest.mark.jax
def test_warm_reports(tmp_path: Path, jax_python: str) -> None:
    (tmp_path / "job.py").write_text("import jax; jax.jit(lambda x: x * 2)(1.0)\n")
    cache = jaxcache.open(tmp_path / "cache", create=True)
    report = cache.warm(tmp_path / "job.py", python=jax_python, timeout="5m")
    assert report.script_exit_code == 0
    assert report.count("written") == len(list(cache.entries())) > 0
    recipe = tmp_path / "r.recipe"
    again = cache.run(
        jax_python, str(tmp_path / "job.py"), record=str(recipe), force_cache_dir=True
    )
    assert again.count("hit") == report.count("written")
    seen: list[tuple[int, int]] = []
    other = jaxcache.open(
        tmp_path / "other",
        create=True,
        progress=lambda *_, **__: nullcontext(lambda *progress: seen.append(progress)),
    )
    compiled = other.compile(recipe, python=jax_python, jobs=1, used_at=tmp_path / "cache")
    assert seen[-1] == (len(compiled.modules), len(compiled.modules))
    assert compiled.count("written") == len(list(other.entries())) == report.count("written")
    assert [e.key for e in other.entries()] == [e.key for e in cache.entries()]


def test_a_plan_an_error_and_the_options_explain_themselves(corpus: Path, tmp_path: Path) -> None:
    cache = jaxcache.open(shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache"))
    plan = cache.plan_prune(max_size="1kB", grace="2d")
    assert str(plan).splitlines()[1:] == [
        "cannot reach 1.0 kB: 7 entries are younger than 2d "
        "(with --grace 0s they may be removed, too)",
        "when they are old enough, this command will remove 7 entries "
        "(44.1 kB, under 1 s of compiling per entry)",
    ]
    with pytest.raises(jaxcache.JaxcacheError) as caught:
        cache.plan_prune()
    assert str(caught.value).splitlines()[0] == "no limit is given"
    assert str(caught.value).endswith("in Python: max_size='10GB' or unused_for='30d'")
    assert {"Entry", "PruneOptions"} <= set(dir(jaxcache))
    entry = next(cache.entries())
    assert isinstance(entry, jaxcache.Entry) and "<1 s to compile" in repr(entry)
    told = jaxcache.PruneOptions.__doc__ or ""
    for declared in jaxcache.PruneOptions.DECLARED.values():
        assert f"{declared.keyword}: {declared.help}\n" in told
    append(open_store(str(tmp_path / "cache")), [Event(entry.key, HIT, time.time_ns())])
    assert str(cache.stats()).startswith("1 of 1 compile hit, saved under 1 s of compiling; 7 ")


def test_results_print_as_the_last_line_of_their_command(corpus: Path, tmp_path: Path) -> None:
    cache = jaxcache.open(shutil.copytree(corpus / "0.10.2-cpu-zstd", tmp_path / "cache"))
    for number, file in enumerate(sorted((tmp_path / "cache").iterdir())):
        os.utime(file, (10**9 + number, 10**9 + number))
    plan = cache.plan_prune(max_entries=5, policy="lru", grace="0s")
    total, *rows = str(plan).splitlines()
    assert [re.sub("[0-9a-f]{12}", "#", row) for row in rows] == [
        "  <Removal jit__fun-#: 2,684 bytes, max-entries>",
        "  <Removal jit__lambda-#: 5,275 bytes, max-entries>",
    ]
    done = str(cache.stats()), str(cache.select()), str(cache.verify()), total
    done = (*done, str(cache.execute(plan)))
    starts = (
        "hits not recorded; ",
        "7 entries, ",
        "7 entries checked: ",
        "would remove 2 entries (",
    )
    for line, start in zip(done, (*starts, "removed 2 entries ("), strict=True):
        assert line.startswith(start)
        assert "\n" not in line and len(line) < 160
