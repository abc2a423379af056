"""``prune`` and ``rm`` in a cache of torch's compilers: whole units, in dependency order."""

import contextlib
import errno
import fcntl
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, first_file
from failing import let_fail
from ways import told

import jaxcache
from jaxcache.layouts.torch.names import digest_of
from jaxcache.layouts.torch.units import hold_lock
from jaxcache.store.base import StoreError
from jaxcache.store.local import LocalStore
from layouts.torch_files import files, graphs, two_tier_graph

KINDS = ["aotautograd/", "fxgraph/", ".py", ".main."]


def run(run_cli: RunCli, command: str, cache: Path, *args: str, code: int = 0) -> Any:
    return told(run_cli, command, "-C", cache, *args, code=code)


def size(cache: Path) -> int:
    """What a limit counts: not the compiler probes, which stay."""
    return sum(len(data) for name, data in files(cache).items() if name not in probes(cache))


def probes(cache: Path) -> set[str]:
    return {n for n in files(cache) if n.endswith((".cpp", ".so")) and ".main" not in n}


def sound(run_cli: RunCli, cache: Path) -> bool:
    """Nothing that is left refers to what went."""
    return not told(run_cli, "verify", "-C", cache)["problems"]


def test_duplicates_go_first(run_cli: RunCli, torch_cache: Path) -> None:
    before = size(torch_cache)
    done = run(run_cli, "prune", torch_cache, "--max-size", f"{before - 1}", "-y")
    assert {r["reason"] for r in done["removed"]} == {"duplicate"}
    assert sorted(r["key"].partition("-")[0] for r in done["removed"]) == ["aotautograd", "fxgraph"]
    assert done["lost_compile_seconds"] == 0
    for removed in done["removed"]:
        (kept,) = os.listdir((torch_cache / removed["file"]).parent)
        assert kept < Path(removed["file"]).name  # torch takes the first by name
    assert sound(run_cli, torch_cache)


FX_CLASS = b"torch._inductor.output_code\nCompiledFxGraph"
AOT_CLASS = b"torch._functorch._aot_autograd.aot_autograd_result\nAOTAutogradResult"


def write_graph(directory: Path, class_: bytes, state: bytes, used_ns: int) -> None:
    """Write an object of a class with that state, which is pickled by protocol 2."""
    data = b"\x80\x02c" + class_ + b"\n)\x81" + state[2:-1] + b"b."
    directory.mkdir(parents=True, exist_ok=True)
    (directory / digest_of(data)).write_bytes(data)
    os.utime(directory / digest_of(data), ns=(used_ns, used_ns))


def write_code(cache: Path, quotes: str) -> str:
    """Write a generated ``.py`` that embeds a kernel, and the kernel; return its key."""
    text = 'extern "C" void kernel() {}'
    code = f"import torch\nsource = r{quotes}\n{text}\n{quotes}\n"
    key = f"c{digest_of(code.strip().encode())}"
    kernel = "c" + "k" * 51
    for name, content in {
        f"{key[1:3]}/{key}.py": code,
        f"kk/{kernel}.main.cpp": f"{text}\n\n// Python bindings to call kernel():\n",
        f"kk/{kernel}.main.so": "machine code",
    }.items():
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, ns=(0, 0))
    return key


def write_cpp_wrapper(cache: Path) -> None:
    """A graph of ``cpp_wrapper``: its ``.py`` has all code in other quotes."""
    inner = "f" + "b" * 51
    state = {"_fx_graph_cache_key": inner, "cache_key": write_code(cache, '"""')}
    write_graph(cache / "fxgraph" / "bb" / inner, FX_CLASS, pickle.dumps(state, 2), 0)


def write_bundled(cache: Path) -> None:
    """A graph of ``bundled_autograd_cache``, which has its FX graphs inside."""
    key = write_code(cache, "'''").encode()
    result = b"cm\nR\n)\x81}X\x09\0\0\0cache_keyX" + len(key).to_bytes(4, "little") + key + b"sb"
    forward = b"cm\nF\n)\x81}X\x06\0\0\0result" + result + b"sb"
    state = b"\x80\x02}X\x0b\0\0\0compiled_fw" + forward + b"s."
    bundled = AOT_CLASS.replace(b"\nAOT", b"\nBundledAOT")
    write_graph(cache / "aotautograd" / f"a{'b' * 51}", bundled, state, 0)


