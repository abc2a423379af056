"""Which part of a recipe each shard compiles."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cache.recipe import Environment, Recipe, Request, encode_recipe, open_recipe, refuse
from jaxcache.warm.compiling.worker import plan_compile

BLOB = b"some bytes"
DIGEST, EMPTY = (hashlib.sha256(b).hexdigest() for b in (BLOB, b""))
BLOBS = {DIGEST: BLOB, EMPTY: b""}
ENVIRONMENT = Environment("0.12.0", "0.12.0", "cpu")


def request(number: int, seconds: float | None) -> Request:
    return Request(
        "jit_f", DIGEST, EMPTY, 0, (0,), (1,), key=f"jit_f-{number:064x}", compile_seconds=seconds
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans") / "some.recipe"


@settings(max_examples=50)
@given(seconds=st.lists(st.none() | st.floats(0, 1000), max_size=30), count=st.integers(1, 8))
def test_shards_are_balanced(place: Path, seconds: list[float | None], count: int) -> None:
    requests = tuple(request(i, s) for i, s in enumerate(seconds))
    place.write_bytes(b"".join(encode_recipe(Recipe((ENVIRONMENT,), requests), BLOBS.__getitem__)))
    with open_recipe(str(place)) as file:
        whole = plan_compile(file).jobs
        parts = [plan_compile(file, shard=(i + 1, count)).jobs for i in range(count)]
    assert [j.seconds for j in whole] == sorted((j.seconds for j in whole), reverse=True)
    names = [j.request.key for part in parts for j in part]
    assert sorted(names, key=str) == sorted((j.request.key for j in whole), key=str)
    loads = [sum(j.seconds for j in part) for part in parts]
    longest = max((j.seconds for j in whole), default=0.0)
    # Whoever got a job last had least to do before: no two parts differ by more than one job.
    assert max(loads) - min(loads) <= longest + 0.001 * len(whole)


@pytest.mark.parametrize(
    ("environment", "fields", "reason"),
    [
        ({}, {}, None),
        ({"jax_version": "0.11.2"}, {"callbacks": 1}, "host-callbacks"),
        ({}, {"callbacks": 1}, None),
        ({}, {"refusals": ("pgle",)}, "pgle"),
        ({}, {"refusals": ("custom-partitioning",)}, "custom-partitioning"),
        ({}, {"refusals": ("something-newer",)}, None),
        ({"xla_flags": ("/etc/flags",)}, {}, "flags-file"),
        ({"xla_flags": ("--xla_gpu_ptx_file=/tmp/x",)}, {}, "path-in-flags"),
        ({"xla_flags": ("--xla_dump_to=/tmp/x",)}, {}, None),
        ({"argv_flags": ("--xla_gpu_ptx_file=/tmp/x",)}, {}, "path-in-flags"),
        ({}, {"options": DIGEST}, "unreadable-options"),
    ],
)
def test_what_is_refused(
    environment: dict[str, Any], fields: dict[str, Any], reason: str | None
) -> None:
    found = refuse(
        replace(request(0, 1.0), **fields), replace(ENVIRONMENT, **environment), BLOBS.__getitem__
    )
    assert found == reason
