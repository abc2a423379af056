"""``explain`` of an edit, where others than jaxcache on this machine used the cache since."""

import json
import platform
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment
from plain_jax import run_plain

pytestmark = pytest.mark.jax

PROGRAM = """
import jax, jax.numpy as jnp

def activation(x):
    return jnp.{name}(x)

@jax.jit
def step(x):
    return activation(x).sum()

step(jnp.ones((4, 4)))
"""


def test_the_path_of_a_cache_that_was_moved_is_blamed_where_it_is_in_keys(
    run_cli: RunCli, each_jax_python: str, tmp_path: Path
) -> None:
    """Plain JAX filled ``a``, which is ``b`` now, and judges with the program as it was."""
    script = tmp_path / "train.py"
    cache = tmp_path / "b"
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    plain = clean_environment(tmp_path) | env

    def use(directory: Path) -> None:
        used = {"JAX_COMPILATION_CACHE_DIR": str(directory)}
        run_plain([each_jax_python, script], env=plain | used)

    def keys() -> set[str]:
        return {path.name.removesuffix("-cache") for path in cache.glob("jit_step-*-cache")}

    script.write_text(PROGRAM.format(name="tanh"))
    use(tmp_path / "a")
    (tmp_path / "a").rename(cache)
    (old,) = keys()
    script.write_text(PROGRAM.format(name="sin"))
    options = ("-C", cache, "--python", each_jax_python, "--json", script)
    assert run_cli("warm", *options, env=env).returncode == 0
    (new,) = keys() - {old}
    compared = json.loads(run_cli("explain", old, new, "-C", cache, "--json").stdout)

    script.write_text(PROGRAM.format(name="tanh"))
    use(cache)
    is_in_keys = len(keys()) == 3
    assert ("path" in {d["cause"] for d in compared["differences"]}) is is_in_keys


def test_an_edit_after_a_hit_of_what_plain_python_compiled_is_named_since_the_recorded_run(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """The hit makes the entry, of which no program is recorded, the one that was used last."""
    script = tmp_path / "train.py"
    cache = tmp_path / "cache"
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cpu"}
    plain = clean_environment(tmp_path) | env | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    options = ("-C", cache, "--python", jax_python)
    script.write_text(PROGRAM.format(name="sin"))
    run_plain([jax_python, script], env=plain)
    keys = {path.name.removesuffix("-cache") for path in cache.glob("jit_step-*-cache")}
    script.write_text(PROGRAM.format(name="cos"))
    first_warm = run_cli("warm", *options, script, env=env).stderr
    assert "not known: the earlier program was not recorded" in first_warm
    assert "in full: " not in first_warm  # there is no more to say
    (recorded,) = {p.name.removesuffix("-cache") for p in cache.glob("jit_step-*-cache")} - keys

    script.write_text(PROGRAM.format(name="tanh"))
    words = ("explain", *options, "--json", script)
    document = json.loads(run_cli(*words, env=env).stdout)
    (step,) = (c for c in document["comparisons"] if c["module"] == "jit_step")
    assert (step["compared_with"][:6], step["left_key"]) == ("run of", recorded)
    (change,) = step["differences"]
    assert ("cos" in change["left"], "tanh" in change["right"]) == (True, True)
    warm = run_cli("warm", *options, script, env={**env, "COLUMNS": "160"}).stderr
    (row,) = (line for line in warm.splitlines() if line.startswith("jit_step"))
    assert row.endswith("cosine → tanh at train.py:5 in `activation`"), row


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a flag for x86 CPUs")
def test_an_edit_is_no_other_machine_where_another_kind_of_cpu_used_the_cache_last(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    """A flag hides features of the CPU, so that the runs with it are those of another machine."""
    script = tmp_path / "train.py"
    options = ("-C", tmp_path / "cache", "--python", jax_python)
    script.write_text(PROGRAM.format(name="tanh"))
    for flags in ("", "--xla_cpu_max_isa=SSE4_2"):
        warm = run_cli("warm", *options, script, env={"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})
        assert warm.returncode == 0, warm.stderr
    script.write_text(PROGRAM.format(name="sin"))
    env = {"JAX_PLATFORMS": "cpu"}
    document = json.loads(run_cli("explain", *options, "--json", script, env=env).stdout)
    (step,) = (c for c in document["comparisons"] if c["module"] == "jit_step")
    assert [d["cause"] for d in step["differences"]] == ["code"]
    warm = run_cli("warm", *options, script, env=env)
    (row,) = (line for line in warm.stderr.splitlines() if line.startswith("jit_step"))
    assert row.endswith("→ sine at train.py:5 in `activation`"), row
