"""What commands print over real caches is what they printed before, byte for byte.

``tests/data/golden/COMMAND.json.xz`` maps each case to its exit code, standard output, standard
error and, where it changes a cache, the files afterwards. The tests take all of it again in
this process, with the clock, the paths and the owner of the files held still.
"""

import difflib
import hashlib
import json
import lzma
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from unittest import mock

import pytest
import zstandard
from command_line import run_in_process
from conftest import CORPUS, REPOSITORY
from terminal import columns

from jaxcache import __version__
from jaxcache.cache.ledger.record import COMPILE, HIT, PAYLOAD, PIN, Event
from jaxcache.cache.recipe import encode_recipe, open_recipe
from jaxcache.cli import terminal
from jaxcache.core.names import OWN_DIR
from jaxcache.layouts.torch import graph
from jaxcache.warm.crosshost.target_profile import read_profile

GOLDEN = Path(__file__).parent / "data" / "golden"
INPUTS = GOLDEN / "inputs"
#: Whoever repacks a payload gets the bytes of this library; sizes differ with any other.
ZSTD = ".".join(map(str, zstandard.ZSTD_VERSION))
NOW_NS = 1_780_000_000 * 10**9
_DAY_NS = 86_400 * 10**9
#: Each has the length of every other, so that tables keep their columns.
_ROOT = "/tmp/jaxcache-golden-XXXXXXXX"
_FORMS = {"json": ["--json"], "jsonl": ["--jsonl"], "tsv": [], "keys": ["-q"], "table": []}
#: In the place of a Python with jax that is asked what its keys depend on.
_PYTHON = """#!/bin/sh
cp "$(dirname "$0")"/0.10.2-cpu-zstd/jit_mlp-*-cache "$JAX_COMPILATION_CACHE_DIR"
echo '{"jax_version": "0.10.2", "jaxlib_version": "0.10.2", "platform": "cpu",' \\
    '"device_kind": "cpu", "platform_version": "cpu"}' > /dev/fd/"$3"
"""
PLAIN, ODD, TORCH = "0.12.0.1-cpu-zstd", "odd", "torch"
ALIKE, SHARED = "alike", "shared"
_CACHES = tuple(sorted(p.name for p in CORPUS.iterdir() if p.is_dir()))
_SOUND = (PLAIN, "0.4.38-cpu-zlib")
_CORE = (*_SOUND, "0.10.2-cuda13-h200-kernelcache", ODD, TORCH)
#: Sets of caches, and of forms, by the names that ``cases.txt`` uses.
_SETS = {
    "corpus": _CACHES,
    "older": tuple(name for name in _CACHES if name not in _CORE),
    "sound": _SOUND,
    "core": _CORE,
    "all": tuple(_FORMS),
    "page": tuple(form for form in _FORMS if form != "keys"),
}


@dataclass(frozen=True)
class Case:
    """One command line.

    Args:
        words: ``@`` is a fresh copy of ``source``.
        packs: its sizes depend on the version of zstd.
    """

    words: tuple[str, ...]
    forms: tuple[str, ...] = ()
    source: str | None = None
    packs: bool = False

    @property
    def command(self) -> str:
        return "-".join(self.words[:2]) if self.words[0] in ("ci", "target") else self.words[0]


