"""``jaxcache rm``."""

import shutil
from pathlib import Path

from command_line import error_of
from conftest import RunCli


def test_rm_looks_for_the_key_before_it_asks(run_cli: RunCli, capped_cache: Path) -> None:
    done = run_cli("rm", "-C", capped_cache, "jit_typo", "--json")
    assert (done.returncode, error_of(done)) == (1, "no-match")
    done = run_cli("rm", "-C", capped_cache, "jit_mlp", "--json")
    assert (done.returncode, error_of(done)) == (2, "needs-yes")
    (path,) = capped_cache.glob("jit_mlp-*-cache")
    digest = path.name.removesuffix("-cache").rpartition("-")[2]
    done = run_cli("rm", "-C", capped_cache, digest[:3], "-y", "--json")
    assert (done.returncode, error_of(done)) == (2, "short-prefix")
    assert path.exists()
    assert run_cli("rm", "-C", capped_cache, digest[:4], "-y").returncode == 0
    assert not path.exists()


def test_a_modules_name_means_all_its_entries(run_cli: RunCli, capped_cache: Path) -> None:
    (path,) = capped_cache.glob("jit_mlp-*-cache")
    digest = path.name.removesuffix("-cache").rpartition("-")[2]
    shutil.copy(path, capped_cache / f"jit_mlp-{digest[::-1]}-cache")
    shutil.copy(path, capped_cache / f"jit_mlp_2-{digest}-cache")
    done = run_cli("ls", "-q", "-C", capped_cache, "jit_mlp")
    assert sorted(done.stdout.split()) == sorted(f"jit_mlp-{d}" for d in (digest, digest[::-1]))
