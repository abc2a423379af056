"""Exports, imports, copies and their forecasts as views."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jaxcache.cache.bundle.compat import (
    PORTABLE_FIX,
    XLA_CACHES,
    Arrival,
    Compatibility,
    Forecast,
    ForecastOutcome,
    forecast,
)
from jaxcache.cache.move.bundle_file import WrittenBundle
from jaxcache.cache.move.plan import WRITES, MoveAction, Outcome, Step
from jaxcache.cache.prune.removable import Removal, freed_bytes
from jaxcache.cache.trust import Verdict
from jaxcache.model import Problem
from jaxcache.render.columns import key_column, short_name, size_column, text_column
from jaxcache.render.view import Column, Document, Table, View, fields_of
from jaxcache.units import format_count, format_size

_Pair = tuple[Step, Forecast | None]
#: So many entries of which the same is said have a row each.
_MOST_ROWS = 3

_MISS_REASONS = 3


def export_view(written: WrittenBundle) -> View:
    """Return the view of ``export``, and of ``copy`` into a bundle."""
    manifest = written.manifest
    outlooks = forecast(manifest, None, None)
    warning = forecast_note(outlooks)
    document = {
        "cache_dir": written.source,
        "files": [written.file],
        "size_bytes": written.size_bytes,
        "entries": len(manifest.items),
        "side_files": len(manifest.files),
        "payload_bytes": manifest.content_bytes,
        "source_bytes": manifest.source_bytes,
        "compile_seconds": float(sum(i.compile_seconds for i in manifest.items)),
        "manifest_sha256": written.manifest_sha256,
        "signatures": written.signatures,
        "forecast": forecast_document(outlooks),
        "left_out": written.left_out,
    }
    notes = [*([warning] if warning else []), *left_out_lines(written.left_out)]
    notes += unknown_format_lines(sum(item.codec == "unknown" for item in manifest.items))
    return View(
        document,
        keys=(item.key for item in manifest.items),
        records=manifest.items,
        page=(),
        notes=[*notes, export_summary(written)],
    )


def warning_lines(done: Outcome) -> Iterator[str]:
    """Yield lines about unchecked entries, and a target that is still above its limit."""
    yield from unknown_format_lines(sum(step.item.is_unknown for step in done.written))
    if done.plan.unmet:
        yield "--max-size cannot be met: the target already exceeds it"


def left_out_lines(problems: Iterable[Problem]) -> Iterator[str]:
    """Yield a line for each file that is left out, with the reason."""
    for problem in problems:
        yield f"left out {problem.file}: {problem.detail}"


def unknown_format_lines(number: int) -> Iterator[str]:
    """Yield a warning about entries that were not checked, if there are any."""
    if number:
        yield (
            f"warning: {format_count(number, 'entry')} in a format that jaxcache does not know, "
            "left as it is: a newer JAX may have written it; upgrade jaxcache to check it"
        )


def trust_lines(name: str, verdict: Verdict, *, is_usual: bool = False) -> Iterator[str]:
    """Warn of a bundle that no trusted key has signed.

    Args:
        is_usual: say it without a warning.
    """
    if verdict.warning:
        remedy = "" if is_usual or verdict.unchecked else f"; {verdict.remedy}"
        lead = "" if is_usual else "warning: "
        yield (
            f"{lead}{name}: {verdict.warning}; the entries are machine code: use it only if you "
            f"trust its source{remedy}"
        )


def export_summary(written: WrittenBundle) -> str:
    """One line on what was written."""
    manifest = written.manifest
    size_bytes = written.size_bytes
    source = manifest.source_bytes
    count = len(manifest.items)
    sides = len(manifest.files)
    more = f" and {format_count(sides, 'file')} of XLA's caches" if sides else ""
    what = f"{format_count(count, 'entry')}{more}"
    if manifest.layout != "jax":
        what = f"{format_count(sides, 'file')} of {manifest.layout}'s caches"
    share = f", {size_bytes / source:.0%} of the files' {format_size(source)}" if source else ""
    return f"{what} in {written.file}: {format_size(size_bytes)}{share}"


def import_view(arrival: Arrival) -> View:
    """Return the view of ``import``, of ``copy`` into a directory, and of their dry runs."""
    done = arrival.done
    outlooks = arrival.outlooks or Compatibility((), None)
    verdict = arrival.verdict or Verdict(("this machine",), ())
    forecasts = {f.key: f for f in outlooks.forecasts}
    rows = list(_rows(done))
    pairs = [(step, forecasts.get(step.key or "")) for step in rows]
    entries = [_step(step, forecast) for step, forecast in pairs]
    if outlooks.host is None:  # the summary says so, once
        pairs = [(step, None if f and _is_unknown(f) else f) for step, f in pairs]
    written = {} if done.dry_run else {step.name: step for step in done.written}
    names = {row.name for row in rows}
    left_out = [s.problem for s in done.steps if s.is_left_out and s.name not in names]
    document = {
        "cache_dir": done.plan.target,
        "bundle": done.plan.source,
        "manifest_sha256": arrival.bundle_sha256,
        "dry_run": done.dry_run,
        "rolled_back": done.rolled_back,
        "signed_by": verdict.trusted,
        "signature_warning": verdict.warning,
        "entries": entries,
        "summary": {
            **{
                action.value.replace("-", "_"): sum(row.action is action for row in rows)
                for action in _ACTIONS
            },
            "written": len(written),
            "conflicts": sum(row.differs for row in rows),
        },
        "outlook": {o.value: outlooks.counts.get(o, 0) for o in ForecastOutcome},
        "forecast": forecast_document(outlooks),
        "host": outlooks.host,
        "failed": [{"file": s.name, "detail": s.detail} for s in _failures(done)],
        "left_out": left_out,
    }
    actions: dict[str, str] = {}
    if not done.dry_run:
        actions = {
            row.name: _DONE[row.action] if row.name in written else "not written"
            for row in rows
            if row.action in WRITES
        }
    columns = [
        Column("ACTION", lambda row: actions.get(row[0].name, row[0].action.value)),
        Column("FORECAST", lambda row: _outlook(row[1])),
        Column("KEY", lambda row: row[0].name),
        Column("WHY", lambda row: _reason(*row)),
    ]
    shown_columns = [
        text_column("ACTION", lambda group: group[0][0].action.value),
        text_column("FORECAST", lambda group: _outlook(group[0][1])),
        text_column("KEY", _shown_keys, elastic=True, least=16),
        text_column("WHY", lambda group: _short_reason(*group[0]), elastic=True, cut="end"),
    ]
    listed_actions = (MoveAction.DAMAGED, MoveAction.UNTRUSTED, MoveAction.LEFT)
    notes = [f"{s.name}: {s.detail}" for s in rows if s.differs or s.action in listed_actions]
    return View(
        document,
        pairs,
        columns,
        [step.key for step in done.written],
        records=entries,
        page=[Table(shown_columns, _grouped(pairs))] if done.dry_run and pairs else (),
        notes=[*notes, *warning_lines(done), _import_summary(arrival, rows, len(written))],
    )


def _grouped(pairs: Iterable[_Pair]) -> list[list[_Pair]]:
    """Return the rows of a terminal: those that say the same are one, if they are many."""
    groups: dict[tuple[str, ...], list[_Pair]] = {}
    for pair in pairs:
        same = (pair[0].action.value, _outlook(pair[1]), _short_reason(*pair))
        groups.setdefault(same, []).append(pair)
    rows = ([g] if len(g) > _MOST_ROWS else [[pair] for pair in g] for g in groups.values())
    return [row for group in rows for row in group]


def _shown_keys(group: Sequence[_Pair]) -> str:
    first = short_name(group[0][0].name)
    return first if len(group) == 1 else f"{first} and {len(group) - 1:,} more"


def _rows(done: Outcome) -> Iterator[Step]:
    """Yield what was decided about each file that got here, with what was found out of it."""
    for planned, step in zip(done.plan.steps, done.steps, strict=True):
        if step.action in (MoveAction.FAILED, MoveAction.UNTRIED) and planned.action in WRITES:
            if not step.is_left_out:
                yield replace(planned, item=step.item)
        elif not (step.is_left_out and planned.action is not MoveAction.DAMAGED):
            yield step


def _failures(done: Outcome) -> list[Step]:
    return [step for step in done.failed if not step.is_left_out]


#: In the order of the document.
_ACTIONS = (
    MoveAction.WRITE,
    MoveAction.HEAL,
    MoveAction.REPLACE,
    MoveAction.SAME,
    MoveAction.PRESENT,
    MoveAction.KEEP,
    MoveAction.BLOCKED,
    MoveAction.LEFT,
    MoveAction.DAMAGED,
    MoveAction.UNTRUSTED,
    MoveAction.NO_ROOM,
)
#: Known forecasts; for the others, the column WHY shows why they are unknown.
_FORECASTS = {ForecastOutcome.HIT: "hit", ForecastOutcome.MISS: "miss"}
_DONE = {MoveAction.WRITE: "written", MoveAction.HEAL: "healed", MoveAction.REPLACE: "replaced"}


def _outlook(forecast: Forecast | None) -> str:
    if forecast is None:
        return "-"
    return "if set" if forecast.portable else _FORECASTS.get(forecast.outlook, "-")


def _reason(step: Step, forecast: Forecast | None) -> str:
    """Return what speaks against an entry."""
    return step.detail or (forecast and forecast.reason) or ""


def _short_reason(step: Step, forecast: Forecast | None) -> str:
    """Return the same for a terminal, where the forecast's line has named the setting or path."""
    if forecast and not step.detail:
        if forecast.portable:
            return "needs the setting above"
        if forecast.restore_to:
            return "key has another path"
    return _reason(step, forecast)


