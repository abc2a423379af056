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

from jaxcache.cache.explain.sides import COMPONENTS, Compile, WriteRule
from jaxcache.core.names import parse_key

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
