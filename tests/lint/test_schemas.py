"""The schemas of ``docs/schemas/``; every output that a test reads is held to them, too."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli
from jsonschema import Draft202012Validator
from schemas import SCHEMAS, check_document, command_of

from jaxcache.cli.app import COMMANDS
from tools.generate.commands import read_command
from tools.generate.schemas import MEANINGS, field_tables

NAMES = sorted(path.stem for path in SCHEMAS.iterdir())


def test_every_command_with_json_has_a_schema() -> None:
    commands = map(read_command, COMMANDS)
    printing = {c.name for c in commands if any("--json" in o.names for o in c.options)}
    files = {name.replace(" ", "-") for name in printing}
    assert files | {"error", "version"} == set(NAMES)


def test_each_schema_is_one_and_has_its_address() -> None:
    for name in NAMES:
        schema = json.loads((SCHEMAS / f"{name}.json").read_text("utf-8"))
        Draft202012Validator.check_schema(schema)
        assert schema["$id"].endswith(f"/docs/schemas/{name}.json")


def _fields(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field of a schema, with its own schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from _fields(part)
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for part in schema.values():
            yield from _fields(part)


def _all_fields() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in SCHEMAS.iterdir():
        yield from _fields(json.loads(path.read_text("utf-8")))


def test_every_field_has_a_meaning() -> None:
    assert {name for name, field in _all_fields() if "description" not in field} == set()


def test_every_meaning_is_of_a_field() -> None:
    meanings = {(name, text) for table in MEANINGS.values() for name, text in table.items()}
    used = {(name, field["description"]) for name, field in _all_fields()}
    assert meanings - used == set()


def test_the_page_on_json_links_to_each_schema_and_the_site_lists_its_fields() -> None:
    page = (REPOSITORY / "docs" / "json.md").read_text("utf-8")
    same = {f"trust-{name}" for name in ("here", "keygen", "add", "remove")}
    assert {*re.findall(r"\(schemas/([a-z-]+)\.json\)", page)} | same == set(NAMES)
    tables = field_tables()
    assert all(f"`{name}`" in tables for name in NAMES)
    assert "| `summary.phases.trace_seconds` | number | " in tables


@pytest.fixture
def listing(run_cli: RunCli, corpus: Path) -> Any:
    return json.loads(run_cli("ls", "--json", "-C", corpus / "0.10.2-cpu-zstd").stdout)


#: A field and a value that are new.
NEW = {"colour": "red", "codec": "gzip"}
#: Values of another type.
WRONG = {"size_bytes": "12 kB", "module": None, "created_at": 1}


@pytest.mark.parametrize(("name", "value"), (NEW | WRONG).items())
def test_a_change_of_a_field_is_noticed(listing: Any, name: str, value: Any) -> None:
    check_document("ls", listing)
    listing["entries"][0][name] = value
    with pytest.raises(AssertionError, match=r"docs/schemas/ls\.json"):
        check_document("ls", listing)


def test_a_field_that_is_missing_is_noticed(listing: Any) -> None:
    del listing["entries"][0]["target"]
    with pytest.raises(AssertionError, match=r"docs/schemas/ls\.json"):
        check_document("ls", listing)


def test_a_published_schema_admits_new_fields_and_values(listing: Any) -> None:
    schema = json.loads((SCHEMAS / "ls.json").read_text("utf-8"))
    listing["entries"][0] |= NEW
    Draft202012Validator(schema).validate(listing)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("ls", "-C", "x", "--json"), "ls"),
        (("ci", "key", "--json"), "ci-key"),
        (("-C", "x", "ls", "--json"), None),
        (("--version", "--json"), "version"),
        (("completion", "bash"), None),
    ],
)
def test_a_command_line_leads_to_its_schema(words: tuple[str, ...], name: str | None) -> None:
    assert command_of(words) == name
