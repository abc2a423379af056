"""The arguments of ``explain``: saved runs, keys, cache directories; also one key alone."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.explain.answer import Answers, explain
from jaxcache.cache.explain.cached_facts import CachedFacts, open_cached_facts
from jaxcache.cache.explain.sides import Compile, Explanation, Side, is_helper
from jaxcache.cache.recipe.format import is_recipe, open_recipe
from jaxcache.cache.untrusted_json import parse_json, read_fields
from jaxcache.core.runs import find_writer
from jaxcache.errors import JaxcacheError, UsageError, system_errors_as
from jaxcache.store import open_store

_MAX_BYTES = 512 << 20
_MAX_VALUES = 32 << 20
_FACTS = (
    *("module", "key", "components", "outcome", "reason", "rule"),
    *("xla_flags", "source", "compile_seconds"),
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
        if cache and not side.is_run and (explanation := _by_record(side, cache, path)):
            return explanation
        sides = [(_others(side, cache), cache), (side, cache)]
    shared = {c.key for c in sides[0][0].compiles} & {c.key for c in sides[1][0].compiles}
    left, right = (_complete(*side, shared) for side in sides)
    return explain(left, right)


def _by_record(side: Side, cache: CachedFacts, path: str) -> Explanation | None:
    """Compare each key with what the runs before the one that wrote it compiled in its place."""
    comparisons = []
    for compile_ in side.compiles:
        writer = find_writer(path, compile_.key or "")
        if writer is None or not writer[1].runs:
            return None
        whole = cache.complete(compile_)
        comparisons += Answers(cache, [whole], *writer).explain([whole])
    since = comparisons[0].compared_with
    return Explanation(since or "earlier runs", side.name, 0, tuple(comparisons))


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
            raise UsageError(f"{path} is larger than any saved run", code="bad-run")
        data = Path(path).read_bytes()
    document: Mapping[str, Any] = {}
    if data.lstrip().startswith(b"{"):
        with suppress(ValueError):
            document = parse_json(data, ValueError, max_values=_MAX_VALUES)
    compiles = read_document(document)
    if not compiles:
        raise UsageError(
            f"{path} records no compile",
            code="bad-run",
            hint="make one with: jaxcache warm --json SCRIPT > run.json",
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
                jax_version=e.jax_version,
                jaxlib_version=e.jaxlib_version,
                device_count=e.device_count,
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
