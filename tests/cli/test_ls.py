"""``jaxcache ls`` as a person and as a script meets it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import RunCli, clean_environment
from processes import sh
from ways import names, old_copy

HASH = "ab" * 32


def listed(run_cli: RunCli, cache: Path, *args: str) -> dict[str, Any]:
    done = run_cli("ls", "--json", "-C", cache, *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def cache(capped_cache: Path) -> Path:
    return capped_cache


def test_seconds_are_those_of_the_header(run_cli: RunCli, tmp_path: Path) -> None:
    content = (754).to_bytes(4, "big") + os.urandom(300_000)  # a first block beyond 16 KiB
    path = tmp_path / f"jit_slow-{HASH}-cache"
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))
    (entry,) = listed(run_cli, tmp_path)["entries"]
    assert entry["compile_seconds"] == 754.0
    assert entry["payload_bytes"] == 300_000
    assert entry["sealed"] is True


def test_keys_select(run_cli: RunCli, cache: Path) -> None:
    everything = [e["key"] for e in listed(run_cli, cache)["entries"]]
    mlp = next(k for k in everything if k.startswith("jit_mlp"))
    for argument in (mlp, mlp[:-50], mlp.rsplit("-")[-1][:10], "jit_m*", "jit_ml?"):
        assert [e["key"] for e in listed(run_cli, cache, argument)["entries"]] == [mlp]
    done = run_cli("ls", "-C", cache, "jit_")
    assert (done.returncode, "ambiguous-key" in done.stderr) == (1, True)
    assert "jit_*" in done.stderr
    assert [e["key"] for e in listed(run_cli, cache, "jit_mlp")["entries"]] == [mlp]
    done = run_cli("ls", "-C", cache, "nothing")
    assert (done.returncode, "no-match" in done.stderr) == (1, True)


def test_nothing_strange_in_the_directory_stops_the_listing(run_cli: RunCli, cache: Path) -> None:
    (cache / f"jit_empty-{HASH}-cache").write_bytes(b"")
    (cache / f"jit_text-{HASH}-cache").write_text("not an executable")
    whole = next(cache.glob("jit_mlp*-cache")).read_bytes()
    (cache / f"jit_cut-{HASH}-cache").write_bytes(whole[:100])
    (cache / f"jit_folder-{HASH}-cache").mkdir()
    (cache / f"jit_link-{HASH}-cache").symlink_to(cache / f"jit_cut-{HASH}-cache")
    (cache / f"jit_loop-{HASH}-cache").symlink_to(f"jit_loop-{HASH}-cache")
    os.mkfifo(cache / f"jit_fifo-{HASH}-cache")
    (cache / f"jit_gone-{HASH}-atime").write_bytes(bytes(8))
    (cache / "_temp_jit_f").write_bytes(b"")
    (cache / "README").write_text("hello")
    odd = os.fsencode(cache) + b"/jit_\xff\n\x1b[31m-" + HASH.encode() + b"-cache"
    with open(odd, "wb") as file:
        file.write(whole)
    document = listed(run_cli, cache)
    problems = {(p["file"].split("-")[0], p["kind"]) for p in document["problems"]}
    assert problems == {
        ("jit_empty", "empty"),
        ("jit_text", "bad-codec"),
        ("jit_cut", "truncated"),
        ("jit_folder", "stray-file"),
        ("jit_link", "unreadable"),
        ("jit_loop", "unreadable"),
        ("jit_fifo", "stray-file"),
        ("jit_gone", "orphan-atime"),
        ("_temp_jit_f", "temp-file"),
        ("README", "stray-file"),
        ("jit_\\xff\\x0a\\x1b[31m", "module-mismatch"),
    }
    assert len(document["entries"]) == 7 + 6
    assert any(e["module"] == "jit_\\xff\\x0a\\x1b[31m" for e in document["entries"])
    done = run_cli("ls", "-C", cache)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 13
    assert "verify" in done.stderr


def test_unreadable_files_are_findings_and_directories_errors(cache: Path, tmp_path: Path) -> None:
    # As another user where the tests run as root, who may read everything; after a first run and
    # a first failure, because that user may not be able to import either.
    next(cache.glob("jit_mlp*-cache")).chmod(0)
    script = (
        "import os, sys; from jaxcache.cli.main import run\n"
        f"cache = {str(cache)!r}\n"
        "run(['ls', '--json', '-C', cache]); print()\n"
        "run(['ls', '-C', cache + '/none'])\n"
        "if os.geteuid() == 0: os.setegid(65534); os.seteuid(65534)\n"
        "run(['ls', '--json', '-C', cache])\n"
        "if os.getuid() == 0: os.seteuid(0)\n"
        "os.chmod(cache, 0)\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "sys.exit(run(['ls', '-C', cache]))"
    )
    temp = Path(tempfile.gettempdir())
    for directory in (cache, *(p for p in cache.parents if temp in p.parents)):
        directory.chmod(0o755)
    done = sh([sys.executable, "-c", script], env=clean_environment(tmp_path))
    cache.chmod(0o700)
    assert done.returncode == 10, done.stderr
    problems = json.loads(done.stdout.splitlines()[-1])["problems"]
    assert [(p["kind"], p["detail"]) for p in problems] == [("unreadable", "permission denied")]
    assert "permission-denied" in done.stderr
    # ``push`` and ``pull`` name the directory without an option.
    assert "hint: ask its owner, or name another directory\n" in done.stderr


def test_a_reader_that_leaves_early_is_no_error(cache: Path, tmp_path: Path) -> None:
    for n in range(300):
        shutil.copy(next(cache.glob("jit_mlp*-cache")), cache / f"jit_{'m' * 90}-{n:064x}-cache")
    for command in ("ls", "ls --json", "stats"):
        child = subprocess.Popen(
            [sys.executable, "-m", "jaxcache", *command.split(), "-C", str(cache)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(tmp_path),
        )
        assert child.stdout and child.stderr
        child.stdout.close()
        assert child.stderr.read() == b""
        child.stderr.close()
        assert child.wait() == 0


# ``--filter`` wherever entries are chosen: one selection, that of ``ls``.


FILTER = ("--filter", "size>4kB", "--filter", "platform=cpu")


@pytest.fixture
def old_cache(tmp_path: Path) -> Path:
    return old_copy(tmp_path / "cache")


@pytest.fixture
def chosen(run_cli: RunCli, old_cache: Path) -> set[str]:
    found = set(run_cli("ls", "-q", "-C", old_cache, *FILTER).stdout.split())
    assert 0 < len(found) < 7
    return found


def keys_in(cache: Path) -> set[str]:
    return {name.removesuffix("-cache") for name in names(cache)}


def test_a_damage_that_only_decoding_shows(run_cli: RunCli, old_cache: Path) -> None:
    damaged = next(old_cache.glob("jit_mlp*-cache"))
    unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(damaged.read_bytes())
    payload = bytearray(unpacked)
    payload[40:4000:3] = bytes(len(payload[40:4000:3]))
    damaged.write_bytes(zstandard.ZstdCompressor().compress(bytes(payload)))
    key = damaged.name.removesuffix("-cache")
    for words in (("ls",), ("rm", "-n")):
        done = run_cli(*words, "-C", old_cache, "--filter", "problem=bad-payload", "-q")
        assert (words, done.stdout.split()) == (words, [key])


def test_removal(run_cli: RunCli, old_cache: Path, chosen: set[str]) -> None:
    everything = keys_in(old_cache)
    limits = ("--max-entries", "0", "--yes")
    done = run_cli("prune", "-C", old_cache, *FILTER, *limits, "-n", "-q")
    assert set(done.stdout.split()) == chosen
    done = run_cli("rm", "-C", old_cache, *FILTER, "-n", "-q")
    assert set(done.stdout.split()) == chosen
    one = min(k for k in chosen if k.startswith("jit_mlp"))
    done = run_cli("rm", "-C", old_cache, *FILTER, "jit_mlp", "jit_loss", "--yes", "-q")
    assert done.stdout.split() == [one]
    assert keys_in(old_cache) == everything - {one}
    assert run_cli("rm", "-C", old_cache, *FILTER, "--yes").returncode == 0
    assert keys_in(old_cache) == everything - chosen
    assert run_cli("prune", "-C", old_cache, *FILTER, *limits).returncode in (0, 3)
    assert keys_in(old_cache) == everything - chosen
    refused = run_cli("rm", "-C", old_cache, "--yes")
    assert (refused.returncode, "give a KEY, or --filter" in refused.stderr) == (2, True)


def test_verify_and_seal(run_cli: RunCli, old_cache: Path, chosen: set[str]) -> None:
    damaged = old_cache / f"{min(keys_in(old_cache) - chosen)}-cache"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    done = run_cli("verify", "-C", old_cache, *FILTER, "--json")
    assert (done.returncode, json.loads(done.stdout)["checked"]) == (0, len(chosen))
    assert run_cli("verify", "-C", old_cache, "--json").returncode == 1
    refused = run_cli("verify", "-C", old_cache, "--restore", *FILTER)
    assert refused.returncode == 2
    done = run_cli("seal", "-C", old_cache, *FILTER, "-q")
    assert set(done.stdout.split()) == chosen


@pytest.mark.parametrize(
    "words",
    ["push there -C cache", "pull cache -C there", "copy cache there", "export there -C cache"],
)
def test_moves(
    run_cli: RunCli, old_cache: Path, chosen: set[str], words: str, tmp_path: Path
) -> None:
    done = run_cli(*words.split(), *FILTER, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(run_cli("ls", "-q", "-C", tmp_path / "there").stdout.split()) == chosen


def test_a_bad_filter_is_refused_before_any_work(run_cli: RunCli, old_cache: Path) -> None:
    for words in (("prune", "--max-entries", "0"), ("rm",), ("verify",), ("seal",), ("push", "x")):
        refused = run_cli(*words, "-C", old_cache, "--filter", "colour=red", "-n")
        assert (refused.returncode, "[bad-filter]" in refused.stderr) == (2, True), words
