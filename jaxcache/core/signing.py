"""Trust in entries from elsewhere: signatures, keys, and what the live layer refused from a tier.

A file below ``.jaxcache/signatures/`` is JSON: ``format`` 1, ``signed``, a text with one line
``<SHA-256> <file>`` per entry, and ``signatures``, at most 16 pairs of ``public_key`` and
``signature`` (Ed25519, base64) over ``jaxcache entries v1``, a NUL, and that text. The digest is of
the decompressed payload without its 4-byte header, so that sealing an entry does not cost it its
signature; of XLA's files it is of the bytes.

A key is a line of a word and 32 bytes in base64; each line of the list of trusted keys ends with
the name of its key.

The record of refusals, ``.jaxcache/live/refused`` of the local directory, is a JSON object: by the
address of a tier, ``at_ns`` and the number of entries by reason. It describes the last program that
took entries of that tier, or refused some.
"""

import base64
import json
from collections.abc import Collection, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from .names import OWN_DIR

SIGNATURES_DIR = f"{OWN_DIR}/signatures"
MAX_SIGNATURES_BYTES = 32 << 20
PUBLIC = "jaxcache-ed25519"
PRIVATE = "jaxcache-ed25519-private"
TRUSTED_KEYS = "trusted-keys"
MAX_KEYS_BYTES = 1 << 20
KEY_BYTES = 32
_CONTEXT = b"jaxcache entries v1\0"
_MAX_SIGNATURES = 16
#: Of JSON: a few for each signature, and the commas that names may hold.
_MAX_VALUES = 100_000


def sign_text(text: str, private_keys: "Iterable[Any]") -> bytes:
    """Return the file that vouches for lines of digests and names."""
    message = _CONTEXT + text.encode()
    pairs = [
        {
            "public_key": encode(key.public_key().public_bytes_raw()),
            "signature": encode(key.sign(message)),
        }
        for key in private_keys
    ]
    return json.dumps({"format": 1, "signed": text, "signatures": pairs}).encode()


def read_signed(data: bytes, trusted: "Collection[bytes]") -> "dict[str, set[str]]":
    """Return the digests by file that one of some keys has signed; none of a damaged file.

    Raises:
        ImportError: the package cryptography is missing.
    """
    digests: dict[str, set[str]] = {}
    for line in _trusted_text(data, trusted).split("\n"):
        digest, space, name = line.partition(" ")
        if space:
            digests.setdefault(name, set()).add(digest)
    return digests


def _trusted_text(data: bytes, trusted: "Collection[bytes]") -> str:
    if count_values(data) > _MAX_VALUES:
        return ""
    try:
        document = json.loads(data)
        text = document["signed"]
        message = _CONTEXT + text.encode()
        for pair in document["signatures"][:_MAX_SIGNATURES]:
            public_key = base64.b64decode(pair["public_key"], validate=True)
            signature = base64.b64decode(pair["signature"], validate=True)
            if public_key in trusted and holds(public_key, signature, message):
                return str(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return ""


def count_values(data: "bytes | bytearray") -> int:
    """Return how many values JSON holds, or more: they take far more memory than their text."""
    return sum(map(data.count, (b",", b"[", b"{")))


def holds(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a signature is of this key and message.

    Raises:
        ImportError: the package cryptography is missing.
    """
    ed25519 = import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    invalid = import_module("cryptography.exceptions").InvalidSignature
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (invalid, ValueError):
        return False
    return True


def parse_key(text: str, kind: str) -> "bytes | None":
    """Read a key, with or without the word in front; None if it is not a key."""
    words = text.split()
    if words[:1] == [kind]:
        words = words[1:]
    try:
        key = base64.b64decode(words[0], validate=True) if words else b""
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


def encode(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode()


RECORD = "live/refused"
MAX_RECORD_BYTES = 1 << 16
#: What is wrong with several entries and with one, and the command that mends the tier.
_REASONS = {
    "unsealed": ("have no checksum", "has no checksum", "seal -C {tier}"),
    "unsigned": (
        "are signed by no trusted key",
        "is signed by no trusted key",
        "push {tier} --sign KEY",
    ),
    "damaged": ("are damaged", "is damaged", "verify --fix -C {tier}"),
}
_MAX_NUMBER = 10**9


class TierRefusal(NamedTuple):
    """Entries of one tier that were refused for one reason."""

    tier: str
    reason: str
    """``unsealed``, ``unsigned`` or ``damaged``."""
    entries: int
    at_ns: int


def describe_refusal(refusal: TierRefusal) -> str:
    """Say which entries were refused: ``6 entries of s3://team/jax, which have no checksum``."""
    entries = "1 entry" if refusal.entries == 1 else f"{refusal.entries:,} entries"
    fault = _REASONS[refusal.reason][refusal.entries == 1]
    return f"{entries} of {refusal.tier}, which {fault}"


def refusal_fix(refusal: TierRefusal) -> str:
    """Name the command that mends the tier: ``to mend it: jaxcache seal -C s3://team/jax``."""
    import shlex  # rarely needed, and this module is imported in the user's process

    command = _REASONS[refusal.reason][2].format(tier=shlex.quote(refusal.tier))
    return f"to mend it: jaxcache {command}"


def read_record(data: bytes) -> "tuple[TierRefusal, ...]":
    """Read a record; what cannot be read in it is left out."""
    try:
        tiers = json.loads(data)
        rows = [(tier, row) for tier, row in tiers.items() if isinstance(row, dict)]
    except (ValueError, AttributeError, RecursionError):
        return ()
    refusals = []
    for tier, row in rows:
        at_ns = row.get("at_ns")
        if type(at_ns) is int and 0 <= at_ns < 1 << 63:
            for reason in _REASONS:
                number = row.get(reason)
                if type(number) is int and 0 < number < _MAX_NUMBER:
                    refusals.append(TierRefusal(str(tier), reason, number, at_ns))
    return tuple(refusals)


def write_record(refusals: "tuple[TierRefusal, ...]") -> bytes:
    """Write a record."""
    tiers: dict[str, dict[str, int]] = {}
    for refusal in refusals:
        row = tiers.setdefault(refusal.tier, {"at_ns": refusal.at_ns})
        row[refusal.reason] = refusal.entries
    return json.dumps(tiers).encode()
