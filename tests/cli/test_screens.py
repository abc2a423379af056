"""What commands show on terminals of 60, 80 and 120 columns.

``JAXCACHE_UPDATE_GOLDEN=1`` writes ``tests/data/screens/`` anew; read it as a user would.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run_in_process
from conftest import CORPUS, REPOSITORY
from golden import NOW_NS, held_still, make_alike

from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.ledger.write import append
from jaxcache.cli import terminal
from jaxcache.store import find_store

SCREENS = REPOSITORY / "tests" / "data" / "screens"
_ROOT = "/tmp/jaxcache-screens-XXXXXXXX"
_DAY_NS = 86_400 * 10**9
_NO_JAX = "#!/bin/sh\nexit 1\n"
COMMANDS = (
    "ls",
    "ls --long --sort size:desc --limit 4",
    "ls --group-by platform",
    "show jit_mlp*",
    "show jit_mlp* --verbose",
    "stats",
    "stats -C empty",
    "verify",
    "verify --fix --dry-run",
    "prune --max-size 60kB --dry-run",
    "prune --max-entries 0 --grace 30d --dry-run",
    "seal --dry-run",
    "diff cache other",
    "doctor --python ./python",
    "doctor --verbose --python ./python",
    "explain -C cache jit_mlp jit_loss",
    "explain --churn",
    "explain --churn -C alike",
    "export x.jxb",
    "copy x.jxb new --dry-run",
    "copy x.jxb y.jxb",
    "push there --dry-run --include jit_[lm]*",
    "pull cache --dry-run -C new --include jit_[lm]*",
    "ci restore x.jxb --lookup-only --everything -C new",
    "show nothing",
    "ls --sort colour",
    "ls -C nowhere",
)


@pytest.fixture
def world() -> Iterator[Path]:
    """Caches with entries of GPU and CPU, uses, a record, and damage, below a short path."""
    root = Path(tempfile.mkdtemp(prefix="jaxcache-screens-", dir="/tmp"))
    cache = root / "cache"
    shutil.copytree(CORPUS / "0.12.0.1-cuda13-h200-zstd", cache)
    for file in sorted((CORPUS / "0.10.2-cpu-zstd").iterdir())[:3]:
        shutil.copy(file, cache)
    torn = next(cache.glob("jit_sort*-cache"))
    torn.write_bytes(torn.read_bytes()[:-100])
    shutil.copytree(cache, root / "other")
    next((root / "other").glob("jit_mlp*")).unlink()
    keys = {p.name.rpartition("-")[0].rpartition("-")[0]: p for p in cache.glob("*-cache")}
    mlp, loss = (keys[m].name.removesuffix("-cache") for m in ("jit_mlp", "jit_loss"))
    facts = {
        "compile_seconds": 41.5,
        "jax_version": "0.12.0.1",
        "jaxlib_version": "0.12.0.1",
        "device_kind": "NVIDIA H200",
        "script": "train.py",
        "function": "mlp",
    }
    store = find_store(str(cache))
    assert store is not None
    at_ns = NOW_NS - _DAY_NS
    events = [
        Event(mlp, COMPILE, at_ns, facts),
        Event(loss, COMPILE, at_ns, {"compile_seconds": 3.2}),
        Event(mlp, HIT, NOW_NS - 3600 * 10**9, {"count": 4}),
    ]
    assert append(store, events)
    make_alike(root / "alike")
    for directory in (cache, root / "other", root / "alike"):
        for number, file in enumerate(sorted(directory.glob("*-cache"))):
            at_ns = NOW_NS - number * _DAY_NS - 60 * 10**9
            os.utime(file, ns=(at_ns, at_ns))
            file.chmod(0o644)
        directory.chmod(0o755)
    (root / "empty").mkdir()
    (root / "python").write_text(_NO_JAX)
    (root / "python").chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_screens(world: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_BAR_AFTER_SECONDS", 1e9)
    env = {"PATH": os.environ["PATH"], "HOME": str(world), "LANG": "C.UTF-8", "NO_COLOR": "1"}
    env |= {
        "COLUMNS": str(width),
        "JAX_COMPILATION_CACHE_DIR": "cache",
        "TERM": "xterm",
        "TZ": "UTC",
    }
    shown = []
    for line in COMMANDS:
        with held_still():
            done = run_in_process(line.split(), env=env, cwd=world, one_stream=True)
        screen = done.stdout.replace(str(world), _ROOT)
        shown.append(f"$ jaxcache {line}\n{screen}[{done.returncode}]\n\n")
    golden = SCREENS / f"{width}.txt"
    if os.environ.get("JAXCACHE_UPDATE_GOLDEN"):
        SCREENS.mkdir(exist_ok=True)
        golden.write_text("".join(shown), "utf-8")
    assert "".join(shown) == golden.read_text("utf-8")
    too_wide = [x for x in "".join(shown).splitlines() if len(x) > width and "\t" not in x]
    assert [x for x in too_wide if len(x.split()) > 1 and not x.startswith("$")] == []
