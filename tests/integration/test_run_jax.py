"""``run`` of real programs: its records, its terminal, and Pythons that it cannot observe."""

import json
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, clean_environment
from once import fill_once
from processes import sh
from terminal import Terminal, without_style
from warm_checks import STEP, only

from jaxcache.cache.bundle.format import encode_manifest, open_bundle, read_bundle
from jaxcache.core import runs
from jaxcache.core.runs import Record

pytestmark = pytest.mark.jax
PASSWORD = "correct-horse-battery"
HELPER = """
import jax, jax.numpy as jnp

@jax.jit
def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)

def slope(w, x):
    return jax.grad(loss)(w, x)
"""
PROGRAM = f"""
import jax, jax.numpy as jnp, sys
from model import loss, slope
jax.config.update("jax_default_matmul_precision", "highest")
password = "{PASSWORD}"
w = jnp.ones((4, 4))
x = jnp.ones((int(sys.argv[-1]) if len(sys.argv) > 1 else 8, 4))
loss(w, x)
slope(w, x)
"""


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a cache may come to be: always the same path, which may be in keys."""
    path = tmp_path_factory.getbasetemp() / "records" / "cache"
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(exist_ok=True)
    return path


@pytest.fixture
def program(cache: Path) -> Path:
    directory = cache.with_name("project")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / "model.py").write_text(HELPER)
    (directory / "train.py").write_text(PROGRAM)
    for path in directory.iterdir():  # clearly before the runs
        os.utime(path, (1e9, 1e9))
    return directory / "train.py"


def records(cache: Path) -> list[Record]:
    paths = sorted((cache / runs.RUNS_DIR).glob("*"))
    found = (runs.decode(p.read_bytes()) for p in paths if runs.is_record(p.name))
    return [record for record in found if record]


def warm(run_cli: RunCli, cache: Path, *words: str | Path, cwd: Path) -> None:
    done = run_cli("warm", "-C", cache, *words, cwd=cwd)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def recorded(run_cli: RunCli, cache: Path, program: Path) -> Path:
    """The program, after its first run."""
    fill_once(cache, lambda: warm(run_cli, cache, program.name, "8", cwd=program.parent))
    return program


@pytest.mark.usefixtures("recorded")
def test_a_run_records_where_and_how_each_key_was_made(cache: Path) -> None:
    (record,) = records(cache)
    (run,) = record.runs
    assert (record.program, run.argv, record.travelled) == ("train.py", ("8",), False)
    own = [row for row in run.rows if row.function == "loss"]
    assert [(r.kind, r.file, r.line, r.call_file, r.call_line) for r in own] == [
        ("primal", "model.py", 4, "train.py", 8),
        ("linearize", "model.py", 4, "model.py", 9),
        ("backward", "model.py", 4, "model.py", 9),
    ]
    assert {row.definition for row in own} == {runs.digest_line(b"def loss(w, x):")}
    assert own[0].call == runs.digest_line(b"loss(w, x)")
    assert "eager" in {row.kind for row in run.rows}
    assert all(row.outcome == "written" and row.seconds > 0 for row in own)
    assert len({row.signature for row in own}) == 3
    assert run.settings == {"jax_default_matmul_precision": ["highest", "code"]}
    assert run.versions.keys() >= {"jax", "jaxlib"}
    assert {n: len(d) // 8 for n, d in run.sources.items()} == {
        "model.py": HELPER.count("\n"),
        "train.py": PROGRAM.count("\n"),
    }


def test_a_hit_is_recorded_too_and_an_equal_run_once(
    run_cli: RunCli, cache: Path, recorded: Path
) -> None:
    cold = records(cache)[0].runs[0]
    warm(run_cli, cache, recorded, "8", cwd=cache.parent)
    (record,) = records(cache)
    (hot,) = record.runs
    assert hot.at > cold.at
    hit = {"outcome": "hit", "reason": "in-cache", "written": cold.at}
    assert [*hot.rows] == [row._replace(**hit) for row in cold.rows]
    assert hot.sources == cold.sources


def test_an_edit_changes_the_digest_of_its_line_alone(
    run_cli: RunCli, cache: Path, recorded: Path
) -> None:
    model = recorded.with_name("model.py")
    model.write_text(HELPER.replace("** 2", "** 3"))
    os.utime(model, (1e9, 1e9))
    command = ("run", "-C", cache, "--", sys.executable, recorded.name, "8")
    assert run_cli(*command, cwd=recorded.parent).returncode == 0
    new, old = (run.sources["model.py"] for run in records(cache)[0].runs)
    changed = [n // 8 + 1 for n in range(0, len(old), 8) if old[n : n + 8] != new[n : n + 8]]
    assert changed == [6]


def run_python(*words: str, cwd: Path, **variables: str) -> None:
    env = {**clean_environment(cwd), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **variables}
    sh([sys.executable, *words], cwd=cwd, env=env, check=True)


def test_watch_records_the_blocks_of_a_process_as_one_run(cache: Path, program: Path) -> None:
    text = (
        "import jaxcache, jax\n"
        "with jaxcache.watch():\n    jax.jit(lambda x: x * 3)(2.0)\n"
        "with jaxcache.watch():\n    jax.jit(lambda x: x * 4)(2.0)\n"
    )
    program.write_text(text)
    os.utime(program, (1e9, 1e9))
    run_python("train.py", "--n", "3", cwd=program.parent, JAX_COMPILATION_CACHE_DIR=str(cache))
    (record,) = records(cache)
    (run,) = record.runs
    assert (record.program, run.argv) == ("train.py", ("--n", "3"))
    assert [(row.call_line, row.outcome) for row in run.rows] == [(3, "written"), (5, "written")]


def test_the_live_layer_records_its_keys_and_keeps_what_is_known_of_them(
    cache: Path, recorded: Path
) -> None:
    (known,) = records(cache)[0].runs
    recorded.write_text(f"{PROGRAM}jax.jit(lambda x: x * 3)(2.0)\n")
    live = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAXCACHE_LIVE": "1"}
    run_python("train.py", "8", cwd=recorded.parent, **live)
    *hits, new = ((r.key, r.outcome, r.kind) for r in records(cache)[0].runs[0].rows)
    assert sorted(hits) == sorted((row.key, "hit", row.kind) for row in known.rows)
    assert new[1:] == ("written", "")


def test_pytest_records_the_run_of_its_tests(cache: Path, script: Any, tmp_path: Path) -> None:
    script("import jax\ndef test_it():\n    jax.jit(lambda x: x * 3)(2.0)\n", "test_it.py")
    plugin = ("-m", "pytest", "-p", "jaxcache.inprocess.pytest_plugin", f"--jaxcache={cache}")
    run_python(*plugin, "-q", cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    (record,) = records(cache)
    assert record.program == "-m pytest"
    assert [(r.call_file, r.call_line) for r in record.runs[0].rows] == [("test_it.py", 3)]


def test_nothing_private_leaves_the_cache(
    run_cli: RunCli, cache: Path, program: Path, tmp_path: Path
) -> None:
    words = (f"--name={PASSWORD}", PASSWORD, "--password", PASSWORD, "8")
    command = ("warm", "-C", cache, "--portable", program.name, *words)
    done = run_cli(*command, cwd=program.parent, env={"API_PASSWORD": PASSWORD})
    assert done.returncode == 0, done.stderr
    bundle, pushed, imported = tmp_path / "all.jxb", tmp_path / "pushed", tmp_path / "imported"
    for line in (
        ("push", "-C", cache, pushed),
        ("export", "-C", cache, bundle),
        ("import", "-C", imported, bundle),
    ):
        assert run_cli(*line).returncode == 0
    with open_bundle(str(bundle)).file as file:
        manifest = encode_manifest(read_bundle(file, "all.jxb").manifest)
    assert b'"runs":{' in manifest
    assert PASSWORD.encode() not in manifest
    (own,) = records(cache)
    for place in (cache, pushed, imported):
        for path in (place / runs.RUNS_DIR).iterdir():
            data = path.read_bytes()
            head, _, packed = data.partition(b"\n")
            text = head + zlib.decompress(packed) if runs.is_record(path.name) else data
            for private in (PASSWORD, str(tmp_path), str(cache.parent), "API_PASSWORD"):
                assert private.encode() not in text
    for place in (pushed, imported):
        assert not list((place / runs.RUNS_DIR).glob("salt*"))
        (record,) = records(place)
        assert record.travelled
        assert record.runs[0].argv == ("--name=#", "#", "--password", "***", "8")
        assert record.runs[0].rows == own.runs[0].rows


@pytest.mark.usefixtures("recorded")
def test_records_are_the_caches_own_for_every_command(run_cli: RunCli, cache: Path) -> None:
    before = records(cache)
    verified = run_cli("verify", "-C", cache, "--fix")
    assert (verified.returncode, "runs" in verified.stdout) == (0, False)
    pruned = run_cli("prune", "-C", cache, "--max-size", "0", "--grace", "0s", "--yes")
    assert pruned.returncode == 0
    assert records(cache) == before


# A terminal shows what a program prints under ``warm`` and ``run``, byte for byte.


#: Compiles for half a second or more in the middle of a line, while another thread prints.
TERMINAL_PROGRAM = """
import threading, time
import jax, jax.numpy as jnp

