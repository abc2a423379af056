"""Entries that move: recipes, bundles, tiers, signatures and jobs of CI, in pairs."""

import shutil
from pathlib import Path

import pytest
from conftest import jax_version

from tests.pairs.conftest import ALL_HITS, Pair, keys
from tools.oracle.world import MODULES, Counts

pytestmark = pytest.mark.jax


@pytest.fixture
def settings(pair: Pair) -> Path:
    """The settings of a user who trusts the key ci; its private half is beside them."""
    public = pair.run("trust", "keygen", "ci").strip().split("\t")[1]
    pair.run("trust", "add", "ci", public)
    return pair.world.top / "home" / ".config" / "jaxcache"


def require_signatures(settings: Path) -> None:
    """Make signatures a rule for every command and the live layer."""
    (settings / "config.toml").write_text("require-signed = true\n")


def test_signed_uploads_of_the_live_layer_pass_pull_require_signed(
    pair: Pair, settings: Path
) -> None:
    tier = pair.directory / "tier"
    pair.world.extra["JAXCACHE_LIVE_SIGNING_KEY"] = str(settings / "ci.key")
    pair.run("run", "--live", "--tier", tier, *pair.program())
    assert keys(tier) == keys(pair.cache)
    del pair.world.extra["JAXCACHE_LIVE_SIGNING_KEY"]
    pair.use("second")
    assert len(pair.run_json("pull", "--require-signed", tier)["carried"]) == MODULES
    assert pair.plain() == ALL_HITS


@pytest.mark.parametrize("signed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_live_layer_takes_what_push_signed_and_nothing_else(
    pair: Pair, settings: Path, signed: bool
) -> None:
    tier = pair.directory / "tier"
    pair.fill()
    pair.run("push", tier, *(("--sign", "ci") if signed else ()))
    require_signatures(settings)
    pair.use("second")
    run = ("run", "--fail-on-miss", "--live", "--tier", f"{tier}:ro", *pair.program())
    assert pair.start(*run).returncode == (0 if signed else 1)
    # Whether fetched or compiled, the entries are now local.
    assert pair.plain() == ALL_HITS


def test_signed_entries_stay_signed_when_they_are_sealed_and_pruned(
    pair: Pair, settings: Path
) -> None:
    pair.fill()
    pair.run("push", "tier", "--sign", "ci")
    pair.run("seal", "--recompress", "19", "-C", "tier")
    pair.run("prune", "-C", "tier", "--max-entries", "2", "--grace", "0s", "--yes")
    require_signatures(settings)
    pair.use("second")
    assert len(pair.run_json("pull", "tier")["carried"]) == 2
    assert pair.plain() == Counts(2, MODULES - 2)


def test_what_a_recipe_compiled_moves_in_a_bundle(pair: Pair) -> None:
    pair.record()
    pair.use("builder")
    pair.run("compile", *pair.python, "x.recipe")
    pair.run("export", "x.jxb")
    pair.use("second")
    pair.run("import", *pair.python, "--require-compatible", "x.jxb")
    assert pair.plain() == ALL_HITS


def test_what_warm_jobs_compiled_goes_to_the_tier(pair: Pair) -> None:
    live = ("--live", "--tier", pair.directory / "tier")
    pair.run("warm", *pair.python, "--jobs", "2", *live, "program.py")
    assert len(keys(pair.directory / "tier")) == MODULES
    pair.use("second")
    pair.run("warm", *pair.python, "--fail-on-miss", *live, "program.py")
    assert pair.plain() == ALL_HITS


#: The end of a program that waits for what the live layer fetches ahead.
UNTIL_FETCHED = """
import glob, os, sys, time
entries = os.path.join(os.environ["JAX_COMPILATION_CACHE_DIR"], "*-cache")
end = time.monotonic() + 60
while len(glob.glob(entries)) <= int(sys.argv[1]) and time.monotonic() < end:
    time.sleep(0.05)
"""


def test_what_a_tier_has_for_others_does_not_fail_a_run_of_hits(pair: Pair) -> None:
    """The layer fetches ahead what the last run used, and this one does not ask for."""
    live = ("--live", "--tier", pair.directory / "tier")
    program = pair.directory / "program.py"
    text = program.read_text()
    pair.run("warm", *pair.python, *live, "program.py")
    pair.change_one_function()
    pair.run("warm", *pair.python, *live, "program.py")
    pair.use("second")
    program.write_text(f"{text}{UNTIL_FETCHED}")
    pair.run("warm", *pair.python, "--fail-on-miss", *live, "program.py", str(MODULES))
    assert len(keys(pair.cache)) > MODULES


