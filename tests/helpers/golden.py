"""The golden record: what every command prints over real caches, held byte for byte.

``tests/data/golden/COMMAND.json.xz`` maps each case to its exit code, standard output, standard
error and, where it changes a cache, the files afterwards. :func:`record` takes all of it again in
this process, with the clock, the paths and the owner of the files held still.
"""

import hashlib
import json
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import zstandard
from command_line import run_in_process
from conftest import CORPUS

from jaxcache import __version__
from jaxcache.cache.ledger.record import COMPILE, HIT, PAYLOAD, PIN, Event
from jaxcache.core.names import OWN_DIR

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
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
ALL = tuple(_FORMS)
NO_KEYS = tuple(f for f in ALL if f != "keys")
PLAIN, ODD, TORCH = "0.12.0.1-cpu-zstd", "odd", "torch"
ALIKE, SHARED, CAPPED = "alike", "shared", "0.12.0.1-cpu-zstd-maxsize"
_CACHES = tuple(sorted(p.name for p in CORPUS.iterdir() if p.is_dir()))
_CORE = (PLAIN, "0.4.38-cpu-zlib", "0.10.2-cuda13-h200-kernelcache", ODD, TORCH)


@dataclass(frozen=True)
class Case:
    """One command line.

    Args:
        words: ``@`` is a fresh copy of ``source``.
        packs: its sizes depend on the version of zstd.
    """

    words: tuple[str, ...]
    forms: tuple[str, ...] = ("json",)
    source: str | None = None
    packs: bool = False

    @property
    def command(self) -> str:
        return "-".join(self.words[:2]) if self.words[0] in ("ci", "target") else self.words[0]


def _case(line: str, forms: tuple[str, ...] = ("json",), **others: object) -> Case:
    return Case(tuple(line.split()), forms, **others)  # type: ignore[arg-type]


def cases() -> Iterator[Case]:
    """Every command line of the record."""
    for cache in (*_CACHES, ODD, TORCH):
        forms = ALL if cache in _CORE else ("json",)
        page = tuple(f for f in forms if f != "keys")
        yield _case(f"ls -C {cache}", forms)
        yield _case(f"ls --long -C {cache} --sort size:desc", forms)
        yield _case(f"stats -C {cache}", page)
        yield _case(f"stats -C {cache} --prometheus", ("tsv",))
        yield _case(f"verify -C {cache}", forms)
        yield _case(f"show * -C {cache}", page)
        if cache == TORCH:
            page = ("json",)  # what these say is that they are for JAX's
        yield _case(f"explain --churn -C {cache}", page)
        yield _case(f"report out.html -C {cache}", page)
        yield _case(f"prune --max-entries 2 --dry-run -C {cache}", forms)
        yield _case(f"diff {cache} {cache}", forms)
    for cache in (PLAIN, ODD, TORCH):
        yield _case(f"ls -C {cache} --group-by module", ALL)
        yield _case(f"ls -C {cache} --filter size>4kB --limit 2", ALL)
    yield _case(f"ls -C {PLAIN} --group-by platform --sort compile jit_*")
    yield _case("ls -C some.recipe", ALL)
    yield _case("show jit* -C some.recipe", NO_KEYS)
    yield _case("show some.recipe", NO_KEYS)
    yield _case("target show h200.json --python /nowhere/python")
    yield _case("target show h200.json --python /bin/false", ("tsv",))
    for sides in (
        f"-C {PLAIN} jit_mlp jit_loss",
        f"-C {PLAIN} jit_mlp",
        "some.recipe",
        f"-C {TORCH} a*",
    ):
        yield _case(f"explain {sides}", NO_KEYS)
    for sides in (
        f"{PLAIN} 0.10.2-cpu-zstd",
        f"small.jxb {ODD}",
        "torch.jxb torch",
        "0.4.38-cpu-zstd 0.4.38-cpu-zlib",
    ):
        yield _case(f"diff {sides}", ALL)
    for level in ("quick", "full"):
        yield _case(f"verify -C {ODD} --level {level} --atimes --dry-run", ALL)
    for source in (PLAIN, ODD, TORCH, "0.4.38-cpu-zlib"):
        yield from _changes(source)
    for bundle in ("small.jxb", "signed.jxb", "kernels.jxb", "torch.jxb"):
        yield _case(f"import {bundle} -C new --python ./python --dry-run", ALL)
        yield _case(f"import {bundle} -C new --python ./python", ("json", "tsv"), packs=True)
    yield _case(
        "import small.jxb -C @ --python ./python", ALL, source="0.4.38-cpu-zlib", packs=True
    )
    yield _case("ci key --python ./python", NO_KEYS)
    names = "--hash-files some.recipe --prefix my/job --restore-keys"
    yield _case(f"ci key --python ./python {names}", ("json", "tsv"))
    yield from _moves()
    for source in _CACHES:
        yield _case("export all.jxb -C @", source=source, packs=True)
    yield _case("trust list", NO_KEYS)
    yield from _looks()
    yield from _refusals()
    yield _case("where", ("json", "tsv"))
    yield _case("ls -C nowhere", ("json", "tsv"))
    yield _case("ls --sort nonsense", ("json", "tsv"))
    yield _case(f"show nothing -C {PLAIN}", ("json", "tsv"))


