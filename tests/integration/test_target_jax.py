"""``warm --target``: entries that are made here and hit there."""

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from acting import acts_on, says
from conftest import RunCli, clean_environment, jax_version
from processes import sh
from warm_checks import outcomes

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.store import open_store
from jaxcache.warm.child.child import free_port
from jaxcache.warm.crosshost.target_profile import read_profile

pytestmark = pytest.mark.jax
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
WORKLOAD = Path(__file__).parents[1] / "data" / "workload_44.py"
Target = Callable[..., Any]


@cache
def capture(python: str) -> str:
    """The profile of a host with four devices, once for each Python."""
    with tempfile.TemporaryDirectory() as home:
        done = sh(
            [sys.executable, "-m", "jaxcache", "target", "capture", "--python", python],
            env=clean_environment(Path(home)) | FOUR,
            check=True,
        )
    return done.stdout


@pytest.fixture
def python(each_jax_python: str) -> str:
    """A Python whose jax rebuilds topologies."""
    if jax_version(each_jax_python) < (0, 11):
        pytest.skip("this jax cannot rebuild a topology")
    return each_jax_python


@pytest.fixture
def profile(python: str, tmp_path: Path) -> Path:
    """The profile of a host with four devices."""
    path = tmp_path / "four.json"
    path.write_text(capture(python))
    return path


@pytest.fixture
def ask(run_cli: RunCli, each_jax_python: str) -> Target:
    """Run a command with ``--json``, and return its document, or its error; what else it said."""

    def run(
        command: str, *args: str | Path, env: dict[str, str] | None = None, code: int = 0
    ) -> Any:
        words = (*command.split(), "--json", "--python", each_jax_python, *args)
        done = run_cli(*words, env=env)
        assert done.returncode == code, done.stderr
        if not done.stdout:
            return json.loads(done.stderr.splitlines()[-1])["error"]
        return json.loads(done.stdout) | {"said": done.stderr}

    return run


@pytest.fixture
def warm(ask: Target, cache: Path) -> Target:
    """Run ``warm`` over the test's cache."""
    return partial(ask, "warm", "-C", cache)


def numbers(document: dict[str, Any]) -> list[float]:
    return [float(n) for n in re.findall(r"^\d+\.\d+$", document["said"], re.MULTILINE)]


@pytest.mark.parametrize("devices", ["4", "1"])
def test_a_script_warmed_for_four_devices_hits_under_four(
    warm: Target, profile: Path, cache: Path, devices: str
) -> None:
    # With one device in the process that warms, the program uses one of the target's.
    words = (WORKLOAD, devices)
    made = warm("--target", profile, "--devices", devices, *words)
    assert outcomes(made) == {("written", "not-in-cache")}
    assert made["summary"]["written"] > 44
    causes = {m["cause"] for m in made["modules"]}
    assert causes == {f"first time in {WORKLOAD.name}"}
    assert not any(made["notes"])
    there = warm("--fail-on-miss", *words, env=FOUR)
    assert outcomes(there) == {("hit", "in-cache")}
    assert {m["key"] for m in there["modules"]} == {m["key"] for m in made["modules"]}
    assert numbers(there) == pytest.approx(numbers(made), rel=1e-6)
    again = warm("--target", profile, "--devices", devices, "--fail-on-miss", *words)
    assert outcomes(again) == {("hit", "in-cache")}
    assert len(list(cache.glob("*-cache"))) == len({m["key"] for m in made["modules"]})


BRANCHES = """
import jax, jax.numpy as jnp
@jax.jit
def plain(x):
    return x * 2
@jax.jit
def inner(x):
    if jax.default_backend() == "cpu":
        return x + 1
    return x + 2
@jax.jit
def outer(x):
    return inner(x) * 3
@jax.jit
def counts(x):
    return x * len(jax.devices())
def outside(x):
    return x - 1 if jax.devices()[0].platform == "cpu" else x
print(plain(1.0), inner(1.0), outer(1.0), counts(1.0), jax.jit(outside)(1.0))
jax.default_backend()
assert jax.jit(lambda x: x - 7)(jax.process_index()) == -7
"""


def test_what_asks_for_the_platform_is_named_and_skipped(
    warm: Target, profile: Path, script: Any
) -> None:
    path = script(BRANCHES)
    made = warm("--target", profile, path)
    lines = BRANCHES.splitlines()
    asked = [
        f"{path}:{n}" for n, line in enumerate(lines, 1) if "if jax.d" in line or "len(" in line
    ]
    backend, devices, platform = asked
    skipped = {m["module"]: m["detail"] for m in made["modules"] if m["outcome"] == "skipped"}
    assert skipped == {
        "jit_inner": backend,
        "jit_outer": backend,
        "jit_counts": devices,
        "jit_outside": platform,
    }
    assert {m["reason"] for m in made["modules"]} == {"platform-asked", "not-in-cache"}
    for module, place in skipped.items():
        assert any(module in note and place in note for note in made["notes"])
    there = warm(path, env=FOUR)
    assert {m["module"] for m in there["modules"] if m["outcome"] != "hit"} == set(skipped)


