"""``jaxcache explain``."""

import shlex
import signal
from typing import Any

import typer

from jaxcache.cli.opening import open_handle
from jaxcache.cli.output import Format, JsonOutput
from jaxcache.cli.panels import OptionalValueCommand
from jaxcache.errors import InterruptError, UsageError
from jaxcache.options import TEXTS, CacheLocation, option
from jaxcache.options.run import MODULE, CallOptions, ExplainOptions, WarmOptions
from jaxcache.store.location import absolute_location
from jaxcache.warm.programs import WarmProgram, is_program, is_script, program_of

#: Whether the words are a command line, because all of them come after ``--``.
_COMMAND = "jaxcache.explain.command"


class ExplainCommand(OptionalValueCommand):
    """``explain``: what follows a program is the program's own, as for ``warm``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Tell a command after ``--`` from a program and its own options."""
        after = args[args.index("--") + 1 :] if "--" in args else []
        remaining = super().parse_args(ctx, args)
        is_all = bool(after) and after == [*(ctx.params.get("words") or ())]
        ctx.meta[_COMMAND] = is_all and not ctx.params["module"] and not is_script(after[0])
        return remaining

    def takes_options_after(self, program: str) -> bool:
        """A key has no options of its own."""
        return not is_program(program)


def explain(
    *,
    context: typer.Context,
    words: list[str] | None = option(
        "words [KEY [KEY] | SCRIPT [ARG]... | -- CMD...]",
        "One or two keys, a program with its options (ours go before it), or any command.",
        TEXTS,
        show_default=False,
    ),
    module: str | None = MODULE,
    place: CacheLocation,
    options: ExplainOptions,
    output: JsonOutput,
) -> None:
    """Explain why a script would compile, why a key was compiled, or why two keys differ.

    With SCRIPT (any program that warm takes, - for standard input) and its options, or a command:
    which modules the cache lacks, and what differs from the nearest entry. Runs it without writing
    to the cache. If everything hits now, it shows why each entry was compiled when it was written.
    """
    from jaxcache.cli.output import emit, note
    from jaxcache.render.explain import churn_view, explain_view

    cache = open_handle(place)
    words = words or []
    command_line = words if context.meta.get(_COMMAND) else []
    is_run = bool(command_line or module or (words and is_program(words[0])))
    if words and not is_run and words[0].startswith("-"):
        raise UsageError(f"No such option: {words[0]}")
    if options.churn:
        if words or module:
            raise UsageError("--churn cannot be combined with arguments")
        churn = cache.churn()
        what = "MODULE" if cache.layout.single_file_entries else "FUNCTION"
        emit(output.form, churn_view(churn, cache.store.url, what=what))
        return
    if not is_run:
        explanation = cache.explain(*words)
        emit(output.form, explain_view(explanation, cache.store.url, unfolded=options.all))
        return
    path = cache.location.path
    if place.cache_dir is not None and cache.compiler != "torch":
        _ = cache.store  # no cache there: the program need not run
    from jaxcache.api.compiling import runner_of

    run = WarmOptions(
        cache_dir=absolute_location(path),
        jax_cache_dir=cache.spelling or absolute_location(path),
        python=options.python,
        portable=options.portable,
        stdout_to_stderr=output.form is not Format.TABLE,
    )
    explain_script = runner_of(cache.compiler).explains.explain_script
    program = WarmProgram(shlex.join(command_line))
    if not command_line:
        script = None if module else words.pop(0)
        program = program_of(script, words, CallOptions(), module=module)
        explanation, exit_code = explain_script(program, run)
    elif cache.compiler == "torch":
        raise UsageError("explain -- CMD is for JAX's cache: name a script for torch")
    else:
        explanation, exit_code = explain_script(program, run, command=command_line)
    if exit_code == -signal.SIGINT and not explanation.comparisons:
        raise InterruptError("interrupted before a difference was found")
    emit(output.form, explain_view(explanation, run.cache_dir, unfolded=options.all))
    if exit_code == -signal.SIGINT:
        raise InterruptError("interrupted; the explanation ends with the compile that was running")
    if exit_code:
        note(f"{program.name} ended with exit code {exit_code}")
