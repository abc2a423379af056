"""What forged files, links, and files of other programs in a cache can do to it, and it to them."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import GiveAway, RunCli
from object_server import Proxy
from own_files import ROWS, state
from ways import OLD_NS, WAYS, names, old_copy

from jaxcache.cache.files import (
    find_caches,
    is_foreign,
    new_atime,
    parse_atime,
    scratch_directory,
)

NOW_NS = time.time_ns()
#: What stands for the words in capitals in the table.
WORDS = {
    "TIME-NAME": f"{17 * 10**17:020d}-{'a' * 16}",
    "TIME/FILE": f"20260101T000000Z-000000000/jit_x-{'0' * 64}-cache",
    "NAME/FILE": f"x-1/jit_x-{'0' * 64}-cache",
    "TIER/KEY": f"{'0' * 16}/jit_x-{'0' * 64}",
    "NAME": "a" * 16,
}


def entries(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("*-cache")}


def accusation(cache: Path) -> bytes:
    """Lines, each a JSON object, that say the worst of every entry."""
    lines = []
    for name in entries(cache):
        key, status = name.removesuffix("-cache"), (cache / name).stat()
        facts = {
            "payload_sha256": "0" * 64,
            "file_mtime_ns": status.st_mtime_ns,
            "file_size_bytes": status.st_size,
        }
        for kind in ("payload", "removed", "hit", "compile"):
            for at_ns in (5, NOW_NS, 2**62):
                row = {"key": key, "kind": kind, "at_ns": at_ns, "count": 2**62, "pid": 1}
                lines.append(json.dumps({**row, **facts}))
    return "\n".join(lines).encode()


def forgeries(cache: Path) -> Iterator[bytes]:
    yield b""
    yield accusation(cache)
    yield b"[" * 100_000
    yield b'{"started_ns": 1e999, "entries": {"\\u001b[2J": [NaN, "", null]}, "a": ' + b"9" * 5000
    yield b"\0\xff" * 1000


def name_of(row: str) -> str:
    """Return a file that the row of the table means, below ``.jaxcache``."""
    for word, value in WORDS.items():
        row = row.replace(word, value)
    return row


#: Files of the table: those of the ledger, without which nothing is removed, apart from the others.
OF_LEDGER = [name for name in map(name_of, ROWS) if name.startswith("ledger/")]
OTHERS = [name for name in map(name_of, ROWS) if name not in OF_LEDGER]


@pytest.mark.parametrize("files", [OF_LEDGER, OTHERS], ids=["ledger", "others"])
def test_forged_files_harm_no_entry(
    run_cli: RunCli, local: Path, tmp_path: Path, files: list[str]
) -> None:
    paths = [local / ".jaxcache" / name for name in files]
    before = entries(local)
    for number, content in enumerate(forgeries(local)):
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(content)
        for command in (
            ("verify", "--fix", "--grace", "0s"),
            ("prune", "--unused-for", "1000w", "--yes"),
            ("stats",),
            ("ci", "save", tmp_path / f"{number}.jxb"),
        ):
            done = run_cli(*command, "-C", local)
            assert done.returncode in (0, 1, 3) and "internal" not in done.stderr, done
            assert "\x1b" not in done.stdout + done.stderr
        assert entries(local) == before


OWN = Path(".jaxcache")
#: Files of the table and directories above them that lie at the same depth.
LINKS = [
    {p for name in files for p in (OWN / name, *(OWN / name).parents) if len(p.parts) == depth}
    for files, depths in ((OF_LEDGER, (1, 2, 3)), (OTHERS, (2, 3, 4, 5)))
    for depth in depths
]


@pytest.mark.parametrize("links", LINKS)
def test_nothing_behind_a_link_is_touched(
    run_cli: RunCli, capped_cache: Path, tmp_path: Path, give_away: GiveAway, links: set[Path]
) -> None:
    """The links are another user's."""
    victim = tmp_path / "victim"
    (victim / "ledger").mkdir(parents=True)
    for name in ("thesis.tex", "ledger/notes.jsonl", ".jaxcache-tmp-1-aa"):
        (victim / name).write_text("precious\n")
    run_cli("export", "bundle.jxb", "-C", capped_cache)
    for link in links:
        path = capped_cache / link
        path.parent.mkdir(parents=True, exist_ok=True)
        is_file = str(link.relative_to(OWN)) in (*OF_LEDGER, *OTHERS)
        path.symlink_to(victim / "thesis.tex" if is_file else victim)
    give_away(capped_cache / OWN)
    first, second = sorted(capped_cache.glob("*-cache"))[:2]
    first.write_bytes(b"damaged")
    before = state(victim)
    for words in (
        ("verify", "--fix", "--grace", "0s"),
        ("pin", second.name.removesuffix("-cache")),
        ("prune", "--max-entries", "2", "--quarantine", "--orphans", "-y"),
        ("import", "bundle.jxb"),
    ):
        done = run_cli(*words, "-C", capped_cache)
        assert "internal" not in done.stderr, done.stderr
    assert state(victim) == before


