"""Every failure of a command as one clear message and an exit code."""

import json
import os
import re
import shlex
import sys
import traceback
from itertools import pairwise

from jaxcache.core.configuration import read_size_bytes
from jaxcache.errors import REPORT_BUG, ExitCode, InterruptError, JaxcacheError
from jaxcache.units import format_command, printable_lines

#: The exception that every usage error of the command-line parser derives from.
_PARSER_ERROR = "ClickException"


def report(error: Exception, words: list[str]) -> int:
    """Print a failure and return its exit code; under ``--debug`` with the place it comes from.

    Args:
        words: the command line, up to ``--``.

    Raises:
        Exception: the error itself, if it is not ours and its place was requested.
    """
    as_json = any(word in ("--json", "--jsonl") for word in words)
    if not isinstance(error, JaxcacheError) and _follows_interrupt(error):
        error = InterruptError("interrupted")
    if isinstance(error, JaxcacheError):
        if _wants_debug():
            shown = printable_lines(_without_secrets(traceback.format_exc()))
            print(shown, end="", file=sys.stderr)
        return _fail(_about_words(error, words), as_json)
    if any(base.__name__ == _PARSER_ERROR for base in type(error).__mro__):
        return _fail(_about_words(_usage_error(error), words), as_json)
    if _wants_debug():
        raise error
    refused = isinstance(error, OSError) and error.errno is not None
    return _fail(_system_error(error) if refused else _internal_error(error), as_json)


def _follows_interrupt(error: BaseException | None) -> bool:
    """Return whether an error arose while an interrupt was handled.

    A ``Condition`` of the standard library that is interrupted between releasing its lock and
    taking it again raises RuntimeError; ``Thread.start()`` waits for one.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


#: Commands whose arguments are KEYs, or that take none.
_BY_KEY = ("ls", "show", "stats", "verify", "prune", "rm", "seal", "pin", "explain")
_MISTAKEN = ("no-match", "no-cache", "not-a-file", "usage", "needs-yes", "no-bound")


def _about_words(error: JaxcacheError, words: list[str]) -> JaxcacheError:
    """Say how a size with a blank is written, or what takes the directory or file that was given.

    It stands in the place of a KEY or of another file.
    """
    for number, unit in pairwise(words):
        size = f"{number}{unit}"
        if error.code == "usage" and unit.isalpha() and read_size_bytes(size) is not None:
            error.hint = f"write {size}, or quote it: '{number} {unit}'"
    arguments = [w for before, w in pairwise(words) if before not in ("-C", "--cache-dir")]
    if error.code in ("not-a-bundle", "not-a-recipe"):
        error.hint = _use_of(next(filter(os.path.isfile, arguments), ""), error.code)
    elif words[0] in _BY_KEY and error.code in _MISTAKEN:
        named = any(word.startswith(("-C", "--cache-dir")) for word in words)
        for place in arguments:
            if place.endswith(".jxb") and os.path.isfile(place):
                file = shlex.quote(place)
                error.hint = (
                    f"{place} is a bundle: jaxcache import --dry-run {file} checks it, "
                    f"jaxcache ls -C {file} lists it"
                )
            elif os.path.isdir(place) and not named:
                error.hint = f"the cache is named with -C: {format_command(words[0], place)}"
    return error


def _use_of(path: str, code: str) -> str | None:
    """Return what to do with a file that is not what a command takes."""
    from jaxcache.api.handle import kind_of_file

    file = shlex.quote(path)
    kind = kind_of_file(path) if path else "cache"
    if kind == "bundle":
        return f"it is a bundle: jaxcache import {file} adds its entries to the cache"
    if kind == "recipe":
        return f"it is a recipe: jaxcache compile {file} compiles it into the cache"
    if not path.endswith(".py"):
        return None
    if code == "not-a-recipe":
        return f"record a recipe of it: jaxcache warm --record {file}.recipe {file}"
    return f"run it, and cache what it compiles: jaxcache warm {file}"


def _without_secrets(text: str) -> str:
    """A traceback without the passwords and signatures of the URLs in it."""
    text = re.sub(r"(://)[^/@\s]+@", r"\1***@", text)
    return re.sub(r"(?i)\b(sig|token|[\w-]*(?:signature|credential))=[^&\s]+", r"\1=***", text)


def _wants_debug() -> bool:
    """Whether ``--debug`` or ``JAXCACHE_DEBUG`` asks for the place of a failure."""
    from jaxcache.cli import terminal

    return terminal.debugging or bool(os.environ.get("JAXCACHE_DEBUG"))


def _fail(error: JaxcacheError, as_json: bool) -> int:
    from jaxcache.cli.terminal import name_cache

    if as_json:
        document = {
            "code": error.code,
            "message": error.message,
            "hint": name_cache(error.hint) if error.hint else error.hint,
            "exit_code": int(error.exit_code),
        }
        print(json.dumps({"error": document}), file=sys.stderr)
    else:
        from jaxcache.cli.output import note
        from jaxcache.render.view import Line

        red = Line(f"{error.message} [{error.code}]", "jaxcache: ", lead_style="red")
        note(red, *([Line(error.hint, "  hint: ")] if error.hint else []))
    return int(error.exit_code)


def _system_error(error: Exception) -> JaxcacheError:
    """Describe an error of the system that no caller described, such as a full disk."""
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    name = getattr(error, "filename", None)
    return JaxcacheError(f"{name}: {reason}" if name else reason, code="io-error")


def _internal_error(error: Exception) -> JaxcacheError:
    """Describe a mistake of ours, with what a report of it needs."""
    return JaxcacheError(
        f"{type(error).__name__}: {error}",
        code="internal-error",
        hint=REPORT_BUG,
    )


def _usage_error(error: Exception) -> JaxcacheError:
    """Put a parser's complaint into our own form."""
    context = getattr(error, "ctx", None)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    hint = f"see {context.command_path} --help" if context else None
    if similar := getattr(error, "possibilities", None):
        from difflib import get_close_matches

        option = error.option_name  # type: ignore[attr-defined]
        message = f"No such option: {option}"
        if near := get_close_matches(option, similar, 1, cutoff=0.7):
            hint = f"did you mean {near[0]}?"
        elif context and not context.allow_interspersed_args:
            hint = f"an option of your program goes after its name; {hint}"
    elif context and getattr(error, "option_name", None) == "--unused-for":
        takes_filter = any("--filter" in p.opts for p in context.command.params)
        hint = (
            "write --filter 'unused>7d' for what was not used for 7 days" if takes_filter else hint
        )
    return JaxcacheError(
        message.rstrip("."),
        code="usage",
        hint=hint,
        exit_code=ExitCode(getattr(error, "exit_code", 2)),
    )
