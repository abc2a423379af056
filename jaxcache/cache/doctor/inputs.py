"""The facts that checks read (cache, its Python, JAX's settings, machine), and their findings."""

import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxcache.cache.files import Inventory
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.cache.ledger.segments import Ledger
from jaxcache.core.configuration import JAX_DEFAULTS, read_setting
from jaxcache.core.machine import read_release
from jaxcache.core.names import CACHE_SUFFIX
from jaxcache.core.signing import TierRefusal
from jaxcache.entry.contents import Contents
from jaxcache.entry.names import FileKind
from jaxcache.entry.options import nearest_version, same_generation
from jaxcache.entry.summary import Entry
from jaxcache.model import FileInfo, Problem
from jaxcache.units import format_count

SettingValue = str | int | float | bool | None
CAP = "jax_compilation_cache_max_size"
CONTENTS = "jax_compilation_cache_check_contents"
LEAST_SIZE = "jax_persistent_cache_min_entry_size_bytes"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of JAX with who made it."""

    name: str
    value: SettingValue
    origin: str
    """``environment``, ``default``, or ``script``: some code has set it. Of the live layer: the
    variable, the file, or ``default``."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that JAX runs in, as it was asked itself."""

    executable: str
    python_version: str
    jax_version: str
    jaxlib_version: str
    jaxlib_digest: str | None = None
    """SHA-256 of the lines for binaries in jaxlib's own list of files; None without a list."""
    key_codec: str = "zstandard"
    """The codec's name in the key: ``zstandard`` or ``zlib``."""
    written_codec: str = "zstd"
    """The codec that entries are really written with: ``zstd`` or ``zlib``."""
    has_filelock: bool = True
    has_epath: bool = True
    """Whether etils[epath] is installed, without which JAX opens no URL."""
    flags: frozenset[str] | None = None
    """Names of the XLA flags that this jaxlib writes into compile options."""
    cpu_features: tuple[str, ...] | None = None
    """The CPU's, as jaxlib reports them, such as ``+avx2`` and ``-xop``."""
    smallest_entry_bytes: int | None = None
    """Size of the entry of a trivial program; None where no setting limits sizes."""


