"""What ``show`` reads out of an entry is what JAX says of the very compile that wrote it."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, clean_environment
from plain_jax import WORKLOAD, run_plain

SHORT = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "s8",
    "int32": "s32",
    "bool": "pred",
    "complex64": "c64",
}


def arrays(shown: list[dict[str, Any]]) -> list[list[str]]:
    return [[SHORT[a["dtype"]], ",".join(map(str, a["shape"]))] for a in shown]


@pytest.mark.jax
def test_show_agrees_with_jax(run_cli: RunCli, each_jax_python: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    env = clean_environment(tmp_path) | {"PYTHONWARNINGS": ""}
    done = run_plain([each_jax_python, WORKLOAD, "truth", cache], env=env)
    truths = json.loads(done.stdout)
    assert len(truths) >= 8
    for truth in truths:
        run = run_cli("show", f"{truth['module']}-*", "-C", cache, "--json")
        assert run.returncode == 0, run.stderr
        shown = json.loads(run.stdout)
        program, memory = shown["program"], shown["memory"]
        assert truth == {
            **{name: program[name] for name in ("module", "instructions", "computations")},
            "parameters": arrays(program["parameters"]),
            "results": arrays(program["results"]),
            "memory": {name: memory[f"{name}_bytes"] for name in truth["memory"]},
        }
        assert sum(program["opcodes"].values()) == program["instructions"]
        assert {p["kind"] for p in shown["problems"]} <= {"legacy-name"}
        assert shown["device"]["platform"] == "cpu"
        assert any(s["file"] == str(WORKLOAD) for s in shown["source"]), shown["source"]
        assert shown["compile_options"]["flags_changed"] == {
            "xla_force_host_platform_device_count": 4
        }
