"""``doctor -- COMMAND``: it runs a real program and examines the settings that the program had."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from terminal import run_all, without_style

WORKLOAD = Path(__file__).with_name("doctor_workload.py")
LOW = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
LONG_NAME = """
scale.__name__ = "scale_" + "x" * 300
jax.jit(scale)(jnp.ones(4))
"""
CALLBACK = """
jax.jit(lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((3,), x.dtype), x))(
    jnp.ones(3)
)
"""

pytestmark = pytest.mark.jax


def traps(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f["trap"]: f for f in document["findings"]}


def release(document: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(p) for p in document["interpreter"]["jax_version"].split(".")[:3])


def test_a_command_is_run_and_examined(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    """Its own directory, settings and Python; and what it compiled that JAX cannot cache."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    script = tmp_path / "script.py"

    def examine(text: str) -> dict[str, Any]:
        script.write_text(WORKLOAD.read_text() + text)
        command = (each_jax_python, str(script), str(cache))
        done = run_cli("doctor", "--json", "--", *command, env={"PYTHONWARNINGS": ""})
        assert done.returncode in (0, 1), done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    document = examine("")
    assert not {"name-too-long", "host-callbacks"} & traps(document).keys()
    assert document["cache_dir"] == str(cache)
    assert document["interpreter"]["executable"] == each_jax_python
    settings = {s["name"]: s for s in document["settings"]}
    low = settings["jax_persistent_cache_min_compile_time_secs"]
    assert (low["value"], low["origin"]) == (0.0, "script")
    assert settings["jax_compilation_cache_dir"]["origin"] == "script"
    assert settings["jax_compilation_cache_max_size"]["origin"] == "default"

    found = traps(examine(LONG_NAME + CALLBACK))
    assert "255 bytes" in found["name-too-long"]["seen"]
    assert ("host-callbacks" in found) is (release(document) < (0, 11))


def test_a_command_is_given_the_directory_of_the_option(
    each_jax_python: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    step = "import jax; jax.jit(lambda x: x * 2)(1.0)"
    words = ("doctor", "-C", cache, "--", each_jax_python, "-c", step)
    ((code, text),) = run_all([words], home=tmp_path, width=120, env=LOW)
    assert code == 0, text
    assert list(cache.glob("*-cache"))
    assert re.search(r"^  start   [\d.]+ s = [\d.]+ import · ", without_style(text), re.MULTILINE)