class PythonFacts(NamedTuple):
    """What a Python with jax answered, or what is known without its answer."""

    interpreter: Interpreter | None
    settings: Sequence[Setting]
    """Of its jax in this environment; without an answer those of the environment."""
    no_jax: str | None = None
    """Why there is no answer."""
    jax_error: str | None = None
    """How jax ends, where it is installed and does not start."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine, and the file system of the cache; None means unknown."""

    user: int = -1
    system: str = "linux"
    """As ``sys.platform`` names it."""
    filesystem: str | None = None
    """Type of the mount, such as ``ext4`` or ``nfs4``."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_files: int | None = None
    """How many files can still be made, where the file system has a limit of them."""
    lock_holders: tuple[str, ...] | None = None
    """The holder of ``.lockfile``, as ``PID COMMAND``; empty if it is free."""
    name_max: int = 255
    """Longest name, in bytes, that the file system takes."""
    cache_dir_variable: str | None = None
    """``JAX_COMPILATION_CACHE_DIR``, which a program may override."""


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The cache as it was found."""

    path: str
    exists: bool = True
    remote: bool = False
    """It is in an object store, which has no file system and no lock."""
    writable: bool = True
    why_not_writable: str = ""
    keeps_atime: bool = True
    root: FileInfo | None = None
    inventory: Inventory = field(default_factory=Inventory)
    entries: tuple[Entry, ...] = ()
    problems: tuple[Problem, ...] = ()
    contents: Mapping[str, Contents] = field(default_factory=dict)
    """By key, of the entries that were decoded."""
    records: Mapping[str, LedgerRecord] = field(default_factory=dict)
    """By key, what the ledger knows of the entries."""
    ledger: Ledger = field(default_factory=Ledger)
    """What is recorded of keys without an entry, too."""
    refusals: tuple[TierRefusal, ...] = ()
    """Entries of tiers that the live layer refused."""

    @property
    def ledger_bytes(self) -> int:
        """The size of the ledger."""
        files = self.inventory.files()
        return sum(info.size_bytes for kind, info in files if kind is FileKind.LEDGER)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks read."""

    cache: CacheFacts
    settings: tuple[Setting, ...] = ()
    interpreter: Interpreter | None = None
    """None: no Python with jax was asked; checks that need one find nothing."""
    host: HostFacts = field(default_factory=HostFacts)
    uncacheable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules of a run that JAX could not cache, by the reason as ``run`` names it."""
    jax_error: str | None = None
    """How jax ends in the chosen Python, where it is installed and does not start."""

    def finding(self, rule: str, files: Iterable[str] = (), **values: Any) -> "Finding":
        """Return the finding of a rule here; see :func:`make_finding`."""
        names = tuple(files)
        shown = {"path": shlex.quote(self.cache.path), "remove": _removal(names), "uncap": UNCAP}
        raises = "jax_raise_persistent_cache_errors"
        ends = f"JAX ends the program ({raises})" if self.setting(raises) else None
        shown |= {"warns": ends or "JAX warns", "recompiles": ends or "JAX warns and compiles"}
        return make_finding(read_rules(__file__), rule, names, facts=self, **shown, **values)

    def setting(self, name: str) -> SettingValue:
        """The value of a setting; None where it is not known."""
        return next((s.value for s in self.settings if s.name == name), None)

    @property
    def jax_release(self) -> tuple[int, ...] | None:
        """The version of the interpreter's jax, as numbers."""
        return read_release(self.interpreter.jax_version) or None if self.interpreter else None

    @property
    def bucket(self) -> str | None:
        """The URL that JAX itself is set to use as its cache; None if it is set to a directory."""
        chosen = self.setting("jax_compilation_cache_dir")
        if not isinstance(chosen, str) or "://" not in chosen or chosen.startswith("file://"):
            return None
        return chosen

    def decoded(self, platform: str) -> Iterator[tuple[str, Contents]]:
        """The files and contents of the decoded entries for a platform."""
        files = {e.key: e.file for e in self.cache.entries}
        for key, contents in self.cache.contents.items():
            if contents.device.platform == platform:
                yield files[key], contents

    def files_with(self, platform: str, fits: Callable[[Contents], object]) -> tuple[str, ...]:
        """Return the files of the decoded entries for a platform that fit."""
        return tuple(file for file, contents in self.decoded(platform) if fits(contents))

    @property
    def capped(self) -> bool:
        """Whether JAX keeps the cache below a size, and so keeps ``-atime`` files and locks."""
        limit = self.setting(CAP)
        return isinstance(limit, int) and limit != -1

    def version_of(self, key: str) -> str | None:
        """The jax that wrote an entry; None where it is unknown."""
        record = self.cache.records.get(key)
        if record and (record.jax_version or record.jaxlib_version):
            return record.jax_version or record.jaxlib_version
        contents = self.cache.contents.get(key)
        if contents is None or not contents.flags:
            return None
        mine = self.interpreter
        if mine and mine.flags and same_generation(mine.flags, contents.flags):
            return mine.jax_version
        return nearest_version(frozenset(contents.flags))


