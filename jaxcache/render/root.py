"""The caches of a root as views: a row for each, and sums."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxcache.cache.root import CacheSums, RootSums, sum_uses
from jaxcache.cache.verify.examine import Verification
from jaxcache.cache.verify.repair import Repair
from jaxcache.render.columns import count_column, size_column, text_column
from jaxcache.render.document import fields_of
from jaxcache.render.verify import verification_view
from jaxcache.render.view import Block, Column, Line, View
from jaxcache.units import format_ago, format_count, format_size, rfc3339

_JAX_SHOWN = 3


def sums_view(root: RootSums, *, now_ns: int, measured: bool) -> View:
    """Return the view of ``ls`` and ``stats`` over a root.

    Args:
        measured: whether the caches were looked at whole, as ``stats`` does.
    """
    rows = [_row(cache, measured=measured) for cache in root.caches]
    document: dict[str, Any] = {"cache_dir": root.cache_dir, "caches": rows}
    if measured:
        size_bytes = sum(cache.size_bytes or 0 for cache in root.caches)
        document |= {"total": root.summary, "size_bytes": size_bytes}
        document |= fields_of(sum_uses(root.caches))
        note = f"{root}; cache size {format_size(size_bytes)}"
    else:
        document |= {"summary": root.summary}
        note = str(root)
    return View(
        document,
        root.caches,
        [*_columns(now_ns), *([_PROBLEMS] if measured else [])],
        keys=(f"{root.cache_dir}/{cache.name}" for cache in root.caches),
        records=rows,
        notes=[note],
    )


def _row(cache: CacheSums, *, measured: bool) -> dict[str, Any]:
    row = {
        "name": cache.name,
        **fields_of(cache.summary),
        "platforms": cache.platforms,
        "jax_versions": cache.jax_versions,
        "last_used_at": None if cache.last_used_ns is None else rfc3339(cache.last_used_ns),
        **fields_of(cache.uses),
    }
    if measured:
        row |= {"entry_bytes": cache.summary.size_bytes, "size_bytes": cache.size_bytes}
        row["problems"] = cache.problems
    return row


_PROBLEMS = Column(
    "PROBLEMS",
    lambda cache: cache.problems,
    lambda cache: f"{cache.problems:,}" if cache.problems else "",
    right=True,
    style="red",
)


def _columns(now_ns: int) -> Sequence[Column]:
    return [
        text_column("CACHE", lambda cache: cache.name, elastic=True, least=16),
        count_column("ENTRIES", lambda cache: cache.summary.entries),
        size_column(lambda cache: cache.size_bytes or cache.summary.size_bytes),
        Column(
            "COMPILE",
            lambda cache: cache.summary.compile_seconds,
            lambda cache: cache.summary.compile_total if cache.summary.entries else "",
            right=True,
        ),
        text_column("PLATFORM", lambda cache: ",".join(cache.platforms)),
        text_column("JAX", lambda cache: ",".join(cache.jax_versions[-_JAX_SHOWN:])),
        Column(
            "USED",
            lambda cache: None if cache.last_used_ns is None else rfc3339(cache.last_used_ns),
            lambda cache: (
                "" if cache.last_used_ns is None else format_ago(cache.last_used_ns, now_ns)
            ),
            right=True,
        ),
    ]


def verification_of_root_view(
    root: str, found: Mapping[str, tuple[Verification, Repair | None]]
) -> View:
    """Return the view of ``verify`` over a root: one for each cache, and sums.

    Args:
        found: by the cache's directory relative to the root.
    """
    views = {name: verification_view(*one) for name, one in found.items()}
    results = [verification for verification, _ in found.values()]
    rows = [
        {"cache": name, **row} for name, view in views.items() for row in view.document["problems"]
    ]
    checked, ok = sum(r.checked for r in results), sum(r.ok for r in results)
    names = ("level", "checked", "ok", "proven", "not_provable")
    caches = [
        {"name": name, **{n: view.document[n] for n in names}} for name, view in views.items()
    ]
    document = {
        "cache_dir": root,
        "caches": caches,
        "checked": checked,
        "ok": ok,
        "problems": rows,
    }
    return View(
        document,
        [row for row in rows if row["kind"] != "unsealed"],
        [
            Column(n, lambda row, n=n: row[n])  # type: ignore[misc]
            for n in ("cache", "kind", "file", "action", "detail")
        ],
        records=rows,
        keys=[
            f"{name}/{key}" for name, view in views.items() for key in view.keys if key is not None
        ],
        page=_verification_page(views),
        notes=[
            f"{len(results):,} caches: {ok:,} of {format_count(checked, 'entry')} without problem"
        ],
    )


def _verification_page(views: Mapping[str, View]) -> Iterator[Block]:
    for name, view in views.items():
        yield Line(name, style="bold")
        yield from view.page or ()
        yield from (Line(str(note), "  ") for note in view.notes)
        yield ""
