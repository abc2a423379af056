"""Mutation testing by sample: how many small changes of the code do the tests notice?

``python tools/mutation.py [--sample N] [--seed N] [--jobs N] [--room NAME] [--again]`` draws places
of the rooms below at random, makes one change of cosmic-ray's at each in a copy of the repository,
and runs the tests of that room until the first failure. Prints the share that was noticed with
its 95 % interval; every result goes to ``build/mutation/results.jsonl``, and the changes that
nothing noticed, as diffs, to ``build/mutation/survivors.diff``. ``--again`` tries those once more.

A place is drawn first and the change second, so that a ``+`` with eleven possible replacements
counts no more than a ``not``. Left out: annotations, the arguments of decorators, and what only a
type checker runs.
"""

import argparse
import difflib
import hashlib
import itertools
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "mutation"
#: Room: what is changed, and the tests that ought to notice, the quick ones first.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "entry": (
        ["jaxcache/entry/*.py"],
        ["tests/entry/test_names.py", "tests/entry/test_codec.py", "tests/entry/test_decode.py",
         "tests/entry/test_frame.py", "tests/cli/test_show.py", "tests/cli/test_ls.py",
         "tests/entry/test_hostile.py"],
    ),
    "prune": (
        [f"jaxcache/cache/{m}.py"
         for m in ("prune", "policy", "removable", "removal", "evict", "survey")],
        ["tests/cache/test_prune_plan.py", "tests/cache/test_eviction_traces.py",
         "tests/cli/test_prune.py"],
    ),
    "seal": (["jaxcache/cache/seal.py"], ["tests/cli/test_seal.py", "tests/cache/test_seal_kill.py"]),
    "bundle": (
        ["jaxcache/cache/bundle/*.py"],
        ["tests/cache/test_manifest.py", "tests/cache/test_compat.py", "tests/cache/test_bundle.py",
         "tests/cli/test_bundles.py"],
    ),
}  # fmt: skip
#: Which of the tests a room names are run: no sweeps, and nothing that needs a jax.
_MARKS = "not slow and not jax"
_MEMORY_BYTES = 8 << 30
#: A change that makes the tests take this many times as long has made them fail.
_PATIENCE = 4
#: Of the operators that put one binary operator or comparison for another, those that a person
#: might mistake; the others fail for the type alone.
_LIKELY_BINARY = {
    "Add_Sub", "Sub_Add", "Mul_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv",
    "LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitOr", "Pow_Mul",
}  # fmt: skip
_LIKELY_COMPARISONS = {
    "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt",
    "GtE_Lt", "Is_IsNot", "IsNot_Is",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change at one place."""

    room: str
    file: str
    line: int
    operator: str
    occurrence: int
    """Which of the operator's places in the file it is."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests made of a mutant."""

    mutant: Mutant
    outcome: str
    """``killed``, ``timeout`` (noticed, too) or ``survived``."""
    seconds: float
    diff: str
    source: str
    """Digest of the file that was changed."""


def operators() -> Iterator[tuple[str, object]]:
    """The operators that are drawn from, by name."""
    for name in cosmic_ray.plugins.operator_names():
        kind, _, pair = name.removeprefix("core/").partition("_")
        if kind == "ReplaceBinaryOperator" and pair not in _LIKELY_BINARY:
            continue
        if kind == "ReplaceComparisonOperator" and pair not in _LIKELY_COMPARISONS:
            continue
        cls = cosmic_ray.plugins.get_operator(name)
        if not cls.arguments():
            yield name, cls()


def is_behaviour(node: object) -> bool:
    """Whether a node is more than an annotation, a decorator's argument, or a checker's import."""
    while (parent := node.parent) is not None:
        if parent.type == "tfpdef" and node is parent.children[-1]:
            return False
        if parent.type == "annassign" and node is parent.children[1]:
            return False
        if parent.type == "funcdef" and node is parent.annotation:
            return False
        if parent.type == "decorator":
            return False
        if parent.type == "if_stmt" and parent.children[1].get_code().strip() == "TYPE_CHECKING":
            return False
        node = parent
    return True


def places(room: str, file: Path) -> dict[tuple[int, int], list[Mutant]]:
    """Every mutant of a file under the position of what it changes."""
    tree = get_ast(file.read_text())
    found: defaultdict[tuple[int, int], list[Mutant]] = defaultdict(list)
    name = str(file.relative_to(ROOT))
    for operator_name, operator in operators():
        occurrence = 0
        for node in ast_nodes(tree):
            for start, _ in operator.mutation_positions(node):
                if is_behaviour(node):
                    found[start].append(Mutant(room, name, start[0], operator_name, occurrence))
                occurrence += 1
    return found


def draw(rooms: list[str], sample: int, seed: int) -> tuple[list[Mutant], int]:
    """A sample of mutants in random order, and how many places there are to draw from."""
    chance = random.Random(seed)
    everything = [
        mutants
        for room in rooms
        for pattern in ROOMS[room][0]
        for file in sorted(ROOT.glob(pattern))
        for _, mutants in sorted(places(room, file).items())
    ]
    chosen = chance.sample(everything, min(sample, len(everything)))
    return [chance.choice(mutants) for mutants in chosen], len(everything)


def make_copy(folder: Path) -> None:
    """The repository as it is checked out, test data as a link."""
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "data", ".hypothesis")
    for name in ("jaxcache", "tests", "benchmarks", "tools", "examples", "completions", "man"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "tests" / "data").symlink_to(ROOT / "tests" / "data")


