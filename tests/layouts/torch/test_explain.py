"""``explain`` between two FX graphs: by the hashes of their keys' parts."""

from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from ways import told

import jaxcache
from jaxcache.layouts.torch.graph import decode_graph
from layouts.torch_files import graphs, two_tier_graph


def explain(run_cli: RunCli, cache: Path, *keys: str) -> Any:
    return told(run_cli, "explain", "-C", cache, *keys)


def fx_graphs(run_cli: RunCli, cache: Path, function: str) -> list[Any]:
    found = [e for e in graphs(run_cli, cache) if e["module"] == "fxgraph"]
    return [e for e in found if e["function"] == function]


def test_parts_that_differ_are_named(run_cli: RunCli, golden: Path) -> None:
    scale = fx_graphs(run_cli, golden, "scale")[0]["hash"]
    backward, forward = (
        e["hash"]
        for e in sorted(fx_graphs(run_cli, golden, "loss"), key=lambda e: -len(e["signature"]))
    )
    found = explain(run_cli, golden, forward, backward)
    parts = {d["component"]: d for d in found["differences"]}
    assert {d["cause"] for d in parts.values()} == {"argument", "code", "config"}
    assert parts["example_inputs[2]"]["right"].startswith("TensorMetadata(dtype=torch.float32")
    assert {"gm", "fx_kwargs[is_backward]"} < parts.keys()
    assert all("this alone brings no hit" in d["meaning"] for d in parts.values())
    assert not [d["fix"] for d in parts.values() if d["fix"]]
    assert "inductor_config[max_autotune]" not in parts
    assert explain(run_cli, golden, scale, scale)["same"] == 1


def test_an_aot_graph_stands_for_its_fx_graphs(run_cli: RunCli, golden: Path) -> None:
    loss = two_tier_graph(run_cli, golden)
    assert explain(run_cli, golden, loss["hash"], loss["references"][0])["same"] == 1
    plain = run_cli("explain", "-C", golden, loss["hash"], loss["references"][0])
    said = f"no difference in 1 module between {loss['hash']} and {loss['references'][0]}\n"
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "", said)
    # one alone is compared with the nearest of those that another stands for
    assert explain(run_cli, golden, loss["hash"], loss["references"][1])["same"] == 1


def test_a_graph_that_cannot_be_read(run_cli: RunCli, golden: Path, torch_cache: Path) -> None:
    for path in torch_cache.glob("fxgraph/*/*/*"):
        path.write_bytes(b"no pickle")
    key = run_cli("ls", "-q", "-C", golden, "fx*").stdout.split()[0]
    done = run_cli("explain", "-C", torch_cache, key)
    assert (done.returncode, "bad-entry" in done.stderr) == (1, True)


def test_a_function_with_several_keys(run_cli: RunCli, torch_cache: Path) -> None:
    """Forward and backward of one function are no churn."""

    def churn() -> Any:
        return explain(run_cli, torch_cache, "--churn")["modules"]

    assert churn() == []
    (graph,) = fx_graphs(run_cli, torch_cache, "spread")
    path = torch_cache / graph["file"]
    path.write_bytes(path.read_bytes().replace(b"in spread", b"in scale\n"))
    (found,) = churn()
    assert (found["module"], found["keys"]) == ("scale", 2)
    assert found["size_bytes"] > graph["size_bytes"] and found["compile_seconds"] > 0
    causes = {c["component"]: (c["meaning"], c["count"]) for c in found["causes"]}
    assert found["causes"][0]["cause"] == "argument"
    assert causes["example_inputs[0]"][0].startswith("an input: its dtype")
    page = run_cli("explain", "--churn", "-C", torch_cache, env={"COLUMNS": "100"})
    assert page.stdout.split("\t")[:2] == ["scale", "2"]
    assert [c.module for c in jaxcache.open(torch_cache).churn()] == ["scale"]


def change_parts(cache: Path, *parts: str, renamed: str = "") -> tuple[str, str]:
    """Copy a graph to another key, with other hashes of some parts; return both keys.

    Args:
        renamed: the name of a new part, in place of one with a name as long, or longer.
    """
    path = next(p for p in cache.glob("fxgraph/*/*/*") if b"] gm: " in p.read_bytes())
    data = path.read_bytes()
    for part in parts:
        end = data.index(f"] {part}: ".encode())
        data = data[: end - 3] + b"zzz" + data[end:]
    if renamed:
        names = (c.name for c in decode_graph(path.read_bytes(), "fxgraph").components)
        old = next(n for n in names if len(n) >= len(renamed) and n not in parts)
        new = f"] {renamed}: ".ljust(len(old) + 4, "x")
        data = data.replace(f"] {old}: ".encode(), new.encode())
    other = path.parent.with_name(path.parent.name[:-1] + "z")
    other.mkdir()
    (other / path.name).write_bytes(data)
    return path.parent.name, other.name


@pytest.mark.parametrize(
    ("part", "cause", "has_fix"),
    [
        ("gm", "code", True),
        ("torch_version", "torch-version", True),
        ("system_info[hash]", "device", False),
    ],
)
def test_a_part_that_alone_differs_is_the_cause(
    run_cli: RunCli, torch_cache: Path, part: str, cause: str, has_fix: bool
) -> None:
    (found,) = explain(run_cli, torch_cache, *change_parts(torch_cache, part))["differences"]
    assert (found["component"], found["cause"]) == (part, cause)
    assert "alone" not in found["meaning"]
    assert (found["fix"] is not None) is has_fix


@pytest.mark.parametrize("name", ["nested_inductor_config_patches", "compile_on_one_rank"])
def test_an_unknown_part_is_named(run_cli: RunCli, torch_cache: Path, name: str) -> None:
    """Beside the program, and in the place of a part that only the other torch has."""
    keys = change_parts(torch_cache, "gm", renamed=name)
    found = {d["component"]: d for d in explain(run_cli, torch_cache, *keys)["differences"]}
    assert (found[name]["cause"], found[name]["left"]) == ("unknown", None)
    assert found[name]["meaning"].startswith("a part of the key that is not known here")
    assert (len(found), found["gm"]["cause"]) == (3, "code")
