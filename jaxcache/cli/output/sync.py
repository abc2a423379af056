"""Put what ``push`` and ``pull`` did, or would do, on standard output."""

from jaxcache.cache.bundle.compat import Compatibility
from jaxcache.cache.sync import Synced, SyncPlan
from jaxcache.cli.options import Format
from jaxcache.cli.output import (
    note,
    print_json,
    print_json_lines,
    print_lines,
    terminal_width,
    wants_color,
)
from jaxcache.entry.names import printable
from jaxcache.render import sync as render
from jaxcache.render.bundle import forecast_document, forecast_note


def note_forecast(outlooks: Compatibility, form: Format) -> None:
    """Warn people of entries that will not hit where they go."""
    if form in (Format.TSV, Format.TABLE) and (line := forecast_note(outlooks)):
        note(line)


def print_sync(
    plan: SyncPlan, done: Synced | None, form: Format, outlooks: Compatibility | None
) -> None:
    """Print it; to people, the sum as well."""
    if form is Format.JSON:
        print_json(render.sync_document(plan, done) | {"forecast": forecast_document(outlooks)})
        return
    if form is Format.JSONL:
        print_json_lines(render.sync_records(plan, done))
        return
    carried = plan.transfers if done is None else done.carried
    if form is Format.KEYS:
        print_lines(printable(t.key) for t in carried if t.key)
        return
    if form is Format.TSV:
        print_lines(render.transfer_row(t) for t in carried)
    elif done is None and carried:
        print(render.transfers_table(carried, width=terminal_width(), color=wants_color()))
    for line in render.sync_notes(plan, done):
        note(line)
    note(render.sync_summary(plan, done))
