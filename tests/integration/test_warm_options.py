"""What ``warm`` and ``run`` can be asked for beyond a plain run."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, StepRuns, jax_version
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.store import open_store

pytestmark = pytest.mark.jax

#: A program that works alone and as one of several processes.
SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("x",))
split = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback((8,), split, lambda i: np.arange(8, dtype=np.float32)[i])
def total(x):
    return jnp.sum(x * 2)
value = float(jax.jit(total, out_shardings=NamedSharding(mesh, P()))(x))
print("process", jax.process_index(), "of", jax.process_count(), "says", value)
assert value == 56
"""


def test_fail_on_miss_stands_alone(
    warm: Warm, script: Any, run_cli: RunCli, cache: Path, each_jax_python: str
) -> None:
    path = script(STEP)
    command = ("warm", "-C", cache, "--python", each_jax_python, "--fail-on-miss")
    failed = run_cli(*command, path)
    told = "All is cached now, so the next run with this cache hits; with --no-write it would fail"
    assert (failed.returncode, told in failed.stderr) == (1, True)
    warm(script(STEP.replace("sin", "cos")), options=("--fail-on-miss", "1"))
    warm(script(STEP.replace("sin", "tan")), options=("--fail-on-miss=0.0001s",), code=1)
    done = run_cli("warm", "-C", cache, "--fail-on-miss=often", path)
    assert (done.returncode, "bad-duration" in done.stderr) == (2, True)
    assert not list(cache.glob("jit_often*"))


def test_the_ledger_learns(step_runs: StepRuns) -> None:
    first, second = step_runs.cold, step_runs.hot
    ledger = Ledger.load(open_store(str(step_runs.directory / "cache")))
    row = only(first, "jit_step")
    record = ledger.record(row["key"])
    assert record is not None
    assert record.compile_seconds == pytest.approx(row["compile_seconds"], abs=1e-5)
    path = str(step_runs.directory / "script.py")
    assert (record.script, record.function, record.hits) == (path, "step", 1)
    (process,) = first["processes"]
    assert (record.jax_version, record.jaxlib_version) == (process["jax"], process["jaxlib"])
    assert record.platform_version
    assert record.device_kind == "cpu"
    assert record.xla_flags == ""
    assert {"computation", "compile_options", "XLA flags"} <= set(record.components or {})
    assert len(record.extra["jaxlib_digest"]) == 64
    # JAX keeps whole seconds; the ledger knows better.
    assert only(second, "jit_step")["compile_seconds"] == record.compile_seconds


def test_components_are_those_that_jax_logs(warm: Warm, script: Any, cache: Path) -> None:
    path = script(
        """
        import logging, json, jax
        said = {}
        class Keep(logging.Handler):
            def emit(self, record):
                if record.msg.startswith("get_cache_key hash of serialized"):
                    said[record.args[0]] = record.args[1]
        log = logging.getLogger("jax._src.cache_key")
        log.setLevel(logging.DEBUG), log.addHandler(Keep())
        """
        + textwrap.indent(STEP, " " * 8)
        + '        import sys; open(sys.argv[1], "w").write(json.dumps(said))'
    )
    out = path.with_suffix(".json")
    for options in ((), ("--components",)):
        document = warm(path, str(out), options=options)
        record = Ledger.load(open_store(str(cache))).record(only(document, "jit_step")["key"])
        assert record is not None
        assert dict(record.components or {}) == json.loads(out.read_text())


def test_a_cache_that_learns_nothing_still_warms(warm: Warm, script: Any, cache: Path) -> None:
    cache.mkdir()
    (cache / ".jaxcache").write_text("not a directory")
    assert outcomes(warm(script(STEP))) == {("written", "not-in-cache")}


