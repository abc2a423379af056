"""``doctor`` as data: look, and run every check."""

import contextlib
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import BinaryIO

from jaxcache.cache.doctor import directory, inputs, keys, writes
from jaxcache.cache.doctor.inputs import CacheFacts, Finding, Interpreter, Setting, SettingValue
from jaxcache.cache.ledger.segments import Ledger, read_refusals
from jaxcache.cache.scan import ScanAids, scan
from jaxcache.core.names import LOCKFILE
from jaxcache.core.system import require_flock
from jaxcache.entry.contents import Contents
from jaxcache.entry.decode import read_contents
from jaxcache.entry.summary import Entry
from jaxcache.errors import NoCacheError
from jaxcache.model import result_repr
from jaxcache.store import is_remote, open_store
from jaxcache.store.base import StoreError
from jaxcache.units import add_cache

#: A lock that is held this long is not one write.
_LOCK_PATIENCE_SECONDS = 1.0
_LOCK_STEP_SECONDS = 0.05
#: The limit of S3, GCS and Azure, in bytes.
_OBJECT_NAME_MAX = 1024
#: How Linux writes spaces, tabs, newlines and backslashes in mountinfo.
_OCTAL = re.compile(r"\\([0-7]{3})")


def collect_cache_facts(path: str, *, max_decoded: int | None) -> inputs.CacheFacts:
    """Scan a cache and decode its newest entries.

    Args:
        max_decoded: how many entries to decode, the newest first; all if None.

    Raises:
        UsageError: a URL of a kind that no store serves.
        NoCacheError: a bucket that cannot be reached; a directory may be missing.
    """
    try:
        store = open_store(path)
    except NoCacheError as error:
        if is_remote(path):
            raise
        return _absent(os.path.abspath(path), error)
    scan_result = scan(store, ScanAids(unfilled=True), deep=True)
    ledger = scan_result.ledger or Ledger()
    newest = sorted(scan_result.entries, key=lambda e: -e.created_ns)[:max_decoded]
    whole = [e for e in newest if "empty" not in e.problems]
    opened = store.open_many([e.file for e in whole])
    read = {e.key: _read(file, e) for e, file in zip(whole, opened, strict=True)}
    records = ((e.key, ledger.record(e.key)) for e in scan_result.entries)
    return inputs.CacheFacts(
        path=store.url,
        remote=store.remote,
        writable=store.writable,
        why_not_writable="is read-only there" if store.remote else _why_not_writable(path),
        keeps_atime=store.keeps_atime,
        root=store.root,
        inventory=scan_result.inventory,
        entries=scan_result.entries,
        problems=scan_result.problems,
        contents={key: contents for key, contents in read.items() if contents},
        records={key: record for key, record in records if record},
        ledger=ledger,
        refusals=read_refusals(store),
    )


def _read(opened: BinaryIO | StoreError, entry: Entry) -> Contents | None:
    if isinstance(opened, StoreError):
        return None
    with opened as file:
        return read_contents(file, entry.size_bytes, entry.module or None, check=False)


def _absent(path: str, error: NoCacheError) -> inputs.CacheFacts:
    """Return the facts about a directory that does not exist yet, which JAX makes."""
    facts = inputs.CacheFacts(path=path, exists=False)
    if os.path.lexists(path):
        return replace(facts, writable=False, why_not_writable=error.message)
    parent = _nearest(path)
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return facts
    reason = "may not be written" if parent.is_dir() else "is not a directory"
    why = f"does not exist, and {parent} {reason}"
    return replace(facts, writable=False, why_not_writable=why)


def _why_not_writable(path: str) -> str:
    with contextlib.suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return "is on a file system that is mounted read-only"
    return "may not be written by this user"


def collect_host_facts(path: str, environment: Mapping[str, str]) -> inputs.HostFacts:
    """Look at the machine, and at the file system that ``path`` is or would be on."""
    if is_remote(path):
        return inputs.HostFacts(os.geteuid(), sys.platform, name_max=_OBJECT_NAME_MAX)
    directory = _nearest(path)
    free = total = files = None
    name_max = 255
    with contextlib.suppress(OSError):
        space = os.statvfs(directory)
        free = space.f_bavail * space.f_frsize
        total = space.f_blocks * space.f_frsize
        files = space.f_favail if space.f_files else None
        name_max = space.f_namemax or name_max
    mounts = _text("/proc/self/mountinfo")
    return inputs.HostFacts(
        user=os.geteuid(),
        system=sys.platform,
        filesystem=filesystem_of(os.path.realpath(directory), mounts),
        free_bytes=free,
        total_bytes=total,
        free_files=files,
        lock_holders=_lock_holders(os.path.join(path, LOCKFILE)),
        name_max=name_max,
        cache_dir_variable=environment.get("JAX_COMPILATION_CACHE_DIR"),
    )


