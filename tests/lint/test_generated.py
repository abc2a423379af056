"""Completions, man pages, schemas: in step with the commands, and good in the real programs."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli, clean_environment
from jsonschema import Draft202012Validator
from processes import sh
from schemas import SCHEMAS, check_document
from terminal import Terminal

from jaxcache.cache.listing import _GROUPS
from jaxcache.cache.selection import _SORTS
from jaxcache.cli.commands import COMMANDS
from jaxcache.cli.complete import complete_keys
from jaxcache.core.names import parse_key
from jaxcache.live.settings import SETTINGS, variable
from jaxcache.options import GROUP_FIELDS, SORT_FIELDS
from tools.generate.commands import read_command
from tools.generate.configuration import INTERNAL, LIVE_TEXTS, VARIABLE_TEXTS, variables_in
from tools.generate.schemas import MEANINGS, field_tables

COMPLETIONS = REPOSITORY / "completions"


def test_a_manual_page_names_its_command_in_one_whole_sentence() -> None:
    pages = [path.read_text("utf-8") for path in (REPOSITORY / "man").glob("*.1")]
    lines = [page.partition(".SH NAME\n")[2].partition("\n")[0] for page in pages]
    assert [line for line in lines if not line or line.endswith("...") or ". " in line] == []


def test_the_changelog_is_one_page() -> None:
    """A failure after a rebase may be a merge that brought an old list back."""
    text = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    described = re.sub(
        r"^### (?:Removed|Changed) since .*?(?=^### )", "", text, flags=re.DOTALL | re.MULTILINE
    )
    assert len(described.splitlines()) <= 120, (
        "describe the feature in its group instead of adding a bullet"
    )


def test_the_page_of_settings_has_every_variable() -> None:
    read = variables_in(REPOSITORY / "jaxcache")
    known = {variable(name) for name in SETTINGS} | set(VARIABLE_TEXTS) | INTERNAL
    assert known >= read
    assert set(LIVE_TEXTS) == set(SETTINGS)
    assert read >= set(VARIABLE_TEXTS) | INTERNAL


def test_the_fields_of_ls_are_completed() -> None:
    text = (COMPLETIONS / "jaxcache.bash").read_text("utf-8")
    assert f"'ls --sort') mapfile -t COMPREPLY < <(compgen -W '{' '.join(SORT_FIELDS)}'" in text
    assert set(SORT_FIELDS) == set(_SORTS)
    assert set(GROUP_FIELDS) == set(_GROUPS)


def need(program: str) -> str:
    found = shutil.which(program)
    if not found:
        pytest.skip(f"{program} is not installed")
    return found


@pytest.fixture
def shell_env(tmp_path: Path) -> dict[str, str]:
    """A PATH on which ``jaxcache`` is this one."""
    if not os.path.exists("/dev/fd/0"):
        pytest.skip("bash reads the output of commands from /dev/fd")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "jaxcache"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m jaxcache "$@"\n')
    script.chmod(0o755)
    env = clean_environment(tmp_path)
    return env | {"PATH": f"{script.parent}{os.pathsep}{env['PATH']}", "TERM": "dumb"}


def run(args: list[str], env: dict[str, str]) -> str:
    done = sh(args, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_what_is_committed_is_what_is_generated() -> None:
    done = sh([sys.executable, REPOSITORY / "tools" / "gen.py", "--check"])
    assert (done.returncode, done.stdout) == (0, "")


def complete_in_bash(env: dict[str, str], *words: str) -> list[str]:
    script = (
        f"source {COMPLETIONS / 'jaxcache.bash'}; COMP_WORDS=({' '.join(map(repr, words))}); "
        f"COMP_CWORD={len(words) - 1}; _jaxcache; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return run([need("bash"), "--norc", "-c", script], env).split()


def test_bash(shell_env: dict[str, str], corpus: Path) -> None:
    assert complete_in_bash(shell_env, "jaxcache", "s") == [c for c in COMMANDS if c[0] == "s"]
    assert complete_in_bash(shell_env, "jaxcache", "ls", "--so") == ["--sort"]
    cache = str(corpus / "0.10.2-cpu-zstd")
    (key,) = complete_in_bash(shell_env, "jaxcache", "show", "-C", cache, "jit_ml")
    assert key.startswith("jit_mlp-")
    assert (
        "pyproject.toml"
        in complete_in_bash(shell_env, "jaxcache", "ls", "-C", str(REPOSITORY / "pyproj"))[0]
    )


def test_fish(shell_env: dict[str, str], corpus: Path) -> None:
    fish = need("fish")

    def complete(line: str) -> list[str]:
        script = f"source {COMPLETIONS / 'jaxcache.fish'}; complete -C '{line}'"
        out = run([fish, "--no-config", "-c", script], shell_env)
        return [x.split("\t")[0] for x in out.splitlines()]

    assert complete("jaxcache st") == ["stats"]
    assert complete("jaxcache ls --so") == ["--sort"]
    found = complete(f"jaxcache show -C {corpus / '0.10.2-cpu-zstd'} jit_ml")
    assert [x[:8] for x in found] == ["jit_mlp-"]


def test_a_name_is_never_run(shell_env: dict[str, str], corpus: Path, tmp_path: Path) -> None:
    """What lies in a cache directory is hostile; at Tab it must stay a name."""
    cache = tmp_path / "cache"
    cache.mkdir()
    source = next((corpus / "0.10.2-cpu-zstd").glob("jit_mlp*-cache"))
    for number, name in enumerate(("jit_$(touch pwned)", "jit_`touch pwned`", "jit_x;touch pwned")):
        shutil.copy(source, cache / f"{name}-{number:064x}-cache")
    found = complete_in_bash(shell_env, "jaxcache", "show", "-C", str(cache), "jit_")
    assert " ".join(found).count("touch pwned") == 3
    if shutil.which("fish"):
        line = f"complete -C 'jaxcache show -C {cache} jit_'"
        source_it = f"source {COMPLETIONS / 'jaxcache.fish'}; cd {tmp_path}; {line}"
        assert "touch pwned" in run(["fish", "--no-config", "-c", source_it], shell_env)
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("pwned").exists()


def test_many_keys_are_offered_as_modules(shell_env: dict[str, str], tmp_path: Path) -> None:
    for number in range(250):
        (tmp_path / f"jit_{'ab'[number % 2]}-{number:064x}-cache").touch()
        (tmp_path / f"jit_{'ab'[number % 2]}-{number:064x}-atime").touch()
    args = ("jaxcache", "rm", "-C", str(tmp_path))
    assert complete_in_bash(shell_env, *args, "ji") == ["jit_a-", "jit_b-"]
    keys = complete_in_bash(shell_env, *args, "jit_a-")
    assert len(keys) == 100
    assert all(key.startswith("jit_a-0") and len(key) == 70 for key in keys)
    assert complete_in_bash(shell_env, *args, f"jit_b-{1:064x}") == [f"jit_b-{1:064x}"]
    assert complete_in_bash(shell_env, "jaxcache", "rm", "-C", "/nowhere", "j") == []


def test_values_are_offered_where_the_help_names_them(shell_env: dict[str, str]) -> None:
    assert complete_in_bash(shell_env, "jaxcache", "prune", "--policy", "c") == ["cost"]
    assert complete_in_bash(shell_env, "jaxcache", "ls", "--color", "a") == ["auto", "always"]


def test_completing_keys_imports_no_parser(corpus: Path, tmp_path: Path) -> None:
    script = (
        "import sys; before = {*sys.modules}; from jaxcache.cli.main import run\n"
        f"run(['--complete', 'keys', 'jit_ml', '-C', {str(corpus / '0.10.2-cpu-zstd')!r}])\n"
        "slow = {'typer', 'rich', 'json', 'tomllib', 're', 'enum', 'typing', 'contextlib'}\n"
        "print(sorted(slow & {*sys.modules} - before))"
    )
    out = run([sys.executable, "-c", script], clean_environment(tmp_path)).splitlines()
    assert out[0].startswith("jit_mlp-")
    assert out[1] == "[]"


def test_completion_knows_keys_as_the_rest_does() -> None:
    digits = "0" * 64
    keys = ["a" * 64, f"jit_f-{digits}", f"a-{digits}", f"a-b-{digits}"]
    others = [
        f"-{digits}",
        f"x{digits}",
        f"{digits}0",
        f"jit_f-{digits[1:]}G",
        f"jit_f-{digits[1:]}",
    ]
    assert all(map(parse_key, keys))
    assert not any(map(parse_key, others))
    assert complete_keys([f"{name}-cache" for name in (*keys, *others)], "") == sorted(keys)


def test_zsh_completes_at_a_prompt(shell_env: dict[str, str], corpus: Path, tmp_path: Path) -> None:
    setup = (
        f"fpath=({COMPLETIONS} $fpath); autoload -Uz compinit && compinit -u -D; PROMPT='ready> '; "
        "unsetopt prompt_cr prompt_sp; unsetopt beep\n"
    )
    (tmp_path / ".zshrc").write_text(setup)
    terminal = Terminal(
        [need("zsh"), "-i"],
        home=tmp_path,
        width=200,
        env={"PATH": shell_env["PATH"], "ZDOTDIR": str(tmp_path), "TERM": "dumb"},
    )
    terminal.wait_for("ready>")
    terminal.press("jaxcache sho\t")
    terminal.wait_for("jaxcache show ")
    terminal.press(f"-C {corpus / '0.10.2-cpu-zstd'} jit_ml\t")
    terminal.wait_for("jit_mlp-6e860f1f2ebe93785d5d65004b29a7991292f364567a10b31547cc1978831814")
    terminal.press("\x15jaxcache prune --policy co\t")
    terminal.wait_for("--policy cost")
    terminal.press("\x15exit\n")
    terminal.finish()


@pytest.mark.parametrize(
    ("shell", "ask"),
    [
        ("bash", 'eval "$(jaxcache completion bash)"; complete -p jaxcache'),
        (
            "zsh",
            'autoload -Uz compinit && compinit -u -D; eval "$(jaxcache completion zsh)"; '
            "print ${_comps[jaxcache]}",
        ),
        ("fish", "jaxcache completion fish | source; complete -C 'jaxcache sho'"),
    ],
)
def test_one_line_enables_the_completion(shell_env: dict[str, str], shell: str, ask: str) -> None:
    plain = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}[shell]
    out = run([need(shell), plain, "-c", ask], shell_env)
    assert out.split("\t")[0].split()[-1] in ("jaxcache", "_jaxcache", "show")


def test_man_pages_without_a_warning(tmp_path: Path) -> None:
    pages = sorted((REPOSITORY / "man").glob("*.1"))
    assert len(pages) == len(COMMANDS) + 1
    done = sh(
        [need("man"), "--warnings", "-E", "UTF-8", "-l", *map(str, pages)],
        env=clean_environment(tmp_path) | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == ""
    assert done.stdout.count("EXIT STATUS") == len(pages)


# ``docs/schemas/``; every output that a test reads is held to them, too.


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
