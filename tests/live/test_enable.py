"""``jaxcache.enable()``: whatever the program and its user have done before."""

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import clean_environment
from processes import sh

from live.conftest import PROGRAM, RunLive, entries

pytestmark = pytest.mark.jax

#: Nothing is set: neither the layer, nor JAX's own settings.
FREE: dict[str, str | None] = {
    "JAXCACHE_LIVE": None,
    "JAX_COMPILATION_CACHE_DIR": None,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": None,
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": None,
}
START = "import os, sys, warnings\nimport jax, jaxcache\n"
DIRECTORY = "jax_compilation_cache_dir"


def test_before_the_first_compile_in_a_thread_and_twice(run_live: RunLive, tmp_path: Path) -> None:
    script = """
import threading
root = os.environ["XDG_CACHE_HOME"]
told = []
def work():
    told.append(jaxcache.enable(max_size="1GB", tiers=[root + "/tier"]))
thread = threading.Thread(target=work)
thread.start()
thread.join()
told.append(jaxcache.enable())  # as a library does that the program uses
told.append(jaxcache.enable(root + "/other", metrics=root + "/jax.prom"))
layer = sys.modules["jaxcache.live.layer"].LAYER
print([layer.settings["max-size"], layer.settings["tiers"], layer.adapter.layer() is layer])
print(repr(told[0]), told[1].changed, told[2].changed, sep="\\n")
"""
    ran = run_live(START + script + PROGRAM, XDG_CACHE_HOME=str(tmp_path), **FREE)
    first, shown, again, third, _ = ran.out.splitlines()
    assert first == f"[1000000000, ('{tmp_path}/tier',), True]"
    assert shown.startswith(f"jaxcache enabled (cache_dir={str(tmp_path / 'jax')!r}; live=True; ")
    assert "jax_persistent_cache_min_compile_time_secs=0.0" in shown
    assert (tmp_path / "jax").stat().st_mode & 0o777 == 0o700
    assert (again, third) == ("{}", str({DIRECTORY: f"{tmp_path}/other"}))
    assert ran["written"] == len(entries(tmp_path / "other")) > 1
    metrics = (tmp_path / "jax.prom").read_text()
    assert f"jaxcache_live_written_total {ran['written']}\n" in metrics


@pytest.mark.parametrize("before", ["", "off", "another"])
def test_after_a_compile_in_whatever_cache(run_live: RunLive, tmp_path: Path, before: str) -> None:
    state = {
        "": "",
        "off": "jax.config.update('jax_enable_compilation_cache', False)",
        "another": "jaxcache.enable(os.environ['TEST_OTHER'], live=False)",
    }[before]
    enable = """
jax.config.update("jax_enable_compilation_cache", True)
enabled = jaxcache.enable("file://" + os.environ["TEST_DIR"].replace("c", "%63"))
assert enabled.live and enabled.cache_dir == os.environ["TEST_DIR"], enabled
jax.clear_caches()
assert [first(x).tolist(), second(x).tolist()] == result
"""
    env = {"TEST_DIR": str(tmp_path / "cache"), "TEST_OTHER": str(tmp_path / "other")}
    ran = run_live(START + state + PROGRAM + enable, **FREE, **env)
    assert ran["written"] == len(entries(tmp_path / "cache")) > 1
    assert bool(entries(tmp_path / "other")) is (before == "another")


