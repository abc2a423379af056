"""The commands, their modules, and their parameters: those of classes of options, and their own."""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple

from jaxcache.errors import InterruptError
from jaxcache.options import TEXTS, Option, Options


class Command(NamedTuple):
    """A command: where its function is, and what its help ends with."""

    place: str
    """``FILE:FUNCTION`` in this package."""
    example: str
    """What follows its name in the example of its help."""
    exit_codes: tuple[int, ...]
    """The codes that it can end with."""
    most_used: str = ""
    """The options that its help lists first, in this order."""
    parser: str = "panels:PanelCommand"
    """The class of its parser."""
    interspersed: bool = True
    """Whether options may follow arguments, which are not a program's then."""


#: The commands under the headings and in the order of ``--help``. A name of two words is a command
#: of a group, which :data:`GROUPS` describes. Each module is imported when it is called.
HEADINGS: dict[str, dict[str, Command]] = {
    "Look": {
        "ls": Command("look:ls", "--sort size:desc --filter 'unused>7d'", (0, 1, 2, 10)),
        "show": Command("look:show", "'jit_train_step*'", (0, 1, 2, 10, 13)),
        "stats": Command(
            "look:stats", "--prometheus > /var/lib/node_exporter/jaxcache.prom", (0, 2, 10)
        ),
        "report": Command("look:report", "cache.html", (0, 1, 2, 10)),
    },
    "Fill": {
        "warm": Command(
            "fill:warm",
            "train.py --steps 1",
            (0, 1, 2, 10, 13, 130),
            "--cache-dir --fail-on-miss --python -m --portable --jobs --no-write --timeout --all "
            "--json",
            "panels:WarmCommand",
            interspersed=False,
        ),
        "run": Command(
            "fill:run",
            "--fail-on-miss -- ./train.sh",
            (0, 1, 2, 10, 13, 130),
            "--cache-dir --fail-on-miss --portable --no-write --live --guard --timeout --all "
            "--json",
            "panels:OptionalValueCommand",
            interspersed=False,
        ),
        "compile": Command(
            "fill:compile_",
            "train.recipe -C /var/cache/jax --jobs 8",
            (0, 1, 2, 3, 10, 13, 130),
        ),
        "target capture": Command("fill:target_capture", "h200.json", (0, 2, 13)),
        "target check": Command("fill:target_check", "h200.json", (0, 1, 2, 10, 13)),
        "target show": Command("fill:target_show", "h200.json", (0, 1, 2, 13)),
    },
    "Diagnose": {
        "explain": Command(
            "explain:explain",
            "train.py --width 96",
            (0, 1, 2, 10, 13),
            parser="explain:ExplainCommand",
        ),
        "doctor": Command("diagnose:doctor", "--python .venv/bin/python", (0, 1, 2, 10)),
        "where": Command(
            "diagnose:where", "-- python train.py --steps 1", (0, 2, 10, 13), interspersed=False
        ),
        "diff": Command("diagnose:diff", "host0.jxb host1.jxb", (0, 1, 2, 10)),
        "bug-report": Command("diagnose:bug_report", "> report.md", (0, 2)),
    },
    "Maintain": {
        "verify": Command("maintain:verify", "--fix", (0, 1, 2, 3, 10, 11, 13)),
        "seal": Command("maintain:seal", "--recompress 19", (0, 1, 2, 3, 10, 11)),
        "prune": Command(
            "maintain:prune",
            "--max-size 10GB --unused-for 30d --dry-run",
            (0, 1, 2, 3, 10, 11),
            "--max-size --unused-for --dry-run --yes --cache-dir --policy --keep-last --keep "
            "--filter --json",
        ),
        "rm": Command("maintain:rm", "'jit_step*' --dry-run", (0, 1, 2, 3, 10, 11)),
        "pin": Command("maintain:pin", "'jit_train_step*'", (0, 1, 2, 10)),
    },
    "Move": {
        "export": Command("move:export", "cache.jxb", (0, 1, 2, 3, 10, 12)),
        "import": Command(
            "move:import_", "cache.jxb --require-compatible", (0, 1, 2, 3, 10, 12, 13)
        ),
        "push": Command(
            "move:push",
            "s3://bucket/team/jax --exclude 'jit_debug*'",
            (0, 1, 2, 3, 10, 11, 12, 130),
        ),
        "pull": Command(
            "move:pull", "s3://bucket/team/jax --include 'jit_train*'", (0, 1, 2, 3, 10, 12, 130)
        ),
        "copy": Command("move:copy", "~/.cache/jax /mnt/usb/cache.jxb", (0, 1, 2, 3, 10, 12)),
        "ci key": Command("move:ci_key", "--hash-files 'src/**/*.py'", (0, 2, 13)),
        "ci restore": Command(
            "move:ci_restore", "cache.jxb --python .venv/bin/python", (0, 1, 2, 3, 10, 12, 13)
        ),
        "ci save": Command("move:ci_save", "cache.jxb --max-size 500MB", (0, 1, 2, 3, 10, 11, 12)),
    },
    "Advanced": {
        "trust here": Command("trust:here", "", (0, 1, 2, 11, 12)),
        "trust keygen": Command("trust:keygen", "ci > ci.pub", (0, 1, 2, 11, 12)),
        "trust add": Command("trust:add", "ci 'jaxcache-ed25519 AAAA…='", (0, 1, 2, 11, 12)),
        "trust list": Command("trust:show", "", (0, 1, 2, 11, 12)),
        "trust remove": Command("trust:remove", "ci", (0, 1, 2, 11, 12)),
        "completion": Command("completion:completion", "bash >> ~/.bashrc", (0, 2)),
    },
}
COMMANDS = {name: command for row in HEADINGS.values() for name, command in row.items()}
GROUPS = {
    "ci": "Restore and save a cache in a CI job.",
    "target": "Capture, check or show what the cache keys of a host depend on.",
    "trust": "Trust this project's settings; make a signing key; choose whose signatures count.",
}


