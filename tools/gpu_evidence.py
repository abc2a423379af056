"""Settle in one go, on a host with a GPU, what can only be settled there.

    python tools/gpu_evidence.py OUT [--python PYTHON] [--warmed DIR] [--seconds 600]

Run it with a Python that has jaxcache; ``--python`` is the one that has jax with the GPU, our own
if not said. It captures the host's profile, keeps a real cache of ``examples/train.py`` with XLA's
own caches, fills caches for the host's own profile *on the CPU*, and has the GPU run on them: do
they hit, are results equal, how long do untuned kernels take against tuned ones? ``--warmed``
tries a cache that was filled on another machine for this host's profile, as well.

``OUT/report.md`` is the report, ``OUT/report.json`` the figures, ``OUT/corpus`` what tests want to
have: entries, the autotune directory, the kernel cache. A step that fails is reported, and the
others go on. ``--platform cpu --small`` is a rehearsal where there is no GPU.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAIN, WORKLOAD = ROOT / "examples" / "train.py", ROOT / "tools" / "gpu_workload.py"
#: Entries larger than this are no test data.
_CORPUS_BYTES = 64 << 10
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

    def warm(
        self, cache: Path, *args: str | Path, env: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Run ``warm`` on a cache and keep its summary and modules."""
        text = self.jaxcache("warm", "--json", "-C", cache, "--python", self.python, *args, env=env)
        document = json.loads(text)
        return {
            "summary": document["summary"],
            "notes": document["notes"],
            "modules": {
                m["module"] + " " + str(m["key"])[-64:]: m["outcome"] for m in document["modules"]
            },
            "untuned": sum(m["tuning"] == "untuned" for m in document["modules"]),
        }

    def timings(self, cache: Path) -> dict[str, Any]:
        """Run the workload on a copy of a cache: how it hit, what it computed, how fast."""
        used = cache.with_name(cache.name + "-used")
        if cache.exists():
            shutil.copytree(cache, used, dirs_exist_ok=True)
        kept = cache.with_name(cache.name + "-output.json")
        wrapper = (
            f"import runpy, sys; sys.argv[1:] = ['{self.size}']; "
            f"sys.stdout = open({str(kept)!r}, 'w'); runpy.run_path({str(WORKLOAD)!r}, "
            "run_name='__main__')"
        )
        program = cache.with_name(cache.name + "-program.py")
        program.write_text(wrapper + "\n")
        ran = self.warm(used, program)
        return {**ran, "programs": json.loads(kept.read_text())}


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
    """What JAX itself writes for ``train.py``, with all of XLA's caches, and that it hits."""
    cache = evidence.out / "real"
    env = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "all"}
    cold = evidence.warm(cache, TRAIN, *train, env=env)
    hot = evidence.warm(cache, TRAIN, *train, env=env)
    corpus = evidence.out / "corpus"
    corpus.mkdir(exist_ok=True)
    for path in sorted(cache.iterdir()):
        if path.is_dir() and path.name.startswith("xla_gpu"):
            shutil.copytree(path, corpus / path.name, dirs_exist_ok=True)
        elif (
            path.is_file() and path.stat().st_size <= _CORPUS_BYTES
        ) or path.name == "xla_gpu_kernel_cache_file":
            shutil.copy2(path, corpus / path.name)
    decoded = json.loads(evidence.jaxcache("ls", "-C", cache, "--json"))
    return {
        "cold": cold["summary"],
        "hot": hot["summary"],
        "targets": sorted({str(e["target"]) for e in decoded["entries"]}),
        "problems": decoded["problems"],
        "side_caches": sorted(p.name for p in corpus.iterdir() if p.name.startswith("xla_gpu")),
    }


def train_elsewhere(evidence: Evidence, train: list[str], made: Path | None) -> dict[str, Any]:
    """``train.py`` on entries that no GPU made: made here on the CPU, or brought by the caller."""
    result: dict[str, Any] = {}
    cache = evidence.out / "train"
    if made is None:
        result["made"] = evidence.warm(
            cache, "--target", evidence.out / "profile.json", TRAIN, *train
        )
    else:
        shutil.copytree(made, cache.with_name("brought"), dirs_exist_ok=True)
        cache = cache.with_name("brought")
    started = time.monotonic()
    used = evidence.warm(cache, TRAIN, *train)
    result["used"] = used
    result["wall_seconds"] = round(time.monotonic() - started, 2)
    evidence.jaxcache("verify", "-C", cache, "--level", "load", "--python", evidence.python)
    return result