def _step(step: Step, forecast: Forecast | None) -> Document:
    """Return one entry or file of an import."""
    facts = step.item.facts
    is_entry = step.key is not None and facts is not None
    return {
        "key": step.key,
        "file": step.name,
        "action": step.action.value,
        "detail": step.detail or None,
        "payload_bytes": step.item.content_bytes,
        "compile_seconds": float(facts.compile_seconds) if facts and is_entry else None,
        "payload_differs": step.differs,
        "outlook": forecast.outlook.value if forecast else None,
        "reason": (forecast and forecast.reason) or None,
        "restore_to": (forecast and forecast.restore_to) or None,
    }


def _import_summary(arrival: Arrival, rows: Sequence[Step], written: int) -> str:
    """One line on what was done, or would be."""
    done = arrival.done
    outlooks = arrival.outlooks or Compatibility((), None)
    failed = _failures(done)
    if done.rolled_back:
        first = (*failed, *done.failed)[0]
        return f"nothing was imported: {first.name}: {first.detail}"
    writes = len(done.written) if done.dry_run else written
    words = [f"{format_count(writes, 'file')} {'to write' if done.dry_run else 'written'}"]
    for action, text in (
        (MoveAction.HEAL, "of them instead of damaged ones"),
        (MoveAction.SAME, "already there"),
        (MoveAction.KEEP, "kept though another one is in the bundle"),
        (MoveAction.BLOCKED, "blocked"),
        (MoveAction.NO_ROOM, "left out because --max-size leaves no room"),
    ):
        if count := sum(row.action is action for row in rows):
            words.append(f"{count} {text}")
    if outlooks.host is None and arrival.is_forecast:
        words.append("hits not checked: no usable jax was found (--python)")
    elif outlooks.host is None and any(map(_is_unknown, outlooks.forecasts)):
        words.append("hits not checked with jax")
    if failed:
        words.append(f"{len(failed)} failed ({failed[0].detail})")
        if untried := done.count(MoveAction.UNTRIED):
            words.append(f"{untried} not tried after it")
    return f"{done.plan.target}: {', '.join(words)}"


