"""Every outcome and every reason that ``warm`` knows, brought about in real JAX."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, clean_environment
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes

pytestmark = pytest.mark.jax

#: JAX warns of errors of the cache, and goes on.
LENIENT = {"PYTHONWARNINGS": "default"}


def jax_version(document: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in document["processes"][0]["jax"].split(".")[:3])


def run_changed(warm: Warm, script: Any, before: str, **kw: Any) -> dict[str, Any]:
    """Warm STEP with some lines in front of it."""
    document = warm(script(f"import jax\n{before}\n{STEP}"), env=LENIENT, **kw)
    assert_counts_are_jax_own(document)
    return document


def test_hit_and_written(warm: Warm, script: Any) -> None:
    first, second = (run_changed(warm, script, "") for _ in range(2))
    assert outcomes(first) == {("written", "not-in-cache")}
    assert outcomes(second) == {("hit", "in-cache")}
    row = only(second, "jit_step")
    assert row["retrieval_seconds"] > 0
    saved = (m["compile_seconds"] - m["retrieval_seconds"] for m in second["modules"])
    assert second["summary"]["saved_seconds"] == pytest.approx(sum(saved))


def test_a_run_that_fails_for_misses_says_that_a_retry_passes(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    command = ("warm", "-C", cache, "--python", each_jax_python, "--fail-on-miss", script(STEP))
    failed, retried = run_cli(*command), run_cli(*command)
    assert (failed.returncode, retried.returncode) == (1, 0)
    told = "All is cached now, so the next run with this cache hits; with --no-write it would fail"
    assert told in failed.stderr


def test_without_writing_a_retry_fails_again(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    command = ("warm", "-C", cache, "--python", each_jax_python, "--fail-on-miss", "--no-write")
    for _ in range(2):
        done = run_cli(*command, "--json", script(STEP))
        document = json.loads(done.stdout)
        assert_counts_are_jax_own(document)
        assert outcomes(document) == {("skipped", "no-write")}
        assert done.returncode == 1
    assert not list(cache.rglob("*"))


def test_a_damaged_entry_that_was_replaced_is_written(
    warm: Warm, script: Any, each_jax_python: str, cache: Path
) -> None:
    path = script(STEP)
    if jax_version(warm(path)) < (0, 4, 31):
        pytest.skip("the live layer knows no JAX before 0.4.31")
    (entry,) = cache.glob("jit_step-*-cache")
    entry.write_bytes(entry.read_bytes()[:-20])
    document = warm(path, options=("--live",))
    assert outcomes(document, "jit_step") == {("written", "replaced")}
    assert document["summary"]["written"] == 1


def test_a_miss_of_jax_own_operation_has_a_row_beside_hits(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    text = "import sys, jax.numpy as jnp\nx = jnp.ones((3, 3))\n"
    path = script(text + "if len(sys.argv) > 1: jnp.kron(x, x)")
    command = ("warm", "-C", cache, "--python", each_jax_python, path)
    run_cli(*command)
    (row,) = (x for x in run_cli(*command, "1").stderr.splitlines() if x.startswith("jit_"))
    assert row.split()[:2] == ["jit_kron", "written"]


def test_skipped_for_the_time(warm: Warm, script: Any) -> None:
    setting = "jax.config.update('jax_persistent_cache_min_compile_time_secs', 100.0)"
    document = run_changed(warm, script, setting)
    assert outcomes(document) == {("skipped", "compile-time")}
    assert "under 100.0 s" in only(document, "jit_step")["detail"]
    assert any("min_compile_time_secs" in note for note in document["notes"])


def test_skipped_for_the_size(warm: Warm, script: Any) -> None:
    setting = "jax.config.update('jax_persistent_cache_min_entry_size_bytes', 10**9)"
    document = run_changed(warm, script, setting)
    assert outcomes(document) == {("skipped", "size")}
    assert any("min_entry_size_bytes" in note for note in document["notes"])


def test_skipped_for_the_cap(warm: Warm, script: Any) -> None:
    document = run_changed(warm, script, "jax.config.update('jax_compilation_cache_max_size', 10)")
    assert outcomes(document) == {("skipped", "over-cap")}


def test_skipped_because_it_is_not_process_0(warm: Warm, script: Any) -> None:
    document = run_changed(
        warm, script, "from jax._src import distributed as d; d.global_state.process_id = 1"
    )
    assert outcomes(document) == {("skipped", "not-process-0")}


def test_uncacheable_host_callbacks(warm: Warm, script: Any) -> None:
    path = script(
        """
        import jax, numpy as np
        @jax.jit
        def call(x):
            jax.debug.print("{}", x)
            return x + 1
        call(np.ones(3, np.float32)).block_until_ready()
        """
    )
    document = warm(path)
    assert_counts_are_jax_own(document)
    cacheable = jax_version(document) >= (0, 11)
    assert outcomes(document, "jit_call") == {
        ("written", "not-in-cache") if cacheable else ("uncacheable", "host-callbacks")
    }
    assert warm(path, options=("--strict",), code=0 if cacheable else 1)


def test_uncacheable_platform(warm: Warm, script: Any) -> None:
    document = run_changed(
        warm, script, "type(jax.devices()[0].client).supports_executable_serialization = False"
    )
    assert outcomes(document) == {("uncacheable", "platform")}


@pytest.mark.parametrize("later", [False, True])
def test_uncacheable_while_the_cache_is_off(warm: Warm, script: Any, later: bool) -> None:
    off = "jax.config.update('jax_enable_compilation_cache', False)"
    again = "jax.jit(lambda x: x)(1); jax.config.update('jax_enable_compilation_cache', True)"
    document = run_changed(warm, script, f"{off}; {again}" if later else off)
    if later and jax_version(document) < (0, 4, 36):
        pytest.skip("JAX before 0.4.36 asks at every compile")
    assert outcomes(document) == {("uncacheable", "cache-disabled")}


def test_uncacheable_without_a_directory(warm: Warm, script: Any) -> None:
    document = run_changed(
        warm, script, "jax.config.update('jax_compilation_cache_dir', None)", code=1
    )
    assert outcomes(document) == {("uncacheable", "no-directory")}
    assert any("no cache directory" in note for note in document["notes"])


def test_the_exit_code_survives_a_reader_that_has_gone(
    cache: Path, tmp_path: Path, jax_python: str
) -> None:
    (tmp_path / "run.py").write_text("import jax; jax.jit(lambda x: x + 1)(1)\n")
    command = [sys.executable, "-m", "jaxcache", "warm", "--no-write", "--fail-on-miss"]
    command += ["-C", str(cache), "--python", jax_python, "run.py"]
    for sink in ("head -c 0", "cat"):
        line = f"{shlex.join(command)} 2>&1 | {sink}; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", line],
            env=clean_environment(tmp_path),
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1, sink


def test_operations_of_jax_are_one_line_where_there_is_no_directory(
    run_cli: RunCli, tmp_path: Path, each_jax_python: str
) -> None:
    (tmp_path / "run.py").write_text(
        "import jax, jax.numpy as jnp\njax.jit(lambda x: x @ x)(jnp.ones((4, 4)))\n"
    )
    env = {"JAX_COMPILATION_CACHE_DIR": "", "COLUMNS": "160"}
    done = run_cli("run", "--", each_jax_python, tmp_path / "run.py", env=env)
    rows = [line for line in done.stderr.splitlines() if "no-directory" in line]
    assert [row.split()[0] for row in rows] == ["jit__lambda", "and"], done.stderr
    assert rows[0].endswith("no cache directory")


def test_uncacheable_when_the_key_cannot_be_made(warm: Warm, script: Any) -> None:
    document = run_changed(
        warm,
        script,
        """
