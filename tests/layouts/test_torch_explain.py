"""``explain`` between two FX graphs: by the hashes of their keys' parts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import RunCli

import jaxcache
from jaxcache.layouts.torch.graph import decode_graph


def explain(run_cli: RunCli, cache: Path, *keys: str, code: int = 0) -> Any:
    done = run_cli("explain", "-C", cache, "--json", *keys)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def graphs(run_cli: RunCli, cache: Path, function: str) -> list[Any]:
    listed = json.loads(run_cli("ls", "-C", cache, "--json", "fx*").stdout)["entries"]
    return [e for e in listed if e["function"] == function]


def test_parts_that_differ_are_named(run_cli: RunCli, golden: Path) -> None:
    scale = graphs(run_cli, golden, "scale")[0]["hash"]
    backward, forward = (
        e["hash"]
        for e in sorted(graphs(run_cli, golden, "loss"), key=lambda e: -len(e["signature"]))
    )
    found = explain(run_cli, golden, forward, backward)
    parts = {d["component"]: d for d in found["differences"]}
    assert {d["cause"] for d in parts.values()} == {"argument"}, "they explain the rest"
    assert parts["example_inputs[2]"]["right"].startswith("TensorMetadata(dtype=torch.float32")
    assert "fx_kwargs[is_backward]" not in parts, "it follows from the program"
    assert "inductor_config[max_autotune]" not in parts
    assert explain(run_cli, golden, scale, scale)["same"] == 1


def test_an_aot_graph_stands_for_its_fx_graphs(run_cli: RunCli, golden: Path) -> None:
    listed = json.loads(run_cli("ls", "-C", golden, "--json", "aot*").stdout)["entries"]
    loss = next(e for e in listed if len(e["references"]) == 2)
    found = explain(run_cli, golden, loss["hash"], loss["references"][0])
    assert found["same"] == 1
    plain = run_cli("explain", "-C", golden, loss["hash"], loss["references"][0])
    said = f"no difference in 1 module between {loss['hash']} and {loss['references'][0]}\n"
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, "", said)
    # one alone is compared with the nearest of those that another stands for
    backward = explain(run_cli, golden, loss["hash"], loss["references"][1])
    assert backward["same"] == 1


def test_one_key_is_explained_by_the_nearest(run_cli: RunCli, golden: Path) -> None:
    forward = graphs(run_cli, golden, "loss")[0]["hash"]
    found = explain(run_cli, golden, forward)
    other = graphs(run_cli, golden, "loss")[1]["hash"]
    assert found["left"] == f"fxgraph-{other}"
    page = run_cli("explain", "-C", golden, forward, env={"COLUMNS": "100"})
    assert "an input: its dtype" in page.stdout


def test_what_cannot_be_explained_is_one_error(
    run_cli: RunCli, golden: Path, torch_cache: Path
) -> None:
    assert run_cli("explain", "-C", golden, "fnothing").returncode == 1
    for path in torch_cache.glob("fxgraph/*/*/*"):
        path.write_bytes(b"no pickle")
    listed = run_cli("ls", "-q", "-C", golden, "fx*").stdout.split()
    done = run_cli("explain", "-C", torch_cache, listed[0])
    assert (done.returncode, "bad-entry" in done.stderr) == (1, True)


def test_a_function_with_several_keys_is_counted_and_explained(
    run_cli: RunCli, torch_cache: Path
) -> None:
    """Forward and backward of one function are no churn."""

    def churn() -> Any:
        done = run_cli("explain", "--churn", "-C", torch_cache, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["modules"]

    assert churn() == []
    (graph,) = graphs(run_cli, torch_cache, "spread")
    path = torch_cache / graph["file"]
    path.write_bytes(path.read_bytes().replace(b"in spread", b"in scale\n"))
    (found,) = churn()
    assert (found["module"], found["keys"]) == ("scale", 2)
    assert found["size_bytes"] > graph["size_bytes"] and found["compile_seconds"] > 0
    causes = {c["component"]: (c["meaning"], c["count"]) for c in found["causes"]}
    assert {c["cause"] for c in found["causes"]} == {"argument"}
    assert causes["example_inputs[0]"][0].startswith("an input: its dtype")
    page = run_cli("explain", "--churn", "-C", torch_cache, env={"COLUMNS": "100"})
    assert page.stdout.split("\t")[:2] == ["scale", "2"]
    assert [c.module for c in jaxcache.open(torch_cache).churn()] == ["scale"]


def test_a_program_that_alone_differs_is_the_cause(run_cli: RunCli, torch_cache: Path) -> None:
    (graph,) = graphs(run_cli, torch_cache, "spread")
    path = torch_cache / graph["file"]
    data = path.read_bytes()
    start = data.index(b"] gm: ") - 51
    other = path.parent.with_name(path.parent.name[:-1] + "z")
    other.mkdir()
    (other / path.name).write_bytes(data[:start] + b"z" * 3 + data[start + 3 :])
    (found,) = explain(run_cli, torch_cache, path.parent.name, other.name)["differences"]
    assert (found["component"], found["cause"]) == ("gm", "code")


def test_the_program_of_a_large_model_is_kept_whole(golden: Path) -> None:
    file = next(p for p in (golden / "fxgraph").rglob("*") if p.is_file() and p.suffix != ".lock")
    program = "\n".join(f"def forward_{n}(self): pass" for n in range(1000))
    key_line = f"[{'a' * 51}] gm: {program}"
    (component,) = replace(
        decode_graph(file.read_bytes(), "fxgraph"), key_lines=(key_line,)
    ).components
    assert component.text == program
