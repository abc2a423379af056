"""Exports, imports and differences as JSON documents and as text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcache.cache.bundle.compat import Compatibility, Forecast, Outlook, forecast
from jaxcache.cache.bundle.format import Bundle
from jaxcache.cache.bundle.importing import Action, ImportPlan, Step
from jaxcache.cache.bundle.manifest import Item, Manifest
from jaxcache.cache.bundle.unpack import Imported
from jaxcache.cache.diff import Diff, Held, Pair, Side, sum_sizes
from jaxcache.cache.trust import TrustedKey, Verdict
from jaxcache.entry.names import parse_key, parse_name, printable
from jaxcache.model import Problem
from jaxcache.render.document import Document, envelope, problem_document
from jaxcache.render.table import Column, render_table, short_key
from jaxcache.units import format_compile, format_count, format_size

_MISS_REASONS = 3


@dataclass(frozen=True, slots=True)
class Written:
    """A bundle that was written, by ``export`` or ``copy``."""

    source: str
    """The cache or the bundle that it was made from."""
    files: tuple[str, ...]
    size_bytes: int
    manifest: Manifest
    manifest_sha256: str
    signatures: int
    left_out: tuple[Problem, ...] = ()


def written_bundle(bundle: Bundle, file: str) -> Written:
    """Describe an opened bundle, as ``file``."""
    return Written(
        bundle.name,
        (file,),
        bundle.size_bytes,
        bundle.manifest,
        bundle.manifest_sha256,
        len(bundle.signatures),
    )


def export_document(written: Written) -> Document:
    """Return the document of ``export --json``, and of ``copy --json`` into a bundle."""
    manifest = written.manifest
    return {
        **envelope(written.source),
        "files": [printable(f) for f in written.files],
        "size_bytes": written.size_bytes,
        "entries": len(manifest.items),
        "side_files": len(manifest.files),
        "payload_bytes": manifest.content_bytes,
        "source_bytes": manifest.source_bytes,
        "compile_seconds": float(sum(i.compile_seconds for i in manifest.items)),
        "manifest_sha256": written.manifest_sha256,
        "signatures": written.signatures,
        "forecast": forecast_document(forecast(manifest, None, None)),
        "left_out": [problem_document(p) for p in written.left_out],
    }


def item_document(item: Item) -> Document:
    """One entry of a bundle, as ``export --jsonl`` prints it."""
    return {
        "key": printable(item.key),
        "size_bytes": item.size_bytes,
        "payload_bytes": item.payload_bytes,
        "payload_sha256": item.payload_sha256,
        "compile_seconds": float(item.compile_seconds),
    }


def export_summary(written: Written) -> str:
    """One line on what was written."""
    manifest, files, size_bytes = written.manifest, written.files, written.size_bytes
    source = manifest.source_bytes
    count, sides = len(manifest.items), len(manifest.files)
    more = f" and {format_count(sides, 'file')} of XLA's caches" if sides else ""
    what = f"{format_count(count, 'entry')}{more}"
    if manifest.layout != "jax":
        what = f"{format_count(sides, 'file')} of {manifest.layout}'s caches"
    share = f", {size_bytes / source:.0%} of {format_size(source)} as files" if source else ""
    where = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
    return f"{what} in {printable(where)}: {format_size(size_bytes)}{share}"


def import_document(
    plan: ImportPlan,
    outlooks: Compatibility,
    verdict: Verdict,
    done: Imported | None,
    *,
    manifest_sha256: str,
) -> Document:
    """Return the document of ``import --json``; ``done`` is None for a dry run."""
    forecasts = {f.key: f for f in outlooks.forecasts}
    host = outlooks.host
    return {
        **envelope(plan.cache_dir),
        "bundle": printable(plan.bundle),
        "manifest_sha256": manifest_sha256,
        "dry_run": done is None,
        "rolled_back": bool(done and done.rolled_back),
        "signed_by": list(verdict.trusted),
        "signature_warning": verdict.warning,
        "entries": [
            step_document(s, forecasts.get(s.subject.key) if isinstance(s.subject, Item) else None)
            for s in plan.steps
        ],
        "summary": {
            **{action.value: plan.count(action) for action in Action},
            "written": len(done.written) if done else 0,
            "conflicts": len(plan.conflicts),
        },
        "outlook": {o.value: outlooks.counts.get(o, 0) for o in Outlook},
        "forecast": forecast_document(outlooks),
        "host": host
        and {
            "python": host.python,
            "jax": host.jax_version,
            "jaxlib": host.jaxlib_version,
            "codec": host.codec,
            "platform": host.origin.platform,
            "target": host.origin.target,
        },
        "failed": [{"file": printable(f.name), "detail": f.detail} for f in failures(done)],
    }


def failures(done: Imported | None) -> Sequence[Any]:
    """Return the files that could not be written."""
    return done.failed if done else ()


def step_document(step: Step, told: Forecast | None) -> Document:
    """One entry or file of an import."""
    item = step.subject if isinstance(step.subject, Item) else None
    return {
        "key": item and printable(item.key),
        "file": printable(step.name),
        "action": step.action.value,
        "detail": printable(step.detail) or None,
        "payload_bytes": step.content_bytes,
        "compile_seconds": float(item.compile_seconds) if item else None,
        "payload_differs": step.differs,
        "outlook": told.outlook.value if told else None,
        "reason": printable(told.reason) if told and told.reason else None,
        "restore_to": printable(told.restore_to) if told and told.restore_to else None,
    }


def import_rows(plan: ImportPlan, outlooks: Compatibility) -> Iterator[str]:
    """One line per entry: action, outlook, file, why."""
    forecasts = {f.key: f for f in outlooks.forecasts}
    for step in plan.steps:
        item = step.subject
        told = forecasts.get(item.key) if isinstance(item, Item) else None
        why = step.detail or (told.reason if told else "") or ""
        row = (step.action.value, told.outlook.value if told else "-", step.name, why)
        yield "\t".join(map(printable, row))


def import_table(plan: ImportPlan, outlooks: Compatibility, *, width: int, color: bool) -> str:
    """The same for people."""
    columns = [
        Column("ACTION"),
        Column("OUTLOOK"),
        Column("KEY", elastic=True, least=16),
        Column("WHY", elastic=True, cut="end"),
    ]
    cells = (row.split("\t") for row in import_rows(plan, outlooks))
    rows = [
        [action, outlook, _short_name(step.name), why]
        for step, (action, outlook, _, why) in zip(plan.steps, cells, strict=True)
    ]
    return render_table(columns, rows, width=width, color=color)


def _short_name(file: str) -> str:
    """A file by its key, where it is an entry."""
    key = parse_name(file).key
    return short_key(*key) if key else printable(file)


def import_summary(plan: ImportPlan, done: Imported | None) -> str:
    """One line on what was done, or would be."""
    if done and done.rolled_back:
        first = done.failed[0]
        return f"nothing was imported: {printable(first.name)}: {printable(first.detail)}"
    writes = len(done.written) if done else len(plan.writes)
    words = [f"{format_count(writes, 'file')} {'written' if done else 'to write'}"]
    for action, text in (
        (Action.HEAL, "of them instead of damaged ones"),
        (Action.SAME, "already there"),
        (Action.KEEP, "kept though another one is in the bundle"),
        (Action.BLOCKED, "blocked"),
    ):
        if count := plan.count(action):
            words.append(f"{count} {text}")
    if done and done.failed:
        words.append(f"{len(done.failed)} failed ({printable(done.failed[0].detail)})")
    return f"{printable(plan.cache_dir)}: {', '.join(words)}"


def outlook_line(outlooks: Compatibility) -> str:
    """One line on what is going to hit, why the rest will not, and the cure."""
    counts, host = outlooks.counts, outlooks.host
    total = len(outlooks.forecasts)
    with_what = f" with jax {host.jax_version} ({host.origin.platform})" if host else ""
    if not total:
        return "no entries"
    if counts.get(Outlook.HIT) == total:
        return f"all {total} entries should hit{with_what}"
    misses = [f for f in outlooks.forecasts if f.outlook is Outlook.MISS]
    if not misses and host is None:
        return (
            f"whether {format_count(total, 'entry')} will hit here was not checked: "
            "no jax was asked (--python)"
        )
    where = "here" if outlooks.cache_dir is not None else "at another path"
    unknown = counts.get(Outlook.UNKNOWN, 0)
    told = f"{counts.get(Outlook.HIT, 0)} of {total:,} will hit {where}{with_what}"
    if unknown and host is None:
        told, unknown = f"{len(misses)} of {total:,} will miss {where}", 0
    if outlooks.entries > total:
        told = told.replace(" will ", f" entries looked at (of {outlooks.entries:,}) will ", 1)
    told += f", {unknown} cannot be told" if unknown else ""
    moved = [f for f in misses if f.restore_to]
    reasons = list(dict.fromkeys(f.reason for f in misses if f.reason and not f.restore_to))
    if moved:
        versions = sorted({_release(f.jax_version) for f in moved})
        places = sorted({f.restore_to for f in moved if f.restore_to})
        shown = " or ".join(places[:_MISS_REASONS])
        reasons.insert(0, f"keys of jax {', '.join(versions)} contain the cache's path, {shown}")
    line = told + (f": {printable('; '.join(reasons[:_MISS_REASONS]))}" if reasons else "")
    return line + _CURE if moved else line


_CURE = ". Use the same path there, or fill the cache with --portable: jaxcache warm --portable"


def _release(version: str | None) -> str:
    """A version without its patch, or those of all whose keys contain the path."""
    if version is None:
        return "0.4.36 to 0.10"
    return printable(".".join(version.split(".")[: 3 if version.startswith("0.4.") else 2]))


def forecast_note(outlooks: Compatibility) -> str | None:
    """The line where something will miss; None where nothing is known to."""
    return outlook_line(outlooks) if outlooks.counts.get(Outlook.MISS) else None


def forecast_document(outlooks: Compatibility | None) -> Document | None:
    """The field ``forecast`` of what moves entries; None where nothing was looked at."""
    if outlooks is None or not outlooks.forecasts:
        return None
    return {
        "looked_at": len(outlooks.forecasts),
        **{o.value: outlooks.counts.get(o, 0) for o in Outlook},
        "message": forecast_note(outlooks),
    }


def diff_document(diff: Diff) -> Document:
    """Return the document of ``diff --json``; ``cache_dir`` is the left side."""
    return {
        **envelope(diff.left.location),
        "left": _side_document(diff.left, diff.only_left),
        "right": _side_document(diff.right, diff.only_right),
        "equal": diff.equal,
        "same": diff.same,
        "only_left": [held_document(h) for h in diff.only_left],
        "only_right": [held_document(h) for h in diff.only_right],
        "differing": [pair_document(p) for p in diff.differing],
    }


def _side_document(side: Side, only: Sequence[Held]) -> Document:
    size_bytes, seconds = sum_sizes(only)
    return {
        "location": printable(side.location),
        "entries": len(side.entries),
        "only_size_bytes": size_bytes,
        "only_compile_seconds": seconds,
        "damaged": [problem_document(p) for p in side.damaged],
    }


def held_document(held: Held) -> Document:
    """One entry of one side."""
    return {
        "key": printable(held.key),
        "size_bytes": held.size_bytes,
        "payload_bytes": held.payload_bytes,
        "payload_sha256": held.payload_sha256,
        "compile_seconds": float(held.compile_seconds),
    }


def pair_document(pair: Pair) -> Document:
    """One key with two contents."""
    return {
        "key": printable(pair.left.key),
        "payload_differs": pair.payload_differs,
        "left": held_document(pair.left),
        "right": held_document(pair.right),
    }


def diff_lines(diff: Diff) -> Iterator[Document]:
    """One document per difference."""
    for held in diff.only_left:
        yield {"where": "left", **held_document(held)}
    for held in diff.only_right:
        yield {"where": "right", **held_document(held)}
    for pair in diff.differing:
        yield {"where": "both", **pair_document(pair)}


def diff_keys(diff: Diff) -> list[str]:
    """The keys that differ, sorted."""
    keys = [h.key for h in (*diff.only_left, *diff.only_right)]
    return sorted(map(printable, keys + [p.left.key for p in diff.differing]))


def diff_rows(diff: Diff) -> Iterator[str]:
    """One line per difference: ``<`` only left, ``>`` only right, ``!`` other payload, ``~`` other
    seconds only, ``x`` damaged."""
    for mark, side in (("x<", diff.left), ("x>", diff.right)):
        for problem in side.damaged:
            yield f"{mark}\t{printable(problem.file)}\t{problem.kind}\t{printable(problem.detail)}"
    for mark, entries in (("<", diff.only_left), (">", diff.only_right)):
        for held in entries:
            yield f"{mark}\t{printable(held.key)}\t{held.size_bytes}\t{held.compile_seconds}"
    for pair in diff.differing:
        mark = "!" if pair.payload_differs else "~"
        yield (
            f"{mark}\t{printable(pair.left.key)}\t{pair.left.size_bytes},{pair.right.size_bytes}"
            f"\t{pair.left.compile_seconds},{pair.right.compile_seconds}"
        )


def diff_table(diff: Diff, *, width: int, color: bool) -> str:
    """The same for people."""
    columns = [
        Column("WHERE"),
        Column("KEY", elastic=True, least=16),
        Column("SIZE", right=True),
        Column("COMPILE", right=True),
    ]
    rows = [
        [f"{where}: {p.kind}", _short_name(p.file), "", ""]
        for where, side in (("left", diff.left), ("right", diff.right))
        for p in side.damaged
    ]
    for where, entries in (("left", diff.only_left), ("right", diff.only_right)):
        rows += [
            [where, _short_key(h), format_size(h.size_bytes), format_compile(h.compile_seconds)]
            for h in entries
        ]
    for pair in diff.differing:
        left, right = pair.left, pair.right
        sizes = f"{format_size(left.size_bytes)}, {format_size(right.size_bytes)}"
        seconds = ", ".join(format_compile(h.compile_seconds) for h in (left, right))
        rows.append(["both: differing", _short_key(left), sizes, seconds])
    return render_table(columns, rows, width=width, color=color)


def _short_key(held: Held) -> str:
    key = parse_key(held.key)
    return short_key(*key) if key else printable(held.key)


def diff_summary(diff: Diff) -> str:
    """One line on how the sides differ, with what is at stake."""
    if diff.equal:
        return f"equal: {format_count(diff.same, 'entry')} on both sides"
    words = [f"{diff.same} the same"]
    for what, entries in (("left", diff.only_left), ("right", diff.only_right)):
        size_bytes, seconds = sum_sizes(entries)
        if entries:
            words.append(f"{len(entries)} only {what} ({format_size(size_bytes)}, {seconds:.0f} s)")
    if diff.differing:
        payloads = sum(p.payload_differs for p in diff.differing)
        words.append(f"{len(diff.differing)} differ ({payloads} in their executables)")
    if damaged := len(diff.left.damaged) + len(diff.right.damaged):
        words.append(f"{damaged} damaged")
    return ", ".join(words)


def key_document(key: TrustedKey) -> Document:
    """One trusted key."""
    return {"name": key.name, "public_key": key.text}
