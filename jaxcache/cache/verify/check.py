"""Check entries of JAX from end to end: those of a cache for ``verify``, and those that move.

:func:`check` checks the entries of a cache. :func:`read_content` checks an entry in the same way
wherever it moves; ``import``, ``copy``, ``pull``, ``ci restore`` and ``compile`` also apply an
:class:`ImportPolicy`: names, upper and lower case, structure, size and signature.
"""

import threading
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from jaxcache.cache.files import EntryFile, find
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.cache.scan import Scan
from jaxcache.core.names import FREE_PAYLOAD_BYTES, HEADER_BYTES, max_payload_bytes, parse_key
from jaxcache.entry import codec, zstd
from jaxcache.entry.codec import CodecError, detect_codec
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import OpenPayload, decode_payload
from jaxcache.entry.names import FileKind, split_name
from jaxcache.errors import JaxcacheError
from jaxcache.model import Codec, Problem, ProblemKind
from jaxcache.options import VerifyOptions
from jaxcache.store.base import Store, StoreError, same_file
from jaxcache.store.concurrency import REQUESTS_AT_ONCE, ByteBudget, spread

#: What all workers together may hold: compressed and decompressed entries.
_MEMORY_BYTES = 2 << 30
#: Fewer entries than this are decoded before other processes have started.
SPREAD_ABOVE = 400
#: Larger entries stay with the threads of one process, which share a bound on memory.
MAX_FILE_BYTES = 1 << 20
MAX_HELD_BYTES = 64 << 20
#: Entries that a process decodes at once: a quarter of a second of work.
_SPREAD_CHUNK = 100
#: Readings of an entry that is replaced meanwhile.
_ATTEMPTS = 5
#: Entries up to this size are read in one piece.
SMALL_BYTES = 64 * 1024
#: Larger payloads are not decoded: a decoder holds them whole. JAX's own limit is 2 GiB
#: (protobuf's), and real ones are far below this.
MAX_DECODED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class EntryCheck:
    """The findings in one entry."""

    problems: tuple[Problem, ...] = ()
    proven: bool = False
    """The bytes are provably the ones that were written: by the codec's own checksum or by a
    recorded digest."""
    unsealed: bool = False
    """A zstd entry without a checksum that looks sound."""
    missing: bool = False
    """The file was gone when it was opened."""
    facts: Any = None
    """Facts that the layout keeps for :meth:`jaxcache.layouts.Layout.check_beside`."""


_BY_RECORD = frozenset({"changed-since-recorded", "digest-mismatch"})
_SOUND = {sealed: EntryCheck(proven=sealed, unsealed=not sealed) for sealed in (True, False)}


def _catching(
    check: Callable[[Store, EntryFile], EntryCheck], store: Store, file: EntryFile
) -> EntryCheck:
    """Run a check; what keeps it from reading the entry is a finding.

    A file with a problem that was replaced since it was listed is checked again as it is now: its
    size and its bytes were not those of one file. One that changes all the time is left out.
    """
    for _ in range(_ATTEMPTS):
        checked = _catch(check, store, file)
        if not checked.problems:
            return checked
        try:
            now = find(store, file.info.name)
        except StoreError:
            return checked
        if now is not None and same_file(now, file.info):
            return checked
        if now is None:
            break
        file = file._replace(info=now)
    return EntryCheck(missing=True)


def _catch(
    check: Callable[[Store, EntryFile], EntryCheck], store: Store, file: EntryFile
) -> EntryCheck:
    try:
        return check(store, file)
    except codec.CodecError as error:
        return EntryCheck((_problem(file, error.kind, error.detail),))
    except StoreError as error:
        if error.code == "missing":
            return EntryCheck(missing=True)
        kind: ProblemKind = "unreadable"
        if error.code == "checksum-mismatch":  # that an object store has recorded
            kind = "checksum-mismatch"
        return EntryCheck((_problem(file, kind, error.reason),))


