"""``jaxcache import``: dry runs, refusals, and no room."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, RunCli, clean_environment

SMALL = "0.4.38-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def test_a_dry_run_changes_nothing(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    done = run_cli("import", bundle, "-C", tmp_path / "new", "--dry-run")
    assert done.returncode == 0
    assert not (tmp_path / "new").exists()
    assert len(done.stdout.splitlines()) == 7
    assert all(line.startswith("write\t") for line in done.stdout.splitlines())
    assert len(run_cli("import", bundle, "-C", tmp_path / "n", "-n", "-q").stdout.split()) == 7
    rows = run_cli("import", bundle, "-C", tmp_path / "n", "-n", "--jsonl").stdout.splitlines()
    assert {json.loads(r)["action"] for r in rows} == {"write"}


def test_a_whole_process_prints_nothing_after_its_result(
    spawn_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    """Its streams end with Python, when nothing can be imported any more."""
    done = spawn_cli("import", bundle, "-C", tmp_path / "new")
    assert done.stderr.splitlines()[-1].endswith("7 files written")


def test_an_unknown_rule_is_refused_before_any_work(
    run_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    bundle.write_bytes(b"")  # and not looked at
    done = run_cli("import", bundle, "--on-conflict", "sometimes", "-C", tmp_path / "new")
    assert (done.returncode, "keep or replace or fail" in done.stderr) == (2, True)


def test_a_directory_that_is_called_jax_is_no_jax(
    run_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "here" / "jax").mkdir(parents=True)
    done = run_cli("import", bundle, "-C", tmp_path / "new", cwd=tmp_path / "here")
    assert done.returncode == 0, done.stderr


def test_a_python_without_jax_is_said(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 13\n")
    fake.chmod(0o755)
    for python in (fake, tmp_path / "none"):
        done = run_cli("import", bundle, "-C", tmp_path / "new", "--python", python)
        assert done.returncode == 13
        assert not (tmp_path / "new").exists()


def test_a_jax_of_ours_that_breaks_costs_the_forecast_alone(
    spawn_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken" / "jax").mkdir(parents=True)
    (tmp_path / "broken" / "jax" / "__init__.py").write_text("raise ImportError('no libtpu here')")
    path = os.pathsep.join((str(tmp_path / "broken"), str(REPOSITORY)))
    words = ("import", bundle, "-C", tmp_path / "new")
    done = spawn_cli(*words, "--dry-run", env={"PYTHONPATH": path})
    assert done.returncode == 0
    assert "cannot forecast the hits" in done.stderr and "no libtpu here" in done.stderr
    done = spawn_cli(*words, env={"PYTHONPATH": path})
    assert (done.returncode, "forecast" in done.stderr) == (0, False)  # no jax was started
    assert list((tmp_path / "new").glob("*-cache"))


def limited(
    home: Path, limit_bytes: int, *args: str | Path, stdin: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command that cannot write files larger than a limit, as on a full disk."""
    with open(stdin or os.devnull, "rb") as file:
        return subprocess.run(
            [sys.executable, "-m", "jaxcache", *map(str, args)],
            env=clean_environment(home),
            capture_output=True,
            text=True,
            check=False,
            stdin=file,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes,) * 2),
        )


def test_no_room_for_the_entries(
    run_cli: RunCli, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    for options in ([], ["--atomic"]):
        target = tmp_path / f"new{len(options)}"
        done = limited(tmp_path, 4000, "import", bundle, *options, "-C", target)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False)
        if options:
            assert not names(target)
        else:  # what was written, failed and not tried is all that was to be written
            counts = re.findall(r"(\d+) (?:files? written|failed|not tried)", done.stderr)
            assert sum(map(int, counts)) == len(names(cache))
            assert len(counts) > 1
        assert not list(target.rglob(".jaxcache-tmp-*"))
        assert run_cli("import", bundle, *options, "-C", target).returncode == 0
        assert run_cli("diff", cache, target).returncode == 0


def test_no_room_for_a_bundle_that_nobody_keeps(
    run_cli: RunCli, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    target = tmp_path / "new"
    done = limited(tmp_path, bundle.stat().st_size - 1, "import", "-", "-C", target, stdin=bundle)
    assert (done.returncode, "cannot keep the bundle in" in done.stderr) == (1, True)
    assert not target.exists()
