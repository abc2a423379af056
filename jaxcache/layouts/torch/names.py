"""The meaning of paths below ``TORCHINDUCTOR_CACHE_DIR``, and the hashes in their names.

Names are base32 of SHA-256, 51 digits in lower case, led by the letter of their kind. The name of
a graph's file is the hash of its bytes, that of a generated ``.py`` the hash of its stripped
text; kernels and compiler probes are named by their source *and* the compiler's command, which is
not stored, so that nothing can be held against those.

Source: ``torch/_inductor/codecache.py`` and ``torch/_functorch/_aot_autograd`` of torch 2.13 to
2.15.
"""

import base64
import getpass
import hashlib
import os
import re
import tempfile
from enum import StrEnum
from typing import NamedTuple

from jaxcache.core.names import CACHE_TAG, OWN_DIR, TEMP_PREFIX
from jaxcache.entry.names import TORCH_GRAPHS, TORCH_LOCKS, FileKind, TorchTier, split_name
from jaxcache.model import FileInfo

AOT_DIR, FX_DIR = TORCH_GRAPHS
HEADER_DIR = "precompiled_headers"
_DIGITS = 51


class TorchKind(StrEnum):
    """The kind of a file in a cache directory of torch's compilers."""

    AOT = "aot-graph"
    FX = "fx-graph"
    PRECOMPILED = "precompiled"
    SOURCE = "generated-python"
    KERNEL_SOURCE = "kernel-source"
    KERNEL = "kernel"
    PROBE = "compiler-probe"
    TRITON = "triton"
    AUTOTUNE = "autotune"
    PROFILE = "profile"
    SYSTEM = "system"
    COMPILER = "compiler-files"
    """Headers that torch compiles ahead, and a compiler that it installs where it finds none."""
    LOCK = "lock"
    TEMP = "temp"
    LEDGER = "ledger"
    QUARANTINE = "quarantine"
    OWN = "own"
    UNREAD = "unread"
    """Of a kind that is not known here, as a newer torch may write: neither read nor removed."""
    STRAY = "stray"


class TorchName(NamedTuple):
    """A path with its meaning."""

    kind: TorchKind
    key: str | None = None
    """The key by which torch names a graph, a generated ``.py`` or a kernel."""
    digest: str | None = None
    """The hash that the bytes must have (see :func:`digest_of`); None if the name has none."""


#: The kinds of files that are graphs.
TIERS: dict[TorchKind, TorchTier] = {
    TorchKind.AOT: "aotautograd",
    TorchKind.FX: "fxgraph",
    TorchKind.PRECOMPILED: "dynamo",
}


class GraphFile(NamedTuple):
    """A file that has the path of a graph."""

    info: FileInfo
    tier: TorchTier
    key: str
    """As torch calls it: ``a…`` or ``f…``. Several files may share it, with other guards."""
    digest: str
    """The hash that its bytes must have; empty where the name has none."""

    @property
    def name(self) -> str:
        """The key as this program shows it, with the tier in front."""
        return f"{self.tier}-{self.key}"


_HASH = f"[a-z2-7]{{{_DIGITS}}}"
_GRAPH = re.compile(
    rf"(?:{AOT_DIR}/(?P<aot>a{_HASH})|{FX_DIR}/(?P<fan>[a-z2-7]{{2}})/(?P<fx>f{_HASH}))"
    rf"/(?P<digest>{_HASH})"
)
_CODE = re.compile(
    rf"(?P<fan>[a-z2-7]{{2}})/(?P<key>c{_HASH})(?P<suffix>\.py|\.main\.cpp|\.main\.so|\.cpp|\.so(?:\.load_ok)?)"
)
LOCK = re.compile(rf"{TORCH_LOCKS}/c{_HASH}\.lock")
#: What TORCH_CACHING_PRECOMPILE keeps of a function: guards, bytecode, graphs.
_PRECOMPILED = re.compile(r"dynamo/([0-9a-f]{64})/entry")
_BEST_CONFIG = re.compile(r"[a-z2-7]{2}/[0-9a-z]{51,64}\.best_config")
#: Of one compile with ``force_disable_caches``: torch leaves it and never reads again
#: (``fresh_cache`` of ``torch/_inductor/utils.py``; its name is Python's ``tempfile.mkdtemp``'s).
_FRESH = re.compile(r"tmp[a-z0-9_]{8}/.+")
_SUFFIXES = {
    ".py": TorchKind.SOURCE,
    ".main.cpp": TorchKind.KERNEL_SOURCE,
    ".main.so": TorchKind.KERNEL,
    ".cpp": TorchKind.PROBE,
    ".so": TorchKind.PROBE,
    ".so.load_ok": TorchKind.SYSTEM,  # since 2.14, empty: this probe could be loaded
}
_DIRECTORIES = {
    "triton": TorchKind.TRITON,
    "dynamo": TorchKind.PROFILE,
    "cache": TorchKind.SYSTEM,
    HEADER_DIR: TorchKind.COMPILER,
    "gcc": TorchKind.COMPILER,
    OWN_DIR: TorchKind.OWN,
}


