"""The caches of a root as views: a row for each, and sums."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxcache.cache.doctor.inputs import Finding, Interpreter, Setting
from jaxcache.cache.doctor.run_checks import Diagnosis
from jaxcache.cache.prune.plan import PrunePlan
from jaxcache.cache.prune.removal import Execution
from jaxcache.cache.root import CacheSums, RootSums, sum_uses
from jaxcache.cache.verify.repair import Repair
from jaxcache.cache.verify.run_checks import Verification
from jaxcache.render.columns import (
    compile_total_column,
    count_column,
    size_column,
    text_column,
    used_column,
)
from jaxcache.render.doctor import count_findings, finding_lines
from jaxcache.render.document import fields_of
from jaxcache.render.prune import prune_view
from jaxcache.render.verify import verification_view
from jaxcache.render.view import Block, Column, Line, Table, View
from jaxcache.units import format_count, format_size, rfc3339

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
        compile_total_column(lambda cache: cache.summary),
        text_column("PLATFORM", lambda cache: ",".join(cache.platforms)),
        text_column("JAX", lambda cache: ",".join(cache.jax_versions[-_JAX_SHOWN:])),
        used_column(now_ns),
    ]


def verification_of_root_view(
    root: str, verifications: Mapping[str, tuple[Verification, Repair | None]]
) -> View:
    """Return the view of ``verify`` over a root: one for each cache, and sums.

    Args:
        verifications: by the cache's directory relative to the root.
    """
    views = {name: verification_view(*one) for name, one in verifications.items()}
    results = [verification for verification, _ in verifications.values()]
    rows = [
        {"cache": name, **row} for name, view in views.items() for row in view.document["problems"]
    ]
    checked = sum(r.checked for r in results)
    ok = sum(r.ok for r in results)
    names = ("level", "checked", "ok", "proven", "not_provable")
    caches = [
        {"name": name, **{n: view.document[n] for n in names}} for name, view in views.items()
    ]
    document = {"cache_dir": root, "caches": caches, "checked": checked, "ok": ok, "problems": rows}
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
            f"{format_count(len(results), 'cache')}: "
            f"{ok:,} of {format_count(checked, 'entry')} without problem"
        ],
    )


def _verification_page(views: Mapping[str, View]) -> Iterator[Block]:
    for name, view in views.items():
        yield Line(name, style="bold")
        yield from view.page or ()
        yield from (Line(str(note), "  ") for note in view.notes)
        yield ""


def prune_of_root_view(
    plan: PrunePlan, done: Execution | None, gone: Sequence[str], *, now_ns: int, listed: bool
) -> View:
    """Return the view of ``prune`` over a root: that of one cache, with the cache of each file.

    Args:
        gone: the caches whose directories were removed.
    """
    view = prune_view(plan, done, now_ns=now_ns, listed=listed)
    columns = [text_column("CACHE", lambda r: os.path.dirname(r.file.name)), *view.columns]
    notes = [*view.notes]
    if gone:
        notes.append(f"removed the directories of emptied caches: {', '.join(gone)}")
    return view._replace(
        document=view.document | {"removed_caches": gone},
        columns=columns,
        page=[b._replace(columns=columns) if isinstance(b, Table) else b for b in view.page or ()],
        notes=notes,
    )


def diagnosis_of_root_view(
    root: str,
    own: Sequence[Finding],
    diagnoses: Mapping[str, Diagnosis],
    settings: Sequence[Setting],
    interpreter: Interpreter | None,
    no_jax: str | None,
) -> View:
    """Return the view of ``doctor`` over a root.

    Args:
        own: the findings about the root itself.
        diagnoses: by the cache's directory relative to the root.
    """
    named = [("", f) for f in own]
    named += [(name, f) for name, one in diagnoses.items() for f in one.findings]
    findings = [{"cache": name or None, **fields_of(finding)} for name, finding in named]
    caches = [
        {
            "name": name,
            "entries": len(one.facts.cache.entries),
            "decoded": len(one.facts.cache.contents),
            "problems": sum(f.severity == "problem" for f in one.findings),
            "mended": one.mended,
        }
        for name, one in diagnoses.items()
    ]
    document = {
        "cache_dir": root,
        "interpreter": interpreter,
        "no_jax": no_jax,
        "settings": settings,
        "caches": caches,
        "findings": findings,
    }
    return View(
        document,
        [(f.severity, name, f.trap, f.seen, f.cost, f.fix) for name, f in named],
        records=findings,
        page=_diagnosis_page(root, own, diagnoses, no_jax),
        notes=[f"{no_jax}; checks that need jax were skipped"] if no_jax else (),
    )


def _diagnosis_page(
    root: str, own: Sequence[Finding], diagnoses: Mapping[str, Diagnosis], no_jax: str | None
) -> Iterator[Block]:
    everything = [*own, *(finding for one in diagnoses.values() for finding in one.findings)]
    yield count_findings(everything, no_jax)
    yield Line(f"{root}: {format_count(len(diagnoses), 'cache')}", "  root    ")
    for finding in own:
        yield ""
        yield from finding_lines(finding, name_files=False)
    for name, one in diagnoses.items():
        yield ""
        entries = format_count(len(one.facts.cache.entries), "entry")
        yield Line(f"{name}: {entries}; {count_findings(one.findings)}", style="bold")
        for finding in one.findings:
            yield from finding_lines(finding, name_files=True)
        yield from (f"mended: {sentence}" for sentence in one.mended)
