"""Every benchmark, into one table of ratios against named peers.

``python -m benchmarks.run [--only NAME …] [--pairs N] [--quick] [--python JAX_PYTHON]`` prints the
rows as they are measured, and writes the tables of docs/evidence to ``build/bench/table.md`` and
``table.json`` (``--out``). Wants an idle machine, some twenty minutes, and the peers on PATH; which
of them were absent stands under the table, and how long each benchmark took.
"""

import dataclasses
import datetime
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jaxcache
from benchmarks.measure import Absent, Ratio, Row, Setting, lay_out, parser, print_rows

#: What can be measured, in the order of the table.
NAMES = (
    "start",
    "listing",
    "integrity",
    "prune",
    "bundle",
    "remote",
    "save",
    "warm",
    "recipe",
    "eviction",
    "live",
    "mount",
    "preload",
    "ladder",
    "torch_listener",
)


def describe_machine() -> str:
    """Cores, processor, memory and system; no names."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{cores} cores ({platform.machine()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}"
    )


def measure_all(names: list[str], setting: Setting, took: dict[str, float]) -> Iterator[Row]:
    """The rows of the named benchmarks; one that fails is absent, and the others go on.

    Args:
        took: is told how many seconds each benchmark took.
    """
    for name in names:
        started = time.perf_counter()
        try:
            yield from importlib.import_module(f"benchmarks.{name}").measure(setting)
        except Exception as error:
            print(f"{name}: {error!r}", file=sys.stderr)
            yield Absent(name, f"failed: {type(error).__name__}: {error}")
        took[name] = time.perf_counter() - started


def introduce(head: dict[str, str | float]) -> str:
    """The lines above the table: where it was measured, and how often."""
    return (
        f"{head['date']}, jaxcache {head['jaxcache']}, {head['machine']}, load before: "
        f"{head['load']:.1f}.\n"
        f"Medians of {head['pairs']} interleaved pairs; four times as many of starts, one less of "
        "what takes ten seconds and more.\n"
    )


def conclude(took: dict[str, float]) -> str:
    """The line below the table."""
    each = ", ".join(f"`{name}` {seconds:.0f} s" for name, seconds in took.items())
    return f"\nTook {sum(took.values()) / 60:.0f} minutes: {each}."


def write_table(
    out: Path, rows: list[Row], head: dict[str, str | float], took: dict[str, float]
) -> None:
    """Write the tables for people and for programs."""
    out.mkdir(parents=True, exist_ok=True)
    ratios = [row for row in rows if isinstance(row, Ratio)]
    absent = [row for row in rows if isinstance(row, Absent)]
    lines = [introduce(head), *lay_out(ratios)]
    if absent:
        lines += ["", "Not measured:", *(f"- {a.claim}: {a.why}" for a in absent)]
    (out / "table.md").write_text("\n".join([*lines, conclude(took)]) + "\n")
    document = {
        **head,
        "took_seconds": took,
        "ratios": [dataclasses.asdict(r) for r in ratios],
        "absent": [dataclasses.asdict(a) for a in absent],
    }
    (out / "table.json").write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    """Measure what was asked for, print and write it."""
    options = parser(__doc__ or "")
    options.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    options.add_argument("--out", type=Path, default=Path("build", "bench"))
    args = options.parse_args()
    head: dict[str, str | float] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jaxcache": jaxcache.__version__,
        "machine": describe_machine(),
        "load": os.getloadavg()[0],
        "pairs": args.pairs,
    }
    with tempfile.TemporaryDirectory(prefix="jaxcache-bench-", dir=args.directory) as directory:
        os.environ["XDG_CACHE_HOME"] = str(Path(directory, "xdg"))
        setting = Setting(Path(directory), args.python, args.pairs, args.quick)
        took: dict[str, float] = {}
        print(introduce(head))
        rows = print_rows(
            measure_all(args.only, setting, took),
            keep=lambda seen: write_table(args.out, seen, head, took),
        )
        write_table(args.out, rows, head, took)
        print(conclude(took))


if __name__ == "__main__":
    main()