def _looks() -> Iterator[Case]:
    """Choices of entries, and sentences for which a cache needs a certain content."""
    for cache in (*_CACHES, ODD, TORCH):
        yield _case(
            f"doctor -C {cache} --python /nowhere/python", NO_KEYS if cache == ODD else ("json",)
        )
    for line in ("ls", "verify", "doctor --python /nowhere/python", "stats"):
        yield _case(f"{line} -C {SHARED}", NO_KEYS)
    for line in ("ls -C .", "stats -C home"):
        yield _case(line, ("json", "tsv"))
    for text in (
        "size>5kB",
        "size<=5kB",
        "size>3kB --filter size<5kB",
        "module=jit_*l*",
        "module!=jit_mlp",
        "codec=zlib",
        "sealed=false",
        "compile<1",
        "unused<1s",
        "platform=gpu",
    ):
        yield _case(f"ls -C {PLAIN} --filter {text}", ("keys",))
    for options in ("--sort key --limit 1", "--sort size:asc --limit 3"):
        yield _case(f"ls -C {PLAIN} {options}", ("keys",))
    for options in (
        "codec",
        "module --limit 2",
        "module --sort size:asc",
        "function --sort compile",
    ):
        yield _case(f"ls -C {ALIKE} --group-by {options}", NO_KEYS)
    for options in ("--long", "--sort compile"):
        yield _case(f"ls -C {ALIKE} {options}", ("tsv", "table"))
    yield _case(f"ls -C {PLAIN} --sort compile", ("tsv",))
    yield _case(f"ls -C {PLAIN} --filter unused>9999d", ("table",))
    yield _case(f"ls -C {ODD} --filter jaxlib=0.12.0.1", ("keys",))
    yield _case(f"show jit_[jl]* -C {ALIKE}", NO_KEYS)
    yield _case(f"show jit_mlp* -C {PLAIN} --verbose", ("tsv", "table"))
    for text in ("mlp", "jit_mpl", "zzz"):
        yield _case(f"show {text} -C {PLAIN}", ("tsv",))
    yield _case(f"explain --churn -C {ALIKE}", NO_KEYS)
    for key in ("jit_loss", *(f"jit_f-{number:064x}" for number in range(4))):
        yield _case(f"explain {key} -C {ALIKE}")
    yield _case(f"diff {PLAIN} {ALIKE}", ALL)
    for options in (
        f"-C {ODD} --filter jaxlib=0.12.0.1 --unused-for 0s --grace 0s",
        f"-C {ODD} --quarantine --grace 30d",
        f"-C {ODD} --max-size 30kB --grace 12d",
        f"-C {ODD} --max-entries 2 --keep jit_l* --grace 12d",
        f"-C {CAPPED} --unused-for 365d",
        f"-C {CAPPED} --unused-for 67h",
        f"-C {CAPPED} --older-than 200000d",
        f"-C {PLAIN} --older-than 1d --filter size>4kB",
        f"-C {PLAIN} --older-than 1d --filter size>4kB --keep jit_mlp",
        f"-C {PLAIN} --older-than 1d --keep jit_mlp",
    ):
        yield _case(f"prune --dry-run {options}", ("json", "tsv"))
    yield _case("prune --max-size 30kB --grace 12d --yes -C @", ("json", "tsv"), source=ODD)
    yield _case("rm jit_mlp jit_d* --yes -C @", source=CAPPED)


