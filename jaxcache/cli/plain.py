"""Read a plain command line without the parser, whose import takes longer than most commands.

Words are plain if their meaning is certain: a command, its options as they are declared, each with
its value, and its arguments. Help, mistakes, short options joined together and options
before the command are left to the parser, which reads all the others in the same way.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from jaxcache import __version__
from jaxcache.cli.commands import COMMANDS, REQUIRED, Parameter, expand_options, load

#: How the options that make a run fail begin, also where they are misspelled further on.
_ASSERTING = ("--fai", "--str", "--che")
#: What these options mean alone. A number or a duration may follow; what else does is the next
#: argument. A recipe is best collected with modules of 40 to 60 operations running for real.
ALONE = {"--fail-on-miss": "0", "--collect-only": "50"}
LIMIT = r"\d+(\.\d+)?\s*(ms|s|m|h|d|w)?"
_FLAGS = (bool, bool | None)
_TEXTS = (str, str | None)
_LISTS = (list[str], list[str] | None)
_NUMBERS = (int, int | None)
#: Options that the parser adds to every command.
_SHARED = ("--color", "--debug", "--requests")


class _NotPlainError(Exception):
    """The parser has to read it."""


def read_plain(words: Sequence[str]) -> "partial[Any] | None":
    """Return the call that a command line means; None where the parser has to read it."""
    if words == ["--version"]:
        return partial(print, f"jaxcache {__version__}")
    name = next((n for n in (" ".join(words[:2]), *words[:1]) if n in COMMANDS), None)
    if name is None:
        return None
    row = COMMANDS[name]
    command, parameters = expand_options(load(row.place))
    try:
        values = _Reader(parameters, interspersed=row.interspersed).read(
            [*words[len(name.split()) :]]
        )
    except _NotPlainError:
        return None
    return partial(command, **values)


class _Reader:
    """Reads the words after the name of a command."""

    def __init__(self, parameters: Sequence[Parameter], *, interspersed: bool) -> None:
        self._values: dict[str, Any] = {p.name: p.default for p in parameters}
        self._arguments = [p for p in parameters if p.is_argument]
        self._options: dict[str, tuple[Parameter, bool]] = {}
        self._interspersed = interspersed
        for parameter in parameters:
            if parameter.declared is None:
                raise _NotPlainError
            for names in () if parameter.is_argument else parameter.declared.names:
                for name, meaning in zip(names.split("/"), (True, False), strict=False):
                    self._options[name] = parameter, meaning

    def read(self, words: list[str]) -> dict[str, Any]:
        """Return the value of each parameter.

        Raises:
            _NotPlainError
        """
        arguments: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                arguments += words
                break
            if word.startswith("-") and word != "-":
                self._read_option(word, words)
                if word != "-m":
                    continue
            else:
                arguments.append(word)
                if self._interspersed:
                    continue
                if ":" in word:  # perhaps a function, whose options are ours
                    raise _NotPlainError
            names = (*self._options, *_SHARED)
            if word != "-m" and words[:1] == ["--"] and "script" in self._values:
                words.pop(0)  # what follows is the script's, as explain takes it
            elif any(w.partition("=")[0] in names or w.startswith(_ASSERTING) for w in words):
                raise _NotPlainError  # the parser notes whose they are
            arguments += words
            break
        self._place(arguments)
        if REQUIRED in self._values.values():
            raise _NotPlainError
        return self._values

    def _read_option(self, word: str, words: list[str]) -> None:
        """Read an option, and take its value from the words that follow."""
        name, equals, text = word.partition("=")
        if name not in self._options or (equals and not name.startswith("--")):
            raise _NotPlainError
        parameter, meaning = self._options[name]
        if parameter.type in _FLAGS:
            if equals:
                raise _NotPlainError
            self._values[parameter.name] = meaning
            return
        following = words[0] if words else ""
        if not equals and name in ALONE and not re.fullmatch(LIMIT, following):
            text = ALONE[name]
        elif not equals:
            if following.startswith("-"):
                raise _NotPlainError
            text = following
            del words[:1]
        self._set(parameter, [text])

    def _place(self, arguments: list[str]) -> None:
        """Give each argument its words, in order."""
        for parameter in self._arguments:
            if parameter.type in _LISTS:
                some, arguments = arguments, []
            else:
                some, arguments = arguments[:1], arguments[1:]
            if some:
                self._set(parameter, some)
        if arguments:
            raise _NotPlainError

    def _set(self, parameter: Parameter, texts: list[str]) -> None:
        declared = parameter.declared
        value: Any = texts[0]
        if not all(texts) or declared is None:
            raise _NotPlainError
        if parameter.type in _LISTS:
            before = self._values[parameter.name]
            value = [*(() if before in (None, REQUIRED) else before), *texts]
        elif parameter.type in _NUMBERS:
            if not re.fullmatch(r"\d{1,9}", value):
                raise _NotPlainError
            value = int(value)
            settings = declared.settings
            if not settings.get("min", value) <= value <= settings.get("max", value):
                raise _NotPlainError
        elif parameter.type not in _TEXTS:
            raise _NotPlainError
        self._values[parameter.name] = value
