"""``ls``, ``show`` and ``stats`` in a cache of torch's compilers."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
from conftest import RunCli, first_file
from ways import told

from jaxcache.cache.index import read_checked, write_checked
from jaxcache.layouts.torch.names import digest_of, directory_of
from jaxcache.layouts.torch.scan import GraphIndex
from layouts.torch_files import Trap, graphs, two_tier_graph


def test_graphs_of_a_function(run_cli: RunCli, golden: Path, torch_cache: Path) -> None:
    for entry in graphs(run_cli, golden):
        assert directory_of(entry["module"], entry["hash"]) == os.path.dirname(entry["file"])
    keys = {e["key"] for e in graphs(run_cli, golden) if e["function"] == "loss"}
    for args in (("loss",), ("los[s]",), ("--filter", "function=loss")):
        assert {e["key"] for e in told(run_cli, "ls", "-C", golden, *args)["entries"]} == keys
    shown = told(run_cli, "show", "-C", golden, "loss")["entries"]
    assert {s["entry"]["key"] for s in shown} == keys != set()
    assert told(run_cli, "verify", "-C", golden, "loss", "--level", "quick")["checked"] > 0
    gone = told(run_cli, "rm", "-C", torch_cache, "loss", "--yes")["removed"]
    assert {r["key"] for r in gone if r["key"]} == keys
    groups = told(run_cli, "ls", "-C", golden, "--group-by", "function")["groups"]
    assert {g["name"] for g in groups} == {"scale", "loss", "spread"}


def test_kernels_alone_are_known_by_their_locks(run_cli: RunCli, torch_cache: Path) -> None:
    """Where graphs are kept elsewhere, or were removed."""
    kernel = first_file(torch_cache, "*/*.main.so")
    (torch_cache / "locks").mkdir(exist_ok=True)
    (torch_cache / "locks" / f"{kernel.name.partition('.')[0]}.lock").touch()
    for tier in ("aotautograd", "fxgraph"):
        shutil.rmtree(torch_cache / tier)
    counts = {f["kind"]: f["files"] for f in told(run_cli, "stats", "-C", torch_cache)["files"]}
    assert counts["kernel"] == 4
    other = torch_cache.parent / "locks-of-others"
    (other / "locks").mkdir(parents=True)
    (other / "locks" / "mine.lock").touch()
    assert "kernel" not in run_cli("stats", "-C", other).stdout


def test_seconds_are_counted_once(run_cli: RunCli, golden: Path) -> None:
    """AOT's seconds include Inductor's, so a sum over both tiers must leave those out."""
    listed = told(run_cli, "ls", "-C", golden)
    backward = next(e for e in listed["entries"] if len(e["references"]) == 2)
    shown = told(run_cli, "show", "-C", golden, backward["hash"])
    inner = sum(
        told(run_cli, "show", "-C", golden, key)["seconds"]["total"]
        for key in backward["references"]
    )
    assert shown["seconds"]["forward"] + shown["seconds"]["backward"] == pytest.approx(
        shown["seconds"]["total"]
    )
    assert backward["compile_seconds"] == pytest.approx(shown["seconds"]["total"] - inner)
    total = sum(e["compile_seconds"] for e in listed["entries"])
    assert listed["summary"]["compile_seconds"] == pytest.approx(total)
    # Two files have one key, with guards of their own, and so have the FX graphs below them.
    entries = told(run_cli, "ls", "-C", golden, "aotautograd-azx*")["entries"]
    assert sorted(round(e["compile_seconds"], 1) for e in entries) == [1.1, 1.7]


def test_filters_sorting_and_keys_are_those_of_every_layout(run_cli: RunCli, golden: Path) -> None:
    slow = run_cli("ls", "-C", golden, "-q", "--filter", "compile>10s").stdout.split()
    assert {k.partition("-")[0] for k in slow} == {"fxgraph"}
    first = told(run_cli, "ls", "-C", golden, "--sort", "compile", "--limit", "1")
    assert first["entries"][0]["function"] == "scale"
    assert len(run_cli("ls", "-C", golden, "-q", "aot*").stdout.split()) == 4
    for words in (("ls", "-q", "f"), ("explain", "fnothing")):
        assert run_cli(*words, "-C", golden).returncode == 1
    for line in ("show f* --hlo", "verify --level load", "prune --legacy -n", "prune -n"):  # JAX's
        assert run_cli(*line.split(), "-C", golden).returncode == 2


def test_a_plain_listing_opens_no_file(run_cli: RunCli, torch_cache: Path) -> None:
    for path in (torch_cache / "fxgraph").glob("*/*/*"):
        path.write_bytes(b"\0" * path.stat().st_size)
    assert len(told(run_cli, "ls", "-C", torch_cache)["entries"]) == 9


def test_an_index_of_other_fields(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    before = told(run_cli, "ls", "-C", torch_cache)
    (path,) = tmp_path.rglob("*.idx")
    body = bytes(read_checked(path, GraphIndex.magic)).replace(b'"function": ', b'"callable": ')
    write_checked(path, b"jaxcache-torch-index 5\n", [body])  # as a version without it wrote it
    assert told(run_cli, "ls", "-C", torch_cache) == before


def test_the_index_spares_reading_and_notices_changes(run_cli: RunCli, torch_cache: Path) -> None:
    before = told(run_cli, "ls", "-C", torch_cache)
    path = first_file(torch_cache, "fxgraph/*/*/*")
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert told(run_cli, "ls", "-C", torch_cache) == before  # not opened
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert told(run_cli, "ls", "-C", torch_cache) != before


def test_a_graph_is_compared_with_the_nearest_other(run_cli: RunCli, golden: Path) -> None:
    """Here the forward graph of a function with its backward graph; what differs comes first."""
    loss = two_tier_graph(run_cli, golden)
    assert told(run_cli, "show", "-C", golden, loss["hash"][:9])["nearest"] is None
    forward, backward = loss["references"]
    nearest = told(run_cli, "show", "-C", golden, forward)["nearest"]
    assert nearest["key"] == f"fxgraph-{backward}"
    assert "example_inputs[2]" in {d["component"] for d in nearest["differences"]}
    page = run_cli("show", "-C", golden, forward).stdout
    assert page.index("nearest.differences[0].component\texample_inputs") < page.index(
        "seconds.total"
    )


def test_a_hostile_entry_is_not_run(run_cli: RunCli, torch_cache: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    data = pickle.dumps(Trap(trap), 4)
    directory = first_file(torch_cache, "fxgraph/*/*/*").parent
    (directory / digest_of(data)).write_bytes(data)  # under a name that fits its bytes
    hostile = next(e for e in graphs(run_cli, torch_cache) if e["file"].endswith(digest_of(data)))
    assert hostile["problems"] == ["foreign-globals", "wrong-class"]
    (torch_cache / "ab").mkdir(exist_ok=True)
    (torch_cache / "ab" / "\x1b[31mred\n").write_bytes(b"")
    for line in ("ls --long", f"show {directory.name}", "stats", "verify", "ls --sort compile"):
        done = run_cli(*line.split(), "-C", torch_cache)
        assert done.returncode in (0, 1), done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert "posix.mkdir" in run_cli("show", directory / digest_of(data)).stdout
    assert not trap.exists()
    pickle.loads(data)  # the trap is real
    assert trap.exists()


def test_the_layout_can_be_chosen(
    run_cli: RunCli, spawn_cli: RunCli, golden: Path, tmp_path: Path
) -> None:
    assert run_cli("ls", "-q", "-C", golden, "--layout", "jax").stdout == ""
    assert run_cli("ls", "-C", golden, "--layout", "tf").returncode == 2
    shutil.copytree(golden, tmp_path / "torchinductor_ann")
    found = run_cli("ls", "-q", "--layout", "torch", env={"TORCHINDUCTOR_CACHE_DIR": str(golden)})
    assert len(found.stdout.split()) == 9
    env = {"TMPDIR": str(tmp_path), "LOGNAME": "ann"}  # which a Python reads once
    assert len(spawn_cli("ls", "-q", "--layout", "torch", env=env).stdout.split()) == 9


def test_a_directory_of_two_layouts(run_cli: RunCli, torch_cache: Path, corpus: Path) -> None:
    """What one compiler wrote is no finding about the cache of the other."""
    shutil.copytree(corpus / "0.10.2-cpu-zstd", torch_cache, dirs_exist_ok=True)
    done = run_cli("ls", "-C", torch_cache)
    assert (done.returncode, "two-layouts" in done.stderr) == (2, True)
    for layout, number in (("jax", 7), ("torch", 9)):
        place = ("-C", torch_cache, "--layout", layout)
        assert len(run_cli("ls", "-q", *place).stdout.split()) == number
        assert {p["kind"] for p in told(run_cli, "verify", *place)["problems"]} <= {"unsealed"}
