"""What is printed about a program and its cache is done, and plain JAX then hits."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from acting import BOUND, act, acts_on, path_of, says, with_settings
from conftest import CORPUS, RunCli, has_modules, jax_version
from plain_jax import Counts
from terminal import run_on_terminal, without_style

pytestmark = pytest.mark.jax

ALL = Counts(2, 0, 2)
NONE = "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"


def activated(jax) -> dict[str, str]:
    """An environment in which this Python is the active one."""
    return jax.env | {"PATH": path_of(jax.python), "VIRTUAL_ENV": str(Path(jax.python).parents[1])}


def fixes(jax, *words: str, code: int = 0) -> dict[str, str]:
    """What ``doctor`` says to do, by the name of the trap."""
    told = json.loads(jax.told("doctor", "--json", *words, code=code))
    return {f["trap"]: f["fix"] for f in told["findings"]}


def is_bound(python: str) -> bool:
    return BOUND[0] <= jax_version(python) < BOUND[1]


@acts_on("… should hit…")
@acts_on("… … will hit ……", jax=BOUND)
@acts_on("… … will miss …", jax=BOUND)
@acts_on("jaxcache warm --portable -C … SCRIPT (where plain JAX uses it, set …=none)", jax=BOUND)
def test_forecasts_of_a_move(program, tmp_path: Path) -> None:
    jax = program()
    cache, other = tmp_path / "cache", tmp_path / "other"
    jax.told(*jax.ways["warm"])
    jax.told("export", "b.jxb", "-C", str(cache))
    shutil.rmtree(cache)
    words = ("import", "b.jxb", "--python", jax.python, "-C")
    assert says(jax.told(*words, str(cache)), "all 2 entries should hit with jax")
    assert jax.run() == ALL

    told = jax.printed(*words, str(other))
    jax.env["JAX_COMPILATION_CACHE_DIR"] = str(other)
    if not is_bound(jax.python):
        assert says(told, "all 2 entries should hit with jax")
        assert jax.run() == ALL
        return
    assert says(told, "0 of 2 will hit here with jax")
    assert jax.run().hits == 0
    shutil.copy(next((CORPUS / "0.12.0.1-cpu-zstd").glob("*-cache")), cache)
    pushed = tmp_path / "pushed"
    assert says(jax.told("push", str(pushed), "-C", str(cache)), "2 of 3 will miss at another path")
    jax.env["JAX_COMPILATION_CACHE_DIR"] = str(pushed)
    assert jax.run().hits == 0

    act(told, tmp_path, {"SCRIPT": "program.py"}, until=" (where", **activated(jax))
    says(told)
    jax.env |= {"JAX_COMPILATION_CACHE_DIR": str(other), NONE: "none"}
    assert jax.run() == ALL
    for entry in cache.glob("*-cache"):
        (other / entry.name).unlink(missing_ok=True)
    compared = jax.told("diff", str(cache), str(other), code=1)
    assert "2 of each the same program with other compile options, as before JAX 0.11" in compared


@acts_on("ln -s … … && …", jax=BOUND)
@acts_on("ln -s … …; ", jax=BOUND)
@acts_on("JAX 0.4.36 to 0.10 hash that path into the key: these never hit here", jax=BOUND)
def test_a_cache_that_was_moved(program, tmp_path: Path) -> None:
    jax = program()
    jax.told(*jax.ways["warm"])
    (tmp_path / "cache").rename(tmp_path / "a new place")
    jax.env["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "a new place")
    explained = json.loads(jax.told(*jax.ways["explain"]))
    told = jax.told("doctor", "--json", "--python", jax.python, code=is_bound(jax.python))
    if not is_bound(jax.python):
        assert (explained["differences"], jax.run()) == ([], ALL)
        return
    path = explained["differences"][0]
    assert (path["cause"], path["left"]) == ("path", str(tmp_path / "cache"))
    trap = next(f for f in json.loads(told)["findings"] if f["trap"] == "cache-dir-in-key")
    assert says(trap["cost"], "never hit here")
    for fix in (path["fix"], trap["fix"].partition("path: ")[2].partition(". For")[0]):
        subprocess.run(fix, shell=True, check=True, cwd=tmp_path)
        jax.env = with_settings(fix, jax.env)
        assert jax.run() == ALL
        (tmp_path / "cache").unlink()


@acts_on("move it to quarantine, so that a run compiles it again: jaxcache verify")
def test_a_damaged_entry_is_explained(program, tmp_path: Path) -> None:
    jax = program()
    jax.told(*jax.ways["warm"])
    path = min((tmp_path / "cache").glob("*-cache"))
    path.write_bytes(path.read_bytes()[:-9])
    os.utime(path, (1e9, 1e9))
    named = jax.env.pop("JAX_COMPILATION_CACHE_DIR")
    told = jax.printed("explain", "-C", named, "--python", jax.python, "program.py")
    told = next(line for line in told.splitlines() if "move it to quarantine" in line)
    jax.env["JAX_COMPILATION_CACHE_DIR"] = named
    assert jax.run() == Counts(1, 1, 2)
    act(told, tmp_path)
    assert not path.exists()
    jax.run()
    assert jax.run() == ALL


@acts_on("jaxcache explain… …")
def test_a_cause_that_is_long(program, tmp_path: Path) -> None:
    jax = program()
    named = jax.env.pop("JAX_COMPILATION_CACHE_DIR")
    wide = "jax.jit(lambda {0}: {1})(*[np.ones(n + {2}) for n in range(9)])"
    names = [f"an_argument_{n}" for n in range(9)]
    for size in (1, 2):
        jax.write(wide.format(", ".join(names), "an_argument_0 * 2", size))
        told = jax.printed("warm", "-C", named, "--python", jax.python, "program.py")
    done = act(next(line for line in told.splitlines() if "in full: " in line), tmp_path)
    says(told)
    assert "an_argument_0" in done.stdout


@acts_on("jaxcache doctor")
def test_a_run_whose_cache_fails(program, tmp_path: Path) -> None:
    jax = program(JAX_COMPILATION_CACHE_MAX_SIZE="1000000000")
    (tmp_path / "cache" / "old-cache").symlink_to(tmp_path / "nowhere")
    told = jax.told(*jax.ways["run"])
    assert jax.run().hits == 0
    line = told.partition("to find the cause and the cure: ")[2].partition(" note:")[0]
    command = line.partition(str(tmp_path / "cache"))[0] + str(tmp_path / "cache")
    done = act(f"{command} --json --python {jax.python}", tmp_path, code=1, **activated(jax))
    (fix,) = (f["fix"] for f in json.loads(done.stdout)["findings"] if f["trap"] == "foreign-name")
    says("jaxcache doctor")
    subprocess.run(fix, shell=True, check=True, cwd=tmp_path)
    jax.run()
    assert jax.run() == ALL


CRASH = """
hits = []
jax.monitoring.register_event_listener(
    lambda name, **_: hits.append(name) if name.endswith("/cache_hits") else None
)
jax.jit(lambda x: x * 5)(np.ones(3))
if hits:
    os.kill(os.getpid(), 11)
