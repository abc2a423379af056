"""What a report says of savings, writers, directories and settings is so."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, jax_version
from warm_checks import STEP, Warm, assert_counts_are_jax_own

import jaxcache
from jaxcache.cache.recipe import open_recipe
from jaxcache.warm.report.builder import saved_in_series

pytestmark = pytest.mark.jax


def test_hits_at_the_same_time_save_once() -> None:
    together = [(n / 100, 1.0, 3.5) for n in range(8)]
    assert saved_in_series(together) == 3.5
    assert saved_in_series([(0, 1, 3.0), (1, 2, 4.0)]) == 7
    assert saved_in_series([(0, 1, 3.0), (0.5, 2, 4.0), (2, 3, 1.0)]) == 5
    assert saved_in_series([(0, 1, -1.0)]) == saved_in_series([]) == 0


def test_threads_save_no_more_than_one_after_another(warm: Warm, script: Any) -> None:
    path = script(
        """
        import sys, threading, jax, numpy as np
        count = int(sys.argv[1])
        def deep(x):
            for n in range(40):
                x = np.float32(n) + x @ jax.numpy.sin(x)
            return x
        start = threading.Barrier(count)
        def work():
            function = jax.jit(lambda x: deep(x))
            start.wait()
            function(np.ones((8, 8), np.float32)).block_until_ready()
        threads = [threading.Thread(target=work) for _ in range(count)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        """
    )
    warm(path, "1")
    document = warm(path, "8")
    rows = sum(m["saved_seconds"] for m in document["modules"] if m["outcome"] == "hit")
    assert 0 < document["summary"]["saved_seconds"] < rows / 2


def test_every_place_tells_the_same_hits_misses_and_savings(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    """A program with hits, a new entry in each run, and compiles that are never written."""
    path = script(
        """
        import sys, jax
        for n in range(3 + int(sys.argv[1])):
            low = 1e9 if n == 2 else 0
            jax.config.update("jax_persistent_cache_min_compile_time_secs", low)
            jax.jit(lambda x: x * n + n)(1.0)
        jax.clear_caches()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.jit(lambda x: x * n + n)(1.0)  # the first run hits what it has written
        """
    )
    restored = (
        "ci",
        "restore",
        cache.parent / "none.jxb",
        "-C",
        cache,
        "--python",
        each_jax_python,
    )
    assert run_cli(*restored).returncode == 0
    runs = []
    for number in "123":
        done = run_cli("run", "--json", "-C", cache, "--", each_jax_python, path, number)
        document = json.loads(done.stdout)
        assert_counts_are_jax_own(document)
        runs.append(document["summary"])
    names = ("hits", "misses", "saved_seconds")
    expected = {name: pytest.approx(sum(r[name] for r in runs)) for name in names}
    assert runs[2]["hits"] and runs[2]["misses"] == 2

    stats = json.loads(run_cli("stats", "-C", cache, "--json").stdout)
    assert {name: stats[name] for name in names} == expected
    assert stats["hit_rate"] == stats["hits"] / (stats["hits"] + stats["misses"])
    uses = jaxcache.open(cache).stats().uses
    assert uses and {name: getattr(uses, name) for name in names} == expected
    text = run_cli("stats", "-C", cache, "--prometheus").stdout
    found = dict(re.findall(r'jaxcache_uses\{.*counter="(\w+)"\} (.*)', text))
    assert {name: float(value) for name, value in found.items()} == expected
    job = run_cli("ci", "save", cache.parent / "job.jxb", "-C", cache, "--json")
    assert json.loads(job.stdout)["saved_seconds"] == expected["saved_seconds"]
    assert run_cli("report", cache.parent / "report.html", "-C", cache).returncode == 0
    page = (cache.parent / "report.html").read_text()
    totals = json.loads(re.search(r'"totals": ?(\{.*?\})', page)[1])  # type: ignore[index]
    assert {name.removesuffix("_seconds"): expected[name] for name in names} == {
        name: totals[name] for name in ("hits", "misses", "saved")
    }


def test_the_totals_of_the_live_layer_are_those_of_the_ledger(
    run_cli: RunCli, cache: Path, script: Any, jax_python: str
) -> None:
    path = script(
        """
        import jax
        for n in range(3):
            low = 1e9 if n == 2 else 0
            jax.config.update("jax_persistent_cache_min_compile_time_secs", low)
            jax.jit(lambda x: x * n + n)(1.0)
        """
    )
    for _ in range(2):
        done = run_cli("run", "--live", "--json", "-C", cache, "--", jax_python, path)
        assert_counts_are_jax_own(json.loads(done.stdout))
    stats = json.loads(run_cli("stats", "-C", cache, "--json").stdout)
    live = stats["live"]
    counts = (live["hits_local"] + live.get("hits_tier", 0), live["misses"])
    assert counts == (stats["hits"], stats["misses"])
    assert all(counts)


def test_each_file_has_a_writer(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    path = script(STEP)
    one = f"{each_jax_python} {path}"
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    line = f"{one} & {one} & {one} & wait"
    done = run_cli("run", "--json", "-C", cache, "--", "sh", "-c", line, env=env)
    document = json.loads(done.stdout)
    assert_counts_are_jax_own(document)
    # JAX looks and then writes, without a lock: two processes may both write one file.
    writers = {m["key"] for m in document["modules"] if m["outcome"] == "written"}
    assert writers == {path.name.removesuffix("-cache") for path in cache.glob("*-cache")}


def test_a_second_directory_and_a_reset(warm: Warm, script: Any, cache: Path) -> None:
    second = cache.parent / "second"
    path = script(
        f"""
        import jax, numpy as np
        from jax._src import compilation_cache
        one = np.ones(3, np.float32)
        jax.jit(lambda x: x + 1)(one)
        jax.config.update("jax_compilation_cache_dir", {str(second)!r})
        jax.jit(lambda x: x + 2)(one)  # JAX stays with the one that is open
        compilation_cache.reset_cache()
        jax.jit(lambda x: x + 3)(one)
        """
    )
    document = warm(path)
    for directory in (cache, second):
        files = {f.name for f in directory.glob("*-cache")}
        told = {
            f"{m['key']}-cache" for m in document["modules"] if m["cache_dir"] == str(directory)
        }
        assert files == told
    (told,) = [n for n in document["notes"] if "cache director" in n]
    assert f"{cache} (2 compiles), {second} (1 compile)" in told


def test_a_cache_that_is_turned_off_outside(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    env = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    done = run_cli("run", "-C", cache, "--", each_jax_python, script(STEP), env=env)
    assert "JAX_ENABLE_COMPILATION_CACHE in the environment turned the" in done.stderr
    assert "the program turned" not in done.stderr


def test_a_program_that_fails_in_the_end_is_recorded(
    warm: Warm, script: Any, tmp_path: Path
) -> None:
    recipe = tmp_path / "tests.recipe"
    warm(script(STEP + "raise SystemExit(1)"), options=("--record", str(recipe)), code=1)
    with open_recipe(str(recipe)) as file:
        (said,) = file.recipe.notes
    assert said == "the program exited with code 1; earlier compiles are recorded"


def test_doctor_links_nothing_onto_itself(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    if not (0, 5) <= jax_version(each_jax_python) < (0, 11):
        pytest.skip("this JAX keeps the path out of its keys")
    cache.mkdir()
    link = cache.parent / "link"
    link.symlink_to(cache)
    run_cli("warm", "-C", link, "--python", each_jax_python, script(STEP))
    said = run_cli("doctor", "-C", cache, "--python", each_jax_python).stdout
    assert f"export JAX_COMPILATION_CACHE_DIR={link}" in said.replace("\n", " ")
    assert "ln -s" not in said


def test_secrets_in_arguments_are_not_kept(warm: Warm, script: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    arguments = (
        *("--token=hush1", "--api-key", "hush2", "WANDB_API_KEY=hush3", "s3://me:hush4@host/x"),
        "https://host/x?part=1&X-Amz-Signature=hush5",
        *("--max_tokens=5", "--tokenizer", "shown", "--steps", "7"),
    )
    warm(script(STEP), *arguments, options=("--trace", str(trace)))
    text = trace.read_text()
    assert "hush" not in text
    assert "--token=*** --api-key *** WANDB_API_KEY=*** s3://***@host/x" in text
    assert "https://host/x?part=1&X-Amz-Signature=***" in text
    assert "--max_tokens=5 --tokenizer shown --steps 7" in text


def test_a_directory_of_the_program_is_in_no_command_of_ours(
    warm: Warm, run_cli: RunCli, cache: Path, script: Any, jax_python: str
) -> None:
    path = script(STEP + "import os, sys; sys.argv[1:] and os.kill(os.getpid(), 11)")
    warm(path)
    env = {"JAX_COMPILATION_CACHE_DIR": str(cache), "COLUMNS": "500"}
    done = run_cli("warm", "--python", jax_python, path, "-C", "elsewhere", env=env)
    assert done.stderr.rstrip().endswith("remove those of its modules with jaxcache rm")


def test_options_behind_the_script_get_a_note(run_cli: RunCli, cache: Path, script: Any) -> None:
    path = script("print('ran')", "train.py")
    bare = ("--python", sys.executable)
    done = run_cli("warm", *bare, "-C", cache, path, "--fail-on-miss", "-C", "x", "--steps", "1")
    note = f"note: --fail-on-miss, -C were passed to {path}; options for jaxcache go before it"
    assert done.stderr.splitlines().count(note) == 1
    done = run_cli("warm", *bare, "-C", cache, path, "--fail-on-mis", "--shape", "1")
    assert f"note: --fail-on-mis was passed to {path}; options for jaxcache" in done.stderr
    done = run_cli("warm", *bare, "-C", cache, path, "--steps", "1")
    assert "go before it" not in done.stderr
    done = run_cli("run", "-C", cache, "--", "echo", "--fail-on-miss")
    assert "go before it" not in done.stderr
