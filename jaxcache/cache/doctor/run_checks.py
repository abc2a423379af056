"""``doctor`` as data: look, run every check, apply the repairs, and look again."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxcache.cache.doctor import directory, keys, writes
from jaxcache.cache.doctor.collect import collect_cache_facts, collect_host_facts
from jaxcache.cache.doctor.inputs import Facts, Finding, FixKind, Interpreter, Setting
from jaxcache.cache.entry_files import write_atime
from jaxcache.cache.scan import Progress
from jaxcache.cache.under_lock import run_under_lock
from jaxcache.model import result_repr
from jaxcache.store import open_store
from jaxcache.store.base import Store, StoreError
from jaxcache.store.local import LocalStore
from jaxcache.units import format_count

#: Every check: the functions ``find_*`` of these modules, in the order of the report.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = tuple(
    check
    for module in (writes, keys, directory)
    for name, check in vars(module).items()
    if name.startswith("find_")
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of ``doctor``."""

    __repr__ = result_repr

    facts: Facts
    findings: tuple[Finding, ...]
    """Problems first."""
    mended: tuple[str, ...] = ()
    """The repairs that ``--fix`` made, or would make, one sentence each."""
    no_jax: str | None = None
    """Why no Python with jax was asked."""

    @property
    def wrong(self) -> bool:
        """Whether there is a problem, not only something worth knowing."""
        return any(f.severity == "problem" for f in self.findings)


def run_checks(facts: Facts) -> tuple[Finding, ...]:
    """Return what the checks find, problems first."""
    findings = [finding for check in CHECKS for finding in check(facts)]
    return tuple(sorted(findings, key=lambda f: f.severity != "problem"))


def diagnose(
    path: str,
    *,
    settings: Sequence[Setting],
    interpreter: Interpreter | None,
    no_jax: str | None = None,
    uncacheable: Mapping[str, tuple[str, ...]] | None = None,
    max_decoded: int | None = None,
    fix: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """Examine a cache, whether or not it exists yet.

    Args:
        settings, interpreter: see :mod:`jaxcache.warm.child.query`.
        no_jax: why there is no interpreter.
        uncacheable: modules of a run that JAX could not cache, by the reason.
        max_decoded: how many entries to decode, the newest first; all if None.
        fix: make the repairs that lose nothing, then look again.
        dry_run: with ``fix``, only tell what would be done.

    Raises:
        LockedError: a repair needs JAX's lock, and another process holds it.
        UsageError: a URL of a kind that no store serves.
        NoCacheError: a bucket that cannot be reached.
    """

    def look() -> Facts:
        cache = collect_cache_facts(path, max_decoded=max_decoded, progress=progress)
        return Facts(
            cache, tuple(settings), interpreter, collect_host_facts(path), uncacheable or {}
        )

    facts = look()
    findings = run_checks(facts)
    repairs = tuple(Fix(f.fix_kind, f.files) for f in findings if fix and f.fix_kind)
    if not repairs:
        return Diagnosis(facts, findings, no_jax=no_jax)
    if dry_run:
        return Diagnosis(facts, findings, tuple(map(str, repairs)), no_jax)
    mended = apply_fixes(open_store(path), facts, repairs)
    facts = look()
    return Diagnosis(facts, run_checks(facts), mended, no_jax)


@dataclass(frozen=True, slots=True)
class Fix:
    """One repair of some files."""

    kind: FixKind
    files: tuple[str, ...]

    def __str__(self) -> str:
        if self.kind == "write-atime":
            return f"{format_count(len(self.files), '-atime file')} written"
        return f"write permission of others taken from {format_count(len(self.files), 'file')}"


def apply_fixes(store: Store, facts: Facts, repairs: Sequence[Fix]) -> tuple[str, ...]:
    """Make repairs; a file that cannot be mended is left, and the next examination says so.

    Returns:
        What was done, one sentence each.

    Raises:
        LockedError: JAX's lock was not obtained.
    """
    done = []
    for repair in repairs:
        mended: list[str] = []
        if repair.kind == "write-atime":
            mended = _write_atimes(store, facts, repair.files)
        elif isinstance(store, LocalStore):
            mended = [file for file in repair.files if _drop_permissions(store, file)]
        if mended:
            done.append(str(Fix(repair.kind, tuple(mended))))
    return tuple(done)


def _write_atimes(store: Store, facts: Facts, files: Sequence[str]) -> list[str]:
    """Date each entry to its last use, as JAX does: 8 bytes, little-endian nanoseconds."""
    used = {e.file: e.last_used_ns for e in facts.cache.entries}
    written: list[str] = []

    def date(file: str) -> None:
        with contextlib.suppress(StoreError):
            store.info(file)  # an entry that was pruned meanwhile needs none
            if write_atime(store, file, used[file]):
                written.append(file)

    run_under_lock(store, date, [file for file in files if file in used])
    return written


def _drop_permissions(store: LocalStore, file: str) -> bool:
    """Take write permission from group and others; no link inside the cache is followed."""
    directory, _, name = file.rpartition("/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with store.directory(directory) as opened:
            fd = os.open(name, flags, dir_fd=opened)
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            os.fchmod(fd, mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        finally:
            os.close(fd)
    except OSError:
        return False
    return True