"""


@acts_on("note: if it runs with JAX_ENABLE_COMPILATION_CACHE=0, an entry that it loaded may be")
def test_a_program_that_crashes_after_a_hit(program, tmp_path: Path) -> None:
    jax = program()
    jax.script.write_text(f"import os, jax, numpy as np{CRASH}")
    jax.told(*jax.ways["run"])
    told = jax.told(*jax.ways["run"], code=139)
    assert says(told, "note: if it runs with JAX_ENABLE_COMPILATION_CACHE=0")
    (key,) = jax.told("ls", "-q").split()
    assert jax.run() is None
    before, jax.env = jax.env, jax.env | {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    assert jax.run().hits == 0
    jax.env = before
    act(f"jaxcache rm{told.partition('with jaxcache rm')[2]} {key} --yes", tmp_path, **jax.env)
    assert jax.run() == Counts(0, 1, 1)


@acts_on("note: this run fills nothing and exits with 1 unless the program sets a cache directory")
def test_a_warm_without_a_directory(program, tmp_path: Path) -> None:
    jax = program()
    del jax.env["JAX_COMPILATION_CACHE_DIR"]
    place = ("-C", str(tmp_path / "other"))
    told = jax.told(*jax.ways["warm"], *place, code=1)  # the program's own options
    assert says(told, "note: this run fills nothing and exits with 1")
    assert "or add -C DIR before the script" in told
    jax.env |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "DIR")}
    assert "JAX_COMPILATION_CACHE_DIR" in with_settings(told, {})
    jax.told(*jax.ways["warm"])
    assert jax.run() == ALL


def shown(jax) -> str:
    """What ``stats`` shows on a terminal."""
    return without_style(run_on_terminal("stats", home=jax.home, width=200, env=jax.env)[1])


@acts_on("jaxcache warm SCRIPT, or jaxcache run -- CMD")
@acts_on("jaxcache run -- CMD")
def test_an_empty_cache_and_hits_that_nothing_recorded(program, tmp_path: Path) -> None:
    jax = program()
    told = shown(jax)
    assert says(told, "no entries yet; to fill the cache: jaxcache warm SCRIPT"), told
    act(told, tmp_path, {"SCRIPT": "program.py"}, until=", or", **activated(jax))
    assert jax.run() == ALL

    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    command = {"CMD": f"{jax.python} program.py"}
    act(told.partition(", or ")[2], tmp_path, command, **activated(jax))
    assert jax.run() == ALL

    shutil.rmtree(tmp_path / "cache" / ".jaxcache")
    line = next(line for line in shown(jax).splitlines() if "to record them" in line)
    act(line, tmp_path, command, **jax.env)
    assert "2 of 2 recorded requests" in shown(jax)


SLOW = """
import sys, time
import jax, numpy as np
from jax._src import compilation_cache
original = compilation_cache.compress_executable
def later(*args):
    time.sleep(2)
    return original(*args)
