"""Makes bundles, of real caches and forged ones, and brings them in."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard
from conftest import CORPUS

from jaxcache.cache.bundle.format import Bundle, pack_header, pack_manifest, read_bundle
from jaxcache.cache.bundle.reader import verify_bundle
from jaxcache.cache.move.bundle_file import bundle_bytes, write_stream
from jaxcache.cache.move.export_plan import plan_export
from jaxcache.cache.move.import_bundle import execute_import, plan_import
from jaxcache.cache.move.plan import Outcome
from jaxcache.core.names import CACHE_TAG
from jaxcache.entry.codec import decompress_chunks
from jaxcache.store import make_store
from jaxcache.store.local import LocalStore

SMALL = CORPUS / "0.4.38-cpu-zstd"
#: No file of a test is young then.
LATER_NS = 4 * 10**18


def make_bundle(cache: Path, *, signers: tuple[Any, ...] = (), **options: Any) -> bytes:
    store = LocalStore(cache)
    exported = write_stream(store, plan_export(store, now_ns=LATER_NS, **options), level=3)
    with exported.stream:
        return b"".join(bundle_bytes(exported, signers))


def opened(data: bytes) -> Bundle:
    return read_bundle(io.BytesIO(data), "test")


def bring(data: bytes, target: Path, **options: Any) -> Outcome:
    """Import as the command does."""
    bundle = verify_bundle(opened(data))
    store = make_store(str(target))
    plan_options = {k: options.pop(k) for k in ("on_conflict", "side_caches") if k in options}
    plan = plan_import(store, bundle, cache_dir=str(target), **plan_options)
    return execute_import(store, bundle, plan, **options)


def contents(cache: Path) -> dict[str, bytes]:
    """Every file by name: decompressed where it is an entry, header included."""
    found = {}
    for path in filter(Path.is_file, cache.rglob("*")):
        name = str(path.relative_to(cache))
        if name not in (".lockfile", CACHE_TAG) and not name.startswith(".jaxcache"):
            is_plain = name.endswith("-atime") or "xla_gpu" in name
            found[name] = path.read_bytes() if is_plain else content_of(path)
    return found


def content_of(entry: Path) -> bytes:
    data = entry.read_bytes()
    return b"".join(decompress_chunks(io.BytesIO(data), len(data)))


def copy_of(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def first_entry(cache: Path) -> Path:
    return min(cache.glob("*-cache"))


def payload_of(entry: Path) -> bytes:
    return content_of(entry)[4:]


def padded(payload: bytes, size: int, last: int = 0) -> bytes:
    """An executable made larger by a field that no decoder knows (number 1000, of bytes)."""
    length = size - len(payload) - 7
    digits = bytes([length >> s & 127 | 128 for s in (0, 7, 14, 21)] + [length >> 28])
    return payload + b"\xc2\x3e" + digits + bytes(length - 1) + bytes([last])


def forged(change: Callable[[dict[str, Any]], object], content: bytes = b"payload") -> bytes:
    """A bundle whose digests all hold and whose manifest says what it likes."""
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    document: dict[str, Any] = {
        "format": 1,
        "stream": {"sha256": hashlib.sha256(packed).hexdigest(), "content_bytes": len(content)},
        "origins": [{"platform": "cpu"}],
        "entries": [forged_entry("jit_f", content)],
        "files": [],
    }
    change(document)
    manifest = pack_manifest(json.dumps(document).encode())
    return pack_header(manifest, len(packed), 0) + manifest + packed


def forged_entry(module: str, content: bytes, digit: str = "a") -> dict[str, Any]:
    return {
        "key": f"{module}-{digit * 64}",
        "codec": "zstd",
        "compile_seconds": 1,
        "size_bytes": 10,
        "payload_bytes": len(content),
        "payload_sha256": hashlib.sha256(content).hexdigest(),
        "created_ns": 10**18,
        "origin": 0,
    }
