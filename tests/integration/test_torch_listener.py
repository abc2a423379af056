"""With a real torch: what ``run`` reports of ten programs is what torch itself counted.

Wants a Python that has torch and a C++ compiler: ``make test-torch`` installs one, or set
``JAXCACHE_TEST_TORCH_PYTHON``. Tried with torch 2.9 and 2.11 to 2.15.
"""

import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from acting import act, acts_on
from conftest import spawn
from terminal import run_on_terminal, without_style

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROGRAMS = Path(__file__).with_name("torch_programs")
NAMES = ("train", "dynamic", "convolution", "graph_break", "custom")
#: Programs for which the looks into the caches, the writes and the breaks differ in number.
UNUSUAL = {
    # torch does not trace a GRU: it reports the break twice, and counts it once
    "gru": """
        gru = torch.nn.GRU(8, 8, batch_first=True)

        @torch.compile
        def run(x):
            return gru(torch.tanh(x))[0].sum()

        run(torch.ones(2, 5, 8)).backward()
    """,
    # torch compiles for any number, learns that it cannot, and starts again
    "restarted": """
        @torch.compile
        def run(x, n):
            return torch.nn.functional.dropout(x, p=n, training=False) * n + int(n * 10)

        for n in (0.1, 0.2):
            run(torch.ones(4, 4), n)
    """,
    "cpp_wrapper": """
        import torch._inductor.config
        torch._inductor.config.cpp_wrapper = True
        torch.compile(lambda x: (torch.relu(x) * 3.0).sum(dim=0))(torch.ones(4, 4))
    """,
    # FX graphs inside their AOT graph: the second cache is not used
    "bundled": """
        import torch._functorch.config
        torch._functorch.config.bundled_autograd_cache = True
        total = torch.compile(lambda x: (torch.relu(x) * 5.0).sum())
        total(torch.ones(4, 4, requires_grad=True)).backward()
    """,
    # frozen weights, which neither cache keeps: the kernels alone serve the next run
    "freezing": """
        import torch._inductor.config
        torch._inductor.config.freezing = True
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).eval()
        with torch.no_grad():
            torch.compile(model)(torch.ones(2, 8))
    """,
}
#: Of each, cold: torch's AOT graphs missed and saved, FX graphs missed, bypasses and breaks.
UNUSUAL_COUNTS = {
    "gru": (0, 0, 0, 0, 1),
    "restarted": (3, 2, 2, 0, 0),
    "cpp_wrapper": (1, 1, 1, 0, 0),
    "bundled": (1, 1, 0, 0, 0),
    "freezing": (0, 0, 0, 2, 0),
}
TIERS = {"aotautograd": "autograd_cache", "fxgraph": "fxgraph_cache"}
STATES = {"hits": "hit", "misses": "miss", "bypassed": "bypass"}
#: With a real torch, and with four other programs beside it, a cold run can take long.
SECONDS = 1800

#: torch warns of itself, which the tests would make errors.
RUN = {"PYTHONWARNINGS": ""}


