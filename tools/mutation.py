"""Mutation testing by sample: how many small changes of the code do the tests notice?

``python tools/mutation.py [--sample N] [--seed N] [--jobs N] [--group NAME] [--again]`` draws places
of the groups of modules below at random, makes one change of cosmic-ray's at each in a copy of the repository,
and runs those tests of that group that run the changed line, the quickest first, until one fails
(all of them where it runs at import). Prints the share that was noticed with its 95 % interval;
every result goes to ``build/mutation/results.jsonl``, and the changes that nothing noticed, as
diffs, to ``build/mutation/survivors.diff``. ``--again`` tries those once more, in files that have
not changed since. A run that was interrupted goes on where it stopped.

A place is drawn first and the change second, so that a ``+`` with eleven possible replacements
counts no more than a ``not``. Left out: annotations, the arguments of decorators, what only a
type checker runs, and ``strict`` of ``zip``, which asserts what holds.
"""

import argparse
import contextlib
import difflib
import hashlib
import itertools
import json
import math
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from covering import Covering, durations, recording

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "mutation"
_BUNDLES = "cache/test_bundle cache/test_bundle_hostile cache/test_bundle_import cli/test_export cli/test_import cli/test_copy"
_SIGNING = "cache/test_signatures cache/test_trusted_keys cli/test_trust cli/test_push_pull"
#: Group: modules, and the tests that ought to notice a change of them, the quick ones first.
MODULE_GROUPS: dict[str, list[tuple[str, str]]] = {
    "entry": [
        (
            "jaxcache/entry/{names,codec,frame,read}.py",
            "entry/test_names entry/test_codec entry/test_frame entry/test_decode cli/test_ls",
        ),
        (
            "jaxcache/entry/{wire,outline,kernels,riegeli,highwayhash,envelope,schema}.py",
            "entry/test_wire entry/test_riegeli entry/test_outline entry/test_options "
            "entry/test_decode entry/test_hostile cli/test_show cli/test_explain",
        ),
        (
            "jaxcache/entry/{summary,contents,decode,device,hlo,options,shapes}.py",
            "entry/test_wire entry/test_options entry/test_decode cli/test_show cli/test_ls",
        ),
    ],
    "prune": [
        (
            "jaxcache/core/eviction.py",
            "cache/test_policy cache/test_eviction_traces cli/test_prune",
        ),
        (
            "jaxcache/cache/prune/{plan,removable,removal,execute,plan_cache}.py",
            "cache/test_prune_plan cache/test_prune_execution cli/test_prune",
        ),
    ],
    "seal": [
        ("jaxcache/cache/seal.py", "cache/test_seal_meanwhile cli/test_seal cache/test_seal_kill")
    ],
    "verify": [
        (
            "jaxcache/cache/verify/{check,run_checks,repair,quarantine}.py",
            "cache/test_verify_checks cache/test_interrupted cache/test_verify_spread cli/test_verify",
        )
    ],
    "ledger": [
        (
            "jaxcache/cache/ledger/{record,segments,pins,uses}.py",
            "cache/test_ledger cache/test_ci_seconds cli/test_pin cli/test_stats cli/test_verify",
        )
    ],
    "trust": [
        ("jaxcache/cache/trust.py", _SIGNING),
        ("jaxcache/cache/move/signatures.py", _SIGNING),
    ],
    "ci": [
        (
            "jaxcache/cache/ci/{baseline,key,publish,restore,save}.py",
            "cache/test_ci_key cache/test_ci_seconds cli/test_ci cli/test_ci_job cli/test_ci_bucket",
        )
    ],
    "sync": [
        (
            "jaxcache/cache/move/{sync,ledgers,size_limit,execute,plan,stores,check,conflicts}.py",
            "cli/test_push_pull cli/test_push_at_work cli/test_remote cli/test_move",
        )
    ],
    "store": [
        (
            "jaxcache/store/{local,atomic,base,concurrency,lockfile}.py",
            "store/test_local cache/test_interrupted cache/test_vanishing cli/test_shared_directory",
        )
    ],
    "bundle": [
        (
            "jaxcache/cache/{admission,archive}.py",
            f"cache/test_containers cli/test_import_policy {_BUNDLES}",
        ),
        (
            "jaxcache/cache/bundle/{manifest,format}.py",
            f"cache/test_manifest cache/test_containers {_BUNDLES}",
        ),
        ("jaxcache/cache/bundle/{check,compat}.py", f"cache/test_compat {_BUNDLES}"),
        (
            "jaxcache/cache/move/{import_bundle,bundle_file,export_plan,bundle_target,bundle_source}.py",
            f"cache/test_compat {_BUNDLES}",
        ),
    ],
}
#: Which of the tests a group names are run: no sweeps, and nothing that needs a jax.
_MARKS = "not slow and not jax"
_MEMORY_BYTES = 8 << 30
#: A change that makes the tests take this many times as long has made them fail.
_PATIENCE = 4
#: Exit code of pytest.
_NO_SUCH_TEST = 4
#: Of the operators that put one binary operator or comparison for another, those that a person
#: might mistake (the others fail for the type alone), and all other operators.
_LIKELY = re.compile(
    "ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Add|Mul_FloorDiv|Div_Mul|FloorDiv_Mul|Mod_FloorDiv"
    "|LShift_RShift|RShift_LShift|BitOr_BitAnd|BitAnd_BitOr|BitXor_BitOr|Pow_Mul)"
    "|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE"
    "|GtE_Gt|GtE_Lt|Is_IsNot|IsNot_Is)"
    "|(?!Replace(Binary|Comparison)Operator_).*"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change at one place."""

    group: str
    tests: str
    """As :data:`MODULE_GROUPS` names them."""
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
        cls = cosmic_ray.plugins.get_operator(name)
        if _LIKELY.fullmatch(name.removeprefix("core/")) and not cls.arguments():
            yield name, cls()


def is_behaviour(node: object) -> bool:
    """Whether a node is more than an annotation, a decorator's argument, or a checker's import."""
    while (parent := node.parent) is not None:
        annotation = {"tfpdef": -1, "annassign": 1}.get(parent.type)
        if annotation is not None and node is parent.children[annotation]:
            return False
        if parent.type == "decorator" or (parent.type == "funcdef" and node is parent.annotation):
            return False
        if parent.type == "argument" and parent.children[0].get_code().strip() == "strict":
            return False
        bases = parent.get_super_arglist() if parent.type == "classdef" else None
        if bases is not None and bases.get_code() == "Protocol":
            return False
        if parent.type == "if_stmt" and parent.children[1].get_code().strip() == "TYPE_CHECKING":
            return False
        node = parent
    return True


def places(group: str, tests: str, file: Path) -> dict[tuple[int, int], list[Mutant]]:
    """Every mutant of a file under the position of what it changes."""
    tree = get_ast(file.read_text())
    found: defaultdict[tuple[int, int], list[Mutant]] = defaultdict(list)
    name = str(file.relative_to(ROOT))
    for operator_name, operator in operators():
        occurrence = 0
        for node in ast_nodes(tree):
            for start, _ in operator.mutation_positions(node):
                if is_behaviour(node):
                    mutant = Mutant(group, tests, name, start[0], operator_name, occurrence)
                    found[start].append(mutant)
                occurrence += 1
    return found


def modules(pattern: str) -> list[Path]:
    """The files of ``DIRECTORY/{NAME,NAME}.py``, or of a plain path."""
    directory, _, names = pattern.removesuffix(".py").rpartition("/")
    return [ROOT / directory / f"{name}.py" for name in names.strip("{}").split(",")]


def draw(groups: list[str], sample: int, seed: int) -> tuple[list[Mutant], int]:
    """A sample of mutants in random order, and how many places there are to draw from."""
    chance = random.Random(seed)
    everything = [
        mutants
        for group in groups
        for pattern, tests in MODULE_GROUPS[group]
        for file in modules(pattern)
        for _, mutants in sorted(places(group, tests, file).items())
    ]
    chosen = chance.sample(everything, min(sample, len(everything)))
    return [chance.choice(mutants) for mutants in chosen], len(everything)


def make_copy(directory: Path) -> None:
    """The repository as it is checked out, test data as a link."""
    shutil.rmtree(directory, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "data", ".hypothesis")
    for name in ("jaxcache", "tests", "benchmarks", "tools", "examples", "completions", "man"):
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, directory)
    (directory / "tests" / "data").symlink_to(ROOT / "tests" / "data")


def run_tests(
    copy: Path, tests: Iterable[str], timeout_seconds: float | None, *options: str, **more: str
) -> tuple[int | None, str]:
    """The exit code of tests in a copy, None where they took too long, and what they printed.

    Args:
        more: variables of their environment.
    """
    env = {**os.environ, "PYTHONPATH": str(copy), **more}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _MARKS, "--hypothesis-seed=0"]
    command = [sys.executable, *pytest, *options, *tests]
    child = subprocess.Popen(
        command,
        cwd=copy,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_bound_memory,
    )
    try:
        printed = child.communicate(timeout=timeout_seconds)[0]
        return child.returncode, printed
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.communicate()


def record(copy: Path, files: Iterable[str]) -> Covering:
    """Run tests twice: for their durations, which must pass, and for what they run."""
    code, printed = run_tests(copy, files, None, "-x", "--durations=0", "--durations-min=0", "-vv")
    if code:
        sys.exit(f"they fail without any change:\n{printed[-2000:]}")
    data = BUILD / "covered"
    for old in BUILD.glob("covered.*"):
        old.unlink()
    seconds = durations(printed)
    code, printed = run_tests(copy, seconds, None, **recording(copy, data))
    if code not in (0, 1):  # a test may fail for being watched, but each must be found by its id
        sys.exit(f"they cannot be run one by one:\n{printed[-2000:]}")
    return Covering.read(copy, data, seconds)


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def try_mutant(mutant: Mutant, copy: Path, covering: Covering) -> Result | None:
    """Make the change, run the tests, take it back; None where it changes nothing."""
    original = (copy / mutant.file).read_text()
    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    changed = mutate_code(original, operator, mutant.occurrence)
    if changed is None or changed == original or not _compiles(changed):
        return None
    started = time.perf_counter()
    tests = covering.tests(mutant.file, original, mutant.line, test_files(mutant.tests))
    timeout_seconds = _PATIENCE * sum(covering.seconds[t] for t in tests) + 60
    code: int | None = 0
    try:
        _put(copy / mutant.file, changed)
        if tests:
            code, _ = run_tests(copy, tests, timeout_seconds, "-x")
        if code == _NO_SUCH_TEST:  # an id may hold what the changed code made
            code, _ = run_tests(copy, test_files(mutant.tests), _PATIENCE * timeout_seconds, "-x")
    finally:
        _put(copy / mutant.file, original)
    outcome = {None: "timeout", 0: "survived"}.get(code, "killed")
    lines = difflib.unified_diff(
        original.splitlines(), changed.splitlines(), mutant.file, mutant.file, lineterm="", n=1
    )
    seconds = time.perf_counter() - started
    return Result(mutant, outcome, seconds, "\n".join(lines), digest(original))


def _compiles(source: str) -> bool:
    """Whether it is Python: the star among parameters is no product."""
    with contextlib.suppress(SyntaxError):
        return bool(compile(source, "changed", "exec"))
    return False


def test_files(tests: str) -> list[str]:
    """The paths of tests as :data:`MODULE_GROUPS` names them."""
    return [f"tests/{name}.py" for name in tests.split()]


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
    covering = record(BUILD / "copy-0", sorted({f for m in mutants for f in test_files(m.tests)}))

    def one(mutant: Mutant) -> Result | None:
        copy = copies.get()
        try:
            return try_mutant(mutant, copy, covering)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as pool:
        yield from (r for r in pool.map(one, mutants) if r is not None)


def read_results(log: Path) -> list[Result]:
    """The results in a log that still hold: of files that are as they were."""
    lines = log.read_text().splitlines() if log.exists() else ()
    rows = map(json.loads, lines)
    found = [Result(**{**row, "mutant": Mutant(**row["mutant"])}) for row in rows]
    return [r for r in found if r.source == digest((ROOT / r.mutant.file).read_text())]


def report(results: list[Result]) -> None:
    """Print the shares, by group and in all, and keep the survivors."""
    groups: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.mutant.group].append(result)
    print("| group | changes | noticed | share | 95 % interval |\n|---|---|---|---|---|")
    for name, some in [*sorted(groups.items()), ("all", results)]:
        hits = sum(r.outcome != "survived" for r in some)
        low, high = interval(hits, len(some))
        share = f"{hits / len(some):.1%} | {low:.1%} to {high:.1%}"
        print(f"| {name} | {len(some)} | {hits} | {share} |")
    survivors = [r for r in results if r.outcome == "survived"]
    text = "\n\n".join(f"# {r.mutant.group}: {r.mutant.operator}\n{r.diff}" for r in survivors)
    (BUILD / "survivors.diff").write_text(text + "\n")
    print(f"\n{len(survivors)} survivors in {BUILD.relative_to(ROOT) / 'survivors.diff'}")


def main() -> None:
    """Draw, try, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--group", choices=MODULE_GROUPS, action="append")
    parser.add_argument("--again", action="store_true", help="only what survived before")
    args = parser.parse_args()
    log, partial = BUILD / "results.jsonl", BUILD / "results.partial"
    if args.again:
        before = [r for r in read_results(log) if r.outcome != "survived"]
        mutants = [r.mutant for r in read_results(log) if r.outcome == "survived"]
    else:
        mutants, count = draw(args.group or list(MODULE_GROUPS), args.sample, args.seed)
        print(f"{len(mutants)} of {count} places, seed {args.seed}", file=sys.stderr)
        before = [r for r in read_results(partial) if r.mutant in mutants]
        mutants = [m for m in mutants if m not in {r.mutant for r in before}]
    BUILD.mkdir(parents=True, exist_ok=True)
    results = list(before)
    with partial.open("w") as out:
        out.writelines(json.dumps(asdict(r)) + "\n" for r in before)
        for result in run(mutants, args.jobs):
            results.append(result)
            out.write(json.dumps(asdict(result)) + "\n")
            out.flush()
            mutant, took = result.mutant, f"{result.outcome} in {result.seconds:.0f} s"
            place = f"{mutant.file}:{mutant.line} {mutant.operator}"
            print(f"{len(results)}: {took}: {place}", file=sys.stderr, flush=True)
    partial.replace(log)
    report(results)


if __name__ == "__main__":
    main()