Severity = Literal["problem", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found here."""

    trap: str
    """Kebab-case name; part of the JSON of ``doctor``."""
    severity: Severity
    """A ``problem`` makes ``doctor`` exit with 1; a ``note`` is worth knowing."""
    seen: str
    """The fact that was found."""
    cost: str
    """Its effect on runs."""
    fix: str
    """The command, setting or step that mends it."""
    upstream: str | None = None
    """Reports of others, as ``owner/repository#number``."""
    files: tuple[str, ...] = ()
    """The files concerned, as far as it is about files."""


def larger_cap(needed_bytes: int) -> str:
    """Return the setting with which JAX keeps all that a run needs.

    XLA's code for CPU has another size in each compile: a quarter more is enough.
    """
    return f"export {CAP.upper()}={-(-needed_bytes * 5 // 4000) * 1000}"


UNCAP = (
    f"export {CAP.upper()}=-1 for no cap, and run jaxcache prune --max-size SIZE from time to time"
)
#: Keys in a command that removes entries; after it, ``doctor`` names the next.
_REMOVED_AT_ONCE = 4


def _removal(files: Sequence[str]) -> str:
    """Say how to remove the entries of a finding."""
    keys = (shlex.quote(file.removesuffix(CACHE_SUFFIX)) for file in files[:_REMOVED_AT_ONCE])
    more = "; then doctor names more" if len(files) > _REMOVED_AT_ONCE else ""
    return f"remove these: jaxcache rm {' '.join(keys)}{more}"


Rules = Mapping[str, Mapping[str, Any]]


@cache
def read_rules(module: str) -> Rules:
    """Read the ``findings.toml`` next to the file of a module: the sentences of each rule."""
    return tomllib.loads(Path(module).with_name("findings.toml").read_text("utf-8"))


def make_finding(rules: Rules, rule: str, files: Iterable[str] = (), **values: Any) -> Finding:
    """Return the finding of a rule.

    Args:
        values: for the placeholders of its sentences; one with the name of a field of
            :class:`Finding` takes the place of the rule's own.
    """
    names = tuple(files)
    row = rules[rule]
    shown = {"entries": format_count(len(names), "entry"), **values}
    fields: dict[str, Any] = {"trap": rule, **row, "files": names}
    fields |= {n: row[n].format_map(shown) for n in ("seen", "cost", "fix")}
    return Finding(**{n: values.get(n, value) for n, value in fields.items()})


def install_into(python: str, package: str) -> str:
    """Say how to install a package into a Python, also one without pip, as uv makes them."""
    return (
        f"install {package} into that Python: {python} -m pip install {package}, "
        f"or uv pip install --python {python} {package}"
    )


def settings_of_jax(values: Mapping[str, Any], environment: Mapping[str, str]) -> list[Setting]:
    """The settings that a jax reports, with their origins.

    A setting that is newer than this jax is left out.
    """
    return [_origin(n, values[n], environment) for n in JAX_DEFAULTS if n in values]


#: Before the name of a setting of the live layer.
LIVE = "live."


def settings_of_live(values: Mapping[str, Any]) -> list[Setting]:
    """The settings of the live layer, as that Python resolves them.

    Without ``enabled`` there is only the reason why they cannot be read.
    """
    settings = [Setting(f"{LIVE}installed", bool(values.get("installed")), "default")]
    if "error" in values:
        return [*settings, Setting(f"{LIVE}error", str(values["error"]), "script")]
    for name, value in values.get("values", {}).items():
        shown = ", ".join(map(str, value)) or None if isinstance(value, list) else value
        settings.append(Setting(f"{LIVE}{name}", shown, str(values["origins"][name])))
    return settings


def settings_of_environment(environment: Mapping[str, str]) -> list[Setting]:
    """The settings that a jax would find here, judged without one."""
    return [_origin(name, _read(name, environment), environment) for name in JAX_DEFAULTS]


def with_script(settings: Sequence[Setting], values: Mapping[str, Any]) -> list[Setting]:
    """Settings as a script left them: those that it changed are its own."""
    return [
        Setting(s.name, values[s.name], "script")
        if s.name in values and values[s.name] != s.value
        else s
        for s in settings
    ]


def _origin(name: str, value: SettingValue, environment: Mapping[str, str]) -> Setting:
    if name.upper() in environment and _read(name, environment) == value:
        return Setting(name, value, "environment")
    return Setting(name, value, "default" if value == JAX_DEFAULTS[name] else "script")


def _read(name: str, environment: Mapping[str, str]) -> SettingValue:
    """A setting as the environment makes it; the text of one that JAX refuses."""
    text = environment.get(name.upper())
    if text is None:
        default: SettingValue = JAX_DEFAULTS[name]
        return default
    try:
        value: SettingValue = read_setting(text, JAX_DEFAULTS[name])
    except ValueError:
        return text
    return value