def forecast_line(outlooks: Compatibility) -> str:
    """One line on what is going to hit, why the rest will not, and the cure."""
    counts = outlooks.counts
    host = outlooks.host
    total = len(outlooks.forecasts)
    with_what = f" with jax {host.machine.jax_version} ({host.origin.platform})" if host else ""
    if not total:
        return "no entries"
    if counts.get(ForecastOutcome.HIT) == total:
        every = "the entry" if total == 1 else f"all {total:,} entries"
        return f"{every} should hit{with_what}"
    misses = [f for f in outlooks.forecasts if f.outlook is ForecastOutcome.MISS]
    portable = sum(f.portable for f in outlooks.forecasts)
    where = "here" if outlooks.cache_dir is not None else "at another path"
    unknown = counts.get(ForecastOutcome.UNKNOWN, 0) - portable
    hits = counts.get(ForecastOutcome.HIT, 0)
    read = f" entries looked at (of {outlooks.entries:,})" if outlooks.entries > total else ""
    of_all = f"of {total:,}{read}"
    text = f"{hits} {of_all} will hit {where}{with_what}"
    if portable:  # the setting comes first; with it, the keys that hold a directory miss
        now = f"only the other {hits}" if hits else "none"
        text = f"{PORTABLE_FIX}: then {portable} {of_all} will hit {where}{with_what}; "
        text += f"as things are set now, {now} will hit"
        if host is None:
            text = f"{PORTABLE_FIX}: without it {portable} {of_all} will miss {where}"
        text += f". {len(misses)} will miss either way" if misses else ""
    elif unknown and host is None:
        text = f"{len(misses)} {of_all} will miss {where}"
    if unknown and host:
        why = dict.fromkeys(f.reason for f in outlooks.forecasts if _is_unknown(f) and f.reason)
        shown = "; ".join([*why][:_MISS_REASONS])
        if unknown == total:
            every = "the entry" if total == 1 else f"each of {total:,} entries"
            return f"it is unknown whether {every} will hit {where}{with_what}: {shown}"
        text += f", {unknown} unknown ({shown})"
    moved = [f for f in misses if f.restore_to]
    reasons = list(dict.fromkeys(f.reason for f in misses if f.reason and not f.restore_to))
    if moved:
        versions = sorted({_release(f.jax_version) for f in moved})
        places = sorted({f.restore_to for f in moved if f.restore_to})
        shown = " or ".join(places[:_MISS_REASONS])
        reasons.insert(0, f"keys of jax {', '.join(versions)} contain the cache's path, {shown}")
    line = text + (f": {'; '.join(reasons[:_MISS_REASONS])}" if reasons else "")
    place = shlex.quote(outlooks.cache_dir or "DIR")
    cure = (
        f"Use that path, or fill the cache again without the path in its keys: jaxcache warm "
        f"--portable -C {place} SCRIPT (where plain JAX uses it, set {XLA_CACHES}=none)"
    )
    return f"{line}. {cure}" if moved else line


