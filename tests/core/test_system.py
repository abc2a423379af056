"""What others may put in a user's way: quotas, links and FIFOs; a directory ``~``."""

import errno
import fcntl
import math
import os
import pwd
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run_in_process
from conftest import RunCli, clean_environment
from processes import sh

from jaxcache.cache.bundle.format import is_bundle
from jaxcache.cache.ci.usage import records_reads
from jaxcache.cache.trust import load_trusted
from jaxcache.cli.output import write_file
from jaxcache.core import system
from jaxcache.core.configuration import ConfigFile, find_config_files, read_trusted_projects
from jaxcache.core.names import live_directory
from jaxcache.core.remote import connection, has_credentials
from jaxcache.core.system import processor_quota
from jaxcache.errors import JaxcacheError, NoJaxError, UntrustedError
from jaxcache.live.settings import resolve
from jaxcache.live.tier import _trusted_keys
from jaxcache.store.local import LocalStore
from jaxcache.warm.child.child import find_python, has_package

# How many cores a process may use where its control groups have a quota.
_V1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
_ONE, _NONE = {"cpu.max": "100000 100000"}, {"cpu.max": "max 100000"}
#: The group of a process, what the groups contain, and the quota.
_GROUPS = {
    "container": ("0::/", {"": _ONE}, 1.0),
    "no limit": ("0::/", {"": _NONE}, math.inf),
    "root group": ("0::/", {}, math.inf),
    "limit of a parent": ("0::/a/b", {"a": {"cpu.max": "50000 100000"}, "a/b": _NONE}, 0.5),
    "unreadable": ("0::/a", {"a": {"cpu.max": "no numbers"}}, math.inf),
    "version 1": ("4:memory:/m\n1:cpu,cpuacct:/a", {"cpu/a": _V1}, 1.5),
    "version 1, path of the host": ("2:cpuacct,cpu:/docker/0123", {"cpu": _V1}, 1.5),
    "version 1, no limit": ("1:cpu:/", {"cpu": _V1 | {"cpu.cfs_quota_us": "-1"}}, math.inf),
    "no group for processors": ("3:cpuset:/a", {"cpu/a": _V1, "a": _ONE}, math.inf),
}


@pytest.mark.parametrize(("groups", "files", "quota"), _GROUPS.values(), ids=_GROUPS)
def test_the_quota_is_the_lowest_of_the_groups(
    tmp_path: Path, groups: str, files: dict[str, dict[str, str]], quota: float
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(groups + "\n")
    for name, texts in files.items():
        directory = tmp_path / "sys" / "fs" / "cgroup" / name
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (directory / file).write_text(text + "\n")
    assert processor_quota(f"{tmp_path}/") == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert processor_quota(f"{tmp_path}/") == math.inf


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (2.7, 2), (9.0, 4), (math.inf, 4)])
def test_a_process_may_use_the_whole_cores_of_its_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(4)})
    monkeypatch.setattr(system, "processor_quota", lambda: quota)
    assert system.available_cores() == cores


@pytest.mark.parametrize(
    ("blocks", "inodes", "free_inodes", "is_full"),
    [(0, 9, 9, True), (1, 9, 0, True), (1, 9, 1, False), (1, 0, 0, False)],
)
def test_a_file_system_is_full_without_blocks_or_without_inodes(
    monkeypatch: pytest.MonkeyPatch, blocks: int, inodes: int, free_inodes: int, is_full: bool
) -> None:
    space = SimpleNamespace(f_bavail=blocks, f_files=inodes, f_favail=free_inodes)
    monkeypatch.setattr(os, "statvfs", lambda _: space)
    assert system.is_full("/") is is_full


@pytest.mark.parametrize(
    ("error", "is_taken"), [(errno.EAGAIN, False), (errno.EACCES, False), (errno.ENOLCK, True)]
)
def test_a_lock_counts_as_taken_where_the_file_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_taken: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, "no lock")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    with (tmp_path / "lock").open("w") as file:
        assert system.try_flock(file.fileno()) is is_taken
        assert system.try_lock_where_possible(file.fileno()) is is_taken


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
def test_the_memory_of_processes_is_what_is_resident() -> None:
    status = Path("/proc/self/status").read_text()
    expected = 1024 * int(status.partition("VmRSS:")[2].split()[0])
    assert system.resident_bytes(os.getpid()) == pytest.approx(expected, rel=0.1)
    twice = system.resident_bytes(os.getpid(), 2**30, os.getpid())  # of one there is no process
    assert twice == pytest.approx(2 * expected, rel=0.1)


# A link, a FIFO or a lock in the place of a file whose directory others may write.
_OLD_NS = 10**18


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of this user that nothing may change."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    os.utime(path, ns=(_OLD_NS, _OLD_NS))
    return path


