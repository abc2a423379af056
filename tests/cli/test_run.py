"""Signals to ``jaxcache run``: the program gets each one once, and its end is ours."""

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
from processes import begin, sh

from jaxcache.errors import ReportError
from jaxcache.warm.child.launch import Launch, run_listening

#: Says what it gets; SIGUSR2 makes it leave with 5.
PROGRAM = """
import signal, sys
wanted = {*map(int, sys.argv[1].split(",")), signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
print("ready", flush=True)
while (number := signal.sigwait(wanted)) != signal.SIGUSR2:
    print("got", int(number), flush=True)
sys.exit(5)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(cache: Path, tmp_path: Path) -> Iterator[Start]:
    """Start ``jaxcache run`` in a session of its own, and wait until the program is ready."""
    started = []

    def start_ready(*command: str) -> "subprocess.Popen[str]":
        child = begin(
            tmp_path,
            *("run", "-C", cache, "--", *command),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
            cwd=tmp_path,
        )
        guard = threading.Timer(600, os.killpg, (child.pid, signal.SIGKILL))
        guard.start()
        started.append((child, guard))
        assert child.stdout and child.stdout.readline() == "ready\n"
        return child

    yield start_ready
    for child, guard in started:
        guard.cancel()
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.mark.parametrize("to_group", [False, True], ids=["to-us", "to-the-group"])
def test_each_signal_reaches_the_program_once(start: Start, to_group: bool) -> None:
    names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGALRM", "SIGINT")
    numbers = [signal.Signals[name].value for name in names]
    child = start(sys.executable, "-c", PROGRAM, ",".join(map(str, numbers)))
    assert child.stdout
    for number in numbers:
        (os.killpg if to_group else os.kill)(child.pid, number)
        assert child.stdout.readline() == f"got {number}\n"
        time.sleep(0.1)  # for a second one
    child.send_signal(signal.SIGUSR2)
    out, errors = child.communicate(timeout=300)
    assert (out, child.returncode) == ("", 5), errors


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [
        ("echo ready; exec sleep 60", signal.SIGHUP, 128 + signal.SIGHUP),
        ("trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done", signal.SIGTERM, 3),
    ],
)
def test_a_program_that_a_signal_ends(start: Start, program: str, number: int, code: int) -> None:
    child = start("sh", "-c", program)
    child.send_signal(number)
    _, errors = child.communicate(timeout=300)
    assert (child.returncode, "interrupted" in errors) == (code, True)


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


def test_a_cache_that_cannot_be_made_or_filled_is_told_before_the_program_starts(
    run_cli: RunCli, unprivileged: Path
) -> None:
    (unprivileged / "file").write_text("")
    cache = unprivileged / "cache"
    cache.mkdir()
    cache.chmod(0o555)
    for name, said in (("file/cache", "is not a directory"), ("cache/new", "cannot make ")):
        done = run_cli("run", "-C", name, "--", "echo", "started", cwd=unprivileged)
        assert (done.returncode, done.stdout) == (10, "")
        assert said in done.stderr and "[io-error]" in done.stderr
    told = f"note: {cache} cannot be written: what this run compiles will not be kept"
    words = ("-C", cache, "--", "true")
    assert told in run_cli("run", *words, cwd=unprivileged).stderr
    assert told not in run_cli("run", "--no-write", *words, cwd=unprivileged).stderr
    (unprivileged / "program.py").write_text("print('started')\n")
    refused = run_cli("warm", "-C", cache, "program.py", cwd=unprivileged)
    assert (refused.returncode, refused.stdout) == (10, ""), refused.stderr
    assert "[read-only]" in refused.stderr
