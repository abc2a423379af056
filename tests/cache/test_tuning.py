"""Entries that were compiled for a GPU that was not there keep their label, and lose it in time."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli
from ways import told

from jaxcache.cache.ledger.record import COMPILE, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store


@pytest.fixture
def labelled(corpus: Path, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A cache of GPU entries, of which the ledger calls one untuned and one tuned."""
    path = tmp_path / "gpu"
    shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", path)
    names = sorted(p.name for p in path.glob("*-cache"))
    known = {}
    events = []
    for name, tuning in zip(names, ("untuned", "tuned"), strict=False):
        info = (path / name).stat()
        known[name.removesuffix("-cache")] = tuning
        facts = {
            "tuning": tuning,
            "tuning_mtime_ns": info.st_mtime_ns,
            "tuning_size_bytes": info.st_size,
        }
        events.append(Event(name.removesuffix("-cache"), COMPILE, 1, facts))
    assert append(open_store(str(path)), events)
    return path, known


def labels(run_cli: RunCli, path: Path) -> dict[str, str]:
    entries = told(run_cli, "ls", "-C", path)["entries"]
    return {e["key"]: e["tuning"] for e in entries if e["tuning"]}


def test_ls_show_and_prune(run_cli: RunCli, labelled: Any) -> None:
    path, known = labelled
    assert labels(run_cli, path) == known
    untuned = next(k for k, tuning in known.items() if tuning == "untuned")
    document = told(run_cli, "show", "-C", path, untuned)
    assert document["entry"]["tuning"] == document["provenance"]["tuning"] == "untuned"
    prune = ("prune", "--untuned", "-C", path, "--grace", "0s")
    dry = told(run_cli, *prune, "--dry-run")
    real = told(run_cli, *prune, "--yes")
    assert dry["removed"] == real["removed"]
    assert [(r["key"], r["reason"]) for r in real["removed"]] == [(untuned, "untuned")]
    assert not (path / f"{untuned}-cache").exists()
    assert labels(run_cli, path) == {k: t for k, t in known.items() if k != untuned}
    assert told(run_cli, *prune, "--yes")["removed"] == []


def test_the_label_goes_with_the_entry(run_cli: RunCli, labelled: Any, tmp_path: Path) -> None:
    path, known = labelled
    shutil.copytree(path, tmp_path / "copied", copy_function=shutil.copyfile)
    assert labels(run_cli, tmp_path / "copied") == known
    assert run_cli("export", "-C", path, "all.jaxcache").returncode == 0
    assert run_cli("import", "-C", tmp_path / "moved", "all.jaxcache").returncode == 0
    assert labels(run_cli, tmp_path / "moved") == known
    assert run_cli("seal", "-C", path).returncode == 0
    assert labels(run_cli, path) == known


def test_an_entry_that_jax_made_anew_is_not_labelled(run_cli: RunCli, labelled: Any) -> None:
    path, known = labelled
    key, other = known
    shutil.copyfile(path / f"{other}-cache", path / f"{key}-cache")
    assert labels(run_cli, path) == {other: known[other]}
    prune = ("prune", "--untuned", "-C", path, "--grace", "0s", "--yes")
    assert told(run_cli, *prune)["removed"] == []
