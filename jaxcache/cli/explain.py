"""``jaxcache explain``."""

import shlex
import signal
from collections.abc import Iterable, Sequence
from typing import Any

from jaxcache.cli.commands import COMMANDS, expand_options, load
from jaxcache.cli.opening import open_handle
from jaxcache.cli.output import Format, JsonOutput
from jaxcache.cli.parser import Parser
from jaxcache.errors import InterruptError, UsageError
from jaxcache.options import TEXTS, CacheLocation, option
from jaxcache.options.run import MODULE, CallOptions, ExplainOptions, WarmOptions
from jaxcache.store.location import absolute_location
from jaxcache.warm.programs import WarmProgram, is_program, is_script, program_of


class ExplainParser(Parser):
    """``explain``: options after a program that are not ours belong to the program."""

    def split(self, words: Iterable[str]) -> list[str]:
        """Leave options that are unknown to the program, if there is one.

        Raises:
            UsageError: one of them is an option of ``warm``, so that either may be meant.
        """
        typed = [*words]
        place = typed.index("--") if "--" in typed else len(typed)
        program = self._find_program(typed[:place])
        after = typed[place + 1 :]
        self.passes_unknown = program < place
        ours = self.options.keys() - {"-m"}
        for word in typed[program + 1 : place]:
            name = word.partition("=")[0]
            if name in _options_of_warm() - ours:
                raise UsageError(
                    f"{name} is an option of warm, which explain does not take after a program",
                    hint="where it is one of the program's own, write it after --",
                )
        arguments = super().split(typed)
        is_command = program == place and bool(after) and not is_script(after[0])
        self._is_command = is_command and arguments == after
        return arguments

    def values(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Add whether the words are a command line, because all of them come after ``--``."""
        return super().values(arguments) | {"is_command": self._is_command}

    def _find_program(self, words: list[str]) -> int:
        """The position of the word that names a program, or of ``-m``; that after all else."""
        position = 0
        while position < len(words):
            word = words[position]
            if word.split("=")[0] == "-m":
                return position
            if not word.startswith("-") or word == "-":
                return position if is_program(word) else len(words)
            takes_value = word in self.options and not self.options[word][1].is_flag
            position += 2 if takes_value else 1
        return len(words)


def _options_of_warm() -> set[str]:
    _, declared = expand_options(load(COMMANDS["warm"].place))
    return {name for option in declared.values() for name in option.names if name[0] == "-"}


def explain(
    *,
    is_command: bool,
    words: list[str] | None = option(
        "words [KEY [KEY] | SCRIPT [ARG]... | -- CMD...]",
        "One or two keys, a program with its options (after -- where they are spelt like ours), or "
        "any command.",
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
    command_line = words if is_command else []
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
    emit(output.form, explain_view(explanation, run.cache_dir, unfolded=options.all))
    if exit_code == -signal.SIGINT:
        raise InterruptError("interrupted; the explanation ends with the compile that was running")
    if exit_code:
        note(f"{program.name} ended with exit code {exit_code}")
