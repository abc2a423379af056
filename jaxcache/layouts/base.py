"""The facts about the cache of one compiler, which the operations of :mod:`jaxcache.cache` ask for.

Listing, statistics, prune, verify and diff are written once, over these facts. What only one
compiler's cache can do (sealing, loading) has no method here. Functions come in groups, each a
module that is imported when it is asked for; mypy holds the module to the group's protocol.
"""

from __future__ import annotations  # the protocols import nothing when a program starts

from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from jaxcache.cache.bundle.format import Bundle
    from jaxcache.cache.diff import DiffSide
    from jaxcache.cache.explain.keys import Churn
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.cache.move.export_plan import ExportPlan
    from jaxcache.cache.move.plan import Plan
    from jaxcache.cache.prune.removable import RemovableSet
    from jaxcache.cache.scan import ScanAids
    from jaxcache.cache.show import EntryDetails
    from jaxcache.cache.verify.check import EntryCheck
    from jaxcache.entry.summary import Entry, ScanResult
    from jaxcache.layouts.torch.explain import GraphDetails
    from jaxcache.model import Depth, Problem
    from jaxcache.options import PruneOptions, VerifyOptions
    from jaxcache.store.base import FileLock, Store


T = TypeVar("T")


class Words(NamedTuple):
    """The words for one compiler on screens that all layouts share."""

    compiler: str
    fill: str
    """How to fill its cache."""
    record: str | None
    """How to record its hits; None where they cannot be recorded."""


class FunctionGroup(Generic[T]):
    """A group of functions: a module, imported on first use.

    ``tests/lint/typed_layouts.py`` has mypy hold each module to the group's protocol.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __get__(self, layout: object, owner: type) -> T:
        return cast("T", import_module(self._module))


class Scans(Protocol):
    """Takes inventory of a cache, with the facts of every entry."""

    def scan(self, store: Store, aids: ScanAids, depth: Depth, *, deep: bool) -> ScanResult:
        """Scan a cache.

        Args:
            depth: how much to read of each entry; other facts come from its name and the index.
            deep: whether files in directories count.

        Raises:
            NoCacheError: the directory cannot be listed.
        """

    def decode(
        self,
        store: Store,
        scan_result: Any,
        wanted: Iterable[Entry],
        aids: ScanAids,
        depth: Depth,
    ) -> ScanResult:
        """Read more of some entries of a scan of this layout."""


class Checks(Protocol):
    """Verifies files."""

    def files_to_check(
        self, store: Store, scan_result: Any, chosen: Collection[str], options: VerifyOptions
    ) -> Sequence[Any]:
        """Return the files to verify, each with its ``info``.

        Args:
            scan_result: a scan of this layout, without headers.
            chosen: the files of the entries that are meant.

        Raises:
            UsageError: the layout knows no such level.
        """

    def check(
        self, store: Store, scan_result: Any, files: Sequence[Any], options: VerifyOptions
    ) -> Iterator[tuple[str, EntryCheck]]:
        """Check each file by itself, by name, in any order."""

    def check_beside(
        self,
        scan_result: Any,
        files: Sequence[Any],
        checks: Mapping[str, EntryCheck],
        options: VerifyOptions,
    ) -> Iterator[Problem]:
        """Yield the problems of files that were checked which only others show."""


class Removals(Protocol):
    """Plan removals: which items, in which order, under which lock."""

    @property
    def file_lock(self) -> FileLock | None:
        """The locks of single files; None where JAX's lock is for all."""

    @property
    def removal_rank(self) -> Callable[[str], int] | None:
        """The place of a file in the order in which files are removed; None where all are equal."""

    def find_removable(
        self,
        store: Store,
        scan_result: Any,
        options: PruneOptions | None,
        *,
        now_ns: int,
        keep: Collection[str],
    ) -> RemovableSet:
        """Return what a plan could remove: which files form one unit, and what protects them.

        Args:
            scan_result: a deep scan of this layout; with details if entries have no headers.
            options: of ``prune``; None where a person chooses among the entries.
            keep: keys that must stay, with all that they need.
        """


class Exports(Protocol):
    """Plans an export: which files a bundle contains."""

    def plan_export(
        self,
        store: Store,
        *,
        keys: Sequence[str],
        filters: Sequence[str],
        since: DiffSide | None,
        side_caches: bool | None,
        now_ns: int,
    ) -> ExportPlan:
        """Plan a bundle.

        Args:
            since: leave out what this side has.
        """


class Imports(Protocol):
    """Plans an import: which files of a bundle are written."""

    def plan_import(
        self,
        store: Store | None,
        bundle: Bundle,
        *,
        cache_dir: str,
        on_conflict: str,
        side_caches: bool,
    ) -> Plan:
        """Look at what is there already, and decide for each file of a verified bundle."""


class Sides(Protocol):
    """Reads the content of every entry, for a comparison."""

    def read_side(self, store: Store) -> DiffSide:
        """Read that of a cache."""

    def read_bundle(self, bundle: Bundle) -> DiffSide:
        """Read that of a bundle.

        Raises:
            BundleError
        """


class Shows(Protocol):
    """Decodes entries."""

    def show(self, store: Any, wanted: str, /) -> Iterable[EntryDetails | GraphDetails]:
        """Decode the entries that a KEY means."""

    def show_file(self, store: Store, name: str, /) -> Iterable[EntryDetails | GraphDetails]:
        """Decode the file of that name."""


class Explains(Protocol):
    """Says why keys differ, and what is compiled again and again."""

    def explain_keys(self, keys: Sequence[str], url: str, /) -> Explanation:
        """Compare two keys of the cache at ``url``, or one with the nearest other."""

    def find_churn(
        self, store: Store, *, explained: int | None = None, scan_result: Any = None
    ) -> tuple[Churn, ...]:
        """Find what has several keys, and why."""