class RecordedDigest(NamedTuple):
    """The SHA-256 of a payload in the ledger."""

    sha256: str
    binding: bool
    """Whether other bytes are damage; otherwise JAX may have rewritten the entry."""


def check_entry(
    store: Store, file: EntryFile, recorded: RecordedDigest | None, *, decode: bool
) -> EntryCheck:
    """Decompress one entry whole and check everything inside.

    Args:
        recorded: what the ledger recorded of its payload.
        decode: also decode the payload: structure, inner hashes, module name. Holds it whole.
    """
    return _catching(partial(_check_whole, recorded=recorded, decode=decode), store, file)


def _check_whole(
    store: Store, file: EntryFile, *, recorded: RecordedDigest | None, decode: bool
) -> EntryCheck:
    if not decode and recorded is None and file.info.size_bytes <= SMALL_BYTES:
        (data,) = store.read_many([file.info.name], limit=SMALL_BYTES + 1)
        if isinstance(data, bytes) and (sealed := codec.check_small(data)) is not None:
            return _SOUND[sealed]
    with store.open(file.info.name) as opened:
        problems = _check_payload(opened, file, recorded, decode)
        sealed = _is_sealed(opened, file)
    if sealed:  # a right checksum outweighs a record
        problems = [p for p in problems if p.kind not in _BY_RECORD]
    proven = not problems and (sealed or recorded is not None)
    return EntryCheck(tuple(problems), proven=proven, unsealed=not sealed)


def check_decoded(
    store: Store, wanted: Sequence[tuple[EntryFile, RecordedDigest | None]]
) -> Iterator[EntryCheck]:
    """Check some entries with what is recorded of them, and decode them."""
    return (check_entry(store, file, recorded, decode=True) for file, recorded in wanted)


def find_recorded_digest(file: EntryFile, record: LedgerRecord | None) -> RecordedDigest | None:
    """The ledger's record of the payload of an entry."""
    if record is None or (digest := record.digest_of(file.info.mtime_ns)) is None:
        return None
    return RecordedDigest(digest, record.is_of(file.info))


def recorded_digest(file: EntryFile, record: LedgerRecord | None) -> str | None:
    """The payload's SHA-256 in the ledger, if other bytes are damage."""
    recorded = find_recorded_digest(file, record)
    return recorded.sha256 if recorded and recorded.binding else None


def check_payload(file: EntryFile, payload: bytes | bytearray | memoryview) -> Iterator[Problem]:
    """Decode a payload and yield what is wrong with it: structure, inner hashes, module name."""
    module = file.key.module or None
    for kind, detail in decode_payload(payload, module, parts="structure").problems:
        yield _problem(file, kind, detail)


def _check_payload(
    opened: BinaryIO, file: EntryFile, recorded: RecordedDigest | None, decode: bool
) -> list[Problem]:
    payload = OpenPayload(opened, file.info.size_bytes, hashed=recorded is not None)
    kept = bytearray()
    for chunk in payload:
        if decode and payload.size_bytes <= MAX_DECODED_BYTES:
            kept += chunk
    differs = recorded is not None and recorded.sha256 != payload.sha256
    problems = []
    if recorded and differs and recorded.binding:
        problems.append(digest_mismatch(file, payload.sha256, recorded.sha256))
    if decode and payload.size_bytes <= MAX_DECODED_BYTES:
        problems.extend(check_payload(file, kept))
    if recorded and differs and not problems:  # else it is damaged, whoever wrote it
        detail = f"written after it was recorded: {_digests(payload.sha256, recorded.sha256)}"
        problems.append(_problem(file, "changed-since-recorded", detail))
    return problems


def digest_mismatch(file: EntryFile, computed: str, recorded: str) -> Problem:
    """The finding that a payload is not the one in the ledger."""
    return _problem(file, "digest-mismatch", _digests(computed, recorded))


