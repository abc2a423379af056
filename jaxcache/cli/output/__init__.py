"""Put results on standard output in the format that was asked for."""

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from jaxcache.cache.listing import Listing
from jaxcache.cli.options import Format
from jaxcache.cli.terminal import terminal_width as terminal_width
from jaxcache.cli.terminal import wants_color as wants_color
from jaxcache.entry.names import printable
from jaxcache.errors import JaxcacheError


def print_json(document: dict[str, Any]) -> None:
    """Print one document, indented on a terminal."""
    import json

    from jaxcache.cli import metering

    if (remote := metering.document()) is not None:
        document = {**document, "remote": remote}
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None))


def print_json_lines(documents: Iterable[dict[str, Any]]) -> None:
    """Print one JSON object per line."""
    import json

    print_lines(json.dumps(document) for document in documents)


def print_document(document: dict[str, Any], form: Format) -> None:
    """Print what has no rows: as one document, or as the one line that it is with ``--jsonl``."""
    if form is Format.JSONL:
        print_json_lines([document])
    else:
        print_json(document)


def print_lines(lines: Iterable[str]) -> None:
    """Print many lines in few writes."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def write_file(path: str, chunks: Iterable[bytes]) -> None:
    """Write a file, whole or not at all; what is a pipe or a device is written to as it is.

    Raises:
        JaxcacheError: ``cannot-write``; or what making the chunks raises.
    """
    from jaxcache.store.atomic import replace_file

    try:
        if os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path):
            replace_file(path, chunks)
        else:  # never put a file in the place of /dev/null
            with open(path, "wb") as file:
                file.writelines(chunks)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise JaxcacheError(f"cannot write {path}: {reason}", code="cannot-write") from error


def note(text: str) -> None:
    """Say something beside the result, on standard error; a terminal breaks it between words."""
    if sys.stderr.isatty():
        from jaxcache.render.prose import wrap

        width = terminal_width()
        text = "\n".join(
            line if len(line) <= width or "\x1b" in line else "\n".join(wrap(line, width))
            for line in text.split("\n")
        )
    print(text, file=sys.stderr)


def print_listing(
    listing: Listing, form: Format, *, group_by: str | None = None, long: bool = False
) -> None:
    """Print what ``ls`` found; with ``group_by`` one row per group.

    Raises:
        UsageError: ``group_by`` is no field to group by.
    """
    from jaxcache.render import listing as text

    groups = None
    if group_by:
        from jaxcache.cache.groups import group_entries

        groups = group_entries(listing.entries, group_by)
    if form.is_json:
        from jaxcache.render import document
    if form is Format.JSON:
        result = document.listing_document(listing)
        if groups is not None:
            result["groups"] = [document.group_document(g) for g in groups]
        print_json(result)
    elif form is Format.JSONL:
        rows = (
            map(document.entry_document, listing.entries)
            if groups is None
            else map(document.group_document, groups)
        )
        print_json_lines(rows)
    elif form is Format.KEYS:
        print_lines(
            (printable(e.key) for e in listing.entries)
            if groups is None
            else (printable(g.name) for g in groups)
        )
    elif form is Format.TSV:
        print_lines(
            text.entries_tsv(listing.entries, long=long)
            if groups is None
            else text.groups_tsv(groups)
        )
    else:
        width, color, now_ns = terminal_width(), wants_color(), time.time_ns()
        if groups is not None:
            print(
                text.groups_table(groups, group_by or "", now_ns=now_ns, width=width, color=color)
            )
        elif listing.entries:
            print(
                text.entries_table(
                    listing.entries, now_ns=now_ns, width=width, color=color, long=long
                )
            )
        print(text.listing_footer(listing))
    if form in (Format.TSV, Format.TABLE):
        note_problems(listing)


def note_problems(listing: Listing) -> None:
    """Say on standard error how many findings there are, and what to do next."""
    if count := len(listing.problems):
        noun = "problem" if count == 1 else "problems"
        note(f"{count} {noun} found; see them with: jaxcache verify")


def print_pins(cache_dir: str, field: str, keys: list[str], form: Format) -> None:
    """Print the keys that ``pin`` touched or lists, one a line, or as ``field`` of JSON."""
    shown = [printable(key) for key in keys]
    if form is Format.JSON:
        from jaxcache.render.document import envelope

        print_json({**envelope(cache_dir), field: shown})
    elif form is Format.JSONL:
        print_json_lines({"key": key} for key in shown)
    else:
        print_lines(shown)