MODELS = """
import jax, jax.numpy as jnp
LIMIT = jnp.arange(3)  # runs when it is imported
@jax.jit
def step(x):
    return jnp.sin(x) @ x.T + LIMIT.sum()
"""


def test_a_function_is_made_without_running_it(
    warm: Target, profile: Path, tmp_path: Path, script: Any
) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    made = warm("models:step", "--arg", "f32[8,128]", "--target", profile, "--devices", "1")
    assert made["modules"][-1]["module"] == "jit_step"
    path = script("import models, numpy as np; models.step(np.ones((8, 128), np.float32))")
    there = warm(path, "--fail-on-miss", env=FOUR)
    assert "jit_step" in {m["module"] for m in there["modules"]}


STEP = "import jax\njax.jit(lambda x: x * 3 + 1)(2.0)\n"


def test_the_targets_settings_are_used_and_not_ours(
    warm: Target, run_cli: RunCli, python: str, cache: Path, script: Any
) -> None:
    env = {
        "XLA_FLAGS": "--xla_cpu_enable_fast_min_max=true " + FOUR["XLA_FLAGS"],
        "JAX_ENABLE_X64": "1",
        "JAX_DEFAULT_MATMUL_PRECISION": "float32",
    }
    assert run_cli("target", "capture", "other.json", "--python", python, env=env).returncode == 0
    path = script("import jax.numpy as jnp\njnp.ones((4, 4), float) @ jnp.ones((4, 4), float)\n")
    ours = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true", "JAX_ENABLE_X64": "0"}
    ours |= {"JAX_DEFAULT_PRNG_IMPL": "rbg"}
    ran = run_cli("run", "-C", cache, "--target", "other.json", "--", python, path, env=ours)
    assert ran.returncode == 0, ran.stderr
    warm("--fail-on-miss", path, env=env)
    warm("--fail-on-miss", path, env=FOUR, code=1)


def test_entries_have_the_targets_codec(
    warm: Target, run_cli: RunCli, cache: Path, profile: Path, script: Any
) -> None:
    target = json.loads(profile.read_text())
    if target["key_codec"] != "zstandard":
        pytest.skip("this Python has no zstandard that could be missing on the target")
    profile.write_text(json.dumps({**target, "key_codec": "zlib", "codec": "zlib"}))
    warm("--target", profile, script(STEP))
    (entry,) = cache.glob("*-cache")
    assert entry.read_bytes()[:1] == b"\x78"
    listed = json.loads(run_cli("ls", "-C", cache, "--json").stdout)["entries"]
    assert [e["sealed"] for e in listed] == [True]
    missing = script("import sys; sys.modules['zstandard'] = None\n" + STEP, "missing.py")
    warm("--fail-on-miss", missing, env=FOUR)


def test_the_ledger_knows_where_they_come_from(
    ask: Target, warm: Target, cache: Path, profile: Path, script: Any, run_cli: RunCli
) -> None:
    cache.mkdir()
    (cache / f"jit_old-{'0' * 64}-cache").write_bytes(b"")
    (cache / f"jit_old-{'0' * 64}-atime").write_bytes(bytes(8))
    made = warm("--target", profile, script(STEP))
    (row,) = made["modules"]
    assert (cache / f"{row['key']}-atime").stat().st_size == 8
    record = Ledger.load(open_store(str(cache))).record(row["key"])
    target = json.loads(profile.read_text())
    assert record is not None
    for name in ("jaxlib_version", "platform_version"):
        assert getattr(record, name) == target[name]
    assert record.extra["topology_fingerprint"] == target["topology_fingerprint"]
    assert {"computation", "accelerator_config", "compression"} <= set(record.components or {})
    assert record.payload_sha256
    assert record.tuning is None  # nothing is tuned on a CPU
    assert row["compile_seconds"] == pytest.approx(record.compile_seconds, abs=1e-5)
    # On the target all is looked up but the old one; on a host with one device nothing.
    for env, looked_up, differs in ((FOUR, 1, []), ({}, 0, ["accelerator_config"])):
        checked = ask("target check", profile, "-C", cache, env=env, code=not looked_up)
        found = (checked["entries"], checked["for_target"], checked["looked_up"])
        assert found == (2, 1, looked_up)
        assert [d["component"] for d in checked["differences"]] == differs
    done = run_cli("verify", "-C", cache, "--json", row["key"])
    assert json.loads(done.stdout)["problems"] == []


