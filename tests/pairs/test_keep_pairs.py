"""What is kept of a cache that is shared: with a cap of JAX, with torch, with two versions."""

import os
import shutil
from pathlib import Path

import pytest
from conftest import CORPUS, find_jax_pythons, jax_version

from jaxcache.errors import ExitCode
from tests.pairs.conftest import ALL_HITS, MakePair, Pair, keys
from tools.oracle.world import MODULES, Counts

pytestmark = pytest.mark.jax
#: A cap that nothing exceeds; with any cap, JAX keeps an ``-atime`` file for each entry.
CAP = {"JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9)}
#: A real cache of a JAX that is in no key of the matrix.
OTHER_VERSION = CORPUS / "0.4.38-cpu-zstd"


def contents(directory: Path) -> dict[str, bytes]:
    """The bytes of all files below a directory, except jaxcache's own."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".jaxcache" not in path.parts
    }


@pytest.mark.slow
def test_a_capped_cache_goes_through_a_job_of_ci(pair: Pair) -> None:
    pair.plain(**CAP)
    assert keys(pair.cache, "-atime") == keys(pair.cache)
    pair.run("ci", "save", "x.jxb")
    pair.use("second")
    pair.run("ci", "restore", *pair.python, "x.jxb")
    assert pair.plain(**CAP) == ALL_HITS
    assert keys(pair.cache, "-atime") == keys(pair.cache)
    used = pair.run_json("ci", "save", "y.jxb", "--save-if", "always")["used"]
    assert len(used) == MODULES


@pytest.mark.slow
def test_a_capped_cache_is_pruned_and_sealed(pair: Pair) -> None:
    pair.plain(**CAP)
    pair.run("prune", "--max-entries", "2", "--grace", "0s", "--yes")
    pair.run("seal")
    assert keys(pair.cache, "-atime") == keys(pair.cache)
    assert pair.plain(**CAP) == Counts(2, MODULES - 2)
    assert keys(pair.cache, "-atime") == keys(pair.cache)


def test_jax_with_a_cap_goes_on_writing_where_a_recipe_was_compiled_and_pruned(pair: Pair) -> None:
    pair.record()
    pair.use("second")
    pair.world.extra |= CAP
    for limit in (2, MODULES):
        pair.run("compile", *pair.python, "x.recipe")
        pair.run("prune", "--max-entries", str(limit), "--grace", "0s", "--yes")
    assert keys(pair.cache, "-atime") == keys(pair.cache)
    pair.change_one_function()
    assert pair.plain() == Counts(MODULES - 1, 1)
    assert pair.plain() == ALL_HITS


def test_jax_with_a_cap_goes_on_writing_where_a_job_without_one_was_restored(pair: Pair) -> None:
    pair.fill()
    pair.run("ci", "save", "x.jxb")
    pair.use("second")
    pair.world.extra |= CAP
    pair.run("ci", "restore", *pair.python, "x.jxb")
    pair.change_one_function()
    assert pair.plain() == Counts(MODULES - 1, 1)
    assert pair.plain() == ALL_HITS


@pytest.fixture
def mixed(pair: Pair) -> set[str]:
    """Keys that another version of JAX wrote into the cache of the pair."""
    pair.fill()
    for path in OTHER_VERSION.glob("*-cache"):
        shutil.copy(path, pair.cache)
    return keys(OTHER_VERSION)


def test_entries_of_another_version_are_no_damage_and_travel(pair: Pair, mixed: set[str]) -> None:
    pair.run("verify", "--fix", "--yes", "--grace", "0s")
    pair.run("seal")
    pair.run("export", "x.jxb")
    pair.use("second")
    pair.run("import", "x.jxb")
    assert len(keys(pair.cache)) == MODULES + len(mixed)
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_ci_restores_the_version_that_runs_and_keeps_the_other(pair: Pair, mixed: set[str]) -> None:
    pair.run("ci", "save", "x.jxb")
    pair.use("second")
    restored = pair.run_json("ci", "restore", *pair.python, "x.jxb")
    assert restored["entries"] == MODULES
    assert pair.plain() == ALL_HITS
    pair.use("third")
    pair.run("ci", "restore", "--everything", "x.jxb")
    assert keys(pair.cache) >= mixed


def test_prune_by_use_keeps_the_version_that_runs(pair: Pair, mixed: set[str]) -> None:
    for key in mixed:
        os.utime(pair.cache / f"{key}-cache", (1_700_000_000, 1_700_000_000))
    pair.run("prune", "--unused-for", "30d", "--grace", "0s", "--yes")
    assert not keys(pair.cache) & mixed
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_entries_of_another_version_go_through_a_bucket(
    pair: Pair, mixed: set[str], bucket: str
) -> None:
    pair.run("push", bucket)
    pair.use("second")
    pair.run("pull", bucket)
    assert keys(pair.cache) >= mixed
    assert pair.plain() == ALL_HITS


@pytest.mark.slow
def test_two_versions_take_turns_in_one_directory(make_pair: MakePair) -> None:
    pythons = [python for python in find_jax_pythons() if jax_version(python) >= (0, 5)]
    if len(pythons) < 2:
        pytest.skip("JAXCACHE_TEST_JAX_PYTHONS names one Python with JAX 0.5 or newer")
    pair = make_pair(pythons[0])
    tier = pair.directory / "tier"
    for _ in range(2):
        for python in (pythons[0], pythons[-1]):
            pair.world.python = python
            pair.run("run", "--live", "--tier", tier, *pair.program())
            assert pair.plain(**CAP) == ALL_HITS
        pair.run("verify", "--fix", "--yes")
        pair.run("seal")
        pair.run("prune", "--unused-for", "30d", "--yes")
    assert len(keys(pair.cache)) == 2 * MODULES
    assert keys(tier) == keys(pair.cache)


def test_torch_in_the_same_directory_is_left_alone(pair: Pair, golden: Path) -> None:
    pair.fill()
    shutil.copytree(golden, pair.cache, dirs_exist_ok=True)
    before = contents(golden)
    jax = ("--layout", "jax")
    pair.start("verify", *jax, "--fix", "--yes", "--grace", "0s")
    pair.run("prune", *jax, "--max-entries", "3", "--orphans", "--grace", "0s", "--yes")
    pair.run("export", *jax, "x.jxb")
    assert pair.plain(**CAP) == ALL_HITS
    assert {name: contents(pair.cache).get(name) for name in before} == before
    pair.use("second")
    pair.run("import", "x.jxb")
    assert pair.plain() == ALL_HITS
    assert not set(contents(pair.cache)) & set(before)


@pytest.mark.slow
def test_jax_in_the_same_directory_is_left_alone(pair: Pair, golden: Path) -> None:
    pair.fill()
    shutil.copytree(golden, pair.cache, dirs_exist_ok=True)
    torch = ("--layout", "torch", "-C", pair.cache)
    pair.start("verify", *torch, "--fix", "--yes", "--grace", "0s")
    pair.run("prune", *torch, "--max-entries", "1", "--orphans", "--grace", "0s", "--yes")
    assert len(contents(pair.cache)) < len(contents(golden))
    assert pair.plain() == ALL_HITS


def test_a_signed_bundle_of_torch_is_taken_where_signatures_are_required(
    pair: Pair, golden: Path
) -> None:
    public = pair.run("trust", "keygen", "ci").strip().split("\t")[1]
    pair.run("trust", "add", "ci", public)
    settings = pair.world.top / "home" / ".config" / "jaxcache" / "config.toml"
    settings.write_text("require-signed = true\n")
    pair.run("export", "signed.jxb", "--sign", "ci", "-C", golden)
    pair.run("export", "unsigned.jxb", "-C", golden)
    assert pair.start("import", "unsigned.jxb", "-C", "second").returncode == ExitCode.UNTRUSTED
    pair.run("import", "signed.jxb", "-C", "second")
    assert pair.start("diff", golden, "second").returncode == 0


#: Another user, whose directories root fills.
OWNER = 65534


def owners(directory: Path) -> set[int]:
    """The users to whom a directory and all that lies below it belong."""
    return {path.lstat().st_uid for path in (directory, *directory.rglob("*"))}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
@pytest.mark.parametrize("way", ["compile", "ci restore", "live", "signed"])
def test_what_root_fills_belongs_to_the_owner_of_an_odd_directory(pair: Pair, way: str) -> None:
    tier = pair.directory / "tier ★"
    pair.run("warm", *pair.python, "--record", "x.recipe", "program.py")
    pair.run("ci", "save", "x.jxb")
    source = pair.cache
    pair.use("ein Verzeichnis ★")
    for directory in (pair.cache, tier):
        directory.mkdir()
        os.chown(directory, OWNER, OWNER)
    umask = os.umask(0o077)
    try:
        if way == "compile":
            pair.run("compile", *pair.python, "x.recipe")
        elif way == "ci restore":
            pair.run("ci", "restore", *pair.python, "x.jxb")
        elif way == "live":
            pair.run("run", "--live", "--tier", tier, *pair.program())
        else:
            pair.run("trust", "keygen", "ci")
            pair.run("push", "-C", source, "--sign", "ci", tier)
            pair.run("pull", tier)
    finally:
        os.umask(umask)
    assert owners(pair.cache) | owners(tier) == {OWNER}
    assert pair.plain() == ALL_HITS
