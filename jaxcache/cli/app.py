"""The call that a command line means; commands are imported when they run."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jaxcache import __version__
from jaxcache.cli import metering, terminal
from jaxcache.cli.commands import COMMANDS, GROUPS, HEADINGS, expand_options, load
from jaxcache.cli.parser import Parser
from jaxcache.cli.terminal import Color
from jaxcache.errors import EXIT_MEANINGS, ExitCode, UsageError
from jaxcache.options import CacheDir, Kind, Options, flag, option

#: What ends the help of a group.
EPILOGUES = {
    "ci": """\b
The steps of a job, in this order:
  export JAX_COMPILATION_CACHE_DIR=$PWD/jax-cache
  export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
  key=$(jaxcache ci key)
  jaxcache ci restore "store/$key.jxb"
  python train.py
  jaxcache ci save "store/$key.jxb"

The keys of JAX before 0.11 contain the cache's path: give it the same path in
every job, or fill it and use it with --portable (jaxcache warm, jaxcache run),
or with JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none where plain JAX runs.

Without the 0, JAX does not cache compiles shorter than 1 s, so the cache of a
short job stays empty. store/ is any directory that outlives the job, or a URL
such as s3://bucket/jax."""
}

#: Commands as other tools call them, and what to use here.
SYNONYMS = {
    "list": "jaxcache ls",
    "clean": "jaxcache prune, or jaxcache rm KEY",
    "info": "jaxcache stats, or jaxcache show KEY",
    "help": "jaxcache --help, or jaxcache COMMAND --help",
    "version": "jaxcache --version",
}

SUMMARY = "Inspect, verify, prune, warm and move JAX's persistent compilation cache."
_FIRST_STEPS = """\b
To fill a cache:           jaxcache warm SCRIPT
To fill it by plain JAX:   set JAX_COMPILATION_CACHE_DIR, and
                           JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
                           for compiles that take less than 1 s
If it will be moved:       warm --portable, with JAX before 0.11"""


class _Requests(Options, panel="Output"):
    requests: bool = flag("--requests", "Show request and byte counts of object stores.")


class _Help(Options, panel="Output"):
    help: bool = flag("--help -h", "Show this message and exit.")


class _Shared(Options, panel="Output"):
    color: Color | None = option(
        "--color",
        "When to use colour (default: on a terminal, unless NO_COLOR is set).",
        Kind(Color | None, "auto|always|never"),
    )
    debug: bool = flag("--debug", "Show a traceback when something fails.")


class _BeforeCommand(Parser):
    """What stands before the name of a command."""

    def ends_options(self, word: str, following: list[str]) -> bool:  # noqa: ARG002
        """Whether it is that name."""
        return not word.startswith("-")


def _root(
    *,
    version: bool = flag("--version", "Print the version."),
    json: bool = flag("--json", "With --version: print one JSON document."),
    shared: _Shared,
    place: CacheDir,
    wanted: _Help,
) -> None:
    """Take the options before the command."""


def load_parser(name: str) -> tuple[Parser, Callable[..., Any]]:
    """Import one command's module; return its parser, and the call that takes the values."""
    row = COMMANDS[name]
    call, declared = expand_options(load(row.place))
    if name in metering.REMOTE_COMMANDS:
        declared |= _Requests.DECLARED
    declared |= {**_Shared.DECLARED, **_Help.DECLARED}
    return load(row.parser)(f"jaxcache {name}", declared), call


