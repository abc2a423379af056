"""New files appear whole or not at all, and as others who share the directory need them."""

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxcache.core import atomic


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """A descriptor of ``tmp_path``."""
    with atomic.open_directory(str(tmp_path)) as descriptor:
        yield descriptor


@pytest.fixture
def umask() -> Iterator[None]:
    """The usual one."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(
    ("shared", "file", "below"),
    [
        (0o755, 0o644, 0o755),
        (0o775, 0o664, 0o775),
        (0o757, 0o646, 0o757),
        (0o777, 0o666, 0o777),
        (0o1777, 0o664, 0o775),
    ],
)
def test_who_may_write_to_a_directory_may_write_to_what_is_made_in_it(
    tmp_path: Path, directory: int, shared: int, file: int, below: int
) -> None:
    tmp_path.chmod(shared)
    with atomic.new_file(directory, [b"who", b"le"], like=directory) as new:
        new.give_name("new")
    with atomic.open_below(directory, "a/b", make=True), atomic.hold_lock(directory, "lock"):
        pass
    assert (tmp_path / "new").read_bytes() == b"whole"
    modes = [mode(tmp_path / name) for name in ("new", "lock", "a", "a/b")]
    tmp_path.chmod(0o755)
    assert modes == [file, file, below, below]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("owner", [(4711, 4712), (4711, 0), (0, 4712)])
def test_what_root_makes_belongs_to_whose_directory_it_is(
    tmp_path: Path, directory: int, owner: tuple[int, int]
) -> None:
    os.chown(tmp_path, *owner)
    with atomic.new_file(directory, [b"new"], like=directory) as new:
        new.give_name("new")
    status = (tmp_path / "new").stat()
    assert (status.st_uid, status.st_gid) == owner


def test_a_new_file_like_another_has_its_mode_without_setuid(
    tmp_path: Path, directory: int
) -> None:
    old = tmp_path / "old"
    old.touch()
    old.chmod(0o4750)
    with (
        old.open() as like,
        atomic.new_file(directory, [b"new"], (10**18, 2 * 10**18), like=like.fileno()) as new,
    ):
        new.give_name("old")
    status = old.stat()
    assert (status.st_atime_ns, status.st_mtime_ns) == (10**18, 2 * 10**18)
    assert (old.read_bytes(), mode(old)) == (b"new", 0o750)


def refuse_link(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "no links here")


@pytest.mark.parametrize("way", ["renameat2", "link", "claim"])
def test_a_file_never_takes_a_name_that_is_taken(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way != "renameat2":
        monkeypatch.setattr(atomic, "_renameat2", lambda: None)
    if way == "claim":
        monkeypatch.setattr(os, "link", refuse_link)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "taken").write_bytes(b"old")
    with pytest.raises(FileExistsError), atomic.new_file(directory, [b"new"]) as file:
        file.give_name("taken", replace=False)
    with atomic.new_file(directory, [b"new"]) as file:
        file.give_name("free", replace=False)
    with atomic.new_file(directory, [b"unnamed"], durable=False):
        pass
    assert len(synced) == 2
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert contents == {"taken": b"old", "free": b"new"}


def test_only_what_a_dead_writer_left_is_removed(tmp_path: Path, directory: int) -> None:
    for name in (".jaxcache-tmp-dead", "other"):
        (tmp_path / name).touch()
    with atomic.locked_name(directory, ".jaxcache-tmp-live"):
        assert not atomic.remove_if_abandoned(directory, "other")
        with pytest.raises(BlockingIOError):
            atomic.remove_if_abandoned(directory, ".jaxcache-tmp-live")
        atomic.remove_all_abandoned(directory)
        assert sorted(os.listdir(tmp_path)) == [".jaxcache-tmp-live", "other"]
    assert os.listdir(tmp_path) == ["other"]


@pytest.mark.parametrize("keep", [False, True])
def test_jaxs_lock_is_removed_unless_it_was_there_or_is_kept(
    tmp_path: Path, directory: int, keep: bool
) -> None:
    lockfile = tmp_path / ".lockfile"
    with atomic.hold_lockfile(directory, timeout_seconds=0, keep=keep) as is_held:
        assert is_held and lockfile.exists()
        with atomic.hold_lockfile(directory, timeout_seconds=0.01) as is_held:
            assert not is_held
    assert lockfile.exists() is keep
    lockfile.touch()
    with atomic.hold_lockfile(directory, timeout_seconds=0) as is_held:
        assert is_held
    with lockfile.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was given back


def test_a_lock_is_held_by_one_and_its_file_stays(tmp_path: Path, directory: int) -> None:
    for _ in range(2):
        with (
            atomic.hold_lock(directory, "lock") as first,
            atomic.hold_lock(directory, "lock", seconds=0.01) as second,
        ):
            assert (first, second) == (True, False)
    assert (tmp_path / "lock").exists()


def test_no_link_and_no_file_is_followed_below_a_directory(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "file").touch()
    for path, error in (("link/b", NotADirectoryError), ("file", NotADirectoryError)):
        with pytest.raises(error), atomic.open_below(directory, path, make=True):
            pass
    with pytest.raises(FileNotFoundError), atomic.open_below(directory, "a/c"):
        pass
    with atomic.open_below(directory, "a//b") as below, atomic.open_below(directory, "") as same:
        assert os.path.samestat(os.fstat(below), (tmp_path / "a" / "b").stat())
        assert same == directory


@pytest.mark.parametrize(("other", "is_tagged"), [(".lockfile", True), ("thesis.tex", False)])
def test_only_a_cache_is_tagged_as_one(
    tmp_path: Path, directory: int, other: str, is_tagged: bool
) -> None:
    (tmp_path / other).touch()
    for _ in range(2):
        with atomic.open_below(directory, ".jaxcache/live", make=True):
            pass
        assert (tmp_path / "CACHEDIR.TAG").exists() is is_tagged
        (tmp_path / "CACHEDIR.TAG").unlink(missing_ok=True)
        is_tagged = False  # once


@pytest.mark.usefixtures("umask")
def test_a_private_directory_is_the_users_alone(tmp_path: Path) -> None:
    for _ in range(2):
        atomic.make_private_directory(str(tmp_path / "a" / "b"))
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700


def test_a_failing_disk_is_no_lack_of_rights() -> None:
    with atomic.as_far_as_allowed():
        raise PermissionError(errno.EPERM, "not yours")
    with pytest.raises(OSError, match="disk"), atomic.as_far_as_allowed():
        raise OSError(errno.EIO, "disk")
