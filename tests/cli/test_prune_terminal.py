"""``prune`` and ``rm`` on a terminal: the question, and what follows it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment


@pytest.fixture
def cache(capped_cache: Path) -> Path:
    return capped_cache


def on_terminal(cache: Path, tmp_path: Path, answer: str, *args: str) -> tuple[int, str]:
    """Run a command on a terminal of its own, type an answer, and return what it showed."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxcache", *args, "-C", str(cache)],
        stdin=child,
        stdout=child,
        stderr=child,
        env=clean_environment(tmp_path) | {"COLUMNS": "100", "TERM": "dumb"},
    )
    os.close(child)
    os.write(parent, answer.encode())
    shown = b""
    while True:
        try:
            data = os.read(parent, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(parent)
    return process.wait(), shown.decode()


def test_a_person_is_asked_and_may_decline(cache: Path, tmp_path: Path) -> None:
    code, shown = on_terminal(cache, tmp_path, "n\n", "prune", "--max-entries", "6")
    assert code == 1
    assert "would remove 1 entry" in shown
    assert "[y/N]" in shown
    assert len(list(cache.glob("*-cache"))) == 7
    code, shown = on_terminal(cache, tmp_path, "y\n", "prune", "--max-entries", "6")
    assert code == 0
    assert "removed 1 entry" in shown
    assert shown.count("COMPILE") == 1  # what the question has listed is not listed again
    assert len(list(cache.glob("*-cache"))) == 6
    code, shown = on_terminal(cache, tmp_path, "", "prune", "--max-entries", "5", "--yes")
    assert (code, shown.count("COMPILE")) == (0, 1)


def test_a_person_is_told_how_to_keep_the_bound(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    line = ("prune", "--max-size", "20kB", "--yes")
    code, shown = on_terminal(cache, tmp_path, "", *line)
    assert code == 0
    told = " ".join(shown.split())
    assert told.count("the cache can grow again") == 1
    assert "JAXCACHE_LIVE=1 JAXCACHE_LIVE_MAX_SIZE=20000" in told
    assert "JAX_COMPILATION_CACHE_MAX_SIZE=20000 (JAX needs the package filelock for it)" in told
    for more in ("--quiet", "--json", "--dry-run"):
        assert "can grow again" not in on_terminal(cache, tmp_path, "", *line, more)[1]
    assert "can grow again" not in run_cli(*line, "-C", cache).stderr
    assert (
        "can grow again"
        not in on_terminal(cache, tmp_path, "", "prune", "--max-entries=1", "-y")[1]
    )


def test_a_cache_is_not_emptied_by_a_keystroke(cache: Path, tmp_path: Path) -> None:
    code, shown = on_terminal(cache, tmp_path, "y\n", "prune", "--max-entries", "0")
    assert code == 2
    assert "would empty" in shown
    assert len(list(cache.glob("*-cache"))) == 7
