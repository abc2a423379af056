"""Decide what is done about each item, by what the target has of it."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from jaxcache.cache.admission import ImportPolicy, read_content
from jaxcache.cache.archive import hash_chunks, read_chunks
from jaxcache.cache.inventory import Inventory, take_inventory
from jaxcache.cache.move.items import Item, ItemFacts, MoveAction, Step
from jaxcache.cache.unknown_format import UnknownFormats
from jaxcache.entry.codec import CodecError, check_frame
from jaxcache.entry.names import FileKind
from jaxcache.errors import JaxcacheError, UsageError
from jaxcache.model import GRACE_NS, FileInfo, Progress
from jaxcache.store.base import MissingError, Store, StoreError
from jaxcache.store.concurrency import map_ordered

ON_CONFLICT = ("keep", "replace", "fail")
#: Decides about an item whose name is that of a regular file in the target.
LookThere = Callable[[Item, FileInfo], Step]


def choose(
    item: Item, present: Mapping[str, FileInfo], policy: ImportPolicy, look: LookThere
) -> Step:
    """Decide about one item.

    Args:
        present: the files of the target by name.
        policy: knows the names in the target, and refuses those that no cache takes.
        look: decides where the target has a file of that name.
    """
    if reason := policy.name_error(item.name):
        return Step(item, MoveAction.BLOCKED, reason)
    info = present.get(item.name)
    if info is None:
        return Step(item, MoveAction.WRITE)
    if info.type != "file":
        return Step(item, MoveAction.BLOCKED, f"a {info.type} has its name")
    return look(item, info)


def list_target(target: Store | None) -> Inventory:
    """List everything that a target holds; None is a directory that does not exist yet."""
    return take_inventory(target, deep=True) if target else Inventory()


def choose_all(
    offered: Sequence[Step],
    inventory: Inventory,
    look: LookThere,
    *,
    at_once: bool = False,
    progress: Progress | None = None,
) -> tuple[Step, ...]:
    """Decide about each step that writes; the others stay as they are.

    Args:
        inventory: of the target.
        at_once: look at several files of the target at once.
    """
    present = {i.name: i for kind, i in inventory.files() if kind is not FileKind.ATIME}
    policy = ImportPolicy(present)

    def decide(step: Step) -> Step:
        return choose(step.item, present, policy, look) if step.action is MoveAction.WRITE else step

    steps = map_ordered(decide, offered) if at_once else map(decide, offered)
    return tuple(counted(steps, len(offered), progress))


def has_atimes(theirs: Inventory, target: Store | None, *, dated: bool) -> bool:
    """Return whether new entries get an ``-atime`` file.

    A cache has them for all its entries or for none: JAX with a cap before 0.11.2 fails on the
    first that lacks one, and JAX without a cap writes none. A new directory has them where a cap
    is set, or where the directory that it is filled from has them. A bucket, which no JAX evicts
    from, is spared the requests.

    Args:
        dated: whether the source has any.
    """
    wanted = dated or os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE", "-1") != "-1"
    return bool(theirs.atimes or (wanted and not (theirs.entries or (target and target.remote))))


def look_at_frames(target: Store | None, now_ns: int) -> LookThere:
    """Compare sizes, and read the block headers of a local entry that has another size."""

    formats = UnknownFormats(target) if target else None

    def look(item: Item, info: FileInfo) -> Step:
        # Sealed entries differ in size, too, so that another size is only a reason to look.
        differs = item.key is not None and info.size_bytes != item.size_bytes
        if formats and differs and is_truncated(formats, info, now_ns):
            return Step(item, MoveAction.HEAL, there=info)
        return Step(item, MoveAction.PRESENT)

    return look


def is_truncated(formats: UnknownFormats, info: FileInfo, now_ns: int) -> bool:
    """Return whether a file that is not young is empty, or ends before its frame does."""
    target = formats.store
    if abs(now_ns - info.mtime_ns) < GRACE_NS and not target.remote:
        return False
    if info.size_bytes == 0:
        return True
    if target.remote:
        return False
    try:
        with target.open(info.name) as opened:
            check_frame(opened, info.size_bytes)
    except CodecError as error:
        return not formats.covers(error)
    except StoreError:
        return False
    return False


def look_at_payloads(
    target: Store | None, on_conflict: str, read: Callable[[Item], Item | Step] | None = None
) -> LookThere:
    """Compare payloads; what the target has is read whole.

    Args:
        target: None if nothing exists to compare with.
        read: reads an item whose contents nothing has read yet, and returns it with its facts, or
            how it ended.

    Raises:
        UsageError: ``on_conflict`` is not in :data:`ON_CONFLICT`.
    """
    if on_conflict not in ON_CONFLICT:
        raise UsageError(f"{on_conflict!r} is not one of {', '.join(ON_CONFLICT)}")
    formats = UnknownFormats(target) if target else None
    chosen = MoveAction.REPLACE if on_conflict == "replace" else MoveAction.KEEP

    def look(item: Item, info: FileInfo) -> Step:
        if formats is None:
            return Step(item, MoveAction.WRITE)
        if item.facts is None and read is not None:
            content = read(item)
            if isinstance(content, Step):
                return content
            item = content
        try:
            here = _facts_there(formats, item, info)
        except CodecError as error:
            return Step(item, MoveAction.HEAL, error.detail, there=info)
        except MissingError:
            return Step(item, MoveAction.WRITE)
        except StoreError as error:
            return Step(item, MoveAction.BLOCKED, error.reason)
        return _compare(item, here, info, chosen)

    return look


def _facts_there(formats: UnknownFormats, item: Item, info: FileInfo) -> ItemFacts:
    """Read what the target has under the name of an item."""
    content = None
    with formats.store.open(info.name) as file:
        try:
            if item.key is not None:
                content = read_content(file, info.size_bytes, info.name, sound=item.sha256)
        except CodecError as error:
            if not formats.covers(error):
                raise
            file.seek(0)
        if content is None:
            return ItemFacts(hash_chunks(read_chunks(file)), info.size_bytes)
    return ItemFacts(
        content.payload_sha256, content.payload_bytes, compile_seconds=content.compile_seconds
    )


def _compare(item: Item, here: ItemFacts, info: FileInfo, chosen: MoveAction) -> Step:
    if here.sha256 != item.sha256:
        what = "another one is here" if item.key is None else "another payload is here"
        return Step(item, chosen, what, differs=True, there=info)
    seconds = item.facts.compile_seconds if item.facts else 0
    if item.key is None or here.compile_seconds == seconds:
        return Step(item, MoveAction.SAME)
    # The same executable: how long it took to compile is not a conflict.
    action = MoveAction.REPLACE if chosen is MoveAction.REPLACE else MoveAction.SAME
    detail = f"took {here.compile_seconds} s here and {seconds} s there"
    return Step(item, action, detail, there=info)


def compare_payloads(
    target: Store | None,
    offered: Sequence[Step],
    inventory: Inventory,
    on_conflict: str,
    *,
    read: Callable[[Item], Item | Step] | None = None,
    progress: Progress | None = None,
) -> tuple[Step, ...]:
    """Decide about each step that writes by the payloads that the target has.

    Raises:
        UsageError, JaxcacheError: see :func:`look_at_payloads` and :func:`refuse_conflicts`.
    """
    look = look_at_payloads(target, on_conflict, read)
    at_once = target is not None and target.remote
    steps = choose_all(offered, inventory, look, at_once=at_once, progress=progress)
    refuse_conflicts(steps, on_conflict)
    return steps


def refuse_conflicts(steps: Iterable[Step], on_conflict: str) -> None:
    """Refuse a plan that would keep other contents, where that is not wanted.

    Raises:
        JaxcacheError: ``conflict``.
    """
    kept = [step for step in steps if step.action is MoveAction.KEEP]
    if on_conflict == "fail" and kept:
        what = "files" if kept[0].key is None else "entries"
        raise JaxcacheError(
            f"{len(kept)} {what} are there already with other contents, {kept[0].name} first",
            code="conflict",
            hint="--on-conflict keep or replace decides for all of them",
        )


def counted(steps: Iterable[Step], total: int, progress: Progress | None) -> Iterator[Step]:
    """Yield steps, and report how many there were."""
    for number, step in enumerate(steps, 1):
        yield step
        if progress:
            progress(number, total)
