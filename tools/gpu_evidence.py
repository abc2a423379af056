"""Settle in one go, on a host with a GPU, what can only be settled there.

    python tools/gpu_evidence.py OUT [--python PYTHON] [--warmed DIR] [--seconds 600]

Run it with a Python that has jaxcache; ``--python`` is the one that has jax with the GPU, our own
if not said. It captures the host's profile, lets plain JAX fill caches, fills others for the
host's own profile *on the CPU*, and has plain JAX run on those: are the keys equal, do they hit,
are results equal, how long do untuned kernels take against tuned ones? With ``--warmed`` the
caches ``DIR/train`` and ``DIR/programs`` are tried, which another machine has filled for this
host's profile.

``OUT/report.md`` is the report, ``OUT/report.json`` the figures; the caches lie beside them. A step
that fails is reported, and the others go on. ``--platform cpu --small`` is a rehearsal where there
is no GPU.
"""

import argparse
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAIN, WORKLOAD = ROOT / "examples" / "train.py", ROOT / "tools" / "gpu_workload.py"
PLAIN = ROOT / "tools" / "plain_jax.py"
PROGRAMS = ROOT / "tests" / "data" / "workload_44.py"
AUTOTUNE = "xla_gpu_per_fusion_autotune_cache_dir"
_RELATIVE_ERROR = 1e-2  # bfloat16, and sums in another order


class StepError(Exception):
    """A step did not do what it should; the text says what happened."""