def test_a_trial_of_access_times_changes_no_other_file(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()

    utime = os.utime

    def utime_of_links(*words: Any, **options: Any) -> None:
        for path in cache.iterdir():
            path.unlink()
            path.symlink_to(victim)
        utime(*words, **options)

    expected = records_reads(LocalStore(cache))
    monkeypatch.setattr(os, "utime", utime_of_links)
    assert records_reads(LocalStore(cache)) == expected
    assert (victim.stat().st_atime_ns, victim.stat().st_mtime_ns) == (_OLD_NS, _OLD_NS)


@pytest.mark.parametrize("command", [("import",), ("show",), ("target", "show")])
def test_no_fifo_is_waited_for(run_cli: RunCli, tmp_path: Path, command: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "cache.jxb")
    assert not is_bundle(str(tmp_path / "cache.jxb"))
    done = run_cli(*command, tmp_path / "cache.jxb", "-C", tmp_path)
    assert done.returncode not in (0, 70), done.stderr


def test_no_fifo_names_trusted_keys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trusted-keys")
    with pytest.raises(UntrustedError, match="not a regular file"):
        load_trusted(tmp_path)


def test_a_file_in_the_place_of_a_pipe_is_not_written_to(
    victim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    exists = os.path.exists

    def exists_for_the_last_time(path: str) -> bool:
        found = exists(path)
        pipe.unlink(missing_ok=True)
        pipe.symlink_to(victim)
        return found

    monkeypatch.setattr(os.path, "exists", exists_for_the_last_time)
    with pytest.raises(JaxcacheError, match="taken the place"):
        write_file(str(pipe), [b"report"])
    assert victim.read_bytes() == b"precious"


#: Writes a file while each lock that it requests is held, as by another user who watches.
WATCHED = """
import fcntl, os, sys
from jaxcache.core.atomic import replace_file
held = []
def hold(event, args):
    if event == "fcntl.flock" and not held:
        assert args[1] & fcntl.LOCK_NB, "it would wait for ever"
        held.append(os.open(f"/proc/self/fd/{args[0]}", os.O_RDONLY))
        fcntl.flock(held[0], fcntl.LOCK_EX)
sys.addaudithook(hold)
replace_file(sys.argv[1], [b"whole"])
assert held
"""


def test_a_new_file_is_written_although_another_process_locks_it(tmp_path: Path) -> None:
    done = sh([sys.executable, "-c", WATCHED, tmp_path / "file"])
    assert done.returncode == 0, done.stderr
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"whole"]


# Without a home directory there is nothing of the user's.
_KEY = "jaxcache-ed25519 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


@pytest.fixture
def clone(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user without an account, with a directory of the name ``~``."""
    path = tmp_path / "clone"
    home = path / "~"
    config = home / ".config" / "jaxcache"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(
        'cache-dir = "/evil"\n[live]\nenabled = true\ntiers = ["/evil"]\n'
    )
    (config / "trusted-keys").write_text(f"{_KEY} evil\n")
    (config / "trusted-projects").write_text("sha256:0 /evil/pyproject.toml\n")
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text("[profile p]\ncredential_process = touch evil\n")
    (home / ".aws" / "credentials").write_text("")
    (home / ".config" / "gcloud").mkdir()
    (home / ".config" / "gcloud" / "application_default_credentials.json").write_text("{}")
    shutil.copytree(corpus / "0.4.38-cpu-zstd", home / ".cache" / "jax")

    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(path)
    return path


def run(clone: Path, *words: str) -> "tuple[int, str, str]":
    environment = clean_environment(clone)
    del environment["HOME"]
    done = run_in_process(words, env=environment, cwd=clone)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("clone")
def test_no_setting_and_no_key_of_a_directory_of_that_name_count() -> None:
    assert find_config_files() == []
    assert read_trusted_projects() == {}
    assert (resolve()["enabled"], resolve()["tiers"]) == (False, ())
    assert load_trusted() == []
    assert _trusted_keys() == frozenset()


@pytest.mark.parametrize(
    "line", ["ls", "ls -C ~/.cache/jax", "ls -C ~nobody-here/x", "trust keygen ci"]
)
def test_no_cache_and_no_key_is_in_a_directory_of_that_name(clone: Path, line: str) -> None:
    pytest.importorskip("cryptography")
    code, output, errors = run(clone, *line.split())
    assert (code, output) == (2, "")
    assert "no home directory is known" in errors
    assert not list(clone.rglob("*.key"))


def test_a_cache_that_is_named_in_full_needs_no_home(clone: Path, corpus: Path) -> None:
    before = sorted(clone.rglob("*"))
    code, output, errors = run(clone, "ls", "-C", str(corpus / "0.4.38-cpu-zstd"))
    assert (code, len(output.splitlines()), errors) == (0, 7, "")
    assert run(clone, "ls", "-C", "./~/.cache/jax")[0] == 0
    assert sorted(clone.rglob("*")) == before


@pytest.mark.usefixtures("clone")
def test_no_bucket_is_reached_with_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "p")
    assert "credential_provider" not in connection("s3", {})
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert not has_credentials("gs")
    with pytest.raises(FileNotFoundError):
        live_directory("s3://bucket/x")


def test_a_python_below_an_unknown_home_does_not_exist(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "~" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "jaxcache").mkdir()
    (tmp_path / "jaxcache" / "config.toml").write_text('python = "~/python"\n')
    with pytest.raises(NoJaxError, match="no home directory is known"):
        find_python(None)


def test_packages_are_looked_up_without_a_home(clone: Path) -> None:
    (clone / "bin").mkdir()
    (clone / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    assert not has_package(str(clone / "bin" / "python"), "no_such_package")


@pytest.mark.parametrize(
    "text",
    [
        "[tool.jaxcache]\npython = 'p'",
        "[ tool . 'jaxcache' ]\npython = 'p'",
        "[\"tool\"]\njaxcache = {python = 'p'}",
        "tool.jaxcache.python = 'p'",
        "tool = {jaxcache = {python = 'p'}}",
    ],
)
def test_each_spelling_of_the_table_in_a_project_is_found(text: str) -> None:
    file = ConfigFile("/p/pyproject.toml", text.encode(), "")
    assert (file.names_jaxcache, file.parse()) == (True, {"python": "p"})
