"""``jaxcache stats``: everything in the directory is counted."""

import json
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli
from terminal import run_all, without_style

from jaxcache.cache.ledger.record import COMPILE, HIT, MISS, Event
from jaxcache.cache.ledger.write import append, compact
from jaxcache.live.process import COUNTERS, SUMS
from jaxcache.store import open_store
from jaxcache.store.base import FetchedFile
from jaxcache.store.local import LocalStore

HASH = "cd" * 32


@pytest.fixture
def cache(tmp_path: Path, corpus: Path) -> Path:
    target = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", target)
    shutil.copy(corpus / "0.10.2-cuda13-h200-kernelcache" / "xla_gpu_kernel_cache_file", target)
    autotune = target / "xla_gpu_per_fusion_autotune_cache_dir" / "tmp"
    autotune.mkdir(parents=True)
    (autotune.parent / "abc.textproto").write_bytes(b"x" * 10)
    (autotune / "tmp_per_fusion_cache_1").write_bytes(b"x" * 5)
    (target / f"jit_gone-{HASH}-atime").write_bytes(bytes(8))
    (target / f"jit_old-{HASH}").write_bytes(next(target.glob("jit_mlp*-cache")).read_bytes())
    (target / "_temp_x").write_bytes(b"xyz")
    return target


def test_everything_is_counted(run_cli: RunCli, cache: Path) -> None:
    (cache / "link").symlink_to("jit_nowhere")
    (cache / f"jit_folder-{HASH}-cache").mkdir()
    document = json.loads(run_cli("stats", "--json", "-C", cache).stdout)
    files = {f["kind"]: (f["files"], f["size_bytes"]) for f in document["files"]}
    assert files["entry"][0] == 7
    assert files["legacy-entry"] == (1, next(cache.glob("jit_mlp*-cache")).stat().st_size)
    assert files["atime"] == (8, 64)
    assert files["autotune"] == (2, 15)
    assert files["temp"] == (1, 3)
    assert files["lockfile"] == (1, 0)
    assert files["kernel-cache"][1] == (cache / "xla_gpu_kernel_cache_file").stat().st_size
    assert files["stray"] == (2, 0)  # as a bound counts them
    on_disk = sum(p.stat().st_size for p in cache.rglob("*") if p.is_file())
    assert document["directory_bytes"] == on_disk == sum(size for _, size in files.values())
    assert document["total"]["entries"] == 8
    assert document["problems"] == {
        "orphan-atime": 1,
        "legacy-name": 1,
        "temp-file": 1,
        "stray-file": 2,
        "module-mismatch": 1,
    }


def test_prometheus_text_parses(run_cli: RunCli, cache: Path) -> None:
    odd = cache.rename(cache.with_name('odd "name\\'))
    done = run_cli("stats", "--prometheus", "-C", odd)
    assert done.returncode == 0
    sample = re.compile(r'jaxcache_[a-z_]+\{cache_dir="(?:[^"\\]|\\.)*",[a-z]+="[^"]*"\} [0-9.e+]+')
    lines = done.stdout.splitlines()
    assert [x for x in lines if not x.startswith("#") and not sample.fullmatch(x)] == []
    assert any('kind="autotune"} 15' in x for x in lines)
    typed = [x.split()[2] for x in lines if x.startswith("# TYPE")]
    assert len(typed) == len(set(typed)) == 6


