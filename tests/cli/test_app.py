"""The words of a command line: unknown commands, the cache named first, options before SCRIPT."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, RunCli

from jaxcache.cli import main
from jaxcache.cli.app import app, load_command
from jaxcache.cli.commands import COMMANDS
from jaxcache.cli.panels import OptionalValueCommand
from jaxcache.cli.plain import ALONE


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("lst",), "did you mean ls?"),
        (("ls", "--limt", "3"), "did you mean --limit?"),
        (("seal", "--level", "3"), "see jaxcache seal --help"),
        (("ls", "--unused-for", "7d"), "write --filter 'unused>7d'"),
        (("prune", "--max-size", "10", "GB"), "write 10GB, or quote it: '10 GB'"),
        (("pin", "--unused-for", "7d"), "see jaxcache pin --help"),
        (("warm", "--steps", "2", "train.py"), "an option of your program goes after its name"),
        (("prnue", "--max-size", "1"), "did you mean prune?"),
        (("ci", "rstore"), "did you mean restore?"),
        (("xyzzy",), "jaxcache --help lists them"),
        (("list",), "jaxcache ls"),
        (("clean",), "jaxcache prune, or jaxcache rm KEY"),
        (("info",), "jaxcache stats, or jaxcache show KEY"),
        (("help", "ls"), "jaxcache --help, or jaxcache COMMAND --help"),
        (("version",), "jaxcache --version"),
    ],
)
def test_an_unknown_command_gets_a_hint(run_cli: RunCli, words: tuple[str, ...], hint: str) -> None:
    done = run_cli(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"hint: {hint}" in done.stderr


@pytest.mark.parametrize("option", ["--unused-for", "--max-size", "-C"])
def test_an_option_without_its_value_is_named(run_cli: RunCli, option: str) -> None:
    done = run_cli("prune", option)
    assert done.returncode == 2
    assert done.stderr == f"jaxcache: Option '{option}' requires an argument [usage]\n"


@pytest.mark.parametrize(
    "line",
    [
        "ls -C PROJECT",
        "stats -C PROJECT",
        "verify -C PROJECT",
        "verify --fix -C PROJECT",
        "prune --max-size 1GB -C PROJECT",
        "doctor -C PROJECT",
        "seal -C PROJECT",
        "export x.jxb -C PROJECT",
        "push x/ -C PROJECT",
        "diff PROJECT PROJECT",
    ],
)
def test_a_directory_of_other_files_is_refused(run_cli: RunCli, tmp_path: Path, line: str) -> None:
    project = tmp_path / "project"
    (project / "ci").mkdir(parents=True)  # a name as torch gives to directories of code
    (project / "ci" / "train.py").write_text("print()\n")
    done = run_cli(*line.replace("PROJECT", str(project)).split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (10, "")
    assert f"{project} is not a cache" in done.stderr
    assert "--fix" not in done.stderr
    assert [str(p.relative_to(project)) for p in project.rglob("*")] == ["ci", "ci/train.py"]


def test_a_directory_with_hidden_files_alone_is_an_empty_cache(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".gitkeep").touch()
    assert run_cli("ls", "-C", tmp_path / "cache").returncode == 0


def test_run_names_the_commands_for_a_script(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = run_cli("run", "train.py", "--steps", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "jaxcache warm train.py --steps 1, or jaxcache run -- python train.py" in done.stderr


def test_the_cache_may_be_named_before_the_command(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    cache = corpus / "0.10.2-cpu-zstd"
    behind = run_cli("ls", "-q", "-C", cache)
    assert len(behind.stdout.splitlines()) == 7
    assert run_cli("-C", cache, "ls", "-q").stdout == behind.stdout
    assert run_cli(f"--cache-dir={cache}", "ls", "-q").stdout == behind.stdout
    assert run_cli("-C", tmp_path / "none", "ls", "-q", "-C", cache).stdout == behind.stdout
    saving = run_cli("-C", tmp_path / "none", "ci", "save", tmp_path / "x.jxb")
    assert (saving.returncode, str(tmp_path / "none") in saving.stderr) == (10, True)
    refused = run_cli("-C", cache, "copy", "a", "b")
    assert (refused.returncode, "copy takes no --cache-dir" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "line",
    ["ls", "show", "show ./", "stats", "verify", "prune", "prune -n", "rm", "seal", "pin"],
)
@pytest.mark.parametrize("there", [True, False])
def test_a_directory_in_the_place_of_a_key(
    run_cli: RunCli, corpus: Path, tmp_path: Path, line: str, there: bool
) -> None:
    """With a cache where it is looked for, and without one."""
    cache = corpus / "0.10.2-cpu-zstd" if there else tmp_path / "none"
    (tmp_path / "some").mkdir()
    words = f"{line}{'' if line.endswith('/') else ' '}some".split()
    done = run_cli(*words, env={"JAX_COMPILATION_CACHE_DIR": str(cache)})
    assert done.returncode in (1, 2, 10)
    assert f"hint: the cache is named with -C: jaxcache {words[0]} -C {words[-1]}" in done.stderr


#: What a command needs beside the cache.
_ARGUMENTS = {
    "ci save": "x.jxb",
    "explain": "--churn",
    "export": "x.jxb",
    "pin": "jit_f",
    "prune": "--max-size 1 -n",
    "push": "there",
    "report": "r.html",
    "rm": "jit_f --yes",
    "show": "jit_f",
}


#: What makes the directory that is missing, or needs none.
_MAKES_IT = ("where", "pull", "compile", "target check", "import", "ci restore", "run", "warm")


def test_a_missing_directory_ends_every_command_that_needs_one_with_10(
    run_cli: RunCli, tmp_path: Path
) -> None:
    tried = []
    for name in COMMANDS:
        codes = COMMANDS[name].exit_codes
        names = [p.name for p in load_command(name).params]
        if 10 in codes and "cache_dir" in names and name not in _MAKES_IT:
            done = run_cli(
                *name.split(), *_ARGUMENTS.get(name, "").split(), "-C", tmp_path / "none"
            )
            assert (name, done.returncode) == (name, 10)
            assert "no such cache directory:" in done.stderr
            tried.append(name)
    assert {"ls", "doctor", "stats", "verify"} <= {*tried}
    assert not (tmp_path / "none").exists()


#: What runs a program, whose arguments follow its name.
_RUNS = re.compile(r"jaxcache (warm|run)((?: +(?!#)[^\s`|>;&)]+)+)")


def texts() -> Iterator[tuple[str, str]]:
    """(where, text) of every document and example, and of every string of the package."""
    directories = [REPOSITORY / name for name in ("docs", "examples", "completions", "man")]
    pages = [p for directory in directories for p in directory.rglob("*") if p.is_file()]
    for page in [*pages, *REPOSITORY.glob("*.md"), *REPOSITORY.glob("*.yml")]:
        yield page.name, re.sub(r"\\\n *", " ", page.read_text("utf-8", "replace"))
    for module in (REPOSITORY / "jaxcache").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{module.name}:{node.lineno}", node.value


@cache
def _group() -> Any:
    import typer

    return typer.main.get_command(app)


def lost_options(text: str) -> list[str]:
    """The command lines in a text whose program gets what is spelt like an option of ours."""
    found = []
    for match in _RUNS.finditer(text):
        command = _group().get_command(None, match[1])
        assert isinstance(command, OptionalValueCommand)
        options = [p for p in command.params if p.param_type_name == "option"]
        ours = {name for p in options for name in p.opts}
        valued = {n for p in options if not p.is_flag for n in p.opts} - ALONE.keys()
        words, at = match[2].split(), 0
        while at < len(words) and words[at].startswith("-") and words[at] != "--":
            at += 2 if words[at] in valued else 1
        program = words[at + (words[at : at + 1] == ["--"]) :]
        own = program and command.takes_options_after(program[0])
        if not own and any(w.partition("=")[0] in ours for w in program[1:]):
            found.append(match[0])
    return found


def test_no_text_tells_to_write_our_options_behind_the_script() -> None:
    """They would be the script's."""
    assert lost_options("run jaxcache warm SCRIPT --json > run.json") != []
    assert lost_options("`jaxcache run --json -- python train.py --trace x`") != []
    assert lost_options("jaxcache warm --json SCRIPT --lr 3; jaxcache warm f.py:step --json") == []
    found = [(where, line) for where, text in texts() for line in lost_options(text)]
    assert found == []


def test_an_empty_path_names_no_place(run_cli: RunCli, local: Path, tmp_path: Path) -> None:
    """What a script makes of a variable that is not set must not be the default cache."""
    commands = (
        ("push", "", "-C", local),
        ("pull", "", "-C", local),
        ("ci", "save", "", "-C", local),
        ("ci", "restore", "", "-C", local),
        ("prune", "-C", "", "--max-entries", "0", "-y"),
    )
    for command in commands:
        done = run_cli(*command, env={"JAX_COMPILATION_CACHE_DIR": str(local)})
        assert (done.returncode, "[bad-path]" in done.stderr) == (2, True), command
    assert len(list(local.glob("*-cache"))) == 7
    assert not (tmp_path / ".cache" / "jax").exists()


def test_what_the_system_refuses_is_not_called_a_mistake_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr(main, "_read", lambda argv: full)
    assert main.run(["ls"]) == 1
    assert capsys.readouterr().err == "jaxcache: /tmp/x: no space left on device [io-error]\n"
