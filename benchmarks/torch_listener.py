"""The processor time that listening to torch takes, with ``run --layout torch`` and without.

``python -m benchmarks.torch_listener --python TORCH_PYTHON`` needs torch and a C++ compiler. Each
program has a process of its own, which says what it took by itself: tracing, compiling and looking
into the caches, without importing torch, and without the C++ compiler.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Absent, Row, Setting, environment, jaxcache, relate, run_alone

_PROGRAMS = Path(__file__).parents[1] / "tests" / "integration" / "torch_programs"
_CLAIM = "processor time of a torch program, {}, with `run --layout torch` / alone"
_NAMES = ("train", "graph_break")


def processor_seconds(command: Sequence[str], cache: Path, words: Sequence[str]) -> list[float]:
    """Run programs after each other, and return what each took."""
    counted = cache.with_suffix(".counted")
    env = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "COUNTED": str(counted)}
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    counted.unlink(missing_ok=True)
    args = [*command, str(_PROGRAMS / "forked.py"), *words]
    subprocess.run(args, check=True, env=environment(env), capture_output=True)
    return [json.loads(line)["seconds"] for line in counted.read_text().splitlines()]


def measure(setting: Setting) -> Iterator[Row]:
    """Each program cold and warm, listened to and not, in turn."""
    python = os.environ.get("JAXCACHE_TEST_TORCH_PYTHON", setting.python)
    probe = [python, "-c", "import torch"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        yield Absent(_CLAIM.format("warm"), "the interpreter has no torch")
        return
    directory = setting.scratch("torch")
    run = jaxcache("run", "--layout", "torch", "-C", directory / "ours", "--")
    found: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": []}
    for number in range(setting.pairs):
        names = [f"{name}:{number + 2}" for name in _NAMES]
        # the first imports what the others have; it counts on neither side
        words = ["convolution", *names, *names]
        took = [
            processor_seconds(command, directory / side, words)[1:]
            for side, command in (("ours", [*run, python]), ("alone", [python]))
        ]
        pairs = list(zip(*took, strict=True))
        found["cold"] += pairs[: len(names)]
        found["warm"] += pairs[len(names) :]
    for state, measured in found.items():
        yield relate(_CLAIM.format(state), measured, at_most=1.05)


if __name__ == "__main__":
    run_alone(__doc__ or "", measure)
