"""Every outcome and every reason that ``warm`` knows, brought about in real JAX."""

import json
import re
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, StepRuns, clean_environment, jax_version
from processes import sh
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.store import open_store

pytestmark = pytest.mark.jax


#: JAX warns of errors of the cache, and goes on.
LENIENT = {"PYTHONWARNINGS": "default"}


def test_without_writing_a_retry_fails_again(warm: Warm, script: Any, cache: Path) -> None:
    document = warm(script(STEP), options=("--fail-on-miss", "--no-write"), code=1)
    assert_counts_are_jax_own(document)
    assert outcomes(document) == {("skipped", "no-write")}
    assert not list(cache.rglob("*"))


def test_a_damaged_entry_that_was_replaced_is_written(
    warm: Warm, script: Any, each_jax_python: str, step_cache: Path
) -> None:
    if jax_version(each_jax_python) < (0, 4, 31):
        pytest.skip("the live layer knows no JAX before 0.4.31")
    (entry,) = step_cache.glob("jit_step-*-cache")
    entry.write_bytes(entry.read_bytes()[:-20])
    document = warm(script(STEP), options=("--portable", "--live"))
    assert outcomes(document, "jit_step") == {("written", "replaced")}
    assert document["summary"]["written"] == 1


LEAST = "jax_persistent_cache_min"
ENABLE = "update('jax_enable_compilation_cache', {})"
#: A function by its name: what makes it fare otherwise, and what becomes of it.
REASONS = {
    "second": ("distributed.global_state.process_id = 1", ("skipped", "not-process-0", "")),
    "keyless": ("cache_key.get = refuse_key", ("uncacheable", "key-failed", "no key today")),
    "f" * 230: ("", ("uncacheable", "name-too-long", "")),
    "full": ("files.write_bytes = fill", ("error", "write-error", "No space left")),
    "unlucky": (
        "compiler.backend_compile = compiler.backend_compile_and_load = fail",
        ("error", "compile-failed", "no compiler today"),
    ),
    "gone": ("jax.jit(lambda x: x)(3); shutil.rmtree(directory)", ("error", "write-error", "")),
    "left": (
        "update('jax_compilation_cache_dir', 'jc'); jax.jit(lambda x: x)(2); "
        "os.mkdir('x'); os.chdir('x')",
        ("error", "write-error", "/x/jc does not exist: JAX opened the relative directory jc"),
    ),
    "elsewhere": (
        "client.supports_executable_serialization = False",
        ("uncacheable", "platform", "does not cache for this platform"),
    ),
    "big": ("update('jax_compilation_cache_max_size', 10)", ("skipped", "over-cap", "")),
    "locked": (
        "lru_cache.filelock = None; update('jax_compilation_cache_max_size', 10**6); "
        "jax.jit(lambda x: x)(4)",
        ("uncacheable", "cache-not-opened", "JAX could not open the cache"),
    ),
    "off": (ENABLE.format(False), ("uncacheable", "cache-disabled", "cache is off")),
    "late": (
        f"{ENABLE.format(False)}; jax.jit(lambda x: x)(1); {ENABLE.format(True)}",
        ("uncacheable", "cache-disabled", "the cache was off at the first compile"),
    ),
    "astray": ("update('jax_compilation_cache_dir', None)", ("uncacheable", "no-directory", "")),
    "healthy": ("", ("written", "not-in-cache", "")),
    # These two stay so to the end.
    "small": (f"update('{LEAST}_entry_size_bytes', 10**9)", ("skipped", "size", "")),
    "quick": (
        f"update('{LEAST}_compile_time_secs', 100.0)",
        ("skipped", "compile-time", "under 100.0 s"),
    ),
}


REASONING = """
import contextlib, errno, os, shutil
import jax, numpy as np
from jax._src import cache_key, compilation_cache, compiler, distributed, lru_cache
try:
    from jax.errors import JaxRuntimeError as Error
except ImportError:
    from jaxlib.xla_extension import XlaRuntimeError as Error
def refuse_key(*args, **kwargs):
    raise Error("no key today")
def fill(self, data):
    raise OSError(errno.ENOSPC, "No space left on device")
def fail(*args, **kwargs):
    raise ValueError("no compiler today")
files = type(lru_cache.pathlib.Path("."))  # epath's, where it is installed
get, compile_, write = cache_key.get, dict(vars(compiler)), files.write_bytes
update, directory = jax.config.update, jax.config.jax_compilation_cache_dir
home, filelock = os.getcwd(), getattr(lru_cache, "filelock", None)
client = type(jax.devices()[0].client)
def restore():
    cache_key.get, files.write_bytes = get, write
    vars(compiler).update(compile_)
    lru_cache.filelock = filelock
    distributed.global_state.process_id = 0
    client.supports_executable_serialization = True
    os.chdir(home)
    update("jax_compilation_cache_max_size", -1)
    update("jax_enable_compilation_cache", True)
    update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()
x = np.ones(3, np.float32)
"""