def _refusals() -> Iterator[Case]:
    """Command lines that make no sense, which are refused before any work."""
    for options in (
        "--filter size",
        "--filter colour=red",
        "--filter size>big",
        "--filter module>a",
        "--filter sealed=maybe",
        "--filter age>3",
        "--filter compile>nan",
        "--sort size:up",
        "--group-by colour",
        "--limit -1",
        "--quiet --json",
        "--json --jsonl",
        "--no-such-option",
    ):
        yield _case(f"ls -C {PLAIN} {options}", ("json", "tsv"))
    for options in (
        "",
        "--policy lru",
        "--side-caches",
        "--max-size lots",
        "--unused-for 30",
        "--used-since never",
        "--max-entries 3 --policy fifo",
        "--max-entries -3",
        "--max-entries 3 -q",
    ):
        yield _case(f"prune -C nowhere --yes {options}", ("json", "tsv"))
    yield _case("prune --max-entries 0 --keep jit_typo --yes -C @", source=PLAIN)
    for options in ("", "--churn x", "a b c"):
        yield _case(f"explain -C {PLAIN} {options}", ("tsv",))
    for line in ("where --stop", "where -C x -- true", f"stats --prometheus --json -C {PLAIN}"):
        yield _case(line, ("tsv",))


def _moves() -> Iterator[Case]:
    """What moves entries of a part of a cache or into a bundle, and what is refused."""
    for source in ("small.jxb", "0.4.38-cpu-zlib"):
        yield _case(f"copy {source} out.jxb", ALL, packs=True)
        for option in ("--dry-run", "--atomic", "--on-conflict=fail"):
            yield _case(f"copy {source} out.jxb {option}", ("tsv",))
    for command in ("copy small.jxb new", "import small.jxb -C new"):
        yield _case(command, ("json", "tsv"), packs=True)
    for target in ("new", "new.jxb"):
        yield _case(f"copy home {target}", ("tsv",))
    for choice in ("jit_mlp*", "--filter module=jit_mlp", "--filter platform=cpu", "nothing"):
        yield _case(f"export out.jxb {choice} -C {PLAIN}", ("json", "tsv"), packs=True)
    for choice in (
        "--include jit_l*",
        "--include jit_l* --include jit_m*",
        "--exclude *loss*",
        "--include jit_l* --exclude *",
    ):
        yield _case(f"push other -C {PLAIN} --dry-run {choice}", ("keys", "tsv"))
    for name in ("out.tar.gz", "out.txt"):
        yield _case(f"export {name} -C {PLAIN}", ("tsv",))
    yield _case(f"export out.jxb --sign nobody -C {PLAIN}", ("tsv",))
    yield _case("import gone.jxb --on-conflict sometimes -C new", ("tsv",))
    yield _case(f"push http://127.0.0.1:9/x -C {PLAIN}", ("tsv",))
    yield _case(f"push out.jxb -C {PLAIN}", ("tsv",))
    yield _case("pull absent -C new", ("tsv",))
    yield _case("ci restore small.jxb -C @ --everything", NO_KEYS, source="0.4.38-cpu-zstd")
    yield _case("ci restore small.jxb -C new --everything --lookup-only", NO_KEYS)
    for place in (PLAIN, "s3://bucket/cache"):
        yield _case(f"ci restore {PLAIN} -C {place}", ("tsv",))
    yield _case(f"ci save {PLAIN} -C {PLAIN}", ("tsv",))
    for status in ("", "running", "-1"):
        yield _case(f"ci save out.jxb -C {PLAIN} --job-status={status}", ("tsv",))
    for shard in ("0/4", "5/4", "1", "1/0", "a/b", "-1/2", "1/2/3", "1/9999999"):
        yield _case(f"compile some.recipe --shard={shard}", ("tsv",))
    for recipe in ("small.jxb", "python", "gone"):
        yield _case(f"compile {recipe}", ("tsv",))
    yield _case("target capture new --python /nowhere/python", ("tsv",))
    yield _case("trust remove nobody", ("tsv",))