@dataclass(slots=True)
class Evidence:
    """The directory that is filled, and what has been found."""

    out: Path
    python: str
    platform: str | None
    size: int
    deadline: float
    found: dict[str, Any] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Do one thing; whatever happens, go on."""
        started = time.monotonic()
        print(f"{name} …", flush=True)
        try:
            if started > self.deadline:
                raise StepError("no time was left for it")
            result = work()
        except (StepError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            result = None
            self.troubles.append(f"{name}: {error}")
            print(f"  failed: {error}", flush=True)
        self.found[name] = {"result": result, "seconds": round(time.monotonic() - started, 1)}
        self.save()
        return result

    def save(self) -> None:
        """Write what is known by now, so that an interruption loses nothing."""
        document = {"found": self.found, "troubles": self.troubles}
        (self.out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.out / "report.md").write_text(report(self))

    def run(self, command: list[str], env: dict[str, str] | None = None) -> str:
        """Run a command within the time that is left, and return its standard output."""
        left = max(5.0, self.deadline - time.monotonic())
        environment = os.environ | (env or {})
        if self.platform:
            environment["JAX_PLATFORMS"] = self.platform
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise StepError(f"{' '.join(command[2:5])} exited with {done.returncode}: {lines[-1]}")
        return done.stdout

    def jaxcache(self, *args: str | Path, env: dict[str, str] | None = None) -> str:
        """Run jaxcache."""
        env = {"PYTHONPATH": str(ROOT)} | (env or {})
        return self.run([sys.executable, "-m", "jaxcache", *map(str, args)], env)

    def warm(self, cache: Path, *args: str | Path) -> dict[str, Any]:
        """Fill a cache for the host's profile on the CPU; what was made, tuned or not, and left."""
        profile = self.out / "profile.json"
        text = self.jaxcache(
            "warm", "--json", "-C", cache, "--python", self.python, "--target", profile, *args
        )
        document = json.loads(text)
        made = Counter(str(m["tuning"] or m["reason"]) for m in document["modules"])
        return {"modules": dict(made), "seconds": document["summary"]["wall_seconds"]}

    def plain(self, cache: Path, program: Path, *args: str) -> dict[str, Any]:
        """Run a program by plain JAX on a cache; JAX's own counts, its seconds and output."""
        text = self.run(
            [self.python, str(PLAIN), str(program), *args],
            {
                "JAX_COMPILATION_CACHE_DIR": str(cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
        )
        *output, counts = text.splitlines()
        return {**json.loads(counts), "output": output}

    def copy(self, cache: Path, name: str) -> Path:
        """Copy a cache, because a run adds to it."""
        shutil.copytree(cache, self.out / name)
        return self.out / name


def describe_host(evidence: Evidence) -> dict[str, Any]:
    """The GPU and its driver, as far as anybody tells."""
    found: dict[str, Any] = {"python": evidence.python}
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm"
        found["gpu"] = evidence.run(["nvidia-smi", query, "--format=csv,noheader"]).strip()
    return found


def capture(evidence: Evidence) -> dict[str, Any]:
    """The host's profile, twice: the fingerprint must not change from process to process."""
    prints = []
    for name in ("profile.json", "again.json"):
        path = evidence.out / name
        evidence.jaxcache("target", "capture", "--python", evidence.python, path)
        prints.append(json.loads(path.read_text())["topology_fingerprint"])
    profile = json.loads((evidence.out / "profile.json").read_text())
    if prints[0] != prints[1]:
        raise StepError(f"the fingerprint changes from process to process: {prints}")
    names = (
        "platform",
        "lowering_platform",
        "platform_version",
        "device_kinds",
        "jax_version",
        "jaxlib_version",
        "plugins",
        "key_codec",
        "topology_fingerprint",
    )
    if profile["topology"] is None:
        raise StepError("the client's topology cannot be serialized")
    return {name: profile[name] for name in names}


def real_caches(evidence: Evidence, train: list[str]) -> dict[str, Any]:
    """What JAX itself writes for ``train.py``, that it hits, and what its autotune files save."""
    cache = evidence.out / "real"
    cold = evidence.plain(cache, TRAIN, *train)
    hot = evidence.plain(cache, TRAIN, *train)
    listing = json.loads(evidence.jaxcache("ls", "-C", cache, "--json"))
    evidence.jaxcache("verify", "-C", cache, "--level", "load", "--python", evidence.python)
    result = {"cold": cold, "hot": hot, "problems": listing["problems"]}
    result["targets"] = sorted({str(e["target"]) for e in listing["entries"]})
    if (cache / AUTOTUNE).is_dir():
        carried = evidence.out / "carried"
        shutil.copytree(cache / AUTOTUNE, carried / AUTOTUNE)
        result["autotune files carried"] = evidence.plain(carried, TRAIN, *train)
        result["cold again"] = evidence.plain(evidence.out / "cold", TRAIN, *train)
    return result


def made_here(
    evidence: Evidence, name: str, program: Path, args: list[str], brought: Path | None
) -> dict[str, Any]:
    """A program on entries that no GPU made, against entries of its own."""
    out = evidence.out
    real, made = out / f"{name}-real", out / f"{name}-made"
    cold = evidence.plain(real, program, *args)
    result: dict[str, Any] = {"cold": cold}
    if brought:
        shutil.copytree(brought / name, made)
    else:
        result["made"] = evidence.warm(made, program, *args)
    result["own keys"], result["keys of both"] = len(_keys(real)), len(_keys(real) & _keys(made))
    result["on made entries"] = evidence.plain(evidence.copy(made, f"{name}-used"), program, *args)
    result["equal output"] = result["on made entries"]["output"] == cold["output"]
    if (real / AUTOTUNE).is_dir() and not brought:
        tuned = out / f"{name}-tuned"
        result["made with measurements"] = evidence.warm(
            tuned, "--autotune-from", real / AUTOTUNE, program, *args
        )
        result["on tuned entries"] = evidence.plain(
            evidence.copy(tuned, f"{name}-tuned-used"), program, *args
        )
    return result


def _keys(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("*-cache")}


def compare_kernels(evidence: Evidence) -> dict[str, Any]:
    """The workload with kernels that JAX tuned, and with those that were made without a GPU."""
    size = str(evidence.size)
    result = made_here(evidence, "kernels", WORKLOAD, [size], None)
    del result["equal output"]  # it holds times
    result["tuned"] = evidence.plain(evidence.out / "kernels-real", WORKLOAD, size)
    tuned = json.loads(result["tuned"]["output"][0])
    for way in ("on made entries", "on tuned entries"):
        if ran := result.get(way):
            rows = json.loads(ran["output"][0])
            ran["times tuned"] = {
                name: round(row["seconds"] / tuned[name]["seconds"], 2)
                for name, row in rows.items()
            }
            ran["equal"] = all(
                math.isclose(row["sum"], tuned[name]["sum"], rel_tol=_RELATIVE_ERROR)
                for name, row in rows.items()
            )
    return result


def report(evidence: Evidence) -> str:
    """What was found, as Markdown."""
    lines = ["# Entries for a GPU, made without it, on the GPU", ""]
    for name, step in evidence.found.items():
        state = "failed" if step["result"] is None else "done"
        lines.append(f"- {name}: {state}, {step['seconds']} s")
        for key, value in (step["result"] or {}).items():
            if isinstance(value, dict) and "hits" in value:
                lines.append(
                    f"  - {key}: {value['hits']} hits, {value['misses']} misses, "
                    f"{value['compile_seconds']:.1f} s in the compiler, {value['seconds']:.1f} s"
                )
                lines += [f"    - {n}: {value[n]}" for n in ("times tuned", "equal") if n in value]
            else:
                lines.append(f"  - {key}: {value}")
    if evidence.troubles:
        lines += ["", "What failed:", "", *(f"- {t}" for t in evidence.troubles)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Collect the evidence; 1 if a step failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="a directory to be made")
    parser.add_argument("--python", default=sys.executable, help="the Python that has jax")
    parser.add_argument(
        "--warmed", type=Path, metavar="DIR", help="caches that were warmed elsewhere"
    )
    parser.add_argument("--seconds", type=float, default=600, help="stop after so long (600)")
    parser.add_argument("--platform", help="sets JAX_PLATFORMS, for a rehearsal")
    parser.add_argument("--small", action="store_true", help="small programs, for a rehearsal")
    args = parser.parse_args()
    args.out = args.out.resolve()
    if args.out.exists():
        parser.error(f"{args.out} exists")
    args.out.mkdir(parents=True)
    train = ["--layers", "1", "--width", "32", "--lengths", "16"] if args.small else []
    deadline = time.monotonic() + args.seconds
    size = 64 if args.small else 4096
    evidence = Evidence(args.out, args.python, args.platform, size, deadline)
    evidence.step("host", lambda: describe_host(evidence))
    if evidence.step("profile", lambda: capture(evidence)) is None:
        return 1
    evidence.step("real cache", lambda: real_caches(evidence, train))
    for name, program, words in (("train", TRAIN, train), ("programs", PROGRAMS, [])):
        evidence.step(
            name, functools.partial(made_here, evidence, name, program, words, args.warmed)
        )
    evidence.step("kernels", lambda: compare_kernels(evidence))
    print((args.out / "report.md").read_text())
    return 1 if evidence.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
