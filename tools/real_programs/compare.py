"""Compare what jaxcache reports of real programs with what JAX counts: ``compare.py PYTHON [NAME...]``.

Prints one row for each program: what is reported, and REPORTED/TRUE if JAX counts otherwise. Exits 1
if anything differs.
"""

import json
import os
import subprocess
import sys
import tempfile
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
HEADER = """| program | requests | hits: cold, hot, filled | written: cold, compiled | excused |
|---|---|---|---|---|"""


def run_jaxcache(*arguments: Any, truth: Path) -> tuple[int, dict[str, Any]]:
    """Run one command with ``--json``; its exit code and document."""
    command = [sys.executable, "-m", "jaxcache", arguments[0], "--json", *map(str, arguments[1:])]
    environment = {**os.environ, "TRUTH": str(truth), "JAX_PLATFORMS": "cpu"}
    environment["PYTHONHASHSEED"] = "0"  # numpyro's modules depend on the order of a set
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.returncode, json.loads(done.stdout)


def show(told: int, truly: int) -> str:
    """One number if both are equal."""
    return str(told) if told == truly else f"**{told}/{truly}**"


def names_in(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("*-cache")}


class Comparison:
    """The runs of one program, and what was found unequal."""

    def __init__(self, python: str, name: str, directory: Path) -> None:
        self._python, self._name, self._directory = python, name, directory
        self.unequal: list[str] = []
        self._cells: dict[str, dict[str, str]] = {}

    def run(self, step: str, cache: Path, *options: Any, served: bool) -> None:
        """Run the program in a cache; ``served``: everything cacheable must be a hit."""
        truth = self._directory / step
        truth.mkdir(parents=True)
        before = names_in(cache)
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
        self._keep(step, {name: show(*pair) for name, pair in pairs.items()}, excused, problems)

    def compile(self, recipe: Path, cache: Path) -> None:
        """Fill a second directory from the recipe."""
        code, document = run_jaxcache(
            "compile", recipe, "-C", cache, "--python", self._python, truth=self._directory
        )
        summary = document["summary"]
        problems = [f"exit code {code}"] if code or summary["failed"] else []
        if summary["written"] != len(names_in(cache)):
            problems.append("new files")
        written = show(summary["written"], len(names_in(cache)))
        self._keep("compile", {"written": written}, summary["refused"], problems)

    def _keep(self, step: str, cells: dict[str, str], excused: int, problems: list[str]) -> None:
        self._cells[step] = {**cells, "excused": str(excused)}
        self.unequal += [f"{self._name} {step}: {problem}" for problem in problems]

    def print_row(self) -> None:
        """Print the row of the program."""

        def join(name: str, *steps: str) -> str:
            values = [self._cells[step][name] for step in steps]
            return values[0] if len({*values}) == 1 else ", ".join(values)

        runs = ("cold", "hot", "filled")
        cells = (
            join("requests", *runs),
            join("hits", *runs),
            join("written", "cold", "compile"),
            join("excused", *runs),
        )
        print(f"| {self._name} | {' | '.join(cells)} |", flush=True)


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
    print(HEADER)
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
            comparison.print_row()
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
