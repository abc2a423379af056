"""``explain`` as a view."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxcache.cache.explain.churn import Churn
from jaxcache.cache.explain.sides import Difference, Explanation
from jaxcache.render.columns import (
    count_column,
    seconds_column,
    size_column,
    text_column,
)
from jaxcache.render.document import fields_of
from jaxcache.render.view import Block, Column, Line, Table, View
from jaxcache.units import format_count, format_duration

_SHOWN_MODULES = 4


def explain_view(explanation: Explanation, cache_dir: str) -> View:
    """Return the view of ``explain``; ``differences`` sums up over all modules."""
    summed = _summed(explanation)
    document = {
        "cache_dir": cache_dir,
        "left": explanation.left,
        "right": explanation.right,
        "same": explanation.same,
        "differences": [{**fields_of(d), "modules": modules} for d, modules in summed],
        "comparisons": explanation.comparisons,
    }
    rows = [
        (c.right.module, d.component, d.left, d.right, d.meaning, d.fix)
        for c in explanation.comparisons
        for d in c.differences
    ]
    return View(document, rows, records=explanation.comparisons, page=_page(explanation, summed))


def _summed(explanation: Explanation) -> list[tuple[Difference, list[str]]]:
    """Equal differences of several modules as one, the most frequent first."""
    found: defaultdict[Difference, list[str]] = defaultdict(list)
    for comparison in explanation.comparisons:
        for difference in comparison.differences:
            found[difference].append(comparison.right.module)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def _page(
    explanation: Explanation, summed: Sequence[tuple[Difference, list[str]]]
) -> Iterator[Block]:
    differing = len(explanation.comparisons)
    same = f"{format_count(explanation.same, 'module')} the same"
    verb = "differs" if differing == 1 else "differ"
    yield f"{format_count(differing, 'module')} {verb}, {same}" if differing else same
    yield Line(explanation.left, "  left   ")
    yield Line(explanation.right, "  right  ")
    for d, modules in summed:
        names = list(dict.fromkeys(modules))
        more = len(names) - _SHOWN_MODULES
        shown = ", ".join(names[:_SHOWN_MODULES]) + (f" and {more:,} more" if more > 0 else "")
        yield ""
        yield Line(f"{d.component}: {d.meaning}", style="bold")
        for label, text in (("left", d.left), ("right", d.right), ("in", shown), ("fix", d.fix)):
            if text:
                yield Line(text, f"  {label:<7}")


def churn_view(churns: Sequence[Churn], cache_dir: str) -> View:
    """Return the view of ``explain --churn``."""

    def cause(churn: Churn, part: int) -> object:
        return churn.causes[0][part] if churn.causes else None

    columns = [
        text_column("MODULE", lambda c: c.module, elastic=True),
        count_column("KEYS", lambda c: c.keys),
        size_column(lambda c: c.size_bytes),
        seconds_column(lambda c: c.compile_seconds, format_duration),
        Column(
            "LIKELY CAUSE",
            lambda c: cause(c, 0),
            lambda c: "; ".join(f"{component}: {text}" for component, text, _ in c.causes[:2]),
            elastic=True,
            cut="end",
        ),
        Column("MEANING", lambda c: cause(c, 1)),
    ]
    names = ("component", "meaning", "count")
    rows = [
        fields_of(c) | {"causes": [dict(zip(names, cause, strict=True)) for cause in c.causes]}
        for c in churns
    ]
    page = [Table(columns, churns)] if churns else ["no module has three keys or more"]
    return View({"cache_dir": cache_dir, "modules": rows}, churns, columns, records=rows, page=page)
