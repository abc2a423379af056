"""What switches the layer on: a variable, a file, ``run --live``; and what does not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment
from processes import sh

from live.conftest import PROGRAM, RunLive, entries

#: Stands in for a process in which JAX calls the entry point.
ENTRY = """
import json, os, re, stat, sys, typing  # which JAX has imported long before
from jaxcache.live import plugin
plugin.initialize()
print(json.dumps(sorted(m for m in sys.modules if m.startswith("jaxcache.live"))))
"""


def ask_entry_point(home: Path, text: str = "", **env: str) -> tuple[bool, str]:
    """Whether JAX's call of the entry point switches the layer on, and its standard error.

    Args:
        text: the user's configuration.
    """
    config = home / "jaxcache" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(text)
    env = clean_environment(home) | {"XDG_CONFIG_HOME": str(home)} | env
    done = sh([sys.executable, "-c", ENTRY], env=env, cwd=home, check=True)
    modules = json.loads(done.stdout)
    is_on = "jaxcache.live.layer" in modules
    assert is_on or modules == ["jaxcache.live", "jaxcache.live.plugin"], "it costs nothing"
    return is_on, done.stderr


ON = "[live]\nenabled = true\n"


@pytest.mark.parametrize(
    ("text", "env", "is_on"),
    [
        ("", {}, False),
        ("", {"JAXCACHE_LIVE": "0"}, False),
        (ON, {}, True),
        (ON, {"JAXCACHE_LIVE": " Off "}, False),
        ("[live]\nmax-size = 1\n", {}, False),
        ("enabled = true\n", {}, False),
    ],
)
def test_the_entry_point_imports_the_layer_where_a_setting_requests_it(
    tmp_path: Path, text: str, env: dict[str, str], is_on: bool
) -> None:
    assert ask_entry_point(tmp_path, text, **env) == (is_on, "")


def test_a_mistake_is_one_line_and_nothing_else(tmp_path: Path) -> None:
    _, said = ask_entry_point(tmp_path, JAXCACHE_LIVE="1", JAXCACHE_LIVE_TIRES="/nfs")
    assert said.splitlines() == [
        "jaxcache: live is off: JAXCACHE_LIVE_TIRES: tires is not a setting; did you mean tiers?"
    ]


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
    written = json.loads(first.stdout)["summary"]["written"]
    assert written == len(list(shared.glob("*-cache"))) > 0
    again = run("--tier", shared)
    assert json.loads(again.stdout)["summary"]["hits"] == written
    totals = json.loads(run_cli("stats", "-C", cache, "--json").stdout)["live"]
    assert (totals["written"], totals["hits_local"]) == (written, written)
    plain = run()
    assert "layer: []" in plain.stderr
    assert json.loads(plain.stdout)["summary"]["hits"] == written
    shutil.rmtree(cache)
    fetched = run_cli(
        *("run", "--tier", shared, "-C", cache, "--"), jax_python, tmp_path / "program.py", env=env
    )
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
    before = done.stderr.partition("the program starts")[0]
    assert ("note: no cache directory is named" in " ".join(before.split())) == (
        origin == "nothing"
    )
