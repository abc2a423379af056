"""Signatures of the entries of tiers, in the format of ``jaxcache push --sign``.

A file below ``.jaxcache/signatures/`` is JSON: ``signed``, a text with lines ``<SHA-256> <file>``,
and ``signatures``, Ed25519 over ``jaxcache entries v1``, a NUL and that text. The digest is of the
payload without its 4-byte header. An upload from here writes one file per entry, named by the
entry, so that a look-up costs one request more; files of ``push`` are read once.
"""

import base64
import json
import os
import stat
from typing import Any

_FOLDER = ".jaxcache/signatures"
_CONTEXT = b"jaxcache entries v1\0"
_PUBLIC, _PRIVATE = "jaxcache-ed25519", "jaxcache-ed25519-private"
_MAX_FILES, _MAX_BYTES, _MAX_SIGNATURES, _MAX_VALUES = 1000, 32 << 20, 16, 100_000


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
            digests |= self._read(tier, f"{_FOLDER}/{own}").get(name, set())
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
        text = f"{digest} {name}\n"
        document = {
            "format": 1,
            "signed": text,
            "signatures": [
                {
                    "public_key": _encode(self._private.public_key().public_bytes_raw()),
                    "signature": _encode(self._private.sign(_CONTEXT + text.encode())),
                }
            ],
        }
        where = f"{_FOLDER}/live-{name}.json"
        written: bool = tier.write(where, json.dumps(document).encode(), replace=True)
        return written

    def _list(self, tier: Any) -> "frozenset[str]":
        """The names of the signatures of a tier, listed once."""
        if tier.url not in self._names:
            names = tier.attempt(lambda store: store.names(_FOLDER)) or ()
            self._names[tier.url] = frozenset(names)
        return self._names[tier.url]

    def _read_bulk(self, tier: Any) -> "dict[str, set[str]]":
        found: dict[str, set[str]] = {}
        for name in sorted(n for n in self._list(tier) if not n.startswith("live-"))[-_MAX_FILES:]:
            for file, digests in self._read(tier, f"{_FOLDER}/{name}").items():
                found.setdefault(file, set()).update(digests)
        return found

    def _read(self, tier: Any, path: str) -> "dict[str, set[str]]":
        data = tier.read(path, fresh=True, limit=_MAX_BYTES)
        found: dict[str, set[str]] = {}
        if data is None:
            return found
        for line in self._trusted_text(data).split("\n"):
            digest, space, name = line.partition(" ")
            if space:
                found.setdefault(name, set()).add(digest)
        return found

    def _trusted_text(self, data: bytes) -> str:
        """Return the content of a file, if a trusted key has signed it; empty if not."""
        from cryptography.exceptions import InvalidSignature

        if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_VALUES:  # which take far more memory
            return ""
        try:
            document = json.loads(data)
            text = document["signed"]
            for pair in document["signatures"][:_MAX_SIGNATURES]:
                public = base64.b64decode(pair["public_key"], validate=True)
                signature = base64.b64decode(pair["signature"], validate=True)
                if public not in self._trusted:
                    continue
                key = self._ed25519.Ed25519PublicKey.from_public_bytes(public)
                try:
                    key.verify(signature, _CONTEXT + text.encode())
                except InvalidSignature:
                    continue
                return str(text)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        return ""

    def _read_private(self, path: str) -> Any:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise PermissionError(f"others may read the private key {path}")
            words = file.read(4096).decode().split()
        if len(words) != 2 or words[0] != _PRIVATE:
            raise ValueError(f"{path} holds no private key")
        seed = base64.b64decode(words[1], validate=True)
        return self._ed25519.Ed25519PrivateKey.from_private_bytes(seed)


def _trusted_keys() -> "frozenset[bytes]":
    """The keys of ``jaxcache trust add``; a list that others may write says nothing."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(base, "jaxcache", "trusted-keys")
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(1 << 20).decode("utf-8", "replace")
    except FileNotFoundError:
        return frozenset()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in (os.getuid(), 0):
        raise PermissionError(f"others may write {path}")
    keys = set()
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == _PUBLIC:
            try:
                keys.add(base64.b64decode(words[1], validate=True))
            except ValueError:
                continue
    return frozenset(k for k in keys if len(k) == 32)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
