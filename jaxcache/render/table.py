"""Plain tables through rich, without borders, never wider than asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from jaxcache.entry.names import printable

_GAP = 2
#: A prefix of a hash that is unique in any cache of sane size.
SHOWN_HASH_DIGITS = 12
#: Cells kept at the end of a squeezed cell: the hash digits of a key.
SQUEEZED_TAIL = 12


@dataclass(frozen=True, slots=True)
class Column:
    """How one column is set.

    Attributes:
        elastic: gives way, with an ellipsis, where the width does not suffice.
        least: what it keeps in any case, while others can give way.
        cut: where the ellipsis goes; in the middle of a key both module and hash can be told.
        style: of every cell.
        styles: of the cells with these texts: what is good, what is wrong.
    """

    title: str
    right: bool = False
    elastic: bool = False
    least: int = 8
    cut: Literal["middle", "end"] = "middle"
    style: str = ""
    styles: Mapping[str, str] = field(default_factory=dict)


def short_key(module: str, digits: str) -> str:
    """A key as tables show it: short enough to read, long enough to be used as KEY."""
    return printable((f"{module}-" if module else "") + digits[:SHOWN_HASH_DIGITS])


def render_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int, color: bool
) -> str:
    """Set rows in columns; further cells of a row than there are columns are left out.

    Args:
        width: in terminal columns; no line is longer.
        color: whether to emit ANSI styles.
    """
    import io

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    rooms = _rooms(columns, rows, width)
    for column, room in zip(columns, rooms, strict=True):
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            style=column.style,
            no_wrap=True,
            overflow="ellipsis",
            min_width=min(room, column.least) if column.elastic else None,
        )
    for row in rows:
        cells = zip(columns, rooms, row, strict=False)
        table.add_row(
            *(
                Text(squeeze(t, room, c.cut) if c.elastic else t, style=c.styles.get(t, ""))
                for c, room, t in cells
            )
        )
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _rooms(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """How wide each column may be: the elastic ones share what the others and the gaps leave."""
    from rich.cells import cell_len

    rooms = []
    for index, column in enumerate(columns):
        cells = (cell_len(row[index]) for row in rows if index < len(row))
        rooms.append(max(cell_len(column.title), *cells, 0))
    elastic = [i for i, column in enumerate(columns) if column.elastic]
    excess = sum(rooms) + _GAP * (len(columns) - 1) - width
    while excess > 0 and (able := [i for i in elastic if rooms[i] > columns[i].least]):
        widest = max(able, key=lambda i: rooms[i])
        rooms[widest] -= 1
        excess -= 1
    return rooms


def squeeze(text: str, room: int, cut: Literal["middle", "end"] = "end") -> str:
    """Cut a text to ``room`` terminal columns, with an ellipsis for what is left out."""
    from rich.cells import cell_len

    if cell_len(text) <= room:
        return text
    keep = room - 1
    tail = min(SQUEEZED_TAIL, keep // 2) if cut == "middle" else 0
    start, end = _fitting(text, keep - tail), _fitting(text[::-1], tail)
    return f"{text[:start]}…{text[len(text) - end :]}"


def _fitting(text: str, room: int) -> int:
    """How many characters from the start take at most ``room`` columns."""
    from rich.cells import cell_len

    taken = 0
    for count, character in enumerate(text):
        taken += cell_len(character)
        if taken > room:
            return count
    return len(text)