@pytest.mark.parametrize("write", [write_cpp_wrapper, write_bundled])
def test_kernels_of_all_kinds_of_graphs_are_shown_and_stay(
    run_cli: RunCli, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    cache = tmp_path / "kinds"
    write(cache)
    shown = json.loads(run_cli("show", "-C", cache, "--json", "*").stdout)
    kinds = [Path(f["file"]).suffixes for f in shown["files"]]
    assert kinds == [[".py"], [".main", ".cpp"], [".main", ".so"]]
    assert shown["missing"] == []
    for args in (("--orphans",), ("--max-size", "10GB")):
        assert run(run_cli, "prune", cache, *args, "-y")["removed"] == []


def test_code_without_a_graph_stays_where_the_limit_is_met(run_cli: RunCli, tmp_path: Path) -> None:
    """Freezing bypasses both caches, and its kernels serve the next run."""
    cache = tmp_path / "frozen"
    (cache / "aotautograd").mkdir(parents=True)
    write_code(cache, "'''")
    over = size(cache)
    assert run(run_cli, "prune", cache, "--max-size", f"{over}", "-y")["removed"] == []
    done = run(run_cli, "prune", cache, "--max-size", f"{over - 1}", "-y")
    assert {r["reason"] for r in done["removed"]} == {"unreferenced"}


@pytest.mark.parametrize("policy", ["lru", "cost"])
def test_what_is_shared_counts_once(run_cli: RunCli, tmp_path: Path, policy: str) -> None:
    """Four small graphs need one large one, and so do four others: the first four free enough."""
    cache = tmp_path / "shared"
    for n, letter in enumerate("bc"):
        inner = "f" + letter * 51
        state = {"_fx_graph_cache_key": inner, "source_code": letter * 100_000}
        directory = cache / "fxgraph" / (letter * 2) / inner
        write_graph(directory, FX_CLASS, pickle.dumps(state, 2), n)
        for digit in "2345":
            forward = pickle.dumps({"fx_graph_cache_info": (inner, [])}, 2)[2:-1]
            state_of_outer = b"}X\x0b\0\0\0compiled_fwcm\nF\n)\x81" + forward + b"bs"
            directory = cache / "aotautograd" / f"a{letter}{digit * 50}"
            write_graph(directory, AOT_CLASS, b"\x80\x02" + state_of_outer + b".", n)
    # Reading them would note a use.
    bound = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) - 50_000
    done = run(run_cli, "prune", cache, "--max-size", f"{bound}", "--policy", policy, "-y")
    assert len(done["removed"]) == done["kept"] == 5
    assert {r["key"].partition("-")[2][1] for r in done["removed"]} == {"b"}


def test_guards_that_differ_late(run_cli: RunCli, torch_cache: Path) -> None:
    key = "f" + "a" * 51
    for size in ("64", "65"):
        guards = " and ".join(["s0 < 4096"] * 300) + f" and s0 != {size}"
        state = {"_fx_graph_cache_key": key, "guards_expr": guards}
        write_graph(torch_cache / "fxgraph" / "aa" / key, FX_CLASS, pickle.dumps(state, 2), 0)
    done = run(run_cli, "prune", torch_cache, "--orphans", "-n")
    assert key not in {r["key"].partition("-")[2] for r in done["removed"]}


@pytest.mark.parametrize(("share", "policy"), [(0.8, "lru"), (0.5, "cost"), (0.3, "lru")])
def test_a_bound_holds(run_cli: RunCli, torch_cache: Path, share: float, policy: str) -> None:
    bound = int(size(torch_cache) * share)
    args = ("--max-size", f"{bound}", "--policy", policy)
    planned = run(run_cli, "prune", torch_cache, *args, "-n")
    done = run(run_cli, "prune", torch_cache, *args, "-y")
    assert planned["removed"] == done["removed"]
    assert size(torch_cache) == done["size_bytes_after"] <= bound
    kinds = [next(k for k in KINDS if k in r["file"]) for r in done["removed"]]
    assert kinds == sorted(kinds, key=KINDS.index)
    assert sound(run_cli, torch_cache)
    assert len(probes(torch_cache)) == 12
    if policy == "cost":  # which keeps what took longest
        assert "scale" in {e["function"] for e in graphs(run_cli, torch_cache)}