def read_command_line(words: Sequence[str]) -> Callable[[], Any]:
    """Return the call that a command line means.

    Raises:
        UsageError: it means none.
    """
    root = _BeforeCommand("jaxcache", expand_options(_root)[1])
    waiting = root.split(words)
    values = root.values(())
    _take_shared(values)
    if values["help"]:
        return partial(print, _list_commands(root, ""))
    if values["version"]:
        return partial(_print_version, as_json=values["json"])
    if values["json"]:
        raise UsageError("--json belongs after the command", hint="jaxcache ls --json")
    name, group = "", None
    if waiting and waiting[0] in GROUPS:
        name = f"{waiting[0]} "
        group = _BeforeCommand(f"jaxcache {waiting[0]}", _Help.DECLARED)
        waiting = group.split(waiting[1:])
        if "help" in group.inputs:
            return partial(print, _list_commands(group, name.rstrip()))
    if not waiting:
        if group or not words:
            return partial(_refuse, _list_commands(group or root, name.rstrip()))
        root.fail("Missing command")
    name += waiting.pop(0)
    if name not in COMMANDS:
        raise _unknown_command(name)
    parser, call = load_parser(name)
    takes = "cache_dir" in parser.declared
    if values["cache_dir"] is not None and not (takes or group):
        raise UsageError(f"{name} takes no --cache-dir")
    arguments = parser.split(waiting)
    if "help" in parser.inputs:
        return partial(print, command_help(name, parser))
    if takes and values["cache_dir"] is not None:
        parser.inputs.setdefault("cache_dir", values["cache_dir"])
    arguments_by_name = parser.values(arguments)
    _take_shared(arguments_by_name)
    del arguments_by_name["help"]
    return partial(call, **arguments_by_name)


def _take_shared(values: dict[str, Any]) -> None:
    """Take the options that are not the command's own out of its values."""
    terminal.choose_color(values.pop("color"))
    terminal.choose_debug(values.pop("debug"))
    if values.pop("requests", False):
        metering.want(True)


def _refuse(text: str) -> int:
    print(text, file=sys.stderr)
    return ExitCode.USAGE


def _print_version(*, as_json: bool) -> None:
    if not as_json:
        print(f"jaxcache {__version__}")
        return
    from jaxcache.api.compiling import read_versions
    from jaxcache.cli.output import print_json
    from jaxcache.render.view import to_document, versioned

    print_json(versioned({"cache_dir": None, **to_document(read_versions())}))


def _unknown_command(name: str) -> UsageError:
    from difflib import get_close_matches

    group, _, word = name.rpartition(" ")
    start = f"{group} ".lstrip()
    following = (n.removeprefix(start).split()[0] for n in COMMANDS if n.startswith(start))
    near = get_close_matches(word, dict.fromkeys(following), 1)
    path = f"jaxcache {group}".rstrip()
    hint = f"did you mean {near[0]}?" if near else f"{path} --help lists them"
    return UsageError(f"unknown command {name!r}", hint=hint if group else SYNONYMS.get(word, hint))


def _list_commands(parser: Parser, group: str) -> str:
    """Return the help of a group, or of all commands: one line for each, under its heading."""
    from jaxcache.cli.help import format_help, option_rows

    sections = {"Options": option_rows(parser.declared.values())}
    for heading, row in HEADINGS.items():
        names = [n for n in row if not group or n.startswith(f"{group} ")]
        lines = {n.split()[bool(group)]: _summary(n, group) for n in names}
        if lines:
            sections["Commands" if group else heading] = [*lines.items()]
    text = GROUPS[group] if group else f"{SUMMARY}\n\n{_FIRST_STEPS}"
    usage = f"{parser.path} [OPTIONS] COMMAND [ARGS]..."
    return format_help(usage, text, sections, EPILOGUES.get(group, ""))


def _summary(name: str, group: str) -> str:
    """Return the first sentence of a command's help, or that of its group."""
    first = name.split()[0]
    text = GROUPS[first] if first in GROUPS and not group else load(COMMANDS[name].place).__doc__
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + stop.rstrip()


def command_help(name: str, parser: Parser) -> str:
    """Return the help of a command, with its example and its exit codes."""
    from jaxcache.cli.help import parser_help

    row = COMMANDS[name]
    example = f"jaxcache {name} {row.example}".rstrip()
    codes = "\n".join(f"  {code:<3} {EXIT_MEANINGS[code]}" for code in row.exit_codes)
    epilog = f"\b\nExample:\n  {example}\n\n\b\nExit codes:\n{codes}"
    return parser_help(parser, load(row.place).__doc__, epilog, row.most_used.split())
