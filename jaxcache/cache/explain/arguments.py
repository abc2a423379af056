"""The arguments of ``explain``: saved runs, JAX's log, keys, cache directories; also one key alone.

A log is made by ``JAX_LOGGING_LEVEL=DEBUG python script.py 2> run.log`` (0.4.30 also takes
``JAX_DEBUG_LOG_MODULES``). Its messages are those of jax/_src/{cache_key,compiler,
compilation_cache}.py and jax/_src/interpreters/pxla.py, 0.4.30 to 0.12. Several threads that
compile at once mix their lines; the arguments in such a log may be those of another compile, but a
key and its components belong together: the last hash is the key's own.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.explain.cached_facts import CachedFacts, open_cached_facts
from jaxcache.cache.explain.compare import explain
from jaxcache.cache.explain.sides import (
    COMPONENTS,
    Compile,
    Explanation,
    Side,
    WriteRule,
    is_helper,
)
from jaxcache.cache.recipe.format import is_recipe, open_recipe
from jaxcache.cache.untrusted_json import parse_json, read_fields
from jaxcache.core.names import parse_key
from jaxcache.errors import JaxcacheError, UsageError, system_errors_as
from jaxcache.store import open_store

_MAX_LINE = 64 << 10
_ARRAY = re.compile(r"(?:ShapedArray|ConcreteArray)\(([^()]*)\)")
#: Directory of XLA's autotune results inside the cache directory.
_AUTOTUNE = "/xla_gpu_per_fusion_autotune_cache_dir"


def read_log(lines: Iterable[str]) -> tuple[Compile, ...]:
    """Read the compiles from a log of JAX, in the order of their requests."""
    log = _Log()
    for line in lines:
        line = line[:_MAX_LINE].rstrip()
        for words, pattern, handle in _PATTERNS:
            if words in line and (match := pattern.search(line)):
                handle(log, *match.groups())
                break
    return tuple(log.compiles.values())


class _Log:
    """The state between lines: the key being made, and the compiles read so far."""

    def __init__(self) -> None:
        self.compiles: dict[str, Compile] = {}
        self._next = Compile("")
        self._hashed: dict[str, str] = {}
        self._made: dict[str, Compile] = {}
        self._last: Compile | None = None

    def compiling(self, arguments: str) -> None:
        self._next = Compile("", arguments=", ".join(_ARRAY.findall(arguments)))
        self._hashed = {}

    def options(self, replicas: str, partitions: str, assignment: str) -> None:
        options = {
            "num_replicas": replicas,
            "num_partitions": partitions,
            "device_assignment": assignment.strip(),
        }
        self._next = replace(self._next, options=options)

    def path(self, path: str) -> None:
        self._next = replace(self._next, cache_path=path.removesuffix(_AUTOTUNE))

    def flag(self, word: str, flag: str) -> None:
        kept = word == "Including"
        flag = flag.strip()
        before = (self._next.xla_flags or ()) if kept else self._next.ignored_flags
        if flag not in before:  # a log that asks for hashes makes JAX read the flags twice
            name = "xla_flags" if kept else "ignored_flags"
            self._next = replace(self._next, **{name: (*before, flag)})  # type: ignore[arg-type]

    def component(self, name: str, digest: str) -> None:
        if name == COMPONENTS[0]:
            self._hashed = {}
            self._next = replace(self._next, xla_flags=(), ignored_flags=())
        self._hashed[name] = digest

    def key(self, digest: str) -> None:
        """The hash after the last component is the key's."""
        compiled = replace(self._next, components=dict(self._hashed))
        self._made[digest] = self._last = compiled
        self._next = Compile("")

    def skipped(self, module: str, reason: str) -> None:
        has_callbacks = "host callbacks" in reason
        outcome = "uncacheable" if has_callbacks else "skipped"
        rule = WriteRule.HOST_CALLBACKS if has_callbacks else WriteRule.COMPILE_TIME
        self.tell(module, None, outcome=outcome, rule=rule, reason=reason.strip())

    def small(self, key: str, reason: str) -> None:
        parsed = parse_key(key)
        module = parsed.module if parsed else ""
        rule = WriteRule.SIZE if reason.startswith("since its size") else None
        self.tell(module, key, outcome="skipped", rule=rule, reason=reason.strip())

    def tell(self, module: str, key: str | None, **facts: Any) -> None:
        parsed = parse_key(key) if key else None
        compiled = self._made.get(parsed.hash) if parsed else self._latest(module)
        key = key or (compiled.key if compiled else None)
        if key is None and compiled is not None:
            digest = next((d for d, c in self._made.items() if c is compiled), None)
            key = f"{module}-{digest}" if digest else None
        name = key or module
        before = self.compiles.get(name) or replace(compiled or Compile(module), key=key)
        self.compiles[name] = replace(before, module=module, **facts)

    def _latest(self, module: str) -> Compile | None:
        """The compile that a line without a key belongs to: the last of that module."""
        for compile_ in reversed(self.compiles.values()):
            if compile_.module == module and compile_.outcome is None and compile_.key:
                return compile_
        return self._last