def test_each_reason_in_one_program(warm: Warm, script: Any, each_jax_python: str) -> None:
    parts = [
        f"{change}\n@jax.jit\ndef {name}(x): return x + {number}\n"
        f"with contextlib.suppress(ValueError): {name}(x)\nrestore()\n"
        for number, (name, (change, _)) in enumerate(REASONS.items())
    ]
    document = warm(script(REASONING + "".join(parts)), env=LENIENT, code=1)  # not all is cached
    assert_counts_are_jax_own(document)
    for name, (_, (outcome, reason, detail)) in REASONS.items():
        row = only(document, f"jit_{name}")
        if name in ("late", "locked") and jax_version(each_jax_python) < (0, 4, 36):
            continue  # it asks at every compile; its locks were not tried
        assert (row["outcome"], row["reason"]) == (outcome, reason), name
        assert detail in (row["detail"] or ""), name
    notes = " ".join(document["notes"])
    assert "min_compile_time_secs" in notes and "min_entry_size_bytes" in notes, notes


def test_error_of_a_rotten_entry_that_jax_leaves_in_place(
    warm: Warm, script: Any, step_runs: StepRuns, step_cache: Path
) -> None:
    key = only(step_runs.cold, "jit_step")["key"]
    (path,) = (p for p in step_cache.iterdir() if p.name in (key, f"{key}-cache"))
    path.write_bytes(b"rotten")
    raising = "import contextlib, jax\njax.config.update('jax_raise_persistent_cache_errors', {})\n"
    text = f"{raising.format(True)}with contextlib.suppress(Exception):\n"
    text += textwrap.indent(STEP, " ") + raising.format(False) + STEP
    # It was not cached.
    document = warm(script(text), env=LENIENT, options=("--portable",), code=1)
    assert_counts_are_jax_own(document)
    assert outcomes(document, "jit_step") == {("error", "read-error")}
    assert path.read_bytes() == b"rotten"


# Directories that cannot be written, and that the program changes.


def test_a_refused_permission_is_recognized_by_its_number(
    run_cli: RunCli, jax_python: str, cache: Path, script: Any
) -> None:
    path = script(
        """
        import jax
        from jax._src import lru_cache

        def put(*_):
            raise PermissionError(13, "in another language")

        lru_cache.LRUCache.put = put
        jax.jit(lambda x: x)(1.0)
        """
    )
    done = run_cli("warm", "-C", cache, "--python", jax_python, path, env=LENIENT)
    assert done.returncode == 1
    assert f"not cached, because this user may not write to {cache}\n" in done.stderr


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
        done = sh(
            [
                *("unshare", "--user", "--map-root-user", "--mount"),
                *("sh", "-c", FULL, "sh", point, sys.executable, each_jax_python),
            ],
            env=clean_environment(tmp_path_factory.mktemp("home")) | LENIENT,
        )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()[-80:]}")
    assert done.stdout.splitlines() == ["6.0", "run 7", "6.0", "warm 7"], done.stderr
    assert f"could not be recorded in {point}/work/cache: its disk is full" in done.stderr
    assert "p.recipe was not written" in done.stderr


def test_a_directory_that_the_program_sets_is_reported_or_overruled(
    warm: Warm, cache: Path, script: Any, tmp_path: Path
) -> None:
    own = str(tmp_path / "own")
    path = script(f"import jax\njax.config.update('jax_compilation_cache_dir', {own!r})\n{STEP}")
    document = warm(path)
    assert any(own in note for note in document["notes"])
    assert {p["cache_dir"] for p in document["processes"]} == {own}
    document = warm(path, options=("--force-cache-dir",))
    assert {p["cache_dir"] for p in document["processes"]} == {str(cache)}
    assert list(cache.glob("jit_step-*"))


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


