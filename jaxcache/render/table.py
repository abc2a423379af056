"""Plain tables through rich, without borders, never wider than asked."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """How one column is set.

    Attributes:
        elastic: gives way, with an ellipsis in the middle, where the width does not suffice.
    """

    title: str
    right: bool = False
    elastic: bool = False
    style: str = ""


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

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            style=column.style,
            no_wrap=True,
            overflow="ellipsis",
            ratio=None,
            min_width=8 if column.elastic else None,
        )
    room = _elastic_room(columns, rows, width)
    for row in rows:
        cells = zip(columns, row, strict=False)
        table.add_row(*(Text(_squeeze(t, room) if c.elastic else t) for c, t in cells))
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, no_color=not color, highlight=False,
        color_system="standard" if color else None, legacy_windows=False,
    )  # fmt: skip
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _elastic_room(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> int:
    """What is left for the elastic column after the others and the gaps."""
    taken = 0
    for index, column in enumerate(columns):
        if not column.elastic:
            cells = (len(row[index]) for row in rows if index < len(row))
            taken += max(len(column.title), *cells, 0) if rows else len(column.title)
    return max(8, width - taken - 2 * (len(columns) - 1))


def _squeeze(text: str, room: int) -> str:
    """Cut out the middle, so that both the module and the hash can still be told."""
    if len(text) <= room:
        return text
    keep = room - 1
    tail = min(SQUEEZED_TAIL, keep // 2)
    return f"{text[: keep - tail]}…{text[len(text) - tail :]}"


#: Characters kept at the end of a squeezed cell: the hash digits of a key.
SQUEEZED_TAIL = 12