def _is_unknown(forecast: Forecast) -> bool:
    return forecast.outlook is ForecastOutcome.UNKNOWN and not forecast.portable


def _release(version: str | None) -> str:
    """A version without its patch, or those of all whose keys contain the path."""
    if version is None:
        return "0.4.36 to 0.10"
    return ".".join(version.split(".")[: 3 if version.startswith("0.4.") else 2])


def forecast_note(outlooks: Compatibility) -> str | None:
    """The line where something will miss, or hits on a condition; None where nothing is known."""
    is_forecast = any(f.portable or f.outlook is ForecastOutcome.MISS for f in outlooks.forecasts)
    return forecast_line(outlooks) if is_forecast else None


def forecast_document(outlooks: Compatibility | None) -> Document | None:
    """The field ``forecast`` of what moves entries; None where nothing was looked at."""
    if outlooks is None or not outlooks.forecasts:
        return None
    return {
        "looked_at": len(outlooks.forecasts),
        **{o.value: outlooks.counts.get(o, 0) for o in ForecastOutcome},
        "message": forecast_note(outlooks),
    }


_FAILED = (MoveAction.FAILED, MoveAction.UNTRIED)


def sync_view(arrival: Arrival) -> View:
    """Return the view of ``push`` and ``pull``, and of their dry runs."""
    done = arrival.done
    plan = done.plan
    carried = done.written
    removed = _removed(done)
    failed = [fields_of(step) | {"detail": step.detail} for step in done.of(*_FAILED)]
    present = done.count(MoveAction.PRESENT, MoveAction.OVERTAKEN)
    document = {
        "cache_dir": plan.target,
        "source": plan.source,
        "dry_run": done.dry_run,
        "carried": carried,
        "carried_bytes": done.carried_bytes,
        "present": present,
        "no_room": done.of(MoveAction.NO_ROOM),
        "gone": done.of(MoveAction.GONE),
        "unfinished": done.of(MoveAction.UNFINISHED),
        "untrusted": done.of(MoveAction.UNTRUSTED),
        "left_out": _left_out(done),
        "failed": failed,
        "removed": removed,
        "max_size_unmet": plan.unmet,
        "ledger_segments": done.segments,
        "forecast": forecast_document(arrival.outlooks),
    }
    columns = [key_column(lambda s: s.key or s.name), size_column(lambda s: s.item.size_bytes)]
    return View(
        document,
        carried,
        columns,
        [step.key for step in carried],
        records=_records(done, failed),
        page=[Table(columns, carried)] if done.dry_run and carried else (),
        notes=[*_sync_notes(done), _sync_summary(done, present, removed)],
    )


