"""Run the tests of real libraries with ``--jaxcache``: ``compare.py PYTHON DIRECTORY [NAME...]``.

Each suite runs without the plugin, then with it: cold, warm, warm and cold under xdist. Every run
must have the same outcome of each test, and the plugin must count what JAX counts. Prints one row
for each run, and exits 1 where anything differs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
#: By library: which of its tests, relative to its source distribution.
SUITES = {
    "chex": ["variants_test.py", "fake_test.py", "asserts_chexify_test.py", "dimensions_test.py"],
    "jmp": ["loss_scale_test.py", "policy_test.py"],
}
ROW = "| {:7} | {:11} | {:>6} | {:>8} | {:>6} | {:>7} | {:>9} | {:>8} | {} |"
TITLES = ["library", "run", "tests", "compiles", "hits", "written", "compiling", "wall", "compared"]
TOTALS = re.compile(r"^(\d+) of (\d+) hits · (\d+) written", re.MULTILINE)


class Suite:
    """The tests of one library, and how they ended without us."""

    def __init__(self, python: str, directory: Path, name: str) -> None:
        (self._root,) = directory.glob(f"{name}-*/")
        self._python, self.name = python, name
        self._files = [str(Path(name, "_src", file)) for file in SUITES[name]]
        self._outcomes: dict[str, str] = {}
        self.unequal: list[str] = []

    def run(self, step: str, *options: str) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            self._run(step, Path(temporary), options)

    def _run(self, step: str, directory: Path, options: tuple[str, ...]) -> None:
        env = {**os.environ, "OWN_COUNTS": str(directory), "PYTHONPATH": str(HERE)}
        env |= {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"}
        env.pop("JAX_COMPILATION_CACHE_DIR", None)
        xml = directory / "junit.xml"
        command = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "own_counts"]
        started = time.monotonic()
        done = subprocess.run(
            [*command, f"--junitxml={xml}", *options, *self._files],
            cwd=self._root,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - started
        outcomes = read_outcomes(xml)
        if not outcomes:
            sys.exit(f"{self.name} {step} ran no test:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        own: Counter[str] = Counter()
        for path in directory.glob("*.json"):
            own.update(json.loads(path.read_text()))
        problems = []
        self._outcomes = self._outcomes or outcomes
        if changed := {n for n in self._outcomes if outcomes.get(n) != self._outcomes[n]}:
            problems.append(f"{len(changed)} tests ended otherwise, such as {sorted(changed)[0]}")
        told, compiling = own, own["backend_seconds"]
        if options:
            found = TOTALS.search(done.stdout)
            if found is None:
                sys.exit(f"{self.name} {step} has no table:\n{done.stdout[-3000:]}")
            hits, requests, written = map(int, found.groups())
            told = Counter(hits=hits, requests=requests, written=written)
            problems += [f"{n} {told[n]}/{own[n]}" for n in told if told[n] != own[n]]
            compiling = read_seconds(done.stdout)
        compared = ", ".join(problems) or "equal"
        cells = [told["requests"], told["hits"], told["written"], f"{compiling:.1f} s"]
        print(
            ROW.format(self.name, step, len(outcomes), *cells, f"{seconds:.0f} s", compared),
            flush=True,
        )
        self.unequal += [f"{self.name} {step}: {problem}" for problem in problems]


def read_outcomes(xml: Path) -> dict[str, str]:
    """How each test ended, by its name."""
    found = {}
    for case in ET.parse(xml).iter("testcase"):
        kinds = [c.tag for c in case if c.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}::{case.get('name')}"] = kinds[0] if kinds else "passed"
    return found


def read_seconds(text: str) -> float:
    """The compile seconds of the table's first line."""
    found = re.search(
        r"written · ([\d.]+) (ms|s) compiling|written · (\d+)m (\d+)s compiling", text
    )
    if found is None:
        return 0.0
    if found[3]:
        return 60.0 * int(found[3]) + int(found[4])
    return float(found[1]) / (1000 if found[2] == "ms" else 1)


def main(python: str, directory: str, *names: str) -> int:
    print("|", " | ".join(TITLES), "|")
    print("|", " | ".join(["---"] * len(TITLES)), "|")
    unequal: list[str] = []
    for name in names or SUITES:
        with tempfile.TemporaryDirectory() as temporary:
            suite = Suite(os.path.abspath(python), Path(directory).absolute(), name)
            one, two = (f"--jaxcache={temporary}/{n}" for n in ("one", "two"))
            suite.run("without")
            suite.run("cold", one)
            suite.run("warm", one)
            suite.run("warm, -n 2", one, "-n", "2")
            suite.run("cold, -n 2", two, "-n", "2")
            unequal += suite.unequal
    print("", *unequal, sep="\n")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
