"""``explain`` as a view."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jaxcache.cache.explain import sides
from jaxcache.cache.explain.keys import Churn
from jaxcache.render import columns as render_columns
from jaxcache.render.view import Block, Column, Line, Table, View, fields_of
from jaxcache.units import format_count, join_some
from jaxcache.warm.report.causes import describe_comparison

_SHOWN_MODULES = 4
_HASH_DIGITS = 64
_SHOWN_DIFFERENCES = 3
_SHOWN_VERDICTS = 5


def explain_view(explanation: sides.Explanation, cache_dir: str, *, unfolded: bool = False) -> View:
    """Return the view of ``explain``; ``differences`` sums up over all modules.

    Args:
        unfolded: list JAX's own operations one by one, too.
    """
    comparisons = explanation.comparisons
    past = explanation.past
    document = {
        "cache_dir": cache_dir,
        "left": explanation.left,
        "right": explanation.right,
        "same": explanation.same,
        "differences": [
            {**fields_of(d), "modules": [c.right.module for c in members]}
            for d, members in _summed(comparisons)
        ],
        "comparisons": comparisons,
        "verdict": explanation.verdict,
    }
    hits = [{**fields_of(c), "cause": describe_comparison(c)} for c in past]
    if hits:
        document["hits"] = hits
    if explanation.advice:
        document["advice"] = explanation.advice
    explained = tuple(c for c in past if c.differences) if unfolded or not comparisons else ()
    shown = comparisons or explained
    own = [c for c in shown if not c.right.is_helper]
    rows = [
        (c.right.module, d.component, d.left, d.right, d.meaning, d.fix)
        for c in own or shown
        for d in c.differences
    ]
    page = [*_page(explanation, unfolded=unfolded)] if comparisons or not past else []
    alike = f"no difference in {format_count(explanation.same, 'module')}"
    note = f"{alike} between {explanation.left} and {explanation.right}"
    hit = f"{explanation.hits:,} of {explanation.hits + len(comparisons):,} hit now"
    headline = ""
    if explained:
        headline = f"{hit}; below is why they were compiled when they were written"
        page += ["", headline] if comparisons else []
        page += _listed_modules(explained, unfolded=unfolded)
    elif explanation.hits and explanation.hits == explanation.same:
        note = f"{hit}: nothing to explain"
    advice = [f"{f.severity}: {f.seen}: {f.cost}; {f.fix}" for f in explanation.advice]
    return View(
        document,
        [*dict.fromkeys(rows)],
        records=comparisons or hits,
        page=page,
        notes=advice if comparisons or explained else [note, *advice],
        headline="" if comparisons else headline,
    )


def _summed(
    comparisons: Sequence[sides.Comparison],
) -> list[tuple[sides.Difference, list[sides.Comparison]]]:
    """Equal differences of several modules as one, the most frequent first."""
    summed: defaultdict[sides.Difference, list[sides.Comparison]] = defaultdict(list)
    for comparison in comparisons:
        for difference in comparison.differences:
            summed[difference].append(comparison)
    return sorted(summed.items(), key=lambda item: -len(item[1]))


def _page(explanation: sides.Explanation, *, unfolded: bool) -> Iterator[Block]:
    differing = explanation.comparisons
    total = len(differing) + explanation.same
    if differing and total > 1:
        verb = "differs" if len(differing) == 1 else "differ"
        yield f"{len(differing):,} of {format_count(total, 'module')} {verb}"
    if explanation.verdict:
        listed = explanation.verdict if unfolded else explanation.verdict[:_SHOWN_VERDICTS]
        yield from listed
        if more := len(explanation.verdict) - len(listed):
            yield f"and {format_count(more, 'other cause')} (--all lists them)"
    else:
        yield Line(explanation.left, "left   ")
        yield Line(explanation.right, "right  ")
    yield from _listed_modules(differing, unfolded=unfolded)


def _listed_modules(comparisons: Sequence[sides.Comparison], *, unfolded: bool) -> Iterator[Block]:
    """Yield the differences of the user's functions in full; JAX's own operations in one line."""
    own = [c for c in comparisons if not c.right.is_helper]
    shown = comparisons if unfolded or not own else own
    yield from _listed_differences(shown, unfolded=unfolded)
    if folded := comparisons[len(shown) :]:
        some = format_count(len(folded), "helper")
        verb = "differs" if len(folded) == 1 else "differ"
        yield ""
        yield f"and {some} of JAX, such as {folded[0].right.module}, {verb} (--all lists them)"


def _listed_differences(
    comparisons: Sequence[sides.Comparison], *, unfolded: bool
) -> Iterator[Block]:
    """Yield the first few differences in full."""
    differences = _summed(comparisons)
    listed = differences if unfolded else differences[:_SHOWN_DIFFERENCES]
    for difference, members in listed:
        yield from _difference_lines(difference, members)
    if more := len(differences) - len(listed):
        yield ""
        yield f"and {format_count(more, 'other difference')} (--all lists them)"


def _difference_lines(
    d: sides.Difference, comparisons: Sequence[sides.Comparison]
) -> Iterator[Block]:
    places = list(dict.fromkeys(_place(c.right) for c in comparisons))
    is_named = d.component in ("computation", sides.Cause.UNKNOWN)
    text = d.meaning if is_named else f"{d.component}: {d.meaning}"
    several = join_some(places, _SHOWN_MODULES)
    yield ""
    if len(places) == 1:
        text = f"{places[0]}: {text}"
        several = ""
    yield Line(text, style="bold")
    runs = list(dict.fromkeys(c.compared_with for c in comparisons if c.compared_with))
    keys = list(dict.fromkeys(c.left.key for c in comparisons if c.left and c.left.key))
    old = join_some(runs, _SHOWN_MODULES)
    if old and len(keys) == 1:
        old = f"{keys[0][: -_HASH_DIGITS + render_columns.SHOWN_HASH_DIGITS]} of the {old}"
    first, second = ("then", "now") if old else ("left", "right")
    for label, value in (
        *(("in", several), ("before", old)),
        *((first, d.left), (second, d.right), ("fix", d.fix)),
    ):
        if value:
            yield Line(value, f"  {label:<7}")


def _place(compile_: sides.Compile) -> str:
    """The module, with the line of the user's function where it is known."""
    if compile_.is_helper or not compile_.source:
        return compile_.module
    return f"{compile_.module} ({sides.file_name(compile_.source)})"