def compare_kernels(evidence: Evidence) -> dict[str, Any]:
    """The workload with kernels that JAX tuned, and with each kind that was made without a GPU."""
    profile = evidence.out / "profile.json"
    results: dict[str, Any] = {}
    tuned = evidence.out / "kernels-tuned"
    evidence.timings(tuned)  # fills the cache, and the autotune directory
    shutil.copytree(tuned.with_name(tuned.name + "-used"), tuned, dirs_exist_ok=True)
    results["tuned"] = evidence.timings(tuned)
    ways = {way: ("--gemm", way) for way in ("cublas", "cost-model", "triton")}
    directory = tuned / "xla_gpu_per_fusion_autotune_cache_dir"
    if directory.is_dir():
        ways["autotune-from"] = ("--autotune-from", str(directory))
    for way, options in ways.items():
        cache = evidence.out / f"kernels-{way}"
        made = evidence.step(
            f"make kernels ({way})",
            lambda cache=cache, options=options: evidence.warm(
                cache, "--target", profile, *options, WORKLOAD, str(evidence.size)
            ),
        )
        if made is None:
            continue
        ran = evidence.step(f"run kernels ({way})", lambda cache=cache: evidence.timings(cache))
        if ran is not None:
            results[way] = {**ran, "untuned": made["untuned"]}
    return {way: _against(result, results["tuned"]) for way, result in results.items()}


def _against(result: dict[str, Any], tuned: dict[str, Any]) -> dict[str, Any]:
    rows = {}
    for name, row in result["programs"].items():
        best = tuned["programs"][name]
        rows[name] = {
            "seconds": row["seconds"],
            "times_tuned": round(row["seconds"] / best["seconds"], 3),
            "equal": math.isclose(row["sum"], best["sum"], rel_tol=_RELATIVE_ERROR),
        }
    summary = result["summary"]
    return {
        "programs": rows,
        "hits": summary["hits"],
        "requests": summary["compile_requests"],
        "untuned": result["untuned"],
    }


def report(evidence: Evidence) -> str:
    """What was found, as Markdown."""
    found = {name: step["result"] for name, step in evidence.found.items()}
    lines = ["# Warming for a GPU that is not there, on a GPU", ""]
    for name, step in evidence.found.items():
        state = "failed" if step["result"] is None else "done"
        lines.append(f"- {name}: {state}, {step['seconds']} s")
    profile = found.get("profile")
    if profile:
        kinds = ", ".join(dict.fromkeys(profile["device_kinds"]))
        lines += [
            "",
            f"{len(profile['device_kinds'])} × {kinds}, jax {profile['jax_version']}, "
            f"`{profile['platform_version']!r}`, fingerprint "
            f"{profile['topology_fingerprint']}",
            "",
        ]
    for name in ("train.py, made here on the CPU", "train.py, made elsewhere"):
        if result := found.get(name):
            summary = result["used"]["summary"]
            lines.append(
                f"{name}: {summary['hits']} of {summary['compile_requests']} hits, "
                f"{summary['saved_seconds']:.1f} s saved"
            )
    kernels = found.get("kernels")
    if kernels:
        names = list(kernels["tuned"]["programs"])
        lines += ["", "Run time against tuned kernels (median), ✗ where results differ:", ""]
        lines.append("| | hits | untuned | " + " | ".join(names) + " |")
        lines.append("|---|---|---|" + "---|" * len(names))
        for way, result in kernels.items():
            cells = []
            for name in names:
                row = result["programs"][name]
                wrong = "" if row["equal"] else " ✗"
                cells.append(
                    f"{1000 * row['seconds']:.3f} ms"
                    if way == "tuned"
                    else f"{row['times_tuned']:.2f} ×{wrong}"
                )
            hits = f"{result['hits']} of {result['requests']}"
            lines.append(f"| {way} | {hits} | {result['untuned']} | " + " | ".join(cells) + " |")
    if evidence.troubles:
        lines += ["", "What failed:", "", *(f"- {t}" for t in evidence.troubles)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Collect the evidence; 1 if a step failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="a directory to be made")
    parser.add_argument("--python", default=sys.executable, help="the Python that has jax")
    parser.add_argument("--warmed", type=Path, metavar="DIR", help="a cache warmed elsewhere")
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
    evidence.step("train.py, made here on the CPU", lambda: train_elsewhere(evidence, train, None))
    if args.warmed:
        evidence.step(
            "train.py, made elsewhere", lambda: train_elsewhere(evidence, train, args.warmed)
        )
    evidence.step("kernels", lambda: compare_kernels(evidence))
    print((args.out / "report.md").read_text())
    return 1 if evidence.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
