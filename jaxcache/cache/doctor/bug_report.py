"""The facts that a bug report needs, without paths, names, keys or text that users chose."""

import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version

from jaxcache.cache.doctor.inputs import CacheFacts, Finding, Interpreter, Setting, SettingValue
from jaxcache.cache.doctor.run_checks import Diagnosis
from jaxcache.cache.ledger.record import LedgerRecord

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
class RecordedRun:
    """The process that used the cache last, as far as its entries are still present.

    Attributes:
        compile_seconds: of the entries that it has written.
    """

    last_used_ns: int
    hits: int
    written: int
    compile_seconds: float
    jax_version: str | None
    jaxlib_version: str | None


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
    last_run: RecordedRun | None = None
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
        _find_last_run(facts.cache.records.values()),
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


def _find_last_run(records: Iterable[LedgerRecord]) -> RecordedRun | None:
    recorded = [record for record in records if record.run is not None]
    if not recorded:
        return None
    last = max(recorded, key=lambda record: record.last_used_ns)
    mine = [record for record in recorded if record.run == last.run]
    hits = [r for r in mine if (r.last_hit_ns or 0) > (r.compiled_ns or 0)]
    written = [record for record in mine if record not in hits]
    return RecordedRun(
        last.last_used_ns,
        len(hits),
        len(written),
        float(sum(record.compile_seconds or 0.0 for record in written)),
        _plain_version(last.jax_version),
        _plain_version(last.jaxlib_version),
    )
