"""A function may have any name: what plain JAX hits, no command calls damaged or leaves out."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeOnce, RunCli, clean_environment, find_jax_pythons, jax_version
from plain_jax import run_plain

pytestmark = pytest.mark.jax

PROGRAM = (Path(__file__).with_name("programs.py"), "names")
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",  # keys without the path
    "PYTHONWARNINGS": "ignore",
}
#: Names of the program that fit into the name of a file.
CACHED = 30
LONG_AGO = 1_700_000_000


def plain_hits(python: str, home: Path, cache: Path) -> list[str]:
    """Run the program without jaxcache, and return the names that JAX hit."""
    env = clean_environment(home) | SETTINGS | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    return json.loads(run_plain([python, *PROGRAM], env=env, cwd=home).stdout)


@pytest.fixture
def cache(make_once: MakeOnce, each_jax_python: str, tmp_path: Path) -> Path:
    """What plain JAX writes of the program, once for each interpreter."""

    def fill(home: Path) -> None:
        assert plain_hits(each_jax_python, home, home / "cache") == []
        for path in (home / "cache").iterdir():
            os.utime(path, (LONG_AGO, LONG_AGO))

    filled = make_once(f"names-jax{find_jax_pythons().index(each_jax_python)}", fill)
    return Path(shutil.copytree(filled / "cache", tmp_path / "cache"))


@pytest.fixture
def hits(each_jax_python: str, tmp_path: Path) -> Callable[[Path], int]:
    """Count the names that plain JAX hits in a cache."""

    def count(cache: Path) -> int:
        return len(plain_hits(each_jax_python, tmp_path, cache))

    return count


def test_every_name_is_sound_and_stays(
    run_cli: RunCli, cache: Path, hits: Callable[[Path], int]
) -> None:
    assert hits(cache) == CACHED
    for options in ([], ["--fix"], ["--level", "quick"]):
        done = run_cli("verify", "-C", cache, "--json", *options)
        kinds = {p["kind"] for p in json.loads(done.stdout)["problems"]}
        assert (done.returncode, kinds - {"unsealed", "legacy-name"}) == (0, set())
    entries = json.loads(run_cli("ls", "-C", cache, "--long", "--json").stdout)["entries"]
    assert {p for e in entries for p in e["problems"]} <= {"legacy-name"}
    for entry in entries:
        shown = run_cli("show", entry["key"], "-C", cache, "--json")
        found = {p["kind"] for p in json.loads(shown.stdout)["problems"]}
        assert (shown.returncode, found - {"legacy-name"}) == (0, set())
    stats = run_cli("stats", "-C", cache, "--json")
    assert set(json.loads(stats.stdout)["problems"]) <= {"legacy-name"}
    for command in ("seal", "pin"):
        options = ("*θ*",) if command == "pin" else ()
        assert run_cli(command, *options, "-C", cache).returncode == 0
    assert run_cli("verify", "-C", cache).returncode == 0
    assert hits(cache) == CACHED


def test_doctor_finds_no_damage(run_cli: RunCli, cache: Path, each_jax_python: str) -> None:
    done = run_cli("doctor", "-C", cache, "--python", each_jax_python, "--json", env=SETTINGS)
    checks = {finding["trap"] for finding in json.loads(done.stdout)["findings"]}
    assert not checks & {"damaged-entries", "unreadable-entries"}


@pytest.mark.parametrize(
    "way",
    [
        *("pull", "export", "ci save bundle"),
        # These share what reads and writes with pull.
        *(pytest.param(way, marks=pytest.mark.slow) for way in ("copy", "push", "ci save")),
    ],
)
def test_every_name_travels(
    way: str, run_cli: RunCli, cache: Path, hits: Callable[[Path], int], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    bundle = tmp_path / "cache.jxb"
    commands = {
        "copy": [("copy", cache, target)],
        "push": [("push", target, "-C", cache)],
        "pull": [("pull", cache, "-C", target)],
        "ci save": [("ci", "save", target, "-C", cache)],
        "export": [("export", bundle, "-C", cache), ("import", bundle, "-C", target)],
        "ci save bundle": [
            ("ci", "save", bundle, "-C", cache),
            ("ci", "restore", bundle, "-C", target, "--everything"),
        ],
    }
    for command in commands[way]:
        done = run_cli(*command)
        assert done.returncode == 0, done.stderr
    assert hits(target) == CACHED


def test_a_run_names_modules_as_their_files(
    run_cli: RunCli, cache: Path, each_jax_python: str
) -> None:
    options = ("-C", cache, "--python", each_jax_python, "--json")
    done = run_cli("warm", *options, *PROGRAM, env=SETTINGS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["summary"]["hits"] == CACHED
    keyed = [m for m in document["modules"] if m["key"]]
    assert {m["module"] for m in keyed} == {m["key"].rpartition("-")[0] for m in keyed}
    explained = run_cli("explain", *options, PROGRAM[0], "--", PROGRAM[1], env=SETTINGS)
    # Only the two whose names are too long for a file are not cached.
    assert len(json.loads(explained.stdout)["comparisons"]) <= 2, explained.stdout


def test_a_recipe_compiles_every_name(
    run_cli: RunCli,
    cache: Path,
    each_jax_python: str,
    hits: Callable[[Path], int],
    tmp_path: Path,
) -> None:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later")
    python = ("--python", each_jax_python)
    recipe = tmp_path / "names.recipe"
    recorded = run_cli("warm", "-C", cache, "--record", recipe, *python, *PROGRAM, env=SETTINGS)
    assert recorded.returncode == 0, recorded.stderr
    target = tmp_path / "target"
    run_cli("compile", recipe, "-C", target, *python, env=SETTINGS)
    assert hits(target) == CACHED


def test_the_live_layer_takes_every_name(
    run_cli: RunCli, cache: Path, each_jax_python: str, hits: Callable[[Path], int], tmp_path: Path
) -> None:
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("the live layer knows JAX from 0.4.38")
    before = {p.name: p.read_bytes() for p in cache.glob("*-cache")}
    tier = tmp_path / "tier"
    options = ("-C", cache, "--tier", tier, "--json", "--", each_jax_python, *PROGRAM)
    done = run_cli("run", "--live", *options, env=SETTINGS)
    assert json.loads(done.stdout)["summary"]["hits"] == CACHED, done.stderr
    assert before == {p.name: p.read_bytes() for p in cache.glob("*-cache")}
    assert run_cli("push", tier, "-C", cache).returncode == 0
    shutil.rmtree(cache)
    done = run_cli("run", "--live", *options, env=SETTINGS)
    assert json.loads(done.stdout)["summary"]["hits"] == CACHED, done.stderr
    assert hits(cache) == CACHED