def churn_view(churns: Sequence[Churn], cache_dir: str, *, what: str = "MODULE") -> View:
    """Return the view of ``explain --churn``.

    Args:
        what: what has several keys, as the head of its column.
    """

    columns = [
        render_columns.text_column(what, lambda c: c.module, elastic=True),
        render_columns.count_column("KEYS", lambda c: c.keys),
        render_columns.size_column(lambda c: c.size_bytes),
        render_columns.seconds_column(lambda c: c.compile_seconds),
        Column(
            "LIKELY CAUSE",
            lambda c: c.causes[0].component if c.causes else None,
            lambda c: c.causes[0].title or c.causes[0].meaning if c.causes else "",
            elastic=True,
            least=24,
            cut="end",
        ),
        Column("MEANING", lambda c: c.causes[0].meaning if c.causes else None),
    ]
    rows = [fields_of(c) for c in churns]
    page = _churn_page(columns, churns) if churns else [f"no {what.lower()} has two keys or more"]
    return View({"cache_dir": cache_dir, "modules": rows}, churns, columns, records=rows, page=page)


def _churn_page(columns: Sequence[Column], churns: Sequence[Churn]) -> Iterator[Block]:
    """The table, whose causes are short, and each of them in full."""
    yield Table(columns, churns)
    causes = {c.title or c.meaning: c.meaning for churn in churns for c in churn.causes[:1]}
    for title, meaning in causes.items():
        if not meaning.removeprefix("the ").startswith(title):
            yield Line(meaning, f"{title}: ")
