"""The words of a command line: unknown commands, and the cache named before the command."""

from pathlib import Path

import pytest
from conftest import RunCli


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("lst",), "did you mean ls?"),
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