def test_one_size_of_a_cache_on_every_screen(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    """All files count, quarantined ones too, but not the ledger, which bounds itself."""
    key = next(cache.glob("jit_mlp*-cache")).name.removesuffix("-cache")
    facts = {"compile_seconds": 0.0123, "note": "x" * 50_000}
    assert append(open_store(str(cache)), [Event(key, COMPILE, 1, facts)])
    damaged = next(cache.glob("jit__fun*-cache"))
    damaged.write_bytes(damaged.read_bytes()[:-40] + bytes(30_000))
    # The entry that holds another module than its name says stays.
    assert run_cli("verify", "-C", cache, "--fix", "--grace", "0s").returncode == 1
    records = {*cache.rglob("ledger/*"), cache / "CACHEDIR.TAG"}
    files = [p for p in cache.rglob("*") if p.is_file() and p not in records]
    size_bytes = sum(p.stat().st_size for p in files)
    assert json.loads(run_cli("stats", "--json", "-C", cache).stdout)["size_bytes"] == size_bytes
    pruned = run_cli("prune", "--max-size", "1GB", "-n", "--json", "-C", cache)
    assert json.loads(pruned.stdout)["size_bytes_before"] == size_bytes
    commands = [["ls"], ["stats"], ["prune", "--max-size", "1GB", "-n"]]
    screens = run_all([[*c, "-C", cache] for c in commands], home=tmp_path, width=120)
    ls, stats, prune = (without_style(text) for _, text in screens)
    size = f"{size_bytes / 1000:.1f} kB"
    record_bytes = sum(p.stat().st_size for p in records if p.is_file())
    uncounted_size = f"{record_bytes / 1000:.1f} kB"
    assert f"; the whole cache has {size}, records {uncounted_size}" in ls
    uncounted = f"; {uncounted_size} of jaxcache's own records not counted"
    assert f"Cache size   {size}, as --max-size counts it{uncounted}" in stats
    assert f"cache size {size}" in prune
    assert "12 ms" in ls
    assert "12 ms" in stats


def test_hits_are_the_same_after_a_compaction(run_cli: RunCli, cache: Path) -> None:
    keys = sorted(p.name.removesuffix("-cache") for p in cache.glob("*-cache"))
    events = [Event(keys[0], COMPILE, 1, {"compile_seconds": 2.5}), Event(keys[1], COMPILE, 1)]
    store = open_store(str(cache))
    assert append(store, [*events, Event(keys[0], HIT, 2, {"count": 5})])
    assert append(store, [Event(keys[0], COMPILE, 3), Event(keys[0], HIT, 4)])
    for _ in range(2):
        found = json.loads(run_cli("stats", "-C", cache, "--json").stdout)
        assert (found["hits"], found["misses"]) == (6, 3)
        assert (found["hit_rate"], found["saved_seconds"]) == (6 / 9, 15.0)
        compact(store)


def test_what_a_move_brought_and_nothing_used(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    source = corpus / "0.12.0.1-cpu-zstd"
    cache = tmp_path / "cache"
    assert run_cli("copy", source, cache).returncode == 0
    brought = {p.name: p.stat().st_size for p in cache.glob("*-cache")}
    hit, read, *unused = sorted(brought)
    append(open_store(str(cache)), [Event(hit.removesuffix("-cache"), HIT, time.time_ns())])
    later = time.time() + 120
    os.utime(cache / read, (later, (cache / read).stat().st_mtime))
    never_used = json.loads(run_cli("stats", "--json", "-C", cache).stdout)["never_used"]
    size_bytes = sum(brought[name] for name in unused)
    assert (never_used["entries"], never_used["size_bytes"]) == (5, size_bytes)
    ((_, screen),) = run_all([["stats", "-C", cache]], home=tmp_path, width=200)
    size = f"{size_bytes / 1000:.1f} kB"
    (line,) = (x for x in without_style(screen).splitlines() if x.startswith("Never used"))
    says, command = line.split("; see them with: jaxcache ")
    assert says == f"Never used   5 entries that a move brought, {size}"
    listed = json.loads(run_cli(*command.split(), "--json").stdout)["entries"]
    assert sorted(e["file"] for e in listed) == unused


def test_counts_of_the_live_layer_that_no_number_holds(run_cli: RunCli, cache: Path) -> None:
    directory = cache / ".jaxcache" / "live"
    directory.mkdir(parents=True)
    (directory / "totals").write_text('{"misses": Infinity, "hits_local": 3}')
    done = run_cli("stats", "-C", cache, "--json")
    assert json.loads(done.stdout)["live"] == {"hits_local": 3}, done.stderr


def test_the_ledger_is_read_once(
    run_cli: RunCli, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may have written some megabytes of it."""
    store = LocalStore(str(cache))
    append(store, [Event("k", COMPILE, 5, {"jax_version": "0.12.0.1"}), Event("k", HIT, 6)])
    reads: list[str] = []
    fetch = LocalStore.fetch

    def count(self: LocalStore, name: str, *, limit: int) -> FetchedFile:
        reads.append(name)
        return fetch(self, name, limit=limit)

    monkeypatch.setattr(LocalStore, "fetch", count)
    document = json.loads(run_cli("stats", "--json", "-C", cache).stdout)
    assert document["hits"] == 1
    assert sum("/ledger/" in name for name in reads) == 1


# ``examples/grafana``: each query asks for what ``stats --prometheus`` exports.


DASHBOARD: dict[str, Any] = json.loads(
    (REPOSITORY / "examples" / "grafana" / "jaxcache.json").read_text()
)
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)(=~|!=|!~|=)"((?:[^"\\]|\\.)*)"')
#: Labels whose values the exporter writes itself.
_FIXED = ("counter", "kind")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.fixture
def exported(run_cli: RunCli, capped_cache: Path) -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric, of a cache with uses and live totals."""
    store = open_store(str(capped_cache))
    key = min(path.name for path in capped_cache.glob("*-cache")).removesuffix("-cache")
    append(store, [Event(key, kind, 10**18, {"compile_seconds": 2.5}) for kind in (HIT, MISS)])
    (capped_cache / "jit_torn-cache").write_bytes(b"")
    quarantine = capped_cache / ".jaxcache" / "quarantine" / "20260101T000000Z"
    quarantine.mkdir(parents=True)
    (quarantine / f"{key}-cache").write_bytes(b"torn")
    live = capped_cache / ".jaxcache" / "live"
    live.mkdir()
    (live / "totals").write_text(json.dumps(dict.fromkeys([*COUNTERS, *SUMS], 1)))
    text = run_cli("stats", "--prometheus", "-C", capped_cache).stdout
    found: dict[str, dict[str, set[str]]] = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            labels = found.setdefault(match[1], defaultdict(set))
            for name, _, value in _LABEL.findall(match[2] or ""):
                labels[name].add(value)
    return found


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_asks_for_what_is_exported(
    query: str, exported: dict[str, dict[str, set[str]]]
) -> None:
    metrics = set(re.findall(r"\bjaxcache_\w+", query))
    assert metrics
    assert metrics <= exported.keys()
    for metric, matchers in re.findall(r"\b(jaxcache_\w+)\{([^}]*)\}", query):
        for label, operator, value in _LABEL.findall(matchers):
            assert label in exported[metric]
            if label in _FIXED:
                wanted = value.split("|") if operator == "=~" else [value]
                assert set(wanted) <= exported[metric][label]
    (metric, *_) = sorted(metrics)
    for label in re.findall(r"\bby \((\w+)\)", query):
        assert label in exported[metric]
    assert query.count("(") == query.count(")")


def test_every_panel_is_complete_and_no_two_overlap() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    covered: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        squares = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not squares & covered
        covered |= squares
    for panel in panels():
        assert panel["title"]
        assert panel["targets"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_name_in_a_query_is_a_variable() -> None:
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    asked = {name for query in queries() for name in re.findall(r"\$(\w+)", query)}
    assert asked - {"__rate_interval"} <= known