@pytest.mark.slow
def test_warm_jobs_fetches_from_the_tier_instead_of_compiling(pair: Pair) -> None:
    pair.fill()
    pair.run("copy", pair.cache, "tier")
    pair.use("second")
    live = ("--live", "--tier", pair.directory / "tier", "--fail-on-miss")
    pair.run("warm", *pair.python, "--jobs", "2", *live, "program.py")
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_a_portable_cache_is_restored_into_another_directory(pair: Pair) -> None:
    del pair.world.extra["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"]
    portable = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
    pair.run("warm", *pair.python, "--portable", "program.py")
    pair.run("ci", "save", "x.jxb")
    pair.use("second")
    done = pair.start("ci", "restore", *pair.python, "x.jxb")
    if jax_version(pair.world.python) < (0, 11):
        # Without the setting, this JAX has the path in its keys.
        assert "or start it with jaxcache run --portable: without it " in done.stderr
    assert pair.plain(**portable) == ALL_HITS


def test_a_pin_of_the_job_outlives_prune_and_is_saved(pair: Pair) -> None:
    pair.fill()
    pair.run("ci", "save", "x.jxb")
    pair.use("second")
    pair.run("ci", "restore", *pair.python, "x.jxb")
    pair.run("pin", "jit_first")
    pair.start("prune", "--max-entries", "0", "--grace", "0s", "--yes")
    assert {key.split("-")[0] for key in keys(pair.cache)} == {"jit_first"}
    pair.run("ci", "save", "--save-if", "always", "y.jxb")
    pair.use("third")
    pair.run("ci", "restore", *pair.python, "y.jxb")
    assert pair.plain() == Counts(1, MODULES - 1)


@pytest.mark.slow
def test_what_the_live_layer_wrote_goes_through_a_job_in_a_bundle(pair: Pair) -> None:
    pair.run("ci", "restore", *pair.python, "x.jxb")
    pair.run("run", "--live", *pair.program())
    assert len(pair.run_json("ci", "save", "x.jxb")["new"]) == MODULES
    pair.use("second")
    pair.run("ci", "restore", *pair.python, "x.jxb")
    pair.run("run", "--live", "--fail-on-miss", *pair.program())
    assert len(pair.run_json("ci", "save", "x.jxb")["used"]) == MODULES
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_a_bundle_of_a_job_goes_on_to_a_tier(pair: Pair) -> None:
    pair.fill()
    pair.run("ci", "save", "x.jxb")
    shutil.rmtree(pair.cache)
    pair.run("import", "x.jxb", "-C", "tier")
    pair.use("second")
    pair.run("run", "--fail-on-miss", "--live", "--tier", pair.directory / "tier", *pair.program())
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_a_recipe_is_compiled_into_a_bucket(pair: Pair, bucket: str) -> None:
    pair.record()
    pair.run("compile", *pair.python, "-C", bucket, "x.recipe")
    pair.use("second")
    pair.run("pull", bucket)
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_a_job_that_compiles_a_recipe_saves_it(pair: Pair) -> None:
    pair.record()
    pair.use("job")
    pair.run("ci", "restore", *pair.python, "x.jxb")
    pair.run("compile", *pair.python, "x.recipe")
    assert len(pair.run_json("ci", "save", "x.jxb")["new"]) == MODULES
    pair.use("second")
    pair.run("ci", "restore", *pair.python, "x.jxb")
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_a_tier_gives_back_what_prune_removed(pair: Pair) -> None:
    run = ("run", "--live", "--tier", pair.directory / "tier")
    pair.run(*run, *pair.program())
    pair.run("prune", "--max-entries", "1", "--grace", "0s", "--yes")
    pair.run("prune", "-C", "tier", "--max-entries", "2", "--grace", "0s", "--yes")
    remaining = keys(pair.cache) | keys(pair.directory / "tier")
    pair.run(*run, "--fail-on-miss", str(MODULES - len(remaining)), *pair.program())
    assert pair.plain() == ALL_HITS
    assert len(keys(pair.directory / "tier")) == MODULES


@pytest.mark.slow
def test_jax_with_a_cap_goes_on_writing_where_a_tier_filled_the_directory(pair: Pair) -> None:
    pair.fill()
    pair.run("push", "tier")
    pair.use("second")
    pair.world.extra |= {"JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9)}
    run = ("run", "--live", "--fail-on-miss", "--tier", pair.directory / "tier")
    pair.run(*run, *pair.program())
    pair.change_one_function()
    assert pair.plain() == Counts(MODULES - 1, 1)
    assert pair.plain() == ALL_HITS