def test_what_the_user_has_set_stays(run_live: RunLive, tmp_path: Path) -> None:
    script = """
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.001)
jaxcache.enable(os.environ["JAX_COMPILATION_CACHE_DIR"])  # the same does not make it ours
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    enabled = jaxcache.enable(os.environ["TEST_OTHER"], max_size="1GB", policy="cost")
    jaxcache.enable(max_size="5MB")  # the same as the user's own
(warning,) = caught
assert warning.filename == "<string>", warning.filename
print(warning.message)
layer = sys.modules["jaxcache.live.layer"].LAYER
assert layer.settings["max-size"] == 5_000_000 and layer.settings["policy"] == "cost"
assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.001
import json
print(json.dumps(enabled.kept))
"""
    env = FREE | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "mine")}
    env |= {"JAXCACHE_LIVE_MAX_SIZE": "5MB", "TEST_OTHER": str(tmp_path / "other")}
    ran = run_live(START + script + PROGRAM, **env)
    warned, kept = ran.out.splitlines()[:2]
    other, mine = tmp_path / "other", tmp_path / "mine"
    assert f"cache_dir='{other}' (JAX_COMPILATION_CACHE_DIR is {mine})" in warned
    assert "max_size='1GB' (JAXCACHE_LIVE_MAX_SIZE sets 5000000)" in warned
    assert "policy" not in warned
    assert json.loads(kept) == {
        DIRECTORY: str(tmp_path / "mine"),
        "jax_persistent_cache_min_compile_time_secs": 0.001,
    }
    assert entries(tmp_path / "mine")
    assert not (tmp_path / "other").exists()


NO_ACCOUNT = "import pwd\npwd.getpwuid = {}.__getitem__\n"


@pytest.mark.parametrize("has_account", [True, False])
def test_an_unusable_home_is_replaced_with_one_warning(
    run_live: RunLive, tmp_path: Path, has_account: bool
) -> None:
    script = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    first_time, again = jaxcache.enable(), jaxcache.enable()
assert again.cache_dir == first_time.cache_dir
(warning,) = caught
assert warning.filename == "<string>", warning.filename
print(warning.message)
for wrong in ({"max_size": "much"}, {"cache_dir": "/proc/none/jax"}, {"maxsize": 3}):
    try:
        jaxcache.enable(**wrong)
    except jaxcache.ConfigError as error:
        print(error)
"""
    (tmp_path / "~" / ".cache" / "jax").mkdir(parents=True)
    before, env, said = "", {"XDG_CACHE_HOME": "/proc/none"}, "/proc/none/jax ("
    if not has_account:
        before, env = NO_ACCOUNT, {"HOME": None, "XDG_CACHE_HOME": None}
        said = "~/.cache/jax (no home directory is known)"
    ran = run_live(before + START + script + PROGRAM, TMPDIR=str(tmp_path), **FREE | env)
    fallback = tmp_path / f"jaxcache-{os.getuid()}"
    warned, wrong_size, wrong_directory, wrong_name, _ = ran.out.splitlines()
    assert warned.startswith(f"jaxcache: cannot use {said}")
    assert warned.endswith(f"; {fallback} is used, set cache_dir")
    assert wrong_size.startswith("enable(): max-size = 'much': write 500MB")
    assert wrong_directory.startswith("cannot use /proc/none/jax as the cache: ")
    assert wrong_name.endswith("maxsize is not a setting; did you mean max-size?")
    assert fallback.stat().st_mode & 0o777 == 0o700
    assert entries(fallback) and not entries(tmp_path / "~" / ".cache" / "jax")


IMPORTS = """
import json, sys
at_start = set(sys.modules)
import jaxcache
own = set(sys.modules) - at_start
import jax, importlib.metadata
before = set(sys.modules)
jaxcache.enable(sys.argv[1])
print(json.dumps([sorted(own), sorted(set(sys.modules) - before)]))
"""


def test_it_imports_no_package_that_jax_does_not(tmp_path: Path) -> None:
    command = (sys.executable, "-c", IMPORTS, tmp_path / "cache")
    done = sh(command, env=clean_environment(tmp_path), cwd=tmp_path, check=True)
    own, enabled = json.loads(done.stdout)
    assert own == ["jaxcache"]
    packages = {name.partition(".")[0] for name in enabled}
    assert packages <= {"jaxcache", *sys.stdlib_module_names}
    parts = {name.split(".")[1] for name in enabled if name.startswith("jaxcache.")}
    assert parts == {"core", "live"}
