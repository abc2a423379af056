"""``jaxcache rm``."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import error_of
from conftest import RunCli


@pytest.fixture
def cache(capped_cache: Path) -> Path:
    return capped_cache


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.iterdir()}


def test_rm_looks_for_the_key_before_it_asks(run_cli: RunCli, cache: Path) -> None:
    done = run_cli("rm", "-C", cache, "jit_typo", "--json")
    assert (done.returncode, error_of(done)) == (1, "no-match")
    done = run_cli("rm", "-C", cache, "jit_mlp", "--json")
    assert (done.returncode, error_of(done)) == (2, "needs-yes")
    (path,) = cache.glob("jit_mlp-*-cache")
    digest = path.name.removesuffix("-cache").rpartition("-")[2]
    done = run_cli("rm", "-C", cache, digest[:3], "-y", "--json")
    assert (done.returncode, error_of(done)) == (2, "short-prefix")
    assert path.exists()
    assert run_cli("rm", "-C", cache, digest[:4], "-y").returncode == 0
    assert not path.exists()


def test_a_modules_name_means_all_its_entries(run_cli: RunCli, cache: Path) -> None:
    (path,) = cache.glob("jit_mlp-*-cache")
    digest = path.name.removesuffix("-cache").rpartition("-")[2]
    shutil.copy(path, cache / f"jit_mlp-{digest[::-1]}-cache")
    shutil.copy(path, cache / f"jit_mlp_2-{digest}-cache")
    done = run_cli("ls", "-q", "-C", cache, "jit_mlp")
    assert sorted(done.stdout.split()) == sorted(f"jit_mlp-{d}" for d in (digest, digest[::-1]))


def test_rm_removes_what_it_names(run_cli: RunCli, cache: Path) -> None:
    assert run_cli("rm", "-C", cache, "jit_nothing", "--yes").returncode == 1
    done = run_cli("rm", "-C", cache, "jit_mlp", "jit_d*", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["policy"] is None
    assert {r["reason"] for r in document["removed"]} == {"requested"}
    assert document["kept"] == 5
    assert not {n for n in names(cache) if n.startswith(("jit_mlp", "jit_dtypes"))}
    assert len(list(cache.glob("*-atime"))) == 5
