"""What every store must keep (see jaxcache/store/base.py). Subclass, and give a ``store``."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from jaxcache.core.names import TEMP_PREFIX
from jaxcache.store.base import (
    BadNameError,
    ChangedError,
    ExistsError,
    MissingError,
    NewFile,
    Store,
    StoreError,
    same_file,
)


class StoreConformance:
    """A store's promises, as tests."""

    @pytest.fixture
    def store(self) -> Store:
        """An empty, writable store."""
        raise NotImplementedError

    def test_what_was_written_is_read_listed_and_looked_at(self, store: Store) -> None:
        written = store.write("a-cache", [b"one", b"", b"two"])
        assert store.read("a-cache", limit=100) == b"onetwo"
        assert store.read("a-cache", limit=3) == b"one"
        store.write("empty", [])
        assert store.read("empty", limit=5) == b""
        assert store.delete("empty")
        with store.open("a-cache") as file:
            assert file.read() == b"onetwo"
            file.seek(3)
            assert file.read(1) == b"t"
        (listed,) = store.list()
        assert (listed.name, listed.type, listed.size_bytes) == ("a-cache", "file", 6)
        assert same_file(listed, written)
        assert same_file(store.info("a-cache"), written)

    def test_a_write_replaces_or_refuses(self, store: Store) -> None:
        store.write("a", [b"old"])
        store.write("a", [b"new"])
        assert store.read("a", limit=9) == b"new"
        with pytest.raises(ExistsError):
            store.write("a", [b"third"], replace=False)
        assert store.read("a", limit=9) == b"new"
        store.write("b", [b"first"], replace=False)
        assert store.read("b", limit=9) == b"first"

    def test_a_write_that_fails_half_way_leaves_what_was_there(self, store: Store) -> None:
        def broken():
            yield b"half"
            raise RuntimeError("source died")

        store.write("a", [b"old"])
        for name in ("a", "fresh"):
            with pytest.raises(RuntimeError):
                store.write(name, broken())
        assert {i.name for i in store.list()} == {"a"}
        assert store.read("a", limit=9) == b"old"

    def test_of_many_writes_one_that_fails_does_not_end_the_others(self, store: Store) -> None:
        stamp = 1_600_000_000_000_000_000
        for name in "bcd":
            store.write(name, [b"old"])
        seen = store.info("c")
        store.write("d", [b"since"])
        files = [
            NewFile("directory/a", [b"x"], stamp),
            NewFile("b", [b"new"]),
            NewFile("../c", [b"no"]),
            NewFile("b", [b"no"], replace=False),
            NewFile("c", [b"healed"], stamp, expected=seen),
            NewFile("d", [b"no"], expected=seen._replace(name="d", etag="other", inode=1)),
            NewFile("e", [b"last"], replace=False),
        ]
        done = list(store.write_many(files))
        failed = [type(d) for d in done if isinstance(d, StoreError)]
        assert failed == [BadNameError, ExistsError, ChangedError]
        assert [d.name for d in done if not isinstance(d, StoreError)] == [
            "directory/a", "b", "c", "e",
        ]  # fmt: skip
        assert store.info("directory/a").mtime_ns == store.info("c").mtime_ns == stamp
        assert [store.read(n, limit=9) for n in "bcde"] == [b"new", b"healed", b"since", b"last"]
        assert {i.name for i in store.list() if i.type == "file"} == set("bcde")
        assert [i.name for i in store.list("directory")] == ["directory/a"]
        assert not list(store.write_many([]))
        store.sync_names(["directory/a", "b", "gone/f"])

    def test_readers_never_see_a_torn_write(self, store: Store) -> None:
        store.write("a", [b"0" * 200_000])
        stop = threading.Event()

        def rewrite() -> None:
            for n in range(1, 40):
                store.write("a", [bytes([48 + n % 10]) * 200_000])
            stop.set()

        writer = threading.Thread(target=rewrite)
        writer.start()
        while not stop.is_set():
            data = store.read("a", limit=300_000)
            assert len(data) == 200_000
            assert len(set(data)) == 1
        writer.join()

    def test_many_starts_at_once_with_failures_in_their_place(self, store: Store) -> None:
        store.write("a", [b"first"])
        store.write("directory/b", [b"second"])
        found = store.read_many(["a", "gone", "directory/b", "../a", "nul\0"], limit=3)
        expected = [b"fir", MissingError, b"sec", BadNameError, BadNameError]
        assert [f if isinstance(f, bytes) else type(f) for f in found] == expected

    def test_a_rewrite_keeps_the_times_and_swaps_under_its_guard(self, store: Store) -> None:
        seen = store.write("a", [b"old"], mtime_ns=1_600_000_000_000_000_000)
        during: list[bytes] = []

        @contextlib.contextmanager
        def guard() -> Iterator[None]:
            during.append(store.read("a", limit=9))
            yield
            during.append(store.read("a", limit=9))

        written = store.rewrite(NewFile("a", [b"newer"]), seen, guard())
        assert during == [b"old", b"newer"]
        now = store.info("a")
        assert same_file(now, written)
        assert (now.mode, now.owner) == (seen.mode, seen.owner)
        assert now.mtime_ns == seen.mtime_ns == 1_600_000_000_000_000_000

    def test_a_rewrite_spares_a_file_that_has_changed(self, store: Store) -> None:
        seen = store.write("a", [b"one"])
        store.write("a", [b"other"])
        with pytest.raises(ChangedError):
            store.rewrite(NewFile("a", [b"new"]), seen)
        assert store.read("a", limit=9) == b"other"
        store.delete("a")
        with pytest.raises(ChangedError):
            store.rewrite(NewFile("a", [b"new"]), seen)
        assert list(store.list()) == []

    def test_a_temporary_file_in_use_is_not_abandoned(self, store: Store) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"x"
            for info in store.list():
                assert not store.delete_abandoned(info.name)
            yield b"y"

        store.write("a", chunks())
        assert store.read("a", limit=9) == b"xy"
        assert not store.delete_abandoned("a")
        assert not store.delete_abandoned(f"{TEMP_PREFIX}gone")

    def test_directories(self, store: Store) -> None:
        assert [*store.list(), *store.list("directory"), *store.walk("directory")] == []
        store.write("directory/inner/x", [b"1"])
        store.write("directory/y", [b"22"])
        assert {(i.name, i.type) for i in store.list()} == {("directory", "dir")}
        assert {i.name for i in store.list("directory")} == {"directory/inner", "directory/y"}
        assert {i.name for i in store.walk("directory")} == {"directory/inner/x", "directory/y"}
        assert store.read("directory/inner/x", limit=9) == b"1"

    def test_a_listing_of_names_that_begin_alike(self, store: Store) -> None:
        for name in ("a", "ab-1", "ab-2", "ab", "ac", "b", "ab-x/y", "f/ab-3", "f/b"):
            store.write(name, [b"x"])
        found = {(i.name, i.type) for i in store.list(start="ab-")}
        assert found == {("ab-1", "file"), ("ab-2", "file"), ("ab-x", "dir")}
        assert {i.name for i in store.list("f", start="ab")} == {"f/ab-3"}
        assert list(store.list(start="zz")) == []

    def test_delete_spares_a_file_that_has_changed(self, store: Store) -> None:
        seen = store.write("a", [b"one"])
        other = store.write("a", [b"other"])
        assert not store.delete("a", expected=seen)
        assert store.read("a", limit=9) == b"other"
        assert store.delete("a", expected=other)
        assert not store.delete("a")
        assert list(store.list()) == []

    def test_rename_moves_and_replaces_only_if_told(self, store: Store) -> None:
        store.write("a", [b"one"])
        store.rename("a", "directory/b")
        assert store.read("directory/b", limit=9) == b"one"
        store.write("a", [b"two"])
        with pytest.raises(ExistsError):
            store.rename("a", "directory/b")
        assert store.read("a", limit=9) == b"two"
        store.rename("a", "directory/b", replace=True)
        assert store.read("directory/b", limit=9) == b"two"
        assert [i.name for i in store.list()] == ["directory"]
        for new, replace in (("c", False), ("directory/b", True)):
            with pytest.raises(MissingError):
                store.rename("gone", new, replace=replace)

    def test_a_name_that_is_held_is_not_abandoned(self, store: Store) -> None:
        name = f"directory/{TEMP_PREFIX}held"
        with store.hold(name):
            if not store.remote:  # elsewhere no name can tell whether its writer lives
                assert {i.name for i in store.walk("directory")} == {name}
            assert not store.delete_abandoned(name)
        assert list(store.walk("directory")) == []

    def test_no_name_leaves_the_root_and_one_that_is_not_there_is_missing(
        self, store: Store
    ) -> None:
        attempts: list[Callable[[str], object]] = [
            lambda name: store.read(name, limit=1),
            lambda name: store.open(name),
            lambda name: store.info(name),
            lambda name: store.write(name, [b"x"]),
            lambda name: store.delete(name),
            lambda name: store.rename(name, "ok"),
            lambda name: store.rename("ok", name),
        ]
        store.write("ok", [b"x"])
        for name in ("", "/x", "../x", "a/../b", "a//b", ".", "..", "a/", "nul\0byte"):
            for attempt in attempts:
                with pytest.raises(BadNameError):
                    attempt(name)
        for read in attempts[:3]:
            with pytest.raises(MissingError):
                read("gone")

    def test_the_lock_is_let_go_and_can_be_taken_again(self, store: Store) -> None:
        for _ in range(2):
            with store.lock(timeout_seconds=1):
                pass