@dataclass(frozen=True)
class Ran:
    """A command that has run, what it reported, and what torch counted in each process."""

    code: int
    document: Any
    counted: list[Any]

    def check_counts(self) -> None:
        """Hold all counts of the report against those of torch."""
        truth: Counter[str] = Counter()
        for said in self.counted:
            truth.update({**said["aot_autograd"], **said["inductor"]})
            truth["graph_break"] += sum(said["graph_break"].values())
        summary = self.document["summary"]
        for tier, name in TIERS.items():
            for ours, theirs in STATES.items():
                assert summary[tier][ours] == truth[f"{name}_{theirs}"], (tier, ours)
        assert summary["aotautograd"]["saved"] == truth["autograd_cache_saved"]
        assert summary["aotautograd"]["guard_misses"] == truth["autograd_cache_guard_miss"]
        assert summary["fxgraph"]["saved"] == summary["fxgraph"]["misses"]
        assert summary["graph_breaks"] == truth["graph_break"]
        assert self.document["unobserved"] == []

    def of(self, number: int) -> "Ran":
        """The part of one process, in the order of their ends, whose own counters its rows fit."""
        said = self.counted[number]
        (process,) = (p["process"] for p in self.document["processes"] if p["pid"] == said["pid"])
        kinds = ("graphs", "compiles", "graph_breaks")
        rows = {k: [r for r in self.document[k] if r["process"] == process] for k in kinds}
        groups = {"aotautograd": said["aot_autograd"], "fxgraph": said["inductor"]}
        for tier, name in TIERS.items():
            for outcome, end in (("hit", "hit"), ("miss", "miss"), ("bypassed", "bypass")):
                found = Counter((row["tier"], row["outcome"]) for row in rows["graphs"])
                assert found[tier, outcome] == groups[tier].get(f"{name}_{end}", 0), name
        return Ran(self.code, rows, [said])

    def count(self, outcome: str) -> int:
        """FX graphs with that outcome."""
        rows = self.document["graphs"]
        return sum((g["tier"], g["outcome"]) == ("fxgraph", outcome) for g in rows)


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def run_torch(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a command of ours; all share one directory, and what torch tried of the compiler."""
    directory = tmp_path_factory.mktemp("torch")

    def run(command: str, *args: str | Path, codes: Collection[int] = (0, 1), **env: str) -> Ran:
        counted = directory / "counted"
        counted.unlink(missing_ok=True)
        # torch warns of much, and one thread that compiles leaves none behind at a fork
        always = {"PYTHONWARNINGS": "", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = spawn(
            directory,
            *(command, "--layout", "torch", "-C", directory / "cache", "--json", *args),
            env=always | {"COUNTED": str(counted)} | env,
            timeout=SECONDS,
        )
        assert done.returncode in codes, done.stderr
        lines = counted.read_text().splitlines() if counted.exists() else []
        return Ran(done.returncode, json.loads(done.stdout), [json.loads(line) for line in lines])

    return run


@pytest.fixture(scope="session")
def five(run_torch: Run, torch_python: str) -> Ran:
    """All programs, cold, again, and changed by a number; then one with the caches off."""
    words = [f"{name}{changed}" for changed in ("", "", ":1") for name in NAMES]
    return run_torch(
        *("run", "--fail-on-miss", "--", torch_python, PROGRAMS / "forked.py", *words, "off")
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_program_is_counted_as_torch_counts_it(five: Ran, name: str) -> None:
    number, program = NAMES.index(name), str(PROGRAMS / f"{name}.py")
    cold, warm, changed = runs = [five.of(number + len(NAMES) * n) for n in range(3)]
    assert cold.count("miss") > 0 and cold.count("hit") == 0
    assert (warm.count("hit"), warm.count("miss")) == (cold.count("miss"), 0)
    assert changed.count("miss") > 0
    for run in runs:
        rows = run.document["graphs"]
        assert rows and all(row["function"] and row["line"] for row in rows)
        if name != "convolution":  # which torch calls through a function of its own
            assert {row["file"] for row in rows} == {program}
        bypassed = [row["reason"] for row in rows if row["outcome"] == "bypassed"]
        assert len(bypassed) == (name == "custom")
        assert all("call_function target autograd_function_apply" in why for why in bypassed)
    sizes = {row["key"]: row["size_bytes"] for row in cold.document["graphs"]}
    for row in warm.document["graphs"]:
        assert row["outcome"] == "bypassed" or row["size_bytes"] == sizes[row["key"]] > 0
    if name == "convolution":
        assert {row["function"] for row in warm.document["graphs"]} == {"Sequential"}
    if name in ("graph_break", "dynamic"):
        recompiled = [c for c in cold.document["compiles"] if c["guards"]]
        assert "size mismatch" in recompiled[0]["guards"][0]
    breaks = cold.document["graph_breaks"]
    assert bool(breaks) == (name == "graph_break")
    for found in breaks:
        assert (found["file"], found["line"]) == (program, 10)
        assert found["reason"] == "Call to `torch._dynamo.graph_break()`"


def test_the_sums_are_those_of_torch(five: Ran) -> None:
    five.check_counts()
    assert five.code == 1 and five.document["summary"]["saved_seconds"] > 0


@pytest.fixture(scope="session")
def unusual(run_torch: Run, torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The unusual programs, cold and again."""
    directory = tmp_path_factory.mktemp("unusual")
    for name in ("counted.py", "forked.py"):
        shutil.copy(PROGRAMS / name, directory)
    for name, source in UNUSUAL.items():
        text = f"import counted\nimport torch\n{textwrap.dedent(source)}\ncounted.tell()\n"
        (directory / f"{name}.py").write_text(text)
    return run_torch("run", "--", torch_python, directory / "forked.py", *UNUSUAL, *UNUSUAL)


def test_unusual_programs_are_counted_as_torch_counts_them(unusual: Ran) -> None:
    unusual.check_counts()
    assert len(unusual.counted) == 2 * len(UNUSUAL)


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_program_has_the_rows_that_torch_counts(unusual: Ran, name: str) -> None:
    number = list(UNUSUAL).index(name)
    cold, again = (unusual.of(number + n) for n in (0, len(UNUSUAL)))
    rows = cold.document["graphs"]
    by_tier = [[g for g in rows if g["tier"] == tier] for tier in TIERS]
    misses = [sum(g["outcome"] == "miss" for g in tier) for tier in by_tier]
    saved = sum(g["saved"] for g in by_tier[0])
    bypassed = sum(g["outcome"] == "bypassed" for g in rows)
    breaks = sum(cold.counted[0]["graph_break"].values())
    assert (misses[0], saved, misses[1], bypassed, breaks) == UNUSUAL_COUNTS[name]
    hits = sum(g["outcome"] == "hit" for g in again.document["graphs"])
    assert hits == saved + misses[1]


#: Programs that look into the caches outside a compile that ends: what they end with, their looks.
APART = {
    "killed": (
        """
        import os, signal
        from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
        AOTAutogradCache.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        torch.compile(lambda x: torch.relu(x) * 6.0)(torch.ones(4, 4))
        """,
        137,
        {"miss"},
    ),
    "standalone": (
        """
        from torch._inductor import standalone_compile
        from torch.fx.experimental.proxy_tensor import make_fx
        graph = make_fx(lambda x: torch.relu(x) * 4.0)(torch.ones(4, 4))
        made = standalone_compile(graph, [torch.ones(4, 4)], dynamic_shapes="from_example_inputs")
        made.save(path=sys.argv[1], format="unpacked")
        sys.exit(7)
        """,
        7,
        {"miss"},
    ),
    "loaded": (
        """
        from torch._inductor import CompiledArtifact
        made = CompiledArtifact.load(path=sys.argv[1], format="unpacked")
        assert made(torch.ones(4, 4))[0].sum() == 64
        sys.exit(7)
        """,
        7,
        {"hit"},
    ),
}


def test_a_program_that_compiles_apart_is_reported_and_keeps_its_exit_code(
    run_torch: Run, torch_python: str, tmp_path: Path
) -> None:
    for name, (source, code, outcomes) in APART.items():
        script = tmp_path / f"{name}.py"
        script.write_text(f"import sys\nimport torch\n{textwrap.dedent(source)}")
        ran = run_torch(
            *("run", "--", "sh", "-c", 'cd "$0" && exec "$@"', tmp_path),
            *(torch_python, script, tmp_path / "saved"),
            codes=(code,),
        )
        assert {g["outcome"] for g in ran.document["graphs"]} == outcomes, name
        assert ran.document["script_exit_code"] in (code, 128 - code)


def test_a_cache_that_is_off_is_reported(five: Ran) -> None:
    rows = five.of(-1).document["graphs"]
    found = {g["tier"]: (g["outcome"], g["reason"], g["function"]) for g in rows}
    assert found == dict.fromkeys(TIERS, ("off", "force_disable_caches", "off"))


def test_both_processes_of_torchrun_are_heard(
    run_torch: Run, five: Ran, torch_python: str, tmp_path: Path
) -> None:
    """Warm: every look of either rank is a hit."""
    trace = tmp_path / "trace.json"
    ran = run_torch(
        *("run", "--trace", trace, "--fail-on-miss", "--"),
        *(Path(torch_python).with_name("torchrun"), "--nproc-per-node", "2"),
        PROGRAMS / "train.py",
        OMP_NUM_THREADS=str(five.counted[0]["threads"]),  # which is part of the key
    )
    ran.check_counts()
    assert sorted(p["rank"] for p in ran.document["processes"]) == [0, 1]
    assert {p["pid"] for p in ran.document["processes"]} == {c["pid"] for c in ran.counted}
    assert ran.of(0).count("hit") == ran.of(1).count("hit") == five.of(0).count("miss")
    assert ran.code == 0
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len({e["pid"] for e in spans}) == 2


def test_warm_turns_the_caches_on(run_torch: Run, five: Ran, torch_python: str) -> None:
    ran = run_torch(
        *("warm", "--fail-on-miss", "--python", torch_python, PROGRAMS / "convolution.py"),
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
    )
    assert five and ran.code == 0
    assert {g["outcome"] for g in ran.document["graphs"]} == {"hit"}


@acts_on("jaxcache warm --layout torch SCRIPT")
def test_an_empty_cache_is_filled_as_stats_says(torch_python: str, tmp_path: Path) -> None:
    place = tmp_path / "torch-cache"  # torch quotes no path for its compiler
    place.mkdir()
    env = {"TORCHINDUCTOR_CACHE_DIR": str(place), **RUN, "COUNTED": str(tmp_path / "counted")}
    _, told = run_on_terminal("stats", "--layout", "torch", home=tmp_path, width=200, env=env)
    path = f"{Path(torch_python).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = next(s for s in without_style(told).splitlines() if "to fill the cache" in s)
    done = act(line, tmp_path, {"SCRIPT": PROGRAMS / "graph_break.py"}, PATH=path, **env)
    assert done.returncode == 0, (line, done)
    assert [*place.glob("fxgraph/*/*/*")]


@acts_on("jaxcache doctor --layout torch -- CMD names the reason")
def test_a_bypass_is_named_as_explain_says(torch_python: str, tmp_path: Path) -> None:
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **RUN, "COUNTED": str(tmp_path / "counted")}
    words = ("--layout", "torch", "--json", "--python", torch_python, PROGRAMS / "custom.py")
    done = spawn(tmp_path, "explain", *words, env=env, timeout=SECONDS)
    fixes = {d["fix"] for c in json.loads(done.stdout)["comparisons"] for d in c["differences"]}
    (fix,) = (fix for fix in fixes if fix and "doctor" in fix)
    command = {"CMD": f"{torch_python} {PROGRAMS / 'custom.py'}"}
    told = act(fix, tmp_path, command, until=" names", code=None, **env)
    assert "bypassed" in told.stdout, told


def test_churn_names_the_functions_that_were_changed(run_torch: Run, five: Ran) -> None:
    modules = {m["module"]: m for m in run_torch("explain", "--churn").document["modules"]}
    assert five and {"attend", "step", "double"} <= set(modules)
    assert "gm" in {c["component"] for c in modules["attend"]["causes"]}


def test_a_script_is_explained_and_the_cache_stays_as_it_is(
    run_torch: Run, five: Ran, torch_python: str, tmp_path: Path
) -> None:
    cache = Path(five.document["cache_dir"])
    before = {p: p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file()}
    script = tmp_path / "other.py"
    other = (PROGRAMS / "graph_break.py").read_text().replace("(8, 9)", "(8,)")
    other = other.replace("2 + counted.CHANGED", "7")
    script.write_text(f"import sys; sys.path.insert(0, {str(PROGRAMS)!r})\n{other}")
    found = run_torch("explain", "--python", torch_python, script).document["differences"]
    assert [d["component"] for d in found] == ["gm"]
    assert "7" in found[0]["right"] and "7" not in found[0]["left"]
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("*") if p.is_file()} == before