def test_entries_that_are_links_are_named(run_cli: RunCli, tmp_path: Path, corpus: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for path in (corpus / "0.12.0.1-cpu-zstd").glob("*-cache"):
        (cache / path.name).symlink_to(path)
    assert len(run_cli("ls", "-q", "-C", cache).stdout.splitlines()) == 7
    checked = run_cli("verify", "-C", cache)
    assert (checked.returncode, checked.stdout.count("is a symbolic link")) == (1, 7)
    for words in (("export", "out.jxb", "-C", cache), ("copy", cache, "out")):
        done = run_cli(*words)
        named = done.stderr.count("is a symbolic link, which is not followed")
        assert (done.returncode, named) == (3, 7), done


def test_attributes_of_macos_are_no_entries(run_cli: RunCli, local: Path) -> None:
    for path in [*local.glob("*-cache")]:
        (local / f"._{path.name}").write_bytes(b"\0\5\x16\7")
    assert run_cli("export", "out.jxb", "-C", local).returncode == 0
    run_cli("prune", "--max-entries", "6", "--grace", "0s", "-y", "-C", local)
    assert len(run_cli("ls", "-q", "-C", local).stdout.splitlines()) == 6


# ``CACHEDIR.TAG`` in each cache that a command fills, and directories of other programs.


TAG = "CACHEDIR.TAG"
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n"
#: A directory of another program, with a file whose name is like one of ours.
THEIRS = "levanter_kernel_autotune"
FILE = f"{THEIRS}/deeper/.jaxcache-tmp-1-theirs"
#: Commands that fill a directory.
FILLS = ["copy", "pull", "push", "restore", "save"]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    shared = old_copy(tmp_path / "cache")
    (shared / TAG).write_bytes(SIGNATURE)
    (shared / FILE).parent.mkdir(parents=True)
    (shared / FILE).write_bytes(bytes(5000))
    for path in shared.rglob("*"):
        os.utime(path, ns=(OLD_NS, OLD_NS))
    return shared


@pytest.mark.parametrize(
    ("way", "content"),
    [
        *((way, None) for way in FILLS),
        *((way, "train.py") for way in FILLS),
        ("pull", ".lockfile"),
        ("pull", "lost+found/"),
        ("pull", "notes-cache/"),
    ],
)
def test_a_command_tags_the_cache_that_it_fills_and_carries_nothing_of_others(
    run_cli: RunCli, shared: Path, tmp_path: Path, way: str, content: str | None
) -> None:
    """A directory with other files is not tagged."""
    other = tmp_path / "other"
    if content:
        directory = other / content if content.endswith("/") else other
        directory.mkdir(parents=True)
        (other / content).touch()
    done = run_cli(*WAYS[way](shared, other))
    assert done.returncode == 0, done.stderr
    assert names(other) - {"notes-cache"} == names(shared)
    assert (other / TAG).exists() == (content in (None, ".lockfile"))
    assert not (other / THEIRS).exists()


def test_a_bucket_gets_neither(run_cli: RunCli, shared: Path, bucket: str, s3: Proxy) -> None:
    assert run_cli("push", bucket, "-C", shared).returncode == 0
    sent = s3.names("put")
    assert sent and not any(TAG in name or THEIRS in name for name in sent)


def test_what_others_have_stays_and_does_not_count(
    run_cli: RunCli, shared: Path, tmp_path: Path
) -> None:
    own = [path for path in shared.iterdir() if path.name not in (TAG, THEIRS)]
    size = sum(path.stat().st_size for path in own)
    done = run_cli("prune", "--max-size", size, "-C", shared, "--dry-run")
    assert "nothing to remove" in done.stderr
    for line in (
        "prune --max-size 0 --orphans --legacy --quarantine --side-caches --yes",
        "rm * --yes",
        "verify --fix --delete --yes",
    ):
        copy = Path(shutil.copytree(shared, tmp_path / line.partition(" ")[0]))
        assert run_cli(*line.split(), "-C", copy).returncode == 0
        kept = (copy / TAG).read_bytes(), (copy / FILE).read_bytes()
        assert kept == (SIGNATURE, bytes(5000))


# What lies in a directory, by names alone.


ENTRY = f"jit_f-{0:064x}-cache"


def touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()


@pytest.mark.parametrize(
    ("files", "foreign"),
    [
        ([], False),
        ([".git/config"], False),
        (["CACHEDIR.TAG"], False),
        (["CACHEDIR.TAG", "notes.txt"], True),
        (["notes.txt", ENTRY], False),
        (["notes.txt", "xla_gpu_kernel_cache_file"], False),
        (["notes.txt", "fxgraph/x"], False),
        (["ci/train.py"], True),
        (["ci/cci4.py"], False),
    ],
)
def test_a_directory_of_other_programs_is_foreign(
    tmp_path: Path, files: list[str], foreign: bool
) -> None:
    touch(tmp_path, *files)
    assert is_foreign(str(tmp_path)) is foreign


def test_caches_are_found_three_levels_below(tmp_path: Path) -> None:
    touch(tmp_path, f"one/{ENTRY}", f"a/b/three/{ENTRY}", f"a/b/c/four/{ENTRY}")
    touch(tmp_path, "empty/.jaxcache/ledger/x", f".jaxcache/x/{ENTRY}", "torch/fxgraph/x")
    (tmp_path / "link").symlink_to("one")
    below = [str(tmp_path / name) for name in ("a/b/three", "empty", "one", "torch")]
    assert find_caches(str(tmp_path)) == tuple(below)
    assert find_caches(below[2]) == find_caches(f"{below[2]}/{ENTRY}") == ()


@pytest.mark.parametrize(
    ("data", "used_ns"),
    [
        (bytes(8), 0),
        (b"\1" + bytes(7), 1),
        ((2**63 - 1).to_bytes(8, "little"), 2**63 - 1),
        ((2**63).to_bytes(8, "little"), None),
        (bytes(7), None),
        (bytes(9), None),
    ],
)
def test_a_date_has_eight_bytes(data: bytes, used_ns: int | None) -> None:
    assert parse_atime(data) == used_ns
    for value, written in ((-1, 0), (2**63, 2**63 - 1), (used_ns or 5, used_ns or 5)):
        new = new_atime(ENTRY, value)
        assert new and new.name == ENTRY.replace("-cache", "-atime")
        assert [*map(parse_atime, new.chunks)] == [written]
    assert new_atime(ENTRY.removesuffix("-cache"), 1) is None


def test_directories_that_killed_commands_left_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they are old, unless somebody uses them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    touch(tmp_path, ".jaxcache-tmp-x-old/file", ".jaxcache-tmp-x-new/file", "other/file")
    for name, age_seconds in ((".jaxcache-tmp-x-old", 61), (".jaxcache-tmp-x-new", 50)):
        os.utime(tmp_path / name, (time.time() - age_seconds,) * 2)
    os.utime(tmp_path / "other", (0, 0))
    with scratch_directory("test") as path:
        os.utime(path, (0, 0))
        with scratch_directory("test"):
            assert Path(path).is_dir()
    assert {p.name for p in tmp_path.iterdir()} == {".jaxcache-tmp-x-new", "other"}
