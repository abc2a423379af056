"""Moving caches of torch's compilers: bundles and copies."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling import forged
from conftest import RunCli, first_file
from ways import told

from layouts.torch_files import cut, files, invert, two_tier_graph


def test_a_bundle_brings_everything_there(run_cli: RunCli, golden: Path, tmp_path: Path) -> None:
    done = run_cli("export", "-C", golden, tmp_path / "c.jxb")
    assert done.returncode == 0, done.stderr
    assert "paths and the values of TORCHINDUCTOR_CACHE_DIR" in done.stderr
    assert "torch's caches" in done.stderr
    target = tmp_path / "there"
    brought = told(run_cli, "import", tmp_path / "c.jxb", "-C", target)
    assert brought["summary"]["written"] == len(files(golden))
    assert files(target) == files(golden)
    stamps = {p: (golden / p).stat().st_mtime_ns for p in files(golden)}
    assert {p: (target / p).stat().st_mtime_ns for p in stamps} == stamps
    found = told(run_cli, "verify", "-C", target)  # by the digests of code
    assert found["proven"] == found["checked"] == 33
    assert told(run_cli, "import", tmp_path / "c.jxb", "-C", target)["summary"]["written"] == 0
    assert run_cli("diff", golden, tmp_path / "c.jxb").returncode == 0
    kernel = invert(first_file(target, "*/*.main.so"))
    found = told(run_cli, "verify", "-C", target, code=1)
    kinds = {p["file"]: p["kind"] for p in found["problems"]}
    assert kinds[str(kernel.relative_to(target))] == "digest-mismatch"


def test_a_bundle_of_one_graph_holds_what_it_needs(
    run_cli: RunCli, golden: Path, tmp_path: Path
) -> None:
    """Its FX graphs, their generated code and the kernels of that, and no others."""
    key = two_tier_graph(run_cli, golden)["key"]
    assert run_cli("export", "-C", golden, tmp_path / "c.jxb", key).returncode == 0
    told(run_cli, "import", tmp_path / "c.jxb", "-C", tmp_path / "there")
    brought = files(tmp_path / "there")
    assert brought.items() <= files(golden).items()
    kinds = ("aotautograd/", "fxgraph/", ".py", ".main.cpp", ".main.so")
    assert [sum(kind in name for name in brought) for kind in kinds] == [1, 2, 2, 2, 2]
    assert len(brought) == 9
    assert told(run_cli, "verify", "-C", tmp_path / "there")["problems"] == []


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [("fxgraph/*/*/*", cut), ("*/*.main.so", cut), ("*/*.main.so", invert)],
    ids=["cut graph", "cut kernel", "changed kernel"],
)
def test_what_is_damaged_stays_and_the_rest_travels(
    run_cli: RunCli, torch_cache: Path, tmp_path: Path, pattern: str, damage: Callable[[Path], Path]
) -> None:
    run_cli("verify", "-C", torch_cache, "--grace", "0s")  # which records the digests of kernels
    bad = str(damage(first_file(torch_cache, pattern)).relative_to(torch_cache))
    for words in (("push", tmp_path / "there"), ("export", tmp_path / "c.jxb")):
        done = run_cli(*words, "-C", torch_cache)
        assert done.returncode == 3
        assert f"left out {bad}" in done.stderr
    assert files(torch_cache).keys() - files(tmp_path / "there") == {bad}


def test_an_import_heals_what_is_damaged(
    run_cli: RunCli, golden: Path, torch_cache: Path, tmp_path: Path
) -> None:
    run_cli("export", "-C", golden, tmp_path / "c.jxb")
    for pattern in ("fxgraph/*/*/*", "*/*.py", "*/*.main.so"):
        cut(first_file(torch_cache, pattern))
    assert told(run_cli, "import", tmp_path / "c.jxb", "-C", torch_cache)["summary"]["heal"] == 3
    assert files(torch_cache) == files(golden)


def test_diff_compares_code(run_cli: RunCli, golden: Path, torch_cache: Path, corpus: Path) -> None:
    """Of a function that was compiled twice each side keeps another file: nothing differs."""
    directories = [p for p in torch_cache.glob("*/*/") if p.parent.name == "aotautograd"]
    (twice,) = (p for p in directories if len(os.listdir(p)) == 2)
    min(twice.iterdir()).unlink()
    assert run_cli("diff", golden, torch_cache).returncode == 0
    shutil.rmtree(twice)
    done = run_cli("diff", golden, torch_cache, "-q")
    assert done.returncode == 1
    assert done.stdout == f"aotautograd-{twice.name}\n"
    shutil.rmtree(torch_cache / "fxgraph")
    left = told(run_cli, "diff", golden, torch_cache, code=1)["left"]
    assert left["only_compile_seconds"] > 1
    assert run_cli("diff", corpus / "0.10.2-cpu-zstd", golden).returncode == 2


def test_diff_leaves_damaged_graphs_out(run_cli: RunCli, golden: Path, torch_cache: Path) -> None:
    graph = min((torch_cache / "fxgraph").glob("*/*/*"))
    os.truncate(graph, 100)
    found = told(run_cli, "diff", torch_cache, golden, code=1)
    assert [d["file"] for d in found["left"]["damaged"]] == [str(graph.relative_to(torch_cache))]
    assert [e["key"] for e in found["only_right"]] == [f"fxgraph-{graph.parent.name}"]
    assert (found["left"]["entries"], found["differing"]) == (found["right"]["entries"] - 1, [])


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "/etc/x", "fxgraph/../x", "locks/x.lock", "aotautograd/x.txt", ".jaxcache/x"),
        *("fxgraph/aa/f/x", "a graph"),
    ],
)
def test_a_name_that_torch_does_not_give(
    run_cli: RunCli, golden: Path, tmp_path: Path, name: str
) -> None:
    """In a bundle of one file that is right in every other respect."""
    content, path = b"content", tmp_path / "hostile.jxb"
    if name == "a graph":
        good = first_file(golden, "fxgraph/*/*/*")
        name, content = str(good.relative_to(golden)), good.read_bytes() + b"."
    file = {"name": name, "size_bytes": len(content), "created_ns": 0}
    file["sha256"] = hashlib.sha256(content).hexdigest()
    facts = {"layout": "torch", "entries": [], "files": [file]}
    path.write_bytes(forged(lambda document: document.update(facts), content))
    lines = [("import", path, "-C", tmp_path / "x")]
    if name in ("../x", "/etc/x", "fxgraph/../x"):  # a path that leads elsewhere is not even shown
        lines.append(("ls", "-C", path))
    for words in lines:
        done = run_cli(*words)
        assert (done.returncode, "bad-bundle" in done.stderr) == (1, True)
    assert not files(tmp_path / "x")


def test_a_bucket_holds_them(
    run_cli: RunCli, torch_cache: Path, bucket: str, tmp_path: Path
) -> None:
    assert run_cli("rm", "scale", "-C", torch_cache, "-y").returncode == 0  # a bucket is slow
    shutil.rmtree(torch_cache / "locks")  # which stay
    assert run_cli("push", bucket, "-C", torch_cache).returncode == 0
    assert told(run_cli, "push", bucket, "-C", torch_cache)["summary"]["written"] == 0
    listed = run_cli("ls", "-q", "--sort", "key", "--layout", "torch", "-C", bucket)
    assert listed.stdout == run_cli("ls", "-q", "--sort", "key", "-C", torch_cache).stdout
    assert run_cli("verify", "--layout", "torch", "-C", bucket).returncode == 0
    assert run_cli("pull", "--layout", "torch", bucket, "-C", tmp_path / "back").returncode == 0
    assert files(tmp_path / "back") == files(torch_cache)
    assert run_cli("push", bucket, "-C", torch_cache, "--max-size", "1MB").returncode == 2
    assert run_cli("copy", "--layout", "torch", bucket, tmp_path / "copy").returncode == 0
    assert files(tmp_path / "copy") == files(torch_cache)
