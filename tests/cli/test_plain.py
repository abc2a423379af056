"""Plain command lines, which are read without the parser: it reads the same in them."""

import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cli.app import load_command
from jaxcache.cli.commands import COMMANDS, REQUIRED, expand_options, load
from jaxcache.cli.plain import read_plain

#: They look at where the words stand, or take a word of a few.
NOT_PLAIN = {"explain", "completion"}


def plain_lines(name: str) -> Iterator[list[str]]:
    """Yield a line for each option of a command, in all its spellings, and one without options."""
    _, parameters = expand_options(load(COMMANDS[name].place))
    needed = ["a" for p in parameters if p.is_argument and p.default is REQUIRED]
    if not COMMANDS[name].interspersed:
        needed = ["--", "program", "--long", "-x"]
    yield needed
    for parameter in parameters:
        if parameter.is_argument or parameter.declared is None:
            continue
        for spelling in [n for names in parameter.declared.names for n in names.split("/")]:
            if parameter.declared.kind.type in (bool, bool | None):
                yield [spelling, *needed]
                continue
            value = "3" if parameter.type in (int, int | None) else "text"
            if spelling != "-m":
                yield [spelling, value, *needed]
            if spelling.startswith("--"):
                yield [f"{spelling}={value}", f"{spelling}={value}", *needed]


@lru_cache
def parser_of(name: str) -> Any:
    """The parser of a command."""
    return load_command(name)


def parsed(name: str, words: list[str]) -> dict[str, Any]:
    """What the parser makes of the words of a command."""
    context = parser_of(name).make_context(name, [*words])
    return {n: _listed(v) for n, v in context.params.items()}


def _listed(value: Any) -> Any:
    return [*value] or None if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in NOT_PLAIN])
def test_the_parser_reads_the_same_in_every_option(name: str) -> None:
    for words in plain_lines(name):
        call = read_plain([*name.split(), *words])
        assert call is not None, words
        assert {n: _listed(v) for n, v in call.keywords.items()} == parsed(name, words), words


VALUES = [
    "3",
    "0",
    "-1",
    "text",
    "",
    "-",
    "--",
    "2s",
    "a=b",
    "a:b",
    "step.py",
    "-lq",
    "--js",
    "-C.",
    "é",
]


@lru_cache
def vocabulary(name: str) -> list[str]:
    """Words that may follow a command: its options, alone and with a value, and others."""
    options = [n for p in parser_of(name).params if p.param_type_name == "option" for n in p.opts]
    secondary = [n for p in parser_of(name).params for n in p.secondary_opts]
    spelt = [*options, *secondary]
    return [*VALUES, *spelt, *(f"{n}={v}" for n in spelt for v in ("3", "text", ""))]


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command and some words, of which one in two is a plain value."""
    name = draw(st.sampled_from([*COMMANDS]))
    word = st.sampled_from(["3", "text"]) | st.sampled_from(vocabulary(name))
    return name, draw(st.lists(word, max_size=4))


@settings(max_examples=2000, deadline=None)
@given(lines())
def test_the_parser_reads_the_same_in_any_line_that_is_plain(line: tuple[str, list[str]]) -> None:
    name, words = line
    call = read_plain([*name.split(), *words])
    if call is not None:
        with redirect_stderr(io.StringIO()) as notes:
            assert {n: _listed(v) for n, v in call.keywords.items()} == parsed(name, words)
        assert notes.getvalue() == ""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nothing",
        "-C . ls",
        "ls --help",
        "ls -lq",
        "ls -C.",
        "ls --limit two",
        "ls --sort",
        "verify --jobs 0",
        "diff a",
        "warm train.py --json",
        "warm models.py:step --arg f32[8]",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(line: str) -> None:
    assert read_plain(line.split(" ")) is None
