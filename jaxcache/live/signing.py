"""Signatures of the entries of tiers, in the format of ``jaxcache push --sign``.

An upload from here writes one file per entry, named by the entry, so that a look-up costs one
request more; files of ``push`` are read once. ``core/signing.py`` has the format.
"""

import os
import stat
from typing import Any

from ..core import signing
from ..core.configuration import read_user_file
from ..core.ledger import MAX_LEDGER_BYTES

_MAX_FILES = 1000


class Signatures:
    """The keys whose signatures count, and the key that signs uploads.

    Raises:
        ImportError: the package cryptography is missing.
        OSError, ValueError: the key or the list of trusted keys cannot be used.
    """

    def __init__(self, settings: Any) -> None:
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self._ed25519 = ed25519
        self._required: bool = settings["require-signed"]
        self._trusted = _trusted_keys() if self._required else frozenset()
        path = settings["signing-key"]
        self._private = self._read_private(path) if path else None
        self._names: dict[str, frozenset[str]] = {}
        self._bulk: dict[str, dict[str, set[str]]] = {}
        """By tier and file: digests of the files that ``push`` wrote."""

    def digests(self, tier: Any, name: str) -> "set[str]":
        """Return the digests of a file's content that trusted keys vouch for.

        Where no signature is required, only what a listing of the signatures names is read.
        """
        own = f"live-{name}.json"
        digests: set[str] = set()
        if self._required or own in self._list(tier):
            digests |= self._read(self._fetch(tier, own)).get(name, set())
        if tier.url not in self._bulk:
            self._bulk[tier.url] = self._read_bulk(tier)
        return digests | self._bulk[tier.url].get(name, set())

    def trust(self) -> bool:
        """Read the trusted keys although no setting requires them; whether there are any."""
        self._trusted = self._trusted or _trusted_keys()
        return bool(self._trusted)

    def sign(self, tier: Any, name: str, digest: str) -> bool:
        """Vouch for an entry before it goes up; whether the tier has the signature."""
        if self._private is None:
            return True
        where = f"{signing.SIGNATURES_DIR}/live-{name}.json"
        document = signing.sign_text(f"{digest} {name}\n", [self._private])
        written: bool = tier.write(where, document, replace=True)
        return written

    def _list(self, tier: Any) -> "frozenset[str]":
        """The names of the signatures of a tier, listed once."""
        if tier.url not in self._names:
            names = tier.attempt(lambda store: store.names(signing.SIGNATURES_DIR)) or ()
            self._names[tier.url] = frozenset(names)
        return self._names[tier.url]

    def _read_bulk(self, tier: Any) -> "dict[str, set[str]]":
        signers: dict[str, set[str]] = {}
        read_bytes = 0
        for name in sorted(n for n in self._list(tier) if not n.startswith("live-"))[-_MAX_FILES:]:
            data = self._fetch(tier, name)
            read_bytes += len(data)
            if read_bytes > MAX_LEDGER_BYTES:
                break
            for file, digests in self._read(data).items():
                signers.setdefault(file, set()).update(digests)
        return signers

    def _fetch(self, tier: Any, name: str) -> bytes:
        path = f"{signing.SIGNATURES_DIR}/{name}"
        return tier.read(path, fresh=True, limit=signing.MAX_SIGNATURES_BYTES) or b""

    def _read(self, data: bytes) -> "dict[str, set[str]]":
        return signing.read_signed(data, self._trusted)

    def _read_private(self, path: str) -> Any:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise PermissionError(f"others may read the private key {path}")
            seed = signing.parse_key(file.read(4096).decode(), signing.PRIVATE)
        if seed is None:
            raise ValueError(f"{path} holds no private key")
        return self._ed25519.Ed25519PrivateKey.from_private_bytes(seed)


def _trusted_keys() -> "frozenset[bytes]":
    """Return the keys of ``jaxcache trust add``; raise PermissionError if others may write them."""
    file = read_user_file(signing.TRUSTED_KEYS)
    if file is None:
        return frozenset()
    if file.unsafe:
        raise PermissionError(f"others may write {file.path}: {file.unsafe}")
    lines = file.text.decode("utf-8", "replace").splitlines()
    keys = (signing.parse_key(line.strip().rpartition(" ")[0], signing.PUBLIC) for line in lines)
    return frozenset(key for key in keys if key is not None)
