"""Man pages, settings, schemas: in step with the commands, and good in the real programs."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, clean_environment
from processes import sh
from schemas import SCHEMAS, check_document

from jaxcache.cli.commands import COMMANDS
from jaxcache.live.settings import SETTINGS, variable
from tools.generate.commands import read_command
from tools.generate.configuration import INTERNAL, LIVE_TEXTS, VARIABLE_TEXTS, variables_in
from tools.generate.schemas import MEANINGS, field_tables


def test_the_pages_on_settings_and_on_security_have_every_variable() -> None:
    """On security settings of the live layer are one row, ``JAXCACHE_LIVE_NAME``."""
    read = variables_in(REPOSITORY / "jaxcache")
    others = set(VARIABLE_TEXTS) | INTERNAL
    assert others <= read <= others | {variable(name) for name in SETTINGS}
    assert set(LIVE_TEXTS) == set(SETTINGS)
    table = (REPOSITORY / "SECURITY.md").read_text().partition("| variable |")[2]
    rows = set(re.findall(r"`(JAXCACHE_[A-Z_]+)`", table.partition("\n\n")[0]))
    settings = {name for name in read if name.startswith("JAXCACHE_LIVE_")}
    assert read - settings == rows - {"JAXCACHE_LIVE_NAME"}


def test_what_is_committed_is_what_is_generated() -> None:
    done = sh([sys.executable, REPOSITORY / "tools" / "gen.py", "--check"])
    assert (done.returncode, done.stdout) == (0, "")


def test_manual_pages_have_a_whole_sentence_each_and_no_warning(tmp_path: Path) -> None:
    pages = sorted((REPOSITORY / "man").glob("*.1"))
    assert len(pages) == len(COMMANDS) + 1
    names = [page.read_text("utf-8").partition(".SH NAME\n")[2] for page in pages]
    lines = [name.partition("\n")[0] for name in names]
    assert [line for line in lines if not line or line.endswith("...") or ". " in line] == []
    if not shutil.which("man"):
        pytest.skip("man is not installed")
    done = sh(
        ["man", "--warnings", "-E", "UTF-8", "-l", *pages],
        env=clean_environment(tmp_path) | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
    )
    assert (done.stderr, done.stdout.count("EXIT STATUS")) == ("", len(pages))


# ``docs/schemas/``; every output that a test reads is held to them, too.


NAMES = sorted(path.stem for path in SCHEMAS.iterdir())


def test_every_command_with_json_has_a_schema() -> None:
    commands = map(read_command, COMMANDS)
    printing = {c.name for c in commands if any("--json" in o.names for o in c.options)}
    files = {name.replace(" ", "-") for name in printing}
    assert files | {"error", "version"} == set(NAMES)


def _fields(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field of a schema, with its own schema."""
    for part in schema if isinstance(schema, list) else schema.values():
        if isinstance(part, dict | list):
            yield from _fields(part)
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()


def test_every_field_has_a_meaning_and_every_meaning_is_of_a_field() -> None:
    schemas = [json.loads(path.read_text("utf-8")) for path in SCHEMAS.iterdir()]
    fields = [pair for schema in schemas for pair in _fields(schema)]
    assert {name for name, field in fields if "description" not in field} == set()
    meanings = {(name, text) for table in MEANINGS.values() for name, text in table.items()}
    assert meanings - {(name, field["description"]) for name, field in fields} == set()


def test_the_page_on_json_links_to_each_schema_and_the_site_lists_its_fields() -> None:
    page = (REPOSITORY / "docs" / "json.md").read_text("utf-8")
    same = {f"trust-{name}" for name in ("here", "keygen", "add", "remove")}
    assert {*re.findall(r"\(schemas/([a-z-]+)\.json\)", page)} | same == set(NAMES)
    tables = field_tables()
    assert all(f"`{name}`" in tables for name in NAMES)
    assert "| `summary.phases.trace_seconds` | number | " in tables


#: Fields and values that are new, which a published schema admits, and values of another type.
_NEW = {"colour": "red", "codec": "gzip"}
_WRONG = {"size_bytes": "12 kB", "module": None, "created_at": 1}


def test_a_change_of_a_field_is_noticed(run_cli: RunCli, corpus: Path) -> None:
    listed = json.loads(run_cli("ls", "--json", "-C", corpus / "0.10.2-cpu-zstd").stdout)
    entry = listed["entries"][0]
    changes = [entry | {name: value} for name, value in (_NEW | _WRONG).items()]
    changes.append({name: value for name, value in entry.items() if name != "target"})
    for change in changes:
        with pytest.raises(AssertionError, match=r"docs/schemas/ls\.json"):
            check_document("ls", listed | {"entries": [change]})
    check_document("ls", listed | {"entries": [entry | _NEW]}, strict=False)
