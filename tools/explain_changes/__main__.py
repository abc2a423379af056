"""Make each change to each program, and judge what ``explain`` answers.

    python tools/explain_changes PYTHON --other PYTHON [--codec DIR] [--only TEXT]... [--jobs N]

Each program fills a cache once. Each change then runs once, in a copy of that cache, and is
explained twice: against the cache with its ledger (``with``), and against its entries alone, as
plain JAX leaves them (``without``). Prints a table in Markdown, and exits 1 where an answer is
wrong.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from changes import CODE_EDITS, Change, changes_of
from judge import Verdict, judge

PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True)
class Row:
    """The verdicts on one change."""

    change: Change
    with_sketches: tuple[Verdict, str]
    without: tuple[Verdict, str]


@dataclass(frozen=True)
class Setting:
    """What all programs are run with."""

    python: str
    other: str
    codec: str | None
    keep: Path | None


def run_jaxcache(*words: Any, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command with ``--json``, and return its document."""
    command = [sys.executable, "-m", "jaxcache", *map(str, words)]
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("JAX", "XLA"))}
    base = {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, env={**clean, **base, **(env or {})}, capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    if document.get("script_exit_code"):
        raise RuntimeError(f"the program failed:\n{done.stderr[-2000:]}")
    return document


class Lab:
    """One program with a cache that it has filled."""

    def __init__(self, program: str, setting: Setting, root: Path) -> None:
        self._setting = setting
        self._source = PROGRAMS / program
        self._root = root / program
        self._work, self._cache = self._root / "program", self._root / "cache"
        self._base, self._plain = self._root / "base", self._root / "plain"
        shutil.copytree(self._source, self._work, ignore=shutil.ignore_patterns("__pycache__"))
        first = self._warm(setting.python, self._cache, {})
        unwritten = (m for m in first["modules"] if m["outcome"] == "uncacheable")
        self._uncacheable = {m["module"] for m in unwritten}
        shutil.copytree(self._cache, self._base)
        shutil.copytree(self._base, self._plain, ignore=shutil.ignore_patterns(".jaxcache"))
        listed = run_jaxcache("ls", "--json", "-C", self._base)["entries"]
        self._modules = {entry["module"] for entry in listed}

    def _warm(self, python: str, cache: Path, env: dict[str, str]) -> dict[str, Any]:
        script = self._work / "main.py"
        words = ("warm", "--json", "-C", cache, "--python", python, script)
        return run_jaxcache(*words, env=env)

    def make(self, change: Change) -> Row:
        """Make one change, run the program, and judge both answers."""
        for file in self._source.glob("*.py"):
            shutil.copyfile(file, self._work / file.name)
        for edit in change.edits:
            path = self._work / edit.file
            text = path.read_text()
            if text.count(edit.before) != 1:
                raise ValueError(f"{path} holds {edit.before!r} {text.count(edit.before)} times")
            path.write_text(text.replace(edit.before, edit.after))
        cache = self._root / "moved" if change.other_directory else self._cache
        shutil.rmtree(cache, ignore_errors=True)
        shutil.copytree(self._base, cache)
        env = dict(change.env)
        if change.with_codec and self._setting.codec:
            env["PYTHONPATH"] = self._setting.codec
        python = self._setting.other if change.other_jax else self._setting.python
        document = self._warm(python, cache, env)
        saved = self._root / "run.json"
        saved.write_text(json.dumps(document))
        verdicts = []
        for left in (self._base, self._plain):
            answer = run_jaxcache("explain", "--json", left, saved)
            comparisons = answer["comparisons"]
            verdicts.append(
                judge(change, comparisons, self._work, self._modules, self._uncacheable)
            )
        return Row(change, *verdicts)


def measure(program: str, setting: Setting, only: Sequence[str], root: Path) -> list[Row]:
    """Make the changes of one program."""
    rows = []
    lab = None
    for change in changes_of(program):
        if only and not any(text in f"{program}: {change.name}" for text in only):
            continue
        if change.with_codec and setting.codec is None:
            continue
        lab = lab or Lab(program, setting, root)
        started = time.monotonic()
        try:
            row = lab.make(change)
        except RuntimeError as error:
            print(f"{program}: {change.name}: {error}", file=sys.stderr, flush=True)
            continue
        rows.append(row)
        seconds = time.monotonic() - started
        for mode, (verdict, said) in (("with", row.with_sketches), ("without", row.without)):
            text = f"{program}: {change.name} {mode}: {verdict} ({said}) {seconds:.0f} s"
            print(text, file=sys.stderr, flush=True)
    return rows


def is_good(row: Row, verdict: Verdict) -> bool:
    """Return whether a verdict counts as right."""
    is_expected = verdict is Verdict.NO_MISS and row.change.expects_no_miss
    return is_expected or verdict in (Verdict.RIGHT, Verdict.NEVER_CACHED)


def table(rows: Sequence[Row]) -> str:
    """Return the verdicts by program, and their sums."""
    lines = [
        "| program | changes | with: right | silent | wrong | without: right | silent | wrong |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    programs = list(dict.fromkeys(row.change.program for row in rows))
    for program in [*programs, ""]:
        mine = [row for row in rows if program in ("", row.change.program)]
        cells = []
        for mode in ("with_sketches", "without"):
            verdicts: Counter[str] = Counter()
            for row in mine:
                verdict = getattr(row, mode)[0]
                if is_good(row, verdict):
                    verdicts["right"] += 1
                elif verdict is Verdict.WRONG:
                    verdicts["wrong"] += 1
                else:
                    verdicts["silent"] += 1
            cells += [str(verdicts[name]) for name in ("right", "silent", "wrong")]
        lines.append(f"| {program or 'all'} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the suite, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("python", help="a Python with JAX and the libraries, without zstandard")
    parser.add_argument("--other", required=True, help="the same with another version of JAX")
    parser.add_argument("--codec", help="a directory with zstandard for that Python")
    parser.add_argument("--only", action="append", default=[], help="PROGRAM: CHANGE, or a part")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="an empty directory to work in")
    args = parser.parse_args()
    setting = Setting(args.python, args.other, args.codec, args.keep)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        root = args.keep or Path(scratch)
        jobs = [pool.submit(measure, name, setting, args.only, root) for name in CODE_EDITS]
        rows = [row for job in jobs for row in job.result()]
    print(table(rows))
    for row in rows:
        for mode, (verdict, said) in (("with", row.with_sketches), ("without", row.without)):
            if not is_good(row, verdict) and (mode == "with" or verdict is Verdict.WRONG):
                print(f"- {row.change.program}, {row.change.name}, {mode}: {verdict}: {said}")
    wrong = any(Verdict.WRONG in (row.with_sketches[0], row.without[0]) for row in rows)
    sys.exit(1 if wrong or not rows else 0)


if __name__ == "__main__":
    main()
