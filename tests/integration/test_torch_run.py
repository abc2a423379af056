"""With a real torch: what ``run`` reports of five programs is what torch itself counted.

Wants a Python that has torch and a C++ compiler: ``make test-torch`` installs one, or set
``JAXCACHE_TEST_TORCH_PYTHON``. Tried with torch 2.9, 2.11 and 2.13.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROGRAMS = Path(__file__).with_name("torch_programs")
#: Torch warns of much, which these tests make no errors of.
QUIET = {"PYTHONWARNINGS": ""}
STATES = {"hits": "hit", "misses": "miss", "bypassed": "bypass"}


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all programs, which then share what torch tried of the compiler."""
    return tmp_path_factory.mktemp("torch") / "cache"


def counted(path: Path) -> Counter[str]:
    """What torch counted, of all processes together."""
    found: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        said = json.loads(line)
        found.update({**said["aot_autograd"], **said["inductor"]})
        found["graph_break"] += sum(said["graph_break"].values())
    return found


def check_counts(document: Any, truth: Counter[str]) -> None:
    summary = document["summary"]
    for tier, name in (("aotautograd", "autograd_cache"), ("fxgraph", "fxgraph_cache")):
        for ours, theirs in STATES.items():
            assert summary[tier][ours] == truth[f"{name}_{theirs}"], (tier, ours)
    assert summary["aotautograd"]["saved"] == truth["autograd_cache_saved"]
    assert summary["aotautograd"]["guard_misses"] == truth["autograd_cache_guard_miss"]
    assert summary["fxgraph"]["saved"] == summary["fxgraph"]["misses"]
    assert summary["graph_breaks"] == truth["graph_break"]
    assert document["unobserved"] == []


@pytest.mark.parametrize("name", ["train", "dynamic", "convolution", "graph_break", "custom"])
def test_counts_are_those_of_torch(
    spawn_cli: RunCli, torch_python: str, shared_cache: Path, tmp_path: Path, name: str
) -> None:
    program = PROGRAMS / f"{name}.py"

    def run(changed: int, *options: str) -> Any:
        truth = tmp_path / "counted"
        truth.unlink(missing_ok=True)
        done = spawn_cli(
            *("run", "--layout", "torch", "-C", shared_cache, "--json", *options),
            *("--", torch_python, program),
            env=QUIET | {"COUNTED": str(truth), "CHANGED": str(changed)},
            timeout=600,
        )
        assert done.returncode in (0, 1), done.stderr
        document = json.loads(done.stdout)
        check_counts(document, counted(truth))
        document["exit_code"] = done.returncode
        return document

    cold, warm, changed = run(0), run(0, "--fail-on-miss"), run(1)
    for document in (cold, warm, changed):
        assert document["graphs"]
        if name != "convolution":  # which torch calls through a function of its own
            assert {g["file"] for g in document["graphs"]} == {str(program)}
        assert all(g["function"] and g["line"] for g in document["graphs"])
    assert cold["summary"]["fxgraph"]["misses"] > 0
    assert warm["summary"]["fxgraph"]["misses"] == 0
    assert warm["summary"]["fxgraph"]["hits"] == cold["summary"]["fxgraph"]["misses"]
    assert changed["summary"]["fxgraph"]["misses"] > 0
    bypassed = [g for g in warm["graphs"] if g["outcome"] == "bypassed"]
    if name == "custom":
        assert [g["reason"] for g in bypassed] == [
            "Unsupported call_function target autograd_function_apply."
        ]
        assert warm["exit_code"] == 1
    else:
        assert bypassed == []
        assert warm["exit_code"] == 0
        assert warm["summary"]["saved_seconds"] > 0
        sizes = {g["key"]: g["size_bytes"] for g in cold["graphs"]}
        for graph in warm["graphs"]:
            assert graph["size_bytes"] == sizes[graph["key"]]
    if name == "convolution":
        assert {g["function"] for g in warm["graphs"]} == {"Sequential"}
    if name in ("graph_break", "dynamic"):
        recompiled = [c for c in cold["compiles"] if c["guards"]]
        assert len(recompiled) == cold["summary"]["recompiles"] > 0
        assert "size mismatch" in recompiled[0]["guards"][0]
    if name == "graph_break":
        found = cold["graph_breaks"][0]
        assert (found["file"], found["line"]) == (str(program), 10)
        assert found["reason"] == "Call to `torch._dynamo.graph_break()`"


def test_both_processes_of_torchrun_are_heard(
    spawn_cli: RunCli, torch_python: str, shared_cache: Path, tmp_path: Path
) -> None:
    truth, trace = tmp_path / "counted", tmp_path / "trace.json"
    done = spawn_cli(
        *("run", "--layout", "torch", "-C", shared_cache, "--json", "--trace", trace, "--"),
        *(torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        PROGRAMS / "train.py",
        env=QUIET | {"COUNTED": str(truth), "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    check_counts(document, counted(truth))
    assert sorted(p["rank"] for p in document["processes"]) == [0, 1]
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len({e["pid"] for e in spans}) == 2


def test_a_cache_that_is_off_is_reported(
    spawn_cli: RunCli, torch_python: str, shared_cache: Path, tmp_path: Path
) -> None:
    done = spawn_cli(
        *("run", "--layout", "torch", "-C", shared_cache, "--json", "--fail-on-miss", "--"),
        *(torch_python, PROGRAMS / "convolution.py"),
        env=QUIET
        | {"COUNTED": str(tmp_path / "counted"), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    check_counts(document, counted(tmp_path / "counted"))
    found = {g["tier"]: (g["outcome"], g["reason"]) for g in document["graphs"]}
    assert found == dict.fromkeys(("aotautograd", "fxgraph"), ("off", "force_disable_caches"))


def test_warm_turns_the_caches_on(
    spawn_cli: RunCli, torch_python: str, shared_cache: Path, tmp_path: Path
) -> None:
    done = spawn_cli(
        *("warm", "--layout", "torch", "-C", shared_cache, "--json", "--python", torch_python),
        PROGRAMS / "convolution.py",
        env=QUIET
        | {"COUNTED": str(tmp_path / "counted"), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {g["outcome"] for g in document["graphs"]} <= {"hit", "miss"}


def test_a_script_is_explained_and_the_cache_stays_as_it_is(
    spawn_cli: RunCli, torch_python: str, shared_cache: Path, tmp_path: Path
) -> None:
    script = tmp_path / "other.py"
    other = (PROGRAMS / "graph_break.py").read_text().replace("(8, 9)", "(8,)")
    script.write_text(f"import sys; sys.path.insert(0, {str(PROGRAMS)!r})\n{other}")
    options = ("--layout", "torch", "-C", shared_cache, "--python", torch_python)
    env = QUIET | {"COUNTED": str(tmp_path / "counted")}
    first = spawn_cli("warm", *options, script, env=env, timeout=600)
    assert first.returncode == 0, first.stderr
    before = {p: p.stat().st_mtime_ns for p in shared_cache.rglob("*") if p.is_file()}
    done = spawn_cli(
        *("explain", *options, "--json", script), env=env | {"CHANGED": "1"}, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["differences"]
    assert [d["component"] for d in found] == ["gm"]
    assert "2" in found[0]["left"] and "3" in found[0]["right"]
    assert {p: p.stat().st_mtime_ns for p in shared_cache.rglob("*") if p.is_file()} == before
