"""A function may have any name: what plain JAX hits, no command calls damaged or leaves out."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MakeOnce, RunCli, clean_environment, find_jax_pythons, jax_version
from plain_jax import run_plain

from jaxcache.core.runs import RUNS_DIR

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
CACHED = 26
LONG_AGO = 1_700_000_000
Hits = Callable[[Path], int]


def run_records(cache: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (cache / RUNS_DIR).iterdir()}


@pytest.fixture
def hits(each_jax_python: str, tmp_path: Path) -> Hits:
    """Run the program without jaxcache, and count the names that JAX hits in a cache."""

    def count(cache: Path) -> int:
        env = clean_environment(tmp_path) | SETTINGS | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
        return len(json.loads(run_plain([each_jax_python, *PROGRAM], env=env).stdout))

    return count


@pytest.fixture
def cache(make_once: MakeOnce, each_jax_python: str, hits: Hits, tmp_path: Path) -> Path:
    """What plain JAX writes of the program, once for each interpreter."""

    def fill(home: Path) -> None:
        assert hits(home / "cache") == 0
        for path in (home / "cache").iterdir():
            os.utime(path, (LONG_AGO, LONG_AGO))

    filled = make_once(f"names-jax{find_jax_pythons().index(each_jax_python)}", fill)
    return Path(shutil.copytree(filled / "cache", tmp_path / "cache"))


def test_every_name_is_sound_and_travels(
    run_cli: RunCli, cache: Path, each_jax_python: str, hits: Hits, tmp_path: Path
) -> None:
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
    done = run_cli("doctor", "-C", cache, "--python", each_jax_python, "--json")
    checks = {finding["trap"] for finding in json.loads(done.stdout)["findings"]}
    assert not checks & {"damaged-entries", "unreadable-entries"}
    for name in ("pulled", "imported", "restored"):
        (tmp_path / name).mkdir()
    for line in (
        *("seal -C cache", "pin *θ* -C cache", "verify -C cache"),
        "pull cache -C pulled",
        *("export b.jxb -C pulled", "import b.jxb -C imported"),
        *("ci save s.jxb -C imported", "ci restore s.jxb -C restored --everything"),
    ):
        done = run_cli(*line.split())
        assert done.returncode == 0, (line, done.stderr)
    assert hits(tmp_path / "restored") == CACHED


def test_a_run_with_a_tier_takes_every_name_and_its_recipe_compiles_them(
    run_cli: RunCli, cache: Path, each_jax_python: str, hits: Hits, tmp_path: Path
) -> None:
    """Half of the entries come from the tier."""
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later, and the live layer knows 0.4.38")
    tier, recipe, target = (tmp_path / name for name in ("tier", "names.recipe", "target"))
    assert run_cli("push", tier, "-C", cache).returncode == 0
    paths = sorted(cache.glob("*-cache"))
    for path in paths[::2]:
        path.unlink()
    left = {path: path.read_bytes() for path in paths[1::2]}
    program = ("--", each_jax_python, *PROGRAM)
    options = ("-C", cache, "--json", "--tier", tier, "--record", recipe)
    done = run_cli("run", "--live", *options, *program, env=SETTINGS)
    document = json.loads(done.stdout)
    assert document["summary"]["hits"] == CACHED, done.stderr
    keyed = [m for m in document["modules"] if m["key"]]
    assert {m["module"] for m in keyed} == {m["key"].rpartition("-")[0] for m in keyed}
    assert left == {path: path.read_bytes() for path in left}
    kept = run_records(cache)
    explained = run_cli("explain", *options[:3], *program, env=SETTINGS)
    assert run_records(cache) == kept, "nothing is recorded where nothing is written"
    # Only the two whose names are too long for a file are not cached.
    assert len(json.loads(explained.stdout)["comparisons"]) <= 2, explained.stdout
    compiling = ("compile", recipe, "-C", target, "--jobs=1", "--json", "--python", each_jax_python)
    modules = json.loads(run_cli(*compiling, env=SETTINGS).stdout)["modules"]
    failed = [
        (m["reason"], m["detail"], m["attempts"]) for m in modules if m["outcome"] == "failed"
    ]
    assert failed == [("refused-here", "the name of its entry is too long for a file", 1)] * 2
    assert hits(target) == CACHED
