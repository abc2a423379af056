"""Every outcome and every reason that ``warm`` knows, brought about in real JAX."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, StepRuns, clean_environment, jax_version
from processes import sh
from warm_checks import STEP, Warm, assert_counts_are_jax_own, only, outcomes

import jaxcache
from jaxcache.warm.report.builder import saved_in_series

pytestmark = pytest.mark.jax
#: JAX warns of errors of the cache, and goes on.
LENIENT = {"PYTHONWARNINGS": "default"}


def run_changed(warm: Warm, script: Any, before: str, **kw: Any) -> dict[str, Any]:
    """Warm STEP with some lines in front of it."""
    document = warm(script(f"import jax\n{before}\n{STEP}"), env=LENIENT, **kw)
    assert_counts_are_jax_own(document)
    return document


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


def test_a_miss_of_jax_own_operation_has_a_row_beside_hits(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str
) -> None:
    text = "import sys, jax.numpy as jnp\nx = jnp.ones((3, 3))\n"
    path = script(text + "if len(sys.argv) > 1: jnp.kron(x, x)")
    command = ("warm", "-C", cache, "--python", each_jax_python, path)
    run_cli(*command)
    (row,) = (x for x in run_cli(*command, "1").stderr.splitlines() if x.startswith("jit_"))
    assert row.split()[:2] == ["jit_kron", "written"]


CACHE = "jax_compilation_cache"
LEAST = "jax_persistent_cache_min"
#: A function by its name: what makes it fare otherwise, and what becomes of it.
REASONS = {
    "second": ("distributed.global_state.process_id = 1", ("skipped", "not-process-0", "")),
    "keyless": ("cache_key.get = refuse_key", ("uncacheable", "key-failed", "no key today")),
    "f" * 230: ("", ("uncacheable", "name-too-long", "")),
    "full": ("pathlib.Path.write_bytes = fill", ("error", "write-error", "No space left")),
    "unlucky": (
        "compiler.backend_compile = compiler.backend_compile_and_load = fail",
        ("error", "compile-failed", "no compiler today"),
    ),
    "healthy": ("", ("written", "not-in-cache", "")),
    # These two stay so to the end.
    "small": (f"update('{LEAST}_entry_size_bytes', 10**9)", ("skipped", "size", "")),
    "quick": (
        f"update('{LEAST}_compile_time_secs', 100.0)",
        ("skipped", "compile-time", "under 100.0 s"),
    ),
}
REASONING = """
import contextlib, errno, pathlib
import jax, numpy as np
from jax._src import cache_key, compiler, distributed
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
get, compile_, write = cache_key.get, dict(vars(compiler)), pathlib.Path.write_bytes
update = jax.config.update
def restore():
    cache_key.get, pathlib.Path.write_bytes = get, write
    vars(compiler).update(compile_)
    distributed.global_state.process_id = 0
