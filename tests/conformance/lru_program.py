"""Hold JAX's own cache class to its promises over a directory that jaxcache has changed.

A program for the Python that has jax: ``lru_program.py DIRECTORY``. Prints the promises that were
broken, as JSON; each is tried on a copy. What is promised was read off ``jax/_src/lru_cache.py``
(0.4.30 to 0.12.0.1) and its documentation; JAX up to 0.4.30 dates an entry by its own mtime and
gives it no suffix.
"""

import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import filelock
from jax._src import lru_cache

SUFFIX = getattr(lru_cache, "_CACHE_SUFFIX", "")
DIRECTORY = Path(sys.argv[1])
ROOM = 10**9


def open_cache(directory, max_size=ROOM):
    return lru_cache.LRUCache(str(directory), max_size=max_size, lock_timeout_secs=0.2)


def entries(directory):
    """Size and date of each entry, by key."""
    found = {}
    for path in directory.iterdir():
        key = path.name.removesuffix(SUFFIX)
        if not path.is_file() or not path.name.endswith(SUFFIX) or path.name.startswith("."):
            continue
        stamp = directory / f"{key}-atime"
        used = path.stat().st_mtime_ns
        if SUFFIX:
            used = int.from_bytes(stamp.read_bytes(), "little") if stamp.exists() else 0
        found[key] = (path.stat().st_size, used)
    return found


def others(directory):
    """What is no entry and no date: nothing of JAX's business."""
    return {
        str(p.relative_to(directory)): p.read_bytes()
        for p in directory.rglob("*")
        if p.is_file() and (p.parent != directory or p.name.startswith("xla"))
    }


def every_entry_is_read_as_it_is(directory):
    for max_size in (-1, ROOM):
        cache = open_cache(directory, max_size)
        for key in entries(directory):
            assert cache.get(key) == (directory / f"{key}{SUFFIX}").read_bytes()
        assert cache.get("jit_none-" + "0" * 64) is None


def what_is_there_is_never_replaced(directory):
    for max_size in (-1, ROOM):
        cache = open_cache(directory, max_size)
        for key in entries(directory):
            before = cache.get(key)
            cache.put(key, b"another")
            assert cache.get(key) == before


def what_is_put_is_got(directory):
    # Without a cap last: the entry has no date then, on which a cap fails before 0.11.2.
    for number, max_size in enumerate((ROOM, -1)):
        key = f"jit_new-{number:064x}"
        open_cache(directory, max_size).put(key, b"value")
        assert open_cache(directory, max_size).get(key) == b"value"


def a_read_under_a_cap_is_a_use(directory):
    cache = open_cache(directory)
    for key, (_, used) in entries(directory).items():
        cache.get(key)
        assert entries(directory)[key][1] > used


def the_least_recently_used_go_first_and_no_more_than_must(directory):
    before, kept = entries(directory), others(directory)
    order = sorted(before, key=lambda k: (before[k][1], k))
    assert len(order) > 2
    total = sum(size for size, _ in before.values())
    new = "jit_new-" + "0" * 64
    for gone in range(1, len(order)):
        # Room for what stays and one byte, so that exactly the first so many must go.
        room = total - sum(before[k][0] for k in order[:gone]) + 1
        with copy_of(directory) as copy:
            open_cache(copy, room).put(new, b"x")
            left = entries(copy)
            assert set(left) == {*order[gone:], new}, (sorted(left), order, gone)
            assert others(copy) == kept
            if SUFFIX:
                dated = {p.name.removesuffix("-atime") for p in copy.glob("*-atime")}
                assert dated == set(left), dated ^ set(left)


def a_lock_that_is_held_is_waited_for_and_given_up(directory):
    key = next(iter(entries(directory)))
    with filelock.FileLock(directory / ".lockfile"):
        try:
            open_cache(directory).get(key)
        except filelock.Timeout:
            pass
        else:
            raise AssertionError("the lock was not respected")
        assert open_cache(directory, -1).get(key)
    assert open_cache(directory).get(key)


@contextmanager
def copy_of(directory):
    """A directory with the same files, dates among them."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(shutil.copytree(directory, os.path.join(made, "cache")))


PROMISES = (
    every_entry_is_read_as_it_is,
    what_is_there_is_never_replaced,
    what_is_put_is_got,
    a_read_under_a_cap_is_a_use,
    the_least_recently_used_go_first_and_no_more_than_must,
    a_lock_that_is_held_is_waited_for_and_given_up,
)

broken = {}
for promise in PROMISES:
    with copy_of(DIRECTORY) as copied:
        try:
            promise(copied)
        except Exception as error:
            broken[promise.__name__] = f"{type(error).__name__}: {error}"
print(json.dumps({"tried": len(PROMISES), "broken": broken}))
