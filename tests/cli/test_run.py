"""Signals to ``jaxcache run``: the program gets each one once, and its end is ours."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment
from processes import sh

from jaxcache.errors import ReportError
from jaxcache.warm.child.launch import Launch, run_listening

#: Counts what it gets; SIGUSR2 makes it say so and leave with 5.
PROGRAM = """
import os, signal, sys, time
got = []
for number in map(int, sys.argv[1].split(",")):
    signal.signal(number, lambda n, frame: got.append(n))
def leave(number, frame):
    print(*got, flush=True)
    os._exit(5)
signal.signal(signal.SIGUSR2, leave)
print("ready", flush=True)
shown = 0
while True:
    time.sleep(0.02)
    while shown < len(got):
        print("got", got[shown], flush=True)
        shown += 1
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cache: Path, tmp_path: Path) -> Iterator[Start]:
    """Start ``jaxcache run`` in a session of its own, and wait until the program is ready."""
    children, guards = [], []

    def begin(*command: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-m", "jaxcache", "run", "-C", str(cache), "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
            env=clean_environment(tmp_path),
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
            cwd=tmp_path,
        )
        children.append(child)
        guard = threading.Timer(600, os.killpg, (child.pid, signal.SIGKILL))
        guards.append(guard)
        guard.start()
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        return child

    yield begin
    for guard in guards:
        guard.cancel()
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


PASSED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGALRM")


@pytest.mark.parametrize("to_group", [False, True], ids=["to-us", "to-the-group"])
def test_each_signal_reaches_the_program_once(start: Start, to_group: bool) -> None:
    numbers = [signal.Signals[name].value for name in (*PASSED, "SIGINT")]
    child = start(sys.executable, "-c", PROGRAM, ",".join(map(str, numbers)))
    assert child.stdout
    for number in numbers:
        (os.killpg if to_group else os.kill)(child.pid, number)
        assert child.stdout.readline() == f"got {number}\n"
        time.sleep(0.2)
    child.send_signal(signal.SIGUSR2)
    out, errors = child.communicate(timeout=300)
    assert out.split() == [str(n) for n in numbers], errors
    assert child.returncode == 5


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_program_that_a_signal_ends(start: Start, number: int) -> None:
    child = start("sh", "-c", "echo ready; exec sleep 60")
    child.send_signal(number)
    child.communicate(timeout=300)
    assert child.returncode == 128 + number


def test_a_program_that_ends_itself_at_sigterm(start: Start) -> None:
    child = start("sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done")
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=300)
    assert (child.returncode, "interrupted" in errors) == (3, True)


