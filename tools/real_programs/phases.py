"""Compare the phases of real programs with JAX's own events: ``phases.py PYTHON [NAME...]``.

Each program runs cold and hot. A row for each run goes to standard error; each cell is what ``run``
reports, a slash, and the truth:

* ``wall``: the sum of all phases, and how long the program ran by the clock of a shell around it.
* ``load``: the phase, and the sum of JAX's event ``cache_retrieval_time_sec``; then how many
  look-ups there were. The phase has the look-ups of misses, too, which JAX does not measure.
* ``lower``: the phase, and the sum of JAX's event ``jaxpr_to_mlir_module_duration``.
* ``request``: the phases key, load and compile, and the sum of ``backend_compile_duration``, which
  includes what jaxcache itself does meanwhile.

A row is wrong where the first two differ by more than 5 % or 1 ms for each look-up, or where a sum
exceeds the event that contains it. Exits 1 if any is. The table on standard output has the largest
differences, and the programs that have them.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from compare import NAMES, PROGRAMS, run_jaxcache

#: Two processes add up to more than the time that has passed.
ALONE = [name for name in NAMES if name != "distributed"]
#: Every module is cached, and the shell notes when the program begins and ends.
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
TIMED = 'date +%s.%N >"$TRUTH/began"; "$@"; code=$?; date +%s.%N >"$TRUTH/ended"; exit $code'
ROW = "{:11} {:5} {:>13} {:>17} {:>8} {:>15} {:>15}  {}"


#: Each difference that the table names, and its unit.
KINDS = {
    "wall": "%",
    "`load`, over all look-ups": "ms",
    "`load`, each look-up": "ms",
    "`lower` below its event": "ms",
    "`request` below its event": "ms",
}


def measure(python: str, name: str, step: str, directory: Path) -> tuple[list[str], list[float]]:
    """Run a program once, print its row, and return what is wrong, and the value of each kind."""
    truth = directory / step
    truth.mkdir()
    command = ("sh", "-c", TIMED, "sh", python, PROGRAMS, name)
    code, document = run_jaxcache("run", "-C", directory / "cache", "--", *command, truth=truth)
    true: Counter[str] = Counter()
    for path in truth.glob("*.json"):
        true.update(json.loads(path.read_text()))
    began, ended = (float((truth / moment).read_text()) for moment in ("began", "ended"))
    wall = ended - began
    summary = document["summary"]
    phases = {key.removesuffix("_seconds"): value for key, value in summary["phases"].items()}
    total = sum(phases.values())
    request = phases["key"] + phases["load"] + phases["compile"]
    lookups = true["hits"] + true["misses"]
    wrong = []
    if code:
        wrong.append(f"exit code {code}")
    if abs(total - wall) > 0.05 * wall:
        wrong.append("wall")
    if abs(phases["load"] - true["retrieval_seconds"]) > 0.001 * lookups:
        wrong.append("load")
    if phases["lower"] > true["lower_seconds"] + 0.001 * true["requests"]:
        wrong.append("lower")
    if request > true["request_seconds"] + 0.001 * true["requests"]:
        wrong.append("request")
    cells = (
        f"{total:.2f}/{wall:.2f}",
        f"{phases['load'] * 1e3:.1f}/{true['retrieval_seconds'] * 1e3:.1f} ms",
        f"{true['hits']}+{true['misses']}",
        f"{phases['lower']:.3f}/{true['lower_seconds']:.3f}",
        f"{request:.3f}/{true['request_seconds']:.3f}",
    )
    verdict = "WRONG: " + ", ".join(wrong) if wrong else "ok"
    print(ROW.format(name, step, *cells, verdict), file=sys.stderr, flush=True)
    load_difference = 1e3 * abs(phases["load"] - true["retrieval_seconds"])
    differences = [
        100 * abs(total - wall) / wall,
        load_difference,
        load_difference / max(1, lookups),
        1e3 * (true["lower_seconds"] - phases["lower"]),
        1e3 * (true["request_seconds"] - request),
    ]
    return wrong, differences


def main(python: str, *names: str) -> int:
    os.environ.update(SETTINGS)
    header = ROW.format("program", "run", "wall s", "load", "lookups", "lower s", "request s", "")
    print(header, file=sys.stderr)
    faults: list[str] = []
    largest: dict[tuple[str, str], tuple[float, str]] = {}
    for name in names or ALONE:
        with tempfile.TemporaryDirectory() as temporary:
            for step in ("cold", "hot"):
                wrong, differences = measure(python, name, step, Path(temporary))
                faults += [f"{name}, {step}: {', '.join(wrong)}"] if wrong else []
                for kind, value in zip(KINDS, differences, strict=True):
                    largest[kind, step] = max((value, name), largest.get((kind, step), (0.0, "")))
    print("| largest difference | cold | hot |\n|---|---|---|")
    for kind, unit in KINDS.items():
        cells = [
            f"{value:.2f} {unit}, {name}"
            for value, name in (largest[kind, step] for step in ("cold", "hot"))
        ]
        print(f"| {kind} | {' | '.join(cells)} |")
    print(*("", *faults), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
