"""Print the table of the guard: ``python -m tools.guard_table PYTHON…``.

Each case of ``tools/guard_cases/`` runs in each JAX: one row for each group of cases, one column for each JAX,
then the cases by name. Below 0.6 there is one case, because a guard only warns there. Exits 1 if any
case is wrong.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "what changes, watched": ("changes", ""),
    "what changes, guarded after the warm-up": ("changes", "late"),
    "how a compile is reached": ("transformations", ""),
    "scope, actions, cost": ("scopes", ""),
    "processes": ("processes", ""),
}
OLD = {"below 0.6": ("old", "")}
RATIO = "ratio of times "


def run_cases(python: str, program: str, late: str) -> dict[str, dict[str, str]]:
    """Run one program of cases: the fault and the note of each."""
    environment = {name: value for name, value in os.environ.items() if "JAX" not in name}
    environment |= {"JAX_ENABLE_COMPILATION_CACHE": "false", "LATE": late, "PYTHONPATH": str(ROOT)}
    command = [python, str(ROOT / "tools" / "guard_cases" / f"{program}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {program: {"fault": done.stderr[-2000:], "note": ""}}
    cases: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return cases


def is_old(version: str) -> bool:
    """Whether a guard only warns in this JAX."""
    return tuple(map(int, version.split(".")[:2])) < (0, 6)


def main(*pythons: str) -> int:
    """Run every program in every JAX."""
    tables: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    versions = []
    for python in pythons:
        command = [python, "-c", "import jax; print(jax.__version__)"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        version = done.stdout.strip()
        versions.append(version)
        for title, (program, late) in (OLD if is_old(version) else PROGRAMS).items():
            print(f"jax {version}: {title}", file=sys.stderr, flush=True)
            for name, result in run_cases(python, program, late).items():
                tables.setdefault(title, {}).setdefault(name, {})[version] = result
    faults: list[str] = []
    print(f"| cases | {' | '.join(versions)} |\n|---|{'---|' * len(versions)}")
    ratios: dict[str, str] = {}
    for title, rows in tables.items():
        cells = []
        for version in versions:
            results = {name: row[version] for name, row in rows.items() if version in row}
            wrong = [
                f"{version}, {name}: {r['fault']}" for name, r in results.items() if r["fault"]
            ]
            cells.append(
                f"**{len(wrong)} wrong**" if wrong else f"{len(results)} ok" * bool(results)
            )
            faults += wrong
            for result in results.values():
                ratio = result["note"].partition(RATIO)[2]
                ratios |= {version: ratio} if ratio else {}
        print(f"| {title} | {' | '.join(cells)} |")
    print(f"| guarded / unguarded warm call | {' | '.join(ratios.get(v, '') for v in versions)} |")
    for title, rows in tables.items():
        print(f"\n**{title}**: {'; '.join(rows)}.")
    print(*("", *faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