@pytest.mark.parametrize(
    "name", ["precompiled_headers/ab/pch.h.gch", "gcc/bin/g++", "triton/0/h/k.cubin", "quack/k.o"]
)
def test_what_stays_anyway_does_not_count(run_cli: RunCli, torch_cache: Path, name: str) -> None:
    """Headers that torch compiles ahead lie in its own directory: hundreds of megabytes."""
    counted = size(torch_cache)
    path = torch_cache / name
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(8_000_000))
    found = run(run_cli, "prune", torch_cache, "--max-size", "2MB", "-y")
    assert (found["removed"], found["unmet"]) == ([], [])
    stats = run(run_cli, "stats", torch_cache)
    assert found["size_bytes_before"] == stats["size_bytes"] <= counted
    top = torch_cache / path.relative_to(torch_cache).parts[0]
    done = run_cli("prune", "-C", torch_cache, "--max-size", "2MB", "-y")
    assert f"8.0 MB in {top.name} do not count, and stay" in done.stderr
    assert f"rm -r {top} removes them" in done.stderr
    assert path.exists()


def test_a_limit_takes_leftovers_first(run_cli: RunCli, torch_cache: Path) -> None:
    left = torch_cache / "tmpabcdefgh" / "ab" / "code.py"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(8_000_000))
    found = run(run_cli, "prune", torch_cache, "--max-size", "2MB", "--grace", "0s", "-y")
    assert "entry" not in {r["kind"] for r in found["removed"] if r["reason"] == "max-size"}
    assert not left.exists() and first_file(torch_cache, "fxgraph/*/*/*").exists()


@pytest.mark.parametrize("kind", ["aotautograd", "fxgraph"])
def test_rm_takes_what_is_useless_then(run_cli: RunCli, torch_cache: Path, kind: str) -> None:
    loss = two_tier_graph(run_cli, torch_cache)
    before = files(torch_cache).keys()
    key = loss["hash"] if kind == "aotautograd" else loss["references"][1]
    removed = {r["file"] for r in run(run_cli, "rm", torch_cache, key, "-y")["removed"]}
    assert loss["file"] in removed
    assert len(removed) == 9 or kind == "fxgraph"  # AOT, two FX, two .py, two kernels, their source
    assert before - files(torch_cache).keys() == removed
    assert sound(run_cli, torch_cache)


def test_orphans_are_code_that_no_graph_needs(run_cli: RunCli, torch_cache: Path) -> None:
    for path in (*torch_cache.glob("aotautograd/*/*"), *torch_cache.glob("fxgraph/*/*/*")):
        path.unlink()
    temp = torch_cache / "fxgraph" / ".12.34.tmp"
    temp.write_bytes(b"half")
    os.utime(temp, ns=(0, 0))
    done = run(run_cli, "prune", torch_cache, "--orphans", "-y")
    found = {(r["reason"], r["kind"]) for r in done["removed"]}
    assert found == {("unreferenced", "generated-code"), ("temp-file", "temp-file")}
    assert not list(torch_cache.glob("*/*.py")) + list(torch_cache.glob("*/*.main.*"))
    assert not temp.exists()


def test_directories_of_compiles_with_caches_off(run_cli: RunCli, torch_cache: Path) -> None:
    """Torch makes one in its cache for each such compile, and leaves it there."""
    fresh = torch_cache / "tmpsz_xyqph"
    source = first_file(torch_cache, "*/*.main.cpp")
    for path in (fresh / "locks" / f"{source.stem}.lock", fresh / "5o" / source.name):
        path.parent.mkdir(parents=True)
        shutil.copy(source, path)
    assert sound(run_cli, torch_cache)
    run(run_cli, "prune", torch_cache, "--orphans", "-y")
    assert len(files(fresh)) == 2  # they may be in use
    for path in fresh.rglob("*"):
        os.utime(path, ns=(0, 0))
    done = run(run_cli, "prune", torch_cache, "--orphans", "-y")
    assert {r["file"].partition("/")[0] for r in done["removed"]} == {fresh.name}
    assert not files(fresh)