from jax._src import cache_key
try:
    from jax.errors import JaxRuntimeError as Error
except ImportError:
    from jaxlib.xla_extension import XlaRuntimeError as Error
def get(*args, **kwargs):
    raise Error("no key today")
cache_key.get = get
""",
    )
    assert outcomes(document) == {("uncacheable", "key-failed")}
    assert "no key today" in only(document, "jit_step")["detail"]


def test_uncacheable_because_of_a_long_name(warm: Warm, script: Any) -> None:
    name = "f" * 230
    document = run_changed(
        warm, script, f"exec('@jax.jit\\ndef {name}(x): return x + 1'); {name}(1.0)"
    )
    assert outcomes(document, f"jit_{name}") == {("uncacheable", "name-too-long")}


def test_error_of_a_rotten_entry_that_jax_leaves_in_place(
    warm: Warm, script: Any, cache: Path
) -> None:
    key = only(run_changed(warm, script, ""), "jit_step")["key"]
    (path,) = (p for p in cache.iterdir() if p.name in (key, f"{key}-cache"))
    path.write_bytes(b"rotten")
    for _ in range(2):
        document = run_changed(warm, script, "", code=1)  # it was not cached
        assert outcomes(document, "jit_step") == {("error", "read-error")}
        assert only(document, "jit_step")["counted"] == "miss"
    assert path.read_bytes() == b"rotten"


def test_error_of_a_write_that_fails(warm: Warm, script: Any, cache: Path) -> None:
    document = run_changed(
        warm,
        script,
        """
