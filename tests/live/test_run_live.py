"""``run --live``: the layer also in a Python that has no jaxcache."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import RunCli

pytestmark = pytest.mark.jax

PROGRAM = """
import sys
import jax, jax.numpy as jnp
jax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3))
print("layer:", [m for m in sys.modules if m.endswith("live.layer")])
"""


def test_run_live_needs_no_jaxcache_beside_jax(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONWARNINGS": "",
        "JAX_PLATFORMS": "cpu",
    }
    cache, shared = tmp_path / "cache", tmp_path / "shared tier"

    def run(*options: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [jax_python, tmp_path / "program.py"]
        done = run_cli("run", *options, "-C", cache, "--json", "--", *command, env=env)
        assert done.returncode == 0, done.stderr
        return done

    first = run("--live", "--tier", shared)
    assert "'_jaxcache.live.layer'" in first.stderr
    said = [line for line in first.stderr.splitlines() if line.startswith("jaxcache: live")]
    assert all("keys of this JAX contain the path" in line for line in said)
    written = json.loads(first.stdout)["summary"]["written"]
    assert written == len(list(shared.glob("*-cache"))) > 0
    again = run("--tier", shared)
    assert json.loads(again.stdout)["summary"]["hits"] == written
    totals = json.loads(run_cli("stats", "-C", cache, "--json").stdout)["live"]
    assert (totals["written"], totals["hits_local"]) == (written, written)
    warmed = run_cli(
        *("warm", "--live", "-C", tmp_path / "new", "--tier", shared, "--python", jax_python),
        *("--json", "--portable", tmp_path / "program.py"),
        env=env,
    )
    assert "'_jaxcache.live.layer'" in warmed.stdout + warmed.stderr
    plain = run()
    assert "layer: []" in plain.stderr
    assert json.loads(plain.stdout)["summary"]["hits"] == written
    shutil.rmtree(cache)
    fetched = run_cli(
        *("run", "--tier", shared, "-C", cache, "--"), jax_python, tmp_path / "program.py", env=env
    )
    assert f"{written} of {written} hits, {written} from a tier · " in fetched.stderr


def test_doctor_shows_the_live_settings_of_a_python_and_who_set_them(
    run_cli: RunCli, newer_python: str, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.jaxcache.live]\nenabled = true\ntiers = ["/nfs/a", "s3://b/c"]\n'
    )
    assert run_cli("trust", "here", "--yes").returncode == 0
    env = {"PYTHONWARNINGS": "", "JAXCACHE_LIVE_MAX_SIZE": "1GB"}
    command = ("doctor", "-C", tmp_path / "cache", "--python", newer_python)
    told = json.loads(run_cli(*command, "--json", env=env).stdout)
    live = {s["name"]: (s["value"], s["origin"]) for s in told["settings"]}
    assert live["live.max-size"] == (1_000_000_000, "JAXCACHE_LIVE_MAX_SIZE")
    assert live["live.tiers"] == ("/nfs/a, s3://b/c", str(tmp_path / "pyproject.toml"))
    assert live["live.policy"] == ("cost", "default")
    wrong = run_cli(*command, env=env | {"JAXCACHE_LIVE_MAX_SIZE": "much"})
    assert wrong.returncode == 1
    assert "live-off" in wrong.stdout
    assert "write 500MB, 10GiB, or bare bytes" in wrong.stdout


@pytest.mark.parametrize("origin", ["nothing", "option", "variable", "configuration"])
def test_a_tier_without_a_cache_directory_is_noted_before_the_program_runs(
    run_cli: RunCli, tmp_path: Path, origin: str
) -> None:
    cache = str(tmp_path / "cache")
    env = {"JAX_COMPILATION_CACHE_DIR": cache} if origin == "variable" else {}
    if origin == "configuration":
        (tmp_path / "pyproject.toml").write_text(f'[tool.jaxcache]\ncache-dir = "{cache}"\n')
        assert run_cli("trust", "here", "--yes").returncode == 0
    place = ["-C", cache] if origin == "option" else []
    command = ["sh", "-c", "echo the program starts >&2"]
    done = run_cli("run", "--tier", tmp_path / "shared", *place, "--", *command, env=env)
    before = done.stderr.partition("the program starts")[0]
    assert ("note: no cache directory is named" in " ".join(before.split())) == (
        origin == "nothing"
    )