def test_each_file_has_a_writer(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    path = script(STEP)
    one = f"{each_jax_python} {path}"
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    line = f"{one} & {one} & wait"
    done = run_cli("run", "--json", "-C", cache, "--", "sh", "-c", line, env=env)
    document = json.loads(done.stdout)
    assert_counts_are_jax_own(document)
    # JAX looks and then writes, without a lock: two processes may both write one file.
    writers = {m["key"] for m in document["modules"] if m["outcome"] == "written"}
    listed = json.loads(run_cli("ls", "--json", "-C", cache).stdout)["entries"]
    assert {(entry["key"], entry["sealed"]) for entry in listed} == {(key, True) for key in writers}


def test_a_cache_that_is_turned_off_outside(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    env = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    fails = ("--fail-on-miss", "--except", "uncacheable")  # what a cache could serve
    done = run_cli("run", "-C", cache, *fails, "--", each_jax_python, script(STEP), env=env)
    assert done.returncode == 1
    assert "JAX_ENABLE_COMPILATION_CACHE in the environment turned the" in done.stderr
    assert "the program turned" not in done.stderr


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


# What the ledger learns, and what JAX compares with its entries.


def test_the_ledger_learns(step_runs: StepRuns) -> None:
    first, second = step_runs.cold, step_runs.hot
    ledger = Ledger.load(open_store(str(step_runs.directory / "cache")))
    row = only(first, "jit_step")
    record = ledger.record(row["key"])
    assert record is not None
    assert record.compile_seconds == pytest.approx(row["compile_seconds"], abs=1e-5)
    (process,) = first["processes"]
    script = str(step_runs.directory / "script.py")
    told = (record.script, record.function, record.hits, record.device_kind, record.xla_flags)
    assert told == (script, "step", 1, "cpu", "")
    assert (record.jax_version, record.jaxlib_version) == (process["jax"], process["jaxlib"])
    assert record.platform_version
    assert {"computation", "compile_options", "XLA flags"} <= set(record.components or {})
    assert len(record.extra["jaxlib_digest"]) == 64
    # JAX keeps whole seconds; the ledger knows better.
    assert only(second, "jit_step")["compile_seconds"] == record.compile_seconds
    assert {m["cause"] for m in second["modules"]} == {None}  # which misses alone have


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
        shutil.rmtree(cache / ".jaxcache", ignore_errors=True)  # which has them from the miss
        document = warm(path, str(out), options=options)
        record = Ledger.load(open_store(str(cache))).record(only(document, "jit_step")["key"])
        assert record is not None
        assert dict(record.components or {}) == json.loads(out.read_text())


def test_a_cache_that_learns_nothing_still_warms(warm: Warm, script: Any, cache: Path) -> None:
    cache.mkdir()
    (cache / ".jaxcache").write_text("not a directory")
    assert outcomes(warm(script(STEP))) == {("written", "not-in-cache")}


def test_check_compares_with_the_entries(
    run_cli: RunCli, script: Any, cache: Path, each_jax_python: str
) -> None:
    """It runs the program twice, and compares what the second run compiles."""
    scan = "jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + row, c), x[0], x))(jnp.ones((8, 8)))"
    path = script(f"{STEP}{scan}\nprint('ran')")
    check = ("run", "--check", "--fail-on-miss", "-C", cache, "--", each_jax_python, path)
    done = run_cli(*check, env={"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})
    assert done.stdout == "ran\nran\n"
    version = jax_version(each_jax_python)
    if version < (0, 9, 1):
        assert re.search(r"^(\d+) of \1 hits", done.stderr, re.M)
        pytest.skip("JAX before 0.9.1 compares nothing")
    counted = r"^\d+ (verified|same-hlo|not-deterministic)\b.* of \d+ compiles"
    assert re.search(counted, done.stderr, re.M)
    if version >= (0, 10):  # on CPU it compares programs where two compiles make other bytes
        assert (done.returncode, "not-deterministic" in done.stderr) == (0, False), done.stderr


def test_an_executable_that_differs_is_named(warm: Warm, script: Any, each_jax_python: str) -> None:
    if jax_version(each_jax_python) < (0, 9, 1):
        pytest.skip("this JAX does not compare executables")
    change = """
import os
from jax._src import compilation_cache as c
combine = c.combine_executable_and_time
c.combine_executable_and_time = lambda e, t: combine(e + os.urandom(4), t)
"""
    text = "import jax\n" + change + STEP
    document = warm(script(text), options=("--check",), code=1)
    assert outcomes(document) == {("error", "not-deterministic")}
    assert "does not match" in only(document, "jit_step")["detail"]


@pytest.mark.usefixtures("step_cache")
def test_contents_that_the_environment_lets_jax_check_under_the_live_layer(
    warm: Warm, step_runs: StepRuns, each_jax_python: str
) -> None:
    if jax_version(each_jax_python) < (0, 10):
        pytest.skip("this JAX does not compare executables")
    options = ("--portable", "--live")
    env = {"JAX_COMPILATION_CACHE_CHECK_CONTENTS": "1"}
    # The executable has the path of its source.
    document = warm(step_runs.directory / "script.py", options=options, env=env)
    assert only(document, "jit_step")["reason"] in ("verified", "same-hlo")
