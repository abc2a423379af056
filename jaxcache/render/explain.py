"""``explain`` as a document, TSV and a page for people."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxcache.cache.explain.churn import Churn
from jaxcache.cache.explain.sides import Comparison, Difference, Explanation
from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope
from jaxcache.render.prose import labelled
from jaxcache.render.table import Column, render_table
from jaxcache.units import format_count, format_duration, format_size

_SHOWN_MODULES = 4


def difference_document(difference: Difference) -> Document:
    """One difference: component, left, right, meaning, fix."""
    d = difference
    return {
        "component": printable(d.component),
        "left": d.left and printable(d.left),
        "right": d.right and printable(d.right),
        "meaning": printable(d.meaning),
        "fix": d.fix and printable(d.fix),
    }


def comparison_document(comparison: Comparison) -> Document:
    """One compile beside the nearest of the other side."""
    left, right = comparison.left, comparison.right
    return {
        "module": printable(right.module),
        "left_key": left and left.key and printable(left.key),
        "right_key": right.key and printable(right.key),
        "outcome": right.outcome,
        "source": right.source and printable(right.source),
        "differences": [difference_document(d) for d in comparison.differences],
    }


def explain_document(explanation: Explanation, cache_dir: str) -> Document:
    """Return the document of ``explain --json``; ``differences`` sums up over all modules."""
    return {
        **envelope(cache_dir),
        "left": printable(explanation.left),
        "right": printable(explanation.right),
        "same": explanation.same,
        "differences": [
            {**difference_document(d), "modules": [printable(m) for m in modules]}
            for d, modules in _summed(explanation)
        ],
        "comparisons": [comparison_document(c) for c in explanation.comparisons],
    }


def _summed(explanation: Explanation) -> list[tuple[Difference, list[str]]]:
    """Equal differences of several modules as one, the most frequent first."""
    found: defaultdict[Difference, list[str]] = defaultdict(list)
    for comparison in explanation.comparisons:
        for difference in comparison.differences:
            found[difference].append(comparison.right.module)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def explain_tsv(explanation: Explanation) -> Iterator[str]:
    """One line per difference of a module: module, component, left, right, meaning, fix."""
    for comparison in explanation.comparisons:
        for d in comparison.differences:
            cells = (
                comparison.right.module,
                d.component,
                d.left,
                d.right,
                d.meaning,
                d.fix,
            )
            yield "\t".join(printable(c or "").replace("\t", " ") for c in cells)


def explain_page(explanation: Explanation, *, width: int) -> str:
    """A page for people, broken between words at ``width`` columns; what is copied is not."""
    parts = [f"left   {printable(explanation.left)}\nright  {printable(explanation.right)}"]
    for difference, modules in _summed(explanation):
        names = list(dict.fromkeys(map(printable, modules)))
        more = len(names) - _SHOWN_MODULES
        shown = ", ".join(names[:_SHOWN_MODULES]) + (f" and {more:,} more" if more > 0 else "")
        d = difference_document(difference)
        lines = [
            labelled("", f"{d['component']}: {d['meaning']}", width=width, indent=0, label_width=0)
        ]
        lines += [f"  {side:<7}{d[side]}" for side in ("left", "right") if d[side]]
        lines.append(labelled("in", shown, width=width, label_width=7))
        if d["fix"]:
            lines.append(f"  fix    {d['fix']}")
        parts.append("\n".join(lines))
    differing = len(explanation.comparisons)
    same = f"{format_count(explanation.same, 'module')} the same"
    verb = "differs" if differing == 1 else "differ"
    parts.append(f"{format_count(differing, 'module')} {verb}, {same}" if differing else same)
    return "\n\n".join(parts)


def churn_document(churns: Sequence[Churn], cache_dir: str) -> Document:
    """Return the document of ``explain --churn --json``."""
    return {**envelope(cache_dir), "modules": [churn_row(c) for c in churns]}


def churn_row(churn: Churn) -> Document:
    """One module with many keys."""
    return {
        "module": printable(churn.module),
        "keys": churn.keys,
        "size_bytes": churn.size_bytes,
        "compile_seconds": churn.compile_seconds,
        "causes": [
            {"component": printable(component), "meaning": printable(meaning), "count": number}
            for component, meaning, number in churn.causes
        ],
    }


def churn_tsv(churns: Sequence[Churn]) -> Iterator[str]:
    """One line per module: module, keys, bytes, compile seconds, component, likely cause."""
    for c in churns:
        texts = map(printable, c.causes[0][:2] if c.causes else ("", ""))
        cells = (printable(c.module), c.keys, c.size_bytes, f"{c.compile_seconds:g}", *texts)
        yield "\t".join(map(str, cells))


def churn_table(churns: Sequence[Churn], *, width: int, color: bool) -> str:
    """A table for people."""
    columns = [
        Column("MODULE", elastic=True),
        Column("KEYS", right=True),
        Column("SIZE", right=True),
        Column("COMPILE", right=True),
        Column("LIKELY CAUSE", elastic=True, cut="end"),
    ]
    rows = [
        [
            printable(c.module),
            f"{c.keys:,}",
            format_size(c.size_bytes),
            format_duration(c.compile_seconds),
            printable("; ".join(f"{component}: {text}" for component, text, _ in c.causes[:2])),
        ]
        for c in churns
    ]
    return render_table(columns, rows, width=width, color=color)