_Handler = Callable[..., None]
#: Words that a line must hold, then how it is read. The words keep long lines of others from the
#: patterns, of which some take the square of a line's length.
_LINES: tuple[tuple[str, str, _Handler], ...] = (
    (
        " global shapes and types ",
        r"Compiling \S+?(?: for with| with) global shapes and types (.*?)\. Argument",
        _Log.compiling,
    ),
    (
        " device_assignment=",
        r"num_replicas=(\d+) num_partitions=(\d+) device_assignment=(.*)$",
        _Log.options,
    ),
    ("Enabling XLA autotuning cache at '", r"Enabling XLA autotuning cache at '(.*)'", _Log.path),
    (
        "ncluding XLA flag in cache key: ",
        r"(Including|Not including) XLA flag in cache key: (.*)$",
        _Log.flag,
    ),
    (
        "get_cache_key hash of serialized ",
        r"get_cache_key hash of serialized ([\w ]+): ([0-9a-f]{64})",
        _Log.component,
    ),
    (
        "get_cache_key hash after serializing custom_hook: ",
        r"get_cache_key hash after serializing custom_hook: ([0-9a-f]{64})",
        _Log.key,
    ),
    (
        "Persistent compilation cache hit for '",
        r"Persistent compilation cache hit for '([^']*)'(?: with key '([^']*)')?$",
        lambda log, module, key: log.tell(module, key, outcome="hit"),
    ),
    (
        "PERSISTENT COMPILATION CACHE MISS for '",
        r"PERSISTENT COMPILATION CACHE MISS for '([^']*)' with key '([^']*)'",
        _Log.tell,
    ),
    (
        " to persistent compilation cache with key ",
        r"Writing (.*) to persistent compilation cache with key '?([^']*?)'?\.?$",
        lambda log, module, key: log.tell(module, key, outcome="written"),
    ),
    (
        "cache entry with key ",
        r"Not writing (?:persistent )?cache entry with key '?([^']*?)'? (since .*)$",
        _Log.small,
    ),
    (
        "Not writing persistent cache entry for '",
        r"Not writing persistent cache entry for '([^']*)' because it (.*)$",
        _Log.skipped,
    ),
    (
        "' took at least ",
        r"'([^']*)' took at least [\d.]+ seconds to compile \(([\d.]+)s\)",
        lambda log, module, seconds: log.tell(module, None, compile_seconds=float(seconds)),
    ),
)
_PATTERNS = [(words, re.compile(pattern), handle) for words, pattern, handle in _LINES]


_MAX_BYTES = 512 << 20
_MAX_VALUES = 32 << 20
_FACTS = (
    *("module", "key", "components", "outcome", "reason", "rule"),
    *("xla_flags", "ignored_flags", "source", "compile_seconds"),
)


def explain_keys(words: Sequence[str], path: str, *, explicit: bool = True) -> Explanation:
    """Explain two sides, or one key against the nearest other one of its module.

    If its name or a glob fits several keys of a module, the newest entry is explained.

    Args:
        words: one or two of: a saved run, a key, a cache directory.
        path: the cache that knows the keys.
        explicit: that cache was named, so it must be there.

    Raises:
        UsageError: a text names no file, and the cache does not exist.
        JaxcacheError: ``no-match``, ``ambiguous-key``
        NoCacheError
    """
    cache = open_cached_facts(path, explicit=explicit)
    sides = [_side(text, cache, path, explicit=explicit) for text in words]
    if len(sides) == 1:
        side = _newest(sides[0][0], cache)
        sides = [(_others(side, cache), cache), (side, cache)]
    shared = {c.key for c in sides[0][0].compiles} & {c.key for c in sides[1][0].compiles}
    left, right = (_complete(*side, shared) for side in sides)
    return explain(left, right)


def _side(
    text: str, cache: CachedFacts | None, path: str, *, explicit: bool
) -> tuple[Side, CachedFacts | None]:
    """Return a side and the cache that knows more of its keys: the one named, else its own."""
    if os.path.isdir(text):
        cache = CachedFacts(open_store(text))
        return cache.whole(), cache
    if os.path.isfile(text):
        side = read_run(text)
        if not explicit and side.cache_dir and os.path.isdir(side.cache_dir):
            return side, open_cached_facts(side.cache_dir)
        return side, cache
    if cache is None:
        raise UsageError(
            f"{text}: no such file, and {path} has no cache whose key this could be",
            hint="name a saved run (warm --json > FILE), a key, a cache directory or a script",
        )
    return cache.side(text), cache


def _newest(side: Side, cache: CachedFacts | None) -> Side:
    """Keep only the newest entry of each module given by name."""
    if cache is None or side.is_run or len(side.compiles) == 1:
        return side
    named = {c.key for c in side.compiles}
    modules = {c.module for c in side.compiles}
    last = {next((k for k in cache.keys_of(m) if k in named), None) for m in modules}
    return replace(side, compiles=tuple(c for c in side.compiles if c.key in last))


