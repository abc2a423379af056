"""The local store: the conformance suite, what only a file system can do, and other users."""

import ctypes
import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conformance import StoreConformance
from conftest import RunCli
from filelock import FileLock
from ways import names

from jaxcache.cache.ledger.segments import Ledger
from jaxcache.core import atomic
from jaxcache.core.atomic import hold_lockfile, open_directory
from jaxcache.errors import LockedError, NoCacheError
from jaxcache.live.files import quarantine_entry, write_stamp, write_whole
from jaxcache.store import open_store
from jaxcache.store.base import ExistsError, NewFile, Store, StoreError
from jaxcache.store.local import LocalStore

pytestmark = pytest.mark.filterwarnings("error")


class TestLocalStore(StoreConformance):
    """The local store keeps every promise."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path)


class TestMountWithoutLinks(StoreConformance):
    """So it does on a FUSE mount, of which many know no hard links."""

    @pytest.fixture
    def store(self, without_links: Path) -> Store:
        (without_links / "a").touch()
        with pytest.raises(PermissionError):
            os.link(without_links / "a", without_links / "b")
        (without_links / "a").unlink()
        return LocalStore(without_links)


@pytest.mark.parametrize("without_links", ["ignore-case"], indirect=True)
class TestMountThatIgnoresCase(StoreConformance):
    """And on one that ignores case, as the volumes of macOS do."""

    @pytest.fixture
    def store(self, without_links: Path) -> Store:
        (without_links / "a").touch()
        assert (without_links / "A").exists()
        assert os.listdir(without_links) == ["a"]
        (without_links / "A").unlink()
        return LocalStore(without_links)

    def test_a_name_of_another_case_is_taken(self, store: Store) -> None:
        store.write("jit_Step-cache", [b"x"])
        with pytest.raises(ExistsError):
            store.write("jit_step-cache", [b"y"], replace=False)
        assert [f.name for f in store.list()] == ["jit_Step-cache"]
        assert store.read("jit_Step-cache", limit=9) == b"x"


class TestSystemWithoutRenameat2(StoreConformance):
    """And where the C library has no ``renameat2``, as on macOS: hard links take its place."""

    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
        atomic._renameat2.cache_clear()
        assert not atomic._rename_without_replacing(0, "a", 0, "b")
        yield LocalStore(tmp_path)
        atomic._renameat2.cache_clear()


def test_two_that_write_a_new_file_without_links(without_links: Path) -> None:
    script = (
        "import sys; from jaxcache.store.local import LocalStore; "
        "from jaxcache.store.base import ExistsError\n"
        f"s = LocalStore({str(without_links)!r})\n"
        "for n in range(100):\n"
        " try: s.write(f'a{n}', [sys.argv[1].encode()], replace=False); print(n)\n"
        " except ExistsError: pass"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, name], stdout=subprocess.PIPE, text=True)
        for name in "xyz"
    ]
    won = {name: child.communicate()[0].split() for name, child in zip("xyz", running, strict=True)}
    assert sorted(int(n) for names in won.values() for n in names) == list(range(100))
    for name, numbers in won.items():
        assert all((without_links / f"a{n}").read_text() == name for n in numbers)
    assert len(os.listdir(without_links)) == 100


def test_a_claim_that_a_killed_process_left_stops_nobody(without_links: Path) -> None:
    script = (
        "import os; from jaxcache.store.local import LocalStore\n"
        "os.replace = lambda *a, **k: os.kill(os.getpid(), 9)\n"
        f"LocalStore({str(without_links)!r}).write('a', [b'x'], replace=False)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    store = LocalStore(without_links)
    assert any("claim" in info.name for info in store.list())
    store.write("a", [b"y"], replace=False)
    assert store.read("a", limit=9) == b"y"


def test_no_directory_a_file_and_a_link_loop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (("gone", "no such"), ("file", "is a file"), ("loop", "links")):
        with pytest.raises(NoCacheError, match=reason):
            LocalStore(tmp_path / name)


def test_files_are_listed_by_name(tmp_path: Path) -> None:
    """Each file system has an order of its own, and some another on each disk.

    Names in odd bytes are no others.
    """
    odd, store = os.fsdecode(b"caf\xe9-\xff"), LocalStore(tmp_path)
    names = [odd, *(f"jit_f-{number:02}" for number in range(40))]
    for name in reversed(names):
        store.write(name, [b"x"])
    assert [info.name for info in store.list()] == names
    assert store.read(odd, limit=1) == b"x"
    assert store.delete(odd)


def test_links_are_listed_and_never_followed_and_a_fifo_does_not_hang(tmp_path: Path) -> None:
    """The root itself may be a link."""
    outside, root = tmp_path / "outside", tmp_path / "cache"
    for directory in (outside, root):
        directory.mkdir()
    (outside / "secret").write_text("secret")
    (root / "to-file").symlink_to(outside / "secret")
    (root / "to-directory").symlink_to(outside)
    os.mkfifo(root / "fifo")
    (tmp_path / "link").symlink_to("cache")
    store = LocalStore(tmp_path / "link")
    kinds = {"to-file": "symlink", "to-directory": "symlink", "fifo": "other"}
    assert {i.name: i.type for i in store.list()} == kinds
    for name in ("to-file", "to-directory/secret", "fifo"):
        with pytest.raises(StoreError):
            store.read(name, limit=9)
    assert list(store.list("to-directory")) == []
    assert list(store.walk("to-directory")) == []
    with pytest.raises(StoreError):
        store.write("to-directory/new", [b"x"])
    assert not (outside / "new").exists()
    store.write("to-file", [b"mine"])  # replaces the link, not what it points to
    assert (outside / "secret").read_text() == "secret"


def test_reading_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    past = time.time_ns() - 10**15
    os.utime(path, ns=(past, past))
    store = LocalStore(tmp_path)
    store.read("a", limit=1)
    list(store.read_many(["a"], limit=1))
    assert path.stat().st_atime_ns == past


def test_a_killed_write_leaves_only_a_temporary_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    script = (
        "import os, sys; from jaxcache.store.local import LocalStore\n"
        "def die():\n yield b'half'\n os.kill(os.getpid(), 9)\n"
        f"LocalStore({str(tmp_path)!r}).write('a', die())"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert (tmp_path / "a").read_bytes() == b"old"
    (left,) = [i.name for i in LocalStore(tmp_path).list() if i.name != "a"]
    assert left.startswith(".jaxcache-tmp-")
    assert LocalStore(tmp_path).delete_abandoned(left)
    assert os.listdir(tmp_path) == ["a"]


def test_a_move_that_fails_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a move is a link and an unlink, as on macOS."""
    monkeypatch.setattr(atomic, "_rename_without_replacing", lambda *_: False)
    (tmp_path / "a").write_bytes(b"x")
    unlink = os.unlink

    def fail_once(*args: object, **options: object) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "unlink", fail_once)
    with pytest.raises(StoreError):
        LocalStore(tmp_path).rename("a", "b")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_mode_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a mount or a security module does not allow it; one that need not be set is kept."""

    def fchmod(_fd: int, _mode: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o646)  # which no umask in use gives a new file
    store = LocalStore(tmp_path)
    store.write("b", [b"old"])
    monkeypatch.setattr(os, "fchmod", fchmod)
    with pytest.raises(StoreError, match="a: permission denied"):
        store.rewrite(NewFile("a", [b"new"]), store.info("a"))
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o646
    store.rewrite(NewFile("b", [b"new"]), store.info("b"))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old", "b": b"new"}


def test_a_lock_held_elsewhere_is_an_error_with_a_name(tmp_path: Path) -> None:
    """As by JAX, which locks by the same package."""
    store = LocalStore(tmp_path)
    with (
        FileLock(tmp_path / ".lockfile"),
        pytest.raises(LockedError, match=r"\.lockfile"),
        store.lock(timeout_seconds=0.1),
    ):
        pass
    with store.lock(timeout_seconds=1):
        pass


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="a file that cannot be read")
def test_an_error_of_the_disk_names_the_file() -> None:
    store = LocalStore("/proc/self")
    for read in (lambda file: file.read(8), lambda file: file.read(), lambda file: file.read1()):
        with (
            store.open("mem") as file,
            pytest.raises(StoreError, match="mem: input/output error") as raised,
        ):
            read(file)
        assert raised.value.code == "io-error"


# What one user leaves in a directory, its owner and other members of a group can change.


OWNER, MEMBER, GROUP = 65534, 65532, 65533


@pytest.fixture
def shared() -> Iterator[Path]:
    """An empty directory that belongs to another user, and that any user may pass through."""
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
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


def as_user(uid: int, work: Callable[[], object], *, umask: int = 0o022) -> None:
    """Do something in a child process as another user; it must not fail."""
    child = os.fork()
    if not child:
        try:
            os.umask(umask)
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(uid)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_another_users_file_is_read_all_the_same(shared: Path) -> None:
    """O_NOATIME is refused to those who do not own the file."""
    (shared / "a").write_bytes(b"x")

    def read() -> None:
        store = LocalStore(shared)
        assert (store.read("a", limit=1), *store.read_many(["a"], limit=1)) == (b"x", b"x")

    as_user(MEMBER, read)


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


def test_the_owner_can_write_to_all_that_root_has_left(
    run_cli: RunCli, owned: Path, tmp_path: Path
) -> None:
    names = sorted(p.name for p in owned.glob("*-cache"))
    (owned / names[0].replace("-cache", "-atime")).unlink()
    with (owned / names[1]).open("r+b") as file:
        file.truncate(40)
    os.utime(owned / names[1], (1_700_000_000, 1_700_000_000))
    bundle = tmp_path / "x.jxb"
    commands: list[tuple[str | Path, ...]] = [
        ("export", bundle, names[2].removesuffix("-cache")),
        ("verify", "--fix", "--atimes"),
        ("pin", names[0].removesuffix("-cache")),
        ("rm", names[2].removesuffix("-cache"), "--yes"),
        ("import", bundle),
        ("seal",),
        ("prune", "--max-entries", "4", "--yes"),
    ]
    for arguments in commands:
        assert run_cli(*arguments, "-C", owned).returncode == 0
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
    assert run_cli("prune", "-C", shared, "--max-entries", "1", "--yes").returncode == 0
    assert list((shared / "locks").iterdir())
    as_user(OWNER, lambda: write_to_all(shared))


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


def test_a_lock_that_another_user_made_is_taken_and_stays_as_it_was(shared: Path) -> None:
    shared.chmod(0o777)
    lockfile = shared / ".lockfile"
    lockfile.touch(mode=0o644)
    os.chown(lockfile, OWNER, GROUP)
    before = lockfile.stat()

    def take() -> None:
        with LocalStore(shared).lock(timeout_seconds=1):
            pass

    as_user(MEMBER, take)
    take()
    assert lockfile.stat()[:7] == before[:7]


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
    assert run_cli("seal", "-C", owned).returncode == 0
    after = path.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_uid, after.st_gid) == (OWNER, GROUP)
    assert (after.st_atime_ns, after.st_mtime_ns) == (before.st_atime_ns, before.st_mtime_ns)
    assert os.getxattr(path, "user.origin") == b"host 7"
    assert os.getxattr(path, "system.posix_acl_access") == acl
    assert stat.S_IMODE(before.st_mode) == 0o4660
    assert stat.S_IMODE(after.st_mode) == 0o660


def test_what_a_program_of_root_leaves_belongs_to_the_directorys_owner(shared: Path) -> None:
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
    key = without_links / "keys" / "ours"
    for arguments in (
        ("export", bundle, "-C", source),
        ("import", bundle, "-C", cache, "--atomic"),
        ("pin", "*", "-C", cache),
        ("copy", cache, without_links / "copy"),
        ("trust", "keygen", key),
    ):
        assert run_cli(*arguments).returncode == 0
    assert names(source) == names(cache) == names(without_links / "copy")
    assert Ledger.load(open_store(str(cache)))
    assert key.stat().st_mode & 0o777 == 0o600
    assert not list(without_links.rglob(".jaxcache-tmp-*"))