x = np.ones(3, np.float32)
"""


def test_each_reason_in_one_program(warm: Warm, script: Any) -> None:
    parts = [
        f"{change}\n@jax.jit\ndef {name}(x): return x + {number}\n"
        f"with contextlib.suppress(ValueError): {name}(x)\nrestore()\n"
        for number, (name, (change, _)) in enumerate(REASONS.items())
    ]
    document = warm(script(REASONING + "".join(parts)), env=LENIENT, code=1)  # not all is cached
    assert_counts_are_jax_own(document)
    for name, (_, (outcome, reason, detail)) in REASONS.items():
        row = only(document, f"jit_{name}")
        assert (row["outcome"], row["reason"]) == (outcome, reason), name
        assert detail in (row["detail"] or ""), name
    notes = " ".join(document["notes"])
    assert "min_compile_time_secs" in notes and "min_entry_size_bytes" in notes, notes


#: What is done before the first compile; what becomes of each module, and words about it.
WHOLE = (
    (f"update('{CACHE}_max_size', 10)", "skipped", "over-cap"),
    (
        "update('jax_enable_compilation_cache', False)",
        "uncacheable",
        "cache-disabled",
        "turned the compilation cache off",
    ),
    (f"update('{CACHE}_dir', None)", "uncacheable", "no-directory", "no cache directory"),
    ("client.supports_executable_serialization = False", "uncacheable", "platform"),
)


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case[2])
def test_what_holds_for_a_whole_program(warm: Warm, script: Any, case: tuple[str, ...]) -> None:
    change, outcome, reason, *said = case
    before = f"client = type(jax.devices()[0].client); update = jax.config.update; {change}"
    document = run_changed(warm, script, before, code=int(reason == "no-directory"))
    assert outcomes(document) == {(outcome, reason)}
    told = f"{document['notes']} {only(document, 'jit_step')['detail']}"
    assert [words for words in said if words not in told] == []


def test_uncacheable_while_the_cache_was_off_at_first(
    warm: Warm, script: Any, each_jax_python: str
) -> None:
    if jax_version(each_jax_python) < (0, 4, 36):
        pytest.skip("JAX before 0.4.36 asks at every compile")
    off, on = (f"jax.config.update('jax_enable_compilation_cache', {n})" for n in (False, True))
    document = run_changed(warm, script, f"{off}; jax.jit(lambda x: x)(1); {on}")
    assert outcomes(document) == {("uncacheable", "cache-disabled")}


def test_uncacheable_host_callbacks(warm: Warm, script: Any, each_jax_python: str) -> None:
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
    cacheable = jax_version(each_jax_python) >= (0, 11)
    document = warm(path, options=("--strict",), code=0 if cacheable else 1)
    assert_counts_are_jax_own(document)
    assert outcomes(document, "jit_call") == {
        ("written", "not-in-cache") if cacheable else ("uncacheable", "host-callbacks")
    }


def test_the_exit_code_survives_a_reader_that_has_gone(
    cache: Path, tmp_path: Path, jax_python: str
) -> None:
    (tmp_path / "run.py").write_text("import jax; jax.jit(lambda x: x + 1)(1)\n")
    command = [sys.executable, "-m", "jaxcache", "warm", "--no-write", "--fail-on-miss"]
    command += ["-C", str(cache), "--python", jax_python, "run.py"]
    line = f"{shlex.join(command)} 2>&1 | head -c 0; exit ${{PIPESTATUS[0]}}"
    done = sh(["bash", "-c", line], env=clean_environment(tmp_path), cwd=tmp_path)
    assert done.returncode == 1


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


@pytest.mark.parametrize("raises", [False, True])
def test_error_of_a_rotten_entry_that_jax_leaves_in_place(
    warm: Warm, script: Any, step_runs: StepRuns, step_cache: Path, raises: bool
) -> None:
    key = only(step_runs.cold, "jit_step")["key"]
    (path,) = (p for p in step_cache.iterdir() if p.name in (key, f"{key}-cache"))
    path.write_bytes(b"rotten")
    setting = f"jax.config.update('jax_raise_persistent_cache_errors', {raises})"
    options = ("--portable",)
    document = run_changed(warm, script, setting, options=options, code=1)  # it was not cached
    assert outcomes(document, "jit_step") == {("error", "read-error")}
    if not raises:
        assert only(document, "jit_step")["counted"] == "miss"
        assert path.read_bytes() == b"rotten"


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


# What a report says of savings, writers, directories and settings is so.


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
    restored = ("ci", "restore", cache.parent / "none.jxb", "-C", cache, "--python")
    assert run_cli(*restored, each_jax_python).returncode == 0
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
    line = f"{one} & {one} & wait"
    done = run_cli("run", "--json", "-C", cache, "--", "sh", "-c", line, env=env)
    document = json.loads(done.stdout)
    assert_counts_are_jax_own(document)
    # JAX looks and then writes, without a lock: two processes may both write one file.
    writers = {m["key"] for m in document["modules"] if m["outcome"] == "written"}
    listed = json.loads(run_cli("ls", "--json", "-C", cache).stdout)["entries"]
    assert {(entry["key"], entry["sealed"]) for entry in listed} == {(key, True) for key in writers}


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