REFUSED = {
    "other-jaxlib": {"jaxlib_version": "0.0.1"},
    "other-jax": {"jax_version": "0.0.1"},
    "no-topology": {"topology": None},
    "lost-fingerprint": {"topology_fingerprint": "1"},
    "bad-topology": {"topology": "AAAA"},
    "no-compiler": {
        "platform": "gpu",
        "lowering_platform": "rocm",
        "plugins": {"jax-rocm99-pjrt": "9.9"},
    },
}


def test_nothing_is_made_under_a_key_that_may_be_wrong(
    warm: Target, cache: Path, profile: Path, script: Any, tmp_path: Path
) -> None:
    target = json.loads(profile.read_text())
    path = script("print('started')\n" + STEP)
    for code, change in REFUSED.items():
        (tmp_path / "wrong.json").write_text(json.dumps({**target, **change}))
        error = warm("--target", "wrong.json", path, code=13)
        assert error["code"] == code
        assert not list(cache.glob("*-cache"))
    assert "install jax-rocm99-pjrt==9.9" in error["hint"]


NO_RULE = """
import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax._src import core
odd = Primitive("odd")
odd.def_abstract_eval(lambda x: x)
def rule(ctx, x):
    if "CompileOnly" in type(ctx.module_context.get_backend()).__name__:
        raise NotImplementedError("no rule for odd on this platform")
    return [x]
mlir.register_lowering(odd, rule)
assert jax.jit(odd.bind)(3.0) == 3
assert jax.jit(lambda x: x + 1)(3.0) == 4
jax.jit(abs)(jax.device_put(1.0, jax.devices()[-1]))
"""


def test_what_has_no_rule_or_no_device_there_is_named(
    warm: Target, profile: Path, script: Any
) -> None:
    made = warm("--target", profile, "--strict", "--devices", "8", script(NO_RULE), code=1)
    assert outcomes(made) == {
        ("uncacheable", "no-rule"),
        ("written", "not-in-cache"),
        ("skipped", "no-such-device"),
    }
    assert any("no rule for odd" in note for note in made["notes"])


LINALG = """
import jax, jax.numpy as jnp, numpy as np
print(float(jax.jit(jnp.linalg.cholesky)(np.eye(3, dtype=np.float32) * 4).sum()))
print(float(jax.pmap(lambda v: v * 2)(np.arange(4.0)).sum()))
"""


def test_a_recipe_is_compiled_for_a_target(
    ask: Target, cache: Path, profile: Path, script: Any, tmp_path: Path
) -> None:
    path = script(LINALG)
    ask("warm", "-C", tmp_path / "there", "--record", "all.recipe", path, env=FOUR)
    compile_ = ("compile", "all.recipe", "-C", cache, "--target")
    made = ask(*compile_, profile)["modules"]
    assert {m["outcome"] for m in made} == {"written"}
    ledger = Ledger.load(open_store(str(cache)))
    records = [ledger.record(m["key"]) for m in made]
    assert all(r and r.payload_sha256 and r.compile_seconds for r in records)
    ask("warm", "-C", cache, "--fail-on-miss", path, env=FOUR)
    target = json.loads(profile.read_text())
    for code, error, change in (
        (13, "other-jaxlib", {"jaxlib_version": "0.0.1"}),
        (2, "other-platform", {"platform": "tpu", "lowering_platform": "tpu"}),
    ):
        (tmp_path / "wrong.json").write_text(json.dumps({**target, **change}))
        assert ask(*compile_, "wrong.json", code=code)["code"] == error


# ``warm --target DIR``: entries that are made on one machine for all processes of a pod.


TWO_DEVICES = "--xla_force_host_platform_device_count=2"
#: One program of all devices, and one of the devices of each process.
PROGRAM = """
import jax, numpy as np
jax.distributed.initialize()
from jax.sharding import Mesh, NamedSharding, PartitionSpec
split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
data = np.arange(8, dtype=np.float32)
def whole(x): return (x * x).sum()
def single(x): return x * 3
x = jax.make_array_from_callback((8,), split, lambda i: data[i])
assert np.asarray(jax.jit(whole)(x)) == 140
assert np.asarray(jax.jit(single)(np.ones(3, np.float32)))[0] == 3
"""


def together(directory: Path, *words: object) -> list[tuple[int, str, str]]:
    """Run a command as both processes of a pod, as on two hosts; exit code, output and errors."""
    env = clean_environment(directory) | {
        "XLA_FLAGS": TWO_DEVICES,
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": "2",
    }

    def run(number: int) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "jaxcache", *map(str, words)]
        done = sh(command, cwd=directory, env=env | {"JAX_PROCESS_ID": str(number)})
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor() as pool:
        return list(pool.map(run, range(2)))


def counts(document: Any) -> Counter[tuple[str, str, str]]:
    return Counter((m["module"], m["outcome"], m["reason"]) for m in document["modules"])


