"""The Typer application: commands are imported when they run, so that starting stays cheap."""

import sys
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from jaxcache import __version__
from jaxcache.cli import metering, terminal
from jaxcache.cli.commands import COMMANDS, GROUPS, HEADINGS, load
from jaxcache.cli.panels import for_typer
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
every job, or set JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none in the first step.

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


class LazyGroup(TyperGroup):
    """A command group that imports a command's module only when that command is used."""

    #: First word of the group's commands; empty for the commands of one word.
    family = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a word show the help, which the parser would make the text of an error."""
        if not args:
            print(ctx.get_help(), file=sys.stderr)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and suggest the nearest one if none has that name.

        Raises:
            UsageError
        """
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]}?" if near else f"{ctx.command_path} --help lists them"
            hint = hint if self.family else SYNONYMS.get(name, hint)
            typed = f"{self.family} {name}".lstrip()
            raise UsageError(f"unknown command {typed!r}", hint=hint)
        takes = isinstance(command, LazyGroup) or any(p.name == "cache_dir" for p in command.params)
        if not takes and ctx.params.get("cache_dir") is not None:
            raise UsageError(f"{name} takes no --cache-dir")
        return name, command, args[1:]

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Every command's name, in the order of ``--help``."""
        words = (name.split() for name in COMMANDS)
        if self.family:
            return [w[1] for w in words if w[0] == self.family]
        return list(dict.fromkeys(w[0] for w in words))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command or group of that name, or None."""
        if not self.family and cmd_name in GROUPS:
            return load_group(cmd_name)
        name = f"{self.family} {cmd_name}".lstrip()
        return load_command(name) if name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands under their headings, one line each."""
        command_names = self.list_commands(ctx)
        for heading, row in HEADINGS.items():
            words = [n.split() for n in row]
            inside = (w[1] for w in words if w[0] == self.family and w[1:])
            names = dict.fromkeys(inside if self.family else (w[0] for w in words))
            listed = [(n, self.get_command(ctx, n)) for n in names if n in command_names]
            if listed:
                with formatter.section("Commands" if self.family else heading):
                    formatter.write_dl([(n, c.get_short_help_str(limit=1000)) for n, c in listed])


def load_group(name: str) -> LazyGroup:
    """Build the group of the commands whose first word is ``name``."""
    group = LazyGroup(
        name=name, help=GROUPS[name], epilog=EPILOGUES.get(name), rich_markup_mode=None
    )
    group.family = name
    return group


def load_command(name: str) -> Any:
    """Import one command's module and build its parser."""
    row = COMMANDS[name]
    example = f"jaxcache {name} {row.example}".rstrip()
    codes = "\n".join(f"  {code:<3} {EXIT_MEANINGS[code]}" for code in row.exit_codes)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        name=name.split()[-1],
        cls=load(row.parser),
        epilog=f"\b\nExample:\n  {example}\n\n\b\nExit codes:\n{codes}",
        context_settings={"allow_interspersed_args": row.interspersed},
        no_args_is_help=False,
    )(for_typer(load(row.place)))
    parser: Any = typer.main.get_command(app)
    parser.most_used = tuple(row.most_used.split())
    requests, *shared = _shared_options()
    parser.params += [requests, *shared] if name in metering.REMOTE_COMMANDS else shared
    return parser


class _Requests(Options, panel="Output"):
    requests: bool = flag(
        "--requests",
        "Show request and byte counts of object stores.",
        callback=metering.want,
        expose_value=False,
    )


class _Shared(Options, panel="Output"):
    color: str | None = option(
        "--color",
        "When to use colour (default: on a terminal, unless NO_COLOR is set).",
        Kind(Color | None, "auto|always|never"),
        callback=terminal.choose_color,
        is_eager=True,
        expose_value=False,
    )
    debug: bool = flag(
        "--debug",
        "Show a traceback when something fails.",
        callback=terminal.choose_debug,
        is_eager=True,
        expose_value=False,
    )


def _shared_options() -> list[Any]:
    """Return the options that several commands share.

    The first is for those that talk to object stores; the others may stand before a command, too.
    """
    shared = typer.Typer(add_completion=False, rich_markup_mode=None)

    @shared.command()
    @for_typer
    def _(requests: _Requests, shared: _Shared) -> None: ...

    parameters: list[Any] = typer.main.get_command(shared).params
    return parameters


app = typer.Typer(
    name="jaxcache",
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def find_help(words: list[str]) -> "partial[None] | None":
    """Return the call that prints the help of a command; None where the words mean anything else.

    The parser would first convert the values of the options before the command; Typer imports
    pydantic for that, which takes as long as the rest.
    """
    if words[-1:] not in (["--help"], ["-h"]):
        return None
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="jaxcache", **command.context_settings)
    for name in words[:-1]:
        command = command.get_command(context, name) if isinstance(command, LazyGroup) else None
        if command is None:
            return None
        context = typer.Context(command, info_name=name, parent=context)
    return partial(print, context.get_help())


def _print_version(context: typer.Context, wanted: bool) -> None:
    as_json = context.params.get("json")
    if wanted and as_json:
        from jaxcache.api.compiling import read_versions
        from jaxcache.cli.output import print_json
        from jaxcache.render.view import to_document, versioned

        print_json(versioned({"cache_dir": None, **to_document(read_versions())}))
    elif wanted:
        typer.echo(f"jaxcache {__version__}")
    elif as_json and not context.resilient_parsing:
        raise UsageError("--json belongs after the command", hint="jaxcache ls --json")
    if wanted:
        raise typer.Exit


@app.callback(help=f"{SUMMARY}\n\n{_FIRST_STEPS}")
@for_typer
def root(
    *,
    version: bool = flag(  # noqa: ARG001
        "--version", "Print the version.", callback=_print_version
    ),
    json: bool = flag(  # noqa: ARG001
        "--json", "With --version: print one JSON document.", is_eager=True
    ),
    shared: _Shared,  # noqa: ARG001
    place: CacheDir,
    context: typer.Context,
) -> None:
    """Take the options before the command; the help is above, and the manual shows SUMMARY."""
    if place.cache_dir is not None:
        settings = {"cache_dir": place.cache_dir}
        context.default_map = {n.split()[0]: settings for n in COMMANDS} | {
            group: {n.split()[1]: settings for n in COMMANDS if n.split()[0] == group}
            for group in GROUPS
        }
