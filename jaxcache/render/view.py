"""Views: results as data that the command line prints in any format."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class Column(NamedTuple):
    """One column of rows, in a pipe and on a terminal.

    Attributes:
        value: what a pipe gets of a row; None where the column is for people only.
        text: what a terminal shows of a row; None where the column is for pipes only.
        elastic: gives way, with an ellipsis, where the width does not suffice.
        least: what it keeps in any case, while others can give way.
        cut: where the ellipsis goes; in the middle of a key it leaves both module and hash.
        style: of every cell.
        styles: of the cells with these texts: what is good, what is wrong.
    """

    title: str
    value: Callable[[Any], Any] | None = None
    text: Callable[[Any], str] | None = None
    right: bool = False
    elastic: bool = False
    least: int = 8
    cut: Literal["middle", "end"] = "middle"
    style: str = ""
    styles: Mapping[str, str] = MappingProxyType({})


class Table(NamedTuple):
    """Rows for people.

    Attributes:
        below: lines under each row.
        limit: the most rows to show; a line contains the number of the others.
        more: how to see the others.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    below: Callable[[Any], Iterable[str | None]] | None = None
    limit: int | None = None
    more: str = ""


class Line(NamedTuple):
    """A text, broken between words where it is too long; a word is never broken.

    Attributes:
        lead: what stands before it; further lines begin under the text.
        whole: not broken at all, because it is copied.
    """

    text: str
    lead: str = ""
    style: str = ""
    lead_style: str = ""
    whole: bool = False


Block = Table | Line | str


class View(NamedTuple):
    """A result with everything that printing it takes; what is not printed is not made.

    Attributes:
        document: what ``--json`` prints, see :mod:`jaxcache.render.document`.
        rows: what a pipe gets, one line each.
        columns: of ``rows``; without any, a row is a sequence of values.
        keys: what ``--quiet`` prints; None is left out.
        records: what ``--jsonl`` prints, one line each; default: the rows.
        page: what a terminal shows; default: a table of the rows.
        notes: what goes to standard error, for people.
        headline: what a terminal shows before the page; beside rows in a pipe it is a note.
    """

    document: Any
    rows: Iterable[Any] = ()
    columns: Sequence[Column] = ()
    keys: Iterable[str | None] = ()
    records: Iterable[Any] | None = None
    page: Iterable[Block] | None = None
    notes: Iterable[Block] = ()
    headline: str = ""
