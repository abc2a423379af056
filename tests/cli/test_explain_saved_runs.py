"""``jaxcache explain`` over saved runs: what their documents tell, and what they cannot tell."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from explaining import KEY, components, document
from terminal import run_all

OTHER = "cd" * 32


def run_file(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "modules": rows}))
    return path


def row(key: str, outcome: str = "written", **facts: Any) -> dict[str, Any]:
    return {"module": "jit_f", "key": f"jit_f-{key}", "outcome": outcome, **facts}


def test_saved_runs_tell_what_they_know(run_cli: RunCli, tmp_path: Path) -> None:
    left = run_file(tmp_path / "left.json", row(KEY, components={"compression": "aa", "x": "1"}))
    right = run_file(
        tmp_path / "right.json", row(OTHER, components={"compression": "bb", "x": "1"})
    )
    found = document(run_cli, left, right)
    assert components(found) == {"compression"}
    assert found["comparisons"][0]["left_key"] == f"jit_f-{KEY}"


def test_what_a_saved_run_says_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[2Jcomponent"
    run_file(tmp_path / "left.json", row(KEY, components={hostile: "aa"}))
    run_file(tmp_path / "right.json", row(OTHER, components={hostile: "bb"}))
    words = ["explain", "left.json", "right.json", "--color", "never"]
    ((code, screen),) = run_all([words], home=tmp_path, width=80)
    assert (code, "\\x1b[2Jcomponent" in screen, "\x1b" in screen) == (0, True, False)


def test_cannot_tell_is_said(run_cli: RunCli, tmp_path: Path) -> None:
    """Two keys and nothing else: no guess."""
    left, right = run_file(tmp_path / "l.json", row(KEY)), run_file(tmp_path / "r.json", row(OTHER))
    (found,) = document(run_cli, left, right)["differences"]
    assert found["component"] == "unknown"
    assert found["meaning"].startswith("not known")
    assert (found["evidence"], found["fix"]) == ("unknown", None)


@pytest.mark.parametrize("hashed", [True, False])
def test_arguments_of_saved_runs(run_cli: RunCli, tmp_path: Path, hashed: bool) -> None:
    def file(name: str, key: str, dtype: str, shape: list[int]) -> Path:
        arguments = [{"name": "x", "dtype": dtype, "shape": shape}]
        hashes = {"computation": key} if hashed else None
        return run_file(tmp_path / name, row(key, arguments=arguments, components=hashes))

    base = file("a", KEY, "float32", [8])
    (shape,) = document(run_cli, base, file("b", OTHER, "float32", [9]))["differences"]
    assert (shape["left"], shape["right"]) == ("float32[8]", "float32[9]")
    (wide,) = document(run_cli, base, file("b", OTHER, "float64", [8]))["differences"]
    assert "x64" in wide["meaning"]


@pytest.mark.parametrize(
    ("reason", "detail", "component"),
    [
        ("compile-time", "took 0.2 s, under 1.0 s", "jax_persistent_cache_min_compile_time_secs"),
        ("size", "smaller than 4096 bytes", "jax_persistent_cache_min_entry_size_bytes"),
    ],
)
def test_one_key_that_was_not_written(
    run_cli: RunCli, tmp_path: Path, reason: str, detail: str, component: str
) -> None:
    rows = [row(KEY, "skipped", reason=reason, detail=detail)]
    left, right = run_file(tmp_path / "l", *rows), run_file(tmp_path / "r", *rows)
    assert components(document(run_cli, left, right)) == {component}


@pytest.mark.parametrize(
    "facts",
    [
        {"outcome": ["hit"]},
        {"outcome": 1},
        {"compile_seconds": 10**400},
        {"compile_seconds": True},
        {"arguments": [{"dtype": "float32", "shape": 5}]},
        {"arguments": 7},
        {"components": []},
        {"xla_flags": "x"},
        {"line": "x", "file": 1},
    ],
)
def test_a_saved_run_of_odd_types_is_read_as_far_as_it_goes(
    run_cli: RunCli, tmp_path: Path, facts: dict[str, Any]
) -> None:
    good = run_file(tmp_path / "good.json", row(KEY))
    odd = tmp_path / "odd.json"
    odd.write_text(json.dumps({"modules": [row(OTHER) | facts, 7, {"module": 7}]}))
    assert len(document(run_cli, good, odd)["comparisons"]) == 1


def test_a_saved_run_that_is_nested_too_deep_is_none(run_cli: RunCli, tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text('{"modules":' + "[" * 100_000)
    done = run_cli("explain", deep, deep)
    assert (done.returncode, "[bad-run]" in done.stderr) == (2, True)


HELPER = {
    "module": "jit_broadcast_in_dim",
    "function": "broadcast_in_dim",
    "file": "/v/jax/_src/dispatch.py",
    "line": 101,
}


def test_functions_of_the_user_come_first_and_changed_arguments_are_named(
    run_cli: RunCli, tmp_path: Path
) -> None:
    def file(name: str, width: int) -> Path:
        shapes = {"w": [8, 8], "x": [4, width], "lr": []}
        rows = []
        for number, place in enumerate((HELPER, {"function": "f", "file": "/u/t.py", "line": 5})):
            arguments = [{"name": n, "dtype": "float32", "shape": s} for n, s in shapes.items()]
            key = f"{number}{width}" * 32
            rows.append(row(key[:64], arguments=arguments, components={"computation": key}) | place)
        return run_file(tmp_path / name, *rows)

    left, right = file("left", 3), file("right", 5)
    found = document(run_cli, left, right)
    assert [c["module"] for c in found["comparisons"]] == ["jit_f", "jit_broadcast_in_dim"]
    difference = found["differences"][0]
    assert difference["meaning"] == "the shape of argument x"
    assert (difference["left"], difference["right"]) == ("float32[4,3]", "float32[4,5]")
    words = ["explain", "left", "right", "--color", "never"]
    (_, folded), (_, listed) = run_all([words, [*words, "--all"]], home=tmp_path, width=80)
    assert folded.splitlines() == [
        "2 of 2 modules differ",
        "left   left",
        "right  right",
        "",
        "jit_f (t.py:5): the shape of argument x",
        "  left   float32[4,3]",
        "  right  float32[4,5]",
        "",
        "and 1 helper of JAX, such as jit_broadcast_in_dim, differs (--all lists them)",
    ]
    assert "  in     jit_f (t.py:5), jit_broadcast_in_dim" in listed.splitlines()
