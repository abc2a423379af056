"""An entry, and the few facts of its contents that a listing shows, without reading the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from jaxcache.core.eviction import LastUsedFrom
from jaxcache.model import Codec, Files, Platform, Problem, ProblemKind, short_repr

if TYPE_CHECKING:
    from jaxcache.entry.contents import Contents


@dataclass(frozen=True, slots=True)
class Entry:
    """One cache entry, as far as a scan read it.

    Times are nanoseconds since the epoch, sizes are bytes. A fact that was not read, or cannot be
    known, is None. The facts from ``platform`` on, but for ``problems``, need the entry decoded.
    """

    key: str
    """``<module>-<hash>``, or the bare hash of JAX before 0.4.17."""
    module: str
    hash: str
    file: str
    size_bytes: int
    payload_bytes: int | None
    """Decompressed executable without the 4-byte header; from the frame header if that has it."""
    codec: Codec
    sealed: bool
    """The codec itself detects corruption: a zstd content checksum, or zlib's Adler-32."""
    compile_seconds: float | None
    created_ns: int
    """The file's mtime: JAX writes an entry once and never touches it again."""
    last_used_ns: int
    last_used_from: LastUsedFrom
    platform: Platform = "unknown"
    target: str | None = None
    problems: tuple[ProblemKind, ...] = ()
    signature: str | None = None
    """``f32[8,16] → f32[8]``; like platform and target only where entries are decoded."""
    source: str | None = None
    """``FILE:LINE`` that most of its instructions came from."""
    tuning: str | None = None
    """``tuned`` or ``untuned``, for an entry that was compiled without its GPU."""
    jaxlib: str | None = None
    """The version of jaxlib that wrote it, where the ledger records it."""

    def __repr__(self) -> str:
        seconds = "" if self.compile_seconds is None else f"{self.compile_seconds:g} s to compile"
        if self.compile_seconds == 0:  # JAX records whole seconds, rounded down
            seconds = "<1 s to compile"
        target = f"{self.platform} {self.target or ''}".rstrip()
        size = f"{self.size_bytes:,} bytes"
        return short_repr(type(self).__name__, self.key, self.hash, size, seconds, target)


class ScanResult(Protocol):
    """A cache as it was seen."""

    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def inventory(self) -> Files: ...
    @property
    def problems(self) -> Sequence[Problem]: ...


#: Signatures longer than this (hundreds of parameters) are cut: a listing has no room for them.
_MAX_SIGNATURE = 400


class EntrySummary(NamedTuple):
    """The facts of an entry's contents that ``ls`` shows; None if the entry does not contain them.

    All but ``problem`` are texts, and fields of :class:`Entry`.
    """

    platform: Platform = "unknown"
    target: str | None = None
    signature: str | None = None
    """``f32[8,16], f32[16,32] → f32[8,32]``, cut where it is very long."""
    source: str | None = None
    """``FILE:LINE`` that most instructions came from."""
    problem: tuple[ProblemKind, str] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the fields of an entry."""
        return dict(zip(self._fields[:-1], self[:-1], strict=True))


def read_summary(file: BinaryIO, size_bytes: int, module: str | None) -> EntrySummary:
    """Read the summary of an entry; damage becomes its ``problem``.

    Takes a sixth of the time of :func:`jaxcache.entry.decode.read_contents`: options and buffers
    are not read, and the hashes inside not checked.

    Args:
        file: seekable, the whole entry.
        module: the name that the file's name gives it.
    """
    # Imported here because a listing that recalls its facts decodes nothing.
    from jaxcache.entry.decode import read_contents

    return summarize_contents(read_contents(file, size_bytes, module, parts="program"))


def summarize_contents(contents: "Contents") -> EntrySummary:
    """The summary of decoded contents."""
    from jaxcache.entry.contents import signature

    shown = source = None
    if contents.program:
        program = contents.program
        shown = signature(program.parameters, program.results)
        if len(shown) > _MAX_SIGNATURE:
            results = signature((), program.results).partition("→")[2]
            shown = f"{shown[: _MAX_SIGNATURE // 2]}… →{results[: _MAX_SIGNATURE // 2]}"
    if contents.source:
        source = f"{contents.source[0].file}:{contents.source[0].line}"
    problem = contents.problems[0] if contents.problems else None
    return EntrySummary(contents.device.platform, contents.device.target, shown, source, problem)
