"""With a real torch: every fault is named and put right, and a pruned cache serves what it kept.

Wants a Python that has torch 2.13 and a C++ compiler: ``make test-torch`` installs one, or set
``JAXCACHE_TEST_TORCH_PYTHON``.
"""

import json
import os
import pickle
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run_in_process
from conftest import RunCli, clean_environment, first_file

from jaxcache.layouts.torch.check import record_new_code
from jaxcache.layouts.torch.names import digest_of
from jaxcache.store import open_store

pytestmark = [pytest.mark.torch, pytest.mark.slow]
WORKLOAD = Path(__file__).with_name("torch_workload.py")
RESULTS = {"scale": 127.0, "loss": [29.4722, 15.3872], "spread": 16.0}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run_torch(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run the workload against a cache, in a fork of a process that has imported torch."""
    env = clean_environment(tmp_path_factory.mktemp("home"))
    del env["PYTHONPATH"], env["PYTHONWARNINGS"]
    server = subprocess.Popen(
        [torch_python, WORKLOAD.with_name("torch_forks.py")],
        env=env | {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin and server.stdout
    jobs, answers = server.stdin, server.stdout

    def run(cache: Path, *wanted: str, script: Path = WORKLOAD, probes: bool = False) -> Any:
        words = [str(script), *wanted]
        jobs.write(json.dumps({"cache": str(cache), "words": words, "probes": probes}) + "\n")
        jobs.flush()
        found = json.loads(answers.readline())
        return subprocess.CompletedProcess(words, found["status"], found["stdout"], found["stderr"])

    yield run
    jobs.close()
    server.wait()
    answers.close()


@pytest.fixture(scope="session")
def written(
    run_torch: Run, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """What torch wrote, from cold: the cache, and which function each file was written for."""
    cache = tmp_path_factory.mktemp("warm") / "cache"
    written_for: dict[str, str] = {}
    for function in RESULTS:
        done = run_torch(cache, function)
        assert done.returncode == 0, done.stderr
        check_results(done.stdout)
        found = (str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file())
        written_for = dict.fromkeys(found, function) | written_for
    return cache, written_for


@pytest.fixture(scope="session")
def warm_cache(written: tuple[Path, dict[str, str]]) -> Path:
    return written[0]


@pytest.fixture
def real_cache(warm_cache: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(warm_cache, tmp_path / "cache"))


def counted(stdout: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads(stdout)["counters"]
    return found


def check_results(stdout: str) -> None:
    results = json.loads(stdout)["results"]
    for name, value in results.items():
        assert value == pytest.approx(RESULTS[name], rel=1e-4)


def source_of(cache: Path) -> Path:
    return next(p for p in cache.glob("*/*.py") if "relu" in p.read_text())


def tamper_source(cache: Path) -> Path:
    """The kernel's constant: the program goes on and answers wrongly."""
    path = source_of(cache)
    path.write_text(path.read_text().replace("static_cast<float>(2.0)", "static_cast<float>(3.0)"))
    return path


def tamper_fx(cache: Path) -> Path:
    """The same inside the FX graph, whose ``.py`` is not there."""
    source_of(cache).unlink()
    for path in cache.glob("fxgraph/*/*/*"):
        data = path.read_bytes()
        if b"clamp_min" in data and b"float>(2.0)" in data:
            new = data.replace(b"static_cast<float>(2.0)", b"static_cast<float>(3.0)")
            path.unlink()
            path = path.with_name(digest_of(new))
            path.write_bytes(new)
            return path
    raise AssertionError("no such graph")


def flip_kernel_source(cache: Path) -> Path:
    """The source of a kernel that is not there, which torch compiles as it is."""
    path = max(cache.glob("*/*.main.cpp"))
    before = path.read_bytes()
    path.write_bytes(before.replace(b"  kernel(", b"  kErnel(", 1))
    assert path.read_bytes() != before
    path.with_suffix(".so").unlink()
    return path


def foreign_fx(cache: Path) -> Path:
    """The graph of one function under the key of another, where it is tried first."""
    paths = sorted(cache.glob("fxgraph/*/*/*"))
    (mine,) = (p for p in paths if b"aten.relu" in p.read_bytes())
    other = next(p for p in paths if b"aten.tanh" in p.read_bytes())  # which has no guards
    data = other.read_bytes()
    mine.unlink()
    path = mine.with_name(other.name)
    path.write_bytes(data)
    return path


def wrong_class(cache: Path) -> Path:
    """A pickle of another class that sorts before the real one."""
    directory = first_file(cache, "fxgraph/*/*/*").parent
    (real,) = directory.iterdir()
    for number in range(10_000):
        data = pickle.dumps({"no graph": number}, 4)
        if digest_of(data) < real.name:
            break
    path = directory / digest_of(data)
    path.write_bytes(data)
    return path


#: Those that no random damage below makes.
FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "tampered-py": (tamper_source, "digest-mismatch"),
    "tampered-fx": (tamper_fx, "source-mismatch"),
    "flipped-cpp": (flip_kernel_source, "source-mismatch"),
    "foreign-fx": (foreign_fx, "key-mismatch"),
    "wrong-class": (wrong_class, "wrong-class"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_and_put_right(
    run_cli: RunCli, run_torch: Run, real_cache: Path, tmp_path: Path, name: str
) -> None:
    fault, kind = FAULTS[name]
    assert run_cli("verify", "-C", real_cache, "--grace", "0s").returncode == 0  # records code
    bad = fault(real_cache)
    broken = Path(shutil.copytree(real_cache, tmp_path / "broken"))
    ran = run_torch(broken)
    # The fault is a real one: torch fails, or answers wrongly.
    assert ran.returncode or json.loads(ran.stdout)["results"]["scale"] != 127.0, ran.stderr

    found = run_cli("verify", "-C", real_cache, "--json", "--grace", "0s")
    assert found.returncode == 1
    file = str(bad.relative_to(real_cache))
    assert kind in {p["kind"] for p in json.loads(found.stdout)["problems"] if p["file"] == file}
    fixed = run_cli("verify", "-C", real_cache, "--json", "--grace", "0s", "--fix")
    assert {p["file"]: p["action"] for p in json.loads(fixed.stdout)["problems"]}[file] == (
        "quarantine"
    )
    again = run_torch(real_cache)
    assert again.returncode == 0, again.stderr
    check_results(again.stdout)
    assert run_cli("verify", "-C", real_cache).returncode == 0


def test_pruned_to_half_what_stayed_hits(run_cli: RunCli, run_torch: Run, real_cache: Path) -> None:
    size = sum(p.stat().st_size for p in real_cache.rglob("*") if p.is_file())
    done = run_cli(
        "prune", "-C", real_cache, "--max-size", str(size // 2), "--grace", "0s", "-y", "--json"
    )
    assert done.returncode == 0, done.stderr
    left = json.loads(run_cli("ls", "-C", real_cache, "--json").stdout)["entries"]
    kept = {e["function"] for e in left if e["module"] == "fxgraph"}
    assert kept and kept < set(RESULTS)
    for function in RESULTS:
        ran = run_torch(real_cache, function)
        assert ran.returncode == 0, ran.stderr
        check_results(ran.stdout)
        aot = counted(ran.stdout)["aot_autograd"]
        assert aot.get("autograd_cache_hit", 0) == (1 if function in kept else 0)
        assert aot.get("autograd_cache_miss", 0) == (0 if function in kept else 1)


def test_a_bundle_hits_without_a_compiler(
    run_cli: RunCli, run_torch: Run, warm_cache: Path, tmp_path: Path
) -> None:
    bundle, there = tmp_path / "c.jxb", tmp_path / "there"
    assert run_cli("export", "-C", warm_cache, bundle).returncode == 0
    assert run_cli("import", bundle, "-C", there).returncode == 0
    before = {p for p in there.rglob("*") if p.is_file()}
    ran = run_torch(there, probes=True)
    check_results(ran.stdout)
    assert counted(ran.stdout)["aot_autograd"] == {"total": 3, "autograd_cache_hit": 3, "ok": 3}
    made = {p for p in there.rglob("*") if p.is_file()} - before
    assert {p.parent.name for p in made} <= {"locks"}  # nothing was compiled


PRECOMPILED = """
import json, torch
torch._dynamo.config.caching_precompile = True
from torch._dynamo.precompile_context import PrecompileContext
from torch._dynamo.utils import counters

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = [2.0, 3.0]

    def forward(self, x):
        return torch.relu(x) * self.factors[0]

found = torch.compile(Model())(torch.ones(8, 8)).sum().item()
PrecompileContext.save_to_dynamo_cache()
print(json.dumps([found, counters["dynamo_cache"].get("dynamo_cache_hit", 0)]))
"""


def test_what_torch_precompiles_is_sound_travels_and_is_guarded(
    run_cli: RunCli, run_torch: Run, tmp_path: Path
) -> None:
    script = tmp_path / "precompiled.py"
    script.write_text(PRECOMPILED)
    here, there, bundle = tmp_path / "here", tmp_path / "there", tmp_path / "all.jxb"
    cold = run_torch(here, script=script)
    assert json.loads(cold.stdout) == [128.0, 0], cold.stderr
    entries = sorted(here.glob("dynamo/*/entry"))
    assert entries
    assert run_cli("verify", "-C", here).returncode == 0
    listed = json.loads(run_cli("ls", "-C", here, "--json", "--long").stdout)["entries"]
    assert {e["function"] for e in listed if e["module"] == "dynamo"} <= {"Model.forward"}
    assert run_cli("export", "-C", here, bundle).returncode == 0
    assert run_cli("import", bundle, "-C", there).returncode == 0
    warm = run_torch(there, script=script)
    assert json.loads(warm.stdout) == [128.0, len(entries)], warm.stderr
    trap = tmp_path / "trap"
    entries[0].write_bytes(b"cposix\nmkdir\n(S'" + str(trap).encode() + b"'\ntR.")
    fixed = run_cli("verify", "-C", here, "--fix", "--grace", "0s")
    assert "foreign-globals" in fixed.stdout and not entries[0].exists()
    assert run_torch(here, script=script).returncode == 0 and not trap.exists()


#: Directories to damage, each in one place; a fifth as many get a flipped bit of machine code.
SAMPLE = int(os.environ.get("SAMPLE", "200"))
SEED = int(os.environ.get("SEED", "26"))
#: The kinds of files to damage; few compiler probes, which take torch a process each.
KINDS = ("aotautograd/*/*", "fxgraph/*/*/*", "*/*.py", "*/*.main.cpp", "*/*.main.so")
PROBE = "*/c" + "?" * 51 + ".[cs]*"


def damage(cache: Path, chance: random.Random, pattern: str, way: str) -> Path:
    """Damage one file of a cache; tell which."""
    path = chance.choice(sorted(cache.glob(pattern)))
    data = path.read_bytes()
    if way == "removed":
        path.unlink()
    elif way == "flipped":
        place = chance.randrange(len(data))
        flipped = data[place] ^ (1 << chance.randrange(8))
        path.write_bytes(data[:place] + bytes([flipped]) + data[place + 1 :])
    else:
        path.write_bytes(b"" if way == "emptied" else data[: chance.randrange(1, len(data))])
    return path


def test_after_fix_no_damaged_directory_crashes(
    run_torch: Run, written: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """Flipped machine code is found where a run has recorded its digest, and nowhere else.

    Only the function that the file was written for is run; no other reads it.
    """
    warm_cache, written_for = written
    chance = random.Random(SEED)
    bad, unprovable = [], 0
    for number in range(SAMPLE + SAMPLE // 5):
        cache = Path(shutil.copytree(warm_cache, tmp_path / str(number)))
        recorded = number % 6 == 5
        if recorded:
            record_new_code(open_store(str(cache)), 0, unrecorded=False)
        pattern = PROBE if number % 10 == 0 else KINDS[4 if recorded else chance.randrange(5)]
        way = "flipped" if recorded else chance.choice(["emptied", "cut", "flipped", "removed"])
        path = damage(cache, chance, pattern, way)
        words = ("verify", "-C", cache, "--fix", "--grace", "0s", "--json")
        fixed = run_in_process(words, env=clean_environment(tmp_path), cwd=tmp_path)
        assert fixed.returncode in (0, 1), fixed.stderr
        taken = {p["file"] for p in json.loads(fixed.stdout)["problems"] if p["action"]}
        what = f"{path.relative_to(cache)} {way}"
        assert not recorded or str(path.relative_to(cache)) in taken, what
        function = written_for[str(path.relative_to(cache))]
        ran = run_torch(cache, function, probes=pattern == PROBE)
        try:
            assert ran.returncode == 0, ran.stderr[-500:]
            check_results(ran.stdout)
        except (AssertionError, ValueError) as error:
            if way == "flipped" and path.suffix == ".so" and not recorded:
                unprovable += 1
            else:
                bad.append(f"{what}: {ran.returncode} {error}")
        print(number, what, "recorded" if recorded else "", f"{len(bad)} failed", flush=True)
        if recorded and not bad:  # what torch compiled anew is what was recorded
            again = run_in_process(words[:3], env=clean_environment(tmp_path), cwd=tmp_path)
            assert again.returncode == 0, again.stdout
        shutil.rmtree(cache)
    print(f"{SAMPLE} + {SAMPLE // 5} damaged: {len(bad)} failed, {unprovable} unprovably")
    assert bad == []
