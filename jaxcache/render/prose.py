"""Sentences broken between words, by terminal columns and not by characters."""

#: Narrower than this no text can be set.
_LEAST_WIDTH = 40


def wrap(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Break a text into lines; a word that is too long stays whole, so that it can be copied.

    Args:
        first: stands before the first line.
        rest: stands before the others.
    """
    from rich.cells import cell_len

    width = max(width, _LEAST_WIDTH)
    lines, line, filled = [], first, False
    for word in text.split(" "):
        if filled and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line, filled = rest, False
        line += f" {word}" if filled else word
        filled = True
    return [*lines, line.rstrip()]


def labelled(label: str, text: str, *, width: int, indent: int = 2, label_width: int = 6) -> str:
    """``  seen  what was seen``, with further lines under the text."""
    lead = " " * indent + f"{label:<{label_width}}"
    return "\n".join(wrap(text, width, first=lead, rest=" " * (len(lead) or 2)))
