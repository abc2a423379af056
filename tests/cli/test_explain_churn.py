"""``jaxcache explain --churn``: modules with many keys, and what each key has of its own."""

import json
import shutil
from pathlib import Path
from typing import Any

from conftest import RunCli
from terminal import run_all


def document(run_cli: RunCli, *args: str | Path) -> dict[str, Any]:
    done = run_cli("explain", "--json", *args)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_churn(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    cache = shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache")
    entry = next(cache.glob("jit_mlp*-cache"))
    for number in range(3):
        shutil.copy(entry, cache / f"jit_same-{number:064x}-cache")
        address = f"0x7f{number:010x}"
        shutil.copy(entry, cache / f"jit_at_{address}-{number:064x}-cache")
    rows = {r["module"]: r for r in document(run_cli, "--churn", "-C", cache)["modules"]}
    assert [m for m in rows if m in ("jit_same", "jit_at_0x…")] == ["jit_at_0x…", "jit_same"]
    size = entry.stat().st_size
    assert all(
        r["keys"] == 3 and r["size_bytes"] == 3 * size
        for r in map(rows.get, ("jit_same", "jit_at_0x…"))
        if r
    )
    assert "address" in rows["jit_at_0x…"]["causes"][0]["meaning"]
    assert rows["jit_same"]["causes"][0]["cause"] == "unknown"
    table = run_cli("explain", "--churn", "-C", cache).stdout.splitlines()
    assert len(table) == len(rows)
    assert all(len(line.split("\t")) == 6 for line in table)


def test_churn_at_80_columns_cuts_no_cause_and_shows_pairs(corpus: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    names = ("jit_mlp", "jit_dtypes", "jit_loss")
    found = [next((corpus / "0.12.0.1-cpu-zstd").glob(f"{n}*-cache")) for n in names]
    for number, entry in enumerate(found):
        shutil.copy(entry, cache / f"jit_train_step_of_a_model-{number:064x}-cache")
    for number, entry in enumerate(found[:2]):
        shutil.copy(entry, cache / f"jit_a_module_with_two_keys-{number:064x}-cache")
    words = ["explain", "--churn", "-C", str(cache), "--color", "never"]
    ((code, screen),) = run_all([words], home=tmp_path, width=80)
    lines = screen.splitlines()
    assert code == 0
    assert not any(line.endswith("…") for line in lines), screen
    assert any(line.split()[:2] == ["jit_a_module_with_two_keys", "2"] for line in lines), screen


def test_churn_of_shapes(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    """Entries of programs over other shapes under one name."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for number, name in enumerate(("jit_mlp", "jit_dtypes", "jit_matmul", "jit_loss")):
        for path in (corpus / "0.12.0.1-cpu-zstd").glob(f"{name}*-cache"):
            shutil.copy(path, cache / f"jit_f-{number:064x}-cache")
    (found,) = document(run_cli, "--churn", "-C", cache)["modules"]
    assert {c["component"] for c in found["causes"]} == {"computation"}