def parse_path(name: str) -> TorchName:
    """Tell what a path below the cache directory is.

    A stray is where torch would take it for something else, such as a graph beside others.
    """
    base = name.rpartition("/")[2]
    is_unfinished = base.startswith(TEMP_PREFIX) or (base.startswith(".") and base.endswith(".tmp"))
    if is_unfinished or was_never_cached(name):
        return TorchName(TorchKind.TEMP)
    if match := _GRAPH.fullmatch(name):
        if match["aot"]:
            return TorchName(TorchKind.AOT, match["aot"], match["digest"])
        if match["fan"] == match["fx"][1:3]:
            return TorchName(TorchKind.FX, match["fx"], match["digest"])
        return _STRAY
    if match := _CODE.fullmatch(name):
        key = match["key"]
        kind = _SUFFIXES[match["suffix"]]
        if match["fan"] != key[1:3]:
            return _STRAY
        return TorchName(kind, key, key[1:] if kind is TorchKind.SOURCE else None)
    if match := _PRECOMPILED.fullmatch(name):
        return TorchName(TorchKind.PRECOMPILED, match[1])
    if name == CACHE_TAG:
        return TorchName(TorchKind.OWN)
    directory, slash, tail = name.partition("/")
    if directory == TORCH_LOCKS and tail.endswith(".lock") and "/" not in tail:
        return TorchName(TorchKind.LOCK)
    if slash and directory in _DIRECTORIES:
        return TorchName(_DIRECTORIES[directory])
    if _BEST_CONFIG.fullmatch(name):
        return TorchName(TorchKind.AUTOTUNE)
    is_stray = directory in (AOT_DIR, FX_DIR) or split_name(directory)[0] is not FileKind.STRAY
    return _STRAY if is_stray else TorchName(TorchKind.UNREAD)


def was_never_cached(name: str) -> bool:
    """Whether a file was left by a compile with the caches off."""
    return bool(_FRESH.fullmatch(name))


def own_directory() -> str:
    """``TORCHINDUCTOR_CACHE_DIR``, else that by default."""
    return os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_directory()


def default_directory() -> str:
    """``torchinductor_<user>`` of temporary files; headers are compiled there in any case.

    Source: ``torch/_inductor/runtime/cache_dir_utils.py`` and ``codecache.py`` of 2.13 to 2.15.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    user = re.sub(r'[\\/:*?"<>|]', "_", user)
    return os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")


def directory_of(tier: TorchTier, key: str) -> str:
    """The directory of the files that share a key."""
    return f"{AOT_DIR}/{key}" if tier == AOT_DIR else f"{FX_DIR}/{key[1:3]}/{key}"


def key_of(name: str) -> str | None:
    """The key of a file, as a listing shows it; None where it has none."""
    kind, key, _ = parse_path(name)
    return f"{TIERS[kind]}-{key}" if kind in TIERS else key


def as_graph(info: FileInfo) -> GraphFile | None:
    """A file as the graph that its path names; None where it names none."""
    kind, key, digest = parse_path(info.name)
    return GraphFile(info, TIERS[kind], key or "", digest or "") if kind in TIERS else None


_STRAY = TorchName(TorchKind.STRAY)


def digest_of(data: bytes) -> str:
    """The 51 digits that torch names bytes by."""
    return base64.b32encode(hashlib.sha256(data).digest()).decode()[:_DIGITS].lower()


def digest_of_text(data: bytes) -> str:
    """The 51 digits that torch names a generated ``.py`` by: over its text without the margins."""
    return digest_of(
        data.decode("utf-8", "surrogateescape").strip().encode("utf-8", "surrogateescape")
    )


def lock_path(key: str) -> str:
    """The lock that torch holds while it compiles what is named by a key."""
    return f"{TORCH_LOCKS}/{key}.lock"


def paired_file(name: str) -> str | None:
    """The source of a kernel or probe, and of a source what is compiled of it; None of others."""
    stem, dot, suffix = name.rpartition(".")
    other = {"cpp": "so", "so": "cpp"}.get(suffix)
    return f"{stem}{dot}{other}" if other and parse_path(name).key else None
