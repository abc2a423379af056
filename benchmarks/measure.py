"""Paired timings: each round runs every side once, in turn, so that drift hits all of them.

A benchmark is a module with ``measure(setting)``, which yields one :class:`Ratio` per claim, or
:class:`Absent` where the peer is not on this machine. ``python -m benchmarks.NAME`` prints its
table; ``python -m benchmarks.run`` puts all of them into one.
"""

import argparse
import dataclasses
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the peer's figure ours is, over paired rounds."""

    claim: str
    """``ours / peer``, what is measured of both."""
    ours: float
    """Median."""
    peer: float
    """Median."""
    ratio: float
    """Median of the rounds' own ratios ours/peer."""
    spread: tuple[float, float]
    """Smallest and largest of them."""
    pairs: int
    target: str = ""
    """What was promised of the ratio, in words."""
    met: bool | None = None
    """Whether the median keeps it; None where nothing was promised."""
    unit: str = "s"
    more: float | None = None
    """The median of the differences ours - peer, if that is what was promised."""
    cell: tuple[str, str, str] | None = None
    """The title, row and column of its place in a table of its own, else None."""

    def at(self, title: str, row: str, column: str) -> "Ratio":
        """Return the same with a place in the table of that title."""
        return dataclasses.replace(self, cell=(title, row, column))

    def row(self) -> str:
        """One line of the Markdown table."""
        low, high = (_round(limit) for limit in self.spread)
        measured = f"{_figure(self.ours, self.unit)}/{_figure(self.peer, self.unit)} {self.unit}"
        ratio = f"{_round(self.ratio)}× ({low}–{high})"
        goal = f"{self.target}: {self._verdict}" if self._verdict else ""
        return f"| {self.claim} | {measured.rstrip()} | {ratio} | {goal} |"

    def text_in_cell(self) -> str:
        """What its cell says: with a goal whether that is met, else our figure."""
        if self.more is not None:
            return f"{self.more:+.2f} {self.unit} {self._verdict}"
        if self._verdict:
            return f"{_round(self.ratio)}× {self._verdict}"
        return f"{_round(self.ratio)}× {self.ours:.2f} {self.unit}"

    @property
    def _verdict(self) -> str:
        return {None: "", True: "met", False: "**missed**"}[self.met]


def _figure(value: float, unit: str) -> str:
    return f"{value:.3f}" if unit else f"{value:g}"


def _round(ratio: float) -> str:
    return f"{float(f'{ratio:.3g}'):,g}"


HEADER = "| ours / peer | measured | ratio (range) | goal |\n|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Absent:
    """A comparison that could not be made here, and why."""

    claim: str
    why: str


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how thoroughly to measure."""

    directory: Path
    """Empty; everything is made below it."""
    python: str
    """An interpreter that has jax."""
    pairs: int = 3
    quick: bool = False
    """A tenth of the entries: to see that it runs, not to quote."""

    def scratch(self, name: str) -> Path:
        """A new directory."""
        path = self.directory / name
        path.mkdir()
        return path

    def count(self, entries: int) -> int:
        """How many entries to measure with."""
        return entries // 10 if self.quick else entries

    @property
    def long_pairs(self) -> int:
        """Pairs of what takes ten seconds and more: one less."""
        return max(1, self.pairs - 1)

    @property
    def has_jax(self) -> bool:
        """Whether the interpreter has it."""
        probe = [self.python, "-c", "import jax"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0


Side = Callable[[], float]
Row = Ratio | Absent


def jaxcache(*args: str | Path) -> list[str]:
    """Our command line: the script that an installation makes, else the module."""
    script = Path(sys.executable).with_name("jaxcache")
    start = [str(script)] if script.exists() else [sys.executable, "-m", "jaxcache"]
    return [*start, *map(str, args)]


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """What commands run in: bytecode is kept, as an installation has it."""
    env = {**os.environ, **(changes or {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def seconds_of(args: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    """Wall seconds of a command, its output thrown away."""
    started = time.perf_counter()
    subprocess.run(
        args, check=True, env=environment(env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - started


def peak_bytes_of(args: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """The memory of a command's largest process."""
    peak = "import resource, sys; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    run = f"import subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); {peak}"
    measured = [sys.executable, "-c", run, *args]
    done = subprocess.run(
        measured, check=True, env=environment(env), capture_output=True, text=True
    )
    return int(done.stdout.split()[-1]) * (1 if sys.platform == "darwin" else 1024)


def command(args: Sequence[str], env: Mapping[str, str] | None = None) -> Side:
    """A side that runs a command."""
    return lambda: seconds_of(args, env)


