"""Put what ``verify`` found on standard output."""

from jaxcache.cache.verify.examine import Verification
from jaxcache.cache.verify.quarantine import Restoration
from jaxcache.cache.verify.repair import Repair
from jaxcache.cli.options import Format
from jaxcache.cli.output import (
    note,
    print_json,
    print_json_lines,
    print_lines,
    terminal_width,
    wants_color,
)
from jaxcache.cli.removal import confirm
from jaxcache.entry.names import printable
from jaxcache.render import verify as render


def print_verification(found: Verification, repair: Repair | None, form: Format) -> None:
    """Print findings; to people, their sum as well."""
    if form is Format.JSON:
        print_json(render.verification_document(found, repair))
    elif form is Format.JSONL:
        print_json_lines(render.finding_document(p, repair) for p in found.problems)
    elif form is Format.KEYS:
        keys = dict.fromkeys(printable(p.key or p.file) for p in found.failures)
        print_lines(keys)
    elif form is Format.TSV:
        print_lines(render.verification_tsv(found, repair))
    elif table := _table(found, repair):
        print(table)
    if form in (Format.TSV, Format.TABLE):
        for line in render.verification_summary(found, repair):
            note(line)


def print_restoration(result: Restoration, form: Format) -> None:
    """Print what came back from quarantine."""
    if form is Format.JSON:
        print_json(render.restoration_document(result))
    elif form is Format.JSONL:
        print_json_lines(render.restoration_records(result))
    elif form is Format.KEYS:
        print_lines(printable(q.key) for q in result.restored)
    else:
        print_lines(render.restoration_tsv(result))
        note(f"{len(result.restored):,} restored, {len(result.left):,} left in quarantine")


def ask_to_delete(found: Verification, repair: Repair) -> None:
    """Show what is going to be deleted, and ask.

    Raises:
        JaxcacheError: ``declined``.
    """
    note(_table(found, repair) or "")
    confirm("Delete these for good?", "nothing was deleted")


def _table(found: Verification, repair: Repair | None) -> str | None:
    width, color = terminal_width(), wants_color()
    return render.verification_table(found, repair, width=width, color=color)
