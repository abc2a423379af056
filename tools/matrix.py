"""Run a small set of tests, one or two per capability, in each JAX, and print a table of them.

``python -m tools.matrix PYTHON…``: each is an interpreter that has jax, and what jaxcache needs
(click, rich, protobuf, backports.zstd, zstandard, filelock), and pytest for the plugin. Exits
with 1 where a test fails, and says of a JAX that nothing listens to which private name has moved.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: By capability, its tests: a file, and what their names contain.
CAPABILITIES = {
    "what is in the key": ("integration/test_machine_jax.py", "each_rule"),
    "`warm`, `run`": ("integration/test_warm.py", "second_run_is_all_hits"),
    "`show`": ("integration/test_show_jax.py", "agrees_with_jax"),
    "`explain`": ("integration/test_explain_jax.py", "by_every_jax"),
    "`doctor`": ("integration/test_doctor_jax.py", "jax_just_wrote"),
    "`seal`": ("conformance/test_cache_jax.py", "promises_over_it and seal"),
    "`verify --level load`": ("integration/test_verify_jax.py", "kills_its_child"),
    "`prune` beside JAX's cap": ("integration/test_prune_jax.py", "goes_on_where and lru"),
    "`export`, `import`, `push`, `pull`": ("integration/test_move_jax.py", "outlook_comes_true"),
    "`compile`": ("integration/test_compile_jax.py", "program_hits_everything"),
    "`warm --target` (CPU)": ("integration/test_target_jax.py", "hits_under_four"),
    "live layer": ("live/test_directory.py", "plain_jax_hit_the_same"),
    "`watch()`": ("inprocess/test_watch.py", "counts_are"),
    "pytest plugin": ("inprocess/test_pytest_plugin.py", "cold_warm_and_xdist"),
}
#: Prints the version, and a line for each adapter that does not know this JAX.
ASK = """
import sys
sys.path.insert(0, sys.argv[1])
import jax
from jaxcache.core.seams import UnknownJaxError
from jaxcache.core.seams import listening as listener
from jaxcache.core.seams import targets
from jaxcache.core.seams import cache as live
print(jax.__version__)
try:
    listener.Jax(jax)
except UnknownJaxError as error:
    print("a private name has moved:", error)
try:
    live.Adapter()
except UnknownJaxError as error:
    if jax.__version_info__ > (0, 4, 30):  # it has never known that one
        print("a private name has moved: the live layer:", error)
try:
    targets.check_names(jax)
except targets.TargetError as error:
    if jax.__version_info__ > (0, 11):  # nor targets those before
        print("a private name has moved: targets:", error)
"""


@dataclass(frozen=True)
class Column:
    """One JAX: what its tests did, by capability, and how long they took."""

    version: str
    moved: str
    cells: Mapping[str, str]
    seconds: float
    skips: Mapping[str, str]

    @property
    def failed(self) -> bool:
        """Whether a test failed, or none ran."""
        return bool(self.moved) or any("fail" in c for c in self.cells.values())


def run_tests(python: str) -> Column:
    """Run every capability's tests in one JAX."""
    asked = subprocess.run(
        [python, "-c", ASK, str(ROOT)], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        words = asked.stderr.strip().splitlines() or ["does not start"]
        return Column(python, words[-1], {}, 0.0, {})
    version, *moved = asked.stdout.strip().splitlines()
    began = time.monotonic()
    cells, skips = {}, {}
    for name, (file, words) in CAPABILITIES.items():
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory) / "report.xml"
            done = subprocess.run(
                (
                    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                    *("-k", words, f"--junitxml={report}", f"tests/{file}"),
                ),
                cwd=ROOT,
                env={**os.environ, "JAXCACHE_TEST_JAX_PYTHON": python},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            cells[name], skips[name] = read_report(report)
        if "fail" in cells[name]:
            print(done.stdout, file=sys.stderr)
        print(f"jax {version}: {name}: {cells[name]} {skips[name]}", file=sys.stderr, flush=True)
    return Column(version, " ".join(moved), cells, time.monotonic() - began, skips)


def read_report(path: Path) -> tuple[str, str]:
    """Return the cell of a JUnit report, and why tests were skipped."""
    cases = list(ET.parse(path).iter("testcase")) if path.exists() else []
    bad = sum(c.find("failure") is not None or c.find("error") is not None for c in cases)
    skipped = [s.get("message", "") for c in cases if (s := c.find("skipped")) is not None]
    if bad or not cases:
        return f"**{bad or 'none'} failed**" if cases else "**failed**", ""
    return ("no" if len(skipped) == len(cases) else "yes"), "; ".join(dict.fromkeys(skipped))


def table(columns: Sequence[Column]) -> list[str]:
    """Lay out the capabilities as Markdown, with the versions that lack or fail each."""
    known = [c for c in columns if c.cells]
    minutes = sum(c.seconds for c in known) / 60
    lines = [
        f"JAX {', '.join(c.version for c in known)}; {minutes:.0f} minutes.",
        "",
        "| capability | works on | not on | why |",
        "|---|---|---|---|",
    ]
    for name in CAPABILITIES:
        without = [c for c in known if c.cells[name] != "yes"]
        works = f"{len(known) - len(without)} of {len(known)}" if without else "all"
        not_on = (c.version + f" {c.cells[name]}" * ("fail" in c.cells[name]) for c in without)
        why = next((c.skips[name] for c in without if c.skips[name]), "")
        lines.append(f"| {name} | {works} | {', '.join(not_on)} | {why} |")
    return lines + [f"* {c.version}: {c.moved}" for c in columns if c.moved]


def main() -> int:
    """Run the tests in each interpreter."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    columns = [run_tests(python) for python in parser.parse_args().pythons]
    print("\n".join(table(columns)))
    return int(any(c.failed for c in columns))


if __name__ == "__main__":
    sys.exit(main())
