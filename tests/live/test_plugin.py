"""What switches the layer on: a variable, a file, ``run --live``; and what does not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment
from processes import sh
from ways import told

from live.conftest import PROGRAM, RunLive, entries

#: Stands in for a process in which JAX calls the entry point.
ENTRY = """
import json, os, re, stat, sys, typing  # which JAX has imported long before
from jaxcache.live import plugin
plugin.initialize()
print(json.dumps(sorted(m for m in sys.modules if m.startswith("jaxcache.live"))))
"""


ON = "[live]\nenabled = true\n"
MISTAKE = "live is off: JAXCACHE_LIVE_TIRES: tires is not a setting; did you mean tiers?"


@pytest.mark.parametrize(
    ("text", "env", "is_on", "said"),
    [
        ("", {}, False, ""),
        ("", {"JAXCACHE_LIVE": "0"}, False, ""),
        ("", {"JAXCACHE_LIVE": "1", "JAXCACHE_LIVE_TIRES": "/nfs"}, True, MISTAKE),
        (ON, {}, True, ""),
        (ON, {"JAXCACHE_LIVE": " Off "}, False, ""),
        ("[live]\nmax-size = 1\n", {}, False, ""),
        ("enabled = true\n", {}, False, ""),
    ],
)
def test_the_entry_point_imports_the_layer_where_a_setting_requests_it(
    tmp_path: Path, text: str, env: dict[str, str], is_on: bool, said: str
) -> None:
    (tmp_path / "jaxcache").mkdir()
    (tmp_path / "jaxcache" / "config.toml").write_text(text)
    env = clean_environment(tmp_path) | {"XDG_CONFIG_HOME": str(tmp_path)} | env
    done = sh([sys.executable, "-c", ENTRY], env=env, cwd=tmp_path, check=True)
    modules = json.loads(done.stdout)
    assert "jaxcache.live.layer" in modules or not is_on
    assert done.stderr == (f"jaxcache: {said}\n" if said else "")
    assert is_on or modules == ["jaxcache.live", "jaxcache.live.plugin"], "it costs nothing"


@pytest.mark.jax
@pytest.mark.usefixtures("newer_python")
def test_a_file_gives_a_program_a_cache(run_live: RunLive, run_cli: RunCli, tmp_path: Path) -> None:
    text = '[tool.jaxcache]\ncache-dir = "jc"\n[tool.jaxcache.live]\nenabled = true\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert run_cli("trust", "here", "--yes").returncode == 0
    unset = {"JAXCACHE_LIVE": None, "JAX_COMPILATION_CACHE_DIR": None}
    first = run_live(PROGRAM, **unset)
    assert len(entries(tmp_path / "jc")) == first["written"] > 1
    assert run_live(PROGRAM, **unset)["hits_local"] == first["written"]
    # A program that names a directory itself keeps it.
    own = f"import jax\njax.config.update('jax_compilation_cache_dir', {str(tmp_path / 'own')!r})"
    assert run_live(f"{own}\n{PROGRAM}", **unset)["written"] == len(entries(tmp_path / "own")) > 1


# ``run --live``: the layer also in a Python that has no jaxcache.
SHOWS_THE_LAYER = """
import sys
import jax, jax.numpy as jnp
jax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3))
print("layer:", [m for m in sys.modules if m.endswith("live.layer")])
"""


@pytest.mark.jax
def test_run_needs_no_jaxcache_beside_jax(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHOWS_THE_LAYER)
    env = {"PYTHONWARNINGS": "", "JAX_PLATFORMS": "cpu"}
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    cache, shared = tmp_path / "cache", tmp_path / "shared tier"

    def run(*options: str | Path) -> "subprocess.CompletedProcess[str]":
        command = ("-C", cache, "--", jax_python, tmp_path / "program.py")
        done = run_cli("run", *options, *command, env=env)
        assert done.returncode == 0, done.stderr
        return done

    first = run("--live", "--tier", shared, "--json")
    assert "'_jaxcache.live.layer'" in first.stderr
    written = json.loads(first.stdout)["summary"]["written"]
    assert written == len(list(shared.glob("*-cache"))) > 0
    again = run("--tier", shared, "--json")
    assert json.loads(again.stdout)["summary"]["hits"] == written
    live = told(run_cli, "stats", "-C", cache)["live"]
    assert (live["written"], live["hits_local"]) == (written, written)
    plain = run()
    assert plain.stdout == "layer: []\n"
    assert f"{written} of {written} hits · " in plain.stderr
    shutil.rmtree(cache)
    fetched = run("--tier", shared)
    assert f"{written} of {written} hits, {written} from a tier · " in fetched.stderr


@pytest.mark.jax
def test_doctor_shows_live_settings_and_who_set_them(
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
def test_a_tier_without_a_cache_is_noted_at_once(
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
    before = " ".join(done.stderr.partition("the program starts")[0].split())
    assert ("note: no cache directory is named" in before) == (origin == "nothing")