def test_an_ignored_signal_stays_ignored(cache: Path, tmp_path: Path) -> None:
    program = (
        "import os, signal; os.kill(os.getppid(), signal.SIGHUP)\n"
        "assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN; print('ok')"
    )
    run = ["nohup", sys.executable, "-m", "jaxcache", "run", "-C", cache, "--"]
    done = sh(
        [*run, sys.executable, "-c", program],
        env=clean_environment(tmp_path),
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_the_exit_code_survives_a_reader_that_has_gone(cache: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m jaxcache run -C {cache} -- sh -c 'exit 7'"
    line = f"{command} 2>&1 | head -c 0; exit ${{PIPESTATUS[0]}}"
    assert sh(["bash", "-c", line], env=clean_environment(tmp_path)).returncode == 7


def test_an_infinite_setting_is_no_number_in_json(run_cli: RunCli, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, socket\n"
        "setting = {'jax_persistent_cache_min_compile_time_secs': float('inf')}\n"
        "with socket.socket(socket.AF_UNIX) as listener:\n"
        "    listener.connect(os.environ['JAXCACHE_EVENTS'])\n"
        "    for event in ({'event': 'jax', 'jax': '1'}, {'event': 'settings', **setting}):\n"
        "        listener.sendall(json.dumps(event).encode() + b'\\n')\n"
    )
    done = run_cli("run", "--json", "--", sys.executable, program)
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    (settings,) = (p["settings"] for p in document["processes"])
    assert settings == {"jax_persistent_cache_min_compile_time_secs": None}
    assert any("to inf, which was 1" in note for note in document["notes"])


def test_a_directory_of_other_files_is_named_as_such(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "readme.md").write_text("text\n")
    for cache, is_foreign in ((foreign, True), (tmp_path / "empty", False)):
        done = run_cli("run", "-C", cache, "--", "true")
        assert (done.returncode, "has files of other programs" in done.stderr) == (0, is_foreign)


def test_an_interruption_is_reported_though_the_program_has_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    may_end = tmp_path / "may-end"

    def interrupt() -> None:
        may_end.touch()
        os.kill(os.getpid(), signal.SIGINT)
        while not pid_file.exists() or is_running(int(pid_file.read_text() or os.getpid())):
            time.sleep(0.01)

    wait = f"until [ -e {may_end} ]; do sleep 0.01; done"
    launch = Launch(("sh", "-c", f"echo $$ > {pid_file}; {wait}"))
    result = run_listening([launch], on_event=lambda _: None, on_tick=interrupt)
    assert result.interrupted


@pytest.mark.parametrize("layout", ["jax", "torch"])
@pytest.mark.parametrize(("program", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("exit 0", 1)])
def test_a_report_that_fails_leaves_the_programs_exit_code(
    run_cli: RunCli, cache: Path, layout: str, program: str, code: int
) -> None:
    """A trace was asked for, so that its failure counts where the program has none."""
    words = ("--layout", layout, "-C", cache, "--trace", "/dev/full", "--", "sh", "-c", program)
    done = run_cli("run", *words)
    assert done.returncode == code
    assert "run to its end; the report of it failed: cannot write /dev/full" in done.stderr


@pytest.mark.parametrize("callback", ["on_start", "on_event", "on_tick"])
def test_a_program_runs_to_its_end_although_its_report_fails(tmp_path: Path, callback: str) -> None:
    told, end = tmp_path / "told", tmp_path / "end"
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        told.touch()
        raise IndexError("list index out of range")

    send = (
        "import os, socket, sys, time; events = socket.socket(socket.AF_UNIX); "
        "events.connect(os.environ['JAXCACHE_EVENTS']); "
        'events.sendall(b\'{"event": "trouble", "detail": "x"}\\n\' * 9)\n'
        f"while not os.path.exists({str(told)!r}): time.sleep(0.01)\n"
        f"open({str(end)!r}, 'x').close(); sys.exit(7)"
    )
    launch = Launch((sys.executable, "-c", send))
    with pytest.raises(ReportError, match="failed: IndexError: list index") as raised:
        run_listening([launch], **{"on_event": lambda _: None, callback: fail})
    assert (raised.value.exit_code, end.exists(), len(calls)) == (7, True, 1)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ("file/cache", "is not a directory [io-error]"),
        pytest.param(
            "/proc/jaxcache/cache",
            "cannot make /proc/jaxcache/cache: ",
            marks=pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc"),
        ),
    ],
)
def test_a_cache_that_cannot_be_made_is_refused_before_the_program_starts(
    run_cli: RunCli, tmp_path: Path, cache: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    done = run_cli("run", "-C", cache, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (10, "")
    assert said in done.stderr
    assert "[io-error]" in done.stderr


def test_a_directory_that_takes_no_files_is_named(run_cli: RunCli, unprivileged: Path) -> None:
    cache = unprivileged / "cache"
    cache.mkdir()
    cache.chmod(0o555)
    told = f"note: {cache} cannot be written: what this run compiles will not be kept"
    words = ("-C", cache, "--", "true")
    assert told in run_cli("run", *words, cwd=unprivileged).stderr
    assert told not in run_cli("run", "--no-write", *words, cwd=unprivileged).stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_warm_refuses_an_empty_cache_that_it_cannot_fill(run_cli: RunCli, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o555)
    program = tmp_path / "program.py"
    program.write_text("print('started')\n")
    done = run_cli("warm", "-C", cache, program)
    assert (done.returncode, done.stdout) == (1, "")
    assert "[read-only]" in done.stderr