def reported(args: Sequence[str]) -> Side:
    """A side that runs a command which prints its own seconds as its last line."""

    def run() -> float:
        done = subprocess.run(args, check=True, capture_output=True, text=True)
        return float(done.stdout.split()[-1])

    return run


def compare(
    claim: str,
    ours: Side,
    peer: Side,
    *,
    pairs: int,
    at_most: float | None = None,
    at_most_more: float | None = None,
    ours_at_most: float | None = None,
    warm_up: bool = True,
) -> Ratio:
    """Time both sides in turn, after one round that does not count; see :func:`relate`."""
    if warm_up:
        ours()
        peer()
    return relate(
        claim,
        [(ours(), peer()) for _ in range(pairs)],
        at_most=at_most,
        at_most_more=at_most_more,
        ours_at_most=ours_at_most,
    )


def relate(
    claim: str,
    measured: Sequence[tuple[float, float]],
    *,
    at_most: float | None = None,
    at_most_more: float | None = None,
    at_least: float | None = None,
    ours_at_most: float | None = None,
    unit: str = "s",
) -> Ratio:
    """What pairs of figures (ours, peer) come to.

    Args:
        at_most, at_least: the promised ratio.
        at_most_more: or the promised difference, in seconds.
        ours_at_most: or what ours may be, whatever the peer takes.
    """
    ratios = sorted(a / b for a, b in measured)
    ours = statistics.median(a for a, _ in measured)
    peer = statistics.median(b for _, b in measured)
    ratio = statistics.median(ratios)
    target, met, more = "", None, None
    if at_most is not None:
        target, met = f"≤{at_most:g}×", ratio <= at_most
    elif at_least is not None:
        target, met = f"≥{at_least:g}×", ratio >= at_least
    elif at_most_more is not None:
        more = statistics.median(a - b for a, b in measured)
        target, met = (
            f"≤{at_most_more:g} {unit} more (is {more:+.2f})",
            more <= at_most_more,
        )
    elif ours_at_most is not None:
        target, met = f"≤{ours_at_most:g} {unit}", ours <= ours_at_most
    spread = (ratios[0], ratios[-1])
    return Ratio(claim, ours, peer, ratio, spread, len(measured), target, met, unit, more)


def lay_out(ratios: Sequence[Ratio]) -> list[str]:
    """Return the lines of all tables: one of the ratios without a place, one for each title."""
    lines = [HEADER, *(each.row() for each in ratios if not each.cell)]
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for each in ratios:
        if each.cell:
            title, row, column = each.cell
            tables.setdefault(title, {}).setdefault(row, {})[column] = each.text_in_cell()
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        lines += ["", f"## {title}", "", f"| | {' | '.join(columns)} |"]
        lines.append("|---" * (len(columns) + 1) + "|")
        for row, cells in rows.items():
            lines.append(f"| {row} | {' | '.join(cells.get(c, '') for c in columns)} |")
    return lines


def print_rows(
    rows: Iterator[Row], keep: Callable[[list[Row]], None] = lambda _: None
) -> list[Row]:
    """Print a table as it comes to be, and what could not be measured under it.

    Args:
        keep: called with what there is after each row, so that an interrupted run leaves it.
    """
    seen: list[Row] = []
    print(HEADER)
    for row in rows:
        seen.append(row)
        if isinstance(row, Ratio):
            print(row.row(), flush=True)
        keep(seen)
    absent = [row for row in seen if isinstance(row, Absent)]
    if absent:
        print("\nNot measured:")
    for row in absent:
        print(f"- {row.claim}: {row.why}")
    return seen


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    options = argparse.ArgumentParser(description=description.partition("\n")[0])
    options.add_argument("--pairs", type=int, default=3, help="rounds of each comparison")
    options.add_argument("--quick", action="store_true", help="small, to see that it runs")
    options.add_argument("--python", default=sys.executable, help="an interpreter that has jax")
    options.add_argument("--directory", type=Path, help="where to make the caches")
    return options


def run_alone(description: str, measure: Callable[[Setting], Iterator[Row]]) -> None:
    """Read the command line, measure, print the table."""
    args = parser(description).parse_args()
    with tempfile.TemporaryDirectory(prefix="jaxcache-bench-", dir=args.directory) as directory:
        os.environ["XDG_CACHE_HOME"] = str(Path(directory, "xdg"))
        print_rows(measure(Setting(Path(directory), args.python, args.pairs, args.quick)))


def check_bytes(directory: str | Path) -> str:
    """Return the shell command of one pass of zstd and SHA-256 over the entries of a cache."""
    place = shlex.quote(str(directory))
    return f"find {place} -name '*-cache' -exec zstd -q -d -c {{}} + | sha256sum"


def missing(name: str) -> bool:
    """Whether a command is not on this machine."""
    return shutil.which(name) is None
