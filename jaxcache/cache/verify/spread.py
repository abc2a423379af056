"""Check many entries in several processes: decoding one is bound by the interpreter."""

from collections.abc import Callable, Iterator, Sequence

from jaxcache.cache.inventory import EntryFile
from jaxcache.cache.parallel import in_processes
from jaxcache.cache.verify.check import Checked, check_entry
from jaxcache.store.base import Store

#: Fewer entries than this are checked before other processes have started.
SPREAD_ABOVE = 400
#: Larger entries stay with the threads of one process, which share a bound on memory.
MAX_FILE_BYTES = 1 << 20
MAX_HELD_BYTES = 64 << 20
#: Entries per task: a quarter of a second of work.
_CHUNK = 100

_Wanted = tuple[EntryFile, str | None]


def can_spread(store: Store, jobs: int) -> bool:
    """Whether other processes could open the same files."""
    return jobs > 1 and getattr(store, "path", None) is not None


def check_in_processes(
    store: Store,
    files: Sequence[EntryFile],
    digest_of: Callable[[EntryFile], str | None],
    jobs: int,
) -> Iterator[Checked]:
    """Yield what was found in each file, in order; ends early where processes cannot be had."""
    wanted = [(file, digest_of(file)) for file in files]
    location = str(getattr(store, "path", None))
    yield from in_processes(_Checker(location), wanted, jobs, chunk=_CHUNK)


class _Checker:
    """Checks chunks in another process; picklable, because it is only a path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, wanted: Sequence[_Wanted]) -> list[Checked]:
        from jaxcache.store.local import LocalStore

        store = LocalStore(self.path)
        return [check_entry(store, file, digest, decode=True) for file, digest in wanted]
