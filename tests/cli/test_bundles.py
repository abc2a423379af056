"""``export``, ``import``, ``diff`` and ``copy`` as commands."""

import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import first_entry, padded, payload_of
from conftest import CORPUS, REPOSITORY, RunCli, clean_environment

SMALL = "0.4.38-cpu-zstd"
SECOND = "0.8.3-cpu-zstd"


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus / SMALL, tmp_path / "cache"))


@pytest.fixture
def bundle(run_cli: RunCli, cache: Path, tmp_path: Path) -> Path:
    path = tmp_path / "cache.jxb"
    assert run_cli("export", path, "-C", cache).returncode == 0
    return path


def names(cache: Path) -> set[str]:
    return {p.name for p in cache.glob("*-cache")}


def test_there_and_back(run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path) -> None:
    told = run_cli("export", tmp_path / "again.jxb", "-C", cache, "--json")
    document = json.loads(told.stdout)
    assert (document["schema_version"], document["entries"]) == (1, 7)
    assert document["size_bytes"] == bundle.stat().st_size
    assert document["source_bytes"] == sum(p.stat().st_size for p in cache.glob("*-cache"))
    assert (tmp_path / "again.jxb").read_bytes() == bundle.read_bytes()
    done = run_cli("import", bundle, "-C", tmp_path / "new" / "deep", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["summary"]["written"] == 7
    assert {e["action"] for e in document["entries"]} == {"write"}
    assert run_cli("diff", cache, tmp_path / "new" / "deep").returncode == 0
    assert run_cli("diff", cache, bundle, "--json").returncode == 0
    verified = run_cli("verify", "-C", tmp_path / "new" / "deep", "--grace", "0s", "--json")
    assert json.loads(verified.stdout)["problems"] == []
    again = json.loads(run_cli("import", bundle, "-C", tmp_path / "new" / "deep", "--json").stdout)
    assert (again["summary"]["same"], again["summary"]["written"]) == (7, 0)


def test_a_dry_run_changes_nothing(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    done = run_cli("import", bundle, "-C", tmp_path / "new", "--dry-run")
    assert done.returncode == 0
    assert not (tmp_path / "new").exists()
    assert len(done.stdout.splitlines()) == 7
    assert all(line.startswith("write\t") for line in done.stdout.splitlines())
    assert len(run_cli("import", bundle, "-C", tmp_path / "n", "-n", "-q").stdout.split()) == 7
    rows = run_cli("import", bundle, "-C", tmp_path / "n", "-n", "--jsonl").stdout.splitlines()
    assert {json.loads(r)["action"] for r in rows} == {"write"}


def test_through_a_pipe(cache: Path, tmp_path: Path) -> None:
    env = clean_environment(tmp_path)
    jaxcache = [sys.executable, "-m", "jaxcache"]
    made = subprocess.run(
        [*jaxcache, "export", "-", "-C", cache], env=env, capture_output=True, check=True
    )
    assert made.stdout.startswith(b"\x89JXB")
    done = subprocess.run(
        [*jaxcache, "import", "-", "-C", tmp_path / "new"],
        env=env,
        input=made.stdout,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "new") == names(cache)
    for data in (b"", b"junk", made.stdout[:-1]):
        done = subprocess.run(
            [*jaxcache, "import", "-", "-C", tmp_path / "none"],
            env=env,
            input=data,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1
        assert not (tmp_path / "none").exists()


def test_a_named_pipe_is_not_waited_for(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run_cli("copy", tmp_path / "pipe", tmp_path / "new")  # would hang
    assert done.returncode == 10, done.stderr


def test_selection(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    for args in (["jit_mlp*"], ["--filter", "module=jit_mlp"]):
        done = run_cli("export", tmp_path / "part.jxb", *args, "-C", cache, "--json")
        assert json.loads(done.stdout)["entries"] == 1, done.stderr
    cpu = run_cli("export", tmp_path / "c.jxb", "--filter", "platform=cpu", "-C", cache, "--json")
    assert json.loads(cpu.stdout)["entries"] == 7
    assert run_cli("export", tmp_path / "x.jxb", "nothing", "-C", cache).returncode == 1
    assert not (tmp_path / "x.jxb").exists()


def test_increments(run_cli: RunCli, corpus: Path, cache: Path, tmp_path: Path) -> None:
    base, more = tmp_path / "base.jxb", tmp_path / "more.jxb"
    run_cli("export", base, "-C", cache)
    for path in (corpus / SECOND).glob("*-cache"):
        shutil.copy2(path, cache)
    for ref in (base, corpus / SMALL):
        done = run_cli("export", more, "--since", ref, "-C", cache, "--json")
        assert json.loads(done.stdout)["entries"] == len(names(corpus / SECOND)), done.stderr
    run_cli("import", base, "-C", tmp_path / "new")
    run_cli("import", more, "-C", tmp_path / "new")
    assert run_cli("diff", cache, tmp_path / "new").returncode == 0


def test_only_a_bundle_is_overwritten(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("text")
    assert run_cli("export", precious, "-C", cache).returncode == 2
    assert precious.read_text() == "text"
    missing = run_cli("export", tmp_path / "none" / "x.jxb", "-C", cache)
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    assert not [p for p in tmp_path.iterdir() if "tmp" in p.name]


def test_a_damaged_entry_finishes_in_part(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    min(cache.glob("*-cache")).write_bytes(b"junk")
    done = run_cli("export", tmp_path / "x.jxb", "-C", cache, "--json")
    assert done.returncode == 3
    (left,) = json.loads(done.stdout)["left_out"]
    assert left["kind"] == "bad-codec"


def test_diff_says_what_is_at_stake(
    run_cli: RunCli, corpus: Path, cache: Path, tmp_path: Path
) -> None:
    other = corpus / SECOND
    done = run_cli("diff", cache, other, "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["same"], document["equal"]) == (0, False)
    assert len(document["only_left"]) == len(names(cache))
    assert len(document["only_right"]) == len(names(other))
    assert document["left"]["only_size_bytes"] == sum(
        p.stat().st_size for p in cache.glob("*-cache")
    )
    rows = run_cli("diff", cache, other).stdout.splitlines()
    assert {r[0] for r in rows} == {"<", ">"}
    assert len(run_cli("diff", cache, other, "-q").stdout.split()) == 14
    assert len(run_cli("diff", cache, other, "--jsonl").stdout.splitlines()) == 14
    (tmp_path / "twin").mkdir()
    for path in cache.glob("*-cache"):
        shutil.copy2(path, tmp_path / "twin")
    first, second = sorted((tmp_path / "twin").glob("*-cache"))[:2]
    shutil.copyfile(second, first)
    second.write_bytes(b"")
    rows = run_cli("diff", cache, tmp_path / "twin").stdout.splitlines()
    assert sorted(r.split("\t")[0] for r in rows) == ["!", "<", "x>"]


def test_copy_between_any_two(run_cli: RunCli, cache: Path, tmp_path: Path) -> None:
    stops = [cache, tmp_path / "a", tmp_path / "b.jxb", tmp_path / "c.jxb", tmp_path / "d"]
    for source, target in itertools.pairwise(stops):
        done = run_cli("copy", source, target)
        assert done.returncode == 0, done.stderr
        assert run_cli("diff", cache, target).returncode == 0
    assert (tmp_path / "b.jxb").read_bytes() == (tmp_path / "c.jxb").read_bytes()
    assert run_cli("copy", tmp_path / "none", tmp_path / "e").returncode == 10


def test_what_a_copy_into_a_bundle_tells(
    run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path
) -> None:
    keys = sorted(n.removesuffix("-cache") for n in names(cache))
    for source in (cache, bundle):
        for command in (("copy", source), ("export",)):
            if command == ("export",) and source is bundle:
                continue
            target = tmp_path / "copied.jxb"
            place = ("-C", cache) if command == ("export",) else ()
            document = json.loads(run_cli(*command, target, *place, "--json").stdout)
            assert (document["entries"], document["left_out"]) == (7, [])
            assert document["size_bytes"] == target.stat().st_size
            lines = run_cli(*command, target, *place, "--jsonl").stdout.splitlines()
            assert sorted(json.loads(x)["key"] for x in lines) == keys
            assert sorted(run_cli(*command, target, *place, "-q").stdout.split()) == keys
            told = run_cli(*command, target, *place)
            assert (told.stdout, "7 entries in" in told.stderr) == ("", True)


@pytest.mark.parametrize("option", ["--dry-run", "--atomic", "--on-conflict=fail"])
def test_a_copy_into_a_bundle_takes_no_option_of_directories(
    run_cli: RunCli, cache: Path, bundle: Path, tmp_path: Path, option: str
) -> None:
    for source in (cache, bundle):
        assert run_cli("copy", source, tmp_path / "new.jxb", option).returncode == 2
    assert not (tmp_path / "new.jxb").exists()


def test_an_unknown_rule_is_refused_before_any_work(
    run_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    bundle.write_bytes(b"")  # and not looked at
    done = run_cli("import", bundle, "--on-conflict", "sometimes", "-C", tmp_path / "new")
    assert (done.returncode, "keep or replace or fail" in done.stderr) == (2, True)


def test_a_folder_that_is_called_jax_is_no_jax(
    run_cli: RunCli, bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "here" / "jax").mkdir(parents=True)
    done = run_cli("import", bundle, "-C", tmp_path / "new", cwd=tmp_path / "here")
    assert done.returncode == 0, done.stderr


def test_a_python_without_jax_is_said(run_cli: RunCli, bundle: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 13\n")
    fake.chmod(0o755)
    for python in (fake, tmp_path / "none"):
        done = run_cli("import", bundle, "-C", tmp_path / "new", "--python", python)
        assert done.returncode == 13
        assert not (tmp_path / "new").exists()


def limited(
    home: Path, limit_bytes: int, *args: str | Path, stdin: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command that cannot write files larger than a limit, as on a full disk."""
    with open(stdin or os.devnull, "rb") as file:
        return subprocess.run(
            [sys.executable, "-m", "jaxcache", *map(str, args)],
            env=clean_environment(home),
            capture_output=True,
            text=True,
            check=False,
            stdin=file,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes,) * 2),
        )


def test_no_room_for_a_bundle(cache: Path, tmp_path: Path) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    done = limited(tmp_path, 4096, "export", tmp_path / "x.jxb", "-C", cache)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_no_room_for_the_entries(
    run_cli: RunCli, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    for options in ([], ["--atomic"]):
        target = tmp_path / f"new{len(options)}"
        done = limited(tmp_path, 4000, "import", bundle, *options, "-C", target)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False)
        if options:
            assert not names(target)
        assert not list(target.rglob(".jaxcache-tmp-*"))
        assert run_cli("import", bundle, *options, "-C", target).returncode == 0
        assert run_cli("diff", cache, target).returncode == 0


def test_no_room_for_a_bundle_that_nobody_keeps(
    run_cli: RunCli, bundle: Path, cache: Path, tmp_path: Path
) -> None:
    target = tmp_path / "new"
    fast = tmp_path / "fast.jxb"  # what a copy keeps meanwhile
    assert run_cli("export", fast, "--level", "1", "-C", cache).returncode == 0
    stream_bytes = int.from_bytes(fast.read_bytes()[16:24], "little")
    for limit, reason in (
        (stream_bytes - 1, "cannot write a temporary file in"),
        (fast.stat().st_size - 1, "cannot keep the bundle in"),
    ):
        done = limited(tmp_path, limit, "copy", cache, target)
        assert (done.returncode, "[io-error]" in done.stderr) == (1, True), done.stderr
        assert reason in done.stderr and "file too large" in done.stderr
    done = limited(tmp_path, bundle.stat().st_size - 1, "import", "-", "-C", target, stdin=bundle)
    assert (done.returncode, "cannot keep the bundle in" in done.stderr) == (1, True)
    assert not target.exists()
    assert limited(tmp_path, fast.stat().st_size, "copy", cache, target).returncode == 0
    assert run_cli("diff", cache, target).returncode == 0


def test_what_is_written_is_printed_in_the_order_of_the_plan(
    run_cli: RunCli, tmp_path: Path
) -> None:
    """Several threads compress, and small entries are done before large ones."""
    cache = Path(shutil.copytree(CORPUS / "0.10.2-cpu-zstd", tmp_path / "cache"))
    first = first_entry(cache)
    payload = padded(payload_of(first), 12_000_000)
    first.write_bytes(zstandard.ZstdCompressor().compress(bytes(4) + payload))
    assert run_cli("export", tmp_path / "c.jxb", "-C", cache).returncode == 0
    planned = run_cli("import", tmp_path / "c.jxb", "-C", tmp_path / "new", "-n", "-q")
    done = run_cli("import", tmp_path / "c.jxb", "-C", tmp_path / "new", "-q")
    assert len(done.stdout.splitlines()) == 7
    assert done.stdout == planned.stdout


def as_json(run_cli: RunCli, *words: object) -> Any:
    done = run_cli(*words, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    del document["cache_dir"]
    return document


def test_a_bundle_is_listed_as_its_cache(run_cli: RunCli, cache: Path, bundle: Path) -> None:
    for words in (("ls",), ("ls", "--sort", "size", "--limit", "3", "--filter", "size>3kB")):
        there, here = (as_json(run_cli, *words, "-C", place) for place in (bundle, cache))
        for document in (there, here):
            for entry in document["entries"]:  # reading the cache gives it a date of last use
                del entry["last_used_at"], entry["last_used_from"]
            document["problems"] = []
        assert there == here
    assert len(there["entries"]) == 2
    grouped = as_json(run_cli, "ls", "-C", bundle, "--group-by", "platform")
    assert [g["name"] for g in grouped["groups"]] == ["cpu"]
    counted = [as_json(run_cli, "stats", "-C", place) for place in (bundle, cache)]
    assert counted[0]["total"] == counted[1]["total"]
    assert counted[0]["by_platform"][0]["entries"] == 7


def test_show_looks_into_a_bundle(run_cli: RunCli, cache: Path, bundle: Path) -> None:
    here = as_json(run_cli, "show", "jit_mlp", "-C", cache)
    for words in ((bundle, "jit_mlp"), ("jit_mlp", "-C", bundle)):
        there = as_json(run_cli, "show", *words)
        assert there["program"] == here["program"]
        assert there["memory"] == here["memory"]
        assert there["entry"]["signature"] == here["entry"]["signature"]
    whole = run_cli("show", bundle)
    assert (whole.returncode, len(whole.stdout.splitlines())) == (0, 7)
    assert "7 entries in " in whole.stderr
    refused = run_cli("show", bundle, "no_such_entry")
    assert (refused.returncode, "[no-match]" in refused.stderr) == (1, True)
    refused = run_cli("show", cache, "jit_mlp")
    assert (refused.returncode, "neither a bundle nor a recipe" in refused.stderr) == (2, True)
    assert sorted(p.name for p in bundle.parent.iterdir() if p.suffix == ".jxb") == ["cache.jxb"]


def test_a_damaged_bundle_is_listed_with_a_finding(run_cli: RunCli, bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[-200:] = bytes(200)
    bundle.write_bytes(data)
    done = run_cli("ls", "-C", bundle, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["entries"]) == 7
    assert [p["kind"] for p in found["problems"]] == ["bad-payload"]
    refused = run_cli("show", bundle, "*")
    assert refused.returncode == 1
    assert "[bad-bundle]" in refused.stderr


def test_a_bundle_of_torch_is_not_listed(run_cli: RunCli) -> None:
    bundle = REPOSITORY / "tests" / "data" / "golden" / "inputs" / "torch.jxb"
    refused = run_cli("ls", "-C", bundle)
    assert refused.returncode == 2
    assert "holds a cache of torch" in refused.stderr
