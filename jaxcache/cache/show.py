"""``show`` as data: everything inside one entry."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxcache.cache.files import EntryFile, Inventory, require_objects, take_inventory
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.scan import make_rule, read_entries, with_record
from jaxcache.cache.selection import select_by_keys
from jaxcache.core.eviction import LastUses
from jaxcache.core.names import parse_key
from jaxcache.core.wire import WireError
from jaxcache.entry.codec import CodecError
from jaxcache.entry.contents import ArrayType, Contents
from jaxcache.entry.decode import OpenPayload, find_hlo_module, read_contents, read_payload
from jaxcache.entry.names import FileKind, split_name
from jaxcache.entry.summary import Entry, summarize_contents
from jaxcache.errors import JaxcacheError
from jaxcache.model import Depth, FileInfo, Problem, result_repr
from jaxcache.store.base import Store, StoreError
from jaxcache.units import differing_columns

#: Other entries of its module that an entry is compared with, the newest, and their size at most.
_COMPARED = 8
_MAX_COMPARED_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class EntryDetails:
    """One entry with its contents."""

    __repr__ = result_repr

    cache_dir: str
    entry: Entry
    """With platform and target."""
    contents: Contents
    problems: tuple[Problem, ...]
    """Problems of the file and of its contents."""
    provenance: LedgerRecord | None
    differing_arguments: tuple[int, ...] = ()
    """Numbers of the arguments that have other types in other entries of its module."""

    compiler = "jax"

    @property
    def damaged(self) -> bool:
        """Whether something in it cannot be read."""
        return bool(self.contents.problems)


def show(store: Store, wanted: str) -> Iterator[EntryDetails]:
    """Decode the entries that a KEY means: one, or several where it is a glob.

    Raises:
        NoCacheError
        JaxcacheError: it fits nothing, or is ambiguous.
    """
    files, inventory = _select(store, wanted)
    ledger = Ledger.load(store)
    rule = make_rule(store, inventory)
    types: dict[str, Sequence[ArrayType]] = {}
    for file in files:
        if shown := _show(store, file, inventory.atimes, ledger, rule):
            alike = [file, *(() if store.remote else _newest_of_module(file, inventory))]
            for each in (f for f in alike if f.info.name not in types):
                contents = shown.contents if each is file else _read(store, each, None)
                types[each.info.name] = contents.program.parameters if contents.program else ()
            rows = [types[f.info.name] for f in alike]
            yield replace(shown, differing_arguments=differing_columns(rows))


def _newest_of_module(file: EntryFile, inventory: Inventory) -> Sequence[EntryFile]:
    """Return the newest small entries that have the module of a file."""
    files = (f for f in inventory.entries if f.info.size_bytes <= _MAX_COMPARED_BYTES)
    alike = [f for f in files if f.key.module == file.key.module]
    return sorted(alike, key=lambda f: -f.info.mtime_ns)[:_COMPARED]


def show_file(store: Store, name: str) -> Iterator[EntryDetails]:
    """Decode one file of any name.

    Raises:
        MissingError, StoreError
    """
    info = store.info(name)
    shown = _show(store, _as_entry(info), {}, Ledger(), LastUses(time.time_ns()))
    if shown is None:
        raise JaxcacheError(f"{name} is gone", code="missing")
    yield shown


def choose_file(store: Store, wanted: str) -> str:
    """The name of the one entry that a KEY means, for :func:`read_hlo` and :func:`payload_chunks`.

    Raises:
        JaxcacheError: it fits none, or more than one.
    """
    files, _ = _select(store, wanted)
    if len(files) > 1:
        raise JaxcacheError(
            f"{wanted!r} matches {len(files)} entries, and one is needed",
            code="ambiguous-key",
            hint=f"jaxcache ls -q {wanted!r} prints them",
        )
    return files[0].info.name


def read_hlo(store: Store, name: str) -> bytes:
    """The ``HloModuleProto`` of an entry.

    Raises:
        JaxcacheError: ``bad-entry`` where none can be read.
    """
    with store.open(name) as file:
        try:
            return bytes(find_hlo_module(read_payload(file, store.info(name).size_bytes)))
        except (CodecError, WireError) as error:
            raise _bad_entry(name, error) from error


def payload_chunks(store: Store, name: str) -> Iterator[bytes]:
    """Yield the decompressed executable of an entry in chunks.

    Raises:
        JaxcacheError: ``bad-entry`` where it is damaged.
    """
    with store.open(name) as file:
        try:
            for chunk in OpenPayload(file, store.info(name).size_bytes, hashed=False):
                yield bytes(chunk)
        except CodecError as error:
            raise _bad_entry(name, error) from error


def _bad_entry(name: str, error: Exception) -> JaxcacheError:
    return JaxcacheError(
        f"{name}: {error}", code="bad-entry", hint="jaxcache verify reports the problem"
    )


def _select(store: Store, wanted: str) -> tuple[list[EntryFile], Inventory]:
    # A full key can mean no other entry, so that a large bucket need not be listed for it.
    key = parse_key(wanted)
    inventory = take_inventory(store, start=wanted if store.remote and key and key.module else "")
    require_objects(store, inventory.entries)
    stubs, _ = read_entries(store, inventory.entries, {}, depth=Depth.LISTED)
    chosen = {entry.file for entry in select_by_keys(stubs, [wanted])}
    return [f for f in inventory.entries if f.info.name in chosen], inventory


def _show(
    store: Store, file: EntryFile, atimes: dict[str, FileInfo], ledger: Ledger, rule: LastUses
) -> EntryDetails | None:
    entries, problems = read_entries(store, [file], atimes, rule=rule)
    if not entries:
        return None
    entry = entries[0]
    contents = _read(store, file, entry.module or None)
    return describe(store.url, entry, contents, problems, ledger.record(entry.key), rule)


def describe(
    url: str,
    entry: Entry,
    contents: Contents,
    problems: Sequence[Problem],
    record: LedgerRecord | None,
    rule: LastUses,
) -> EntryDetails:
    """Add to an entry the facts from its contents and the ledger."""
    files = [
        *problems,
        *(
            Problem(entry.file, kind, detail, entry.key)
            for kind, detail in contents.problems
            if kind not in entry.problems and "unknown-format" not in entry.problems
        ),
    ]
    summary = summarize_contents(contents)
    entry = replace(entry, **summary.facts(), problems=tuple(dict.fromkeys(p.kind for p in files)))
    entry = entry if record is None else with_record(entry, record, rule)
    return EntryDetails(url, entry, contents, tuple(files), record)


def _read(store: Store, file: EntryFile, module: str | None) -> Contents:
    try:
        with store.open(file.info.name) as stream:
            return read_contents(stream, file.info.size_bytes, module)
    except StoreError as error:
        return Contents(problems=(("unreadable", error.reason),))


def _as_entry(info: FileInfo) -> EntryFile:
    kind, key = split_name(info.name)
    if key is None or kind not in (FileKind.ENTRY, FileKind.LEGACY_ENTRY):
        return EntryFile(info, info.name, FileKind.STRAY)
    return EntryFile(info, key, kind)
