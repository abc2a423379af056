"""Values as text: parse what people type, such as sizes, and format what they read."""

import os
import re
import sys
import time
from collections.abc import Sequence

from jaxcache.core.configuration import DURATIONS, SIZES, read_seconds, read_size_bytes
from jaxcache.errors import UsageError

NS_PER_SECOND = 1_000_000_000


def parse_size_bytes(text: str) -> int:
    """Read a size such as ``10GB`` (10^9), ``10GiB`` (2^30) or ``4096`` as bytes.

    Raises:
        UsageError: the text is not a size.
    """
    size_bytes = read_size_bytes(text)
    if size_bytes is None:
        raise UsageError(f"{text!r} is not a size", code="bad-size", hint=f"write {SIZES}")
    return size_bytes


def parse_duration_seconds(text: str) -> float:
    """Read a duration such as ``30s``, ``15m``, ``12h``, ``7d`` or ``2w`` as seconds.

    Raises:
        UsageError: the text is not a duration.
    """
    seconds = read_seconds(text)
    if seconds is None:
        raise UsageError(
            f"{text!r} is not a duration", code="bad-duration", hint=f"write {DURATIONS}"
        )
    return seconds


def format_size(size_bytes: int) -> str:
    """Print bytes in decimal units: ``812 B``, ``4.3 kB``, ``1.2 GB``."""
    try:
        import humanize
    except ImportError:  # beside jax alone, where only the parts that live in a program run
        return f"{size_bytes / 1000:,.1f} kB"
    return humanize.naturalsize(size_bytes).replace(" Bytes", " B").replace(" Byte", " B")


def cell_len(text: str) -> int:
    """Return the columns of a terminal that a text takes: 2 for each wide character."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    wide = sum(east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(category(c) in ("Mn", "Me", "Cf") for c in text)


def format_count(number: int, noun: str) -> str:
    """Print a number of things: ``1 entry``, ``2 entries``, ``3,000 files``."""
    plural = f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def format_command(command: str, cache_dir: str) -> str:
    """Print a command to paste, for this very cache: ``jaxcache verify --fix -C /tmp/cache``."""
    import shlex

    return f"jaxcache {command} -C {shlex.quote(cache_dir)}"


#: A command on a cache in a sentence, before its options; not one on a file.
_COMMAND = (
    r"jaxcache (ls|show|stats|verify|prune|rm|seal|pin|doctor)\b(?![^;,()]* -C )(?! '?[^' ]*/)"
)


def add_cache(text: str, cache_dir: str) -> str:
    """Add ``-C`` to the commands in a sentence, so that they are about this very cache."""
    return re.sub(_COMMAND, lambda command: format_command(command[1], cache_dir), text)


#: How to name the Python that has jax; a tool's own environment should not have it.
NO_JAX_HINT = "activate the environment that has jax, or name its Python with --python"

#: What adds an extra, by the file that marks the environment of an installer of tools.
_TOOL_COMMANDS = {
    "uv-receipt.toml": "uv tool install",
    "pipx_metadata.json": "pipx install --force",
}


def _tool_extras() -> list[str]:
    """Return the extras that the installer of this tool was given; it would drop them."""
    for mark in filter(os.path.isfile, (os.path.join(sys.prefix, m) for m in _TOOL_COMMANDS)):
        with open(mark, encoding="utf-8") as file:
            # name = "jaxcache", extras = ["gpu"] of uv, "jaxcache[gpu]" of pipx.
            if match := re.search(r'"?jaxcache(?:\[|", extras = \[)([^\]]*)\]', file.read()):
                return re.findall(r"[\w-]+", match[1])
    return []


def _install_address() -> str:
    """Return the address that jaxcache was installed from (PEP 610); empty for an index."""
    import json
    from importlib.metadata import distribution

    record = json.loads(distribution("jaxcache").read_text("direct_url.json") or "{}")
    scheme = f"{record['vcs_info']['vcs']}+" if "vcs_info" in record else ""
    return f" @ {scheme}{record['url']}" if record else ""


def format_install(extra: str) -> str:
    """Print the command that installs an extra of jaxcache; not every Python has pip."""
    from importlib.util import find_spec

    marks = (m for m in _TOOL_COMMANDS if os.path.isfile(os.path.join(sys.prefix, m)))
    if command := _TOOL_COMMANDS.get(next(marks, "")):
        extras = ",".join(sorted({extra, *_tool_extras()}))
        return f"{command} 'jaxcache[{extras}]{_install_address()}'"
    has_pip = find_spec("pip") is not None
    address = "" if has_pip else _install_address()  # pip keeps what is installed
    return install_command(sys.executable, f"jaxcache[{extra}]{address}", has_pip=has_pip)


def install_command(python: str, package: str, *, has_pip: bool) -> str:
    """Print the command that installs a package into a Python, as a shell reads it."""
    import shlex

    path = shlex.quote(python)
    command = f"{path} -m pip install" if has_pip else f"uv pip install --python {path}"
    return f"{command} {shlex.quote(package)}"


def format_compile(seconds: float | None) -> str:
    """Print compile time as in an entry's header: whole seconds, 0 for all below one."""
    if seconds is None:
        return "?"
    return "<1 s" if seconds == 0 else format_duration(seconds)


