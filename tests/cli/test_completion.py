"""Completion of command lines: what is offered, and in the real shells."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, clean_environment
from processes import sh
from terminal import Terminal

from jaxcache.cache.listing import _GROUPS
from jaxcache.cache.selection import _SORTS
from jaxcache.cli.commands import COMMANDS
from jaxcache.cli.complete import complete_keys
from jaxcache.core.names import parse_key
from jaxcache.options import GROUP_FIELDS, SORT_FIELDS

COMPLETIONS = REPOSITORY / "completions"


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
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def complete_in_bash(env: dict[str, str], *words: str) -> list[str]:
    script = (
        f"source {COMPLETIONS / 'jaxcache.bash'}; COMP_WORDS=({' '.join(map(repr, words))}); "
        f"COMP_CWORD={len(words) - 1}; _jaxcache; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return run([need("bash"), "--norc", "-c", script], env).split()


def test_bash(shell_env: dict[str, str], corpus: Path) -> None:
    assert {*SORT_FIELDS} == {*_SORTS}
    assert {*GROUP_FIELDS} == {*_GROUPS}
    for words, offered in (
        (("s",), [name for name in COMMANDS if name.startswith("s")]),
        (("ls", "--so"), ["--sort"]),
        (("ls", "--sort", "s"), [name for name in SORT_FIELDS if name.startswith("s")]),
        (("ls", "--color", "a"), ["auto", "always"]),
        (("prune", "--policy", "c"), ["cost"]),
        (("ls", "-C", str(REPOSITORY / "pyproj")), [str(REPOSITORY / "pyproject.toml")]),
        (("rm", "-C", "/nowhere", "j"), []),
    ):
        assert complete_in_bash(shell_env, "jaxcache", *words) == offered
    cache = str(corpus / "0.10.2-cpu-zstd")
    (key,) = complete_in_bash(shell_env, "jaxcache", "show", "-C", cache, "jit_ml")
    assert key.startswith("jit_mlp-")


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


def test_completing_keys_imports_no_parser(corpus: Path, tmp_path: Path) -> None:
    script = (
        "import sys; before = {*sys.modules}; from jaxcache.cli.main import run\n"
        f"run(['--complete', 'keys', 'jit_ml', '-C', {str(corpus / '0.10.2-cpu-zstd')!r}])\n"
        "slow = {'typer', 'rich', 'json', 'tomllib', 're', 'enum', 'typing', 'contextlib'}\n"
        "print(sorted(slow & {*sys.modules} - before))"
    )
    key, slow = run([sys.executable, "-c", script], clean_environment(tmp_path)).splitlines()
    assert (key[:8], slow) == ("jit_mlp-", "[]")


def test_completion_knows_keys_as_the_rest_does() -> None:
    digits = "0" * 64
    keys = ["a" * 64, f"jit_f-{digits}", f"a-{digits}", f"a-b-{digits}"]
    fewer = digits[1:]
    others = [f"-{digits}", f"x{digits}", f"{digits}0", f"jit_f-{fewer}G", f"jit_f-{fewer}"]
    assert all(map(parse_key, keys))
    assert not any(map(parse_key, others))
    assert complete_keys([f"{name}-cache" for name in (*keys, *others)], "") == sorted(keys)


def test_zsh_completes_at_a_prompt(shell_env: dict[str, str], corpus: Path, tmp_path: Path) -> None:
    setup = (
        f"fpath=({COMPLETIONS} $fpath); autoload -Uz compinit && compinit -u -D; PROMPT='ready> '; "
        "unsetopt prompt_cr prompt_sp; unsetopt beep\n"
    )
    (tmp_path / ".zshrc").write_text(setup)
    env = {"PATH": shell_env["PATH"], "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
    terminal = Terminal([need("zsh"), "-i"], home=tmp_path, width=200, env=env)
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
