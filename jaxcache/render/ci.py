"""The steps of a CI job as documents, as outputs of a step, and as a summary in Markdown."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxcache import units
from jaxcache.cache.bundle.compat import PORTABLE_FIX
from jaxcache.cache.ci.restore import REFUSED, CiKey, RestoreResult
from jaxcache.cache.ci.save import THRESHOLD, SaveResult, Why
from jaxcache.cache.ci.usage import UseSource
from jaxcache.cache.move.plan import MoveAction
from jaxcache.entry.summary import Entry
from jaxcache.render.move import left_out_lines, warning_lines
from jaxcache.render.view import Document, Line, View, fields_of, to_document, versioned

Outputs = Mapping[str, str]
_SHOWN_MODULES = 20
_SHOWN_REASONS = 5
_WHY: dict[Why, str] = {
    "new": "the job compiled something new",
    "always": "always, by --save-if",
    "first": "the target was empty",
    "nothing-new": "not saved: the job compiled nothing new",
    "not-wanted": "not saved (--save-if false)",
    "empty": "not saved: the cache is empty",
}
_WITNESSES: dict[UseSource, str] = {
    UseSource.JAX: ", by JAX's own dates of use",
    UseSource.FILE_SYSTEM: ", by the files' access times",
}
_WITNESS_GAPS: dict[UseSource, str] = {
    UseSource.LEDGER: "; the ledger records only runs under jaxcache",
    UseSource.NONE: "; nothing recorded uses",
}


def key_view(cache_dir: str, key: CiKey, *, restore_keys: bool) -> View:
    """Return the view of ``ci key``."""
    document = {"cache_dir": cache_dir, **fields_of(key)}
    shown = key.restore_keys if restore_keys else [key.key]
    page = [Line(text, whole=True) for text in shown]
    return View(document, ([text] for text in shown), records=[versioned(document)], page=page)


class StepReport(NamedTuple):
    """What a step of a job leaves: a view, outputs for later steps, a summary in Markdown."""

    view: View
    outputs: Outputs
    summary: str


def restore_step(restored: RestoreResult) -> StepReport:
    """Return the report of ``ci restore``."""
    outputs = {
        "cache-hit": _flag(restored.hit),
        "entries": str(restored.entries),
        "stored-seconds": _seconds(restored.stored_seconds),
    }
    keys = [item.key or "" for item in restored.fitting]
    lines = list(restore_lines(restored))
    summary = _section("JAX compilation cache: restored", lines)
    return StepReport(_step_view(fields_of(restored), outputs, keys, lines), outputs, summary)


def save_step(saved: SaveResult) -> StepReport:
    """Return the report of ``ci save``."""
    plan = saved.plan
    outputs = {
        "saved": _flag(saved.saved),
        "new-entries": str(len(plan.usage.new)),
        "saved-seconds": _seconds(plan.usage.saved_seconds),
    }
    if plan.saves:  # else the target has what it had
        outputs |= {"entries": str(len(plan.kept)), "digest": plan.digest}
    if plan.key is not None:
        outputs["key"] = plan.key
    lines = list(save_lines(saved))
    parts = [_section("JAX compilation cache: used and saved", lines)]
    newest = sorted(plan.usage.new, key=lambda e: (-(e.compile_seconds or 0.0), e.key))
    if newest:
        parts.append(_modules(newest[:_SHOWN_MODULES]))
        if len(newest) > _SHOWN_MODULES:
            parts.append(f"and {len(newest) - _SHOWN_MODULES} more\n")
    # The key is that of the job's cache, not of its entries.
    view = _step_view(fields_of(saved), outputs, [plan.key or ""], lines)
    return StepReport(view, outputs, "\n".join(parts))


def _step_view(
    document: Document, outputs: Outputs, keys: Sequence[str], lines: Iterable[str]
) -> View:
    """Return the view of a step: its outputs on standard output, the rest on standard error."""
    wide = max(map(len, outputs))
    page = [Line(value, f"{name:<{wide}}  ", whole=True) for name, value in outputs.items()]
    rows = outputs.items()
    return View(document, rows, (), keys, records=[versioned(document)], page=page, notes=lines)


def restore_lines(restored: RestoreResult) -> Iterator[str]:
    """Yield the lines about a restore, for people."""
    source = restored.source
    outlooks = restored.outlooks
    if restored.trouble:
        place = "" if source in restored.trouble else f" from {source}"
        yield f"nothing restored{place}: {restored.trouble}"
        if restored.is_missing:
            yield (
                "this is normal for the first job; in a later one the file was not kept, or its "
                "key changed: jaxcache ci key --json shows what that depends on"
            )
        return
    forecast_count = len(outlooks.forecasts)
    fit = len(restored.fitting)
    verb = "would be restored" if restored.done.dry_run else "restored"
    unchanged = sum(step.action is MoveAction.SAME for step in restored.done)
    yield (
        f"{fit} of {units.format_count(forecast_count, 'entry')} {verb} from {source}"
        + (f": {units.format_compiling(restored.stored_seconds, fit)}" if fit else "")
        + (f" ({unchanged} were already present)" if unchanged else "")
    )
    for reason, number in restored.misses[:_SHOWN_REASONS]:
        yield f"left: {units.format_count(number, 'entry')}, {reason}"
    if portable := sum(f.portable for f in outlooks.forecasts):
        yield f"{PORTABLE_FIX}: without it {portable} of {forecast_count:,} will miss"
    for action, what in (
        (MoveAction.PRESENT, "{} more are here already"),
        (MoveAction.UNTRUSTED, "left: {}, not signed by a trusted key"),
        (MoveAction.DAMAGED, "left: {}, damaged"),
    ):
        if number := restored.count(action):
            yield what.format(units.format_count(number, "entry"))
    refused = (step.problem for step in restored.done if step.action in REFUSED)
    yield from left_out_lines(refused)
    yield from warning_lines(restored.done)
    unknown = Counter(f.reason for f in outlooks.forecasts if f.unrecorded)
    for gap, number in unknown.most_common(_SHOWN_REASONS):
        yield f"not known whether {units.format_count(number, 'entry')} can hit: {gap}"
    if outlooks.host is None and forecast_count:
        yield "not checked whether they fit: no jax was found (--python)"
    for step in restored.done.failed:
        unread = step.item.facts is None
        yield f"not {'read' if unread else 'written'}: {step.name}: {step.detail}"


def save_lines(saved: SaveResult) -> Iterator[str]:
    """Yield the lines about a save, for people."""
    plan = saved.plan
    usage = plan.usage
    new = f"{len(usage.new)} new ({units.format_compiling(usage.new_seconds, len(usage.new))})"
    if usage.hits:
        new += f", {usage.hits} of them hit since"
    unknown = len(usage.unknown)
    before = len(usage.used) + len(usage.unused) + unknown
    if usage.compared and not before:
        yield f"{new}; the cache was empty before the job"
    elif usage.compared:
        saving = f" ({units.format_duration(usage.saved_seconds)} saved)"
        if not usage.saved_seconds:
            saving = " (the time that they saved was not recorded)"
        yield (
            f"of {units.format_count(before, 'entry')} from before it, "
            f"the job used {len(usage.used)}"
            + (saving if usage.used else "")
            + (f" and not {len(usage.unused)}" if usage.unused else "")
            + _WITNESSES.get(usage.witness, "")
            + (f"; the use of {unknown} is unknown" if unknown else "")
            + _WITNESS_GAPS.get(usage.witness, "")
        )
        yield new
    else:
        yield f"{new}: without jaxcache ci restore before the job, every entry counts as new"
    if plan.skips_quick:
        yield f"no compile of less than 1 s is here: JAX writes them only with {THRESHOLD}=0"
    if not plan.finished:
        yield "the job did not succeed, so entries that it did not use are kept"
    counts = Counter(entry.reason for entry in plan.dropped)
    unusable = counts.pop("cannot-hit", 0)
    for reason, number in sorted(counts.items() if plan.saves else ()):
        yield f"left out: {units.format_count(number, 'entry')} ({reason})"
    if unusable:
        yield (
            f"{plan.target} also held {units.format_count(unusable, 'entry')} that cannot hit "
            "here; they are not kept. If other jobs use them, give each environment its own "
            "bundle: $(jaxcache ci key).jxb"
        )
    if not plan.saves:
        yield f"{_WHY[plan.why]}; {plan.target} is not written"
    elif saved.dry_run:
        yield f"would save {len(plan.kept)} to {plan.target}"
    else:
        yield (
            f"saved {units.format_count(saved.written, 'entry')} to {plan.target} "
            f"({units.format_size(saved.size_bytes)} compressed): {_WHY[plan.why]}"
        )
    if saved.pruned:
        yield f"removed there: {units.format_count(saved.pruned, 'entry')}"
    yield from left_out_lines(saved.left_out)
    for failure in saved.failed:
        yield f"not written: {failure}"


def _section(title: str, lines: Iterable[str]) -> str:
    return f"### {title}\n\n" + "".join(f"- {markdown(line)}\n" for line in lines)


def _modules(entries: Sequence[Entry]) -> str:
    rows = [
        f"| {markdown(e.module)} | {markdown(units.format_compile(e.compile_seconds))} "
        f"| {units.format_size(e.size_bytes)} |\n"
        for e in entries
    ]
    return "| new module | compile | size |\n|---|---:|---:|\n" + "".join(rows)


#: ASCII that could be markup somewhere in a line, as character references.
_REFERENCES = {ord(c): f"&#{ord(c)};" for c in "!\"#$&'*<>?@[\\]^_`{|}~"}


def markdown(text: str) -> str:
    """A text as Markdown shows it verbatim: what could be markup becomes a character reference.

    CommonMark 6.2: references are text, and never the structure of a document.
    """
    shown: str = to_document(text)
    return shown.translate(_REFERENCES).replace("://", "&#58;//").replace("www.", "www&#46;")


def dotenv(outputs: Outputs) -> str:
    """Outputs as ``JAXCACHE_NAME=value`` lines, which GitLab's dotenv reports take."""
    return "".join(f"JAXCACHE_{n.upper().replace('-', '_')}={v}\n" for n, v in outputs.items())


def github_outputs(outputs: Outputs, delimiter: str) -> str:
    """Outputs as a step writes them to ``$GITHUB_OUTPUT``.

    Args:
        delimiter: a line that is in none of the values and cannot be guessed.
    """
    return "".join(f"{n}<<{delimiter}\n{v}\n{delimiter}\n" for n, v in outputs.items())


def _flag(value: Any) -> str:
    return "true" if value else "false"


def _seconds(value: float) -> str:
    return f"{value:.1f}"
