"""Hold a printed document to its published schema, and to nothing beyond it."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
#: Longer documents hold more of the same, and take seconds.
_MAX_CHARACTERS = 200_000


def check_output(words: Sequence[str], stdout: str, stderr: str) -> None:
    """Fail where what a command line printed under ``--json`` is not as its schema says."""
    ours = list(words[: words.index("--")]) if "--" in words else list(words)
    if "--json" not in ours:
        return
    if stderr.startswith('{"error":'):
        check_document("error", json.loads(stderr.splitlines()[0]))
    name = command_of(ours)
    if name and stdout.startswith("{") and len(stdout) < _MAX_CHARACTERS:
        check_document(name, json.loads(stdout))


def command_of(words: Sequence[str]) -> str | None:
    """Return the command of a command line whose options before it have no separate value."""
    plain = [word for word in words if not word.startswith("-")]
    names = ["version"] if "--version" in words else ["-".join(plain[:n]) for n in (2, 1)]
    return next((name for name in names if (SCHEMAS / f"{name}.json").is_file()), None)


def check_document(
    name: str, document: Any, directory: Path = SCHEMAS, *, strict: bool = True
) -> None:
    """Fail where a document has another field, or a field of another type, than its schema.

    Args:
        strict: also where it has a field or a value that the schema does not name.
    """
    error = best_match(_validator(directory / f"{name}.json", strict).iter_errors(document))
    if error is not None:
        at = "/".join(map(str, error.absolute_path))
        raise AssertionError(
            f"docs/schemas/{name}.json at {at or 'the top'}: {error.message[:2000]}\n"
            "a new field is in its class or in tools/generate/documents.py, and its meaning in "
            "tools/generate/meanings.toml; then run tools/gen.py"
        )


@cache
def _validator(path: Path, strict: bool) -> Draft202012Validator:
    schema = json.loads(path.read_text("utf-8"))
    schema = _closed(schema) if strict else schema
    return Draft202012Validator(schema, format_checker=FormatChecker())


def _closed(schema: Any) -> Any:
    """Return a schema that admits only the fields and values that it names."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if "properties" in closed:
        closed["additionalProperties"] = False
    if "examples" in closed:
        closed["enum"] = closed.pop("examples")
    return closed
