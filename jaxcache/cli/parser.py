"""Read the words after a command's name as the values of its parameters.

:class:`Parser` has the rules of every command; the others change whose the words are that follow
the name of a program.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import EnumType
from typing import Any, NoReturn, get_args

from jaxcache.errors import UsageError
from jaxcache.options import TEXTS, Option

#: What these options mean alone. A number or a duration may follow; what else does is the next
#: argument. A recipe is best collected with modules of 40 to 60 operations running for real.
ALONE = {"--fail-on-miss": "0", "--collect-only": "50"}
LIMIT = r"\d+(\.\d+)?\s*(ms|s|m|h|d|w)?"
#: How similar a misspelled option is, as :mod:`difflib` measures it.
_SIMILAR = 0.7
_NEAR = 0.85


class Parser:
    """The parser of a command.

    Args:
        path: the command as it is called: ``jaxcache ls``.
    """

    #: Whether options that no parameter declares are arguments.
    passes_unknown = False

    def __init__(self, path: str, declared: Mapping[str, Option]) -> None:
        self.path = path
        self.declared = declared
        self.options = {
            spelling: (name, option, meaning)
            for name, option in declared.items()
            if not option.is_argument
            for spellings in option.names
            for spelling, meaning in zip(spellings.split("/"), (True, False), strict=False)
        }
        """By each spelling: the name of its value, the option, and what it means as a flag."""
        self.inputs: dict[str, Any] = {}
        """By name: a text, a list of texts, or whether a flag is set."""

    def split(self, words: Iterable[str]) -> list[str]:
        """Take the options out of some words; return the arguments.

        Raises:
            UsageError: an option is not known, or lacks its value.
        """
        waiting = [*words]
        arguments: list[str] = []
        while waiting:
            word = waiting.pop(0)
            if word == "--":
                break
            if not word.startswith("-") or word == "-":
                arguments.append(word)
            elif word.startswith("--"):
                arguments += self._read_long(word, waiting)
            else:
                arguments += self._read_short(word, waiting)
            if self.ends_options(word, waiting):
                break
        return arguments + waiting

    def ends_options(self, word: str, following: list[str]) -> bool:  # noqa: ARG002
        """Whether no option of ours follows a word that was read."""
        return False

    def _read_long(self, word: str, waiting: list[str]) -> list[str]:
        """Read an option; return it where it is not one of ours."""
        name, equals, text = word.partition("=")
        if name not in self.options:
            return self._pass_on(name, word)
        if not self.options[name][1].is_flag:
            self._take(name, text if equals else self._next(name, waiting))
        elif equals:
            self.fail(f"Option '{name}' does not take a value")
        else:
            self._take(name)
        return []

    def _read_short(self, word: str, waiting: list[str]) -> list[str]:
        """Read options of one letter, the last one perhaps with its value: ``-lq``, ``-C.``."""
        unknown = ""
        for end, letter in enumerate(word[1:], 2):
            name = f"-{letter}"
            if name not in self.options:
                self._pass_on(name, name)
                unknown += letter
                continue
            if not self.options[name][1].is_flag:
                self._take(name, word[end:] or self._next(name, waiting))
                break
            self._take(name)
        return [f"-{unknown}"] if unknown else []

    def _pass_on(self, name: str, word: str) -> list[str]:
        if self.passes_unknown:
            return [word]
        from difflib import get_close_matches

        near = get_close_matches(name, [n for n in self.options if n[:2] == "--"], 1, _SIMILAR)
        hint = f"did you mean {near[0]}?" if near else None
        if name == "--unused-for" and "--filter" in self.options:
            hint = "write --filter 'unused>7d' for what was not used for 7 days"
        return self.fail(f"No such option: {name}", hint)

    def _next(self, name: str, waiting: list[str]) -> str:
        """Return the value of an option that stands apart from it."""
        if name in ALONE and not re.fullmatch(LIMIT, waiting[0] if waiting else ""):
            return ALONE[name]
        if not waiting:
            self.fail(f"Option '{name}' requires an argument")
        return waiting.pop(0)

    def _take(self, spelling: str, text: str = "") -> None:
        name, option, meaning = self.options[spelling]
        if option.kind is TEXTS:
            self.inputs.setdefault(name, []).append(text)
        else:
            self.inputs[name] = meaning if option.is_flag else text

    def values(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the value of each parameter, after :meth:`split` has returned the arguments.

        Raises:
            UsageError: a value is invalid or missing, or there are too many arguments.
        """
        unplaced = [*arguments]
        for name, option in self.declared.items():
            if option.is_argument and unplaced:
                is_list = option.kind is TEXTS
                self.inputs[name] = unplaced if is_list else unplaced[0]
                unplaced = [] if is_list else unplaced[1:]
        if unplaced:
            self.fail(f"Got unexpected extra argument(s) ({' '.join(unplaced)})")
        values = {name: self._convert(self.declared[name], v) for name, v in self.inputs.items()}
        for name, option in self.declared.items():
            if name not in values and option.is_required:
                self.fail(f"Missing argument '{option.metavar}'")
            values.setdefault(name, option.default)
        return values

    def _convert(self, option: Option, value: Any) -> Any:
        choices = (*get_args(option.kind.type), option.kind.type)[0]
        if option.kind.type in (int, int | None):
            low = option.settings.get("min", 0)
            high = option.settings.get("max")
            rule = f"a whole number{f' from {low} to {high}' if high else f' of at least {low}'}"
            number = int(value) if re.fullmatch(r"[+-]?\d{1,18}", value) else None
            if number is not None and low <= number <= (high or number):
                return number
        elif isinstance(choices, EnumType):
            rule = f"one of {', '.join(choices)}"
            if value in [*choices]:
                return choices(value)
        else:
            return value
        name = option.metavar if option.is_argument else option.names[0]
        return self.fail(f"{name} must be {rule} (got {value!r})")

    def fail(self, message: str, hint: str | None = None) -> NoReturn:
        """Refuse the words.

        Raises:
            UsageError
        """
        raise UsageError(message, hint=hint or f"see {self.path} --help")


