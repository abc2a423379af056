"""A small world in which every command has something to do, and what can be told of its state."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.faults.process import COMPACT_ABOVE, DAY_NS, NOW_NS, run_cli

CORPUS = Path(__file__).parents[2] / "tests" / "data" / "corpus"
_DATED, _UNDATED = "0.12.0.1-cpu-zstd-maxsize", "0.12.0.1-cpu-zstd"
_OLDER, _OLDEST, _GPU, _OTHER_GPU = (
    "0.10.2-cpu-zstd",
    "0.4.30-cpu-zstd",
    "0.12.0.1-cuda13-h200-zstd",
    "0.10.2-cuda13-h200-kernelcache",
)
_AUTOTUNE = "xla_gpu_per_fusion_autotune_cache_dir"
_GONE = f"jit_gone-{'0' * 64}-atime"


@dataclass(frozen=True, slots=True)
class State:
    """What a world holds, without what nobody promises: names of segments, times of day."""

    files: dict[str, str]
    """What each file says, by name: bytes, permissions and, of an entry, its time."""
    sealed: dict[str, str]
    """The same of entries without a checksum, as they are in the cache that they are carried to."""
    leftovers: frozenset[str]
    """Temporary names."""
    torn: tuple[str, ...]
    """Files that no reader would take for whole."""
    payloads: frozenset[str]
    """Digest of every payload that is in a cache or its quarantine."""
    undated: frozenset[str]
    """Entries of a dated cache without a date."""
    records: dict[str, str]
    """What the ledgers know of each key, by fact."""


def build(root: Path) -> None:
    """Make the world."""
    for name in ("cache", "other", "source", "gpu", "home", "tmp", "out"):
        (root / name).mkdir(parents=True)
    cache, source = root / "cache", root / "source"
    _copy(_DATED, cache)
    _copy(_OLDER, cache, "jit_bigconst", "jit_mlp", "jit_loss", "jit_dtypes")
    _copy(_OLDEST, cache, "jit_mlp")
    _copy(_UNDATED, root / "other", "jit_mlp", "jit_loss")
    _copy(_GPU, root / "gpu", "jit_bigconst", "jit_sort")
    public = _cli(root, "trust", "keygen", "ours").partition("\t")[2].strip()
    _cli(root, "trust", "add", "us", public)
    _bundles(root, source)
    _sign_some(root, source)
    _date(cache)
    _cli(root, "pin", "-C", cache, _key(cache, _DATED, "jit_loss"))
    _cli(root, "trust", "add", "foe", f"jaxcache-ed25519 {'B' * 43}=")
    _ledger(root)
    bad = _file(cache, _OLDER, "jit_dtypes")
    os.truncate(bad, 100)
    _age(bad, 20)
    _cli(root, "verify", "-C", cache, "--fix")  # fills the quarantine
    (quarantined,) = cache.glob(f".jaxcache/quarantine/*/{bad.name}")
    shutil.copy(_file(CORPUS / _OLDER, _OLDER, "jit_dtypes"), quarantined)  # so that it is restored
    _age(quarantined, 20)
    _spoil(cache)


def build_torch(root: Path) -> None:
    """Make the same of a cache of torch's compilers."""
    for name in ("home", "tmp", "out"):
        (root / name).mkdir(parents=True)
    with tarfile.open(CORPUS.parent / "torch" / "golden.tar.xz") as golden:
        golden.extractall(root, filter="data")
    cache = root / "cache"
    _cli(root, "export", "in.jxb", "-C", cache)
    for path in cache.rglob("*"):
        _age(path, 10)
    _cut(min(cache.glob("aotautograd/*/*")))
    _cli(root, "verify", "-C", cache, "--fix")  # fills the quarantine
    _cut(max(cache.glob("fxgraph/*/*/*")))
    _cut(max(cache.glob("*/*.main.so")))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
    _age(path, 9)


def _copy(version: str, to: Path, *modules: str) -> None:
    for path in sorted((CORPUS / version).iterdir()):
        if not modules or path.name.startswith(tuple(f"{m}-" for m in modules)):
            shutil.copy(path, to)


def _file(cache: Path, version: str, module: str) -> Path:
    (found,) = (CORPUS / version).glob(f"{module}-*-cache")
    return cache / found.name


def _key(cache: Path, version: str, module: str) -> str:
    return _file(cache, version, module).name.removesuffix("-cache")


def _bundles(root: Path, source: Path) -> None:
    """What is imported: new entries, one that heals, one that conflicts, files of XLA."""
    _copy("0.8.3-cpu-zstd", source)
    _copy(_OLDER, source, "jit_mlp")
    conflict = _file(source, _DATED, "jit_loss")
    shutil.copy(_file(CORPUS / _UNDATED, _UNDATED, "jit_loss"), conflict)
    (source / _AUTOTUNE).mkdir()
    for name, text in (("a", "of the bundle"), ("b", "only in the bundle")):
        path = source / _AUTOTUNE / f"{name}.textproto"
        path.write_text(text)
        _age(path, 5)  # a young one does not travel
    _date(source)
    _cli(root, "export", "in.jxb", "-C", source, "--sign", "ours")
    _cli(root, "export", "out/old.jxb", "-C", root / "other")