def test_check_compares_with_the_entries(
    warm: Warm, script: Any, run_cli: RunCli, cache: Path, each_jax_python: str
) -> None:
    scan = "jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + row, c), x[0], x))(jnp.ones((8, 8)))"
    path = script(f"{STEP}{scan}\nprint('ran')")
    document = warm(path, options=("--check", "--fail-on-miss"), code=None)
    version = jax_version(each_jax_python)
    if version < (0, 9, 1):
        assert outcomes(document) == {("hit", "in-cache")}
        pytest.skip("JAX before 0.9.1 compares nothing")
    same = {("skipped", "verified"), ("skipped", "same-hlo")}
    assert outcomes(document) <= {*same, ("error", "not-deterministic")}
    assert document["script_exit_code"] == 0
    check = ("run", "--check", "--fail-on-miss", "-C", cache, "--", each_jax_python, path)
    page = run_cli(*check, env={"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})
    counted = r"^\d+ (verified|same-hlo|not-deterministic)\b.* of \d+ compiles"
    assert re.search(counted, page.stderr, re.M)
    if version >= (0, 10):  # on CPU it compares programs
        assert outcomes(document) <= same
        assert any("the same optimized HLO" in m["detail"] for m in document["modules"])
        assert page.returncode == 0


def test_an_executable_that_differs_is_named(warm: Warm, script: Any) -> None:
    change = """
import os
from jax._src import compilation_cache as c
combine = c.combine_executable_and_time
c.combine_executable_and_time = lambda e, t: combine(e + os.urandom(4), t)
"""
    text = "import jax\n" + change + STEP
    document = warm(script(text), options=("--check",), code=1)
    if not any("check_contents" in s for s in document["processes"][0]["settings"]):
        pytest.skip("this JAX has no jax_compilation_cache_check_contents")
    version = tuple(map(int, document["processes"][0]["jax"].split(".")[:3]))
    if version >= (0, 9, 1):
        assert outcomes(document) == {("error", "not-deterministic")}
        assert "does not match" in only(document, "jit_step")["detail"]


def test_trace_opens_in_perfetto(step_runs: StepRuns) -> None:
    for name, expected in (
        ("cold", ["trace", "lower", "compile", "write"]),
        ("hot", ["trace", "lower", "retrieve"]),
    ):
        events = json.loads((step_runs.directory / name).read_text())["traceEvents"]
        step = [e for e in events if e["ph"] == "X" and e["name"].endswith(" jit_step")]
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in step)
        assert [e["cat"] for e in sorted(step, key=lambda e: e["ts"])] == expected
        assert any(e["ph"] == "M" and "script.py" in e["args"]["name"] for e in events)


#: On CPU the processes' keys differ in ``accelerator_config``; as they do not on other hardware.
EQUAL_KEYS = "from jax._src import cache_key; cache_key._hash_accelerator_config = lambda *a: None"


def by_process_id(document: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """What became of the sharded sum, by the process's number in the program."""
    told = {p["process"]: p["process_id"] for p in document["processes"]}
    assert sorted(told.values()) == [0, 1]
    rows = [m for m in document["modules"] if m["module"] == "jit_total"]
    return {told[m["process"]]: (m["outcome"], m["reason"]) for m in rows}


TOGETHER = ("--processes", "2", "--timeout", "120s")


def test_only_process_0_writes(warm: Warm, script: Any) -> None:
    path = script(SHARDED)
    document = warm(path, options=TOGETHER)
    assert_counts_are_jax_own(document)
    written, left = ("written", "not-in-cache"), ("skipped", "not-process-0")
    assert by_process_id(document) == {0: written, 1: left}
    assert sum("made another key" in note for note in document["notes"]) == 1
    again = by_process_id(warm(path, options=TOGETHER))
    assert again == {0: ("hit", "in-cache"), 1: left}


def test_processes_with_equal_keys_share(warm: Warm, script: Any) -> None:
    path = script(EQUAL_KEYS + "\n" + SHARDED)
    env = {"JAX_SHARE_BINARY_BETWEEN_HOSTS": "true"}
    document = warm(path, options=TOGETHER, env=env)
    assert_counts_are_jax_own(document)
    became = by_process_id(document)
    assert became[0] == ("written", "not-in-cache")
    # The slower process may find on disk what the other has just written.
    assert became[1] in (("skipped", "shared-by-process-0"), ("hit", "in-cache"))
    again = by_process_id(warm(path, options=TOGETHER, env=env))
    assert set(again.values()) == {("hit", "in-cache")}


def test_one_process_that_fails_ends_all(warm: Warm, script: Any) -> None:
    path = script(
        "import jax, time, os\nos._exit(5) if jax.process_index() == 1 else time.sleep(100)"
    )
    document = warm(path, options=("--processes", "2", "--timeout", "60s"), code=None)
    assert document["script_exit_code"] != 0
    assert not document["timed_out"]


def test_warm_without_a_program_is_refused(run_cli: RunCli, cache: Path) -> None:
    done = run_cli("warm", "-C", cache)
    assert (done.returncode, "name a script, or a module with -m" in done.stderr) == (2, True)


def test_portable_keys_hit_in_another_directory(
    step_runs: StepRuns, run_cli: RunCli, tmp_path: Path, each_jax_python: str
) -> None:
    """Also where the program is run by hand with the setting, and where a recipe is compiled."""
    if jax_version(each_jax_python) < (0, 5):
        pytest.skip("recipes are compiled by JAX 0.5 and later")
    assert any("XLA_CACHES=none" in note for note in step_runs.cold["notes"])
    path, recipe = step_runs.directory / "script.py", tmp_path / "step.recipe"
    python = ("--python", each_jax_python)
    by_hand = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
    for command in (
        ("copy", step_runs.directory / "cache", tmp_path / "there"),
        ("warm", "-C", tmp_path / "there", "--portable", "--fail-on-miss", *python, path),
        ("warm", "-C", tmp_path / "recorded", "--record", recipe, *python, path),
        ("compile", recipe, "--portable", "-C", tmp_path / "made", *python),
        ("run", "-C", tmp_path / "made", "--fail-on-miss", "--", each_jax_python, path),
    ):
        done = run_cli(*command, env=by_hand if command[0] == "run" else None)
        assert done.returncode == 0, done.stderr


def test_quiet_prints_the_keys(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    path = script(STEP + "print('hello')\n")
    done = run_cli("warm", "-q", "-C", cache, "--python", each_jax_python, path)
    assert done.returncode == 0, done.stderr
    names = {f"{key}-cache" for key in done.stdout.split()}
    assert names == {file.name for file in cache.glob("*-cache")}
    assert done.stderr == "hello\n"


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.usefixtures("step_cache")
def test_contents_that_the_environment_lets_jax_check(
    warm: Warm, step_runs: StepRuns, each_jax_python: str, live: bool
) -> None:
    if jax_version(each_jax_python) < (0, 10):
        pytest.skip("this JAX does not compare executables")
    options = ("--portable", "--live") if live else ("--portable",)
    env = {"JAX_COMPILATION_CACHE_CHECK_CONTENTS": "1"}
    # The executable has the path of its source.
    document = warm(step_runs.directory / "script.py", options=options, env=env)
    assert only(document, "jit_step")["reason"] in ("verified", "same-hlo")


def test_metadata_in_keys_is_named(warm: Warm, script: Any) -> None:
    env = {"JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1"}
    notes = warm(script(STEP), env=env)["notes"]
    assert any("include_metadata_in_key is on: files and line numbers" in n for n in notes)
