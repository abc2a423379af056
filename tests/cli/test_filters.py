"""``--filter`` wherever entries are chosen: one selection, that of ``ls``."""

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import zstandard
from conftest import CORPUS, RunCli

DAY = 86400
FILTER = ("--filter", "size>4kB", "--filter", "platform=cpu")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    made = Path(shutil.copytree(CORPUS / "0.10.2-cpu-zstd", tmp_path / "cache"))
    for path in made.iterdir():
        os.utime(path, (time.time() - 9 * DAY,) * 2)
    return made


@pytest.fixture
def chosen(run_cli: RunCli, cache: Path) -> set[str]:
    found = set(run_cli("ls", "-q", "-C", cache, *FILTER).stdout.split())
    assert 0 < len(found) < 7
    return found


def keys(cache: Path) -> set[str]:
    return {p.name.removesuffix("-cache") for p in cache.glob("*-cache")}


def test_a_damage_that_only_decoding_shows(run_cli: RunCli, cache: Path) -> None:
    damaged = next(cache.glob("jit_mlp*-cache"))
    unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(damaged.read_bytes())
    payload = bytearray(unpacked)
    payload[40:4000:3] = bytes(len(payload[40:4000:3]))
    damaged.write_bytes(zstandard.ZstdCompressor().compress(bytes(payload)))
    key = damaged.name.removesuffix("-cache")
    for words in (("ls",), ("rm", "-n")):
        done = run_cli(*words, "-C", cache, "--filter", "problem=bad-payload", "-q")
        assert (words, done.stdout.split()) == (words, [key])


def test_prune_says_what_keeps_an_entry(run_cli: RunCli, cache: Path) -> None:
    limits = ("--older-than", "1d", "-n")
    done = run_cli("prune", "-C", cache, "--filter", "size>4kB", *limits)
    assert re.search(r"not removed: \d entries are outside --filter$", done.stderr, re.MULTILINE)
    done = run_cli("prune", "-C", cache, "--filter", "size>4kB", "--keep", "jit_mlp", *limits)
    assert re.search(r"entries are kept by --keep or outside --filter$", done.stderr, re.MULTILINE)
    done = run_cli("prune", "-C", cache, "--keep", "jit_mlp", *limits)
    assert re.search(r"is kept by --keep$", done.stderr, re.MULTILINE), done.stderr


def test_removal(run_cli: RunCli, cache: Path, chosen: set[str]) -> None:
    everything = keys(cache)
    limits = ("--max-entries", "0", "--yes")
    done = run_cli("prune", "-C", cache, *FILTER, *limits, "-n", "-q")
    assert set(done.stdout.split()) == chosen
    done = run_cli("rm", "-C", cache, *FILTER, "-n", "-q")
    assert set(done.stdout.split()) == chosen
    one = min(k for k in chosen if k.startswith("jit_mlp"))
    done = run_cli("rm", "-C", cache, *FILTER, "jit_mlp", "jit_loss", "--yes", "-q")
    assert done.stdout.split() == [one]
    assert keys(cache) == everything - {one}
    assert run_cli("rm", "-C", cache, *FILTER, "--yes").returncode == 0
    assert keys(cache) == everything - chosen
    assert run_cli("prune", "-C", cache, *FILTER, *limits).returncode in (0, 3)
    assert keys(cache) == everything - chosen
    refused = run_cli("rm", "-C", cache, "--yes")
    assert (refused.returncode, "give a KEY, or --filter" in refused.stderr) == (2, True)


def test_verify_and_seal(run_cli: RunCli, cache: Path, chosen: set[str]) -> None:
    damaged = cache / f"{min(keys(cache) - chosen)}-cache"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    done = run_cli("verify", "-C", cache, *FILTER, "--json")
    assert (done.returncode, json.loads(done.stdout)["checked"]) == (0, len(chosen))
    assert run_cli("verify", "-C", cache, "--json").returncode == 1
    refused = run_cli("verify", "-C", cache, "--restore", *FILTER)
    assert refused.returncode == 2
    done = run_cli("seal", "-C", cache, *FILTER, "-q")
    assert set(done.stdout.split()) == chosen


@pytest.mark.parametrize(
    "words",
    ["push there -C cache", "pull cache -C there", "copy cache there", "export there -C cache"],
)
def test_moves(run_cli: RunCli, cache: Path, chosen: set[str], words: str, tmp_path: Path) -> None:
    done = run_cli(*words.split(), *FILTER, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(run_cli("ls", "-q", "-C", tmp_path / "there").stdout.split()) == chosen


def test_a_bad_filter_is_refused_before_any_work(run_cli: RunCli, cache: Path) -> None:
    for words in (("prune", "--max-entries", "0"), ("rm",), ("verify",), ("seal",), ("push", "x")):
        refused = run_cli(*words, "-C", cache, "--filter", "colour=red", "-n")
        assert (refused.returncode, "[bad-filter]" in refused.stderr) == (2, True), words
    assert "[bad-filter]" in run_cli("ls", "-C", cache, "--filter", "compile>nan").stderr
