"""Blocks as lines of a terminal, or as HTML for a notebook; all text is escaped here."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, Literal

from jaxcache.render.view import Block, Column, Line, Table
from jaxcache.units import cell_len, printable

_GAP = 2
#: Narrower than this no text can be set.
_LEAST_WIDTH = 40
#: Cells kept at the end of a squeezed cell: the hash digits of a key.
_SQUEEZED_TAIL = 12
#: What is cut at its end keeps this much even where no other column can give way.
_LEAST_CELL = 8
_STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
#: As wide as a blank, and no place to break a line.
_GLUE = "\xa0"


def set_blocks(
    blocks: Iterable[Block], *, width: int | None, color: bool, rename: Callable[[str], str] = str
) -> Iterator[str]:
    """Set blocks as lines.

    Args:
        width: in terminal columns; None breaks no line.
        color: whether to emit ANSI styles.
        rename: changes each text; not in tables, and no lead.
    """
    for block in blocks:
        if isinstance(block, Table):
            yield from _set_table(block, width=width or 1_000, color=color)
            continue
        line = Line(block) if isinstance(block, str) else block
        lead = printable(line.lead)
        text = printable(rename(line.text))
        lines = [lead + text] if line.whole or width is None else wrap(text, width, lead=lead)
        if line.lead_style and color:
            lines[0] = _styled(lead, line.lead_style, color) + lines[0][len(lead) :]
        yield from (_styled(one, line.style, color) for one in lines)


def wrap(text: str, width: int, *, lead: str = "") -> list[str]:
    """Break a text between words; a word, and what stands between two ``·``, stays whole.

    Args:
        lead: stands before the first line; the others are indented as far.
    """
    if " · " in text:
        text = " · ".join(part.replace(" ", _GLUE) for part in text.split(" · "))
    width = max(width, _LEAST_WIDTH)
    lines = []
    line = lead
    filled = False
    for word in text.split(" "):
        if filled and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = " " * cell_len(lead)
            filled = False
        line += f" {word}" if filled else word
        filled = True
    return [one.replace(_GLUE, " ").rstrip() for one in (*lines, line)]


def _set_table(table: Table, *, width: int, color: bool) -> Iterator[str]:
    shown = table.rows[: table.limit]
    columns, rows = _cells(table, shown)
    rooms = _widths(columns, rows)
    needed = (min(r, c.least) if c.cut == "end" else r for r, c in zip(rooms, columns, strict=True))
    if sum(needed) + _GAP * (len(columns) - 1) > width:
        columns, rows = _cells(table, shown, leaves_out_spare=True)
        rooms = _widths(columns, rows)
    rooms = _squeezed(columns, rooms, width)

    def set_row(cells: Sequence[str], styles: Sequence[str]) -> str:
        line = ""
        gap = 0
        for column, room, cell, style in zip(columns, rooms, cells, styles, strict=True):
            text = squeeze(cell, room, column.cut)
            blank = room - cell_len(text)
            before, after = (blank, 0) if column.right else (0, blank)
            if text:
                line += " " * (gap + before) + _styled(text, style, color)
                gap = after + _GAP
            else:
                gap += room + _GAP
        return line

    yield set_row([c.title for c in columns], ["bold"] * len(columns))
    for row, cells in zip(shown, rows, strict=True):
        yield set_row(
            cells, [c.styles.get(t, c.style) for c, t in zip(columns, cells, strict=True)]
        )
        for text in table.below(row) if table.below else ():
            if text:
                yield f"    {squeeze(text, width - 4)}"
    if hidden := len(table.rows) - len(rows):
        yield f"({hidden:,} more{table.more})"


def _cells(
    table: Table, rows: Sequence[Any], *, leaves_out_spare: bool = False
) -> tuple[list[Column], list[list[str]]]:
    columns = [c for c in table.columns if c.text and not (leaves_out_spare and c.spare)]
    return columns, [[printable(c.text(row)) for c in columns if c.text] for row in rows]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column that cuts nothing."""
    cells = zip(*rows, strict=True) if rows else [()] * len(columns)
    return [max(map(cell_len, (c.title, *texts))) for c, texts in zip(columns, cells, strict=True)]


def _squeezed(columns: Sequence[Column], rooms: list[int], width: int) -> list[int]:
    """Return the width of each column: the elastic ones share what the others and gaps leave."""
    elastic = [i for i, column in enumerate(columns) if column.elastic]
    excess = sum(rooms) + _GAP * (len(columns) - 1) - width
    while excess > 0 and (
        able := [i for i in elastic if rooms[i] > columns[i].least]
        or [i for i in elastic if rooms[i] > _LEAST_CELL and columns[i].cut == "end"]
    ):
        widest = max(able, key=lambda i: rooms[i])
        rooms[widest] -= 1
        excess -= 1
    return rooms


def squeeze(text: str, room: int, cut: Literal["middle", "end"] = "end") -> str:
    """Cut a text to ``room`` terminal columns, with an ellipsis for what is left out."""
    text = printable(text)
    if cell_len(text) <= room:
        return text
    keep = room - 1
    tail = min(_SQUEEZED_TAIL, keep // 2) if cut == "middle" else 0
    start = _fitting(text, keep - tail)
    end = _fitting(text[::-1], tail)
    return f"{text[:start]}…{text[len(text) - end :]}"


def _fitting(text: str, room: int) -> int:
    """Return how many characters from the start take at most ``room`` columns."""
    taken = 0
    for count, character in enumerate(text):
        taken += cell_len(character)
        if taken > room:
            return count
    return len(text)


def _styled(text: str, style: str, color: bool) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if color and style else text


def set_rows(rows: Iterable[Any], columns: Sequence[Column]) -> Iterator[str]:
    """Set rows as lines of tab-separated values; unknown values are empty."""
    values = [c.value for c in columns if c.value]
    for row in rows:
        yield "\t".join(map(cell_text, (value(row) for value in values) if values else row))


def cell_text(value: Any) -> str:
    """Return a value as text without a character that a terminal would obey."""
    if isinstance(value, str):
        return printable(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return ",".join(map(cell_text, value))
    return printable(str(value))


_COLORS = {"red": "#c62828", "green": "#2e7d32", "yellow": "#b26a00", "cyan": "#00838f"}


def set_html(blocks: Iterable[Block]) -> str:
    """Set blocks as one element that needs no style sheet and no script."""
    return f"<div>{''.join(map(_html_block, blocks))}</div>"


def _html_block(block: Block) -> str:
    if isinstance(block, Table):
        return _html_table(block)
    line = Line(block) if isinstance(block, str) else block
    text = escape(cell_text(line.lead + line.text))
    return f'<div style="{_css(line.style)}">{text or "&nbsp;"}</div>'


def _html_table(table: Table) -> str:
    columns = [c for c in table.columns if c.text]
    head = "".join(f'<th style="{_align(c.right)}">{escape(c.title)}</th>' for c in columns)
    shown = table.rows[: table.limit]
    lines = []
    for row in shown:
        cells = ""
        for column in columns:
            text = column.text(row) if column.text else ""
            style = _align(column.right) + _css(column.styles.get(text, column.style))
            cells += f'<td style="{style}">{escape(cell_text(text))}</td>'
        lines.append(f"<tr>{cells}</tr>")
    hidden = len(table.rows) - len(shown)
    more = f"<div>({hidden:,} more{escape(table.more)})</div>" if hidden else ""
    body = "".join(lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _align(right: bool) -> str:
    return f"text-align:{'right' if right else 'left'};"


def _css(style: str) -> str:
    return "font-weight:bold" if style == "bold" else f"color:{_COLORS[style]}" if style else ""
