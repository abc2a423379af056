"""Record which cache entries a day of work on a small model asks for, with ``jaxcache warm``.

``python -m benchmarks.record_trace OUT.jsonl --python JAX_PYTHON`` runs ``small_model.py`` many
times over one cache, each run in a process of its own: training, evaluation at bucketed lengths,
sampling, and edits to the model between the runs. Each line of the output is one request of one
run: ``{"run", "key", "compile_seconds", "size_bytes"}``.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 70
SCRIPT = Path(__file__).with_name("small_model.py")


def plan_day(seed: int = 7) -> list[dict]:
    """What is run one after the other: mostly the same again, now and then something edited."""
    chance = random.Random(seed)
    config = {"width": 64, "layers": 2, "batch": 8, "length": 32, "act": "gelu", "rate": 1e-3}
    edits = {
        "width": [32, 64, 96, 128],
        "layers": [1, 2, 3, 4],
        "batch": [4, 8, 16],
        "length": [32, 48, 64],
        "act": ["gelu", "relu", "tanh"],
    }
    runs, best = [], dict(config)
    for _ in range(RUNS):
        draw = chance.random()
        if draw < 0.45:
            field = chance.choice(list(edits))
            config = config | {field: chance.choice(edits[field])}
        elif draw < 0.6:
            config = dict(best)
        elif draw < 0.65:
            best = dict(config)
        kind = chance.choices(["train", "evaluate", "sample"], [6, 3, 2])[0]
        runs.append(config | {"kind": kind, "seed": chance.randrange(1000)})
    return runs


def warm(python: str, cache: str, config: dict) -> list[dict]:
    """Run the model once; return the report's modules."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jaxcache",
            "warm",
            "-C",
            cache,
            "--python",
            python,
            "--platform",
            "cpu",
            "--json",
            str(SCRIPT),
            json.dumps(config),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["modules"]


def main() -> None:
    """Run the day against one cache and write its requests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has jax")
    args = parser.parse_args()
    seconds: dict[str, float] = {}
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for run, config in enumerate(plan_day()):
            for module in warm(args.python, cache, config):
                key = module["key"]
                if module["outcome"] == "written":
                    seconds[key] = module["compile_seconds"]
                if key in seconds:
                    rows.append((run, key, module["size_bytes"]))
    with args.out.open("w") as out:
        for run, key, size_bytes in rows:
            row = {
                "run": run,
                "key": key,
                "compile_seconds": round(seconds[key], 4),
                "size_bytes": size_bytes,
            }
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
