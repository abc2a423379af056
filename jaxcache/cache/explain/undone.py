"""The cause of a miss that is proved: with one part of the key undone, there is an entry."""

import os
import shlex
from collections.abc import Iterator, Sequence

from jaxcache.cache.explain.cached_facts import CachedFacts
from jaxcache.cache.explain.sides import Cause, Compile, Difference, Evidence
from jaxcache.core.compile_event import UndonePart
from jaxcache.core.machine import XLA_CACHES

_PORTABLE = XLA_CACHES.upper()
#: By the kind of a part: the component of the key, the cause, and what it is.
_KINDS: dict[str, tuple[str, Cause, str]] = {
    "flag": ("XLA flags", Cause.FLAG, "XLA flags"),
    "option": ("compile_options", Cause.FLAG, "compiler_options of the jit"),
    "setting": ("compile_options", Cause.CONFIG, ""),
    "devices": ("accelerator_config", Cause.DEVICE, "number of devices"),
    "codec": ("compression", Cause.CODEC, "codec"),
    "path": ("compile_options", Cause.PATH, "cache path"),
}
#: Entries that are opened to learn the paths that a cache has had.
_MOST_OPENED = 3


def proved_by_undoing(compile_: Compile) -> Iterator[Difference]:
    """Yield what must be undone so that a compile hits; several differences only do so together."""
    for part in compile_.undone:
        component, cause, title = _KINDS[part.kind]
        title = title or part.name.lower()
        undone, value = (_shown(part, text) for text in (part.undone, part.value))
        undoing = f"with {undone}" if part.undone else f"without {value}"
        if len(compile_.undone) > 1:
            undoing = f"{undoing}, and all of these differences undone,"
        where = f" in {part.name}" if part.kind == "flag" else ""
        meaning = f"{title}{where}: {undoing} this is the key of an entry of the cache"
        is_alone = len(compile_.undone) == 1
        yield Difference(
            component,
            undone,
            value,
            meaning,
            _fix(part) if is_alone else None,
            cause,
            title=title,
            evidence=Evidence.PROVED if is_alone else Evidence.IN_PART,
        )


def _shown(part: UndonePart, text: str) -> str:
    if part.kind == "path":
        return text or f"no path in the key ({XLA_CACHES}=none)"
    return f"device_count={text}" if part.kind == "devices" else text or "without"


def _fix(part: UndonePart) -> str | None:
    """The command that undoes a part; words where no command does."""
    if part.kind == "codec":
        verb = "install" if part.undone == part.name else "uninstall"
        return f"python -m pip {verb} {part.name}"
    if part.kind == "path":
        return _fix_path(part)
    if part.restored:
        return f"export {part.name}={shlex.quote(part.restored)}"
    if part.restored == "":
        return f"unset {part.name}"
    if part.kind == "devices":
        return f"let the program have {part.undone} of them"
    return f"leave {part.value} out of {'the arguments' if part.name == 'argv' else part.name}"


def _fix_path(part: UndonePart) -> str | None:
    if not part.undone:
        return f"export {_PORTABLE}=none"
    if not part.value:
        return f"unset {_PORTABLE}" if _PORTABLE in os.environ else "leave out --portable"
    export = f"export JAX_COMPILATION_CACHE_DIR={shlex.quote(part.undone)}"
    if not os.path.lexists(part.undone):
        here = shlex.quote(os.path.realpath(part.value))
        return f"ln -s {here} {shlex.quote(part.undone)} && {export}"
    return export if os.path.realpath(part.undone) == os.path.realpath(part.value) else None


def past_paths(cache: CachedFacts | None) -> Sequence[str]:
    """The paths that a cache had when some of its entries were written, as far as these tell."""
    compiles = cache.whole().compiles[:_MOST_OPENED] if cache else ()
    contents = (cache.complete(c).contents for c in compiles) if cache else ()
    paths = (c.written_in_cache_dir for c in contents if c)
    return (*dict.fromkeys(path for path in paths if path),)
