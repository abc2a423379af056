"""Moving caches of torch's compilers: bundles and copies."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from bundling import forged
from conftest import RunCli, first_file
from ways import MOVES, WAYS, told

from jaxcache.store.base import NewFile
from jaxcache.store.local import LocalStore
from layouts.torch_files import cut, files, invert


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
    again = told(run_cli, "import", tmp_path / "c.jxb", "-C", target)
    assert again["summary"]["written"] == 0
    assert run_cli("diff", golden, tmp_path / "c.jxb").returncode == 0
    kernel = invert(first_file(target, "*/*.main.so"))
    found = told(run_cli, "verify", "-C", target, code=1)
    kinds = {p["file"]: p["kind"] for p in found["problems"]}
    assert kinds[str(kernel.relative_to(target))] == "digest-mismatch"


def test_a_bundle_is_smaller_than_what_torch_saves(
    run_cli: RunCli, golden: Path, unpacked_torch: Path, tmp_path: Path
) -> None:
    """Of one function: with its kernel, in less than a third of the bytes."""
    bundle, saved = tmp_path / "c.jxb", unpacked_torch / "artifacts.bin"
    done = run_cli("export", "-C", golden, bundle, "--filter", "signature=f32[[]8,8]")
    assert done.returncode == 0, done.stderr
    assert bundle.stat().st_size * 3 < saved.stat().st_size
    run_cli("import", bundle, "-C", tmp_path / "x")
    kinds = {p.partition(".")[2] for p in files(tmp_path / "x")}
    assert {"py", "main.cpp", "main.so"} <= kinds


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


def test_an_increment_holds_what_is_new(
    run_cli: RunCli, golden: Path, torch_cache: Path, tmp_path: Path
) -> None:
    gone = first_file(torch_cache, "aotautograd/*/*")
    gone.unlink()
    told(run_cli, "export", "-C", golden, tmp_path / "i.jxb", "--since", torch_cache)
    run_cli("import", tmp_path / "i.jxb", "-C", tmp_path / "x")
    assert set(files(tmp_path / "x")) == {str(gone.relative_to(torch_cache))}


def test_an_import_heals_what_is_damaged(
    run_cli: RunCli, golden: Path, torch_cache: Path, tmp_path: Path
) -> None:
    run_cli("export", "-C", golden, tmp_path / "c.jxb")
    for pattern in ("fxgraph/*/*/*", "*/*.py", "*/*.main.so"):
        cut(first_file(torch_cache, pattern))
    healed = told(run_cli, "import", tmp_path / "c.jxb", "-C", torch_cache)
    assert healed["summary"]["heal"] == 3
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


def hostile_bundle(name: str, content: bytes) -> bytes:
    """A bundle of one file that is right in every other respect."""
    file = {"name": name, "size_bytes": len(content), "created_ns": 0}
    file["sha256"] = hashlib.sha256(content).hexdigest()
    facts = {"layout": "torch", "entries": [], "files": [file]}
    return forged(lambda document: document.update(facts), content)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/x",
        "fxgraph/../x",
        "locks/x.lock",
        "aotautograd/x.txt",
        ".jaxcache/x",
        "fxgraph/aa/f/x",
    ],
)
def test_a_name_that_torch_does_not_give(run_cli: RunCli, tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.jxb"
    path.write_bytes(hostile_bundle(name, b"content"))
    done = run_cli("import", path, "-C", tmp_path / "x")
    assert done.returncode == 1
    assert "bad-bundle" in done.stderr
    assert not (tmp_path / "x").exists() or not files(tmp_path / "x")
    if name in ("../x", "/etc/x", "fxgraph/../x"):  # a path that leads elsewhere is not even shown
        done = run_cli("ls", "-C", path)
        assert (done.returncode, "bad-bundle" in done.stderr) == (1, True)


def test_a_graph_under_another_name(run_cli: RunCli, golden: Path, tmp_path: Path) -> None:
    good = first_file(golden, "fxgraph/*/*/*")
    path = tmp_path / "hostile.jxb"
    name = str(good.relative_to(golden))
    path.write_bytes(hostile_bundle(name, good.read_bytes() + b"."))
    done = run_cli("import", path, "-C", tmp_path / "x")
    assert (done.returncode, "bad-bundle" in done.stderr) == (1, True)


def test_a_bucket_holds_them(run_cli: RunCli, golden: Path, bucket: str, tmp_path: Path) -> None:
    sent = run_cli("push", bucket, "-C", golden)
    assert sent.returncode == 0, sent.stderr
    assert told(run_cli, "push", bucket, "-C", golden)["summary"]["written"] == 0
    listed = run_cli("ls", "-q", "--sort", "key", "--layout", "torch", "-C", bucket)
    assert listed.stdout == run_cli("ls", "-q", "--sort", "key", "-C", golden).stdout
    assert run_cli("verify", "--layout", "torch", "-C", bucket).returncode == 0
    back = run_cli("pull", "--layout", "torch", bucket, "-C", tmp_path / "back")
    assert back.returncode == 0, back.stderr
    assert files(tmp_path / "back") == files(golden)
    assert run_cli("push", bucket, "-C", golden, "--max-size", "1MB").returncode == 2
    copied = run_cli("copy", "--layout", "torch", bucket, tmp_path / "copy")
    assert copied.returncode == 0, copied.stderr
    assert files(tmp_path / "copy") == files(golden)


@pytest.mark.parametrize("way", MOVES)
def test_every_file_is_counted(run_cli: RunCli, torch_cache: Path, here: Path, way: str) -> None:
    damaged, present, blocked = (
        str(first_file(torch_cache, glob).relative_to(torch_cache))
        for glob in ("fxgraph/*/*/*", "*/*.main.so", "aotautograd/*/*")
    )
    for name in (blocked, present):
        (here / name).parent.mkdir(parents=True)
    (here / blocked).symlink_to("nowhere")
    shutil.copy2(torch_cache / present, here / present)
    (torch_cache / damaged).write_bytes((torch_cache / damaged).read_bytes()[:-40])
    os.utime(torch_cache / damaged, (1e9, 1e9))
    document = told(run_cli, *WAYS[way](torch_cache, here), "--layout", "torch", code=3)
    actions = {row["file"]: row["action"] for row in document["entries"]}
    left_out = [problem["file"] for problem in document["left_out"]]
    assert sorted([*actions, *left_out]) == sorted(files(torch_cache))
    assert left_out == [damaged]
    assert actions[blocked] == "blocked"
    assert actions[present] == ("same" if way == "copy" else "present")
    summary = document["summary"]
    assert summary["written"] == len(files(torch_cache)) - 3
    assert sum(summary[action] for action in set(actions.values())) == len(actions)


@pytest.mark.parametrize("way", MOVES)
def test_an_interrupt_leaves_whole_files_and_nothing_temporary(
    run_cli: RunCli,
    golden: Path,
    here: Path,
    tmp_path: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []

    def write(store: LocalStore, files: Sequence[NewFile]) -> Iterator[Any]:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.extend(file.name for file in files)
        yield from write_many(store, files)

    write_many = LocalStore.write_many
    monkeypatch.setattr(LocalStore, "write_many", write)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    done = run_cli(*WAYS[way](golden, here), "--layout", "torch")
    assert done.returncode == 130, done.stderr
    assert list(temporary.iterdir()) == []
    assert files(here) == {name: files(golden)[name] for name in written}
