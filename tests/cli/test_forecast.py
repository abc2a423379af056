"""What moves entries says first which of them will not hit where they go, and the cure."""

import json
import re
import shutil
from pathlib import Path

import pytest
from command_line import run_in_process
from conftest import CORPUS, RunCli, clean_environment

BOUND, FREE = CORPUS / "0.10.2-cpu-zstd", CORPUS / "0.12.0.1-cpu-zstd"
REASON = "keys of jax 0.10 contain the cache's path, /tmp/fmt/corpus/0.10.2-cpu-zstd. "
CURE = (
    "Use that path, or fill the cache again without the path in its keys: jaxcache warm "
    "--portable -C {} SCRIPT (where plain JAX uses it, set "
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none)"
)
MOVES = (
    "copy CACHE elsewhere",
    "copy CACHE elsewhere --dry-run",
    "copy CACHE out.jxb",
    "copy in.jxb elsewhere",
    "copy in.jxb out.jxb",
    "export out.jxb -C CACHE",
    "import in.jxb -C elsewhere --dry-run",
    "import in.jxb -C elsewhere",
    "push elsewhere -C CACHE --dry-run",
    "push elsewhere -C CACHE",
    "pull CACHE -C elsewhere --dry-run",
    "pull CACHE -C elsewhere",
)


def words(line: str, cache: Path, tmp_path: Path) -> list[str]:
    return [
        str(cache) if w == "CACHE" else str(tmp_path / w) if "elsewhere" in w or ".jxb" in w else w
        for w in line.split()
    ]


@pytest.fixture
def bundles(run_cli: RunCli, tmp_path: Path) -> None:
    assert run_cli("export", tmp_path / "in.jxb", "-C", BOUND).returncode == 0


@pytest.mark.parametrize("line", MOVES)
@pytest.mark.usefixtures("bundles")
def test_the_forecast_comes_first(run_cli: RunCli, tmp_path: Path, line: str) -> None:
    done = run_cli(*words(line, BOUND, tmp_path))
    said = [s for s in done.stderr.splitlines() if "machine code" not in s]
    if line == "import in.jxb -C elsewhere --dry-run":  # the jax of this Python was asked
        assert said[0].startswith("0 of 7 will hit here"), done.stderr
        assert REASON + CURE.format(tmp_path / "elsewhere") in said[0] or "compiled" in said[0]
        return
    leaves = line.startswith(("push", "export")) or line.endswith("out.jxb")
    where, place = ("at another path", "DIR") if leaves else ("here", tmp_path / "elsewhere")
    assert said[0] == f"0 of 7 will hit {where}: {REASON}" + CURE.format(place), done.stderr


@pytest.mark.parametrize("line", MOVES)
@pytest.mark.usefixtures("bundles")
def test_as_json(run_cli: RunCli, tmp_path: Path, line: str) -> None:
    done = run_cli(*words(line, BOUND, tmp_path), "--json")
    forecast = json.loads(done.stdout)["forecast"]
    assert (forecast["looked_at"], forecast["hit"], forecast["miss"]) == (7, 0, 7)
    assert forecast["message"].startswith("0 of 7 will hit ")


@pytest.mark.parametrize("line", [m for m in MOVES if "in.jxb" not in m])
def test_nothing_is_said_of_keys_without_a_path(run_cli: RunCli, tmp_path: Path, line: str) -> None:
    done = run_cli(*words(line, FREE, tmp_path))
    assert done.returncode == 0
    assert "will" not in done.stderr


@pytest.mark.usefixtures("bundles")
def test_on_a_terminal_entries_that_miss_for_one_reason_are_one_row(tmp_path: Path) -> None:
    line = words("import in.jxb -C elsewhere --dry-run", BOUND, tmp_path)
    env = clean_environment(tmp_path) | {"COLUMNS": "120", "NO_COLOR": "1"}
    done = run_in_process(line, env=env, cwd=tmp_path, one_stream=True)
    (row,) = [row for row in done.stdout.splitlines() if row.startswith("write   miss  ")]
    _, _, keys, why = re.split(" {2,}", row)
    assert keys.endswith(" and 6 more"), done.stdout
    assert why, done.stdout


def test_the_same_path_is_no_move(run_cli: RunCli, tmp_path: Path) -> None:
    """Entries that are brought back to where they were written."""
    there = Path("/tmp/fmt/corpus/0.10.2-cpu-zstd")
    done = run_cli("copy", BOUND, there, "--dry-run")
    assert "will" not in done.stderr


def test_a_large_cache_is_looked_at_in_part(run_cli: RunCli, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (entry,) = BOUND.glob("jit_loss-*-cache")
    for number in range(100):
        shutil.copy(entry, cache / f"jit_loss-{number:064x}-cache")
    done = run_cli("push", tmp_path / "elsewhere", "-C", cache, "--dry-run")
    assert done.stderr.startswith("0 of 25 entries looked at (of 100) will hit at another path: ")