def test_a_kernel_that_is_being_compiled_stays(run_cli: RunCli, torch_cache: Path) -> None:
    (torch_cache / "locks").mkdir(exist_ok=True)
    kernel = min(torch_cache.glob("*/*.main.so"))
    lock = torch_cache / "locks" / f"{kernel.name.partition('.')[0]}.lock"
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run(run_cli, "prune", torch_cache, "--unused-for", "0s", "-y")
    assert {s["why"] for s in done["spared"]} == {"used"}
    assert kernel.exists()
    assert lock.exists()


def test_a_pinned_graph_stays_with_all_that_it_needs(run_cli: RunCli, torch_cache: Path) -> None:
    key = next(e["key"] for e in graphs(run_cli, torch_cache) if e["module"] == "aotautograd")
    spared = run(run_cli, "prune", torch_cache, "--unused-for", "0s", "--keep", key, "-n")
    assert spared["held"] == {"kept": spared["protected"]}
    assert run(run_cli, "pin", torch_cache, key)["pinned"] == [key]
    done = run(run_cli, "prune", torch_cache, "--max-entries", "1", "--grace", "0s", "-y", code=3)
    assert done["held"] == {"pinned": 1}
    left = graphs(run_cli, torch_cache)
    (graph,) = (e for e in left if e["module"] == "aotautograd")
    assert graph["key"] == key
    assert {e["hash"] for e in left if e["module"] == "fxgraph"} == set(graph["references"])
    assert sound(run_cli, torch_cache)
    refused = run_cli("rm", "-C", torch_cache, key, "-y")
    assert refused.returncode == 1 and "is pinned" in refused.stderr
    assert run(run_cli, "pin", torch_cache, "--remove", key)["unpinned"] == [key]
    assert run_cli("rm", "-C", torch_cache, key, "-y").returncode == 0


@pytest.mark.parametrize("kind", ["aotautograd", "fxgraph", "another"])
def test_rm_of_an_unreadable_graph(run_cli: RunCli, torch_cache: Path, kind: str) -> None:
    """And whole where only another graph cannot."""
    loss = two_tier_graph(run_cli, torch_cache)
    of = {"aotautograd": [loss["hash"]], "fxgraph": loss["references"][:1]}.get(kind)
    graph = next(
        path
        for path in (*torch_cache.glob("aotautograd/*/*"), *torch_cache.glob("fxgraph/*/*/*"))
        if (path.parent.name in of if of else loss["hash"] not in path.parts)
    )
    os.truncate(graph, (64 << 20) + 1)  # too large to be read
    os.utime(graph, ns=(0, 0))
    plan = jaxcache.open(torch_cache).plan_prune(orphans=True)
    assert {removal.reason for removal in plan.removals} == {"duplicate"}, "no code is an orphan"
    name = str(graph.relative_to(torch_cache))
    done = run_cli("rm", "-C", torch_cache, loss["hash"], "-y")
    assert done.returncode == (3 if of else 0), done.stderr
    assert (f"{name} cannot be read (" in done.stderr) == bool(of)
    assert graph.exists() == (not of)


@pytest.mark.parametrize("suffix", [".py", ".main.cpp"])
def test_rm_beside_code_that_cannot_be_read_is_partial(
    run_cli: RunCli, torch_cache: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    loss, cache = two_tier_graph(run_cli, torch_cache), jaxcache.open(torch_cache)
    let_fail(monkeypatch, "read", suffix)
    plan = cache.plan_removal(loss["hash"])
    assert plan.unmet == ("requested",)
    assert {name.endswith(suffix) for name in plan.unread} == {True}
    assert {r.reason for r in cache.plan_prune(orphans=True).removals} == {"duplicate"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_torchs_lock_is_not_needed_where_there_is_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: Any, **options: Any) -> int:
        raise OSError(code, os.strerror(code))

    store, kernel = LocalStore(tmp_path), f"aa/c{'a' * 51}.main.so"
    with hold_lock(store, kernel) as taken:
        assert taken
    monkeypatch.setattr(os, "open", refuse)
    unknown = (
        pytest.raises(StoreError, match="so: input")
        if code == errno.EIO
        else contextlib.nullcontext()
    )
    with unknown, hold_lock(store, kernel) as taken:
        assert taken and code != errno.EIO