def _nearest(path: str) -> Path:
    """The path itself, or the nearest parent that exists."""
    here = Path(os.path.abspath(path))
    return next((p for p in (here, *here.parents) if os.path.lexists(p)), here)


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """Return the type of the mount of a real path, from Linux's ``/proc/self/mountinfo``."""
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        fields, _, mount = line.partition(" - ")
        parts = fields.split()
        if len(parts) < 5 or not mount:
            continue
        point = _OCTAL.sub(lambda m: chr(int(m[1], 8)), parts[4]).rstrip("/")
        if (path == point or path.startswith(point + "/")) and (not best or len(point) >= best[0]):
            best = len(point), mount.split()[0]
    return best[1] if best else None


def _lock_holders(path: str) -> tuple[str, ...] | None:
    """Return the holders of the lock; None where it cannot be tried."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ()
    except OSError:
        return None
    try:
        for _ in range(int(_LOCK_PATIENCE_SECONDS / _LOCK_STEP_SECONDS)):
            with contextlib.suppress(BlockingIOError):
                require_flock(fd, shared=True)
                return ()
            time.sleep(_LOCK_STEP_SECONDS)
        status = os.fstat(fd)
        holders = tuple(_describe(pid) for pid in _pids(_text("/proc/locks"), status))
        return holders or ("a process that is not visible from here",)
    except OSError:
        return None
    finally:
        os.close(fd)


def _pids(locks: str, status: os.stat_result) -> Sequence[str]:
    """Process ids that hold a lock on a file, from Linux's ``/proc/locks``."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in locks.splitlines())
    return sorted({r[4] for r in rows if len(r) > 5 and r[5] == device and r[4] not in ("0", "-1")})


def _describe(pid: str) -> str:
    words = _text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    return f"process {pid} ({words[:80]})" if words else f"process {pid}"


