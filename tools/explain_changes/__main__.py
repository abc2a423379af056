"""Change programs after histories, and judge what ``explain`` answers.

    python -m tools.explain_changes PYTHON --other PYTHON --codec DIR [--sample N] [--only TEXT]…
        [--history TEXT]… [--change TEXT]… [--every] [--seed N] [--jobs N] [--results FILE]

A trial is a program, a history of its cache, and one change or two. Trials are drawn by a seed: the
first N of them are the same for each N. Prints tables in Markdown, and exits 1 where an answer is
wrong or a trial failed.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import combinations, islice, product
from pathlib import Path

from tools.explain_changes.changes import ALL_PROGRAMS, Change, apply, changes_of, source_of
from tools.explain_changes.judge import Judgement, Verdict
from tools.explain_changes.lab import HISTORIES, Lab, Result, Setting, Trial

_WHY_EVERY = 3
"""Of so many trials one runs ``warm``, too."""


def draw(seed: int) -> Iterator[Trial]:
    """Yield trials without end: histories in turn, of each the kinds that came least often.

    Every third is of two changes.
    """
    choose = random.Random(seed)
    changes = {program: changes_of(program) for program in ALL_PROGRAMS}
    pairs = {program: list(_pairs(program, changes[program])) for program in ALL_PROGRAMS}
    kinds: Counter[str] = Counter()
    programs: Counter[str] = Counter()
    drawn: set[str] = set()
    for number in range(10**6):
        history = list(HISTORIES)[number % len(HISTORIES)]
        is_pair = number // len(HISTORIES) % 3 == 2

        def cost(item: tuple[str, tuple[Change, ...]]) -> tuple[float, float, float]:
            program, chosen = item
            uses = sum(kinds[c.kind] for c in chosen) / len(chosen)
            return uses, programs[program], choose.random()

        every = [
            (program, chosen)
            for program in ALL_PROGRAMS
            for chosen in (pairs[program] if is_pair else [(c,) for c in changes[program]])
        ]
        items = choose.sample(every, 200)
        fresh = [i for i in items if str(Trial(i[0], history, i[1])) not in drawn]
        if not fresh:
            continue
        program, chosen = min(fresh, key=cost)
        kinds.update(change.kind for change in chosen)
        programs[program] += 1
        trial = Trial(program, history, chosen)
        drawn.add(str(trial))
        yield trial


def _pairs(program: str, changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    """Yield pairs of changes that can be made at once."""
    source = source_of(program)
    for pair in combinations(changes, 2):
        kinds = {pair[0].kind, pair[1].kind}
        if "nothing" in kinds or kinds == {"custom_vjp", "helper renamed"}:  # one names the other
            continue
        names = [set(change.env) - {"XLA_FLAGS"} for change in pair]
        if names[0] & names[1]:
            continue
        try:
            both = apply(source, pair)
        except ValueError:
            continue
        if all(both != apply(source, (c,)) or not o.edits for c, o in (pair, pair[::-1])):
            yield pair


def _every() -> Iterator[Trial]:
    """Yield every change alone after every history."""
    for history, program in product(HISTORIES, ALL_PROGRAMS):
        for change in changes_of(program):
            yield Trial(program, history, (change,))


def choose_trials(args: argparse.Namespace) -> list[Trial]:
    """Return the trials that the options choose."""

    def is_chosen(trial: Trial) -> bool:
        return (
            (not args.only or any(text in str(trial) for text in args.only))
            and (not args.history or any(text in trial.history for text in args.history))
            and (
                not args.change
                or any(text in c.kind for text in args.change for c in trial.changes)
            )
        )

    if args.every:
        return [trial for trial in _every() if is_chosen(trial)][: args.sample]
    drawn = islice(draw(args.seed), args.sample)
    return [trial for trial in drawn if is_chosen(trial)]


def run_program(
    program: str,
    trials: Sequence[tuple[int, Trial]],
    setting: Setting,
    root: Path,
    saved: Path | None,
) -> tuple[list[Result], list[str]]:
    """Run the trials of one program; return their results, and what failed."""
    lab = Lab(program, setting, root)
    results, failures = [], []
    for number, trial in trials:
        started = time.monotonic()
        try:
            result = lab.run(trial, asks_why=number % _WHY_EVERY == 0)
        except Exception as error:  # the others go on
            failures.append(f"{trial}: {error!r}")
            print(failures[-1], file=sys.stderr, flush=True)
            continue
        results.append(result)
        if saved:
            with saved.open("a") as file:
                file.write(f"{_saved(result)}\n")
        seconds = time.monotonic() - started
        for name, judged in (("", result.explain), (" WHY", result.why)):
            if judged:
                problem = f" ({judged.problem})" if judged.problem else ""
                text = f"{trial}:{name} {judged.verdict}{problem}: {judged.said}"
                print(f"{text} [{seconds:.0f} s]", file=sys.stderr, flush=True)
    return results, failures


def _saved(result: Result) -> str:
    """Return a result as one line of JSON."""
    why = asdict(result.why) if result.why else None
    row = {"trial": str(result.trial), "explain": asdict(result.explain), "why": why}
    return json.dumps(row, ensure_ascii=False)


def _earlier(trials: Sequence[Trial], saved: Path | None) -> Iterator[Result]:
    """Yield the results of trials that a file has."""
    if saved is None or not saved.exists():
        return
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    by_name = {row["trial"]: row for row in rows}
    for trial in trials:
        if row := by_name.get(str(trial)):
            why = _judgement(row["why"]) if row["why"] else None
            yield Result(trial, _judgement(row["explain"]), why)


def _judgement(row: dict[str, str]) -> Judgement:
    return Judgement(Verdict(row["verdict"]), row["problem"], row["said"])


def table(title: str, results: Sequence[Result], rows_of: Callable[[Result], Sequence[str]]) -> str:
    """Return the verdicts by something in Markdown, and their sums."""
    counts: dict[str, Counter[Verdict]] = defaultdict(Counter)
    total: Counter[Verdict] = Counter()
    for result in results:
        total[result.explain.verdict] += 1
        for row in rows_of(result):
            counts[row][result.explain.verdict] += 1
    lines = [f"| {title} | trials | right | silent | wrong |", "|---|---|---|---|---|"]
    for row, verdicts in [*sorted(counts.items()), ("all", total)]:
        cells = [str(verdicts[verdict]) for verdict in Verdict]
        lines.append(f"| {row} | {sum(verdicts.values())} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report(results: Sequence[Result]) -> str:
    """Return all tables, and the kinds of what is wrong."""

    def kinds(result: Result) -> Sequence[str]:
        changes = result.trial.changes
        return [changes[0].kind] if len(changes) == 1 else ["two changes"]

    parts = [
        table("history", results, lambda r: [r.trial.history]),
        table("change", results, kinds),
        table("program", results, lambda r: [r.trial.program]),
    ]
    why = Counter(r.why.verdict for r in results if r.why)
    texts = ", ".join(f"{why[verdict]} {verdict}" for verdict in Verdict)
    parts.append(f"WHY of {sum(why.values())} of these runs: {texts}.")
    problems: dict[str, list[Trial]] = defaultdict(list)
    for result in results:
        for judged in (result.explain, result.why):
            if judged and judged.verdict is Verdict.WRONG:
                problems[judged.problem].append(result.trial)
    ordered = sorted(problems.items(), key=lambda item: -len(item[1]))
    parts.append("\n".join(f"- {len(t)} × {problem}: {t[0]}" for problem, t in ordered))
    return "\n\n".join(parts)


def main() -> None:
    """Run the trials, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("python", help="a Python with JAX and the libraries, without zstandard")
    parser.add_argument("--other", required=True, help="the same with another version of JAX")
    parser.add_argument("--codec", required=True, help="a directory with zstandard for that Python")
    parser.add_argument("--sample", type=int, default=420, help="so many trials (default: 420)")
    parser.add_argument("--every", action="store_true", help="each change alone, not drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="part of PROGRAM: HISTORY: CHANGE")
    parser.add_argument("--history", action="append", help="a history, or a part of its name")
    parser.add_argument("--change", action="append", help="a kind of change, or a part of it")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="an empty directory to work in")
    parser.add_argument("--list", action="store_true", help="print the trials, and run none")
    parser.add_argument(
        "--results", type=Path, help="a file of JSON lines; trials that it has are not run again"
    )
    args = parser.parse_args()
    if args.every and args.sample == parser.get_default("sample"):
        args.sample = 10**6
    trials = choose_trials(args)
    if args.list:
        print("\n".join(map(str, trials)))
        return
    # Not resolved: a venv's Python is a link.
    setting = Setting(*(os.path.abspath(path) for path in (args.python, args.other, args.codec)))
    results = list(_earlier(trials, args.results))
    known = {str(result.trial) for result in results}
    by_program: dict[str, list[tuple[int, Trial]]] = defaultdict(list)
    for number, trial in enumerate(trials):
        if str(trial) not in known:
            by_program[trial.program].append((number, trial))
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        root = (args.keep or Path(scratch)).resolve()
        jobs = [
            pool.submit(run_program, p, t, setting, root, args.results)
            for p, t in by_program.items()
        ]
        done = [job.result() for job in jobs]
    results += [result for found, _ in done for result in found]
    failures = [failure for _, found in done for failure in found]
    print(report(results))
    for failure in failures:
        print(f"- failed: {failure.splitlines()[0]}")
    judged = [j for r in results for j in (r.explain, r.why) if j]
    is_wrong = any(j.verdict is Verdict.WRONG for j in judged)
    sys.exit(1 if is_wrong or failures or not results else 0)


if __name__ == "__main__":
    main()
