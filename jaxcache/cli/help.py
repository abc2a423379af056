"""The text of ``--help``: usage, summary, arguments and options under their headings."""

import inspect
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxcache.cli.parser import Parser
from jaxcache.options import PANELS, TEXTS, Option

#: Wider lines are hard to read.
_MOST_COLUMNS = 80
_FEWEST_COLUMNS = 50
#: Options that are longer have their text below them.
_TERM_COLUMNS = 30
_GAP = 2
#: A line of its own before a paragraph that keeps its line breaks.
VERBATIM = "\b"
Rows = Sequence[tuple[str, str]]


def format_help(usage: str, text: str, sections: Mapping[str, Rows], epilog: str = "") -> str:
    """Return a help text, as wide as the terminal up to 80 columns.

    Args:
        usage: the command with what it takes; all but its name is wrapped.
        sections: terms with their explanations, by heading.
    """
    columns = shutil.get_terminal_size().columns
    width = max(min(columns, _MOST_COLUMNS) - _GAP, _FEWEST_COLUMNS)
    name, _, rest = usage.partition(" [")
    start = f"Usage: {name} "
    lines = textwrap.wrap(
        f"[{rest}", width, initial_indent=start, subsequent_indent=" " * len(start)
    )
    lines += _paragraphs(text, width)
    for heading, rows in sections.items():
        lines += ["", f"{heading}:", *_definitions(rows, width)] if rows else []
    return "\n".join([*lines, *_paragraphs(epilog, width)])


def _paragraphs(text: str, width: int) -> Iterator[str]:
    for paragraph in filter(None, inspect.cleandoc(text).split("\n\n")):
        yield ""
        lines = paragraph.splitlines()
        if lines[0] == VERBATIM:
            yield from (f"  {line}" for line in lines[1:])
        else:
            indent = " " * _GAP
            yield from textwrap.wrap(
                " ".join(lines), width, initial_indent=indent, subsequent_indent=indent
            )


def _definitions(rows: Rows, width: int) -> Iterator[str]:
    column = _GAP + min(max(len(term) for term, _ in rows), _TERM_COLUMNS) + _GAP
    for term, text in rows:
        start = f"{'':{_GAP}}{term}"
        lines = textwrap.wrap(text, max(width - column, 10)) or [""]
        if len(start) + _GAP > column:
            yield start
            start = ""
        yield f"{start:{column}}{lines[0]}".rstrip()
        yield from (f"{'':{column}}{line}" for line in lines[1:])


def parser_help(parser: Parser, text: str, epilog: str, most_used: Sequence[str] = ()) -> str:
    """Return the help of a command.

    Args:
        most_used: the options that come first, in this order.
    """
    arguments = [o for o in parser.declared.values() if o.is_argument]
    usage = " ".join([parser.path, "[OPTIONS]", *map(_usage, arguments)])
    sections = {"Arguments": [(str(a.metavar), _explain(a)) for a in arguments]}
    for heading, options in in_panels(parser.declared.values(), most_used).items():
        sections[heading] = option_rows(options)
    return format_help(usage, text, sections, epilog)


def in_panels(declared: Iterable[Option], most_used: Sequence[str] = ()) -> dict[str, list[Option]]:
    """Sort a command's options into the panels of its help."""
    panels: defaultdict[str, list[Option]] = defaultdict(list)
    for option in declared:
        if not option.is_argument:
            is_first = option.names[0] in most_used
            panels["Most used" if is_first else option.panel or "Options"].append(option)
    panels["Most used"].sort(key=lambda option: most_used.index(option.names[0]))
    return {name: panels[name] for name in sorted(panels, key=PANELS.index) if panels[name]}


def option_rows(options: Iterable[Option]) -> list[tuple[str, str]]:
    """Return the spellings of options, each with its value, and their help."""
    rows = []
    for option in options:
        spelled = ", ".join(sorted(option.names, key=len)).replace("/", " / ")
        rows.append(
            (spelled if option.is_flag else f"{spelled} {option.metavar}", _explain(option))
        )
    return rows


def _usage(argument: Option) -> str:
    is_many = argument.kind is TEXTS and "..." not in str(argument.metavar)
    return f"{argument.metavar}{'...' if is_many else ''}"


def _explain(option: Option) -> str:
    """Return the help of an option or argument with its default and its range."""
    notes = ["required"] if option.is_required else []
    if option.default not in (None, False) and option.settings.get("show_default", True):
        positive = option.names[0].strip("-").partition("/")[0]
        notes.append(f"default: {positive if option.is_flag else option.default}")
    low, high = (option.settings.get(name) for name in ("min", "max"))
    if low is not None:
        notes.append(f"x>={low}" if high is None else f"{low}<=x<={high}")
    return option.help + (f"  [{'; '.join(notes)}]" if notes else "")
