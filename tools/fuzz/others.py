"""Fuzz targets for recipes and for torch's caches; see :mod:`tools.fuzz.targets`."""

import hashlib
import json
import lzma
import pickle
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zstandard

from jaxcache.cache import recipe as recipes
from jaxcache.cache.recipe import RecipeError
from jaxcache.layouts.torch.graph import read_graph
from jaxcache.layouts.torch.inventory import check_shared_object
from jaxcache.layouts.torch.names import digest_of
from jaxcache.layouts.torch.pickled import PickleError, read_pickle, walk

_GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "torch" / "golden.tar.xz"
_LARGEST_SEED = 100_000


def run_recipe(data: bytes) -> None:
    """Recipes; the first byte says whether the rest is one, or a manifest with its blobs.

    In the second case header and digest are made right, which a fuzzer could not guess: the
    manifest ends at the first NUL byte, the blobs follow. What passes is written anew and read.
    """
    kind, rest = data[:1], data[1:]
    if kind == b"\x01":
        manifest, _, blobs = rest.partition(b"\0")
        rest = _frame_recipe(manifest, blobs)
    with tempfile.NamedTemporaryFile() as place:
        Path(place.name).write_bytes(rest)
        try:
            file = recipes.RecipeFile(place.name)
        except RecipeError:
            return
        with file:
            again = b"".join(recipes.encode_recipe(file.recipe, file.blob))
            expected = recipes.sort_recipe(file.recipe)
        Path(place.name).write_bytes(again)
        with recipes.RecipeFile(place.name) as file:
            assert file.recipe == expected


def _frame_recipe(manifest: bytes, blobs: bytes) -> bytes:
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(manifest + blobs)
    sizes = (len(manifest), len(manifest) + len(blobs), len(frame))
    digest = hashlib.sha256(frame).digest()
    return recipes._HEADER.pack(recipes.MAGIC, recipes.VERSION, 0, *sizes, digest) + frame


def recipe_seeds() -> Iterator[bytes]:
    """One recipe of two requests, whole and as a manifest with its blobs."""
    request = {
        "module": "jit_f",
        "bytecode": 0,
        "options": 2,
        "environment": 0,
        "device_ids": [0],
        "device_shape": [1, 1],
        "key": "0" * 64,
        "components": {"XLA flags": "0" * 64},
        "callbacks": 1,
        "refusals": ["pgle"],
        "doubts": ["branches"],
        "stubbed": True,
        "function": "f",
        "file": "a.py",
        "line": 3,
        "compile_seconds": 1.5,
        "occurrences": 2,
    }
    other = {n: request[n] for n in ("module", "options", "environment", "device_shape")}
    document = {
        "format": 1,
        "blobs": [8, 5, 7],
        "environments": [
            {
                "jax_version": "0.12.0",
                "jaxlib_version": "0.12.0",
                "platform": "cpu",
                "device_count": 8,
                "process_count": 2,
                "process_id": 1,
                "xla_flags": ["--xla_a=1"],
                "settings": {"jax_mock_gpu_topology": "1x1x1"},
                "cache_dir": "/c",
            }
        ],
        "notes": ["ended early"],
        "requests": [request, {**other, "bytecode": 1, "device_ids": [0]}],
    }
    manifest, blobs = json.dumps(document).encode(), b"bytecodeothertooptions"[:20]
    yield b"\x01" + manifest + b"\0" + blobs
    yield b"\x00" + _frame_recipe(manifest, blobs)


def run_torch(data: bytes) -> None:
    """What is read of torch's files; the first byte chooses what the rest is taken for."""
    kind, rest = data[:1], data[1:]
    if kind == b"\x03":
        check_shared_object(rest[:64], len(rest))
    elif kind == b"\x04":
        try:
            found = read_pickle(rest, max_operations=20_000)
        except PickleError:
            return
        assert sum(1 for _ in walk(found.root)) <= 4 * found.operations + 4
    else:
        tier = "fxgraph" if kind == b"\x01" else "aotautograd"
        read_graph(rest, tier, "key", digest_of(rest)).facts()


def torch_seeds() -> Iterator[bytes]:
    """Real graphs, headers of shared objects, and a pickle per protocol."""
    everything = [{"a": (1, 2.5, None), "b": {b"x"}}, [True, -(2**70)], Path("p"), "é" * 300]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield b"\x04" + pickle.dumps(everything, protocol)
    with lzma.open(_GOLDEN) as packed, tarfile.open(fileobj=packed) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is None:
                continue
            if member.name.endswith(".so"):
                yield b"\x03" + file.read(200)
            elif member.size < _LARGEST_SEED and "/fxgraph/" in member.name:
                graph = file.read()
                yield b"\x01" + graph
                yield b"\x04" + graph
            elif member.size < _LARGEST_SEED and "/aotautograd/" in member.name:
                yield b"\x00" + file.read()
