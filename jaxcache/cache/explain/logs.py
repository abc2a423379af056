"""Read what JAX logs of its cache at DEBUG.

Made by ``JAX_LOGGING_LEVEL=DEBUG python script.py 2> run.log`` (0.4.30 also takes
``JAX_DEBUG_LOG_MODULES``). The messages are those of jax/_src/{cache_key,compiler,
compilation_cache}.py and jax/_src/interpreters/pxla.py, 0.4.30 to 0.12. Several threads that
compile at once mix their lines; what such a log then says of arguments may be of a neighbour,
but a key and its components belong together: the last hash is the key's own.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from jaxcache.cache.explain.sides import COMPONENTS, Compile
from jaxcache.entry.names import parse_key

_MAX_LINE = 64 << 10
_DEFAULT_NAME = re.compile(r"^(?:jit|pmap)[(_]")
_ARRAY = re.compile(r"(?:ShapedArray|ConcreteArray)\(([^()]*)\)")
#: Folder of XLA's autotune results inside the cache directory.
_AUTOTUNE = "/xla_gpu_per_fusion_autotune_cache_dir"


class LogReader:
    """Takes a log line by line; :attr:`compiles` are those whose fate it has told."""

    def __init__(self) -> None:
        self._compiles: dict[str, Compile] = {}
        self._next = Compile("")
        self._hashed: dict[str, str] = {}
        self._made: dict[str, Compile] = {}
        self._last: Compile | None = None
        self.lines = 0

    def read(self, line: str) -> bool:
        """Take one line; whether it was one of JAX's about the cache."""
        line = line[:_MAX_LINE].rstrip()
        for words, pattern, handle in _PATTERNS:
            if words in line and (match := pattern.search(line)):
                handle(self, *match.groups())
                self.lines += 1
                return True
        return False

    @property
    def compiles(self) -> tuple[Compile, ...]:
        """In the order in which they were first asked for."""
        return tuple(self._compiles.values())

    def _on_compiling(self, name: str, arguments: str) -> None:
        module = f"jit_{name}" if not _DEFAULT_NAME.match(name) else name
        types = ", ".join(_ARRAY.findall(arguments))
        self._next = Compile(module.rstrip(")").replace("(", "_", 1), arguments=types)
        self._hashed = {}

    def _on_options(self, replicas: str, partitions: str, assignment: str) -> None:
        options = {
            "num_replicas": replicas,
            "num_partitions": partitions,
            "device_assignment": assignment.strip(),
        }
        self._next = replace(self._next, options=options)

    def _on_path(self, path: str) -> None:
        self._next = replace(self._next, cache_path=path.removesuffix(_AUTOTUNE))

    def _on_flag(self, flag: str) -> None:
        before, flag = self._next.xla_flags or (), flag.strip()
        if flag not in before:  # a log that asks for hashes makes JAX read the flags twice
            self._next = replace(self._next, xla_flags=(*before, flag))

    def _on_ignored_flag(self, flag: str) -> None:
        before, flag = self._next.ignored_flags, flag.strip()
        if flag not in before:
            self._next = replace(self._next, ignored_flags=(*before, flag))

    def _on_component(self, name: str, digest: str) -> None:
        if name == COMPONENTS[0]:
            self._hashed = {}
            self._next = replace(self._next, xla_flags=(), ignored_flags=())
        self._hashed[name] = digest

    def _on_key(self, digest: str) -> None:
        """The hash after the last component is the key's."""
        made = replace(self._next, components=dict(self._hashed))
        self._made[digest] = self._last = made
        self._next = Compile("")

    def _on_hit(self, module: str, key: str | None) -> None:
        self._tell(module, key, outcome="hit")

    def _on_miss(self, module: str, key: str) -> None:
        self._tell(module, key)

    def _on_written(self, module: str, key: str) -> None:
        self._tell(module, key, outcome="written")

    def _on_skipped(self, module: str, reason: str) -> None:
        callbacks = "host callbacks" in reason
        self._tell(
            module, None, outcome="uncacheable" if callbacks else "skipped", reason=reason.strip()
        )

    def _on_small(self, key: str, reason: str) -> None:
        parsed = parse_key(key)
        module = parsed.module if parsed else ""
        self._tell(module, key, outcome="skipped", reason=reason.strip())

    def _on_took(self, module: str, seconds: str) -> None:
        self._tell(module, None, compile_seconds=float(seconds))

    def _tell(self, module: str, key: str | None, **facts: Any) -> None:
        parsed = parse_key(key) if key else None
        known = self._made.get(parsed.hash) if parsed else self._latest(module)
        key = key or (known.key if known else None)
        if key is None and known is not None:
            digest = next((d for d, c in self._made.items() if c is known), None)
            key = f"{module}-{digest}" if digest else None
        name = key or module
        before = self._compiles.get(name) or replace(known or Compile(module), key=key)
        self._compiles[name] = replace(before, module=module, **facts)

    def _latest(self, module: str) -> Compile | None:
        """The compile that a line without a key speaks of: the last of that module."""
        for compile_ in reversed(self._compiles.values()):
            if compile_.module == module and compile_.outcome is None and compile_.key:
                return compile_
        return self._last


