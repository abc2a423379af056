"""``ls``, ``show`` and ``stats`` as a person and as a script meets them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import zstandard
from acting import refused
from command_line import show_on_terminal
from conftest import REPOSITORY, RunCli
from processes import begin
from terminal import without_style
from ways import names, old_copy, told

from jaxcache.cache.ledger.record import COMPILE, HIT, MISS, Event
from jaxcache.cache.ledger.write import append
from jaxcache.live.process import COUNTERS, SUMS
from jaxcache.store import open_store

HASH = "ab" * 32


@pytest.fixture
def cache(capped_cache: Path) -> Path:
    return capped_cache


@pytest.mark.parametrize("key", ["", "nothing"])
def test_a_key_that_names_nothing_chooses_nothing(
    run_cli: RunCli, tmp_path: Path, corpus: Path, key: str
) -> None:
    """In a cache of one entry, where every prefix is unique."""
    source = min((corpus / "0.12.0.1-cpu-zstd").glob("*-cache"))
    for directory in (tmp_path / "cache", tmp_path / "cache" / ".jaxcache" / "quarantine" / "x"):
        directory.mkdir(parents=True)
        shutil.copy(source, directory)
    pinned = run_cli("pin", "*", "-C", "cache").stdout
    for words in (("ls",), ("rm", "--yes"), ("pin", "--remove"), ("verify", "--restore")):
        assert f"matches '{key}'" in refused(run_cli, 1, *words, key, "-C", "cache")
    assert run_cli("pin", "-C", "cache").stdout == pinned
    assert sum(1 for _ in (tmp_path / "cache").rglob(source.name)) == 2


def test_nothing_strange_in_the_directory_stops_the_listing(run_cli: RunCli, cache: Path) -> None:
    (cache / f"jit_empty-{HASH}-cache").write_bytes(b"")
    whole = next(cache.glob("jit_mlp*-cache")).read_bytes()
    (cache / f"jit_cut-{HASH}-cache").write_bytes(whole[:100])
    (cache / f"jit_folder-{HASH}-cache").mkdir()
    (cache / f"jit_link-{HASH}-cache").symlink_to(cache / f"jit_cut-{HASH}-cache")
    (cache / f"jit_loop-{HASH}-cache").symlink_to(f"jit_loop-{HASH}-cache")
    os.mkfifo(cache / f"jit_fifo-{HASH}-cache")
    (cache / f"jit_gone-{HASH}-atime").write_bytes(bytes(8))
    (cache / "_temp_jit_f").write_bytes(b"")
    (cache / "README").write_text("hello")
    (cache / f"jit_\udcff\n\x1b[31m-{HASH}-cache").write_bytes(whole)
    document = told(run_cli, "ls", "-C", cache)
    problems = {(p["file"].split("-")[0], p["kind"]) for p in document["problems"]}
    assert problems == {
        ("jit_empty", "empty"),
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
    assert len(document["entries"]) == 7 + 5
    assert len(run_cli("ls", "-C", cache).stdout.splitlines()) == 12


def test_unreadable_files_are_findings_and_directories_errors(
    run_cli: RunCli, corpus: Path, unprivileged: Path
) -> None:
    cache = Path(shutil.copytree(corpus / "0.12.0.1-cpu-zstd", unprivileged / "cache"))
    next(cache.glob("jit_mlp*-cache")).chmod(0)
    done = run_cli("ls", "--json", "-C", cache, cwd=unprivileged)
    problems = json.loads(done.stdout)["problems"]
    assert [(p["kind"], p["detail"]) for p in problems] == [("unreadable", "permission denied")]
    cache.chmod(0)
    done = run_cli("ls", "-C", cache, cwd=unprivileged)
    cache.chmod(0o700)
    assert (done.returncode, "permission-denied" in done.stderr) == (10, True)
    # ``push`` and ``pull`` name the directory without an option.
    assert "hint: ask its owner, or name another directory\n" in done.stderr


def test_a_reader_that_leaves_early_is_no_error(cache: Path, tmp_path: Path) -> None:
    for n in range(300):
        shutil.copy(next(cache.glob("jit_mlp*-cache")), cache / f"jit_{'m' * 90}-{n:064x}-cache")
    with begin(tmp_path, "ls", "-C", cache) as child:
        assert child.stdout and child.stderr
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == 0


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
    payload = bytearray(zstandard.decompress(damaged.read_bytes()))
    payload[40:4000:3] = bytes(len(payload[40:4000:3]))
    damaged.write_bytes(zstandard.compress(bytes(payload)))
    for words in (("ls",), ("rm", "-n")):
        done = run_cli(*words, "-C", old_cache, "--filter", "problem=bad-payload", "-q")
        assert done.stdout == damaged.name.removesuffix("-cache") + "\n", words


def test_removal(run_cli: RunCli, old_cache: Path, chosen: set[str]) -> None:
    everything = keys_in(old_cache)
    limits = ("--max-entries", "0", "--yes")
    done = run_cli("prune", "-C", old_cache, *FILTER, *limits, "-n", "-q")
    assert set(done.stdout.split()) == chosen
    one = min(k for k in chosen if k.startswith("jit_mlp"))
    done = run_cli("rm", "-C", old_cache, *FILTER, "jit_mlp", "jit_loss", "--yes", "-q")
    assert done.stdout.split() == [one]
    assert keys_in(old_cache) == everything - {one}
    assert run_cli("rm", "-C", old_cache, *FILTER, "--yes").returncode == 0
    assert keys_in(old_cache) == everything - chosen
    assert "give a KEY, or --filter" in refused(run_cli, 2, "rm", "-C", old_cache, "--yes")


def test_verify_and_seal(run_cli: RunCli, old_cache: Path, chosen: set[str]) -> None:
    damaged = old_cache / f"{min(keys_in(old_cache) - chosen)}-cache"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert told(run_cli, "verify", "-C", old_cache, *FILTER)["checked"] == len(chosen)
    for more, code in (((), 1), (("--restore", *FILTER), 2)):
        assert run_cli("verify", "-C", old_cache, *more).returncode == code
    done = run_cli("seal", "-C", old_cache, *FILTER, "-q")
    assert set(done.stdout.split()) == chosen


def test_a_bad_filter_is_refused_before_any_work(run_cli: RunCli, old_cache: Path) -> None:
    bad = ("-C", old_cache, "--filter", "colour=red", "-n")
    for words in (("prune", "--max-entries", "0"), ("rm",), ("verify",), ("seal",), ("push", "x")):
        assert "[bad-filter]" in refused(run_cli, 2, *words, *bad)


# ``show``.


GPU, CPU, OLD = "0.12.0.1-cuda13-h200-zstd", "0.12.0.1-cpu-zstd", "0.4.38-cpu-zlib"


def test_a_plain_file_of_any_name_will_do(run_cli: RunCli, corpus: Path, tmp_path: Path) -> None:
    entry = next((corpus / GPU).glob("jit_sort*"))
    for path in (entry, shutil.copy(entry, tmp_path / "copy.bin")):
        document = told(run_cli, "show", path)
        found = document["program"]["module"], document["entry"]["file"]
        assert found == ("jit_sort", path.name)


def test_the_payload_is_written_whole_or_not_at_all(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    """A pipe stays a pipe, as ``/dev/null`` stays what it is, whoever may replace it."""
    entry = next((corpus / CPU).glob("jit_mlp*"))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(entry.read_bytes()[:-100])
    assert "bad-entry" in refused(run_cli, 1, "show", damaged, "--payload", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        done = run_cli("show", "jit_mlp*", "-C", corpus / CPU, "--payload", pipe)
        if not pipe.is_fifo():
            reader.kill()
        read = reader.communicate()[0]
    assert (done.returncode, pipe.is_fifo()) == (0, True), done.stderr
    assert read == zstandard.ZstdDecompressor().decompress(entry.read_bytes())[4:]


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (f'exec {sys.executable} -S "$@"', 13, "jaxlib"),
        ('echo "{nonsense" > /dev/fd/$3; sleep 9', 1, "[hlo-failed]"),
    ],
)
def test_hlo_takes_a_python_that_has_jaxlib(
    run_cli: RunCli, corpus: Path, tmp_path: Path, program: str, code: int, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    words = ("show", "jit_mlp", "-C", corpus / OLD, "--hlo", "--python", python)
    assert said in refused(run_cli, code, *words)


# ``stats``: everything in the directory is counted.


@pytest.fixture
def littered(cache: Path, corpus: Path) -> Path:
    """With the files of other kinds that a compiler and a crash leave."""
    shutil.copy(corpus / "0.10.2-cuda13-h200-kernelcache" / "xla_gpu_kernel_cache_file", cache)
    autotune = cache / "xla_gpu_per_fusion_autotune_cache_dir" / "tmp"
    autotune.mkdir(parents=True)
    (autotune.parent / "abc.textproto").write_bytes(b"x" * 10)
    (autotune / "tmp_per_fusion_cache_1").write_bytes(b"x" * 5)
    (cache / f"jit_gone-{HASH}-atime").write_bytes(bytes(8))
    (cache / f"jit_old-{HASH}").write_bytes(next(cache.glob("jit_mlp*-cache")).read_bytes())
    (cache / "_temp_x").write_bytes(b"xyz")
    return cache


def test_everything_is_counted(run_cli: RunCli, littered: Path) -> None:
    (littered / "link").symlink_to("jit_nowhere")
    (littered / f"jit_folder-{HASH}-cache").mkdir()
    document = told(run_cli, "stats", "-C", littered)
    files = {f["kind"]: (f["files"], f["size_bytes"]) for f in document["files"]}
    assert files["entry"][0] == 7
    assert files["legacy-entry"] == (1, next(littered.glob("jit_mlp*-cache")).stat().st_size)
    small = {"atime": (8, 64), "autotune": (2, 15), "temp": (1, 3), "lockfile": (1, 0)}
    small["stray"] = (2, 0)  # as a bound counts them
    assert files.items() >= small.items()
    assert files["kernel-cache"][1] == (littered / "xla_gpu_kernel_cache_file").stat().st_size
    on_disk = sum(p.stat().st_size for p in littered.rglob("*") if p.is_file())
    assert document["directory_bytes"] == on_disk == sum(size for _, size in files.values())
    assert document["total"]["entries"] == 8


def test_one_size_of_a_cache_on_every_screen(
    run_cli: RunCli, littered: Path, tmp_path: Path
) -> None:
    """All files count, quarantined ones too, but not the records of jaxcache."""
    key = next(littered.glob("jit_mlp*-cache")).name.removesuffix("-cache")
    append(open_store(str(littered)), [Event(key, COMPILE, 1, {"note": "x" * 50_000})])
    damaged = next(littered.glob("jit__fun*-cache"))
    damaged.write_bytes(damaged.read_bytes()[:-40] + bytes(30_000))
    # The entry that holds another module than its name says stays.
    assert run_cli("verify", "-C", littered, "--fix", "--grace", "0s").returncode == 1
    records = {*littered.rglob("ledger/*"), littered / "CACHEDIR.TAG"}
    records.add(littered / ".jaxcache" / "ci.json")
    (littered / ".jaxcache" / "ci.json").write_text("x" * 100_000)
    files = [p for p in littered.rglob("*") if p.is_file() and p not in records]
    size_bytes = sum(p.stat().st_size for p in files)
    assert told(run_cli, "stats", "-C", littered)["size_bytes"] == size_bytes
    pruned = told(run_cli, "prune", "--max-size", "1GB", "-n", "-C", littered)
    assert pruned["size_bytes_before"] == size_bytes
    record_bytes = sum(p.stat().st_size for p in records if p.is_file())
    size, uncounted = (f"{number / 1000:.1f} kB" for number in (size_bytes, record_bytes))
    for command, words in (
        ("ls", f"; the whole cache has {size}, records {uncounted}"),
        ("stats", f"{size}, as --max-size counts it; {uncounted} of jaxcache's own records not"),
        ("prune --max-size 1GB -n", f"cache size {size}"),
    ):
        shown = show_on_terminal([*command.split(), "-C", littered], home=tmp_path, width=120)
        assert words in without_style(shown.stdout)


def test_what_a_move_brought_and_nothing_used(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    source = corpus / "0.12.0.1-cpu-zstd"
    cache = tmp_path / "cache"
    assert run_cli("copy", source, cache).returncode == 0
    brought = {p.name: p.stat().st_size for p in cache.glob("*-cache")}
    hit, read, *unused = sorted(brought)
    append(open_store(str(cache)), [Event(hit.removesuffix("-cache"), HIT, time.time_ns())])
    later = time.time() + 120
    os.utime(cache / read, (later, (cache / read).stat().st_mtime))
    never_used = told(run_cli, "stats", "-C", cache)["never_used"]
    size_bytes = sum(brought[name] for name in unused)
    assert (never_used["entries"], never_used["size_bytes"]) == (5, size_bytes)
    screen = show_on_terminal(["stats", "-C", cache], home=tmp_path, width=200).stdout
    size = f"{size_bytes / 1000:.1f} kB"
    (line,) = (x for x in without_style(screen).splitlines() if x.startswith("Never used"))
    says, command = line.split("; see them with: jaxcache ")
    assert says == f"Never used   5 entries that a move brought, {size}"
    listed = told(run_cli, *command.split())["entries"]
    assert sorted(e["file"] for e in listed) == unused


def test_counts_of_the_live_layer_that_no_number_holds(run_cli: RunCli, cache: Path) -> None:
    directory = cache / ".jaxcache" / "live"
    directory.mkdir(parents=True)
    (directory / "totals").write_text('{"misses": Infinity, "hits_local": 3}')
    assert told(run_cli, "stats", "-C", cache)["live"] == {"hits_local": 3}


# ``examples/grafana``: each query asks for what ``stats --prometheus`` exports.


_SAMPLE = re.compile(
    r'(jaxcache_[a-z_]+)(\{cache_dir="(?:[^"\\]|\\.)*",[a-z]+="[^"]*"\}) [0-9.e+]+'
)
_LABEL = re.compile(r'(\w+)(?:=~|!=|!~|=)"((?:[^"\\]|\\.)*)"')


def test_a_dashboard_asks_for_what_is_exported(run_cli: RunCli, capped_cache: Path) -> None:
    """Of a cache with uses, damage, a quarantine and totals of the live layer, and an odd name."""
    cache = capped_cache.rename(capped_cache.with_name('odd "name\\'))
    key = min(path.name for path in cache.glob("*-cache")).removesuffix("-cache")
    events = [Event(key, kind, 10**18, {"compile_seconds": 2.5}) for kind in (HIT, MISS)]
    append(open_store(str(cache)), events)
    (cache / "jit_torn-cache").write_bytes(b"")
    own = cache / ".jaxcache"
    for name, text in (
        (f"quarantine/20260101T000000Z/{key}-cache", "torn"),
        ("live/totals", json.dumps(dict.fromkeys([*COUNTERS, *SUMS], 1))),
    ):
        (own / name).parent.mkdir(parents=True)
        (own / name).write_text(text)
    labels: defaultdict[str, str] = defaultdict(str)
    for line in run_cli("stats", "--prometheus", "-C", cache).stdout.splitlines():
        if not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            assert sample, line
            labels[sample[1]] += sample[2]
    dashboard = (REPOSITORY / "examples" / "grafana" / "jaxcache.json").read_text()
    variables = {variable["name"] for variable in json.loads(dashboard)["templating"]["list"]}
    for text in re.findall(r'"(?:expr|query)": (".*jaxcache_.*")', dashboard):
        query = json.loads(text)
        named = re.findall(r"\bjaxcache_\w+", query)
        assert labels.keys() >= {*named}
        assert {*re.findall(r"\$(\w+)", query)} <= {*variables, "__rate_interval"}
        for metric, matchers in re.findall(r"\b(jaxcache_\w+)\{([^}]*)\}", query):
            for label, value in _LABEL.findall(matchers):
                fixed = label in ("counter", "kind")  # values that the exporter writes itself
                for wanted in value.split("|") if fixed else [""]:
                    assert f'{label}="{wanted}' in labels[metric]
        for label in re.findall(r"\bby \((\w+)\)", query):
            assert f'{label}="' in labels[min(named)]


# Entries that were compiled for a GPU that was not there keep their label, and lose it in time.


@pytest.fixture
def labelled(corpus: Path, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A cache of GPU entries, of which the ledger calls one untuned and one tuned."""
    path = Path(shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", tmp_path / "gpu"))
    known = dict(zip(sorted(keys_in(path)), ("untuned", "tuned"), strict=False))
    for key, tuning in known.items():
        info = (path / f"{key}-cache").stat()
        facts = {"tuning_mtime_ns": info.st_mtime_ns, "tuning_size_bytes": info.st_size}
        assert append(open_store(str(path)), [Event(key, COMPILE, 1, {"tuning": tuning, **facts})])
    return path, known


def labels(run_cli: RunCli, path: Path) -> dict[str, str]:
    entries = told(run_cli, "ls", "-C", path)["entries"]
    return {e["key"]: e["tuning"] for e in entries if e["tuning"]}


def test_a_label_is_of_this_very_file(run_cli: RunCli, labelled: Any) -> None:
    path, known = labelled
    assert labels(run_cli, path) == known
    untuned = next(k for k, tuning in known.items() if tuning == "untuned")
    document = told(run_cli, "show", "-C", path, untuned)
    assert document["entry"]["tuning"] == document["provenance"]["tuning"] == "untuned"
    prune = ("prune", "--untuned", "-C", path, "--grace", "0s", "--yes")
    removed = told(run_cli, *prune)["removed"]
    assert [(r["key"], r["reason"]) for r in removed] == [(untuned, "untuned")]
    assert not (path / f"{untuned}-cache").exists()
    ((tuned, _),) = known.items() - {(untuned, "untuned")}
    assert labels(run_cli, path) == {tuned: "tuned"}
    other = next(p for p in path.glob("*-cache") if tuned not in p.name)
    shutil.copyfile(other, path / f"{tuned}-cache")  # as if JAX had made it anew
    assert labels(run_cli, path) == {}


def test_the_label_goes_with_the_entry(run_cli: RunCli, labelled: Any, tmp_path: Path) -> None:
    path, known = labelled
    assert run_cli("export", "-C", path, "all.jaxcache").returncode == 0
    assert run_cli("import", "-C", tmp_path / "moved", "all.jaxcache").returncode == 0
    assert labels(run_cli, tmp_path / "moved") == known
    assert run_cli("seal", "-C", path).returncode == 0
    assert labels(run_cli, path) == known
