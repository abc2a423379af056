"""``jaxcache explain``."""

import os
from typing import Annotated, Any

import typer

from jaxcache.api import Cache
from jaxcache.cli.opening import open_handle
from jaxcache.cli.options import Format, JsonOutput
from jaxcache.cli.panels import PanelCommand
from jaxcache.errors import NoCacheError, UsageError
from jaxcache.options import CacheLocation
from jaxcache.options.declare import TEXTS, option
from jaxcache.options.query import ExplainOptions
from jaxcache.store.location import absolute_location

EXAMPLE = "jaxcache explain train.py --width 96"
EXIT_CODES = (0, 1, 2, 10, 13)
#: A side that ends so is a program.
_PROGRAMS = (".py", ".ipynb")
#: A side that ends so is a file, not a key.
_FILES = (".json", ".jsonl", ".recipe")


#: Whether the words are a command line, because all of them come after ``--``.
_COMMAND = "jaxcache.explain.command"


class ExplainCommand(PanelCommand):
    """``explain``: options after a script that are not ours belong to the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave options that are unknown to the script, if there is one."""
        place = args.index("--") if "--" in args else len(args)
        before = args[:place]
        after = args[place + 1 :]
        ctx.ignore_unknown_options = any(word.endswith(_PROGRAMS) for word in before)
        remaining = super().parse_args(ctx, args)
        sides = [*(ctx.params.get("sides") or ())]
        if after and sides == after and not after[0].endswith(_PROGRAMS):
            ctx.meta[_COMMAND] = True
        return remaining


COMMAND_CLASS = "explain:ExplainCommand"


def command(
    context: typer.Context,
    sides: Annotated[
        list[str] | None,
        option(
            "sides",
            TEXTS,
            "Saved runs (warm --json, a recipe), keys, caches, a "
            "script with its options (after -- where they are spelt like ours), or any command.",
            metavar="[LEFT RIGHT | KEY | SCRIPT [ARG]... | -- CMD...]",
            show_default=False,
        ),
    ] = None,
    *,
    place: CacheLocation,
    options: ExplainOptions,
    output: JsonOutput,
) -> None:
    """Explain why a script would compile, or why two runs, keys or caches differ.

    With SCRIPT and its options, or a command: which modules the cache lacks, and what differs from
    the nearest entry. Runs it without writing to the cache. If everything hits now, it shows why
    each entry was compiled when it was written.
    """
    from jaxcache.cli.output import emit, note
    from jaxcache.render.explain import churn_view, explain_view

    cache = open_handle(place)
    words = sides or []
    command_line = words if context.meta.get(_COMMAND) else []
    if words and not command_line and words[0].startswith("-"):
        raise UsageError(f"No such option: {words[0]}")
    missing = [s for s in words if s.endswith(_FILES) and not os.path.exists(s)]
    if len(words) <= 2 and missing and not command_line:
        raise UsageError(
            f"no such file: {', '.join(missing)}",
            hint="save a run with: jaxcache warm --json SCRIPT > FILE",
        )
    if options.churn:
        if words:
            raise UsageError("--churn cannot be combined with arguments")
        churn = cache.churn()
        what = "MODULE" if cache.layout.single_file_entries else "FUNCTION"
        emit(output.form, churn_view(churn, cache.store.url, what=what))
        return
    if not command_line and len(words) in (1, 2) and _are_keys(cache, words):
        explanation = cache.explain(*words)
        emit(output.form, explain_view(explanation, cache.store.url, unfolded=options.all))
        return
    path = cache.location.path
    if command_line or (words and words[0].endswith(_PROGRAMS)):
        if place.cache_dir is not None and cache.compiler != "torch":
            _ = cache.store  # no cache there: the program need not run
        from jaxcache.api.compiling import runner_of
        from jaxcache.options.run import WarmOptions

        run = WarmOptions(
            cache_dir=absolute_location(path),
            jax_cache_dir=cache.spelling or absolute_location(path),
            python=options.python,
            portable=options.portable,
            stdout_to_stderr=output.form is not Format.TABLE,
        )
        explain_script = runner_of(cache.compiler).explain_script
        if command_line:
            if cache.compiler == "torch":
                raise UsageError("explain -- CMD is for JAX's cache: name a script for torch")
            explanation, exit_code = explain_script("", (), run, command=command_line)
        else:
            explanation, exit_code = explain_script(words[0], words[1:], run)
        emit(output.form, explain_view(explanation, run.cache_dir, unfolded=options.all))
        if exit_code:
            note(f"{words[0]} ended with exit code {exit_code}")
    elif len(words) in (1, 2):
        from jaxcache.cache.explain.arguments import explain_keys

        explanation = explain_keys(words, path, explicit=place.cache_dir is not None)
        emit(output.form, explain_view(explanation, path, unfolded=options.all))
    else:
        raise UsageError(
            "explain needs two sides, a script, a key, or --churn",
            hint=f"a side is a saved run, a key, or a cache directory ({os.sep} in its name)",
        )


def _are_keys(cache: Cache, sides: list[str]) -> bool:
    """Whether what is compared are keys in a cache that is there."""
    if any(os.path.exists(side) or side.endswith(_PROGRAMS) for side in sides):
        return False
    try:
        return bool(cache.layout)
    except NoCacheError:
        cache.refuse_caches_below()
        return False  # there may be no need of one