def _sign_some(root: Path, source: Path) -> None:
    """Make a cache of which some entries are signed, and others are not."""
    _cli(root, "copy", source, "signed", "--sign", "ours")
    _copy("0.6.2-cpu-zstd", root / "signed", "jit_mlp", "jit_loss")


def _date(cache: Path) -> None:
    """Give entries ages from 1 to 48 days, and dates to go with them."""
    for number, path in enumerate(sorted(cache.glob("*-????????????????*"))):
        if path.name.endswith("-atime"):
            continue
        _age(path, 1 + 4 * number)
        if path.name.endswith("-cache") and cache.name == "cache":
            stamp = path.with_name(path.name.removesuffix("-cache") + "-atime")
            stamp.write_bytes((NOW_NS - (1 + 4 * number) * DAY_NS).to_bytes(8, "little"))
            _age(stamp, 1 + 4 * number)


def _age(path: Path, days: int) -> None:
    then = NOW_NS - days * DAY_NS
    os.utime(path, ns=(then, then))


def _ledger(root: Path) -> None:
    from jaxcache.cache.ledger.record import HIT, Event
    from jaxcache.cache.ledger.write import append
    from jaxcache.store import open_store

    store = open_store(str(root / "cache"))
    key = _key(root / "cache", _DATED, "jit_mlp")
    for number in range(COMPACT_ABOVE):  # and there are others: one seal more and it compacts
        append(store, [Event(key, HIT, NOW_NS - number * DAY_NS)])


def _spoil(cache: Path) -> None:
    os.truncate(_file(cache, _OLDER, "jit_mlp"), 700)
    _age(_file(cache, _OLDER, "jit_mlp"), 30)
    os.truncate(_file(cache, _OLDER, "jit_loss"), 0)
    _age(_file(cache, _OLDER, "jit_loss"), 31)
    undated = _file(cache, _DATED, "jit_dtypes")
    undated.with_name(undated.name.removesuffix("-cache") + "-atime").unlink()
    (cache / _GONE).write_bytes(bytes(8))
    (cache / ".jaxcache-tmp-1-abandoned").write_bytes(b"half")
    (cache / _AUTOTUNE).mkdir()
    (cache / _AUTOTUNE / "a.textproto").write_text("of the cache")
    for path in (
        cache / _GONE,
        cache / ".jaxcache-tmp-1-abandoned",
        cache / _AUTOTUNE / "a.textproto",
    ):
        _age(path, 50)
    _file(cache, _DATED, "jit__fun").chmod(0o666)


def _cli(root: Path, *args: str | Path) -> str:
    done = run_cli(root, [str(a) for a in args])
    assert done.code == 0, (args, done)
    return done.stdout


@contextlib.contextmanager
def copy_of(template: Path, name: str) -> Iterator[Path]:
    """A world of one's own, for a while."""
    copy = template.with_name(f"{template.name}-{name}")
    shutil.copytree(template, copy, symlinks=True, copy_function=_copy_file)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def _copy_file(source: str, target: str) -> None:
    """Copy a file without reading it for the kernel: a last use may be taken from access times."""
    Path(target).write_bytes(_read(Path(source)))
    shutil.copystat(source, target)


def look(root: Path) -> State:
    """Read a world."""
    files: dict[str, str] = {}
    sealed: dict[str, str] = {}
    leftovers, torn, payloads, undated = set(), [], set(), set()
    records: dict[str, str] = {}
    for path in sorted(p for p in root.rglob("*") if not p.is_dir()):
        name = str(path.relative_to(root))
        if name.startswith("tmp/"):  # the system's own directory for what is temporary
            continue
        if _is_temporary(name):
            leftovers.add(name)
        elif path.name.endswith("-atime") and "/quarantine/" in name:
            continue  # restoring makes a date where there is none
        elif path.name.endswith("-atime") and not path.with_name(path.name[:-5] + "cache").exists():
            leftovers.add(name)
        elif path.name == ".lockfile" or "/locks/" in name or "/.jaxcache/ledger/" in name:
            continue  # locks are empty, and made where there are none
        elif path.name == "CACHEDIR.TAG":
            torn += [] if path.stat().st_size else [name]  # a mark for backups, made once or not
        elif "/.jaxcache/signatures/" in name:
            files |= _signed(root, path)
        elif name.endswith("/.jaxcache/ci.json"):
            files[name] = "a baseline"  # of one moment
            torn += [] if _is_json(path) else [name]
        elif name.endswith((".idx", ".graphs")):
            torn += [] if _is_index(path) else [name]
        elif ".jxb" in path.name:
            _look_at_bundle(root, name, files, torn)
        elif path.suffix == ".key":
            files[name] = "a private key"
            torn += [] if _is_private_key(path) else [name]
        else:
            files[_without_moment(name)] = _describe(path, _read(path))
            if payload := _payload(path):
                payloads.add(payload)
                sealed[name] = _describe(path, _sealed(_read(path)))
    for cache in ("cache", "other", "new"):
        if (root / cache).is_dir():
            undated |= _undated(root / cache)
            torn += _read_ledger(root / cache, records)
    return State(
        files,
        sealed,
        frozenset(leftovers),
        tuple(torn),
        frozenset(payloads),
        frozenset(undated),
        records,
    )