def run_tests(copy: Path, room: str, timeout_seconds: float | None) -> int | None:
    """The exit code of the room's tests in a copy; None where they took too long."""
    env = {**os.environ, "PYTHONPATH": str(copy)}
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", _MARKS,
        "--hypothesis-seed=0", *ROOMS[room][1],
    ]  # fmt: skip
    child = subprocess.Popen(
        command, cwd=copy, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=_bound_memory,
    )  # fmt: skip
    try:
        return child.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.wait()


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def try_mutant(mutant: Mutant, copy: Path, timeout_seconds: float) -> Result | None:
    """Make the change, run the tests, take it back; None where it changes nothing."""
    original = (copy / mutant.file).read_text()
    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    changed = mutate_code(original, operator, mutant.occurrence)
    if changed is None or changed == original:
        return None
    started = time.perf_counter()
    try:
        _put(copy / mutant.file, changed)
        code = run_tests(copy, mutant.room, timeout_seconds)
    finally:
        _put(copy / mutant.file, original)
    outcome = {None: "timeout", 0: "survived"}.get(code, "killed")
    lines = difflib.unified_diff(
        original.splitlines(), changed.splitlines(), mutant.file, mutant.file, lineterm="", n=1
    )
    seconds = time.perf_counter() - started
    return Result(mutant, outcome, seconds, "\n".join(lines), digest(original))


def _put(path: Path, source: str) -> None:
    """Write a module under a time that no bytecode was compiled of."""
    path.write_text(source)
    moment = next(_moments)
    os.utime(path, (moment, moment))


_moments = itertools.count(1_000_000_000)


def digest(source: str) -> str:
    """Names one version of a file."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def interval(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, hits / trials
    middle = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return (middle - half) / scale, (middle + half) / scale


def run(mutants: list[Mutant], jobs: int) -> Iterator[Result]:
    """Try mutants on several copies at once; yield the results as they come."""
    BUILD.mkdir(parents=True, exist_ok=True)
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(jobs):
        copy = BUILD / f"copy-{number}"
        make_copy(copy)
        copies.put(copy)
    limits: dict[str, float] = {}
    for room in sorted({m.room for m in mutants}):
        copy = copies.get()
        started = time.perf_counter()
        if run_tests(copy, room, None):
            sys.exit(f"the tests of {room} fail without any change: {' '.join(ROOMS[room][1])}")
        limits[room] = _PATIENCE * (time.perf_counter() - started) + 30
        copies.put(copy)

    def one(mutant: Mutant) -> Result | None:
        copy = copies.get()
        try:
            return try_mutant(mutant, copy, limits[mutant.room])
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as pool:
        yield from (r for r in pool.map(one, mutants) if r is not None)


def report(results: list[Result]) -> None:
    """Print the shares, by room and in all, and keep the survivors."""
    rooms: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        rooms[result.mutant.room].append(result)
    print("| room | changes | noticed | share | 95 % interval |\n|---|---|---|---|---|")
    for name, some in [*sorted(rooms.items()), ("all", results)]:
        hits = sum(r.outcome != "survived" for r in some)
        low, high = interval(hits, len(some))
        print(
            f"| {name} | {len(some)} | {hits} | {hits / len(some):.1%} | {low:.1%} to {high:.1%} |"
        )
    survivors = [r for r in results if r.outcome == "survived"]
    text = "\n\n".join(f"# {r.mutant.room}: {r.mutant.operator}\n{r.diff}" for r in survivors)
    (BUILD / "survivors.diff").write_text(text + "\n")
    print(f"\n{len(survivors)} survivors in {BUILD.relative_to(ROOT) / 'survivors.diff'}")


def main() -> None:
    """Draw, try, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--room", choices=ROOMS, action="append")
    parser.add_argument("--again", action="store_true", help="only what survived before")
    args = parser.parse_args()
    log = BUILD / "results.jsonl"
    before: list[Result] = []
    if args.again:
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        everything = [Result(**{**r, "mutant": Mutant(**r["mutant"])}) for r in rows]
        before = [r for r in everything if r.outcome != "survived"]
        mutants = [r.mutant for r in everything if r.outcome == "survived"]
        moved = {r.mutant.file for r in everything if r.outcome == "survived"
                 and r.source != digest((ROOT / r.mutant.file).read_text())}  # fmt: skip
        if moved:
            sys.exit(f"changed since, so that places have moved: {', '.join(sorted(moved))}")
    else:
        mutants, count = draw(args.room or list(ROOMS), args.sample, args.seed)
        print(f"{len(mutants)} of {count} places, seed {args.seed}", file=sys.stderr)
    log.parent.mkdir(parents=True, exist_ok=True)
    partial = log.with_suffix(".partial")
    results = list(before)
    with partial.open("w") as out:
        for result in before:
            out.write(json.dumps(asdict(result)) + "\n")
        for result in run(mutants, args.jobs):
            results.append(result)
            out.write(json.dumps(asdict(result)) + "\n")
            out.flush()
            mutant = result.mutant
            print(
                f"{len(results)}: {result.outcome} in {result.seconds:.0f} s: "
                f"{mutant.file}:{mutant.line} {mutant.operator}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    partial.replace(log)
    report(results)


if __name__ == "__main__":
    main()
