"""What commands print over real caches is what they printed before, byte for byte."""

import difflib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from golden import GOLDEN, INPUTS, ZSTD, Case, World, cases, make_world, read, record, write
from terminal import columns

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


SCREENS = (
    "ls -C odd",
    "ls -C 0.12.0.1-cuda13-h200-zstd --long --sort size:desc --limit 4",
    "ls -C odd --group-by module",
    "show jit_mlp* -C odd",
    "show jit_mlp* -C 0.12.0.1-cuda13-h200-zstd --verbose",
    "stats -C odd",
    "stats -C home",
    "verify -C odd",
    "prune --max-size 30kB --dry-run -C odd",
    "prune --max-entries 0 --grace 30d --dry-run -C odd",
    "seal --dry-run -C odd",
    "diff 0.12.0.1-cpu-zstd odd",
    "doctor --verbose --python /nowhere/python -C odd",
    "explain -C odd jit_mlp jit_loss",
    "explain --churn -C alike",
    "export x.jxb -C alike",
    "copy small.jxb new --dry-run",
    "push there --dry-run --include jit_[lm]* -C odd",
    "pull odd --dry-run -C new --include jit_[lm]*",
    "ci restore small.jxb --lookup-only --everything -C new",
    "show nothing -C odd",
    "ls --sort colour -C odd",
    "ls -C nowhere",
)


def fits(line: str, width: int) -> bool:
    """Whether it is in its place; a key, a path or a command is kept whole, to be copied."""
    longest = max(map(columns, line.split()), default=0)
    copied = "\t" in line or line.startswith(("  fix", "  hint:"))
    return columns(line) <= width or longest > width // 2 or copied


@pytest.mark.parametrize("width", [60, 80, 120])
def test_screens(world: World, width: int) -> None:
    """``JAXCACHE_UPDATE_GOLDEN=1`` writes ``tests/data/screens/``; read it as a user would."""
    shown = ""
    for line in SCREENS:
        found = world.run(Case(tuple(line.split())), "tsv", width)
        shown += f"$ jaxcache {line}\n{found['out']}[{found['code']}]\n\n"
    recorded = REPOSITORY / "tests" / "data" / "screens" / f"{width}.txt"
    if os.environ.get("JAXCACHE_UPDATE_GOLDEN"):
        recorded.write_text(shown, "utf-8")
    assert shown == recorded.read_text("utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", shown)
    lines = [line for line in shown.splitlines() if not line.startswith("$")]
    assert [line for line in lines if not fits(line, width)] == []


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
