"""Read a bundle: look into it as into a cache, or check it from end to end.

Its manifest lists the entries, its stream holds them. Nothing is unpacked to disk, and at most one
payload is in memory.
"""

import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from jaxcache.cache.bundle import format as bundle_format
from jaxcache.cache.files import Inventory, OtherFile
from jaxcache.cache.ledger.record import SEALED
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.scan import Scan, with_ledger
from jaxcache.cache.selection import select_by_keys
from jaxcache.cache.show import EntryDetails, describe
from jaxcache.cache.verify.check import check_payload_pieces, check_unknown_pieces
from jaxcache.core.eviction import LastUses
from jaxcache.core.names import max_payload_bytes, parse_key
from jaxcache.entry.decode import decode_payload
from jaxcache.entry.names import split_name
from jaxcache.entry.summary import Entry, summarize_contents
from jaxcache.errors import ExitCode, JaxcacheError, UsageError
from jaxcache.model import Depth, FileInfo, Problem, report_progress


def verify_bundle(
    bundle: bundle_format.Bundle, *, allow_large: bool = False, atomic: bool = False
) -> bundle_format.Bundle:
    """Compare every byte of a bundle with its digests and check its entries; write nothing.

    Args:
        allow_large: see :class:`jaxcache.cache.verify.check.ImportPolicy`, of the target.
        atomic: refuse the whole bundle if one entry must not come in.

    Returns:
        The bundle, which now lists the entries that must not come in.

    Raises:
        BundleError
        JaxcacheError: ``bad-bundle``, with ``atomic``.
    """
    refused = bundle.refused
    if refused is None:
        deque(bundle_format.read_whole(bundle), maxlen=0)
        refused = dict(_damaged(bundle, allow_large))
    if atomic and refused:
        name, reason = next(iter(refused.items()))
        raise JaxcacheError(
            f"{bundle.name}: {name}: {reason}; with --atomic nothing is imported",
            code="bad-bundle",
            exit_code=ExitCode.PROBLEMS,
        )
    return replace(bundle, refused=refused)


def _damaged(bundle: bundle_format.Bundle, allow_large: bool) -> Iterator[tuple[str, str]]:
    content = bundle_format.ContentReader(bundle)
    done = 0
    entries = len(bundle.manifest.items)
    for number, (name, size, _) in enumerate(bundle.manifest.contents):
        pieces = content.take(name)
        if number < entries:
            if bundle.manifest.items[number].codec == "unknown":
                error = check_unknown_pieces(pieces)
            else:
                error = check_payload_pieces(name, pieces, allow_large=allow_large)
            if error is not None:
                yield name, error.detail
        else:
            deque(pieces, maxlen=0)
        done += size
        report_progress(done, bundle.manifest.content_bytes)
    content.end()


@dataclass(frozen=True, slots=True)
class BundleStore:
    """A bundle in the place of a store, as far as listing and showing need one."""

    url: str
    manifest: bundle_format.Manifest
    size_bytes: int
    stream_bytes: int
    ledger: Ledger
    """The events that travel with the entries."""
    remote: bool = False


def open_as_store(path: str) -> BundleStore:
    """Read the manifest of a bundle; the file is closed again.

    Raises:
        UsageError: ``other-layout``: it holds no entries of JAX.
        BundleError
    """
    with closing(bundle_format.open_bundle(path)) as bundle:
        if bundle.manifest.layout != bundle_format.JAX:
            raise UsageError(
                f"{path} holds a cache of {bundle.manifest.layout}",
                code="other-layout",
                hint=f"jaxcache import {path} -C DIR, and look there",
            )
        manifest = bundle.manifest
        ledger = Ledger.of(event for item in manifest.items for event in item.ledger)
        return BundleStore(
            os.path.abspath(path), manifest, bundle.size_bytes, bundle.stream_bytes, ledger
        )