def tick():
    for number in range(8):
        time.sleep(0.1)
        print(f"tick {number} from a thread", flush=True)

@jax.jit
def slow(x):
    for i in range(40):
        x = jnp.sin(x) @ jnp.cos(x) + i
    return x

lowered = slow.lower(jnp.ones((8, 8)))
thread = threading.Thread(target=tick)
print("\\x1b[32mcompiling\\x1b[0m ...", end=" ", flush=True)
thread.start()
lowered.compile()
thread.join()
print("done\\n50 %", end="\\r", flush=True)
print("100 %", flush=True)
"""
BEFORE = "\x1b[32mcompiling\x1b[0m ... tick 0 from a thread\n"
PRINTED = BEFORE + "".join(f"tick {n} from a thread\n" for n in range(1, 8)) + "done\n50 %\r100 %\n"


@pytest.fixture
def start(jax_python: str, script: Any, cache: Path, tmp_path: Path) -> Callable[[str], Terminal]:
    """Start a command with the program in a terminal."""

    def begin(command: str) -> Terminal:
        cache.mkdir(exist_ok=True)
        words = ["--" if command == "run" else "--python", jax_python, script(TERMINAL_PROGRAM)]
        return Terminal(
            [sys.executable, "-m", "jaxcache", command, "-C", cache, *words], home=tmp_path
        )

    return begin


@pytest.mark.parametrize("command", ["warm", pytest.param("run", marks=pytest.mark.slow)])
def test_nothing_is_drawn_over_what_a_program_prints(start: Any, command: str) -> None:
    terminal = start(command)
    terminal.wait_for("tick 2 ")  # the compile goes on
    terminal.resize(40)
    assert terminal.finish() == 0, terminal.text
    shown, report, _ = terminal.text.partition("0 of ")
    assert shown == PRINTED
    assert report


@pytest.mark.parametrize(
    ("command", "told"),
    [
        pytest.param("warm", "note: interrupted", marks=pytest.mark.slow),
        ("explain", "interrupted; the explanation ends with the compile that was running"),
    ],
)
def test_ctrl_c_leaves_no_line_of_ours_behind_and_lists_the_compile_that_was_running(
    start: Any, command: str, told: str
) -> None:
    terminal = start(command)
    terminal.wait_for("tick 1 ")
    terminal.press("\x03")
    # Without jaxcache, too, JAX may end by SIGSEGV: its threads compile on while Python exits.
    assert terminal.finish() in (128 + signal.SIGINT, 128 + signal.SIGSEGV), terminal.text
    assert terminal.text.startswith(BEFORE)
    assert told in " ".join(terminal.text.split())
    lines = without_style(terminal.text).splitlines()
    (row,) = [line for line in lines if line.startswith("jit_slow")]
    assert command == "explain" or ("interrupted" in row and "error" not in row)


# Pythons that the listener does not reach: another way in, or an assertion that fails.


def make_environment(each_jax_python: str, directory: Path) -> Path:
    """Make a virtual environment that finds the jax of another Python; its site-packages."""
    sh([each_jax_python, "-m", "venv", "--without-pip", directory], check=True)
    where = "import importlib.util as u; print(u.find_spec('jax').origin)"  # imports nothing
    origin = sh([each_jax_python, "-c", where], check=True).stdout.strip()
    (site,) = directory.glob("lib/python3*/site-packages")
    (site / "a.pth").write_text(f"{Path(origin).parents[1]}\n{REPOSITORY}\n")
    return site


def test_jaxcache_beside_jax_is_another_way_in(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    site = make_environment(each_jax_python, tmp_path / "venv")
    pth = REPOSITORY / "jaxcache" / "injected" / "startup" / "jaxcache.pth"
    (site / "jaxcache.pth").write_text(pth.read_text())
    beside = str(tmp_path / "venv" / "bin" / "python")
    threshold = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "3600"}
    for way in (("-I",), ()):  # which loses PYTHONPATH, and with both ways in
        command = ("run", "--json", "-C", cache, "--fail-on-miss", "--", beside, *way)
        done = run_cli(*command, script(STEP), env=threshold)
        document = json.loads(done.stdout)
        step = only(document, "jit_step")  # it listens once
        assert (step["outcome"], step["reason"]) == ("skipped", "compile-time"), done.stderr
        assert not list(cache.glob("*-cache")), "run leaves the thresholds alone"
        assert (done.returncode, document["unobserved"]) == (1, [])
    # Only where it was asked to.
    text = "import sys; assert not [m for m in sys.modules if 'jaxcache' in m]"
    sh([beside, "-c", text], check=True, env={"PATH": os.environ["PATH"]})


def test_what_was_not_heard_fails_every_assertion(
    run_cli: RunCli, cache: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "r.recipe"
    options = ("--fail-on-miss", "--strict", "--record", recipe)
    done = run_cli("run", "-C", cache, *options, "--", "true")
    assert (done.returncode, recipe.exists()) == (1, False)
    assert "no use of jax was seen" in done.stderr
    assert "failed: not every compile could be observed" in done.stderr
    assert "failed: nothing was recorded" in done.stderr


#: Uses one module; where nothing was asked of it, waits for another that comes from a tier.
FETCHED = """
    import glob, os, sys, time
    import jax, jax.numpy as jnp
    x = jax.device_put(jnp.ones(3))
    jax.jit(lambda x: jnp.cos(x) - 2)(x)
    if "all" in sys.argv:
        @jax.jit
        def other(x):
            return jnp.sin(x) @ x
        other(x)
    end = time.monotonic() + 120
    pattern = os.environ["JAX_COMPILATION_CACHE_DIR"] + "/jit_other-*-cache"
    while not glob.glob(pattern) and time.monotonic() < end:
        time.sleep(0.01)
