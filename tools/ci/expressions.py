"""GitHub's expressions, as far as the examples use them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[\w.-]+|==|!=|&&|\|\||[!(),])")


def evaluate(text: str, contexts: Mapping[str, Any]) -> Any:
    """The value of an expression: literals, contexts, ``== != && || !``, and a few functions."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", "", text):
        raise ValueError(f"cannot read the expression {text!r}")
    value, rest = _either(tokens, contexts)
    if rest:
        raise ValueError(f"{rest} is left of {text!r}")
    return value


def _either(tokens: list[str], contexts: Mapping[str, Any]) -> tuple[Any, list[str]]:
    value, tokens = _both(tokens, contexts)
    while tokens[:1] == ["||"]:
        other, tokens = _both(tokens[1:], contexts)
        value = value if truthy(value) else other
    return value, tokens


def _both(tokens: list[str], contexts: Mapping[str, Any]) -> tuple[Any, list[str]]:
    value, tokens = _equal(tokens, contexts)
    while tokens[:1] == ["&&"]:
        other, tokens = _equal(tokens[1:], contexts)
        value = other if truthy(value) else value
    return value, tokens


def _equal(tokens: list[str], contexts: Mapping[str, Any]) -> tuple[Any, list[str]]:
    value, tokens = _single(tokens, contexts)
    if tokens[:1] in (["=="], ["!="]):
        other, rest = _single(tokens[1:], contexts)
        return (show(value).lower() == show(other).lower()) == (tokens[0] == "=="), rest
    return value, tokens


def _single(tokens: list[str], contexts: Mapping[str, Any]) -> tuple[Any, list[str]]:
    first, rest = tokens[0], tokens[1:]
    if first == "!":
        value, rest = _single(rest, contexts)
        return not truthy(value), rest
    if first == "(":
        value, rest = _either(rest, contexts)
        return value, rest[1:]
    if first.startswith("'"):
        return first[1:-1].replace("''", "'"), rest
    if rest[:1] == ["("]:
        arguments, rest = [], rest[1:]
        while rest[0] != ")":
            value, rest = _either(rest, contexts)
            arguments.append(value)
            rest = rest[1:] if rest[0] == "," else rest
        return _FUNCTIONS[first](contexts, *arguments), rest[1:]
    if first in ("true", "false"):
        return first == "true", rest
    value: Any = contexts
    for part in first.split("."):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    return value, rest


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "always": lambda _: True,
    "success": lambda contexts: not contexts["failed"],
    "failure": lambda contexts: contexts["failed"],
    "format": lambda _, text, *values: text.format(*values),
}


def truthy(value: Any) -> bool:
    """As GitHub's conditions see a value."""
    return value not in ("", False, None, 0)


def show(value: Any) -> str:
    """A value as text."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