def _others(side: Side, cache: CachedFacts | None) -> Side:
    """Every other key of the modules of a side."""
    if cache is None or side.is_run:
        raise UsageError(
            "explain needs one or two sides",
            hint="a saved run, a key, a cache directory or a script; see jaxcache explain --help",
        )
    mine = {c.key for c in side.compiles}
    modules = {c.module for c in side.compiles}
    others = (c for c in cache.whole().compiles if c.module in modules and c.key not in mine)
    compiles = tuple(others)
    if not compiles:
        raise JaxcacheError(
            f"{side.name} is the only key of its module",
            code="no-match",
            hint="explain a script or a saved run against it",
        )
    return Side("the other keys of the module", compiles, is_run=False)


def _complete(side: Side, cache: CachedFacts | None, shared: set[str | None]) -> Side:
    """Open the entries of a side, but for the keys that the other side has too."""
    if cache is None:
        return side
    compiles = (c if c.key in shared else cache.complete(c) for c in side.compiles)
    return replace(side, compiles=tuple(compiles))


def read_run(path: str) -> Side:
    """Read a saved run.

    Raises:
        UsageError: ``bad-run``: it cannot be read, or does not contain a run.
        RecipeError: it is a damaged recipe.
    """
    if is_recipe(path):
        return Side(path, _recorded(path))
    with system_errors_as(UsageError, f"cannot read {path}", code="bad-run"):
        if Path(path).stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path} is larger than any log of a run", code="bad-run")
        data = Path(path).read_bytes()
    document: Mapping[str, Any] = {}
    if data.lstrip().startswith(b"{"):
        with suppress(ValueError):
            document = parse_json(data, ValueError, max_values=_MAX_VALUES)
    lines = data.decode("utf-8", "replace").splitlines()
    compiles = read_document(document) if document else read_log(lines)
    if not compiles:
        raise UsageError(
            f"{path} records no compile",
            code="bad-run",
            hint="make one with: jaxcache warm --json SCRIPT > run.json, "
            "or JAX_LOGGING_LEVEL=DEBUG python SCRIPT 2> run.log",
        )
    return Side(path, compiles, cache_dir=_text(document.get("cache_dir")))


def _recorded(path: str) -> tuple[Compile, ...]:
    """The compiles of a recipe, as far as they have keys."""
    records = {}
    with open_recipe(path) as file:
        for r in file.recipe.requests:
            e = file.recipe.environment_of(r)
            flags = kept_flags((*e.xla_flags, *e.libtpu_init_args, *e.argv_flags))
            records[r.name] = Compile(
                module=r.module,
                key=r.key,
                components=r.components or None,
                xla_flags=tuple(sorted(flags)),
                cache_path=e.cache_dir,
                source=f"{r.file}:{r.line}" if r.file and r.line else None,
                is_helper=is_helper(r.function, r.file),
                compile_seconds=r.compile_seconds,
            )
    return tuple(records.values())


def read_document(document: Mapping[str, Any]) -> tuple[Compile, ...]:
    """The compiles of a ``warm --json`` document; what has the wrong type is left out."""
    rows = document.get("modules")
    versions = _versions(document.get("processes"))
    compiles: dict[str, Compile] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("module"), str):
            jax, jaxlib = versions.get(str(row.get("process")), (None, None))
            compile_ = replace(_compile(row), jax_version=jax, jaxlib_version=jaxlib)
            name = compile_.key or f"{compile_.module} {len(compiles)}"
            if name in compiles and compile_.outcome == "hit":
                continue  # only the first look-up shows whether the cache had it
            compiles[name] = compile_
    return tuple(compiles.values())


def _versions(processes: object) -> dict[str, tuple[str | None, str | None]]:
    """Return the versions of jax and jaxlib of each process."""
    rows = (r for r in (processes if isinstance(processes, list) else ()) if isinstance(r, dict))
    return {str(r.get("process")): (_text(r.get("jax")), _text(r.get("jaxlib"))) for r in rows}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _compile(row: Mapping[str, Any]) -> Compile:
    file = _text(row.get("file"))
    line = row.get("line")
    values = {**row, "reason": row.get("detail") or row.get("reason"), "rule": row.get("reason")}
    if file is not None and isinstance(line, int):
        values["source"] = f"{file}:{line}"
    arguments, names = _arguments(row.get("arguments"))
    return Compile(
        **read_fields(Compile, values, _FACTS),
        arguments=arguments,
        names=names,
        is_helper="function" in row and is_helper(row["function"], file),
    )


def _arguments(value: object) -> tuple[str | None, tuple[str, ...]]:
    """Return the types of the arguments as text, and their names."""
    shown = []
    names = []
    for argument in value if isinstance(value, list) else [None]:
        if not isinstance(argument, dict) or not isinstance(argument.get("shape"), list):
            return None, ()
        dims = ",".join(map(str, argument["shape"]))
        shown.append(f"{argument.get('dtype')}[{dims}]")
        names.append(str(argument.get("name")))
    return ", ".join(shown), tuple(names)