import errno, pathlib
def write_bytes(self, data):
    raise OSError(errno.ENOSPC, "No space left on device")
pathlib.Path.write_bytes = write_bytes
""",
        code=1,  # nothing was cached
    )
    assert outcomes(document) == {("error", "write-error")}
    assert "No space left" in only(document, "jit_step")["detail"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount")
def test_error_of_a_full_disk(warm: Warm, script: Any, cache: Path) -> None:
    cache.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(cache)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        (cache / "ballast").write_bytes(bytes(60 << 10))
        document = run_changed(warm, script, "", code=1)  # not everything was cached
        assert ("error", "write-error") in outcomes(document)
        assert "No space left" in only(document, "jit_step")["detail"]
    finally:
        subprocess.run(["umount", str(cache)], check=True)


#: A file system without room that holds the cache and everything for temporary files.
FULL = """
mount -t tmpfs -o size=256k none "$1" && mkdir "$1/tmp" "$1/work" || exit 99
printf 'import sys, jax\\nprint(jax.jit(lambda x: x * 2)(3.0))\\nsys.exit(7)\\n' > "$1/work/p.py"
for place in /tmp /var/tmp /dev/shm; do mount --bind "$1/tmp" "$place" || exit 99; done
dd if=/dev/zero of="$1/ballast" bs=4k 2> /dev/null
cd "$1/work" && "$2" -m jaxcache run -C cache -- "$3" p.py
echo "run $?"
"$2" -m jaxcache warm -C cache --python "$3" --record p.recipe p.py
echo "warm $?"
"""


def test_a_disk_without_room_keeps_no_program_from_running(
    each_jax_python: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = Path(__file__).parents[2] / "build"
    top.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=top) as point:
        done = subprocess.run(
            [
                *("unshare", "--user", "--map-root-user", "--mount"),
                *("sh", "-c", FULL, "sh", point, sys.executable, each_jax_python),
            ],
            capture_output=True,
            text=True,
            env=clean_environment(tmp_path_factory.mktemp("home")) | LENIENT,
            check=False,
        )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()[-80:]}")
    assert done.stdout.splitlines() == ["6.0", "run 7", "6.0", "warm 7"], done.stderr
    assert f"could not be recorded in {point}/work/cache: its disk is full" in done.stderr
    assert "p.recipe was not written" in done.stderr


def test_error_of_a_compile_that_fails(warm: Warm, script: Any) -> None:
    path = script(
        STEP
        + """
from jax._src import compiler
def fail(*args, **kwargs):
    raise ValueError("no compiler today")
for name in ("backend_compile", "backend_compile_and_load"):
    setattr(compiler, name, fail)
@jax.jit
def unlucky(x):
    return x + 1
try:
    unlucky(x=1.0)
except ValueError as error:
    print(error)
"""
    )
    document = warm(path, env=LENIENT)
    assert_counts_are_jax_own(document)
    assert outcomes(document, "jit_unlucky") == {("error", "compile-failed")}
    assert "no compiler today" in only(document, "jit_unlucky")["detail"]
    assert outcomes(document, "jit_step") == {("written", "not-in-cache")}


def test_errors_that_jax_is_told_to_raise(warm: Warm, script: Any, cache: Path) -> None:
    key = only(run_changed(warm, script, ""), "jit_step")["key"]
    (path,) = (p for p in cache.iterdir() if p.name in (key, f"{key}-cache"))
    path.write_bytes(b"rotten")
    before = "jax.config.update('jax_raise_persistent_cache_errors', True)"
    document = run_changed(warm, script, before, code=1)
    assert outcomes(document, "jit_step") == {("error", "read-error")}
