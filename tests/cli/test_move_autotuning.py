"""Autotuning results travel in every way in which entries move, and kernel caches in none."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bundling import forged
from conftest import RunCli
from ways import OLD_NS, WAYS, old_copy

from jaxcache.core.names import AUTOTUNE_DIR, KERNEL_CACHE


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "there")


@pytest.fixture
def tuned(there: Path) -> Path:
    """A cache with autotuning results of both formats, and everything that must not travel."""
    device = "a4baa03864db7cfb"
    files = {
        f"{AUTOTUNE_DIR}/QUJD.textproto": b"tile",
        f"{AUTOTUNE_DIR}/{device}/{'1' * 32}.pb": b"tile",
        f"{AUTOTUNE_DIR}/{device}/0.12.0/{'2' * 32}.pb": b"tile",
        f"{AUTOTUNE_DIR}/empty.textproto": b"",
        f"{AUTOTUNE_DIR}/tmp_results_123": b"half",
        f"{AUTOTUNE_DIR}/{device}/.tmp_{'1' * 32}_7_9": b"half",
        f"{AUTOTUNE_DIR}/evil.sh": b"rm",
        KERNEL_CACHE: b"kernels",
    }
    for name, data in files.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(data)
        os.utime(there / name, ns=(OLD_NS, OLD_NS))
    young = there / AUTOTUNE_DIR / "young.textproto"
    young.write_bytes(b"tile")
    return there


@pytest.mark.parametrize("way", [*WAYS, "import"])
def test_autotuning_results_of_both_formats_travel_and_nothing_else(
    run_cli: RunCli, tuned: Path, tmp_path: Path, way: str
) -> None:
    here, bundle = tmp_path / "here", tmp_path / "b.jxb"
    words = WAYS[way](tuned, here) if way in WAYS else ("import", bundle, "-C", here)
    if way == "import":
        assert run_cli("export", bundle, "-C", tuned).returncode == 0
    assert run_cli(*words).returncode == 0
    if Path(f"{here}.jxb").exists():
        assert run_cli("import", f"{here}.jxb", "-C", here).returncode == 0
    found = {
        str(p.relative_to(here))
        for p in here.rglob("*")
        if p.is_file() and (AUTOTUNE_DIR in str(p) or p.name == KERNEL_CACHE)
    }
    device = f"{AUTOTUNE_DIR}/a4baa03864db7cfb"
    assert found == {
        f"{AUTOTUNE_DIR}/QUJD.textproto",
        f"{device}/{'1' * 32}.pb",
        f"{device}/0.12.0/{'2' * 32}.pb",
    }


def test_an_old_bundle_keeps_the_kernel_cache_to_itself_and_says_why(
    run_cli: RunCli, tmp_path: Path
) -> None:
    def with_kernels(document: dict[str, Any]) -> None:
        document["entries"] = []
        document["files"] = [
            {
                "name": KERNEL_CACHE,
                "size_bytes": 7,
                "sha256": "239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5",
                "created_ns": OLD_NS,
            }
        ]

    (tmp_path / "old.jxb").write_bytes(forged(with_kernels))
    done = run_cli("import", tmp_path / "old.jxb", "-C", tmp_path / "here", "--json")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)["entries"]
    assert (entry["action"], "any GPU" in entry["detail"]) == ("left", True)
    assert not (tmp_path / "here" / KERNEL_CACHE).exists()
