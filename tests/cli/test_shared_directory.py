"""What one user leaves in a directory, its owner and other members of a group can change."""

import ctypes  # noqa: F401 - which other users may not be able to read
import os
import shutil
import stat
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import RunCli

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.core.atomic import hold_lockfile, open_directory
from jaxcache.live.files import quarantine_entry, write_stamp, write_whole
from jaxcache.store import open_store
from jaxcache.store.local import LocalStore

OWNER, MEMBER, GROUP = 65534, 65532, 65533
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


@pytest.fixture
def shared() -> Iterator[Path]:
    """An empty directory that belongs to another user, and that any user may pass through."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        cache = path / "cache"
        cache.mkdir(mode=0o755)
        os.chown(cache, OWNER, GROUP)
        yield cache


@pytest.fixture
def owned(shared: Path, corpus: Path) -> Path:
    """The same with entries that their owner has written under a size cap."""
    for path in (corpus / "0.12.0.1-cpu-zstd-maxsize").iterdir():
        copy = Path(shutil.copy(path, shared))
        os.chown(copy, OWNER, GROUP)
        os.utime(copy, (1_700_000_000, 1_700_000_000))
    (shared / ".lockfile").unlink(missing_ok=True)
    return shared


def as_user(uid: int, work: Callable[[], object], *, gid: int = GROUP, umask: int = 0o022) -> None:
    """Do something in a child process as another user; it must not fail."""
    child = os.fork()
    if not child:
        try:
            os.umask(umask)
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def write_to_all(cache: Path) -> None:
    """What JAX and jaxcache do to files that are there: write to them, and beside them."""
    for path in (cache, *cache.rglob("*")):
        assert os.access(path, os.R_OK | os.W_OK), path
        if path.is_file():
            with path.open("r+b"):
                pass
        else:
            (path / "new").touch()
            (path / "new").unlink()


def test_the_owner_can_write_to_all_that_root_has_left(
    run_cli: RunCli, owned: Path, tmp_path: Path
) -> None:
    names = sorted(p.name for p in owned.glob("*-cache"))
    (owned / names[0].replace("-cache", "-atime")).unlink()
    with (owned / names[1]).open("r+b") as file:
        file.truncate(40)
    os.utime(owned / names[1], (1_700_000_000, 1_700_000_000))
    bundle = tmp_path / "x.jxb"
    commands: list[tuple[tuple[str | Path, ...], int]] = [
        (("export", bundle, names[2].removesuffix("-cache")), 0),
        (("verify", "--fix", "--atimes"), 0),
        (("pin", names[0].removesuffix("-cache")), 0),
        (("rm", names[2].removesuffix("-cache"), "--yes"), 0),
        (("import", bundle), 0),
        (("seal",), 0),
        (("prune", "--max-entries", "4", "--yes"), 0),
    ]
    for arguments, code in commands:
        done = run_cli(*arguments, "-C", owned)
        assert done.returncode == code, (arguments, done.stderr)
        assert {p.stat().st_uid for p in (owned, *owned.rglob("*"))} == {OWNER}, arguments
        assert not (owned / ".lockfile").exists(), arguments
        as_user(OWNER, lambda: write_to_all(owned))
    assert (owned / ".jaxcache" / "ledger").is_dir()
    assert (owned / ".jaxcache" / "quarantine").is_dir()


def test_the_owner_can_take_the_locks_of_torch_that_root_has_left(
    run_cli: RunCli, shared: Path, golden: Path
) -> None:
    shutil.copytree(golden, shared, dirs_exist_ok=True)
    shutil.rmtree(shared / "locks", ignore_errors=True)
    for path in (shared, *shared.rglob("*")):
        os.chown(path, OWNER, GROUP)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    done = run_cli("prune", "-C", shared, "--max-entries", "1", "--yes")
    assert done.returncode == 0, done.stderr
    assert list((shared / "locks").iterdir())
    as_user(OWNER, lambda: write_to_all(shared))


def test_a_lockfile_that_was_there_stays_as_it_was(run_cli: RunCli, owned: Path) -> None:
    lockfile = owned / ".lockfile"
    lockfile.touch(mode=0o600)
    os.chown(lockfile, OWNER, GROUP)
    key = min(owned.glob("*-cache")).name.removesuffix("-cache")
    assert run_cli("rm", key, "--yes", "-C", owned).returncode == 0
    status = lockfile.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (OWNER, GROUP, 0o600)


def test_members_of_a_group_can_write_to_what_another_has_left(shared: Path) -> None:
    shared.chmod(0o2775)

    def leave() -> None:
        store = LocalStore(shared)
        store.write("a-atime", [b"x" * 8])
        store.write(".jaxcache/ledger/a", [b"x"], replace=False)
        with store.lock(timeout_seconds=1):
            status = (shared / ".lockfile").stat()
            assert (status.st_gid, status.st_mode & 0o060) == (GROUP, 0o060)

    as_user(MEMBER, leave, umask=0o077)
    as_user(OWNER, lambda: write_to_all(shared))
    as_user(MEMBER + 5, lambda: write_to_all(shared))
    assert not (shared / "a-atime").stat().st_mode & 0o007


def test_a_lock_that_another_user_made_is_taken(shared: Path) -> None:
    shared.chmod(0o777)
    (shared / ".lockfile").touch(mode=0o644)

    def take() -> None:
        with LocalStore(shared).lock(timeout_seconds=1):
            pass

    as_user(MEMBER, take)
    assert (shared / ".lockfile").exists()


@pytest.mark.parametrize(("mode", "bits"), [(0o777, 0o006), (0o1777, 0), (0o755, 0)])
def test_strangers_may_write_where_they_may(shared: Path, mode: int, bits: int) -> None:
    """In a sticky directory nobody may change what another has written."""
    shared.chmod(mode)
    LocalStore(shared).write("a-atime", [b"x" * 8])
    assert (shared / "a-atime").stat().st_mode & 0o002 == bits & 0o002


def test_seal_keeps_access_lists_and_drops_setuid(run_cli: RunCli, owned: Path) -> None:
    path = min(owned.glob("*-cache"))
    entries = [(1, 6, -1), (2, 6, MEMBER), (4, 4, -1), (0x10, 6, -1), (0x20, 0, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries)
    path.chmod(0o4755)
    try:
        os.setxattr(path, "user.origin", b"host 7")
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("no extended attributes here")
    before = path.stat()
    done = run_cli("seal", "-C", owned)
    assert done.returncode == 0, done.stderr
    after = path.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_uid, after.st_gid, after.st_mtime_ns) == (OWNER, GROUP, before.st_mtime_ns)
    assert os.getxattr(path, "user.origin") == b"host 7"
    assert os.getxattr(path, "system.posix_acl_access") == acl
    assert stat.S_IMODE(before.st_mode) == 0o4660
    assert stat.S_IMODE(after.st_mode) == 0o660


def leave_as_a_running_program_does(cache: Path) -> None:
    """What the live layer writes: entries with stamps, its locks, counts and quarantine."""
    from jaxcache.live.process import Counters

    with open_directory(str(cache)) as directory:
        write_whole(directory, "jit_f-" + "a" * 64 + "-cache", b"entry")
        write_stamp(directory, "jit_f-" + "a" * 64)
        with hold_lockfile(directory, timeout_seconds=10, keep=True) as held:
            assert held
    counters = Counters()
    counters.add("hits_local", 1)
    counters.save_totals(str(cache))
    quarantine_entry(str(cache), "jit_f-" + "a" * 64)


def test_what_a_program_of_root_leaves_belongs_to_the_owner_of_the_directory(shared: Path) -> None:
    leave_as_a_running_program_does(shared)
    assert {(p.lstat().st_uid, p.lstat().st_gid) for p in shared.rglob("*")} == {(OWNER, GROUP)}


def test_members_can_write_to_all_that_a_running_program_has_left(shared: Path) -> None:
    shared.chmod(0o775)
    as_user(MEMBER, lambda: leave_as_a_running_program_does(shared), umask=0o077)
    as_user(OWNER, lambda: write_to_all(shared))
    as_user(OWNER, lambda: leave_as_a_running_program_does(shared))
    assert len([*(shared / ".jaxcache" / "quarantine").iterdir()]) == 2


# The commands that write, on a mount without hard links.


def test_every_command_writes_without_hard_links(
    run_cli: RunCli, without_links: Path, corpus: Path, tmp_path: Path
) -> None:
    source, cache, bundle = tmp_path / "source", without_links / "cache", tmp_path / "x.jxb"
    shutil.copytree(corpus / "0.12.0.1-cpu-zstd", source, copy_function=shutil.copyfile)
    assert run_cli("pin", "*", "-C", source).returncode == 0
    keys = {p.name for p in source.glob("*-cache")}
    key = without_links / "keys" / "ours"
    for arguments in (
        ("export", bundle, "-C", source),
        ("import", bundle, "-C", cache, "--atomic"),
        ("pin", "*", "-C", cache),
        ("copy", cache, without_links / "copy"),
        ("trust", "keygen", key),
    ):
        done = run_cli(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    assert {p.name for p in cache.glob("*-cache")} == keys
    assert {p.name for p in (without_links / "copy").glob("*-cache")} == keys
    assert Ledger.load(open_store(str(cache)))
    assert key.stat().st_mode & 0o777 == 0o600
    damaged = min(cache.glob("*-cache"))
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-5])
    os.utime(damaged, (1_700_000_000, 1_700_000_000))
    assert run_cli("verify", "--fix", "-C", cache).returncode == 0
    (quarantined,) = cache.glob(".jaxcache/quarantine/*/*-cache")
    assert quarantined.name == damaged.name
    quarantined.write_bytes(sound)
    assert run_cli("verify", "--restore", "-C", cache).returncode == 0
    assert damaged.exists()
    assert not list(without_links.rglob(".jaxcache-tmp-*"))
