"""``jaxcache top``: what happens in a cache is seen, and nothing is read twice."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import RunCli, clean_environment
from terminal import Terminal, without_style

from jaxcache.cache.ledger.record import HIT, TOO_QUICK, Event
from jaxcache.cache.ledger.write import append
from jaxcache.cache.watch import Watcher
from jaxcache.store.local import LocalStore

SECOND_NS = 10**9


@pytest.fixture
def cache(tmp_path: Path, corpus: Path) -> Path:
    """A cache whose uses JAX dates."""
    target = tmp_path / "cache"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd-maxsize", target)
    for file in target.iterdir():
        os.utime(file, ns=(time.time_ns() - 3600 * SECOND_NS,) * 2)
    return target


class Counting(LocalStore):
    """Counts the files that are opened to be read."""

    opened = 0

    def read_many(self, names: Any, *, limit: int) -> Iterator[Any]:
        names = list(names)
        self.opened += len(names)
        return super().read_many(names, limit=limit)


def write_entry(cache: Path, module: str, number: int) -> Path:
    """What JAX does: the entry and its date."""
    source = sorted(cache.glob("*-cache"))[0]
    entry = cache / f"{module}-{number:064x}-cache"
    entry.write_bytes(source.read_bytes())
    stamp = entry.with_name(entry.name.removesuffix("-cache") + "-atime")
    stamp.write_bytes(time.time_ns().to_bytes(8, "little"))
    return entry


def use_entry(entry: Path) -> None:
    stamp = entry.with_name(entry.name.removesuffix("-cache") + "-atime")
    stamp.write_bytes(time.time_ns().to_bytes(8, "little"))


def test_each_look_tells_what_happened_and_reads_only_that(cache: Path) -> None:
    store = Counting(str(cache))
    watcher = Watcher(store)
    first = watcher.look(now_ns=time.time_ns())
    assert (first.changes, first.total.entries, first.dates_uses) == ((), 7, True)
    entry = write_entry(cache, "jit_new", 1)
    hit = sorted(cache.glob("jit_mlp*-cache"))[0]
    use_entry(hit)
    next(cache.glob("jit_bigconst*-cache")).unlink()

    now_ns = time.time_ns() + 5 * SECOND_NS
    store.opened = 0
    look = watcher.look(now_ns=now_ns)
    found = {(c.kind, c.entry.module) for c in look.changes}
    assert found == {("new", "jit_new"), ("hit", "jit_mlp"), ("gone", "jit_bigconst")}
    assert store.opened <= 2  # the new entry and its date
    assert look.total.entries == 7

    store.opened = 0
    assert watcher.look(now_ns=now_ns).changes == ()
    assert store.opened == 0
    use_entry(entry)
    assert [c.kind for c in watcher.look(now_ns=now_ns).changes] == ["hit"]


def test_what_is_being_written_waits(cache: Path) -> None:
    watcher = Watcher(LocalStore(str(cache)))
    watcher.look(now_ns=time.time_ns())
    entry = write_entry(cache, "jit_new", 1)
    written_ns = entry.stat().st_mtime_ns
    assert watcher.look(now_ns=written_ns + SECOND_NS // 2).changes == ()
    assert len(watcher.look(now_ns=written_ns + SECOND_NS).changes) == 1


def test_without_dates_it_says_that_no_hit_shows(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "plain")
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", "top", "--once", "-C", tmp_path / "plain"],
        home=tmp_path,
    )
    assert terminal.finish() == 0
    shown = " ".join(without_style(terminal.text).split())
    said = "only hits of programs under jaxcache run, or with JAXCACHE_LIVE=1, are visible here, "
    assert shown.count(said + "not those of plain JAX") == 1
    assert re.search(r"WRITTEN KEY .* (now|\d+[mhd]) jit_", shown), shown
    assert not re.search(r"\bnew\b", shown)


def test_hits_that_cannot_be_seen_are_not_counted_as_none(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "plain")
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", "top", "--interval", "0.1s", "-C", tmp_path / "plain"],
        home=tmp_path,
        width=120,
    )
    terminal.wait_for("hits: not recorded")
    terminal.press("q")
    assert terminal.finish() == 0
    assert "hits: not recorded" in terminal.text.rpartition("\x1b[?1049l")[2]
    assert "0 hits" not in terminal.text


def test_a_terminal_waits_for_a_directory_that_is_not_there_yet(
    cache: Path, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    command = [sys.executable, "-m", "jaxcache", "top", "--interval", "0.1s", "-C", later]
    terminal = Terminal(command, home=tmp_path, width=200)
    terminal.wait_for(f"waiting: no such cache directory: {later} yet; q or Ctrl-C ends this")
    entries = len(list(cache.glob("*-cache")))
    cache.rename(later)
    terminal.wait_for(f"{entries} new")  # all of them: the directory was not there a moment ago
    terminal.press("q")
    assert terminal.finish() == 0
    assert terminal.text.count("waiting: ") == 1
    later.rename(cache)
    for key in ("q", "\x03"):
        terminal = Terminal(command, home=tmp_path, width=200)
        terminal.wait_for("waiting: ")
        terminal.press(key)
        assert terminal.finish() == 0
        assert "Traceback" not in terminal.text


def test_the_note_about_hits_goes_once_one_is_seen(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "plain")
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", "top", "--interval", "0.1s", "-C", tmp_path / "plain"],
        home=tmp_path,
    )
    terminal.wait_for("only hits of programs")
    key = next((tmp_path / "plain").glob("jit_mlp*-cache")).name.removesuffix("-cache")
    append(LocalStore(str(tmp_path / "plain")), [Event(key, HIT, time.time_ns(), {})])
    terminal.wait_for("1 hit (")
    seen = terminal.text.rpartition("1 hit (")[2]
    terminal.press("q")
    assert terminal.finish() == 0
    assert "only hits of programs" not in seen + terminal.text.rpartition("1 hit (")[2]


def test_a_live_view_shows_changes_and_ends_cleanly(cache: Path, tmp_path: Path) -> None:
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", "top", "--interval", "0.1s", "-C", cache],
        home=tmp_path,
        width=70,
    )
    terminal.wait_for("no entry has come or gone yet")
    assert "\x1b[?1049h" in terminal.text  # a screen of its own
    write_entry(cache, "jit_while_watching", 3)
    terminal.wait_for("jit_while_watching-000000000000")
    terminal.press("\x03")
    assert terminal.finish() == 0
    after = terminal.text.rpartition("\x1b[?1049l")[2]
    assert "\x1b[?25h" in terminal.text  # the cursor is back
    assert "1 new" in after
    assert "Traceback" not in terminal.text
    assert "interrupted" not in terminal.text


def test_q_ends_a_live_view(cache: Path, tmp_path: Path) -> None:
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", "top", "--interval", "60s", "-C", cache],
        home=tmp_path,
        width=70,
    )
    terminal.wait_for("no entry has come or gone yet")
    terminal.press("q")
    assert terminal.finish() == 0
    assert "0 new" in terminal.text.rpartition("\x1b[?1049l")[2]


RUNNING = """
import jax, numpy as np, time
f = lambda x: x @ x
jax.jit(f)(np.ones((9, 9)))
print("compiled", flush=True)
time.sleep(600)
"""


def test_the_note_about_hits_goes_while_a_run_records(corpus: Path, tmp_path: Path) -> None:
    """``run`` tells the ledger of what it sees: of compiles that JAX did not write, too."""
    plain = tmp_path / "plain"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", plain)
    old = time.time_ns() - 3600 * SECOND_NS
    append(LocalStore(str(plain)), [Event("jit_old-00", TOO_QUICK, old, {})])
    (segment,) = (plain / ".jaxcache" / "ledger").glob("*.jsonl")
    os.utime(segment, ns=(old, old))
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", "top", "--interval", "0.1s", "-C", plain],
        home=tmp_path,
        width=200,
    )
    terminal.wait_for("only hits of programs")
    assert "threshold of seconds" not in terminal.text
    fresh = [Event(f"jit_f-{n:02}", TOO_QUICK, time.time_ns(), {}) for n in range(3)]
    append(LocalStore(str(plain)), fresh)
    terminal.wait_for(
        "not written: 3 compiles under JAX's threshold (1 s by default); jaxcache warm, or"
    )
    terminal.wait_for("0 hits (0 s of compiling saved)")
    terminal.press("q")
    assert terminal.finish() == 0
    assert "only hits of programs" not in terminal.text.rpartition("3 compiles under")[0][-2000:]


def test_once_says_nothing_of_hits_where_they_are_recorded(corpus: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", plain)
    key = next(plain.glob("jit_mlp*-cache")).name.removesuffix("-cache")
    append(LocalStore(str(plain)), [Event(key, HIT, time.time_ns(), {})])
    terminal = Terminal(
        [sys.executable, "-m", "jaxcache", "top", "--once", "-C", plain], home=tmp_path
    )
    assert terminal.finish() == 0
    assert "only hits of programs" not in terminal.text


@pytest.mark.jax
def test_quick_compiles_are_told(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    cache, script = tmp_path / "cache", tmp_path / "train.py"
    script.write_text(RUNNING.replace("600", "0"))
    run = ("run", "-C", cache, "--", jax_python, script)
    assert run_cli(*run, env={"PYTHONWARNINGS": ""}).returncode == 0
    look = Watcher(LocalStore(str(cache)), from_empty=True).look(now_ns=time.time_ns())
    assert (look.total.entries, look.records_uses) == (0, True)
    assert look.too_quick > 0


@pytest.mark.jax
def test_hits_without_a_size_cap_show_while_the_program_runs(
    run_cli: RunCli, jax_python: str, tmp_path: Path
) -> None:
    cache, script = tmp_path / "cache", tmp_path / "train.py"
    script.write_text(RUNNING.replace("600", "0"))
    warm = ["warm", "--python", jax_python, "-C", str(cache), str(script)]
    assert run_cli(*warm, env={"PYTHONWARNINGS": ""}).returncode == 0
    watcher = Watcher(LocalStore(str(cache)))
    watcher.look(now_ns=time.time_ns())
    script.write_text(RUNNING)
    running = subprocess.Popen(
        [sys.executable, "-m", "jaxcache", *warm],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(tmp_path) | {"PYTHONWARNINGS": ""},
    )
    try:
        assert running.stdout and "compiled\n" in iter(running.stdout.readline, "")
        changes: list[Any] = []
        deadline = time.monotonic() + 300
        while not changes and time.monotonic() < deadline:
            time.sleep(0.2)
            changes += watcher.look(now_ns=time.time_ns()).changes
        assert running.poll() is None
    finally:
        running.terminate()
        running.communicate()
    assert [(c.kind, c.entry.module) for c in changes] == [("hit", "jit__lambda")]
    assert watcher.look(now_ns=time.time_ns()).changes == ()


def test_lines_in_a_pipe_until_interrupted(cache: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxcache", "top", "--jsonl", "--interval", "0.1s", "-C", cache],
        env=clean_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    time.sleep(1)
    known, number = "", 10
    while not known:  # however long it takes to start: one of these comes after its first look
        write_entry(cache, "jit_seen", number)
        number += 1
        deadline = time.monotonic() + 3
        os.set_blocking(process.stdout.fileno(), False)
        while not known and time.monotonic() < deadline:
            known = process.stdout.readline()
            time.sleep(0.05)
        assert process.poll() is None
    change = json.loads(known)
    assert (change["change"], change["module"]) == ("new", "jit_seen")
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 0
    assert process.stderr
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


def test_once_for_scripts(run_cli: RunCli, cache: Path) -> None:
    document = json.loads(run_cli("top", "--once", "--json", "-C", cache).stdout)
    assert document["schema_version"] == 1
    assert document["total"]["entries"] == len(document["newest"]) == 7
    lines = run_cli("top", "--once", "-C", cache).stdout.splitlines()
    assert len(lines) == 7
    assert all(len(line.split("\t")) == 5 for line in lines)


def test_what_makes_no_sense_is_refused(run_cli: RunCli, cache: Path) -> None:
    assert run_cli("top", "--json", "-C", cache).returncode == 2
    assert run_cli("top", "--interval", "0s", "-C", cache).returncode == 2
    assert run_cli("top", "--interval", "soon", "-C", cache).returncode == 2
    assert run_cli("top", "-C", cache / "no").returncode == 10
