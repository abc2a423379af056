"""``jaxcache where``: the directory alone; what a command uses is in the integration tests."""

import json
from pathlib import Path

from conftest import RunCli


def test_without_a_command_the_directory_is_printed(run_cli: RunCli, tmp_path: Path) -> None:
    assert run_cli("where").stdout == f"{tmp_path}/.cache/jax\n"
    set_here = {"JAX_COMPILATION_CACHE_DIR": "/srv/jax"}
    assert run_cli("where", env=set_here).stdout == "/srv/jax\n"
    assert run_cli("where", "-C", "s3://b/c", env=set_here).stdout == "s3://b/c\n"
    document = json.loads(run_cli("where", "--json", env=set_here).stdout)
    assert document == {"schema_version": 1, "cache_dir": "/srv/jax", "processes": []}


def test_options_that_do_not_fit(run_cli: RunCli) -> None:
    for words in (["--stop"], ["-C", "x", "--", "true"]):
        done = run_cli("where", *words)
        assert done.returncode == 2
        assert done.stdout == ""