def _changes(source: str) -> Iterator[Case]:
    """Whatever changes a cache, without and with ``--dry-run``."""
    for line in (
        "verify --fix",
        "verify --fix --delete --yes",
        "verify --restore",
        "prune --max-entries 3 --policy lru --yes",
        "prune --keep-last 1 --yes",
        "prune --orphans --legacy --side-caches --quarantine --older-than 5d --yes",
        "rm * --yes",
    ):
        yield _case(f"{line} --dry-run -C @", ALL, source=source)
        yield _case(f"{line} -C @", ("json", "tsv"), source=source)
    if source != TORCH:
        yield _case("seal --dry-run -C @", ALL, source=source)
        yield _case("seal -C @", ALL, source=source, packs=True)
        yield _case("pin jit_m* -C @", NO_KEYS, source=source)
        yield _case("unpin jit_m* -C @", NO_KEYS, source=source)
    yield _case("export out.jxb -C @", ALL, source=source, packs=True)
    yield _case(
        "export out.jxb -C @ --since small.jxb jit_m*", ("json", "tsv"), source=source, packs=True
    )
    yield _case("copy @ other", ALL, source=source)
    yield _case("copy @ other --dry-run", ALL, source=source)
    yield _case("push other -C @ --dry-run", ALL, source=source)
    yield _case("push other -C @", ALL, source=source)
    yield _case("pull @ -C other", ALL, source=source)
    yield _case("pull @ -C other --include jit_m* --dry-run", ALL, source=source)
    yield _case("ci restore @ -C other --everything", ALL, source=source)
    yield _case("ci restore @ -C other --everything --lookup-only", ALL, source=source)
    yield _case("ci save other -C @ --save-if always --dry-run", ALL, source=source)
    yield _case("ci save other -C @ --save-if always", ALL, source=source)


class World:
    """A directory with every cache, in which the commands run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in _CACHES:
            shutil.copytree(CORPUS / name, root / name)
        with tarfile.open(CORPUS.parent / "torch" / "golden.tar.xz") as archive:
            archive.extractall(root / "unpacked", filter="data")
        (root / "unpacked" / "cache").rename(root / TORCH)
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

    def run(self, case: Case, form: str) -> dict[str, object]:
        """Run one case; what it leaves behind goes away afterwards."""
        before = {p.name for p in self.root.iterdir()}
        own = {*self.root.glob("*/.jaxcache")}
        words = [w.replace("@", "work") for w in case.words] + _FORMS[form]
        if case.source:
            shutil.copytree(self.root / case.source, self.root / "work")
        for name in words:
            if (self.root / name).is_dir():
                self.hold(self.root / name)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home"), "LANG": "C.UTF-8"}
        env |= {"COLUMNS": "100", "NO_COLOR": "1", "TZ": "UTC"}
        with held_still():
            done = run_in_process(words, env=env, cwd=self.root, on_terminal=form == "table")
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


@contextmanager
def make_world() -> Iterator[World]:
    """Make a world whose path is as long as that of every other."""
    top = Path(tempfile.mkdtemp(prefix="jaxcache-golden-", dir="/tmp"))
    try:
        yield World(top)
    finally:
        shutil.rmtree(top)


def record(world: World, chosen: Iterable[Case]) -> dict[str, dict[str, object]]:
    """Run cases and return what each gave, by its command line and format."""
    found = {}
    for case in chosen:
        for form in case.forms:
            note = f"{form}, {case.source}" if case.source else form
            found[" ".join((*case.words, f"[{note}]"))] = world.run(case, form)
    return found


def read(command: str) -> dict[str, dict[str, object]]:
    """The committed record of one command."""
    loaded: dict[str, dict[str, object]] = json.loads(
        lzma.decompress((GOLDEN / f"{command}.json.xz").read_bytes())
    )
    return loaded


def write(command: str, found: dict[str, dict[str, object]]) -> None:
    """Commit to what one command gives now."""
    text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
    (GOLDEN / f"{command}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
