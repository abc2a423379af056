"""``stats`` as a document, TSV, a page for people, and Prometheus text."""

from collections.abc import Iterator

from jaxcache.cache.groups import Group
from jaxcache.cache.listing import Summary
from jaxcache.cache.stats import Stats
from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope, group_document, summary_document
from jaxcache.render.listing import groups_table, summary_line
from jaxcache.render.prose import wrap
from jaxcache.render.table import Column, render_table
from jaxcache.units import format_duration, format_size

#: Modules that the page for people shows; the document holds them all.
_SHOWN_MODULES = 15


def stats_document(stats: Stats) -> Document:
    """Return the document of ``stats --json``."""
    return {
        **envelope(stats.cache_dir),
        "total": summary_document(stats.total),
        "directory_bytes": stats.directory_bytes,
        "sealed": stats.sealed,
        "orphan_atimes": stats.orphan_atimes,
        "files": [
            {"kind": str(f.kind), "files": f.files, "size_bytes": f.size_bytes} for f in stats.files
        ],
        "by_platform": [group_document(g) for g in stats.by_platform],
        "by_codec": [group_document(g) for g in stats.by_codec],
        "by_age": [{"name": name, **summary_document(s)} for name, s in stats.by_age],
        "by_module": [group_document(g) for g in stats.by_module],
        "problems": dict(stats.problems),
    }


def stats_rows(stats: Stats) -> Iterator[tuple[str, str, int, int, float | None]]:
    """Yield (section, name, entries or files, size in bytes, compile seconds)."""

    def row(section: str, name: str, s: Summary) -> tuple[str, str, int, int, float | None]:
        return section, name, s.entries, s.size_bytes, s.compile_seconds

    yield row("total", "entries", stats.total)
    for f in stats.files:
        yield "file", str(f.kind), f.files, f.size_bytes, None
    for section, groups in (
        ("platform", stats.by_platform),
        ("codec", stats.by_codec),
        ("module", stats.by_module),
    ):
        for group in groups:
            yield row(section, printable(group.name), group.summary)
    for name, summary in stats.by_age:
        yield row("age", name, summary)


def stats_records(stats: Stats) -> Iterator[Document]:
    """Yield the lines of ``stats --jsonl``: one object per row of :func:`stats_rows`."""
    for section, name, count, size_bytes, seconds in stats_rows(stats):
        yield {
            "section": section,
            "name": name,
            "count": count,
            "size_bytes": size_bytes,
            "compile_seconds": seconds,
        }


def stats_tsv(stats: Stats) -> Iterator[str]:
    """One line per row of :func:`stats_rows`, tab-separated."""
    for section, name, count, size_bytes, seconds in stats_rows(stats):
        shown = "" if seconds is None else f"{seconds:g}"
        yield f"{section}\t{name}\t{count}\t{size_bytes}\t{shown}"


def stats_page(stats: Stats, *, now_ns: int, width: int, color: bool) -> str:
    """A page for people, ``width`` columns wide at the most."""
    parts = [
        printable(stats.cache_dir),
        "\n".join(
            wrap(
                f"{summary_line(stats.total)}; {stats.sealed:,} sealed; "
                f"the directory holds {format_size(stats.directory_bytes)}",
                width,
            )
        ),
        _files_table(stats, width=width, color=color),
        _ages_table(stats, width=width, color=color),
    ]
    for by, groups in (("platform", stats.by_platform), ("module", stats.by_module)):
        shown: tuple[Group, ...] = groups[:_SHOWN_MODULES]
        if not shown:
            continue
        table = groups_table(shown, by, now_ns=now_ns, width=width, color=color)
        hidden = len(groups) - len(shown)
        parts.append(f"{table}\n({hidden:,} more)" if hidden else table)
    if stats.problems:
        parts.append("problems: " + ", ".join(f"{n} {kind}" for kind, n in stats.problems))
    return "\n\n".join(parts)


def _files_table(stats: Stats, *, width: int, color: bool) -> str:
    columns = [
        Column("FILES", elastic=True),
        Column("COUNT", right=True),
        Column("SIZE", right=True),
    ]
    rows = [[str(f.kind), f"{f.files:,}", format_size(f.size_bytes)] for f in stats.files]
    return render_table(columns, rows, width=width, color=color)


def _ages_table(stats: Stats, *, width: int, color: bool) -> str:
    columns = [
        Column("UNUSED FOR", elastic=True),
        Column("ENTRIES", right=True),
        Column("SIZE", right=True),
        Column("COMPILE", right=True),
    ]
    rows = [
        [
            f"under {name}" if name != "older" else "longer",
            f"{s.entries:,}",
            format_size(s.size_bytes),
            format_duration(s.compile_seconds),
        ]
        for name, s in stats.by_age
        if s.entries
    ]
    return render_table(columns, rows, width=width, color=color)


def stats_prometheus(stats: Stats) -> Iterator[str]:
    """Lines in the text format of Prometheus, for node_exporter's textfile collector."""
    where = printable(stats.cache_dir)
    platforms = [(g.name, g.summary) for g in stats.by_platform]
    for name, meaning, label, samples in (
        ("entries", "Cache entries.", "platform", [(n, s.entries) for n, s in platforms]),
        ("entry_bytes", "Bytes of entries.", "platform", [(n, s.size_bytes) for n, s in platforms]),
        (
            "compile_seconds",
            "Compile seconds stored.",
            "platform",
            [(n, s.compile_seconds) for n, s in platforms],
        ),
        ("files", "Files in the directory.", "kind", [(str(f.kind), f.files) for f in stats.files]),
        (
            "file_bytes",
            "Bytes in the directory.",
            "kind",
            [(str(f.kind), f.size_bytes) for f in stats.files],
        ),
        ("problems", "Problems seen.", "kind", list(stats.problems)),
    ):
        yield f"# HELP jaxcache_{name} {meaning}"
        yield f"# TYPE jaxcache_{name} gauge"
        for value_of_label, value in samples:
            labels = f'cache_dir="{_escape(where)}",{label}="{_escape(value_of_label)}"'
            yield f"jaxcache_{name}{{{labels}}} {value}"


def _escape(text: str) -> str:
    """A label's value; control characters are escaped already (:func:`printable`)."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