def _digests(computed: str, recorded: str) -> str:
    return f"payload has SHA-256 {computed[:12]}…, the ledger recorded {recorded[:12]}…"


def _problem(file: EntryFile, kind: ProblemKind, detail: str) -> Problem:
    return Problem(file.info.name, kind, detail, file.key_text)


def files_to_check(
    store: Store,  # noqa: ARG001 - the names suffice
    scan_result: Scan,
    chosen: Collection[str],
    options: VerifyOptions,  # noqa: ARG001
) -> list[EntryFile]:
    """Return the entries to check, of those chosen by file."""
    return [f for f in scan_result.inventory.entries if f.info.name in chosen]


def check(
    store: Store, scan_result: Scan, files: Sequence[EntryFile], options: VerifyOptions
) -> Iterator[tuple[str, EntryCheck]]:
    """Check entries, by file, in the order in which they are done.

    Large entries are shared among threads, many that are decoded among processes.
    """
    budget = ByteBudget(_MEMORY_BYTES)
    ledger = scan_result.ledger

    def known_of(file: EntryFile) -> RecordedDigest | None:
        return find_recorded_digest(file, ledger.record(file.key_text) if ledger else None)

    def check(file: EntryFile) -> EntryCheck:
        if options.level == "quick":
            return _catching(_walk_frame, store, file)
        with budget.take(_held_bytes(store, file) if options.decode else 0):
            return check_entry(store, file, known_of(file), decode=options.decode)

    elsewhere = _to_spread(store, files, options)
    # zstd lets the interpreter go, so that threads help where much is decompressed.
    jobs = max(options.jobs or 1, REQUESTS_AT_ONCE if store.remote else 1)
    names = {f.info.name for f in elsewhere}
    here: list[EntryFile] = []
    threaded: list[EntryFile] = []
    for file in files:
        if file.info.name not in names:
            is_large = (options.jobs or 1) > 1 and file.info.size_bytes > SMALL_BYTES
            (threaded if store.remote or is_large else here).append(file)
    with ThreadPoolExecutor(jobs) as pool:
        running = [(f, pool.submit(check, f)) for f in threaded]
        try:
            if elsewhere:
                wanted = [(f, known_of(f)) for f in elsewhere]
                checks = spread(
                    check_decoded, store, wanted, workers=jobs, above=0, chunk=_SPREAD_CHUNK
                )
                yield from zip((f.info.name for f in elsewhere), checks, strict=True)
            for file in here:
                yield file.info.name, check(file)
            for file, future in running:
                yield file.info.name, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _to_spread(
    store: Store, files: Sequence[EntryFile], options: VerifyOptions
) -> Sequence[EntryFile]:
    """The entries to check in other processes; none where that does not pay."""
    alone = options.level == "quick" or (options.jobs or 1) < 2
    if alone or not options.decode or store.path is None:
        return ()
    fitting = [
        f
        for f in files
        if f.info.size_bytes <= MAX_FILE_BYTES and _held_bytes(store, f) <= MAX_HELD_BYTES
    ]
    return fitting if len(fitting) >= SPREAD_ABOVE else ()


def _held_bytes(store: Store, file: EntryFile) -> int:
    """Estimate the memory that decoding an entry takes, at most twice its payload."""
    if file.info.size_bytes <= SMALL_BYTES:
        return 0
    if store.remote:
        return 16 * file.info.size_bytes
    try:
        header = codec.read_entry_header(
            store.read(file.info.name, limit=codec.HEAD_BYTES), file.info.size_bytes
        )
    except (StoreError, codec.CodecError):
        return 0
    return 2 * (header.content_bytes or 8 * file.info.size_bytes)


def _walk_frame(store: Store, file: EntryFile) -> EntryCheck:
    """Follow the block headers of an entry to its end."""
    with store.open(file.info.name) as opened:
        codec.check_frame(opened, file.info.size_bytes)
        return EntryCheck(unsealed=not _is_sealed(opened, file))


