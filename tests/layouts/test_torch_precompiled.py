"""What TORCH_CACHING_PRECOMPILE keeps of a function: read inertly, checked, moved and removed."""

import json
import lzma
import os
import pickle
from pathlib import Path

import pytest
from conftest import CORPUS, RunCli
from torch_files import Trap, graphs

from jaxcache.layouts.torch.graph import decode_graph
from jaxcache.layouts.torch.pickled import PickledTable, PickleError, read_pickle, walk

KEY = "5" * 64


@pytest.fixture(scope="session")
def precompiled() -> bytes:
    """A real one, of torch 2.15; see ``PROVENANCE.md`` there."""
    return lzma.decompress((CORPUS.parent / "torch" / "precompiled.xz").read_bytes())


@pytest.fixture
def cache(torch_cache: Path, precompiled: bytes) -> Path:
    put(torch_cache, precompiled)
    return torch_cache


def put(cache: Path, data: bytes) -> Path:
    path = cache / "dynamo" / KEY / "entry"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1e9, 1e9))
    return path


def problems(run_cli: RunCli, cache: Path) -> set[tuple[str, str]]:
    done = run_cli("verify", "-C", cache, "--json")
    found = json.loads(done.stdout)["problems"]
    assert done.returncode == bool(found)
    return {(p["file"], p["kind"]) for p in found}


def with_guards(data: bytes, guards: bytes) -> bytes:
    """The same with other guards, a pickle inside, of the same length or less."""
    tables = [t for t in walk(read_pickle(data).root) if isinstance(t, PickledTable)]
    (old,) = (t.get("guards_state") for t in tables if t.get("guards_state") is not None)
    pairs, odd = divmod(len(old) - len(guards), 2)
    return data.replace(old, guards[:-1] + b"\x94" * odd + b"N0" * pairs + b".", 1)


def test_a_real_one_is_an_entry_with_its_function(
    run_cli: RunCli, cache: Path, precompiled: bytes
) -> None:
    assert problems(run_cli, cache) == set()
    (entry,) = (e for e in graphs(run_cli, cache) if e["module"] == "dynamo")
    assert (entry["key"], entry["function"]) == (f"dynamo-{KEY}", "scale")
    assert entry["size_bytes"] == len(precompiled)
    assert len(decode_graph(precompiled, "dynamo").references) == 1
    shown = run_cli("show", "-C", cache, KEY)
    assert "PrecompileCacheEntry" in shown.stdout
    assert "torch._dynamo.guards.GuardsState" in decode_graph(precompiled, "dynamo").globals


def test_one_that_runs_a_command_is_named_and_taken_away(
    run_cli: RunCli, torch_cache: Path
) -> None:
    path = put(torch_cache, pickle.dumps(Trap("trap"), 4))
    name = str(path.relative_to(torch_cache))
    assert (name, "foreign-globals") in problems(run_cli, torch_cache)
    for words in (("ls",), ("show", KEY), ("stats",)):
        run_cli(words[0], "-C", torch_cache, *words[1:])
    run_cli("verify", "-C", torch_cache, "--fix")
    assert not path.exists()
    assert not Path("trap").exists() and not (torch_cache / "trap").exists()


def test_a_command_among_the_guards_is_named(
    run_cli: RunCli, torch_cache: Path, precompiled: bytes
) -> None:
    data = with_guards(precompiled, pickle.dumps(Trap("trap"), 4))
    path = put(torch_cache, data)
    found = problems(run_cli, torch_cache)
    assert found == {(str(path.relative_to(torch_cache)), "foreign-globals")}


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"", "empty"), (b"\x80\x04", "truncated"), (pickle.dumps({"a": 1}, 4), "wrong-class")],
)
def test_a_damaged_one_goes_to_quarantine(
    run_cli: RunCli, torch_cache: Path, data: bytes, kind: str
) -> None:
    path = put(torch_cache, data)
    assert problems(run_cli, torch_cache) == {(str(path.relative_to(torch_cache)), kind)}
    run_cli("verify", "-C", torch_cache, "--fix")
    assert not path.exists()


def test_classes_of_the_program_among_the_guards_are_no_fault(
    run_cli: RunCli, torch_cache: Path, precompiled: bytes
) -> None:
    data = with_guards(precompiled, b"\x80\x04c__main__\nModel\n)\x81.")
    put(torch_cache, data)
    assert problems(run_cli, torch_cache) == set()
    assert "__main__.Model" in decode_graph(data, "dynamo").globals


def test_the_operations_of_all_guards_are_bounded_together() -> None:
    guards = b"\x80\x04" + b"N0" * 300_000 + b"N."
    one = b"}X\x0c\0\0\0guards_stateB" + len(guards).to_bytes(4, "little") + guards + b"s"
    data = b"\x80\x04ctorch._dynamo.package\nPrecompileCacheEntry\n)\x81}X\x01\0\0\0a](%besb."
    decode_graph(data % one, "dynamo")
    with pytest.raises(PickleError, match="more than"):
        decode_graph(data % (one + one), "dynamo")


def test_it_travels(run_cli: RunCli, cache: Path, precompiled: bytes, tmp_path: Path) -> None:
    bundle, there = tmp_path / "all.jxb", tmp_path / "there"
    assert run_cli("export", "-C", cache, bundle).returncode == 0
    assert run_cli("import", bundle, "-C", there).returncode == 0
    assert (there / "dynamo" / KEY / "entry").read_bytes() == precompiled


def test_prune_and_rm_remove_it(run_cli: RunCli, cache: Path, precompiled: bytes) -> None:
    path = cache / "dynamo" / KEY / "entry"
    assert run_cli("rm", KEY, "-C", cache, "-y").returncode == 0
    assert not path.exists()
    put(cache, precompiled)
    assert run_cli("prune", "-C", cache, "--max-size", "1kB", "--grace", "0s", "-y").returncode == 0
    assert not path.exists()
