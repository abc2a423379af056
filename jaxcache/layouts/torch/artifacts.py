"""``torch.compiler.save_cache_artifacts()`` files: read, checked, and put into a bundle.

The format (``torch/compiler/_cache.py`` and ``torch/utils/_appending_byte_serializer.py``, 2.13),
all numbers big-endian: CRC-32 of the rest (4 bytes), version 1 (8), then until the end a type, a
count (8), and as many pairs of key and bytes. Bytes are led by their length (8); type and key are
base64 of UTF-8.
"""

import base64
import binascii
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.manifest import BundleError
from jaxcache.cache.leftovers import scratch_directory
from jaxcache.cache.move.bundle_file import make_temporary_bundle
from jaxcache.errors import system_errors_as
from jaxcache.layouts.torch.bundle import name_error, plan_export
from jaxcache.layouts.torch.names import AOT_DIR, FX_DIR, TorchKind, digest_of, parse_path
from jaxcache.model import Problem

_MAX_FILE_BYTES = 4 << 30
_CHECKSUM_BYTES = 4
_NUMBER_BYTES = 8
_VERSION = (1).to_bytes(_NUMBER_BYTES, "big")
_MAX_KEY_BYTES = 4096


class Artifact(NamedTuple):
    """One thing that torch saved."""

    type: str
    key: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The files of a cache directory that a file of artifacts stands for."""

    files: dict[str, bytes]
    """The files by path below the cache directory."""
    left_out: tuple[Problem, ...]
    """The artifacts that are damaged, name no place in a cache, or have none outside torch."""


def is_artifacts(path: str) -> bool:
    """Whether a file begins as torch's artifacts do."""
    try:
        with open(path, "rb") as file:
            return file.read(_CHECKSUM_BYTES + _NUMBER_BYTES)[_CHECKSUM_BYTES:] == _VERSION
    except OSError:
        return False


def read_artifacts(path: str) -> Artifacts:
    """Read a file of artifacts, believing nothing in it. Nothing is unpickled.

    Raises:
        BundleError: the file is damaged as a whole.
    """
    with system_errors_as(BundleError, f"cannot read {path}", hint=None), open(path, "rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise BundleError(f"{path} is larger than {_MAX_FILE_BYTES} bytes", hint=None)
    files: dict[str, bytes] = {}
    left_out: list[Problem] = []
    for artifact in parse_artifacts(data):
        name = _place(artifact)
        if name is None:
            detail = f"a key that names no place in a cache: {artifact.key[:80]!r}"
            if artifact.type not in _PLACES:
                detail = f"artifacts of the type {artifact.type[:40]!r} are torch's own business"
            left_out.append(Problem(artifact.key[:200], "stray-file", detail))
        elif problem := name_error(artifact.content, parse_path(name)):
            left_out.append(Problem(name, "bad-payload", problem, artifact.key))
        else:
            files[name] = artifact.content
    return Artifacts(files, tuple(left_out))


_PLACES = frozenset({"aot_autograd", "inductor", "autotune"})


def _place(artifact: Artifact) -> str | None:
    """Return the path where torch would write it; None where that is no place of its kind."""
    key = artifact.key
    digest = digest_of(artifact.content)
    name, kind = {
        "aot_autograd": (f"{AOT_DIR}/{key}/{digest}", TorchKind.AOT),
        "inductor": (f"{FX_DIR}/{key[1:3]}/{key}/{digest}", TorchKind.FX),
        "autotune": (key, TorchKind.AUTOTUNE),
    }.get(artifact.type, ("", TorchKind.STRAY))
    return name if name and parse_path(name).kind is kind else None


def parse_artifacts(data: bytes) -> Iterator[Artifact]:
    """Yield what is in the bytes of a file of artifacts.

    Raises:
        BundleError: the checksum is wrong, or a length leads out of the file.
    """
    checksum = int.from_bytes(data[:_CHECKSUM_BYTES], "big")
    if zlib.crc32(memoryview(data)[_CHECKSUM_BYTES:]) != checksum:
        raise BundleError("these artifacts are damaged: their checksum is wrong", hint=None)
    stream = io.BytesIO(data)
    stream.seek(_CHECKSUM_BYTES)
    if _take(stream, _NUMBER_BYTES) != _VERSION:
        raise BundleError("these artifacts are of another version than 1", hint=None)
    while stream.tell() < len(data):
        kind = _text(stream)
        for _ in range(_number(stream)):
            yield Artifact(kind, _text(stream), _take(stream, _number(stream)))


def _take(stream: io.BytesIO, size: int) -> bytes:
    if size > len(stream.getbuffer()) - stream.tell():
        raise BundleError("these artifacts are cut off, or a length in them is wrong", hint=None)
    return stream.read(size)


def _number(stream: io.BytesIO) -> int:
    return int.from_bytes(_take(stream, _NUMBER_BYTES), "big")


def _text(stream: io.BytesIO) -> str:
    data = _take(stream, _number(stream))
    if len(data) > _MAX_KEY_BYTES:
        raise BundleError("a key in these artifacts is too long", hint=None)
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise BundleError("a key in these artifacts is not a string", hint=None) from error


@contextmanager
def as_bundle(path: str) -> Iterator[tuple[Bundle, tuple[Problem, ...]]]:
    """Artifacts as a bundle that nobody keeps, and what of them cannot be imported.

    Raises:
        BundleError
    """
    from jaxcache.store.local import LocalStore

    artifacts = read_artifacts(path)
    with scratch_directory("torch") as directory:
        store = LocalStore(directory)
        for name, content in artifacts.files.items():
            store.write(name, [content])
        bundle, _ = make_temporary_bundle(store, plan_export(store, now_ns=0))
    with bundle.file:
        yield bundle, artifacts.left_out
