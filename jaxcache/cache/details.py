"""Decode entries for a listing: platform, target, signature, source; in several processes."""

from collections.abc import Iterator, Sequence

from jaxcache.cache.heads import Facts, facts_of_file
from jaxcache.cache.inventory import EntryFile
from jaxcache.cache.parallel import spread
from jaxcache.entry.brief import Brief, read_brief
from jaxcache.model import ProblemKind
from jaxcache.store.base import MissingError, Store, StoreError

#: Fewer entries than this are decoded before other processes have started.
PARALLEL_ABOVE = 3_000


def read_briefs(store: Store, files: Sequence[EntryFile], *, workers: int = 1) -> Iterator[Brief]:
    """Yield the brief facts of each file, in order; ``workers`` as for :func:`spread`."""
    wanted = [(f.info.name, f.info.size_bytes, f.key.module) for f in files]
    yield from spread(_read, store, wanted, workers=workers, above=PARALLEL_ABOVE)


def read_facts_and_briefs(
    store: Store, files: Sequence[EntryFile]
) -> Iterator[tuple[Facts, Brief]]:
    """Yield both of each file, in order, opening it once: for stores where that is what costs."""
    opened = store.open_many([file.info.name for file in files])
    for file, found in zip(files, opened, strict=True):
        if isinstance(found, MissingError):
            yield Facts(None, None, None, gone=True), Brief()
        elif isinstance(found, StoreError):
            problem: tuple[ProblemKind, str] = ("unreadable", found.reason)
            yield Facts(None, problem, None), Brief(problem=problem)
        else:
            with found:
                facts = facts_of_file(found, file.info.size_bytes)
                yield facts, read_brief(found, file.info.size_bytes, file.key.module or None)


_Wanted = tuple[str, int, str]


def _read(store: Store, wanted: Sequence[_Wanted]) -> Iterator[Brief]:
    files = store.open_many([name for name, _, _ in wanted])
    for (_, size_bytes, module), opened in zip(wanted, files, strict=True):
        if isinstance(opened, StoreError):
            yield Brief(problem=("unreadable", opened.reason))
            continue
        with opened as file:
            yield read_brief(file, size_bytes, module or None)