"""


def test_an_entry_fetched_ahead_needs_no_compile_request_and_one_unheard_is_told(
    run_cli: RunCli, cache: Path, script: Any, each_jax_python: str, tmp_path: Path
) -> None:
    """Without a tier, ``test_hook.py`` has what is unheard."""
    make_environment(each_jax_python, tmp_path / "venv")  # whose directory has no jaxcache.pth
    alone, path = str(tmp_path / "venv" / "bin" / "python"), script(FETCHED)
    command = ("run", "--json", "-C", cache, "--tier", tmp_path / "tier")
    env = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    run_cli(*command, "--", alone, path, "all", env=env)
    shutil.rmtree(cache)
    unheard = script("import jax\njax.jit(lambda x: x + 5)(1.0)", "unheard.py")
    line = f"{alone} {path} && {alone} -I {unheard}"
    done = run_cli(*command, "--fail-on-miss", "--", "sh", "-c", line, env=env)
    document = json.loads(done.stdout)
    assert list(cache.glob("jit_other-*"))
    assert not [m for m in document["modules"] if m["module"] == "jit_other"]
    assert (done.returncode, document["summary"]["written"]) == (1, 0), done.stderr
    (told,) = document["unobserved"]
    assert told.startswith("1 entry was written that no process reported, such as jit__lambda")


def test_a_program_that_fails_before_it_uses_jax_is_said_to_fail(
    run_cli: RunCli, cache: Path, script: Any, jax_python: str
) -> None:
    path = script("import jax\ndef step(:\n")
    cache.mkdir(exist_ok=True)
    for command in ("warm", "explain"):
        done = run_cli(command, "-C", cache, "--python", jax_python, path)
        assert done.returncode == 1, done.stderr
        assert "the program failed before any use of jax was seen" in done.stderr
        assert "exit code 1" in done.stderr
        assert "no use of jax was seen" not in done.stderr
        assert "SyntaxError" in done.stderr
        assert "_jaxcache." not in done.stderr
        assert "sitecustomize" not in done.stderr
    assert "[program-failed]" in done.stderr


def test_a_python_without_jax_is_named(run_cli: RunCli, cache: Path) -> None:
    program = "import sys; sys.modules['jax'] = None; import jax"
    done = run_cli("run", "-C", cache, "--", sys.executable, "-c", program)
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert f"note: the program's Python, {sys.executable}, has no jax" in notes
    assert not any("no use of jax" in note for note in notes)


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.slow), ("--stop",)])
def test_where_names_the_directory_by_which_the_program_overrides_the_variable(
    run_cli: RunCli, jax_python: str, script: Any, tmp_path: Path, options: tuple[str, ...]
) -> None:
    asked, used = tmp_path / "asked", str(tmp_path / "used")
    path = script(f"import jax\njax.config.update('jax_compilation_cache_dir', {used!r})\n{STEP}")
    command = ("where", *options, "--", jax_python, path)
    done = run_cli(*command, env={"JAX_COMPILATION_CACHE_DIR": str(asked), "PYTHONWARNINGS": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [used]


def test_where_of_a_program_without_jax(run_cli: RunCli) -> None:
    nothing = run_cli("where", "--json", "--", sys.executable, "-c", "print(1)")
    assert nothing.returncode == 10
    assert json.loads(nothing.stdout)["processes"] == []
