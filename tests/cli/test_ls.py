"""``jaxcache ls`` as a person and as a script meets it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import CORPUS, RunCli, clean_environment
from processes import sh
from terminal import run_all, without_style

import jaxcache
from jaxcache.cache.ledger.record import COMPILE, Event
from jaxcache.cache.ledger.write import append
from jaxcache.render.listing import differing_arguments
from jaxcache.store.local import LocalStore

HASH = "ab" * 32
CORPUS_DIRS = sorted(p.parent.name for p in CORPUS.glob("*/jit_mlp*-cache"))


def listed(run_cli: RunCli, cache: Path, *args: str) -> dict[str, Any]:
    done = run_cli("ls", "--json", "-C", cache, *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def python(script: str, home: Path) -> "subprocess.CompletedProcess[str]":
    return sh([sys.executable, "-c", script], env=clean_environment(home))


def test_entries_of_one_jaxlib_are_chosen_and_removed(run_cli: RunCli, cache: Path) -> None:
    keys = run_cli("ls", "-q", "-C", cache).stdout.split()
    facts = {"jaxlib_version": "0.10.2"}
    assert append(LocalStore(cache), [Event(keys[0], COMPILE, 1, facts)])
    chosen = ("--filter", "jaxlib=0.10.2")
    assert run_cli("ls", "-q", "-C", cache, *chosen).stdout.split() == keys[:1]
    done = run_cli("prune", "-C", cache, *chosen, "--unused-for", "0s", "--grace", "0s", "-y", "-q")
    assert done.stdout.split() == keys[:1], done.stderr


@pytest.fixture
def cache(tmp_path: Path, corpus: Path) -> Path:
    """A copy of a real cache that a test may damage."""
    target = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", target)
    for path in target.iterdir():  # the copy has the access times of the original
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    return target


@pytest.mark.parametrize("name", CORPUS_DIRS)
def test_every_real_entry_is_listed(run_cli: RunCli, corpus: Path, name: str) -> None:
    document = listed(run_cli, corpus / name)
    files = {p.name for p in (corpus / name).glob("*-cache")}
    assert document["schema_version"] == 1
    assert document["cache_dir"] == str(corpus / name)
    assert {e["file"] for e in document["entries"]} == files
    for entry in document["entries"]:
        assert entry["key"] == f"{entry['module']}-{entry['hash']}" == entry["file"][:-6]
        assert entry["codec"] == name.rsplit("-")[-1 if not name.endswith("maxsize") else -2] or (
            name.endswith("kernelcache") and entry["codec"] == "zstd"
        )
        assert entry["compile_seconds"] == 0.0
        assert entry["last_used_from"] in ("atime-file", "fs-atime", "mtime")
        assert entry["size_bytes"] == (corpus / name / entry["file"]).stat().st_size
        assert entry["problems"] == []
    assert document["summary"]["entries"] == len(files)
    assert document["problems"] == []


def test_the_suffixless_generation_is_listed(run_cli: RunCli, corpus: Path) -> None:
    document = listed(run_cli, corpus / "0.4.30-cpu-zstd")
    assert {e["module"] for e in document["entries"]} >= {"jit_mlp"}
    assert all(e["file"] == e["key"] for e in document["entries"])
    assert all(e["problems"] == ["legacy-name"] for e in document["entries"])


def test_what_was_used_last_comes_first(run_cli: RunCli, cache: Path) -> None:
    for path in cache.glob("*-atime"):
        path.unlink()
    entries = sorted(cache.glob("*-cache"))
    for number, path in enumerate(entries):
        os.utime(path, ns=(0, (1_700_000_000 + number % 3) * 10**9))
    found = listed(run_cli, cache)["entries"]
    times = [e["last_used_at"] for e in found]
    assert times == sorted(times, reverse=True) and len(set(times)) == 3
    by_key = [e["key"] for e in listed(run_cli, cache, "--sort", "key")["entries"]]
    assert by_key == sorted(by_key) != [e["key"] for e in found]
    latest = found[0]["key"]
    assert run_cli("ls", "-q", "--limit", "1", "-C", cache).stdout == f"{latest}\n"


def test_last_use_comes_from_the_atime_file(run_cli: RunCli, cache: Path) -> None:
    entry = listed(run_cli, cache, "--sort", "key")["entries"][0]
    (cache / f"{entry['key']}-atime").write_bytes((1_700_000_000 * 10**9).to_bytes(8, "little"))
    entry = listed(run_cli, cache, "--sort", "key")["entries"][0]
    assert entry["last_used_at"] == "2023-11-14T22:13:20.000000Z"
    assert entry["last_used_from"] == "atime-file"
    (cache / f"{entry['key']}-atime").write_bytes(b"short")
    entry = listed(run_cli, cache, "--sort", "key")["entries"][0]
    assert entry["problems"] == ["bad-atime"]
    assert entry["last_used_from"] != "atime-file"


def test_without_a_record_the_file_system_tells_last_use(run_cli: RunCli, cache: Path) -> None:
    for path in cache.glob("*-atime"):
        path.unlink()
    path = sorted(cache.glob("*-cache"))[0]
    os.utime(path, ns=(1_700_000_100 * 10**9, 1_700_000_000 * 10**9))
    entry = listed(run_cli, cache, "--sort", "key")["entries"][0]
    assert entry["created_at"] == "2023-11-14T22:13:20.000000Z"
    if entry["last_used_from"] == "fs-atime":  # else the mount keeps none
        assert entry["last_used_at"] == "2023-11-14T22:15:00.000000Z"
    os.utime(path, ns=(0, 1_700_000_000 * 10**9))
    entry = listed(run_cli, cache, "--sort", "key")["entries"][0]
    assert entry["last_used_from"] == "mtime"
    assert entry["last_used_at"] == entry["created_at"]


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


def test_filters_combine(run_cli: RunCli, cache: Path) -> None:
    everything = listed(run_cli, cache)["entries"]
    for text, fits in (
        ("size>5kB", lambda e: e["size_bytes"] > 5000),
        ("size<=5kB", lambda e: e["size_bytes"] <= 5000),
        ("module=jit_*l*", lambda e: "l" in e["module"][4:]),
        ("module!=jit_mlp", lambda e: e["module"] != "jit_mlp"),
        ("codec=zlib", lambda _: False),
        ("sealed=false", lambda _: True),
        ("compile<1", lambda _: True),
        ("unused<1s", lambda _: False),
        ("platform=gpu", lambda _: False),
    ):
        found = listed(run_cli, cache, "--filter", text)
        assert [e["key"] for e in found["entries"]] == [e["key"] for e in everything if fits(e)]
        assert found["summary"]["entries"] == len(found["entries"])
    both = listed(run_cli, cache, "--filter", "size>3kB", "--filter", "size<5kB")
    assert all(3000 < e["size_bytes"] < 5000 for e in both["entries"])
    assert both["entries"]


@pytest.mark.parametrize(
    "args",
    [
        ["--filter", "size"],
        ["--filter", "colour=red"],
        ["--filter", "size>big"],
        ["--filter", "module>a"],
        ["--filter", "sealed=maybe"],
        ["--filter", "age>3"],
        ["--sort", "colour"],
        ["--sort", "size:up"],
        ["--group-by", "colour"],
        ["--limit", "-1"],
        ["--json", "--jsonl"],
        ["-q", "--json"],
        ["--no-such-option"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    run_cli: RunCli, cache: Path, args: list[str]
) -> None:
    done = run_cli("ls", "-C", cache, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    done = run_cli("ls", "-C", cache, "--json", *args)
    assert json.loads(done.stderr)["error"]["exit_code"] == 2


def test_sort_and_limit(run_cli: RunCli, cache: Path) -> None:
    sizes = [e["size_bytes"] for e in listed(run_cli, cache, "--sort", "size")["entries"]]
    assert sizes == sorted(sizes, reverse=True)
    found = listed(run_cli, cache, "--sort", "size:asc", "--limit", "3")
    assert [e["size_bytes"] for e in found["entries"]] == sorted(sizes)[:3]
    assert found["summary"]["entries"] == 7


def test_groups(run_cli: RunCli, corpus: Path) -> None:
    document = listed(run_cli, corpus / "0.4.38-cpu-zlib", "--group-by", "codec")
    assert [(g["name"], g["entries"]) for g in document["groups"]] == [("zlib", 7)]
    modules = listed(run_cli, corpus / "0.4.38-cpu-zlib", "--group-by", "module")["groups"]
    some = listed(run_cli, corpus / "0.4.38-cpu-zlib", "--group-by", "module", "--limit", "2")
    assert some["groups"] == modules[:2] != modules
    for order in ("size:asc", "size:desc", "compile:asc"):
        field, _, way = order.partition(":")
        arguments = ("--group-by", "module", "--sort", order)
        groups = listed(run_cli, corpus / "0.4.38-cpu-zlib", *arguments)["groups"]
        values = [g["size_bytes" if field == "size" else "compile_seconds"] for g in groups]
        assert values == sorted(values, reverse=way == "desc")


def test_a_pipe_gets_tsv(run_cli: RunCli, cache: Path) -> None:
    done = run_cli("ls", "-C", cache, "jit_mlp*")
    (line,) = done.stdout.splitlines()
    key, size, seconds, used, problems = line.split("\t")
    on_disk = next(cache.glob("jit_mlp*-cache")).stat().st_size
    assert (int(size), seconds, problems) == (on_disk, "0", "")
    assert key.startswith("jit_mlp-")
    assert used.endswith("Z")
    (line,) = run_cli("ls", "--long", "-C", cache, "jit_mlp*").stdout.splitlines()
    platform, target, signature, source = line.split("\t")[5:]
    assert (platform, target) == ("cpu", "rocketlake")
    assert signature == "f32[8,16], f32[16,32], f32[32,4] → f32[8,4]"
    assert source.endswith("/wl.py:15")


def test_keys_only_and_lines(run_cli: RunCli, cache: Path) -> None:
    keys = run_cli("ls", "-C", cache, "-q").stdout.split()
    lines = [json.loads(x) for x in run_cli("ls", "-C", cache, "--jsonl").stdout.splitlines()]
    assert [e["key"] for e in lines] == keys
    assert len(keys) == 7


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
    done = python(script, tmp_path)
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


def test_a_signature_begins_with_the_argument_in_which_entries_of_a_module_differ(
    cache: Path,
) -> None:
    entry = next(jaxcache.open(cache).entries())
    many = ", ".join(["f32[512,128]"] * 30)
    others = [
        replace(entry, key=f"jit_f-{n}", module="jit_f", signature=f"{many}, s32[1,{n}] → s32[1]")
        for n in (16, 32)
    ]
    first = differing_arguments([entry, *others])
    assert set(first) == {"jit_f-16", "jit_f-32"}
    assert first["jit_f-32"].startswith("argument 30 s32[1,32]; all: f32[512,128], ")


def test_an_order_by_compile_times_that_jax_rounds_to_zero_is_said(
    run_cli: RunCli, cache: Path
) -> None:
    quick = sum(e["compile_seconds"] == 0 for e in listed(run_cli, cache)["entries"])
    sentence = f"the order of {quick} entries is unknown"
    assert quick > 1
    assert sentence in run_cli("ls", "-C", cache, "--sort", "compile").stderr
    assert "order" not in run_cli("ls", "-C", cache, "--sort", "size").stderr


def test_an_order_by_compile_times_leads_to_the_sums_of_functions(
    run_cli: RunCli, cache: Path
) -> None:
    hint = "--group-by function adds them up"
    assert hint not in run_cli("ls", "-C", cache, "--sort", "compile").stderr
    (entry,) = cache.glob("jit_mlp-*-cache")
    shutil.copy(entry, cache / f"jit_mlp-{'0' * 64}-cache")
    assert hint in run_cli("ls", "-C", cache, "--sort", "compile").stderr
    grouped = run_cli("ls", "-C", cache, "--sort", "compile", "--group-by", "function")
    assert hint not in grouped.stderr
    assert "jit_mlp\t2\t" in grouped.stdout


def test_people_see_the_size_of_the_cache_if_no_entry_matches(cache: Path, tmp_path: Path) -> None:
    words = ["ls", "-C", cache, "--filter", "unused>9999d"]
    ((_, screen),) = run_all([words], home=tmp_path, width=120)
    assert "no entry matches; the cache has " in without_style(screen)
    assert "0 entries" not in screen


def test_people_see_functions_without_the_prefix_of_modules(cache: Path, tmp_path: Path) -> None:
    words = ["ls", "-C", cache, "--group-by", "function"]
    ((_, screen),) = run_all([words], home=tmp_path, width=120)
    assert "\nmlp " in without_style(screen).replace("\r", "")
    assert "jit_" not in screen


# ``--filter`` wherever entries are chosen: one selection, that of ``ls``.


DAY = 86400
FILTER = ("--filter", "size>4kB", "--filter", "platform=cpu")


@pytest.fixture
def old_cache(tmp_path: Path) -> Path:
    made = Path(shutil.copytree(CORPUS / "0.10.2-cpu-zstd", tmp_path / "cache"))
    for path in made.iterdir():
        os.utime(path, (time.time() - 9 * DAY,) * 2)
    return made


@pytest.fixture
def chosen(run_cli: RunCli, old_cache: Path) -> set[str]:
    found = set(run_cli("ls", "-q", "-C", old_cache, *FILTER).stdout.split())
    assert 0 < len(found) < 7
    return found


def keys_in(old_cache: Path) -> set[str]:
    return {p.name.removesuffix("-cache") for p in old_cache.glob("*-cache")}


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


def test_prune_says_what_keeps_an_entry(run_cli: RunCli, old_cache: Path) -> None:
    limits = ("--older-than", "1d", "-n")
    done = run_cli("prune", "-C", old_cache, "--filter", "size>4kB", *limits)
    assert re.search(r"not removed: \d entries are outside --filter$", done.stderr, re.MULTILINE)
    done = run_cli("prune", "-C", old_cache, "--filter", "size>4kB", "--keep", "jit_mlp", *limits)
    assert re.search(r"entries are kept by --keep or outside --filter$", done.stderr, re.MULTILINE)
    done = run_cli("prune", "-C", old_cache, "--keep", "jit_mlp", *limits)
    assert re.search(r"is kept by --keep$", done.stderr, re.MULTILINE), done.stderr


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
    assert "[bad-filter]" in run_cli("ls", "-C", old_cache, "--filter", "compile>nan").stderr
