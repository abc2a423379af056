"""The compiles that are compared, each with as much as a cache and its ledger know of its key."""

import enum
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

from jaxcache.cache.doctor.inputs import Finding
from jaxcache.cache.explain.say import Part
from jaxcache.cache.files import take_inventory
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.cache.scan import read_entries
from jaxcache.cache.selection import select_by_keys
from jaxcache.cache.untrusted_json import Seconds
from jaxcache.core.compile_event import RunOutcome, UndonePart
from jaxcache.core.names import HEADER_BYTES, parse_key
from jaxcache.core.sketch import PassedArgument, Sketch, read_sketch
from jaxcache.core.wire import WireError
from jaxcache.entry.codec import CodecError, detect_codec
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import decode_payload, find_hlo_module, read_payload
from jaxcache.entry.hlo import parameter_names
from jaxcache.errors import MissingPackageError, NoCacheError
from jaxcache.model import Depth, result_repr
from jaxcache.store import open_store
from jaxcache.store.base import MissingError, Store, StoreError
from jaxcache.units import add_cache

RUN_OUTCOMES: tuple[RunOutcome, ...] = get_args(RunOutcome)

JAXLIB = "jax_lib version"
#: The parts of a key by JAX's own names for them, in the order in which they are hashed
#: (``get`` in jax/_src/cache_key.py; "backend version" since 0.6.2).
COMPONENTS = (
    "computation",
    JAXLIB,
    "backend version",
    "XLA flags",
    "compile_options",
    "accelerator_config",
    "compression",
    "custom_hook",
)


class Cause(enum.StrEnum):
    """The reason of a miss, as JSON holds it."""

    JAX_VERSION = "jax-version"
    JAXLIB_VERSION = "jaxlib-version"
    TORCH_VERSION = "torch-version"
    DEVICE = "device"
    FLAG = "flag"
    CONFIG = "config"
    CODEC = "codec"
    HOOK = "hook"
    PATH = "path"
    ARGUMENT = "argument"
    """An input of a graph of torch's; torch keeps no more of it."""
    ARGUMENT_STRUCTURE = "argument-structure"
    ARGUMENT_SHAPE = "argument-shape"
    ARGUMENT_DTYPE = "argument-dtype"
    ARGUMENT_SHARDING = "argument-sharding"
    STATIC_ARGUMENT = "static-argument"
    DONATION = "donation"
    CODE = "code"
    CONSTANT = "constant"
    OPERATION_ORDER = "operation-order"
    SOURCE_LINES = "source-lines"
    NAME = "name"
    CALLBACK = "callback"
    NOT_CACHED_BEFORE = "not-cached-before"
    BELOW_THRESHOLD = "below-threshold"
    LOST = "lost"
    """The same key, whose entry is missing, damaged, or elsewhere."""
    UNKNOWN = "unknown"


class Evidence(enum.StrEnum):
    """What shows that a difference is a reason of the miss; it decides what may be claimed."""

    PROVED = "proved"
    """It is the only part of the key that differs, or the key without it is of an entry."""
    LAYER = "layer"
    """Without one layer, such as the constants, both programs are equal."""
    OBSERVED = "observed"
    """It differs; nothing shows that it alone makes another key."""
    IN_PART = "in-part"
    """This part of the key differs, and so does another: undoing it alone brings no hit."""
    UNSTABLE = "unstable"
    """It is another one in each process."""
    UNKNOWN = "unknown"


class WriteRule(enum.StrEnum):
    """A rule by which JAX does not write an entry, as the reason of a compile names it."""

    HOST_CALLBACKS = "host-callbacks"
    COMPILE_TIME = "compile-time"
    SIZE = "size"


#: Functions in files below this directory are JAX's own.
_JAX_ITSELF = f"{os.sep}jax{os.sep}_src{os.sep}"


