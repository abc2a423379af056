"""Signatures of single entries: ``.jaxcache/signatures/``, written by ``push --sign``.

A file there is JSON: ``format`` 1, ``signed``, a text with one line ``<SHA-256> <file>`` per entry,
and ``signatures``, at most 16 pairs of ``public_key`` and ``signature`` (Ed25519, base64) over
``jaxcache entries v1``, a NUL, and that text. The digest is of the decompressed payload, so that
sealing an entry does not cost it its signature; of XLA's files it is of the bytes.

Files are written once and never changed, like the ledger's.
"""

import base64
import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxcache.cache.move.step import MoveAction, Plan, Step
from jaxcache.cache.move.stores import StoreSource
from jaxcache.cache.trust import TrustedKey, holds
from jaxcache.cache.untrusted_json import parse_json
from jaxcache.core.names import OWN_DIR
from jaxcache.entry.codec import CodecError
from jaxcache.errors import UntrustedError
from jaxcache.store.ahead import in_order
from jaxcache.store.base import Store, StoreError

SIGNATURES_DIR = f"{OWN_DIR}/signatures"
_CONTEXT = b"jaxcache entries v1\0"
_MAX_BYTES = 32 << 20
_MAX_SIGNATURES = 16
#: Of JSON: a few for each signature, and the commas that names may hold.
_MAX_VALUES = 100_000
#: A line has 900 bytes at the most, escaped, so that this many stay well below the largest file.
_ENTRIES_PER_FILE = 25_000


def unsigned_digests(
    target: Store, source: StoreSource, plan: Plan, private_keys: Sequence[Any]
) -> dict[str, str]:
    """Return the digests of entries that the target has already and that some key has not signed.

    They may come from a run that was interrupted. A digest is that of the source's own entry,
    whatever the target holds under its name; what the source has damaged stays unsigned.
    """
    signed = [load_signed(target, [_public(key)]) for key in private_keys]
    steps = plan.of(MoveAction.PRESENT)
    unsigned = [s for s in steps if not all(s.name in names for names in signed)]

    def read(step: Step) -> str | None:
        try:
            with contextlib.closing(source.open(step)) as parcel:
                return parcel.facts.sha256
        except (CodecError, UntrustedError, StoreError):
            return None

    digests = zip((s.name for s in unsigned), in_order(read, unsigned), strict=True)
    return {name: digest for name, digest in digests if digest is not None}


def _public(private_key: Any) -> TrustedKey:
    return TrustedKey("", private_key.public_key().public_bytes_raw())


def write_signatures(
    store: Store, digests: Mapping[str, str], private_keys: Sequence[Any], *, now_ns: int
) -> None:
    """Vouch for files.

    Args:
        digests: by file, of payloads or of XLA's files; no name has a line feed (the gate).
        private_keys: of cryptography's Ed25519.

    Raises:
        StoreError
    """
    names = sorted(digests)
    for start in range(0, len(names), _ENTRIES_PER_FILE):
        some = names[start : start + _ENTRIES_PER_FILE]
        text = "".join(f"{digests[name]} {name}\n" for name in some)
        _write(store, text, private_keys, now_ns)


def _write(store: Store, text: str, private_keys: Sequence[Any], now_ns: int) -> None:
    message = _CONTEXT + text.encode()
    document = {
        "format": 1,
        "signed": text,
        "signatures": [
            {
                "public_key": _encode(key.public_key().public_bytes_raw()),
                "signature": _encode(key.sign(message)),
            }
            for key in private_keys
        ],
    }
    name = f"{SIGNATURES_DIR}/{now_ns:020d}-{os.urandom(8).hex()}.json"
    store.write(name, [json.dumps(document).encode()], replace=False)


def load_signed(store: Store, trusted: Sequence[TrustedKey]) -> dict[str, Collection[str]]:
    """Digests, by file, that somebody vouches for whom this user trusts.

    What is damaged, or signed by others, counts for nothing.

    Raises:
        NoCacheError
    """
    keys = {key.public_key for key in trusted}
    found: defaultdict[str, set[str]] = defaultdict(set)
    names = [i.name for i in store.list(SIGNATURES_DIR) if i.type == "file"]
    for data in store.read_many(names, limit=_MAX_BYTES + 1):
        if not isinstance(data, bytes) or len(data) > _MAX_BYTES:
            continue
        for line in _trusted_text(data, keys).split("\n"):
            digest, space, name = line.partition(" ")
            if space:
                found[name].add(digest)
    return dict(found)


def _trusted_text(data: bytes, keys: Collection[bytes]) -> str:
    """Return the text of a file if one of these keys has signed it; empty if not."""
    try:
        document = parse_json(data, ValueError, max_values=_MAX_VALUES)
        text = document["signed"]
        message = _CONTEXT + text.encode()
        for pair in document["signatures"][:_MAX_SIGNATURES]:
            public_key = base64.b64decode(pair["public_key"], validate=True)
            signature = base64.b64decode(pair["signature"], validate=True)
            if public_key in keys and holds(public_key, signature, message):
                return str(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return ""


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
