"""A move: where items come from, where they go, what is decided about each, and how it ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from jaxcache.cache.move.items import WRITES, ItemFacts, MoveAction, Step
from jaxcache.errors import ExitCode
from jaxcache.model import FileInfo, Problem, result_repr
from jaxcache.store.base import StoreError

if TYPE_CHECKING:
    from jaxcache.cache.move.check import Check
    from jaxcache.cache.prune.removal import Execution, Removal


#: The actions that make an outcome partial.
LACKING = frozenset(
    {
        MoveAction.STRAY,
        MoveAction.BLOCKED,
        MoveAction.DAMAGED,
        MoveAction.UNFINISHED,
        MoveAction.FAILED,
        MoveAction.UNTRIED,
    }
)


class Parcel(Protocol):
    """One item between source and target: whole and checked."""

    @property
    def step(self) -> Step: ...
    @property
    def facts(self) -> ItemFacts: ...
    @property
    def mtime_ns(self) -> int: ...

    def frame(self) -> Iterator[Any]:
        """Yield the bytes of its file, sealed.

        Raises:
            ChangedError: the file in the source has been replaced.
        """

    def payload(self) -> Iterator[Any]:
        """Yield its contents.

        Raises:
            JaxcacheError: ``changed``.
        """

    def close(self) -> None:
        """Free what it holds."""


class MoveSource(Protocol):
    """A store or a bundle that entries come from."""

    remote: bool
    budget_bytes: int
    """The memory that the files and payloads under way may take."""

    def take(self, step: Step) -> Any:
        """Read what must be read in order; called by one thread, in the order of the plan."""

    def open(self, step: Step, taken: Any) -> Parcel:
        """Read the rest and check all of it; called by any thread.

        Raises:
            CodecError: it is damaged.
            StaysError, StoreError
        """


class MoveTarget:
    """Whatever entries go into; this one takes everything and writes nothing, for dry runs."""

    remote = False
    is_stream = False
    """Whether parcels must come in the order of the plan; then progress counts bytes."""
    workers = 8
    """Threads that read, check and write: most of their time goes into syncing."""
    batch = 16
    """The most files that one call of :meth:`put` takes: they share one sync of their directory."""

    def put(self, parcels: list[Parcel]) -> Iterator[StoreError | None]:
        """Write files in order, and yield for each None or why it was not written."""
        return iter([None] * len(parcels))

    def settle(self, written: Mapping[str, Step]) -> None:
        """Write what depends on all of them, such as signatures; called after an interrupt, too."""


class Steps:
    """Steps under what they came to."""

    __slots__ = ()
    steps: tuple[Step, ...]

    @property
    def writes(self) -> tuple[Step, ...]:
        """The steps that write, or that were written."""
        return self.of(*WRITES)

    @property
    def size_bytes(self) -> int:
        """The sizes of the entries and side files that write, or that were written."""
        return sum(step.item.size_bytes for step in self.writes)

    def of(self, *actions: MoveAction) -> tuple[Step, ...]:
        """Return the steps with these actions."""
        return tuple(step for step in self.steps if step.action in actions)

    def count(self, *actions: MoveAction) -> int:
        """Return the number of steps with these actions."""
        return len(self.of(*actions))


@dataclass(frozen=True, slots=True)
class Plan(Steps):
    """The decision about every item that a source offers."""

    __repr__ = result_repr

    source: str
    target: str
    steps: tuple[Step, ...]
    entries: int = 0
    """The entries of the source, selected or not."""
    with_atimes: bool = False
    """Whether new entries get an ``-atime`` file."""
    removals: "tuple[Removal, ...]" = ()
    """Entries to remove from the target to make room."""
    unmet: bool = False
    """The target exceeds its limit even after the removals."""
    segments: tuple[FileInfo, ...] = ()
    """Segments of the ledger to copy."""
    runs: bool = False
    """Whether the records of programs' runs go, too."""
    records: bool = True
    """Whether the target's ledger records what arrives."""
    check: "Check | None" = None
    """What each entry of a store must pass."""

    transfers = Steps.writes
    """The same, as ``push`` calls them."""

    @property
    def conflicts(self) -> tuple[Step, ...]:
        """The steps whose key has another payload in the target."""
        return tuple(step for step in self.steps if step.differs)


@dataclass(frozen=True, slots=True)
class Outcome(Steps):
    """A plan, and how each of its steps ended."""

    __repr__ = result_repr

    plan: Plan
    steps: tuple[Step, ...]
    """As in the plan; a step that did not end as planned has another action."""
    dry_run: bool = False
    rolled_back: bool = False
    """Nothing was kept, because not all of it could be written."""
    written_bytes: int = 0
    """The sizes of the files that were written, sealed as they are."""
    segments: int = 0
    """Segments of the ledger that were copied."""
    removed: "Execution | None" = None
    """Entries removed from the target to make room."""

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    written = Steps.writes
    """The steps that were written; in a dry run, those that would be."""
    carried = Steps.writes
    """The same, as ``push`` calls them."""

    carried_bytes = Steps.size_bytes

    @property
    def damaged(self) -> tuple[Problem, ...]:
        """The damaged entries that were not written."""
        return tuple(step.problem for step in self.of(MoveAction.DAMAGED))

    @property
    def failed(self) -> tuple[Step, ...]:
        """The files that could not be read or written."""
        return self.of(MoveAction.FAILED)

    @property
    def complete(self) -> bool:
        """Whether the target has everything that was to come."""
        return self.exit_code is ExitCode.DONE

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that ended like this."""
        if self.of(MoveAction.UNTRUSTED):
            return ExitCode.UNTRUSTED
        unremoved = self.removed is not None and self.removed.failed
        if self.of(*LACKING) or self.plan.unmet or unremoved:
            return ExitCode.PARTIAL
        return ExitCode.DONE