class ProgramParser(Parser):
    """``run``: what follows the name of a program, or of a module, is its own."""

    def ends_options(self, word: str, following: list[str]) -> bool:
        """Whether a program begins with this word; name the options behind it that look ours."""
        if word == "-m":
            self._note_lost(self.inputs["module"], following)
            return True
        if (word.startswith("-") and word != "-") or self.takes_options_after(word):
            return False
        if following[:1] == ["--"] and "script" in self.declared:
            del following[0]
        else:
            self._note_lost(word, following)
        return True

    def takes_options_after(self, program: str) -> bool:  # noqa: ARG002
        """Whether what follows the program is ours, too."""
        return False

    def _note_lost(self, program: str, arguments: Iterable[str]) -> None:
        """Name the options of the program that are spelled as ours are, once.

        A near miss of an assertion counts, too: without it, a run that should fail passes.
        """
        from difflib import get_close_matches

        ours = self.options.keys() - {"--help", "-h"}
        assertions = [n for n, (_, o, _) in self.options.items() if o.panel == "Assertions"]
        names = [a.partition("=")[0] for a in arguments if a.startswith("-")]
        lost = [n for n in names if n in ours or get_close_matches(n, assertions, 1, _NEAR)]
        if lost:
            from jaxcache.cli.output import note

            was = "was" if len(lost) == 1 else "were"
            text = ", ".join(dict.fromkeys(lost))
            note(f"note: {text} {was} passed to {program}; options for jaxcache go before it")


class WarmParser(ProgramParser):
    """``warm``: what follows a script is the script's own, what follows a function is ours."""

    def takes_options_after(self, program: str) -> bool:
        """A function has arguments of its own only as options of ours."""
        from jaxcache.warm.programs import is_function

        return is_function(program)
