"""Check one entry from end to end, as ``verify`` does at ``full``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from jaxcache.cache.inventory import EntryFile
from jaxcache.cache.ledger.record import Record
from jaxcache.entry.codec import (
    CodecError,
    check_content,
    check_small,
    read_head,
)
from jaxcache.entry.read import OpenPayload
from jaxcache.model import Problem, ProblemKind
from jaxcache.store.base import Store, StoreError

#: Entries up to this size are read in one piece.
SMALL_BYTES = 64 * 1024
#: Larger payloads are not decoded: a decoder holds them whole. JAX's own limit is 2 GiB
#: (protobuf's), and real ones are far below this.
MAX_DECODED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings in one entry."""

    problems: tuple[Problem, ...] = ()
    proven: bool = False
    """The bytes are provably the ones that were written: by the codec's own checksum or by a
    recorded digest."""
    unsealed: bool = False
    """A zstd entry without a checksum, sound as far as it can be told."""
    missing: bool = False
    """The file was gone when it was opened."""


_SOUND = {sealed: Checked(proven=sealed, unsealed=not sealed) for sealed in (True, False)}


def check_entry(store: Store, file: EntryFile, digest: str | None, *, decode: bool) -> Checked:
    """Decompress one entry whole and check everything inside.

    Args:
        digest: SHA-256 of its payload, where the ledger knows it: :func:`recorded_digest`.
        decode: also decode the payload: structure, inner hashes, module name. Holds it whole.
    """
    try:
        if not decode and digest is None and file.info.size_bytes <= SMALL_BYTES:
            (data,) = store.read_many([file.info.name], limit=SMALL_BYTES + 1)
            if isinstance(data, bytes) and (sealed := check_small(data)) is not None:
                return _SOUND[sealed]
        with store.open(file.info.name) as opened:
            if not decode and digest is None:
                check_content(opened, file.info.size_bytes)
                problems: list[Problem] = []
            else:
                problems = _check_payload(opened, file, digest, decode)
            opened.seek(0)
            sealed = read_head(opened.read(SMALL_BYTES), file.info.size_bytes).checksum
    except CodecError as error:
        return Checked((_problem(file, error.kind, error.detail),))
    except StoreError as error:
        if error.code == "missing":
            return Checked(missing=True)
        kind: ProblemKind = "unreadable"
        if error.code == "checksum-mismatch":  # what an object store was told of the bytes
            kind = "checksum-mismatch"
        return Checked((_problem(file, kind, error.reason),))
    except OSError as error:
        return Checked((_problem(file, "unreadable", str(error.strerror or error).lower()),))
    proven = not problems and (sealed or digest is not None)
    return Checked(tuple(problems), proven=proven, unsealed=not sealed)


def check_decoded(
    store: Store, wanted: Sequence[tuple[EntryFile, str | None]]
) -> Iterator[Checked]:
    """Check some entries with their digests, and decode them."""
    return (check_entry(store, file, digest, decode=True) for file, digest in wanted)


def recorded_digest(file: EntryFile, record: Record | None) -> str | None:
    """The payload's SHA-256 in the ledger, if it was taken of the very file."""
    if record is None or record.file_mtime_ns != file.info.mtime_ns:
        return None
    return record.payload_sha256


def check_payload(
    file: EntryFile, payload: bytes | bytearray, *, hashes: bool = True
) -> Iterator[Problem]:
    """Decode a payload and yield what is wrong with it: structure, inner hashes, module name."""
    from jaxcache.entry.decode import decode_payload

    for kind, detail in decode_payload(payload, file.key.module or None, check=hashes).problems:
        yield _problem(file, kind, detail)


def _check_payload(
    opened: BinaryIO, file: EntryFile, digest: str | None, decode: bool
) -> list[Problem]:
    payload = OpenPayload(opened, file.info.size_bytes, hashed=digest is not None)
    kept = bytearray()
    for chunk in payload:
        if decode and payload.size_bytes <= MAX_DECODED_BYTES:
            kept += chunk
    problems = []
    if digest not in (None, payload.sha256):
        problems.append(digest_mismatch(file, payload.sha256, str(digest)))
    if decode and payload.size_bytes <= MAX_DECODED_BYTES:
        problems.extend(check_payload(file, kept))
    return problems


def digest_mismatch(file: EntryFile, found: str, known: str) -> Problem:
    """The finding that a payload is not the one in the ledger."""
    detail = f"payload has SHA-256 {found[:12]}…, the ledger says {known[:12]}…"
    return _problem(file, "digest-mismatch", detail)


def _problem(file: EntryFile, kind: ProblemKind, detail: str) -> Problem:
    return Problem(file.info.name, kind, detail, file.key_text)
