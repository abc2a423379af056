"""The format of a result, and printing it on standard output."""

import errno
import os
import stat
import sys
from collections.abc import Iterable
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, TextIO

from jaxcache.cli.terminal import name_cache, terminal_width, wants_color
from jaxcache.errors import JaxcacheError, UsageError, system_errors_as
from jaxcache.options import Options, flag

if TYPE_CHECKING:
    from jaxcache.render.view import Block, View


class Format(StrEnum):
    """The format of a result on standard output."""

    JSON = "json"
    JSONL = "jsonl"
    KEYS = "keys"
    TSV = "tsv"
    TABLE = "table"

    @property
    def is_json(self) -> bool:
        """Whether standard output holds nothing but JSON."""
        return self in (Format.JSON, Format.JSONL)

    @property
    def is_text(self) -> bool:
        """Whether people read along: a table, or TSV with notes beside it."""
        return self in (Format.TABLE, Format.TSV)


_FLAGS = {Format.JSON: "json", Format.JSONL: "jsonl", Format.KEYS: "quiet"}


class JsonOutput(Options, panel="Output"):
    """JSON instead of text."""

    json: bool = flag("--json", "Print one JSON document.")
    jsonl: bool = flag("--jsonl", "Print one JSON object per line.")

    @property
    def form(self) -> Format:
        """Return the requested format, else a table on a terminal, TSV in a pipe.

        Raises:
            UsageError: more than one was requested.
        """
        forms = [f for f in (Format.JSON, Format.JSONL, Format.KEYS) if getattr(self, _FLAGS[f], 0)]
        if len(forms) > 1:
            raise UsageError("--json, --jsonl and --quiet cannot be combined")
        return forms[0] if forms else Format.TABLE if sys.stdout.isatty() else Format.TSV


class Output(JsonOutput, panel="Output"):
    """JSON or keys instead of text."""

    quiet: bool = flag("--quiet -q", "Print keys only.")


def print_json(document: dict[str, Any]) -> None:
    """Print one document, indented on a terminal."""
    import json

    from jaxcache.cli import metering

    if (remote := metering.document()) is not None:
        document = {**document, "remote": remote}
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None))


def print_lines(lines: Iterable[str]) -> None:
    """Print many lines in few writes."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def write_file(path: str, chunks: Iterable[bytes]) -> None:
    """Write a file, whole or not at all; ``-``, a pipe or a device is written to as it is.

    Raises:
        JaxcacheError: ``cannot-write``; or what making the chunks raises.
    """
    from jaxcache.core.atomic import replace_file

    if path == "-":
        sys.stdout.buffer.writelines(chunks)
        sys.stdout.buffer.flush()
        return
    with system_errors_as(JaxcacheError, f"cannot write {path}", code="cannot-write"):
        if os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path):
            replace_file(path, chunks)
        else:  # never put a file in the place of /dev/null
            with open(path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY)) as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # by a link of another user
                    raise OSError(errno.EEXIST, "a file has taken the place of a device")
                file.writelines(chunks)


def write_text(path: str, text: str, mode: str = "w") -> None:
    """Write a text to a file that the user names, or append it with mode ``a``.

    Raises:
        UsageError: ``cannot-write``
    """
    with (
        system_errors_as(UsageError, f"cannot write {path}", code="cannot-write"),
        open(path, mode, encoding="utf-8") as file,
    ):
        file.write(text)


def emit(form: Format, view: "View") -> None:
    """Print a result in the requested format; for people, with its notes."""
    from jaxcache.render.view import Table, to_document, versioned

    if form is Format.JSON:
        print_json(versioned(to_document(view.document)))
    elif form is Format.JSONL:
        import json

        rows = view.rows if view.records is None else view.records
        print_lines(json.dumps(to_document(row)) for row in rows)
    elif form is Format.KEYS:
        print_lines(to_document([key for key in view.keys if key]))
    elif form is Format.TSV:
        from jaxcache.render.typeset import set_rows

        print_lines(set_rows(view.rows, view.columns))
    else:
        table = [Table(view.columns, rows)] if (rows := [*view.rows]) else []
        headline = [view.headline] if view.headline else []
        print_blocks(chain(headline, table if view.page is None else view.page))
    if form is Format.TSV and view.headline:
        note(view.headline)
    if form in (Format.TSV, Format.TABLE):
        for block in view.notes:
            note(block)


def print_blocks(blocks: "Iterable[Block]", stream: TextIO | None = None) -> None:
    """Print for people, on standard output by default; a pipe gets no line broken."""
    from jaxcache.render.typeset import set_blocks

    out = stream or sys.stdout
    width = terminal_width() if out.isatty() else None
    for line in set_blocks(blocks, width=width, color=wants_color(out), rename=name_cache):
        print(line, file=out)


def note(*blocks: "Block") -> None:
    """Print notes about the result on standard error."""
    print_blocks(blocks, sys.stderr)
