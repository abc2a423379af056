"""Bundles and recipes: the same inputs give the bytes that they gave before, and those are read.

``JAXCACHE_UPDATE_GOLDEN=1`` writes ``tests/data/containers`` anew, which a change of a format needs
and nothing else does.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from bundling import bring, contents
from conftest import CORPUS

from jaxcache.cache.move.bundle_file import bundle_bytes, write_stream
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.recipe import Environment, Recipe, Request, encode_recipe, open_recipe
from jaxcache.entry import zstd
from jaxcache.store.local import LocalStore

GOLDEN = CORPUS.parent / "containers"
BUNDLE, RECIPE, DIGESTS = GOLDEN / "cache.jxb", GOLDEN / "run.recipe", GOLDEN / "digests.json"
SMALL = "0.4.38-cpu-zstd"
CACHES = (
    SMALL,
    "0.4.30-cpu-zstd",
    "0.4.38-cpu-zlib",
    "0.12.0.1-cpu-zstd-maxsize",
    "0.10.2-cuda13-h200-kernelcache",
)
BLOBS = {hashlib.sha256(b).hexdigest(): b for b in (b"module " * 999, b"options", bytes(70_000))}


def bundle_of(name: str, directory: Path, level: int) -> bytes:
    cache = Path(shutil.copytree(CORPUS / name, directory / f"{name}-{level}"))
    for path in cache.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))
    store = LocalStore(cache)
    exported = write_stream(store, plan_export(store, now_ns=0), level=level)
    with exported.stream:
        return b"".join(bundle_bytes(exported))


def recipe_bytes() -> bytes:
    first, second, third = BLOBS
    environment = Environment("0.10.2", "0.10.2", "cpu", 8, xla_flags=("--xla_x=1",))
    requests = (
        Request("jit_f", first, second, 0, (0,), (1,), key=f"jit_f-{'a' * 64}", line=3),
        Request("jit_g", third, second, 0, (1, 0), (1, 2), compile_seconds=1.5, doubts=("x",)),
    )
    return b"".join(encode_recipe(Recipe((environment,), requests, ("a note",)), BLOBS.__getitem__))


def test_the_same_inputs_give_the_bytes_of_before(tmp_path: Path) -> None:
    made = {f"{c} {n}": bundle_of(c, tmp_path, n) for c in CACHES for n in (1, 12, 19)}
    made["recipe"] = recipe_bytes()
    found = {name: hashlib.sha256(data).hexdigest() for name, data in made.items()}
    found["zstd"] = zstd.library.zstd_version
    if os.environ.get("JAXCACHE_UPDATE_GOLDEN"):
        BUNDLE.write_bytes(made[f"{SMALL} 12"])
        RECIPE.write_bytes(made["recipe"])
        DIGESTS.write_text(json.dumps(found, indent=1) + "\n")
    before = json.loads(DIGESTS.read_text())
    if before["zstd"] != found["zstd"]:
        pytest.skip("another zstd compresses to other bytes")
    assert found == before
    assert made[f"{SMALL} 12"] == BUNDLE.read_bytes()
    assert made["recipe"] == RECIPE.read_bytes()


def test_what_was_written_before_is_read(tmp_path: Path) -> None:
    bring(BUNDLE.read_bytes(), tmp_path / "cache")
    assert contents(tmp_path / "cache") == contents(CORPUS / SMALL)
    with open_recipe(str(RECIPE)) as file:
        assert [r.module for r in file.recipe.requests] == ["jit_f", "jit_g"]
        assert {file.blob(r.bytecode) for r in file.recipe.requests} <= set(BLOBS.values())
