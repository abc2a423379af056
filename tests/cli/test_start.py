"""Start-up and the frame that every command shares."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment
from processes import sh

from jaxcache.cli.commands import COMMANDS

#: What a plain listing must never pay for.
HEAVY = [
    "jax",
    "numpy",
    "typer",
    "asyncio",
    "filelock",
    "rich",
    "google.protobuf",
    "obstore",
    "concurrent.futures",
    "logging",
    "tempfile",
]
#: What `run` imports while its program runs, or not at all.
REPORTING = [
    "dataclasses",
    "datetime",
    "json",
    "pathlib",
    "tempfile",
    "tomllib",
    "zipfile",
    "jaxcache.core.eviction",
    "jaxcache.render.view",
    "jaxcache.warm.account",
    "jaxcache.warm.report.events",
    "jaxcache.warm.report.builder",
    "jaxcache.entry.decode",
    "jaxcache.render.warm",
    "concurrent.futures",
]


def test_a_listing_imports_nothing_heavy_and_help_no_pydantic(corpus: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from jaxcache.cli.main import run\n"
        f"code = run(['ls', '-C', {str(corpus / '0.10.2-cpu-zstd')!r}])\n"
        f"heavy = {{*{HEAVY}}} & {{*sys.modules}}\n"
        "print(code, [*heavy], file=sys.stderr)\n"
        "for line in ('--version', '-h', 'ci save --help'):\n"
        "    print(run(line.split()), 'pydantic' in sys.modules, file=sys.stderr)"
    )
    done = sh([sys.executable, "-c", script], env=clean_environment(tmp_path))
    assert done.stderr == "0 []\n" + "0 False\n" * 3
    starts = ("jaxcache ", "Usage: jaxcache [", "Usage: jaxcache ci save ")
    shown = [line for line in done.stdout.splitlines()[7:] if line.startswith(starts)]
    assert len(shown) >= len(starts)


@pytest.mark.parametrize(
    ("command", "words"), [("run", "'--', 'echo', 'program'"), ("warm", "'program.py'")]
)
def test_a_program_starts_before_what_reports_on_it_is_imported(
    command: str, words: str, tmp_path: Path
) -> None:
    script = (
        "import sys; from jaxcache.cli.main import run\n"
        "def at_start(event, details):\n"
        "    if event == 'subprocess.Popen' and 'program' in ' '.join(details[1]):\n"
        f"        print([*{{*{REPORTING}}} & {{*sys.modules}}], file=sys.stderr)\n"
        "sys.addaudithook(at_start)\n"
        f"run(['{command}', '-C', 'cache', {words}])"
    )
    (tmp_path / "program.py").write_text("print('program')")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["jaxcache"]\n[tool.ruff]')
    done = sh([sys.executable, "-c", script], cwd=tmp_path, env=clean_environment(tmp_path))
    assert done.stdout == "program\n"
    assert done.stderr.splitlines()[0] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example_and_the_exit_codes(run_cli: RunCli, name: str) -> None:
    done = run_cli(*name.split(), "--help", env={"COLUMNS": "80"})
    assert done.returncode == 0
    assert re.search(f"Example:\n +jaxcache {name}", done.stdout)
    assert re.search("Exit codes:\n +0   done\n", done.stdout)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert not re.search(r"\[\[\w|<list", done.stdout)  # as some versions of Typer write arguments


@pytest.mark.parametrize("words", [[], ["ci"]])
def test_no_command_shows_the_help(run_cli: RunCli, words: list[str]) -> None:
    done = run_cli(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"\n(Look|Commands):\n +(ls|key) ", done.stderr)
    assert "\\x0a" not in done.stderr


_INTERRUPTED = """
import os, signal, sys, time, weakref
import jaxcache.store
from jaxcache.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
class Thing: pass
def collect(*_):
    thing = Thing()
    reference = weakref.ref(thing, interrupt)
    del thing
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ("jaxcache.store.open_store = interrupt", ["ls"], "jaxcache: interrupted [interrupted]\n"),
        ("jaxcache.store.open_store = interrupt", ["ls", "--json"], '"exit_code": 130'),
        ("main._read = interrupt", ["ls"], "jaxcache: interrupted [interrupted]\n"),
        ("main.run = collect", ["ls"], "jaxcache: interrupted [interrupted]\n"),
    ],
    ids=["in-the-command", "as-json", "before-it", "in-a-callback"],
)
def test_ctrl_c_is_said_and_has_a_code(
    change: str, words: list[str], said: str, tmp_path: Path
) -> None:
    program = f"{_INTERRUPTED}{change}\nmain.main()"
    done = sh([sys.executable, "-c", program, *words], env=clean_environment(tmp_path))
    assert (done.returncode, done.stdout) == (130, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_in_a_condition_of_the_standard_library_is_no_internal_error(
    run_cli: RunCli, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        lock = threading.Lock()
        with lock:
            lock.release()  # as Condition.wait() does, before it takes it again
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    done = run_cli("copy", corpus / "0.10.2-cpu-zstd", tmp_path / "copy")
    assert (done.returncode, done.stderr) == (130, "jaxcache: interrupted [interrupted]\n")


def test_options_of_a_program_that_is_run_are_not_ours(run_cli: RunCli, tmp_path: Path) -> None:
    gone = tmp_path / "no-such-program"
    done = run_cli("run", "-C", tmp_path, "--", gone, "--json")
    said = f"jaxcache: cannot run {gone}: no such file or directory [cannot-run]\n"
    assert (done.returncode, said in done.stderr) == (2, True)


def test_a_mistake_of_ours_is_one_line_unless_asked(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcache.api.handle.open_store", lambda _: 1 / 0)
    for flag, shown in ((), False), (("--debug",), True):
        done = run_cli(*flag, "ls")
        assert done.returncode == 1
        assert ("Traceback" in done.stderr) == shown
        assert ("[internal-error]" in done.stderr) != shown


def test_closed_streams_are_no_failure(tmp_path: Path) -> None:
    """A daemon may start programs with neither."""
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        command = f"{sys.executable} -m jaxcache where {closed}"
        env = clean_environment(tmp_path) | {"JAX_COMPILATION_CACHE_DIR": "/srv/jax"}
        done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), closed
