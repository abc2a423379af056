"""Five CI jobs and their repeats: a tar of the cache directory against ``ci restore`` and ``save``.

``python -m benchmarks.ci [--python JAX_PYTHON] [--new-python JAX_PYTHON] [-- ARG…]`` runs
``examples/train.py`` on machines that begin empty: cold, with changed code, with another jaxlib
(``--new-python``; left out without it), and on another CPU (``--xla_cpu_max_isa``), each of them
twice. Three ways to carry the cache from job to job, all through ``tools/ci/caches.py``, which
keeps archives by key as actions/cache does:

* a tar file under a key of the lock file: once saved, a key is not saved again;
* a tar file under a key of each commit: always saved, restored from the newest;
* a bundle under ``ci key``, with ``ci restore`` and ``ci save``.

Prints, by ``jaxcache run``, the seconds spent compiling and in parentheses the number of programs
compiled; then the size of the archive restored, and of all that are kept in the end.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.ci.caches import CacheStore

_EXAMPLE = Path(__file__).parents[1] / "examples" / "train.py"
#: What a commit changes, and with it the modules of one function of three.
_CHANGE = ("p - 0.1 * g", "p - 0.05 * g")
_OTHER_CPU = {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}


@dataclass(frozen=True)
class Job:
    """One job."""

    name: str
    python: str
    changed: bool
    env: dict[str, str]

    @property
    def lock(self) -> str:
        """What a digest of the lock file tells apart: the versions installed, nothing else."""
        return hashlib.sha256(self.python.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Cell:
    """What one job cost."""

    compile_seconds: float
    compiles: int
    """Requests that were no hits."""
    restored_bytes: int

    def __str__(self) -> str:
        seconds = f"{self.compile_seconds:.1f} s ({self.compiles})"
        return f"{seconds} | {self.restored_bytes / 1000:.0f} kB"


class Machine:
    """Where jobs run: always the same paths, always empty at first."""

    def __init__(self, directory: Path, arguments: list[str]) -> None:
        self.directory, self.cache, self.bundle = (
            directory,
            directory / "cache",
            directory / "cache.jxb",
        )
        self._arguments = arguments

    def wipe(self) -> None:
        """Begin anew."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def jaxcache(self, job: Job, *words: str) -> str:
        """Run jaxcache in the job's environment; what it printed."""
        env = {
            **os.environ,
            **job.env,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
        }
        done = subprocess.run(
            [sys.executable, "-m", "jaxcache", *words],
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def work(self, job: Job) -> tuple[float, int]:
        """Run the job itself; seconds of compiling, and how many programs were compiled."""
        text = _EXAMPLE.read_text()
        script = self.directory / "train.py"
        script.write_text(text.replace(*_CHANGE) if job.changed else text)
        told = self.jaxcache(job, "run", "--json", "--", job.python, str(script), *self._arguments)
        summary: dict[str, Any] = json.loads(told)["summary"]
        return float(summary["compile_seconds"]), summary["compile_requests"] - summary["hits"]


Way = Callable[[Machine, CacheStore, Job, int], tuple[float, int]]


def tar_by_lock_file(machine: Machine, caches: CacheStore, job: Job, _: int) -> tuple[float, int]:
    """``key: jax-${{ hashFiles('requirements.txt') }}``, ``restore-keys: jax-``."""
    caches.restore(machine.cache, f"jax-{job.lock}", ["jax-"])
    cost = machine.work(job)
    caches.save(machine.cache, f"jax-{job.lock}")
    return cost


def tar_by_commit(machine: Machine, caches: CacheStore, job: Job, number: int) -> tuple[float, int]:
    """``key: jax-${{ hashFiles('requirements.txt') }}-${{ github.sha }}``."""
    key = f"jax-{job.lock}-{number}"
    caches.restore(machine.cache, key, [f"jax-{job.lock}-", "jax-"])
    cost = machine.work(job)
    caches.save(machine.cache, key)
    return cost


def restore_and_save(machine: Machine, caches: CacheStore, job: Job, _: int) -> tuple[float, int]:
    """As examples/ci/github-cache.yml does."""
    told = json.loads(machine.jaxcache(job, "ci", "key", "--json", "--python", job.python))
    caches.restore(machine.bundle, told["key"], told["restore_keys"])
    machine.jaxcache(job, "ci", "restore", str(machine.bundle), "--python", job.python)
    cost = machine.work(job)
    words = ("ci", "save", str(machine.bundle), "--key", told["key"], "--json")
    saved = json.loads(machine.jaxcache(job, *words))
    if saved["saved"]:
        caches.save(machine.bundle, saved["key"])
    return cost


WAYS: dict[str, Way] = {
    "tar, key of the lock file": tar_by_lock_file,
    "tar, key of the commit": tar_by_commit,
    "ci restore, ci save": restore_and_save,
}


class Watched(CacheStore):
    """A store that remembers the size of what it restored last."""

    restored_bytes = 0

    def unpack(self, archive: Path, path: Path) -> None:
        """Unpack, and take note."""
        self.restored_bytes = archive.stat().st_size
        super().unpack(archive, path)


def measure(
    way: Way, jobs: list[Job], scratch: Path, arguments: list[str]
) -> tuple[list[Cell], int]:
    """What each job cost, and what the archives take together in the end."""
    machine, caches = Machine(scratch / "machine", arguments), Watched(scratch / "caches")
    cells = []
    for number, job in enumerate(jobs):
        machine.wipe()
        caches.restored_bytes = 0
        cost = way(machine, caches, job, number)
        cells.append(Cell(*cost, caches.restored_bytes))
        print(f"{job.name}: {cells[-1]}", file=sys.stderr)
    return cells, caches.size_bytes()


def plan(old: str, new: str | None) -> list[Job]:
    """The jobs, each followed by its repeat."""
    last = new or old
    kinds = [("cold", "same", old, False, {}), ("changed code", "again", old, True, {})]
    kinds += [("new jaxlib", "again", last, True, {})] if new else []
    kinds += [("other CPU features", "again", last, True, _OTHER_CPU)]
    return [
        Job(name if first else f"{name}, {again}" if again == "again" else again, python, code, env)
        for name, again, python, code, env in kinds
        for first in (True, False)
    ]


def main() -> None:
    """Read the command line, run the jobs in each way, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has jax")
    parser.add_argument("--new-python", help="one that has another jaxlib")
    parser.add_argument("arguments", nargs="*", help="of examples/train.py, after --")
    args = parser.parse_args()
    jobs = plan(args.python, args.new_python)
    columns: list[list[Cell]] = []
    totals: list[int] = []
    for name, way in WAYS.items():
        print(f"--- {name}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as scratch:
            cells, size_bytes = measure(way, jobs, Path(scratch), args.arguments)
        columns.append(cells)
        totals.append(size_bytes)
    print("| job | " + " | ".join(f"{name}: compiled | restored" for name in WAYS) + " |")
    print("|---|" + "---:|---:|" * len(WAYS))
    for number, job in enumerate(jobs):
        print(f"| {job.name} | " + " | ".join(str(c[number]) for c in columns) + " |")
    sums = [
        f"{sum(c.compile_seconds for c in cells):.1f} s ({sum(c.compiles for c in cells)})"
        for cells in columns
    ]
    print(
        "| all | "
        + " | ".join(
            f"{seconds} | {total / 1000:.0f} kB kept"
            for seconds, total in zip(sums, totals, strict=True)
        )
        + " |"
    )


if __name__ == "__main__":
    main()