def load(place: str) -> Any:
    """Import what is at ``FILE:NAME`` in this package."""
    file, _, name = place.partition(":")
    return getattr(import_module(f"jaxcache.cli.{file}"), name)


#: The default of a parameter that has none.
REQUIRED = ...


class Parameter(NamedTuple):
    """One parameter of an expanded command."""

    name: str
    type: Any
    declared: Option | None
    """None for the context of the parser."""
    default: Any = REQUIRED

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument, which its position identifies."""
        return self.declared is not None and not self.declared.names[0].startswith("-")


def expand_options(
    command: Callable[..., Any],
) -> tuple[Callable[..., Any], list[Parameter]]:
    """Replace each parameter of ``command`` that is a class of options by those it declares.

    Returns:
        A function that takes the values by keyword, and its parameters.
    """
    code = command.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    parameters: list[Parameter] = []
    classes: dict[str, type[Options]] = {}
    for name in names:
        kind = command.__annotations__[name]
        if isinstance(kind, type) and issubclass(kind, Options):
            classes[name] = kind
            for field, option in kind.DECLARED.items():
                default = None if option.kind is TEXTS else option.default
                parameters.append(Parameter(field, option.kind.type, option, default))
            continue
        declared = (command.__kwdefaults__ or {}).get(name)
        default = REQUIRED if declared is None or declared.is_required else declared.default
        parameters.append(Parameter(name, kind, declared, default))

    @wraps(command)
    def call(**values: Any) -> Any:
        for name, options in classes.items():
            declared = options.DECLARED.items()
            read = {field: o.read(values.pop(field, None)) for field, o in declared}
            values[name] = options(**read)
        try:
            return command(**values)
        except KeyboardInterrupt as error:  # of which the parser would make an end without a word
            raise InterruptError("interrupted") from error

    return call, parameters