def _is_sealed(opened: BinaryIO, file: EntryFile) -> bool:
    opened.seek(0)
    return codec.read_entry_header(opened.read(codec.HEAD_BYTES), file.info.size_bytes).checksum


def check_beside(
    scan_result: Scan,
    files: Sequence[EntryFile],
    checks: Mapping[str, EntryCheck],
    options: VerifyOptions,
) -> Iterator[Problem]:
    """Yield the problems of entries other than those of their content."""
    atimes = scan_result.inventory.atimes
    wanted = options.atimes or bool(atimes)
    for file in files:
        if wanted and file.kind is FileKind.ENTRY and file.key_text not in atimes:
            detail = "no -atime file: JAX before 0.11.2 with a size cap stops writing at it"
            yield _problem(file, "missing-atime", detail)
        checked = checks[file.info.name]
        kinds = {p.kind for p in checked.problems}
        if checked.unsealed and kinds <= {"changed-since-recorded"}:
            detail = "no checksum: JAX itself would not notice a changed byte; see jaxcache seal"
            yield _problem(file, "unsealed", detail)


#: Longest file name that Linux file systems take, in bytes.
MAX_NAME_BYTES = 255
#: Payloads up to this size are decompressed once and buffered; larger ones twice, and streamed.
BUFFERED_BYTES = 32 << 20
#: Hashes inside larger payloads are left to ``verify``: they take seconds per MiB.
MAX_HASHED_BYTES = 1 << 20


#: SHA-256 of payloads, by file, that trusted keys vouch for.
Signed = Mapping[str, Collection[str]]


@dataclass(frozen=True, slots=True)
class CheckedContent:
    """The content of a whole, sound entry."""

    codec: Codec
    compile_seconds: int
    payload_bytes: int
    payload_sha256: str
    buffered: bytearray
    """The payload, or the beginning of one that is larger than :data:`BUFFERED_BYTES`."""
    size_bytes: int
    decoded: Contents | None = None
    """The contents of the payload, where it was decoded."""

    def chunks(self, file: BinaryIO) -> Iterator[bytes | bytearray]:
        """Yield the payload, from ``file`` where it is not buffered.

        Raises:
            JaxcacheError: ``changed`` if the file has been replaced.
        """
        if self.payload_bytes <= BUFFERED_BYTES:
            yield self.buffered
            return
        try:
            payload = OpenPayload(file, self.size_bytes)
            yield from map(bytes, payload)
        except CodecError as error:
            raise _changed() from error
        if payload.sha256 != self.payload_sha256:
            raise _changed()


def read_content(
    file: BinaryIO,
    size_bytes: int,
    name: str | None = None,
    *,
    allow_large: bool = True,
    sound: str | None = None,
) -> CheckedContent:
    """Decompress, hash and decode an entry.

    Args:
        file: seekable, the whole entry.
        name: the name of its file, which contains the module's name; None: do not decode it.
        allow_large: see :class:`ImportPolicy`.
        sound: SHA-256 of a payload that need not be decoded again.

    Raises:
        CodecError: ``verify`` would call it damaged, or it inflates further than executables do.
    """
    payload = _Payload(name)
    opened = OpenPayload(file, size_bytes)
    limit = None if allow_large else max_payload_bytes(size_bytes)
    for chunk in opened:
        payload.add(chunk)
        if limit is not None and payload.size_bytes > limit:
            raise _too_large(f"{size_bytes} bytes inflate to more than {limit}")
    digest = opened.sha256
    decoded = payload.check() if digest != sound else None
    buffered = (
        payload.buffered
        if payload.size_bytes <= BUFFERED_BYTES
        else payload.buffered[:BUFFERED_BYTES]
    )
    identity = (payload.size_bytes, digest, buffered, size_bytes, decoded)
    return CheckedContent(opened.codec, opened.compile_seconds, *identity)


