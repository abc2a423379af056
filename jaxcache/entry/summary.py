"""The few facts of an entry's contents that a listing shows, without reading the rest."""

from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from jaxcache.model import Platform, ProblemKind

if TYPE_CHECKING:
    from jaxcache.entry.contents import Contents

#: Signatures longer than this (hundreds of parameters) are cut: a listing has no room for them.
_MAX_SIGNATURE = 400


class EntrySummary(NamedTuple):
    """The facts of an entry's contents that ``ls`` shows; None if the entry does not contain them.

    All but ``problem`` are texts, and fields of :class:`jaxcache.model.Entry`.
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