def _left_out(done: Outcome) -> list[Problem]:
    """Return the files that do not travel: those with a name that cannot, and damaged ones."""
    steps = (*done.of(MoveAction.STRAY, MoveAction.BLOCKED), *done.of(MoveAction.DAMAGED))
    return [step.problem for step in steps]


def _removed(done: Outcome) -> Sequence[Removal]:
    if done.dry_run:
        return done.plan.removals
    return done.removed.removed if done.removed else ()


def _records(done: Outcome, failed: Sequence[Document]) -> Iterator[Document]:
    for outcome, steps in (
        ("carried", done.written),
        ("no-room", done.of(MoveAction.NO_ROOM)),
        ("left-out", _left_out(done)),
        ("present", done.of(MoveAction.OVERTAKEN)),
        ("gone", done.of(MoveAction.GONE)),
        ("unfinished", done.of(MoveAction.UNFINISHED)),
        ("untrusted", done.of(MoveAction.UNTRUSTED)),
    ):
        yield from ({"outcome": outcome, **fields_of(one)} for one in steps)
    yield from ({"outcome": "failed", **one} for one in failed)


def _sync_notes(done: Outcome) -> Iterator[str]:
    """Yield the files that were not copied, with the reason."""
    yield from left_out_lines(_left_out(done))
    yield from left_out_lines(s.problem for s in done.of(MoveAction.LEFT, MoveAction.UNFINISHED))
    yield from _failure_lines(done)
    for some, what in (
        (done.of(MoveAction.GONE), "gone: removed from the source meanwhile"),
        (done.of(MoveAction.UNTRUSTED), "left out: not signed by a key that you trust"),
        (done.of(MoveAction.NO_ROOM), "left out: --max-size leaves no room for them"),
    ):
        if some:
            yield f"{format_count(len(some), 'entry')} {what}"
    yield from warning_lines(done)


def _failure_lines(done: Outcome) -> Iterator[str]:
    """Yield a line for each file that could not be read or written, and the number of the rest."""
    for step in done.failed:
        yield f"{step.name}: {step.detail}"
    if untried := done.of(MoveAction.UNTRIED):
        yield f"{format_count(len(untried), 'file')} {untried[0].detail}"


def _sync_summary(done: Outcome, present: int, removed: Sequence[Removal]) -> str:
    """Return one line: how much went where, and how much was there."""
    verb, removing = ("would copy", "would remove") if done.dry_run else ("copied", "removed")
    count = format_count(len(done.written), "entry")
    size = format_size(done.carried_bytes)
    line = f"{verb} {count}, {size}, to {done.plan.target}; {present:,} already present"
    if removed:
        freed = format_size(freed_bytes(removed))
        line += f"; {removing} {format_count(len(removed), 'entry')}, {freed}"
    return line
