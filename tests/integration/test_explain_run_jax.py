"""What explain says of a script or a command that it runs beside a cache."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, clean_environment
from plain_jax import run_plain

WORKLOAD = Path(__file__).with_name("explain_workload.py")
LOW = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
ADDING = "import jax, numpy as np; jax.jit(lambda x: x + {})(np.ones(3, np.float32))"

pytestmark = pytest.mark.jax


def test_a_script_is_explained_against_the_cache(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """The second run of an edited script, and the ledger then knows the components."""
    cache = tmp_path / "cache"
    args = (WORKLOAD, cache)

    def explain(change: dict[str, Any]) -> list[dict[str, Any]]:
        options = ("-C", cache, "--python", jax_python, "--json")
        done = run_cli("explain", *args, json.dumps(change), *options)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["comparisons"]
        steps = [row for row in rows if row["module"].startswith("jit_step")]
        return [difference for row in steps for difference in row["differences"]]

    unrun = tmp_path / "unrun.py"
    unrun.write_text("print('it ran')")
    missing = run_cli("explain", "-C", cache, "--python", jax_python, unrun, "--json")
    assert (missing.returncode, json.loads(missing.stderr)["error"]["code"]) == (10, "no-cache")
    assert "it ran" not in missing.stdout
    assert not cache.exists(), "explain has made the cache that it explains"
    cache.mkdir()
    assert [d["cause"] for d in explain({})] == ["not-cached-before"]
    assert not [*cache.iterdir()], "explain has filled the cache that it explains"
    warm = ("warm", "-C", cache, "--python", jax_python, *args, "{}")
    assert run_cli(*warm, env={"PYTHONWARNINGS": ""}).returncode == 0
    before = {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()}
    assert explain({}) == []
    (found,) = explain({"constant": 4})
    assert (found["cause"], found["left"], found["right"]) == ("constant", "3", "4")
    assert [(Path(p["file"]).name, p["line"]) for p in found["where"]] == [(WORKLOAD.name, 28)]
    (found,) = explain({"hook": "mine"})
    assert found["component"] == "custom_hook"
    after = {p: p.read_bytes() for p in cache.rglob("*") if p.is_file()}
    assert before == after, "explain has changed the cache that it explains"


def test_a_damaged_entry_is_named(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    script = tmp_path / "train.py"
    script.write_text(ADDING.format(2))
    plain = clean_environment(tmp_path) | LOW | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    run_plain([jax_python, script], env=plain)
    for entry in cache.glob("*-cache"):
        entry.write_bytes(entry.read_bytes()[:-9])
    done = run_cli("explain", "-C", cache, "--python", jax_python, "--json", script)
    (difference,) = json.loads(done.stdout)["differences"]
    assert re.search(r": jaxcache verify -C \S+ --fix$", difference["fix"])
    assert (difference["component"], difference["meaning"]) == (
        "entry",
        "the same key: the entry is damaged",
    )


def test_explain_takes_a_command(run_cli: RunCli, cache: Path, jax_python: str) -> None:
    run_cli("run", "-C", cache, "--", jax_python, "-c", ADDING.format(2), env=LOW)
    before = {path.name for path in cache.iterdir()}
    command = ("explain", "--json", "-C", cache, "--", jax_python, "-c", ADDING.format(3))
    done = run_cli(*command)
    assert done.returncode == 0, done.stderr
    (difference,) = json.loads(done.stdout)["differences"]
    assert (difference["left"], difference["right"]) == ("2", "3")
    assert difference["cause"] == "constant"
    assert {path.name for path in cache.iterdir()} == before


def test_explain_takes_portable(run_cli: RunCli, cache: Path, jax_python: str) -> None:
    script = cache.parent / "x.py"
    script.write_text(ADDING.format(2))
    words = ("--portable", "-C", cache, "--python", jax_python)
    assert run_cli("warm", *words, script).returncode == 0
    done = run_cli("explain", "--json", *words, script)
    assert json.loads(done.stdout)["differences"] == [], done.stdout
