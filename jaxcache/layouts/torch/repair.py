"""``verify --fix`` and ``--restore`` in a cache of torch's compilers, under torch's own locks."""

from collections.abc import Sequence

from jaxcache.cache.scan import Progress
from jaxcache.cache.verify.quarantine import QUARANTINE_DIR, Quarantined, Restoration
from jaxcache.cache.verify.repair import Action, Repair, RepairPlan, Step
from jaxcache.errors import JaxcacheError
from jaxcache.layouts.torch.locks import holding
from jaxcache.layouts.torch.names import TorchKind, TorchName, parse_path
from jaxcache.store.base import MissingError, Store, StoreError, same_file

#: Torch finds an AOT graph first, then its FX graphs, then their code: in this order nothing is
#: ever found whose parts are gone.
_ORDER = (TorchKind.AOT, TorchKind.FX, TorchKind.SOURCE)


def execute_repair(
    store: Store, plan: RepairPlan, *, young: frozenset[str], progress: Progress | None = None
) -> Repair:
    """Carry out a plan, looking at each file again before it is touched.

    Args:
        young: temporary files among these go only if their writer is known to be dead.
    """
    actions: dict[str, Action] = {}
    for done, step in enumerate(sorted(plan.steps, key=_order), 1):
        try:
            actions[step.file] = _execute(store, plan.folder, step, step.file in young)
        except StoreError:
            actions[step.file] = "leave-failed"
        if progress:
            progress(done, len(plan.steps))
    return Repair(False, actions)


def _order(step: Step) -> tuple[int, str]:
    kind = parse_path(step.file).kind
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), step.file


def _execute(store: Store, folder: str, step: Step, young: bool) -> Action:
    if step.action.startswith("leave-"):
        return step.action
    if step.action == "delete" and parse_path(step.file).kind is TorchKind.TEMP and young:
        return "leave-young"
    with holding(store, step.file) as held:
        if not held:
            return "leave-young"
        try:
            if not same_file(store.info(step.file), step.info):
                return "leave-changed"
        except MissingError:
            return "leave-changed"
        if step.action == "quarantine":
            store.rename(step.file, f"{folder}/{step.file}")
        else:
            store.delete(step.file, expected=step.info)
    return step.action


def restore(store: Store, *, keys: Sequence[str] = (), dry_run: bool = False) -> Restoration:
    """Move files from quarantine back to where they were, unless torch has written them anew.

    Raises:
        JaxcacheError: ``no-match`` where a KEY fits nothing in quarantine.
    """
    found = _list_quarantine(store)
    for text in keys:
        if not any(_fits(q, text) for q in found):
            raise JaxcacheError(
                f"nothing in quarantine fits {text!r}",
                code="no-match",
                hint="without KEY, everything in quarantine is restored",
            )
    restored: list[Quarantined] = []
    left: list[tuple[Quarantined, str]] = []
    back: set[str] = set()
    for item in found:
        if keys and not any(_fits(item, text) for text in keys):
            continue
        reason = (
            "a later one was restored" if item.file in back else _bring_back(store, item, dry_run)
        )
        if reason:
            left.append((item, reason))
        else:
            back.add(item.file)
            restored.append(item)
    return Restoration(store.url, dry_run, tuple(restored), tuple(left))


def _bring_back(store: Store, item: Quarantined, dry_run: bool) -> str | None:
    """Move one file back; why not, if it was not."""
    try:
        there = store.info(item.file)
    except MissingError:
        pass
    else:
        if not same_file(there, item.info):
            return "the cache has a newer one"
        if not dry_run:  # a restoration was killed between its two names
            store.delete(item.info.name)
        return None
    if not dry_run:
        try:
            store.rename(item.info.name, item.file)
        except StoreError as error:
            return error.reason
    return None


def _list_quarantine(store: Store) -> list[Quarantined]:
    """List the quarantine, the latest first: ``.jaxcache/quarantine/<when>/<path>``."""
    found = []
    for info in sorted(store.walk(QUARANTINE_DIR), key=lambda i: i.name, reverse=True):
        path = info.name.removeprefix(f"{QUARANTINE_DIR}/").partition("/")[2]
        meaning: TorchName = parse_path(path)
        if info.type == "file" and meaning.key:
            found.append(Quarantined(meaning.key, path, info, None))
    return found


def _fits(item: Quarantined, text: str) -> bool:
    bare = text.rpartition("-")[2]
    return bool(bare) and item.key.startswith(bare)