def format_compiling(seconds: float, entries: int) -> str:
    """Print the compile time of some entries, which sums up to 0 where each took less than 1 s."""
    if entries and not seconds:
        return "under 1 s of compiling" + (" per entry" if entries > 1 else "")
    return f"{format_duration(seconds)} of compiling"


def format_duration(seconds: float) -> str:
    """Print a duration in its largest fitting unit: ``42 ms``, ``0.4 s``, ``52 s``, ``3m 20s``."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{max(1, round(1000 * seconds))} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    for size, unit, small, small_unit in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            remainder = whole % size // small
            return (
                f"{whole // size}{unit} {remainder}{small_unit}"
                if remainder
                else f"{whole // size}{unit}"
            )
    return f"{whole} s"


def format_ago(then_ns: int, now_ns: int) -> str:
    """Print how long ago something was: ``now``, ``3m``, ``5h``, ``12d``."""
    seconds = max(0, now_ns - then_ns) // NS_PER_SECOND
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return "now"


def format_since(then_ns: int, now_ns: int) -> str:
    """Print how long ago something was, in a sentence: ``now``, ``5h ago``."""
    shown = format_ago(then_ns, now_ns)
    return shown if shown == "now" else f"{shown} ago"


def rfc3339(time_ns: int) -> str:
    """Print nanoseconds since the epoch as RFC 3339 in UTC, with microseconds.

    Times outside what a calendar holds (a corrupt ``-atime``) come back at its nearer end.
    """
    whole, nanoseconds = divmod(time_ns, NS_PER_SECOND)
    whole = min(max(whole, 0), _LAST_SECOND)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{nanoseconds // 1000:06}Z", time.gmtime(whole))


_LAST_SECOND = 253_402_300_799  # 9999-12-31T23:59:59Z


def join_some(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first few of some texts, and add the number of the others."""
    more = len(texts) - most
    return separator.join(texts[:most]) + (f" and {more:,} more" if more > 0 else "")


def printable(name: str) -> str:
    """A name as it may be shown: control characters and odd bytes become ``\\xNN`` escapes."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else _escape(c) for c in name)


def printable_lines(text: str) -> str:
    """A text of several lines, each :func:`printable`."""
    return "\n".join(map(printable, text.split("\n")))


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def differing_columns(rows: Sequence[Sequence[object]]) -> tuple[int, ...]:
    """Return the places in which rows differ; nothing for rows of several lengths."""
    if len({len(row) for row in rows}) != 1:
        return ()
    return tuple(n for n, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1)