def scan(store: BundleStore, _: Any = None, depth: Depth = Depth.OPENED, **__: Any) -> Scan:
    """List the entries by the manifest; their signature and source take decoding."""
    manifest = store.manifest
    inventory = Inventory()
    for name, size_bytes, at_ns in (
        *((i.file, i.size_bytes, i.created_ns) for i in manifest.items),
        *((f.name, f.size_bytes, f.created_ns) for f in manifest.files),
    ):
        info = FileInfo(name, "file", size_bytes, at_ns, at_ns, 0, 0, -1)
        inventory.others.append(OtherFile(info, split_name(name)[0]))
    entries = [_entry(item, manifest.origin_of(item)) for item in manifest.items]
    rule = LastUses(time.time_ns())
    scan_result = Scan(with_ledger(entries, store.ledger, rule), inventory, (), store.ledger)
    if depth is Depth.DECODED:
        return decode(store, scan_result, scan_result.entries, None, depth)
    return scan_result


def _entry(item: bundle_format.BundleItem, origin: bundle_format.Origin) -> Entry:
    key = parse_key(item.key)
    return Entry(
        key=item.key,
        module=item.module,
        hash=key.hash if key else "",
        file=item.file,
        size_bytes=item.size_bytes,
        payload_bytes=item.payload_bytes,
        codec=item.codec,  # type: ignore[arg-type]
        sealed=any(event.kind == SEALED for event in item.ledger),
        compile_seconds=float(item.compile_seconds),
        created_ns=item.created_ns,
        last_used_ns=item.created_ns if item.atime_ns is None else item.atime_ns,
        last_used_from="mtime" if item.atime_ns is None else "atime-file",
        platform=origin.platform if origin.platform in ("cpu", "gpu", "tpu") else "unknown",  # type: ignore[arg-type]
        target=origin.target,
    )


def decode(
    store: BundleStore, scan_result: Scan, wanted: Iterable[Entry], _: Any, depth: Depth
) -> Scan:
    """Add the signature and source of some entries; a damaged stream is a finding."""
    if depth is not Depth.DECODED:
        return scan_result
    decoded: dict[str, Entry] = {}
    entries = {entry.file: entry for entry in wanted}
    try:
        for name, payload in _payloads(store, entries):
            module = entries[name].module or None
            summary = summarize_contents(decode_payload(payload, module, parts="program"))
            decoded[name] = replace(entries[name], **summary.facts())
    except bundle_format.BundleError as error:
        problem = Problem(os.path.basename(store.url), "bad-payload", error.message)
        scan_result = scan_result._replace(problems=(*scan_result.problems, problem))
    return scan_result._replace(entries=tuple(decoded.get(e.file, e) for e in scan_result.entries))


def show(store: BundleStore, wanted: str) -> list[EntryDetails]:
    """Decode the entries that a KEY selects.

    Raises:
        BundleError: the stream is damaged.
        JaxcacheError: it fits none, or is ambiguous.
    """
    chosen = {entry.file: entry for entry in select_by_keys(scan(store).entries, [wanted])}
    details = {
        name: describe(
            store.url,
            chosen[name],
            decode_payload(payload, chosen[name].module or None),
            [],
            store.ledger.record(chosen[name].key),
            LastUses(time.time_ns()),
        )
        for name, payload in _payloads(store, chosen)
    }
    return [details[name] for name in chosen]


def _payloads(store: BundleStore, names: Collection[str]) -> Iterator[tuple[str, bytearray]]:
    """Yield the payloads of some files, in the order of the stream."""
    limit = max_payload_bytes(store.stream_bytes)
    unread_names = set(names)
    with closing(bundle_format.open_bundle(store.url)) as bundle:
        if bundle.manifest != store.manifest:
            raise bundle_format.BundleError(
                f"{store.url} changed while it was read", code="changed", hint=None
            )
        content = bundle_format.ContentReader(bundle)
        for item in bundle.manifest.items:
            if not unread_names:
                return
            if item.file not in unread_names:
                continue
            if item.payload_bytes > limit:
                raise bundle_format.BundleError(
                    f"{store.url}: the payload of {item.file} is too large to show"
                )
            unread_names.discard(item.file)
            payload = bytearray()
            for piece in content.take(item.file):
                payload += piece
            yield item.file, payload