@acts_on("on every host, as process of the pod: jaxcache target capture DIR/")
def test_every_process_of_a_pod_hits_what_was_made_for_it(
    warm: Target, python: str, cache: Path, tmp_path: Path, script: Any
) -> None:
    (tmp_path / "pod").mkdir()
    path = script(PROGRAM)
    hint = warm("--target", "pod", path, code=2)["hint"]
    assert says(hint, "on every host")
    words = hint.partition("jaxcache ")[2].split()
    words = ["pod/" if word == "DIR/" else word for word in words]
    captured = together(tmp_path, *words, "--python", python)
    assert [code for code, *_ in captured] == [0, 0], captured
    files = sorted(p.name for p in (tmp_path / "pod").iterdir())
    assert files == ["process-0-of-2.json", "process-1-of-2.json"]
    made = warm("--target", "pod", path)
    written = "written", "not-in-cache"
    assert counts(made) == {("jit_whole", *written): 2, ("jit_single", *written): 2}
    hosts = ("--processes", "2", "--devices", "2", "--fail-on-miss", "--timeout", "200s")
    assert counts(warm(*hosts, path)) == {
        ("jit_whole", "hit", "in-cache"): 2,
        ("jit_single", "hit", "in-cache"): 2,
    }
    words = ("target", "check", "pod", "-C", cache, "--json", "--python", python)
    checked = together(tmp_path, *words)
    assert [code for code, *_ in checked] == [0, 0], checked
    for _, document, _ in checked:  # the other two are of the other process
        found = json.loads(document)
        assert (found["entries"], found["for_target"], found["looked_up"]) == (4, 2, 2)


def test_a_key_that_processes_share_is_made_once(
    warm: Target, profile: Path, tmp_path: Path, script: Any
) -> None:
    # A pod in which each process knows the whole topology, as on GPUs and TPUs.
    processes = (0, 0, 1, 1)
    four = replace(read_profile(str(profile)), process_count=2, device_processes=processes)
    (tmp_path / "pod").mkdir()
    for number in (0, 1):
        one = replace(four, process_index=number).to_bytes()
        (tmp_path / "pod" / f"{number}.json").write_bytes(one)
    assert counts(warm("--target", "pod", script(PROGRAM))) == {
        ("jit_whole", "written", "not-in-cache"): 1,
        ("jit_whole", "hit", "in-cache"): 1,
        ("jit_single", "written", "not-in-cache"): 2,  # of one device each, named in the key
    }
    alone = script(PROGRAM.replace("jax.distributed.initialize()", ""), "alone.py")
    assert outcomes(warm(alone, env=FOUR)) == {("hit", "in-cache")}


# Entries that a profile guides (PGLE): labelled, and refused where nobody could make them.


#: The first function has no profile, the second brings one along.
GUIDED = """
import jax, jax.numpy as jnp, numpy as np
x = np.ones((4, 4), np.float32)
profile = {"fdo_profile": b'costs { name: "dot" cost_us: 1.0 }'}
def step(x): return jnp.sin(x) @ x
jax.jit(step)(x)
jax.jit(step, compiler_options=profile)(x)
"""


def test_an_entry_with_a_profile_is_labelled_and_no_recipe_makes_it(
    run_cli: RunCli, ask: Target, script: Any, tmp_path: Path
) -> None:
    made = ask("warm", "-C", "cache", "--record", "x.recipe", script(GUIDED))
    first, second = (m["key"] for m in made["modules"])
    for key, guided in ((first, False), (second, True)):
        shown = json.loads(run_cli("show", "-C", "cache", "--json", key).stdout)
        assert shown["compile_options"]["profile_guided"] is guided
    explained = run_cli("explain", "-C", "cache", "--json", first, second)
    (difference,) = json.loads(explained.stdout)["differences"]
    assert difference["component"] == "compile_options"
    assert "(PGLE)" in difference["right"]
    compiled = ask("compile", "x.recipe", "-C", "other", "--used-at", tmp_path / "cache")
    found = {m["key"]: m for m in compiled["modules"]}
    assert (found[first]["outcome"], found[second]["reason"]) == ("written", "pgle")
    assert not list((tmp_path / "other").glob(f"{second}*"))


def test_a_target_makes_nothing_that_follows_a_profile(
    run_cli: RunCli, warm: Target, profile: Path, python: str, script: Any
) -> None:
    guided = run_cli("target", "capture", "--python", python, env={"JAX_ENABLE_PGLE": "1"})
    assert (guided.returncode, "[profile-guided]" in guided.stderr) == (2, True)
    path = script(GUIDED.replace("x = np", 'jax.config.update("jax_enable_pgle", True)\nx = np'))
    made = warm("--target", profile, path, env={"PYTHONWARNINGS": ""})
    assert outcomes(made) == {("skipped", "profile-guided")}
