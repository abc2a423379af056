"""The words of a command line: mistakes, where the cache is named, and lines without the parser."""

import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from acting import refused
from conftest import RunCli
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcache.cli import main
from jaxcache.cli.app import load_command
from jaxcache.cli.commands import COMMANDS, REQUIRED, expand_options, load
from jaxcache.cli.plain import read_plain


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lst",), "did you mean ls?"),
        (("ls", "--limt", "3"), "did you mean --limit?"),
        (("seal", "--level", "3"), "see jaxcache seal --help"),
        (("ls", "--unused-for", "7d"), "write --filter 'unused>7d'"),
        (("prune", "--max-size", "10", "GB"), "write 10GB, or quote it: '10 GB'"),
        (("pin", "--unused-for", "7d"), "see jaxcache pin --help"),
        (("warm", "--steps", "2", "train.py"), "an option of your program goes after its name"),
        (
            ("run", "train.py", "--steps", "1"),
            "to run the script: jaxcache warm train.py --steps 1, or jaxcache run -- python",
        ),
        (("prnue", "--max-size", "1"), "did you mean prune?"),
        (("ci", "rstore"), "did you mean restore?"),
        (("xyzzy",), "jaxcache --help lists them"),
        (("clean",), "jaxcache prune, or jaxcache rm KEY"),
        (("help", "ls"), "jaxcache --help, or jaxcache COMMAND --help"),
        (("prune", "-C"), "Option '-C' requires an argument [usage]"),
    ],
)
def test_an_unknown_command_gets_a_hint(
    run_cli: RunCli, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """And an option without its value is named."""
    (tmp_path / "train.py").touch()
    done = run_cli(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f": {said}" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "ls -C PROJECT",
        "verify --fix -C PROJECT",
        "prune --max-size 1GB -C PROJECT",
        "doctor -C PROJECT",
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


def test_the_cache_may_be_named_before_the_command(
    run_cli: RunCli, corpus: Path, tmp_path: Path
) -> None:
    cache = corpus / "0.10.2-cpu-zstd"
    behind = run_cli("ls", "-q", "-C", cache)
    assert len(behind.stdout.splitlines()) == 7
    assert run_cli("-C", cache, "ls", "-q").stdout == behind.stdout
    assert run_cli(f"--cache-dir={cache}", "ls", "-q").stdout == behind.stdout
    assert run_cli("-C", tmp_path / "none", "ls", "-q", "-C", cache).stdout == behind.stdout
    none = tmp_path / "none"
    assert str(none) in refused(run_cli, 10, "-C", none, "ci", "save", tmp_path / "x.jxb")
    assert "copy takes no --cache-dir" in refused(run_cli, 2, "-C", cache, "copy", "a", "b")


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


def test_an_empty_path_names_no_place(run_cli: RunCli, local: Path, tmp_path: Path) -> None:
    """What a script makes of a variable that is not set must not be the default cache."""
    for command in (
        *((*name.split(), "", "-C", local) for name in ("push", "pull", "ci save", "ci restore")),
        ("prune", "-C", "", "--max-entries", "0", "-y"),
    ):
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


# Plain command lines, which are read without the parser: it reads the same in them.


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


parser_of = lru_cache(load_command)


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


@lru_cache
def vocabulary(name: str) -> list[str]:
    """Words that may follow a command: its options, alone and with a value, and others."""
    options = [p for p in parser_of(name).params if p.param_type_name == "option"]
    spelt = [n for p in options for n in (*p.opts, *p.secondary_opts)]
    values = ("3", "-1", "text", "", "-", "--", "2s", "a=b", "step.py", "-lq", "--js", "-C.", "é")
    return [*values, *spelt, *(f"{n}={v}" for n in spelt for v in ("3", "text", ""))]


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command and some words, of which one in two is a plain value."""
    name = draw(st.sampled_from([*COMMANDS]))
    word = st.sampled_from(["3", "text"]) | st.sampled_from(vocabulary(name))
    return name, draw(st.lists(word, max_size=4))


@settings(max_examples=200)
@given(lines())
def test_the_parser_reads_the_same_in_any_line_that_is_plain(line: tuple[str, list[str]]) -> None:
    name, words = line
    call = read_plain([*name.split(), *words])
    if call is not None:
        with redirect_stderr(io.StringIO()) as notes:
            assert {n: _listed(v) for n, v in call.keywords.items()} == parsed(name, words)
        assert notes.getvalue() == ""