#: Files that kernels of notebooks, and shells of IPython, give their cells.
#: Records of runs call each of them ``cell``.
_CELL = re.compile(r"(?:.*[/\\]ipykernel_[0-9]+[/\\][0-9]+\.py\b|cell(?=$|:))(?::([0-9]+))?")
_NUMBERED_CELL = re.compile(r"^<ipython-input-([0-9]+)-[^>]*>")


def file_name(source: str) -> str:
    """Return a file without its directory; a cell of a notebook as ``line 3 of a cell``, ``In[3]``.

    Args:
        source: the file, or ``file:line``.
    """
    if match := _CELL.match(source):
        return f"line {match[1]} of a cell" if match[1] else "a cell"
    return os.path.basename(_NUMBERED_CELL.sub(r"In[\1]", source))


_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}|(?<=[_.])[0-9a-f]{12}(?=[_.]|$)")


def without_addresses(module: str) -> str:
    """A module's name with every address in it replaced by ``0x…``."""
    return _ADDRESS.sub("0x…", module)


def is_cell(source: str | None) -> bool:
    """Whether a file, or ``file:line``, is a cell of a notebook."""
    return bool(source and (_CELL.match(source) or _NUMBERED_CELL.match(source)))


def is_helper(function: str | None, file: str | None) -> bool:
    """Whether a compiled function is an operation of JAX's own, and no function of the user's."""
    return function is None or file is None or _JAX_ITSELF in file


@dataclass(frozen=True, slots=True)
class Compile:
    """One compile of one side; what is not known is None."""

    module: str
    key: str | None = None
    components: Mapping[str, str] | None = None
    """SHA-256 of each part of the key, by JAX's name for it."""
    outcome: RunOutcome | None = None
    reason: str | None = None
    """The reason why it was not written, in JAX's words."""
    rule: str | None = None
    """The same as a code: a :class:`WriteRule`, or another reason of a run."""
    passed: tuple[PassedArgument, ...] | None = None
    """The arguments of the call with their global types."""
    parameters: tuple[PassedArgument, ...] = ()
    """Those that the program of its entry uses, with their types on each device."""
    is_helper: bool = False
    """Whether it is known to be an operation of JAX's own; see :func:`is_helper`."""
    xla_flags: tuple[str, ...] | None = None
    """The flags that went into the key."""
    cache_path: str | None = None
    """The cache directory that the options point into."""
    source: str | None = None
    """``file:line`` of the function."""
    compile_seconds: Seconds | None = None
    contents: Contents | None = None
    """The contents of its entry, if the cache has it."""
    is_damaged: bool = False
    """Whether its entry exists but cannot be decompressed."""
    unreadable: str | None = None
    """The reason why its entry, which exists, cannot be read, in the system's words."""
    record: LedgerRecord | None = None
    codec: str | None = None
    jax_version: str | None = None
    jaxlib_version: str | None = None
    device_count: int | None = None
    """Devices that its process had."""
    sketch: Sketch | None = None
    """The program before optimization, where jaxcache saw it compile."""
    script: str | None = None
    undone: tuple[UndonePart, ...] = ()
    """The parts of its key without which it is ``undone_key``, whose entry is there."""
    undone_key: str | None = None

    def hash_of(self, component: str) -> str | None:
        """The start of the hash of a component, as it is shown."""
        digest = (self.components or {}).get(component)
        return f"sha256 {digest[:12]}" if digest else None

    def value_of(self, component: str) -> str | None:
        """The value of a component whose hash is that of a known codec or version."""
        return _values_by_hash().get((component, (self.components or {}).get(component, "")))


@cache
def _values_by_hash() -> dict[tuple[str, str], str]:
    """The values that are identified by hashing all that are possible."""
    releases = {f"0.{minor}.{patch}" for minor in range(3, 30) for patch in range(60)}
    releases |= {f"0.{m}.{p}.{q}" for m in range(4, 30) for p in range(10) for q in range(1, 5)}
    values = {(JAXLIB, _sha256(release)): release for release in releases}
    values |= {("compression", _sha256(codec)): codec for codec in ("zstandard", "zlib")}
    return values | {("custom_hook", _sha256("")): "no hook"}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of Python."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        place = file_name(f"{self.file}:{self.line}")
        return place + (f" in `{self.function}`" if self.function else "")