def _is_temporary(name: str) -> bool:
    base = os.path.basename(name)
    return (
        base.startswith(".jaxcache-tmp-") or base.endswith(".tmp") or "/.jaxcache/incoming/" in name
    )


def _without_moment(name: str) -> str:
    """Quarantine has one directory for each moment."""
    head, found, rest = name.partition("/.jaxcache/quarantine/")
    return f"{head}{found}*/{rest.partition('/')[2]}" if found else name


def _read(path: Path) -> bytes:
    """Looking must not make an entry look used."""
    with open(os.open(path, os.O_RDONLY | os.O_NOATIME), "rb") as file:
        return file.read()


def _sealed(data: bytes) -> bytes:
    """The frame with a checksum: its flag, and four bytes after the same blocks."""
    from jaxcache.entry.codec import seal_entry

    sealed = bytes(seal_entry(data))
    assert sealed == data or (sealed[5:-4], len(sealed)) == (data[5:], len(data) + 4)
    return sealed


def _signed(root: Path, path: Path) -> dict[str, str]:
    """What a file of signatures vouches for with the key of this world."""
    from jaxcache.cache.trust import read_private_key
    from jaxcache.core.signing import read_signed

    private = read_private_key(root / "home" / "config" / "jaxcache" / "ours.key")
    key = private.public_key().public_bytes_raw()
    signed = read_signed(_read(path), {key})
    return {f"{path.parents[2].name}/{name}: signed": repr(d) for name, d in signed.items()}


def _describe(path: Path, data: bytes) -> str:
    status = path.lstat()
    said = f"{hashlib.sha256(data).hexdigest()[:16]}, {len(data)} bytes"
    said += f", mode {stat.S_IMODE(status.st_mode):o}"
    return f"{said}, of {status.st_mtime_ns}" if path.name.endswith("-cache") else said


def _payload(path: Path) -> str | None:
    from jaxcache.entry.codec import CodecError, decompress_chunks

    if not path.name.endswith("-cache") and "-" not in path.name:
        return None
    data = _read(path)
    try:
        content = b"".join(decompress_chunks(io.BytesIO(data), len(data)))
    except CodecError:
        return None
    return hashlib.sha256(content[4:]).hexdigest()[:16]


def _undated(cache: Path) -> set[str]:
    """Entries that a JAX with a size cap would stumble over."""
    if not any(cache.glob("*-atime")):
        return set()
    entries = {p.name.removesuffix("-cache") for p in cache.glob("*-cache")}
    return entries - {p.name.removesuffix("-atime") for p in cache.glob("*-atime")}


def _read_ledger(cache: Path, records: dict[str, str]) -> list[str]:
    from jaxcache.cache.ledger.segments import Ledger
    from jaxcache.store import open_store

    ledger = Ledger.load(open_store(str(cache)))
    for key in ledger:
        record = ledger.record(key)
        assert record is not None
        said = {
            "payload": record.payload_sha256,
            "hits": record.hits,
            "pinned": record.pinned,
            "sealed": record.sealed_ns is not None,
            "seconds": record.compile_seconds,
        } | record.extra
        if any(said.values()):  # a removal alone says nothing else
            records |= {f"{cache.name}/{key}: {what}": repr(fact) for what, fact in said.items()}
    return [f"{cache.name}: {ledger.damaged} damaged parts of the ledger"] if ledger.damaged else []


def _is_index(path: Path) -> bool:
    from jaxcache.cache.index import read_checked

    try:
        read_checked(path, path.read_bytes().partition(b"\n")[0] + b"\n")
    except (OSError, ValueError):
        return False
    return True


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def _is_private_key(path: Path) -> bool:
    from jaxcache.cache.trust import read_private_key
    from jaxcache.errors import JaxcacheError

    try:
        read_private_key(path)
    except JaxcacheError:
        return False
    return True


def _look_at_bundle(root: Path, name: str, files: dict[str, str], torn: list[str]) -> None:
    from jaxcache.cache.bundle.format import open_bundle
    from jaxcache.cache.bundle.reader import verify_bundle
    from jaxcache.errors import JaxcacheError

    try:
        bundle = open_bundle(str(root / name))
        with bundle.file:
            verify_bundle(bundle)
            manifest = bundle.manifest
            signatures = len(bundle.signatures)
    except JaxcacheError as error:
        torn.append(f"{name}: {error.message}")
        return
    said = sorted((i.key, i.payload_sha256) for i in manifest.items)
    files[name] = hashlib.sha256(repr((said, manifest.files, signatures)).encode()).hexdigest()