def cases() -> Iterator[Case]:
    """Every command line of the record, as ``cases.txt`` lists them."""
    for line in (GOLDEN / "cases.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            names, _, command = line.partition(": ")
            forms = [form for name in names.split() for form in _SETS.get(name, (name,))]
            for text in _expand(re.sub(r"#(\d)", lambda match: f"{int(match[1]):064x}", command)):
                source = re.search(r" @(\S+)", text)
                words = re.sub(r" @\S+", " @", text).split()
                kinds = tuple(form for form in forms if form in _FORMS)
                yield Case(tuple(words), kinds, source and source[1], "packs" in forms)


def _expand(text: str) -> Iterator[str]:
    """Yield a line for each choice in braces; a choice may name a set."""
    before, _, rest = text.partition("{")
    choices, brace, after = rest.partition("}")
    if not brace:
        yield text
    for name in choices.split("|") if brace else ():
        for choice in _SETS.get(name, (name,)):
            yield from _expand(before + choice + after)


class World:
    """A directory with every cache, in which the commands run."""

    def __init__(self, root: Path, torch: Path) -> None:
        self.root = root
        for name in _CACHES:
            shutil.copytree(CORPUS / name, root / name)
        shutil.copytree(torch, root / TORCH)
        shutil.copytree(INPUTS, root, dirs_exist_ok=True)
        make_odd(root / ODD)
        make_alike(root / ALIKE)
        make_shared(root / SHARED)
        (root / "home").mkdir()
        (root / "python").write_text(_PYTHON)
        self.hold(root)

    def hold(self, directory: Path) -> None:
        """Give every file a date of its own and the usual bits; reads have left no trace."""
        for top, directories, files in os.walk(directory):
            directories.sort()
            os.chmod(top, 0o755)
            for number, name in enumerate(sorted(files)):
                path = os.path.join(top, name)
                at_ns = NOW_NS - (number % 50 + 1) * _DAY_NS
                if name.endswith("-atime") and Path(path).stat().st_size == 8:
                    used_ns = at_ns + _DAY_NS // 2
                    Path(path).write_bytes(used_ns.to_bytes(8, "little"))
                os.utime(path, ns=(at_ns, at_ns))
                os.chmod(path, 0o755 if name == "python" else 0o644)

    def run(self, case: Case, form: str, width: int | None = None) -> dict[str, object]:
        """Run one case; what it leaves behind goes away afterwards.

        Args:
            width: of a terminal that shows both streams.
        """
        before = {p.name for p in self.root.iterdir()}
        own = {*self.root.glob("*/.jaxcache")}
        words = [w.replace("@", "work") for w in case.words] + _FORMS[form]
        if case.source:
            shutil.copytree(self.root / case.source, self.root / "work")
        for name in words:
            if (self.root / name).is_dir():
                self.hold(self.root / name)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), "LANG": "C.UTF-8"}
        env |= {"COLUMNS": str(width or 100), "NO_COLOR": "1", "TZ": "UTC", "TERM": "xterm"}
        kind = {"on_terminal": form == "table", "one_stream": width is not None}
        with held_still(), mock.patch.object(terminal, "_BAR_AFTER_SECONDS", 1e9):
            done = run_in_process(words, env=env, cwd=self.root, **kind)
        found: dict[str, object] = {
            "code": done.returncode,
            "out": self.stable(done.stdout),
            "err": self.stable(done.stderr),
        }
        new = [p for p in self.root.iterdir() if p.name not in before]
        files = sorted(f for p in new for f in ([p] if p.is_file() else p.rglob("*")))
        if files := [f for f in files if f.is_file()]:
            found["files"] = [self.stable(self.named(f)) for f in files]
        for path in new:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in {*self.root.glob("*/.jaxcache")} - own:  # digests of torch's code
            shutil.rmtree(path)
        shutil.rmtree(self.root / "home")
        (self.root / "home").mkdir()
        return found

    def named(self, file: Path) -> str:
        """A file's name, and of a bundle, whose bytes are promised, its digest."""
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.suffix == ".jxb" else ""
        return f"{file.relative_to(self.root)} {digest}".rstrip()

    def stable(self, text: str) -> str:
        """The text without what differs from one run to the next."""
        text = text.replace(str(self.root), _ROOT).replace(__version__, "VERSION")
        text = re.sub(r"(jaxlib0.10.2)-[0-9a-f]{12}", r"\1-DIGEST", text)  # of the path, too
        text = re.sub(r'("environment_digest": ")[0-9a-f]{12}', r"\1DIGEST", text)
        text = re.sub(r'("longest_lock_seconds": )[\d.e-]+', r"\g<1>0.0", text)
        return re.sub(r"\b\d{19,20}-[0-9a-f]{16}\.jsonl", "SEGMENT.jsonl", text)


@contextmanager
def held_still() -> Iterator[None]:
    """Hold the clock and the disk, and use one worker: none of them is under test."""
    roomy = os.statvfs_result((4096, 4096, *[2**30] * 6, 0, 255))
    with (
        mock.patch.object(time, "time_ns", lambda: NOW_NS),
        mock.patch.object(time, "time", lambda: NOW_NS / 1e9),
        mock.patch.object(os, "sched_getaffinity", lambda _: {0}, create=True),
        mock.patch.object(os, "statvfs", lambda _: roomy),
    ):
        yield


