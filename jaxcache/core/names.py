"""The names in a cache directory that several parts of jaxcache use, and the frame of an entry.

``jaxcache.entry.names`` defines what each name means, over every generation of JAX.

JAX compresses an entry with zstd (RFC 8878) or zlib; the content is 4 bytes of compile seconds and
the payload (``jax/_src/compilation_cache.py``).
"""

import os
import re
import time
from typing import NamedTuple

from .system import user_directory

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: Bit 2 of the frame header descriptor: the content's checksum follows the last block.
CHECKSUM_FLAG = 1 << 2
CHECKSUM_BYTES = 4
#: The compile time, in whole seconds, before the payload.
HEADER_BYTES = 4
#: A payload may be this much larger than its file (constants of zeros compress that well) …
FREE_PAYLOAD_BYTES = 256 << 20
#: … and beyond that this many times as large. JAX's own entries reach 30.
_MAX_RATIO = 64


#: No header of a frame is longer.
FRAME_HEADER_MAX_BYTES = 18
_RESERVED_FLAG = 1 << 3


class FrameHeader(NamedTuple):
    """The header of a zstd frame (RFC 8878, 3.1.1.1)."""

    size_bytes: int
    """Its own size, with the magic number."""
    content_bytes: int | None
    """The announced size of the content."""
    window_bytes: int
    checksum: bool


def read_frame_header(start: bytes) -> FrameHeader | None:
    """Read the header of a zstd frame; None where it is truncated or not one.

    Args:
        start: at least its first :data:`FRAME_HEADER_MAX_BYTES`, or the whole frame.
    """
    if start[:4] != ZSTD_MAGIC or len(start) < 6 or start[4] & _RESERVED_FLAG:
        return None
    descriptor = start[4]
    single = descriptor >> 5 & 1
    size_code = descriptor >> 6
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    width = (single, 2, 4, 8)[size_code]
    end = at + width
    if len(start) < end:
        return None
    content = int.from_bytes(start[at:end], "little") + (256 if width == 2 else 0)
    exponent = start[5] >> 3
    base = 1 << 10 + exponent
    window = content if single else base + base // 8 * (start[5] & 7)
    return FrameHeader(end, content if width else None, window, bool(descriptor & CHECKSUM_FLAG))


def max_payload_bytes(size_bytes: int) -> int:
    """The largest payload that an entry of this size from elsewhere is believed to hold."""
    return FREE_PAYLOAD_BYTES + _MAX_RATIO * size_bytes


def live_directory(url: str) -> str:
    """Return the local directory of a bucket, where no setting (``local-dir``) names another.

    Raises:
        FileNotFoundError: no home directory is known.
    """
    base = user_directory("XDG_CACHE_HOME", "~/.cache")
    import hashlib  # takes OpenSSL along

    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return os.path.join(base, "jaxcache", "live", name)


def spool_name(url: str) -> str:
    """Return the name of the directory, below ``live/spool/``, of what a tier still lacks."""
    import hashlib

    return hashlib.sha256(url.encode()).hexdigest()[:12]


CACHE_SUFFIX = "-cache"
ATIME_SUFFIX = "-atime"
LOCKFILE = ".lockfile"
#: Marks a directory as a cache, which backups may leave out (https://bford.info/cachedir/).
CACHE_TAG = "CACHEDIR.TAG"
KERNEL_CACHE = "xla_gpu_kernel_cache_file"
AUTOTUNE_DIR = "xla_gpu_per_fusion_autotune_cache_dir"
#: The setting that names the caches of XLA's own that JAX places below its cache.
XLA_CACHES = "jax_persistent_cache_enable_xla_caches"
#: Our own directory inside a cache: ledger, quarantine, signatures. JAX never looks into it.
OWN_DIR = ".jaxcache"
LEDGER_DIR = f"{OWN_DIR}/ledger"
QUARANTINE_DIR = f"{OWN_DIR}/quarantine"
#: Prefix of every temporary name; at the front so that no glob of JAX's matches.
TEMP_PREFIX = ".jaxcache-tmp-"


#: Counters of the live layer that a line shows, where they are not zero.
LIVE_WORDS = {
    "written": "written", "replaced": "replaced", "rotten": "damaged",
    "rotten_tier": "damaged in a tier", "died_loading": "quarantined", "evicted": "evicted",
    "preload_used": "loaded ahead", "waited": "waited for",
    "uploaded": "uploaded", "uploads_left": "uploads left",
    "tier_errors": "tier errors", "write_failed": "not written",
}  # fmt: skip


def quarantine_directory(now_ns: int) -> str:
    """The directory for what is moved away now; one per call, so that nothing is ever replaced."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ns // 10**9))
    return f"{QUARANTINE_DIR}/{when}-{now_ns % 10**9:09d}"


_HASH_DIGITS = 64
_HASH = re.compile(f"[0-9a-f]{{{_HASH_DIGITS}}}")
#: With a suffix a key is the name of a file, which most file systems limit to 255 bytes.
_MAX_KEY_BYTES = 255 - len(CACHE_SUFFIX)


class Key(NamedTuple):
    """A cache key: the module's name and 64 hexadecimal digits of SHA-256."""

    module: str
    """Empty for keys made by JAX before 0.4.17."""
    hash: str

    def __str__(self) -> str:
        return f"{self.module}-{self.hash}" if self.module else self.hash


def parse_key(text: str) -> Key | None:
    """Read ``<module>-<64 hex>`` or a bare hash; None if it is neither."""
    if not ends_key(text, len(text)):
        return None
    return Key(text[: -_HASH_DIGITS - 1], text[-_HASH_DIGITS:])


def ends_key(text: str, end: int) -> bool:
    """Whether a key ends there that begins at the start."""
    start = end - _HASH_DIGITS
    if _HASH.fullmatch(text, max(start, 0), end) is None:
        return False
    return start == 0 or (start > 1 and text[start - 1] == "-")


def is_key(text: str) -> bool:
    """Whether text from outside is a key that can name a file in a cache directory."""
    if not ends_key(text, len(text)) or any(character in text for character in "/\0\n"):
        return False
    return len(text.encode("utf-8", "surrogateescape")) <= _MAX_KEY_BYTES


def is_cache_name(name: str) -> bool:
    """Whether a name in a cache directory is one that JAX, XLA or jaxcache gives."""
    if name in (LOCKFILE, KERNEL_CACHE, AUTOTUNE_DIR, OWN_DIR, CACHE_TAG):
        return True
    return name.startswith(("_temp_", TEMP_PREFIX)) or is_key(
        name.removesuffix(CACHE_SUFFIX).removesuffix(ATIME_SUFFIX)
    )


def same_module(inside: str, named: str) -> bool:
    """Whether two spellings may be of one module's name."""
    return _comparable(inside) == _comparable(named)


def _comparable(module: str) -> str:
    """Return what every spelling of a module's name has in common.

    ``jit_θ`` in Python and in the name of a file is ``jit_\\CE\\B8`` in the text of MLIR, and
    ``jit___`` in XLA: it replaces each byte, where JAX replaces each character.
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", unescape_mlir(module))


def unescape_mlir(text: str) -> str:
    """Return a string that MLIR has printed, without its escapes (``\\CE\\B8`` for ``θ``)."""
    if "\\" not in text:
        return text
    raw = text.encode("utf-8", "surrogatepass").replace(b"\\\\", b"\\5C")
    raw = re.sub(rb"\\([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode()), raw)
    return raw.decode("utf-8", "replace")
