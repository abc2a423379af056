"""The file of a recipe: what is written is read, and nothing else is believed."""

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from jaxcache.cache.recipe import (
    HEADER_BYTES,
    MAGIC,
    Environment,
    Recipe,
    RecipeError,
    Request,
    encode_recipe,
    is_recipe,
    open_recipe,
    sort_recipe,
)

BLOBS = {hashlib.sha256(b).hexdigest(): b for b in (b"", b"module" * 50, b"options")}
EMPTY, MODULE, OPTIONS = BLOBS
#: Nothing but what must be there, and everything.
ENVIRONMENTS = (
    Environment("1", "1", "cpu"),
    Environment(
        "0.12.0",
        "ü\0",
        "tpu",
        device_count=4096,
        process_count=4,
        process_id=3,
        xla_flags=("--xla_b=1", "--xla_a=true"),
        argv_flags=("--xla_c=x",),
        settings={"jax_mock_gpu_topology": "1x2x3"},
        cache_dir="/c",
        platform_version="PJRT\nTFRT",
    ),
)
LEAST = Request("jit_f", MODULE, OPTIONS, 0, (0,), (1,))
MOST = Request(
    *("jit_<lambda>", EMPTY, MODULE, 1, (3, 1 << 30), (1, 2)),
    executable_device_ids=(1 << 30, 3),
    key=f"jit_<lambda>-{'ab' * 32}",
    components={"computation": "cd" * 32, "ü": "ef" * 32},
    callbacks=3,
    refusals=("pgle",),
    doubts=("it asks for the platform", ""),
    stubbed=True,
    function="f.<locals>.g",
    file="/u/train.py",
    line=99999,
    compile_seconds=0.5,
    occurrences=100,
)


SMALL = Recipe(ENVIRONMENTS[:1], (LEAST,))


def save(path: Path, recipe: Recipe, blobs: dict[str, bytes]) -> bytes:
    data = b"".join(encode_recipe(recipe, blobs.__getitem__))
    path.write_bytes(data)
    return data


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes") / "some.recipe"


def test_what_is_written_is_read_and_the_order_of_recording_leaves_no_trace(place: Path) -> None:
    requests = (LEAST, MOST, replace(LEAST, environment=1), replace(MOST, key=None))
    recipe = Recipe(ENVIRONMENTS, requests, ("a note", "ü"))
    data = save(place, recipe, BLOBS)
    assert is_recipe(str(place))
    with open_recipe(str(place)) as found:
        assert found.recipe == sort_recipe(recipe)
        assert found.digest == hashlib.sha256(data[HEADER_BYTES:]).hexdigest()
        for request in found.recipe.requests:
            assert found.blob(request.bytecode) == BLOBS[request.bytecode]
            assert found.blob(request.options) == BLOBS[request.options]
    for shuffled in (requests[::-1], requests[1:] + requests[:1]):
        turned = replace(
            recipe,
            environments=ENVIRONMENTS[::-1],
            requests=tuple(replace(r, environment=1 - r.environment) for r in shuffled),
        )
        assert save(place, turned, BLOBS) == data


def test_every_truncation_and_every_flipped_byte_is_noticed(place: Path) -> None:
    data = save(place, SMALL, BLOBS)
    cut = (data[:end] for end in range(len(data)))
    flipped = (data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :] for at in range(len(data)))
    for broken in (*cut, *flipped):
        place.write_bytes(broken)
        with pytest.raises(RecipeError):
            open_recipe(str(place))
    place.write_bytes(data + b"\0")
    with pytest.raises(RecipeError, match="after its end"):
        open_recipe(str(place))


def forge(place: Path, data: bytes, rest: bytes = b"", **header: int) -> None:
    """Write a file whose digest is right, whatever it says."""
    content = data + rest
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    values = {"manifest": len(data), "content": len(content), **header}
    lengths = values["manifest"], values["content"], len(frame)
    digest = hashlib.sha256(frame).digest()
    place.write_bytes(struct.pack("<8sHHIQQ32s", MAGIC, 1, 0, *lengths, digest) + frame)


REQUEST = {
    "module": "jit_f",
    "bytecode": 0,
    "options": 0,
    "environment": 0,
    "device_ids": [0],
    "device_shape": [1],
    "key": "0" * 64,
}
ENVIRONMENT = {"jax_version": "1", "jaxlib_version": "1", "platform": "cpu"}
MANIFEST = {
    "format": 1,
    "blobs": [3],
    "environments": [ENVIRONMENT],
    "requests": [REQUEST],
    "notes": [],
}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"blobs": [4]},
        {"blobs": [-1]},
        {"blobs": [2]},
        {"blobs": "abc"},
        {"environments": []},
        {"environments": [ENVIRONMENT | {"settings": {"jax_dump_ir_to": "/home"}}]},
        {"environments": [ENVIRONMENT | {"settings": {"jax_mock_gpu_topology": 1}}]},
        {"environments": [ENVIRONMENT | {"xla_flags": ["--xla_dump_to=/ --more"]}]},
        {"environments": [ENVIRONMENT | {"process_id": 1}]},
        {"requests": [REQUEST | {"bytecode": 1}]},
        {"requests": [REQUEST | {"key": "../../etc/passwd"}]},
        {"requests": [REQUEST | {"key": "a/b-" + "0" * 64}]},
        {"requests": [REQUEST | {"device_shape": [2]}]},
        {"requests": [REQUEST | {"device_shape": [1 << 19, 1 << 19], "device_ids": [0]}]},
        {"requests": [REQUEST | {"device_ids": []}]},
        {"requests": [REQUEST | {"compile_seconds": float("nan")}]},
        {"requests": [REQUEST | {"compile_seconds": 10**400}]},
        {"requests": [REQUEST | {"occurrences": True}]},
        {"requests": [REQUEST | {"module": "\ud800"}]},
        {"requests": [REQUEST | {"components": {"computation": 5}}]},
        {"requests": [[]]},
        {"notes": [{}]},
        *(b"[" * 100_000, b"null", b"{}", b"\xff", b"1" * 5000),
    ],
)
def test_a_hostile_manifest_is_refused(place: Path, change: dict[str, Any] | bytes) -> None:
    forge(place, json.dumps(MANIFEST).encode(), b"abc")
    with open_recipe(str(place)) as sound:
        assert sound.recipe.requests[0].key == "jit_f-" + "0" * 64
    text = change if isinstance(change, bytes) else json.dumps(MANIFEST | change).encode()
    forge(place, text, b"abc")
    with pytest.raises(RecipeError):
        open_recipe(str(place))


def test_a_bomb_is_refused_before_it_is_unpacked(place: Path) -> None:
    forge(place, b"{}", content=1 << 60)
    with pytest.raises(RecipeError, match="more than any recipe"):
        open_recipe(str(place))
    forge(place, b" " * (64 << 20), manifest=2, content=2)
    with pytest.raises(RecipeError, match=r"more than it announces|cannot hold"):
        open_recipe(str(place))


def test_no_recipe_another_file_and_a_newer_recipe_are_told_apart(place: Path) -> None:
    data = save(place, SMALL, BLOBS)
    newer = data[:8] + b"\x02" + data[9:]
    for content, code in ((newer, "unknown-recipe"), (b"#!/bin/sh\n", "not-a-recipe")):
        place.write_bytes(content)
        with pytest.raises(RecipeError) as caught:
            open_recipe(str(place))
        assert (caught.value.code, is_recipe(str(place))) == (code, content == newer)
    with pytest.raises(RecipeError) as caught:
        open_recipe(f"{place}.none")
    assert (caught.value.code, is_recipe(f"{place}.none")) == ("no-recipe", False)
