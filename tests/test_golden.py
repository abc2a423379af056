"""What commands print over real caches is what they printed before, byte for byte."""

import difflib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden import GOLDEN, INPUTS, ZSTD, World, cases, make_world, read, record, write

from jaxcache.cache.recipe import encode_recipe, open_recipe
from jaxcache.warm.crosshost.target_profile import read_profile

COMMANDS = sorted({case.command for case in cases()})


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with make_world() as made:
        yield made


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_as_recorded(command: str, world: World) -> None:
    """To accept a change: ``JAXCACHE_UPDATE_GOLDEN=1 pytest tests/test_golden.py -k COMMAND``."""
    update = bool(os.environ.get("JAXCACHE_UPDATE_GOLDEN"))
    same_zstd = update or (GOLDEN / "zstd-version").read_text().strip() == ZSTD
    found = record(
        world, (c for c in cases() if c.command == command and (same_zstd or not c.packs))
    )
    if update:
        write(command, found)
        (GOLDEN / "zstd-version").write_text(f"{ZSTD}\n")
        return
    wanted = {name: read(command).get(name) for name in found}
    if found != wanted:
        pytest.fail(_difference(wanted, found))


def test_a_recipe_and_a_profile_of_before_give_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "again.recipe"
    with open_recipe(str(INPUTS / "some.recipe")) as old:
        path.write_bytes(b"".join(encode_recipe(old.recipe, old.blob)))
        with open_recipe(str(path)) as new:
            assert (new.recipe, new.digest) == (old.recipe, old.digest)
    if (GOLDEN / "zstd-version").read_text().strip() == ZSTD:
        assert path.read_bytes() == (INPUTS / "some.recipe").read_bytes()
    profile = INPUTS / "h200.json"
    assert read_profile(str(profile)).to_bytes() == profile.read_bytes()


def _difference(wanted: object, found: object) -> str:
    """What changed, a line a field, for a person to judge."""
    sides = [
        json.dumps(side, indent=1, ensure_ascii=False, sort_keys=True)
        .replace("\\n", "\n")
        .replace(', \\"', ',\n\\"')
        .splitlines()
        for side in (wanted, found)
    ]
    return "\n".join(list(difflib.unified_diff(*sides, "recorded", "now", n=2, lineterm=""))[:200])
