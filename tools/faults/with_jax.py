"""Kill commands, then let a real JAX use what is left.

``python -m tools.faults.with_jax PYTHON [N [ROW…]]``: N times each, all rows by default.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.faults import process
from tools.faults.commands import ROWS, Row
from tools.faults.intercept import Verdict, adopt_orphans, wait_for_orphans, why_not
from tools.faults.process import DAY_NS, NOW_NS, run_cli
from tools.faults.with_live import PROGRAM, is_sealed

#: Their parents write, too, while children compile; %s is the Python that has jax.
_COMPILING = {
    "warm": "warm -C cache --python %s program.py",
    "warm --record": "warm --record new.jxr -C cache --python %s program.py",
    "compile": "compile made.jxr -C cache --python %s",
    "compile into nothing": "compile made.jxr -C new --jobs 2 --python %s",
}
_ROWS = (
    "seal",
    "verify --fix",
    "verify --fix --delete",
    "prune by bounds",
    "rm",
    "import --atomic",
    "import into nothing",
)


def run_jax(python: str, cache: Path) -> dict[str, Any]:
    """Run the program over a cache that has a cap, so that JAX looks at every date."""
    env = {
        "PATH": os.defpath,
        "HOME": str(cache.parent),
        "PYTHONPATH": str(PROGRAM.parents[1] / "startup"),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(10**9),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(
        [python, PROGRAM], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Lab:
    """A cache that JAX made, always at the same path: some versions hash it into the key."""

    def __init__(self, directory: Path, python: str, *, has_recipe: bool) -> None:
        self.world, self._template, self.python = (
            directory / "world",
            directory / "template",
            python,
        )
        self.cache = self.world / "cache"
        for name in ("cache", "home", "tmp", "other", "new"):
            (self.world / name).mkdir(parents=True)
        shutil.copy(PROGRAM, self.world / "program.py")
        self.cold = run_jax(python, self.cache)
        self.warm = run_jax(python, self.cache)
        assert self.warm["hits"] == self.warm["requests"] > 4, self.warm
        run_cli(self.world, ["export", "in.jxb", "-C", "cache"])
        if has_recipe:
            line = f"warm --record made.jxr -C cache --python {python} program.py"
            made = run_cli(self.world, line.split())
            assert made.code == 0, made.stderr
        for path in self.cache.iterdir():
            os.utime(path, ns=(NOW_NS - DAY_NS, NOW_NS - DAY_NS))
        self.torn = next(self.cache.glob("jit_mlp-*-cache"))
        os.truncate(self.torn, self.torn.stat().st_size // 2)
        os.utime(self.torn, ns=(NOW_NS - DAY_NS, NOW_NS - DAY_NS))
        shutil.copytree(self.world, self._template)

    def reset(self) -> None:
        """Put everything back to where it was."""
        shutil.rmtree(self.world)
        shutil.copytree(self._template, self.world)

    def kills(self, row: Row, wanted: int) -> Iterator[str | None]:
        """Kill a command at so many of its calls; yield what JAX then does wrong."""
        self.reset()
        is_family = row.name in _COMPILING
        undisturbed = run_cli(self.world, row.argv, is_family=is_family)
        calls = len(undisturbed.calls)
        names = entry_names(self.world / "new")
        for number in sorted({1 + (2 * i + 1) * calls // (2 * wanted) for i in range(wanted)}):
            self.reset()

            def decide(call: Any, number: int = number) -> Verdict:
                return Verdict.KILL if call.number == number else Verdict.GO_ON

            run_cli(self.world, row.argv, decide, is_family=is_family)
            wait_for_orphans()
            wrong = self.complete(row, names) if row.name == "compile into nothing" else None
            cache = self.world / "new" if "new" in row.argv else self.cache
            wrong = wrong or self.look(cache)
            yield f"{row.name}, killed at call {number} of {calls}: {wrong}" if wrong else None

    def complete(self, row: Row, names: list[str]) -> str | None:
        """What is wrong with the entries that a killed command left, and when it runs again."""
        new = self.world / "new"
        torn = [name for name in entry_names(new) if not is_sealed((new / name).read_bytes())]
        if torn:
            return f"torn: {torn}"
        again = run_cli(self.world, row.argv)
        if again.code != 0 or entry_names(new) != names:
            return f"run again it ends with {again.code}, {entry_names(new)}: {again.stderr}"
        left = [path.name for path in (*(self.world / "tmp").iterdir(), *new.glob(".jaxcache-*"))]
        return f"left {left}" if left else None

    def look(self, cache: Path) -> str | None:
        """What JAX does wrong with a cache; None if nothing."""
        torn = cache / self.torn.name
        bad = int(torn.exists() and torn.stat().st_size == self.torn.stat().st_size)
        there = len(list(cache.glob("*-cache")))
        found = run_jax(self.python, cache)
        if found["results"] != self.cold["results"]:
            return f"results {found['results']}, not {self.cold['results']}"
        if len(found["warnings"]) > bad:
            return f"warnings {found['warnings']}"
        # In a directory of another name some versions hit nothing, for their keys hold the name.
        if cache == self.cache and found["hits"] < there - bad:
            return f"{found['hits']} hits of {there - bad} sound entries"
        return None


def entry_names(cache: Path) -> list[str]:
    """The names of the entries of a cache."""
    return sorted(path.name for path in cache.glob("*-cache"))


def main() -> int:
    """Run; 1 if JAX did anything wrong, 77 if nothing can be run."""
    python, wanted = os.path.abspath(sys.argv[1]), int((*sys.argv[2:], "6")[0])
    chosen = sys.argv[3:] or [*_ROWS, *_COMPILING]
    if reason := why_not():
        print(f"skipped: {reason}")
        return 77
    process.preload()
    adopt_orphans()
    directory, started, outcomes = Path(tempfile.mkdtemp()), time.monotonic(), []
    try:
        compiles = any(name.startswith("compile") for name in chosen)
        lab = Lab(directory, python, has_recipe=compiles)
        for row in ROWS:
            if row.name in _ROWS and row.name in chosen:
                outcomes += lab.kills(row, wanted)
                print(f"{row.name}, then JAX: {wanted} tried", flush=True)
        for name, line in _COMPILING.items():
            if name not in chosen:
                continue
            outcomes += lab.kills(Row(name, tuple((line % python).split())), wanted)
            print(f"{name}, then JAX: {wanted} tried", flush=True)
    finally:
        shutil.rmtree(directory)
    wrong = [o for o in outcomes if o]
    print(*(f"FAILED {w}" for w in wrong), sep="\n", end="\n" if wrong else "")
    seconds = time.monotonic() - started
    print(f"{len(outcomes)} tried with JAX, {len(wrong)} failed, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