@dataclass(frozen=True, slots=True)
class Difference:
    """One component that differs, what that means, and what to do."""

    component: str
    left: str | None
    right: str | None
    meaning: str
    fix: str | None
    cause: Cause = Cause.UNKNOWN
    where: tuple[SourceLocation, ...] = ()
    title: str = ""
    """The meaning in a few words, without places and values."""
    brief: str = ""
    """What differs in one short line with values: ``multiply, … → silu at model.py:12``."""
    evidence: Evidence = Evidence.UNKNOWN

    def without_cure(self) -> "Difference":
        """Return the same where undoing it alone brings no hit; a name's cure holds anyway."""
        return self if self.evidence is Evidence.UNSTABLE else replace(self, fix=None)


def differ(
    component: str,
    part: Part,
    cause: Cause,
    sides: tuple[str | None, str | None] = (None, None),
    *,
    fix: str | None = None,
    where: Sequence[SourceLocation] = (),
    brief: str = "",
    evidence: Evidence = Evidence.OBSERVED,
) -> Difference:
    """Return the difference that some words describe."""
    return Difference(
        component, *sides, part.meaning, fix, cause, tuple(where), part.title, brief, evidence
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A compile of the right side with the nearest one of the left side."""

    left: Compile | None
    right: Compile
    differences: tuple[Difference, ...]
    compared_with: str | None = None
    """The run that compiled the left one: ``run of 10:02, two runs ago``; None where a run or a
    key was named."""

    def in_cache(self, cache_dir: str) -> "Comparison":
        """Return it with commands that name this cache."""
        named = (replace(d, fix=d.fix and add_cache(d.fix, cache_dir)) for d in self.differences)
        return replace(self, differences=tuple(named))


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of ``explain``."""

    __repr__ = result_repr

    left: str
    right: str
    same: int
    """Compiles of the right side whose key the left side has too, with nothing wrong."""
    comparisons: tuple[Comparison, ...]
    hits: int = 0
    """Those of ``same`` that a script retrieved from the cache."""
    advice: tuple[Finding, ...] = ()
    """The parts of the script's start that are worth shortening."""
    past: tuple[Comparison, ...] = ()
    """Each hit compared with what the run before the one that wrote it had compiled in its place;
    no differences where no run did."""
    verdict: tuple[str, ...] = ()
    """The causes of the whole run, one a sentence, with what undoes them."""


# What a cache knows of a key ----------------------------------------------------------------------

#: Entries that are opened to learn the paths that a cache has had.
_MOST_OPENED = 3


class CachedFacts:
    """The entries and the ledger of one cache, opened one by one on request.

    Args:
        earlier: compiles by key that the ledger may not have yet.
    """

    def __init__(self, store: Store, earlier: Mapping[str | None, Compile] | None = None) -> None:
        self._store = store
        self._earlier = earlier or {}
        inventory = take_inventory(store)
        self._files = {f.key_text: f for f in inventory.entries}
        self._ledger = Ledger.load(store)
        self._complete: dict[tuple[str, float], Compile] = {}

    def has(self, key: str) -> bool:
        """Whether the cache has an entry of a key."""
        return key in self._files

    def knows(self, key: str) -> bool:
        """Whether the cache has an entry of a key, or its ledger had one."""
        record = self._ledger.record(key)
        return key in self._files or bool(record and record.payload_sha256)

    def keys_of(self, module: str) -> list[str]:
        """The keys of a module, those written last first."""
        files = [f for f in self._files.values() if f.key.module == module]
        return [f.key_text for f in sorted(files, key=lambda f: -f.info.mtime_ns)]

    def find_newest(self, wanted: str) -> list[Compile]:
        """Return the newest compile of each module that a KEY fits, not yet opened.

        Raises:
            JaxcacheError: ``no-match`` or ``ambiguous-key``.
        """
        if (record := self._ledger.record(wanted)) and wanted not in self._files:
            parsed = parse_key(wanted)
            return [Compile(parsed.module if parsed else "", wanted, record=record)]
        stubs, _ = read_entries(self._store, list(self._files.values()), {}, depth=Depth.LISTED)
        chosen = {e.key: e.module for e in select_by_keys(stubs, [wanted])}
        newest = {m: next(k for k in self.keys_of(m) if k in chosen) for m in chosen.values()}
        return [Compile(module, key) for module, key in newest.items()]

    def past_paths(self) -> Sequence[str]:
        """Return the paths that the cache had when a few of its entries were written."""
        compiles = [Compile(f.key.module, key) for key, f in self._files.items()][:_MOST_OPENED]
        contents = (self.complete(c).contents for c in compiles)
        paths = (c.written_in_cache_dir for c in contents if c)
        return (*dict.fromkeys(path for path in paths if path),)

    def complete(self, compile_: Compile, *, max_bytes: float = math.inf) -> Compile:
        """Add the ledger's record and the entry's contents, where the key is known.

        Args:
            max_bytes: larger entries are not opened.
        """
        key = compile_.key
        if key is None:
            return compile_
        compile_ = self._earlier.get(key, compile_)
        place = key, max_bytes
        if place not in self._complete:
            self._complete[place] = self._read(key, max_bytes)
        facts = self._complete[place]
        own_record = compile_.record or facts.record
        record = own_record or LedgerRecord(key)
        flags = None if record.xla_flags is None else tuple(sorted(record.xla_flags.split()))
        return replace(
            compile_,
            contents=facts.contents,
            is_damaged=facts.is_damaged,
            unreadable=facts.unreadable,
            parameters=facts.parameters,
            codec=facts.codec,
            record=own_record,
            components=compile_.components or record.components,
            xla_flags=flags if compile_.xla_flags is None else compile_.xla_flags,
            jax_version=compile_.jax_version or record.jax_version,
            jaxlib_version=compile_.jaxlib_version or record.jaxlib_version,
            device_count=compile_.device_count or record.device_count,
            sketch=compile_.sketch or read_sketch(record.sketch),
            script=compile_.script or record.script,
            is_helper=compile_.is_helper
            or bool(record.file and is_helper(record.function, record.file)),
        )

    def _read(self, key: str, max_bytes: float) -> Compile:
        file = self._files.get(key)
        record = self._ledger.record(key)
        blank = Compile("", key, record=record)
        if file is None or file.info.size_bytes > max_bytes:
            return blank
        try:
            with self._store.open(file.info.name) as stream:
                codec = detect_codec(stream.read(HEADER_BYTES))
                payload = read_payload(stream, file.info.size_bytes)
            contents = decode_payload(payload, check=False)
            decoded = replace(blank, contents=contents, codec=codec)
        except CodecError:
            return replace(blank, is_damaged=True)
        except (MissingError, MissingPackageError):
            return blank
        except StoreError as error:
            return replace(blank, unreadable=error.reason)
        try:
            names = parameter_names(find_hlo_module(payload))
        except WireError:
            return decoded
        arrays = contents.program.parameters if contents.program else ()
        types = [f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in arrays]
        pairs = zip(names if len(names) == len(types) else [""] * len(types), types, strict=True)
        return replace(decoded, parameters=tuple(PassedArgument(*pair) for pair in pairs))


def open_cached_facts(path: str) -> CachedFacts | None:
    """Open a cache; None if it does not exist."""
    try:
        return CachedFacts(open_store(path))
    except NoCacheError:
        return None