#: Every check: the functions ``find_*`` of these modules, in the order of the report.
CHECKS: tuple[Callable[[inputs.Facts], Iterator[inputs.Finding]], ...] = tuple(
    check
    for module in (writes, keys, directory)
    for name, check in vars(module).items()
    if name.startswith("find_")
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of ``doctor``."""

    __repr__ = result_repr

    facts: inputs.Facts
    findings: tuple[inputs.Finding, ...]
    """Problems first."""
    no_jax: str | None = None
    """Why no Python with jax was asked."""

    @property
    def exists(self) -> bool:
        """Whether there is a cache."""
        return self.facts.cache.exists

    @property
    def wrong(self) -> bool:
        """Whether there is a problem, not only something worth knowing."""
        return any(f.severity == "problem" for f in self.findings)


def run_checks(facts: inputs.Facts) -> tuple[inputs.Finding, ...]:
    """Return what the checks find, problems first."""
    path = facts.cache.path
    findings = [replace(f, fix=add_cache(f.fix, path)) for check in CHECKS for f in check(facts)]
    return tuple(sorted(findings, key=lambda f: f.severity != "problem"))


def diagnose(
    path: str,
    python: inputs.PythonFacts,
    environment: Mapping[str, str],
    *,
    uncacheable: Mapping[str, tuple[str, ...]] | None = None,
    max_decoded: int | None = None,
) -> Diagnosis:
    """Examine a cache, whether or not it exists yet.

    Args:
        python: as :func:`jaxcache.warm.child.query.query_settings` returns it.
        environment: that of JAX there.
        uncacheable: modules of a run that JAX could not cache, by the reason.
        max_decoded: how many entries to decode, the newest first; all if None.

    Raises:
        UsageError: a URL of a kind that no store serves.
        NoCacheError: a bucket that cannot be reached.
    """
    facts = inputs.Facts(
        collect_cache_facts(path, max_decoded=max_decoded),
        tuple(python.settings),
        python.interpreter,
        collect_host_facts(path, environment),
        uncacheable or {},
        python.jax_error,
    )
    return Diagnosis(facts, run_checks(facts), python.no_jax)


#: The beginning of a version or of a kernel's release that holds numbers alone.
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*")
_AMOUNT = re.compile(r"-?\d+(\.\d+)?\s?([kKMGT]?i?B|[smhdw])?")
_PACKAGE = re.compile(r"[\w-]+")
#: Texts of settings that name a choice of JAX or of the live layer.
_CHOICES = frozenset(
    {
        *("all", "none", "xla_gpu_per_fusion_autotune_cache_dir", "cost", "lru"),
        *("tiers", "always", "never", "true", "false", "totals"),
    }
)
_PATH = "<path>"
_TEXT = "<text>"
_VARIABLE = re.compile(r"JAXCACHE_[A-Z_]+|environment|default|script")


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of jaxcache and of what it runs on.

    Attributes:
        system: with the numbers of its release: ``Linux 6.1.0``.
        packages: of what jaxcache can use, by name; None where it is not installed.
    """

    jaxcache: str
    python: str
    system: str
    machine: str
    packages: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ReportedCache:
    """The state of the cache.

    Attributes:
        kind: ``directory`` or ``bucket``.
        problems: a count for each kind of problem.
    """

    kind: str
    exists: bool
    writable: bool
    filesystem: str | None
    entries: int
    problems: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BugReport:
    """Everything that ``bug-report`` prints.

    Attributes:
        error: the code of the error that kept ``doctor`` from looking.
    """

    versions: Versions
    interpreter: Interpreter | None = None
    settings: tuple[Setting, ...] = ()
    cache: ReportedCache | None = None
    findings: tuple[Finding, ...] = ()
    error: str | None = None
    cache_dir: None = None


def read_versions(jaxcache: str) -> Versions:
    """Look up the versions of Python and of the dependencies of this version of jaxcache."""
    try:
        required = requires("jaxcache") or ()
    except PackageNotFoundError:
        required = ()
    matches = filter(None, map(_PACKAGE.match, required))
    names = sorted({match[0] for match in matches})
    return Versions(
        jaxcache,
        platform.python_version(),
        f"{platform.system()} {_plain_version(platform.release()) or ''}".strip(),
        platform.machine(),
        {name: _version_of(name) for name in names},
    )


def _version_of(package: str) -> str | None:
    try:
        return _plain_version(version(package))
    except PackageNotFoundError:
        return None


def make_bug_report(
    versions: Versions, diagnosis: Diagnosis | None, error: str | None
) -> BugReport:
    """Redact a diagnosis for publication.

    Args:
        versions: of jaxcache and of what it runs with.
        diagnosis: None where the cache could not be examined.
        error: the code of the error that prevented it.
    """
    if diagnosis is None:
        return BugReport(versions, error=error)
    facts = diagnosis.facts
    return BugReport(
        versions,
        _redact_interpreter(facts.interpreter) if facts.interpreter else None,
        tuple(map(_redact_setting, facts.settings)),
        _report_cache(facts.cache, facts.host.filesystem),
        tuple(map(_redact_finding, diagnosis.findings)),
    )


def redact(value: SettingValue) -> SettingValue:
    """Return a number or a choice as it is, and only the kind of any other text."""
    if not isinstance(value, str) or value in _CHOICES:
        return value
    if not value or _AMOUNT.fullmatch(value):
        return value
    if "://" in value:
        return "<url>"
    return _PATH if "/" in value else _TEXT


def _redact_setting(setting: Setting) -> Setting:
    origin = setting.origin if _VARIABLE.fullmatch(setting.origin) else "file"
    return Setting(setting.name, redact(setting.value), origin)


def _plain_version(text: str | None) -> str | None:
    match = _VERSION.match(text or "")
    return match[0] if match else None


def _redact_interpreter(interpreter: Interpreter) -> Interpreter:
    return replace(
        interpreter,
        executable=_PATH,
        python_version=_plain_version(interpreter.python_version) or _TEXT,
        jax_version=_plain_version(interpreter.jax_version) or _TEXT,
        jaxlib_version=_plain_version(interpreter.jaxlib_version) or _TEXT,
    )


def _redact_finding(finding: Finding) -> Finding:
    files = (_PATH,) * len(finding.files)
    return replace(finding, seen=_TEXT, cost=_TEXT, fix=_TEXT, files=files)


def _report_cache(cache: CacheFacts, filesystem: str | None) -> ReportedCache:
    return ReportedCache(
        "bucket" if cache.remote else "directory",
        cache.exists,
        cache.writable,
        filesystem.partition(".")[0] if filesystem else None,  # fuse.NAME: a program's own name
        len(cache.entries),
        Counter(problem.kind for problem in cache.problems),
    )