def make_odd(cache: Path) -> None:
    """A cache with every trouble: hostile names, damage, leftovers, a record, quarantine."""
    shutil.copytree(CORPUS / "0.12.0.1-cpu-zstd-maxsize", cache)
    files = sorted(cache.glob("*-cache"))
    good = files[0].read_bytes()
    digest = hashlib.sha256(good).hexdigest()
    for name in ("jit_\x1b[2Jname", "jit_\ttab\nline", "jit_訓練\u202eevil", "jit_<script>"):
        (cache / f"{name}-{digest}-cache").write_bytes(good)
    (cache / f"jit_half-{digest}-cache").write_bytes(good[: len(good) // 2])
    (cache / f"jit_more-{digest}-cache").write_bytes(good + b"more")
    (cache / f"jit_none-{digest}-cache").write_bytes(b"")
    (cache / f"jit_old-{digest}").write_bytes(good)
    (cache / f"jit_gone-{digest}-atime").write_bytes(bytes(8))
    (cache / f"{files[1].name.removesuffix('cache')}atime").write_bytes(b"short")
    (cache / "notes.txt").write_text("notes")
    (cache / "_temp_jit_x").write_text("temporary")
    for directory in ("quarantine", "ledger"):
        (cache / OWN_DIR / directory).mkdir(parents=True)
    (cache / OWN_DIR / "quarantine" / f"jit_bad-{digest}-cache").write_bytes(good)
    keys = [p.name.removesuffix("-cache") for p in files]
    at_ns = NOW_NS - 3 * _DAY_NS
    facts = {
        "compile_seconds": 1.5,
        "jax_version": "0.12.0.1",
        "jaxlib_version": "0.12.0.1",
        "components": {"computation": "ab", "XLA flags": "cd"},
        "function": "step\x1b[2J",
        "script": "train.py",
    }
    events = [
        Event(keys[0], COMPILE, at_ns, facts),
        Event(keys[0], HIT, at_ns + 1, {"count": 3}),
        Event(keys[0], PAYLOAD, at_ns, {"payload_sha256": "0" * 64, "file_mtime_ns": 1}),
        Event(keys[2], PIN, at_ns),
        Event(keys[3], COMPILE, at_ns, facts | {"compile_seconds": 60.0}),
    ]
    (cache / OWN_DIR / "ledger" / f"{at_ns}-{'0' * 16}.jsonl").write_text(
        "".join(json.dumps(e.to_json()) + "\n" for e in events)
    )


def make_alike(cache: Path) -> None:
    """A cache whose modules have several keys, and whose keys are not what they are elsewhere."""
    cache.mkdir()
    (mlp, dtypes, loss, bigconst) = (
        next((CORPUS / PLAIN).glob(f"jit_{name}-*-cache"))
        for name in ("mlp", "dtypes", "loss", "bigconst")
    )
    for number, file in enumerate((mlp, dtypes, loss, bigconst)):  # other programs
        shutil.copy(file, cache / f"jit_f-{number:064x}-cache")
    for number in range(3):
        shutil.copy(mlp, cache / f"jit_same-{number:064x}-cache")
        shutil.copy(mlp, cache / f"jit_at_0x7f{number:010x}-{number:064x}-cache")
    # The second argument of the one is f32[4,16], and of the other f32[8,16].
    content = zstandard.decompress(loss.read_bytes(), max_output_size=1 << 24)
    other = content.replace(b"\x1a\x02\x04\x10", b"\x1a\x02\x08\x10")
    shutil.copy(loss, cache)
    (cache / f"jit_loss-{0:064x}-cache").write_bytes(zlib.compress(other, 0))
    shutil.copy(mlp, cache / bigconst.name)
    (cache / dtypes.name).touch()
    junk = bytes(4) + b"no executable" * 10
    (cache / f"jit_junk-{0:064x}-cache").write_bytes(zlib.compress(junk, 0))


def make_shared(cache: Path) -> None:
    """A cache with a directory of another program, and a tag for backups."""
    shutil.copytree(CORPUS / PLAIN, cache)
    theirs = cache / "levanter_kernel_autotune" / "deeper"
    theirs.mkdir(parents=True)
    (theirs / "block_sizes_v1.json").write_bytes(bytes(5000))
    (theirs.parent / ".jaxcache-tmp-1-theirs").touch()
    (cache / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")


COMMANDS = sorted({case.command for case in cases()})
#: What no terminal may get from a cache: control characters, and one that turns the order round.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture(scope="module")
def world(golden: Path) -> Iterator[World]:
    """A world whose path is as long as that of every other."""
    top = Path(tempfile.mkdtemp(prefix="jaxcache-golden-", dir="/tmp"))
    yield World(top, golden)
    shutil.rmtree(top)


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_as_recorded(command: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """To accept a change: ``JAXCACHE_UPDATE_GOLDEN=1 pytest tests/test_golden.py -k COMMAND``."""
    # Each command reads the same graphs of torch a dozen times.
    monkeypatch.setattr(graph, "decode_graph", lru_cache(graph.decode_graph))
    update = bool(os.environ.get("JAXCACHE_UPDATE_GOLDEN"))
    same_zstd = update or (GOLDEN / "zstd-version").read_text().strip() == ZSTD
    found = {}
    for case in cases():
        if case.command == command and (same_zstd or not case.packs):
            for form in case.forms:
                note = f"{form}, {case.source}" if case.source else form
                name = " ".join((*case.words, f"[{note}]"))
                found[name] = world.run(case, form)
                assert not CONTROL.search(f"{found[name]['out']}{found[name]['err']}"), name
    file = GOLDEN / f"{command}.json.xz"
    if update:
        text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
        file.write_bytes(lzma.compress(text.encode(), preset=9))
        (GOLDEN / "zstd-version").write_text(f"{ZSTD}\n")
    recorded = json.loads(lzma.decompress(file.read_bytes()))
    wanted = {name: recorded.get(name) for name in found}
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
    assert not CONTROL.search(shown)
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
