"""The file of a recipe: what is written is read, and nothing else is believed."""

import hashlib
import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

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

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
FLAGS = st.lists(st.from_regex(r"--xla_[a-z]{1,9}=[a-z0-9]{1,5}", fullmatch=True), max_size=3)
DIGEST = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)

environments = st.builds(
    Environment,
    jax_version=TEXT,
    jaxlib_version=TEXT,
    platform=st.sampled_from(["cpu", "gpu", "tpu"]),
    device_count=st.integers(0, 4096),
    process_count=st.just(4),
    process_id=st.integers(0, 3),
    xla_flags=FLAGS.map(tuple),
    argv_flags=FLAGS.map(tuple),
    settings=st.dictionaries(st.just("jax_mock_gpu_topology"), st.just("1x2x3")),
    cache_dir=st.none() | TEXT,
    platform_version=st.none() | TEXT,
)


@st.composite
def requests(draw: st.DrawFn, blobs: list[str], count: int) -> Request:
    module = draw(st.from_regex(r"jit_[a-z_.<>]{1,12}", fullmatch=True))
    ids = draw(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=8))
    return Request(
        module=module,
        bytecode=draw(st.sampled_from(blobs)),
        options=draw(st.sampled_from(blobs)),
        environment=draw(st.integers(0, count - 1)),
        device_ids=tuple(ids),
        device_shape=draw(st.sampled_from([(len(ids),), (1, len(ids))])),
        executable_device_ids=draw(st.none() | st.just(tuple(reversed(ids)))),
        key=draw(st.none() | DIGEST.map(lambda digest: f"{module}-{digest}")),
        components=draw(st.dictionaries(TEXT, DIGEST, max_size=3)),
        callbacks=draw(st.integers(0, 3)),
        refusals=draw(st.sampled_from([(), ("pgle",)])),
        doubts=draw(st.lists(TEXT, max_size=2).map(tuple)),
        stubbed=draw(st.booleans()),
        function=draw(st.none() | TEXT),
        line=draw(st.none() | st.integers(0, 99999)),
        compile_seconds=draw(st.none() | st.floats(0, 1e6)),
        occurrences=draw(st.integers(1, 100)),
    )


@st.composite
def recipes(draw: st.DrawFn) -> tuple[Recipe, dict[str, bytes]]:
    found = draw(st.lists(st.binary(max_size=200), min_size=1, max_size=5, unique=True))
    blobs = {hashlib.sha256(b).hexdigest(): b for b in found}
    places = draw(st.lists(environments, min_size=1, max_size=3, unique_by=repr))
    chosen = draw(st.lists(requests(list(blobs), len(places)), max_size=6))
    return Recipe(tuple(places), tuple(chosen), tuple(draw(st.lists(TEXT, max_size=2)))), blobs


def save(path: Path, recipe: Recipe, blobs: dict[str, bytes]) -> bytes:
    data = b"".join(encode_recipe(recipe, blobs.__getitem__))
    path.write_bytes(data)
    return data


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes") / "some.recipe"


@given(made=recipes(), seed=st.integers())
def test_what_is_written_is_read_and_the_order_of_recording_leaves_no_trace(
    place: Path, made: tuple[Recipe, dict[str, bytes]], seed: int
) -> None:
    recipe, blobs = made
    data = save(place, recipe, blobs)
    assert is_recipe(str(place))
    with open_recipe(str(place)) as found:
        assert found.recipe == sort_recipe(recipe)
        assert found.digest == hashlib.sha256(data[HEADER_BYTES:]).hexdigest()
        for request in found.recipe.requests:
            assert found.blob(request.bytecode) == blobs[request.bytecode]
            assert found.blob(request.options) == blobs[request.options]
    shuffled = list(recipe.requests)
    random.Random(seed).shuffle(shuffled)
    last = len(recipe.environments) - 1
    turned = replace(
        recipe,
        environments=recipe.environments[::-1],
        requests=tuple(replace(r, environment=last - r.environment) for r in shuffled),
    )
    assert save(place, turned, blobs) == data


def small() -> tuple[Recipe, dict[str, bytes]]:
    module, options = b"module" * 50, b"options"
    digests = [hashlib.sha256(b).hexdigest() for b in (module, options)]
    request = Request("jit_f", *digests, 0, (0,), (1,), key="jit_f-" + "0" * 64)
    return Recipe((Environment("1", "1", "cpu"),), (request,)), dict(
        zip(digests, (module, options), strict=True)
    )


def test_every_truncation_and_every_flipped_byte_is_noticed(place: Path) -> None:
    data = save(place, *small())
    for end in range(len(data)):
        place.write_bytes(data[:end])
        with pytest.raises(RecipeError):
            open_recipe(str(place))
    for at in range(len(data)):
        place.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with pytest.raises(RecipeError):
            open_recipe(str(place))
    place.write_bytes(data + b"\0")
    with pytest.raises(RecipeError, match="after its end"):
        open_recipe(str(place))


def test_a_newer_version_is_named(place: Path) -> None:
    data = save(place, *small())
    place.write_bytes(data[:8] + b"\x02" + data[9:])
    with pytest.raises(RecipeError, match="version 2") as caught:
        open_recipe(str(place))
    assert caught.value.code == "unknown-recipe"


def forge(place: Path, data: bytes, rest: bytes = b"", **header: int) -> None:
    """Write a file whose digest is right, whatever it says."""
    content = data + rest
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    values = {"manifest": len(data), "content": len(content), **header}
    digest = hashlib.sha256(frame).digest()
    place.write_bytes(
        struct.pack(
            "<8sHHIQQ32s", MAGIC, 1, 0, values["manifest"], values["content"], len(frame), digest
        )
        + frame
    )


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


def test_the_forger_can_make_a_good_one(place: Path) -> None:
    forge(place, json.dumps(MANIFEST).encode(), b"abc")
    with open_recipe(str(place)) as found:
        assert found.recipe.requests[0].key == "jit_f-" + "0" * 64


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


def test_other_files_are_no_recipes(place: Path, tmp_path: Path) -> None:
    place.write_bytes(b"#!/bin/sh\n")
    assert not is_recipe(str(place))
    with pytest.raises(RecipeError) as caught:
        open_recipe(str(place))
    assert caught.value.code == "not-a-recipe"
    with pytest.raises(RecipeError) as caught:
        open_recipe(str(tmp_path / "missing"))
    assert caught.value.code == "no-recipe"