compilation_cache.compress_executable = later
jax.jit(lambda x: x * 5)(np.ones(3))
"""


@acts_on("fill the cache before the start: jaxcache warm SCRIPT")
def test_a_start_that_compiles_long(program, tmp_path: Path) -> None:
    jax = program()
    jax.script.write_text(SLOW)
    fix = fixes(jax, *jax.ways["doctor"][1:])["slow-compile"]
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    act(fix, tmp_path, {"SCRIPT": "program.py"}, **activated(jax))
    assert "slow-compile" not in fixes(jax, *jax.ways["doctor"][1:])


@acts_on("get the file again, or record it again: jaxcache warm --record FILE SCRIPT")
def test_a_recipe_that_is_cut_off(program, tmp_path: Path) -> None:
    jax = program()
    recipe = tmp_path / "r.jxr"
    name, *words = jax.ways["warm"]
    jax.told(name, "--record", str(recipe), *words)
    recipe.write_bytes(recipe.read_bytes()[:-40])
    compiling = ("compile", str(recipe), "--python", jax.python)
    told = jax.printed(*compiling, code=1)
    act(told, tmp_path, {"FILE": recipe, "SCRIPT": "program.py"}, **activated(jax))
    jax.told(*compiling)


@acts_on("run programs with jaxcache run -- CMD; or install jaxcache[remote] next to that jax")
def test_a_bucket_that_jax_itself_cannot_open(program, bucket: str, tmp_path: Path) -> None:
    jax = program(JAX_COMPILATION_CACHE_DIR=bucket)
    if has_modules(jax.python, "etils.epath") or not has_modules(jax.python, "obstore"):
        pytest.skip("this JAX opens buckets, or nothing here does")
    fix = fixes(jax, "--python", jax.python, code=1)["bucket-library-missing"]
    says(fix)
    act(fix, tmp_path, {"CMD": f"{jax.python} program.py"}, until=";", **activated(jax))
    assert len(jax.told("ls", "-q").split()) == 2


@acts_on("jaxcache pull … -C …", jax=BOUND)
@acts_on("fill it under its own address: jaxcache warm -C … SCRIPT", jax=BOUND)
@acts_on("… JAXCACHE_LIVE=1, or start programs with jaxcache run -C … -- CMD")
def test_entries_in_a_bucket(program, run_cli: RunCli, bucket: str, tmp_path: Path) -> None:
    jax = program()
    if not has_modules(jax.python, "obstore"):
        pytest.skip(f"{jax.python} has no obstore")
    cache = tmp_path / "cache"
    jax.told(*jax.ways["warm"])
    jax.told("push", bucket)
    shutil.rmtree(cache)
    env = activated(jax)

    def fix_of(trap: str, place: str) -> str:
        words = ("doctor", "--json", "-C", place, "--python", jax.python)
        unset = {name: text for name, text in jax.env.items() if not name.endswith("_DIR")}
        told = json.loads(run_cli(*words, env=unset).stdout)
        return str(next(f["fix"] for f in told["findings"] if f["trap"] == trap))

    if is_bound(jax.python):
        act(fix_of("cache-dir-in-key", bucket), tmp_path, until=". For", **env)
        assert jax.run() == ALL

    del env["JAX_COMPILATION_CACHE_DIR"]
    first = f"{bucket}-one"
    warm = ("warm", "-C", first, "--python", jax.python, "program.py")
    assert run_cli(*warm, env=env, cwd=tmp_path).returncode == 0
    jax.told("copy", first, f"{bucket}-two")
    if is_bound(jax.python):
        fix = fix_of("cache-dir-in-key", f"{bucket}-two")
        act(fix, tmp_path, {"SCRIPT": "program.py"}, until=". For", **env)
        warm = ("warm", "--fail-on-miss", "-C", f"{bucket}-two", *warm[3:])
        assert run_cli(*warm, env=env, cwd=tmp_path).returncode == 0

    fix = fix_of("no-cache-dir", first).replace(" -- ", " --fail-on-miss -- ")
    act(fix, tmp_path, {"CMD": f"{jax.python} program.py"}, **env)
