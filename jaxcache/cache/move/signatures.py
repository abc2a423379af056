"""Signatures of single entries: ``.jaxcache/signatures/``, written by ``push --sign``.

Their format is in :mod:`jaxcache.core.signing`. Files are written once and never
changed, like the ledger's.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxcache.cache.admission import Signed
from jaxcache.cache.move.items import MoveAction, Step
from jaxcache.cache.move.plan import MoveSource, Plan
from jaxcache.cache.trust import TrustedKey, load_ed25519, load_trusted
from jaxcache.core.ledger import MAX_LEDGER_BYTES
from jaxcache.core.signing import MAX_SIGNATURES_BYTES, SIGNATURES_DIR, read_signed, sign_text
from jaxcache.entry.codec import CodecError
from jaxcache.errors import UntrustedError
from jaxcache.store.base import Store, StoreError
from jaxcache.store.concurrency import map_ordered
from jaxcache.store.location import config_is_set

if TYPE_CHECKING:
    from jaxcache.layouts import Layout

#: A line has 900 bytes at the most, escaped, so that this many stay well below the largest file.
_ENTRIES_PER_FILE = 25_000


def required_signatures(
    store: Store,
    layout: "Layout",
    trusted: str | os.PathLike[str] | None = None,
    *,
    wanted: bool = False,
) -> Signed | None:
    """Load what trusted keys have signed in a cache; None where no signature is required.

    Args:
        trusted: the directory of their list; by default the user's.
        wanted: whether a caller requires them; a configuration file can, too.

    Raises:
        UntrustedError: nothing there can be signed, or the list of keys cannot be trusted.
    """
    if not (wanted or config_is_set("require-signed")):
        return None
    if not layout.single_file_entries:
        raise UntrustedError(
            f"files of {layout.name} are not signed one by one",
            hint="jaxcache export --sign KEY",
        )
    return load_signed(store, load_trusted(trusted))


def make_signer(
    target: Store, source: MoveSource, plan: Plan, private_keys: Sequence[Any], *, now_ns: int
) -> Callable[[Mapping[str, Step]], None]:
    """Return a function that signs the entries that were written, and those already there."""
    if not private_keys:
        return lambda _: None
    vouched = _unsigned_digests(target, source, plan, private_keys)

    def sign(written: Mapping[str, Step]) -> None:
        digests = vouched | {name: step.item.sha256 or "" for name, step in written.items()}
        write_signatures(target, digests, private_keys, now_ns=now_ns)

    return sign


def _unsigned_digests(
    target: Store, source: MoveSource, plan: Plan, private_keys: Sequence[Any]
) -> dict[str, str]:
    """Return the digests of entries that the target has already and that some key has not signed.

    They may come from a run that was interrupted. Each digest is that of the source's entry, even
    if the target's entry of that name differs; damaged entries of the source stay unsigned.
    """
    signed = [load_signed(target, [_public(key)]) for key in private_keys]
    steps = plan.of(MoveAction.PRESENT, MoveAction.SAME)
    unsigned = [s for s in steps if not all(s.name in names for names in signed)]

    def read(step: Step) -> str | None:
        try:
            with contextlib.closing(source.open(step, source.take(step))) as parcel:
                return parcel.facts.sha256
        except (CodecError, UntrustedError, StoreError):
            return None

    digests = zip((s.name for s in unsigned), map_ordered(read, unsigned), strict=True)
    return {name: digest for name, digest in digests if digest is not None}


def _public(private_key: Any) -> TrustedKey:
    return TrustedKey("", private_key.public_key().public_bytes_raw())


def write_signatures(
    store: Store, digests: Mapping[str, str], private_keys: Sequence[Any], *, now_ns: int
) -> None:
    """Vouch for files.

    Args:
        digests: by file, of payloads or of XLA's files; no name has a line feed.
        private_keys: of cryptography's Ed25519.

    Raises:
        StoreError
    """
    names = sorted(digests)
    for start in range(0, len(names), _ENTRIES_PER_FILE):
        some = names[start : start + _ENTRIES_PER_FILE]
        text = "".join(f"{digests[name]} {name}\n" for name in some)
        path = f"{SIGNATURES_DIR}/{now_ns:020d}-{os.urandom(8).hex()}.json"
        store.write(path, [sign_text(text, private_keys)], replace=False)


def load_signed(store: Store, trusted: Sequence[TrustedKey]) -> dict[str, Collection[str]]:
    """Return the digests, by file, that keys which this user trusts have signed.

    Signatures that are damaged or made with other keys do not count.

    Raises:
        NoCacheError
    """
    keys = {key.public_key for key in trusted}
    signers: defaultdict[str, set[str]] = defaultdict(set)
    files = [i for i in store.list(SIGNATURES_DIR) if i.type == "file"]
    names = [i.name for i in files]
    if sum(min(i.size_bytes, MAX_SIGNATURES_BYTES) for i in files) > MAX_LEDGER_BYTES:
        raise UntrustedError(f"{store.url} holds more signatures than {MAX_LEDGER_BYTES} bytes")
    if keys and names:
        load_ed25519()
    for data in store.read_many(names, limit=MAX_SIGNATURES_BYTES + 1):
        if isinstance(data, bytes) and len(data) <= MAX_SIGNATURES_BYTES:
            for name, digests in read_signed(data, keys).items():
                signers[name] |= digests
    return dict(signers)
