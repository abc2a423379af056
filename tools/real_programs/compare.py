"""Compare what jaxcache reports of real programs with what JAX counts: ``compare.py PYTHON [NAME...]``.

Prints one row for each run, as REPORTED/TRUE wherever both are known, and exits 1 if any differ.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs.py")
NAMES = [
    "numpyro",
    "diffrax",
    "optimistix",
    "brax",
    "jaxopt",
    "blackjax",
    "flax",
    "haiku",
    "equinox",
    "orbax",
    "tinygp",
    "jraph",
    "distrax",
    "evosax",
    "gymnax",
    "penzai",
    "jaxmd",
    "keras",
    "e3nn",
    "mjx",
    "callbacks",
    "distributed",
]
ROW = "{:12} {:9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}  {}"


def run_jaxcache(*arguments: Any, truth: Path) -> tuple[int, dict[str, Any]]:
    """Run one command with ``--json``; its exit code and document."""
    command = [sys.executable, "-m", "jaxcache", arguments[0], "--json", *map(str, arguments[1:])]
    environment = {**os.environ, "TRUTH": str(truth), "JAX_PLATFORMS": "cpu"}
    environment["PYTHONHASHSEED"] = "0"  # numpyro's modules depend on the order of a set
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.returncode, json.loads(done.stdout)


def names_in(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("*-cache")}


class Comparison:
    """The runs of one program, and what was found unequal."""

    def __init__(self, python: str, name: str, directory: Path) -> None:
        self._python, self._name, self._directory = python, name, directory
        self.unequal: list[str] = []

    def run(self, step: str, cache: Path, *options: Any, served: bool) -> None:
        """Run the program in a cache; ``served``: everything cacheable must be a hit."""
        truth = self._directory / step
        truth.mkdir(parents=True)
        before, started = names_in(cache), time.monotonic()
        code, document = run_jaxcache(
            "warm",
            "-C",
            cache,
            "--python",
            self._python,
            *options,
            PROGRAMS,
            self._name,
            truth=truth,
        )
        seconds = time.monotonic() - started
        true: Counter[str] = Counter()
        for path in truth.iterdir():
            true.update(json.loads(path.read_text()))
        summary = document["summary"]
        listed = run_jaxcache("ls", "-C", cache, truth=truth)[1]["summary"]["entries"]
        pairs = {
            "requests": (summary["compile_requests"], true["requests"]),
            "hits": (summary["hits"], true["hits"]),
            "written": (summary["written"], true["misses"]),
            "new files": (summary["written"], len(names_in(cache) - before)),
            "entries": (listed, len(names_in(cache))),
        }
        problems = [name for name, (told, truly) in pairs.items() if told != truly]
        if code or document["script_exit_code"] or not true["requests"]:
            problems.append(f"exit code {code}, of the program {document['script_exit_code']}")
        excused = sum(
            m["occurrences"]
            for m in document["modules"]
            if m["outcome"] == "uncacheable" or m["reason"] == "not-process-0"
        )
        if served and summary["hits"] + excused != true["requests"]:
            problems.append("a miss that a cache could serve")
        self.report(step, [f"{a}/{b}" for a, b in pairs.values()], excused, seconds, problems)

    def compile(self, recipe: Path, cache: Path) -> None:
        """Fill a second directory from the recipe."""
        started = time.monotonic()
        code, document = run_jaxcache(
            "compile", recipe, "-C", cache, "--python", self._python, truth=self._directory
        )
        summary = document["summary"]
        files = f"{summary['written']}/{len(names_in(cache))}"
        problems = [f"exit code {code}"] if code or summary["failed"] else []
        if summary["written"] != len(names_in(cache)):
            problems.append("new files")
        cells = [str(summary["requested"]), "", "", files, ""]
        self.report("compile", cells, summary["refused"], time.monotonic() - started, problems)

    def report(
        self, step: str, cells: list[str], excused: int, seconds: float, problems: list[str]
    ) -> None:
        """Print one row."""
        said = "equal" if not problems else "UNEQUAL: " + ", ".join(problems)
        print(ROW.format(self._name, step, *cells, excused, said), f"{seconds:.0f} s", flush=True)
        self.unequal += [f"{self._name} {step}: {problem}" for problem in problems]


def compare_recipes(full: Path, collected: Path) -> str:
    """What ``--collect-only`` recorded otherwise than a full run, and what it marked as doubtful."""
    from jaxcache.cache.recipe import open_recipe

    with open_recipe(str(full)) as one, open_recipe(str(collected)) as other:
        wanted = {r.key for r in one.recipe.requests}
        found = {r.key: r for r in other.recipe.requests}
    doubtful = {key for key, request in found.items() if request.doubts}
    wrong = found.keys() - wanted
    return (
        f"{len(wanted)} keys, {len(wanted - found.keys())} not collected, {len(wrong)} wrong of "
        f"which {len(wrong & doubtful)} marked; {len(doubtful)} marked"
    )


def main(python: str, *names: str) -> int:
    print(
        ROW.format(
            "program", "run", "requests", "hits", "written", "new files", "entries", "excused", ""
        )
    )
    unequal, collected = [], []
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            comparison = Comparison(python, name, directory / "truth")
            first, second, full = (
                directory / "first",
                directory / "second",
                directory / "full.recipe",
            )
            some = directory / "collected.recipe"
            comparison.run("cold", first, served=False)
            comparison.run("hot", first, "--record", full, served=True)
            comparison.compile(full, second)
            comparison.run("filled", second, served=True)
            if name != "distributed":  # the zeros of one process would have to reach the other
                run_jaxcache(
                    "warm",
                    "-C",
                    first,
                    "--python",
                    python,
                    "--collect-only",
                    "--patience",
                    "10m",  # some libraries take longer than a minute to import on a busy machine
                    "--record",
                    some,
                    PROGRAMS,
                    name,
                    truth=directory,
                )
                result = compare_recipes(full, some) if some.exists() else "nothing collected"
                collected.append(f"{name}: {result}")
            unequal += comparison.unequal
    print("\ncollect-only", *collected, *unequal, sep="\n")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