def read_log(lines: Iterable[str]) -> tuple[Compile, ...]:
    """The compiles that a log tells of; none if it is no such log."""
    reader = LogReader()
    for line in lines:
        reader.read(line)
    return reader.compiles


_Handler = Callable[..., None]
#: Words that a line must hold, then how it is read. The words keep long lines of others from the
#: patterns, of which some take the square of a line's length.
_PATTERNS: tuple[tuple[str, re.Pattern[str], _Handler], ...] = (
    (
        " global shapes and types ",
        re.compile(r"Compiling (\S+?)(?: for with| with) global shapes and types (.*?)\. Argument"),
        LogReader._on_compiling,
    ),
    (
        " device_assignment=",
        re.compile(r"num_replicas=(\d+) num_partitions=(\d+) device_assignment=(.*)$"),
        LogReader._on_options,
    ),
    (
        "Enabling XLA autotuning cache at '",
        re.compile(r"Enabling XLA autotuning cache at '(.*)'"),
        LogReader._on_path,
    ),
    (
        "Including XLA flag in cache key: ",
        re.compile(r"Including XLA flag in cache key: (.*)$"),
        LogReader._on_flag,
    ),
    (
        "Not including XLA flag in cache key: ",
        re.compile(r"Not including XLA flag in cache key: (.*)$"),
        LogReader._on_ignored_flag,
    ),
    (
        "get_cache_key hash of serialized ",
        re.compile(r"get_cache_key hash of serialized ([\w ]+): ([0-9a-f]{64})"),
        LogReader._on_component,
    ),
    (
        "get_cache_key hash after serializing custom_hook: ",
        re.compile(r"get_cache_key hash after serializing custom_hook: ([0-9a-f]{64})"),
        LogReader._on_key,
    ),
    (
        "Persistent compilation cache hit for '",
        re.compile(r"Persistent compilation cache hit for '([^']*)'(?: with key '([^']*)')?$"),
        LogReader._on_hit,
    ),
    (
        "PERSISTENT COMPILATION CACHE MISS for '",
        re.compile(r"PERSISTENT COMPILATION CACHE MISS for '([^']*)' with key '([^']*)'"),
        LogReader._on_miss,
    ),
    (
        " to persistent compilation cache with key ",
        re.compile(r"Writing (.*) to persistent compilation cache with key '?([^']*?)'?\.?$"),
        LogReader._on_written,
    ),
    (
        "cache entry with key ",
        re.compile(r"Not writing (?:persistent )?cache entry with key '?([^']*?)'? (since .*)$"),
        LogReader._on_small,
    ),
    (
        "Not writing persistent cache entry for '",
        re.compile(r"Not writing persistent cache entry for '([^']*)' because it (.*)$"),
        LogReader._on_skipped,
    ),
    (
        "' took at least ",
        re.compile(r"'([^']*)' took at least [\d.]+ seconds to compile \(([\d.]+)s\)"),
        LogReader._on_took,
    ),
)