def check_payload_pieces(
    name: str, pieces: Iterable[memoryview], *, allow_large: bool = False
) -> CodecError | None:
    """Decode a payload that comes in pieces, as in a bundle; return what is wrong with it."""
    payload = _Payload(name)
    packed_bytes = 0
    packer: Any = None
    for piece in pieces:
        payload.add(piece)
        if payload.size_bytes > FREE_PAYLOAD_BYTES and not allow_large:
            packer = packer or zstd.compressor(1)
            packed_bytes += len(packer.compress(piece))
    try:
        limit = max_payload_bytes(packed_bytes)
        if not allow_large and payload.size_bytes > limit:
            raise _too_large(f"a payload of {payload.size_bytes} bytes that compresses to a trifle")
        payload.check()
    except CodecError as error:
        return error
    return None


def check_unknown_pieces(pieces: Iterable[memoryview]) -> CodecError | None:
    """Return what is wrong with an entry that is said to be in an unknown format."""
    start = b""
    for piece in pieces:
        start += piece[: HEADER_BYTES - len(start)]
    if (codec := detect_codec(start)) == "unknown":
        return None
    return CodecError("bad-codec", f"is {codec}, and its manifest says that its format is unknown")


class _Payload:
    """A payload while it arrives, kept to be decoded."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.buffered = bytearray()
        self.size_bytes = 0

    def add(self, piece: memoryview) -> None:
        self.size_bytes += len(piece)
        if self.size_bytes <= MAX_DECODED_BYTES:
            self.buffered += piece

    def check(self) -> Contents | None:
        """Decode it, as ``verify`` does; None where it has no name or is larger than any.

        Raises:
            CodecError
        """
        if self._name is None or self.size_bytes > MAX_DECODED_BYTES:
            return None
        key = parse_key(split_name(self._name)[1] or "")
        if key is None:
            return None
        hashes = self.size_bytes <= MAX_HASHED_BYTES
        module = key.module or None
        decoded = decode_payload(self.buffered, module, parts="structure", check=hashes)
        for kind, detail in decoded.problems:
            if kind != "unreadable":  # what decompresses its parts may be missing
                raise CodecError(kind, detail)
        return decoded


def check_file_name(name: str) -> str | None:
    """Return the reason why no cache takes a file of this name; None if one may."""
    if "/" in name or name.startswith("."):
        return "is a path, not a name"
    if not name.isprintable():
        return "holds characters that do not print"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    return None


def normalize_name(name: str) -> str:
    """Return a form that is equal for names that some file systems treat as one."""
    return unicodedata.normalize("NFC", name).casefold()


class ImportPolicy:
    """The policy of one cache: which entries come in.

    Args:
        present: names of the files that the cache holds.
        signed: digests by file that a trusted key vouches for (see
            :mod:`jaxcache.cache.trust`); None where no signature is required.
        allow_large: let in what inflates further than executables do, too.
    """

    def __init__(
        self,
        present: Iterable[str] = (),
        *,
        signed: Signed | None = None,
        allow_large: bool = False,
    ) -> None:
        self._names = {normalize_name(name): name for name in present}
        self._lock = threading.Lock()
        self.signed = signed
        self.allow_large = allow_large

    def name_error(self, name: str) -> str | None:
        """Return why a file of this name cannot come in; None if it can, and its name is taken."""
        if reason := check_file_name(name.rpartition("/")[2]):
            return reason
        with self._lock:
            other = self._names.setdefault(normalize_name(name), name)
        return None if other == name else f"differs from {other} in case only"

    def is_signed(self, name: str, digest: str) -> bool:
        """Return whether the policy lets bytes of this SHA-256 in under this name."""
        return self.signed is None or digest in self.signed.get(name, ())


def _too_large(detail: str) -> CodecError:
    return CodecError(
        "bad-payload", f"{detail}, which no executable does (--allow-large lets it in)"
    )


def _changed() -> JaxcacheError:
    return JaxcacheError(
        "an entry changed while it was read", code="changed", hint="run the command again"
    )
