"""What a process notes of its loads, and leases: of several processes one compiles a module."""

import hashlib
import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import GiveAway

from jaxcache.core.seams.cache import Load
from jaxcache.live import loading
from jaxcache.live.process import Counters
from jaxcache.live.tier import Tier
from jaxcache.store import open_store
from live.conftest import PORTABLE, PROGRAM, TELL, entries, live_environment
from live.test_tier import layer_with

KEY = "jit_f-" + "a" * 64
OTHER = "jit_g-" + "b" * 64


# Loads under way, and those of the last run.


def test_foreign_files_among_those_of_loads_stay(tmp_path: Path) -> None:
    """Only what has the name and the content of such a file is removed."""
    directory = tmp_path / ".jaxcache/live/loading"
    directory.mkdir(parents=True)
    names = ("notes", "12-0123456789ab", "x-0123456789ab", ".bashrc")
    for name in names:
        (directory / name).write_text("precious\nfile\n")
    (directory / "13-0123456789ab").write_text("jaxcache loads\n../../../etc/passwd")
    assert loading.find_dead(str(tmp_path)) == (set(), set(), False)
    assert sorted(p.name for p in directory.iterdir()) == sorted((*names, "13-0123456789ab"))


@pytest.mark.parametrize("title", ["jaxcache loads", loading.AHEAD])
def test_what_a_dead_process_was_loading_is_found_once(tmp_path: Path, title: str) -> None:
    """A live process, and one whose loads are over, accuse nothing."""
    root = str(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            marks = loading.Loading(root, title)
            marks.begin(KEY)
            marks.begin(OTHER)
            marks.end(KEY)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    own = loading.Loading(root, title)
    own.begin(KEY)
    is_ahead = title == loading.AHEAD
    expected = (set() if is_ahead else {OTHER}, {OTHER} if is_ahead else set(), True)
    assert loading.find_dead(root) == expected
    assert loading.find_dead(root) == (set(), set(), False)
    own.close()
    assert list((tmp_path / ".jaxcache/live/loading").iterdir()) == []


class Result:
    """Stands for an array that is being computed."""

    is_there = False

    def is_ready(self) -> bool:
        return self.is_there

    def is_deleted(self) -> bool:
        return False


def test_an_execution_is_over_when_its_results_are_there_or_it_has_failed() -> None:
    runs = loading.FirstRuns()
    over: list[str] = []
    executables = {name: SimpleNamespace() for name in ("results", "failed")}
    calls = [(SimpleNamespace(xla_executable=one),) for one in executables.values()]
    result = Result()

    def fail(_: object) -> None:
        raise ValueError("of the program")

    for name, executable in executables.items():
        runs.watch(executable, partial(over.append, name))
    assert runs.execute(lambda _: [result], calls[0], {}) == [result]
    with pytest.raises(ValueError, match="of the program"):
        runs.execute(fail, calls[1], {})
    deadline = time.monotonic() + 60
    for expected in (["failed"], ["failed", "results"]):
        while len(over) < len(expected) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert over == expected
        result.is_there = True
    runs.execute(lambda _: [result], calls[0], {})
    assert len(over) == 2


RUN = loading.LastRun(
    [[0, "cpu", 0]],
    (Load(KEY, b"options", (0,), True), Load(OTHER, b"others", (0, 1), False)),
)
PROGRAM_NAME = "0" * 16


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The record of a run."""
    loading.write_last_run(str(tmp_path), PROGRAM_NAME, RUN)
    return tmp_path / ".jaxcache/live/starts" / PROGRAM_NAME


def signed(text: bytes) -> bytes:
    """A record of any content as a run writes it."""
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def test_a_record_is_the_users_alone(record: Path, tmp_path: Path, give_away: GiveAway) -> None:
    root = str(tmp_path)
    assert loading.read_last_run(root, PROGRAM_NAME) == RUN
    assert record.stat().st_mode & 0o777 == 0o600
    assert loading.read_last_run(root, "1" * 16) is None
    for mode in (0o620, 0o602):
        record.chmod(mode)
        assert loading.read_last_run(root, PROGRAM_NAME) is None
    record.chmod(0o644)
    assert loading.read_last_run(root, PROGRAM_NAME) == RUN
    give_away(record)
    assert loading.read_last_run(root, PROGRAM_NAME) is None


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (signed(b"{}")[:-1], None),
        (signed(b"no JSON"), None),
        (signed(b"[]"), None),
        (signed(b'{"loads": []}'), None),
        (
            signed(
                b'{"devices": [], "options": [], "loads": [["%s", 1, [], true]]}' % KEY.encode()
            ),
            None,
        ),
        (signed(b'{"devices": [], "options": [""], "loads": [["../x", 0, [], true]]}'), ([], ())),
    ],
)
def test_a_record_of_another_form_is_none_and_what_is_no_key_is_left_out(
    record: Path, tmp_path: Path, content: bytes, found: object
) -> None:
    record.write_bytes(content)
    assert loading.read_last_run(str(tmp_path), PROGRAM_NAME) == found


@pytest.mark.usefixtures("record")
def test_records_with_a_key_that_killed_are_removed_and_others_stay(tmp_path: Path) -> None:
    other = loading.LastRun([], RUN.loads[1:])
    loading.write_last_run(str(tmp_path), "1" * 16, other)
    loading.forget_runs_with(str(tmp_path), {KEY})
    assert [loading.read_last_run(str(tmp_path), n * 16) for n in "01"] == [None, other]


def test_the_oldest_record_makes_room(record: Path, tmp_path: Path) -> None:
    os.utime(record, (0, 0))
    for number in range(1, loading._MAX_PROGRAMS + 1):
        loading.write_last_run(str(tmp_path), f"{number:016x}", RUN)
    assert len(list(record.parent.iterdir())) == loading._MAX_PROGRAMS
    assert not record.exists()


# Leases.


def test_who_gets_a_lease_looks_for_the_entry_again(tmp_path: Path) -> None:
    """Its last owner may have written it since this process looked."""
    leases = loading.Leases(str(tmp_path), 5.0, Counters())
    assert leases.take_or_wait(KEY, lambda: b"an entry", None) == b"an entry"
    assert leases.take_or_wait(KEY, lambda: None, None) is None


class StubTiers:
    """Tiers that have no entries, and count how often somebody looks."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.looks = 0

    def last_writable(self) -> Tier:
        return self._tier

    def lookup(self, _: str, *, fresh: bool) -> tuple[None, str]:
        self.looks += fresh
        return None, ""


def forge_lease(directory: Path, key: str, until: object) -> Path:
    leases = directory / ".jaxcache/live/leases"
    leases.mkdir(parents=True, exist_ok=True)
    path = leases / key
    path.write_text(json.dumps({"owner": "nobody:1", "until": until}))
    return path


def test_forged_leases_cost_their_limit_once(tmp_path: Path) -> None:
    tiers = StubTiers(Tier(str(tmp_path / "tier"), layer_with(timeout=30.0)))
    leases = loading.Leases(str(tmp_path / "cache"), 0.7, Counters())
    looks = []
    for number in range(3):
        key = f"jit_f{number}-" + "a" * 64
        forge_lease(tmp_path / "tier", key, time.time() + 3600)
        assert leases.take_or_wait(key, lambda: None, tiers) is None
        looks.append(tiers.looks)
    assert looks[0] > 0
    assert looks[1:] == [looks[0]] * 2


@pytest.mark.parametrize("until", [4e18, float("inf"), float("nan"), "soon", None, [1]])
def test_a_lease_without_a_plausible_date_counts_for_nothing(tmp_path: Path, until: object) -> None:
    tiers = StubTiers(Tier(str(tmp_path / "tier"), layer_with(timeout=30.0)))
    path = forge_lease(tmp_path / "tier", KEY, until)
    leases = loading.Leases(str(tmp_path / "cache"), 600.0, Counters())
    assert leases.take_or_wait(KEY, lambda: None, tiers) is None
    assert json.loads(path.read_text())["owner"] != "nobody:1"


#: All begin at the same moment; ``first`` takes a while to compile.
AT_ONCE = """
import os, time
import jax, jax.numpy as jnp
jax.devices()
directory = os.environ["TEST_DIRECTORY"]
open(f"{directory}/ready-{os.getpid()}", "w").close()
while not os.path.exists(directory + "/go"):
    time.sleep(0.01)
"""
#: The first process to compile ``first`` dies over it.
MURDER = """
from jax._src import compiler
name = "backend_compile_and_load"
name = name if hasattr(compiler, name) else "backend_compile"
real = getattr(compiler, name)
def deadly(backend, module, *args, **kwargs):
    if "jit_first" in str(module.operation.attributes["sym_name"]):
        try:
            os.close(os.open(directory + "/dead", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            time.sleep(1.0)
            os.kill(os.getpid(), 9)
    return real(backend, module, *args, **kwargs)
setattr(compiler, name, deadly)
"""


def start_together(
    python: str, directory: Path, program: str, *, tier: str = "", **more: str
) -> list["tuple[subprocess.Popen[str], str, str]"]:
    """Start two processes that wait for each other; how each ended, with what it printed."""
    running = []
    more |= {"JAXCACHE_LIVE_SINGLE_FLIGHT": "60s", "TEST_DIRECTORY": str(directory)}
    more |= PORTABLE | ({"JAXCACHE_LIVE_TIERS": tier} if tier else {})
    pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for index in range(2):
        cache = directory / (f"machine-{index}" if tier else "cache")
        env = live_environment(python, directory, cache) | more
        command = [python, "-c", AT_ONCE + program + TELL]
        running.append(subprocess.Popen(command, env=env, **pipe))
    deadline = time.monotonic() + 240
    while len(list(directory.glob("ready-*"))) < 2 and time.monotonic() < deadline:
        assert all(p.poll() is None for p in running)
        time.sleep(0.05)
    (directory / "go").touch()
    return [(p, *p.communicate(timeout=240)) for p in running]


def total(ended: list["tuple[subprocess.Popen[str], str, str]"], name: str) -> int:
    """The sum of a counter over the processes that came to their end."""
    documents = [json.loads(out.splitlines()[-1]) for p, out, _ in ended if p.returncode == 0]
    return sum(int(d["counts"].get(name, 0)) for d in documents)


@pytest.mark.jax
def test_processes_compile_each_module_once(jax_python: str, tmp_path: Path) -> None:
    ended = start_together(jax_python, tmp_path, PROGRAM)
    assert all(p.returncode == 0 for p, _, _ in ended), [err for _, _, err in ended]
    modules = len(entries(tmp_path / "cache"))
    assert total(ended, "misses") == total(ended, "written") == modules > 1
    assert total(ended, "hits_local") == modules
    assert len({out.splitlines()[-1].partition('"counts"')[0] for _, out, _ in ended}) == 1


@pytest.mark.jax
def test_a_holder_that_dies_stops_nobody(jax_python: str, tmp_path: Path) -> None:
    ended = start_together(jax_python, tmp_path, MURDER + PROGRAM)
    codes = sorted(p.returncode for p, _, _ in ended)
    assert codes == [-signal.SIGKILL, 0], [err for _, _, err in ended]
    assert entries(tmp_path / "cache", "first")


@pytest.mark.jax
@pytest.mark.parametrize("place", [pytest.param("directory", marks=pytest.mark.slow), "bucket"])
def test_machines_that_share_a_tier_compile_each_module_once(
    request: pytest.FixtureRequest, jax_python: str, tmp_path: Path, place: str
) -> None:
    """The leases are objects that are put only if they are not there."""
    tier = request.getfixturevalue("bucket") if place == "bucket" else str(tmp_path / "shared")
    # No answer in time counts as none, and processes at once keep a busy machine waiting.
    env = {"JAXCACHE_LIVE_TIMEOUT": "30s"}
    ended = start_together(jax_python, tmp_path, PROGRAM, tier=tier, **env)
    assert all(p.returncode == 0 for p, _, _ in ended), [err for _, _, err in ended]
    modules = len(entries(tmp_path / "machine-0"))
    assert total(ended, "misses") == total(ended, "written") == modules > 1
    assert total(ended, "troubles") == total(ended, "tier_errors") == 0
    names = [info.name for info in open_store(tier).walk("")]
    assert len([n for n in names if n.endswith("-cache")]) == modules
    assert [n for n in names if "/leases/" in n] == []
