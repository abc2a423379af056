"""Blocks as HTML, for a notebook; all text is escaped here."""

from collections.abc import Iterable
from html import escape

from jaxcache.render.typeset import cell_text
from jaxcache.render.view import Block, Line, Table

_COLORS = {"red": "#c62828", "green": "#2e7d32", "yellow": "#b26a00", "cyan": "#00838f"}


def set_html(blocks: Iterable[Block]) -> str:
    """Set blocks as one element that needs no style sheet and no script."""
    return f"<div>{''.join(map(_set_block, blocks))}</div>"


def _set_block(block: Block) -> str:
    if isinstance(block, Table):
        return _set_table(block)
    line = Line(block) if isinstance(block, str) else block
    text = escape(cell_text(line.lead + line.text))
    return f'<div style="{_css(line.style)}">{text or "&nbsp;"}</div>'


def _set_table(table: Table) -> str:
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
