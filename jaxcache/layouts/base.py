"""The facts about the cache of one compiler, which the operations of :mod:`jaxcache.cache` ask for.

Listing, statistics, prune, verify and diff are written once, over these facts. What only one
compiler's cache can do (sealing, loading) has no method here.
:data:`jaxcache.layouts.LAYOUTS` says where each fact comes from.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jaxcache.model import Entry, FileInfo, Problem
from jaxcache.store.base import Store

if TYPE_CHECKING:
    from jaxcache.cache.bundle.format import Bundle
    from jaxcache.cache.diff import DiffSide
    from jaxcache.cache.explain.churn import Churn
    from jaxcache.cache.explain.sides import Explanation
    from jaxcache.cache.index import FactIndex
    from jaxcache.cache.move.export_plan import ExportPlan
    from jaxcache.cache.move.plan import Plan
    from jaxcache.cache.prune.removable import RemovableSet
    from jaxcache.cache.scan import Progress, ScanAids
    from jaxcache.cache.show import EntryDetails
    from jaxcache.cache.verify.check import EntryCheck
    from jaxcache.layouts.torch.doctor import TorchDiagnosis
    from jaxcache.layouts.torch.show import GraphDetails
    from jaxcache.options import PruneOptions, VerifyOptions

#: Holds the lock that goes with a file, without waiting: False where somebody else has it.
FileLock = Callable[[Store, str], AbstractContextManager[bool]]


class Files(Protocol):
    """Every file of a cache under what it is; nothing has been opened."""

    def files(self) -> Iterator[tuple[StrEnum, FileInfo]]:
        """Yield every file with its kind."""

    def problems(self) -> Iterator[Problem]:
        """Yield what the names alone show to be wrong."""

    def trusted(self) -> Iterator[tuple[FileInfo, str | None]]:
        """Yield the files that whoever can write them could have run, with their keys."""


class CheckableFile(Protocol):
    """A file to verify."""

    @property
    def info(self) -> FileInfo: ...


class ScanResult(Protocol):
    """A cache as it was seen."""

    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def inventory(self) -> Files: ...
    @property
    def problems(self) -> Sequence[Problem]: ...


class Layout(Protocol):
    """The facts about one compiler's cache; each imports what it needs when it is asked."""

    @property
    def name(self) -> str:
        """Its name for ``--layout``."""

    @property
    def single_file_entries(self) -> bool:
        """Whether each entry is one file, which can be loaded, forecast, signed and sent singly."""

    @property
    def has_headers(self) -> bool:
        """Whether an entry begins with its codec and seconds, so that no more need be read.

        Where not, what can be told of an entry takes reading all of it, and it has no codec.
        """

    @property
    def keeps_index(self) -> bool:
        """Whether facts of its entries are worth remembering."""

    @property
    def own_directory(self) -> Callable[[], str] | None:
        """Tells where the compiler keeps its cache by itself; None for JAX's settings and ours."""

    @property
    def run_options(self) -> Collection[str] | None:
        """The fields of the options of ``run`` and ``warm`` that it knows; None for all."""

    @property
    def run(self) -> Callable[..., Any]:
        """Runs a command (words, options, callbacks) and reports what its cache did."""

    @property
    def warm(self) -> Callable[..., Any]:
        """Runs programs in the same way, with all of the cache on."""

    @property
    def explain_script(self) -> "Callable[..., tuple[Explanation, int]]":
        """Runs a script (name, arguments, options) and says why each of its compiles missed."""

    @property
    def diagnose(self) -> "Callable[..., TorchDiagnosis] | None":
        """Examines a cache, the environment and what a run met; None for JAX's own doctor."""

    @property
    def report_view(self) -> Callable[..., Any]:
        """Makes the view of the report of either."""

    @property
    def directories(self) -> Collection[str] | None:
        """The directories in a cache whose files belong to it; None for all."""

    def load_index(self, directory: Path, url: str, *, now_ns: int) -> "FactIndex":
        """Open the index of the cache at ``url``, of facts that earlier scans read."""

    def scan(
        self, store: Store, aids: "ScanAids", *, headers: bool, details: bool, deep: bool
    ) -> "ScanResult":
        """Take inventory of a cache, with the facts of every entry.

        Args:
            headers, details: whether to tell also what the start of each entry holds, or all of it;
                else only its name and what the index knows.
            deep: whether files in directories count.

        Raises:
            NoCacheError: the directory cannot be listed.
        """

    def decode(
        self,
        store: Store,
        scan_result: Any,
        wanted: Iterable[Entry],
        aids: "ScanAids",
        *,
        hurried: bool,
    ) -> "ScanResult":
        """Add the details of some entries to a scan of this layout.

        Args:
            hurried: only as far as that takes no time to speak of.
        """

    def files_to_check(
        self, store: Store, scan_result: Any, chosen: Collection[str], options: "VerifyOptions"
    ) -> "Sequence[CheckableFile]":
        """Return the files to verify.

        Args:
            scan_result: a scan of this layout, without headers.
            chosen: the files of the entries that are meant.

        Raises:
            UsageError: the layout knows no such level.
        """

    def check(
        self, store: Store, scan_result: Any, files: Sequence[Any], options: "VerifyOptions"
    ) -> "Iterator[tuple[str, EntryCheck]]":
        """Check each file by itself, by name, in any order."""

    def check_beside(
        self,
        scan_result: Any,
        files: Sequence[Any],
        checks: "Mapping[str, EntryCheck]",
        options: "VerifyOptions",
    ) -> Iterator[Problem]:
        """Yield the problems of files that were checked which only others show."""

    def key_of(self, name: str) -> str | None:
        """The key that a file's name says; None where it says none."""

    @property
    def file_lock(self) -> "FileLock | None":
        """The locks of single files; None where JAX's lock is for all."""

    @property
    def removal_rank(self) -> Callable[[str], int] | None:
        """The place of a file in the order in which files are removed; None where all are equal."""

    def find_removable(
        self,
        store: Store,
        scan_result: Any,
        options: "PruneOptions | None",
        *,
        now_ns: int,
        keep: Collection[str],
    ) -> "RemovableSet":
        """Tell what a plan could remove: which files form one unit, and what protects them.

        Args:
            scan_result: a deep scan of this layout; with details where there are no headers.
            options: of ``prune``; None where a person chooses among the entries.
            keep: keys that must stay, with all that they need.
        """

    def plan_export(
        self,
        store: Store,
        *,
        keys: Sequence[str],
        filters: Sequence[str],
        since: "DiffSide | None",
        side_caches: bool | None,
        now_ns: int,
        progress: "Progress | None",
    ) -> "ExportPlan":
        """Choose what goes into a bundle.

        Args:
            since: leave out what this side has.
        """

    def plan_import(
        self,
        store: Store | None,
        bundle: "Bundle",
        *,
        cache_dir: str,
        on_conflict: str,
        side_caches: bool,
        progress: "Progress | None",
    ) -> "Plan":
        """Look at what is there already, and decide for each file of a verified bundle."""

    def read_side(self, store: Store, progress: "Progress | None") -> "DiffSide":
        """Read what every entry of a cache stands for, to be compared."""

    def read_bundle(self, bundle: "Bundle") -> "DiffSide":
        """Read the same of a bundle.

        Raises:
            BundleError
        """

    def show(self, store: Store, wanted: str) -> "Iterable[EntryDetails | GraphDetails]":
        """Decode the entries that a KEY means."""

    def show_file(self, store: Store, name: str) -> "Iterable[EntryDetails | GraphDetails]":
        """Decode the file of that name."""

    def explain(self, keys: Sequence[str], url: str) -> "Explanation":
        """Compare two keys of the cache at ``url``, or one with the nearest other."""

    @property
    def find_churn(self) -> "Callable[..., tuple[Churn, ...]]":
        """Finds what has several keys (store, explained, seen), and why."""
