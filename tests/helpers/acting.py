"""Act upon what is printed: take a command from a sentence, and run it as it stands."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path

import pytest
from conftest import CORPUS, RunCli, clean_environment, find_jax_pythons, jax_version
from plain_jax import Counts, count_plain
from processes import sh
from ways import old_copy

#: A command in a sentence: from its first word to the end of the line, or to what closes it.
_COMMAND = re.compile(r"(?:jaxcache [a-z]|\S+ -m pip |uv pip )[^\n]*?(?=\s*(?:\n|$)|[)`;](?:\s|$))")
#: The cache that the command line adds to a command that is printed.
_NAMED = r"(?: -C (?:'[^']*'|[^\s']+))?"

#: How ``make test-jax`` selects.
_OF_JAX = "not slow and jax"

#: The day of ten; workers are told, because one may start after midnight.
_TODAY = "JAXCACHE_TEST_DAY"
os.environ.setdefault(_TODAY, str(date.today().toordinal() % 10))

#: Every text that the present test acted upon, in one line each.
acted_texts: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nine tenths of the rows that run JAX to ``make acted``; each has its day of ten."""
    rows = [item for item in items if item.path.parent.name == "acted"]
    for row in rows:
        row.add_marker(acts_on())
    if config.option.markexpr == _OF_JAX:
        others = {row for row in rows if _day_of(row) != int(os.environ[_TODAY])}
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


def _day_of(item: pytest.Item) -> int:
    return hashlib.sha256(item.nodeid.encode()).digest()[0] % 10


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that did not act upon the sentences that it names."""
    acted_texts.clear()
    yield
    marks = [mark for mark in item.iter_markers("acts_on") if _is_for(mark, item)]
    parts = [part for mark in marks for part in mark.args]
    unsaid = [p for p in parts if not any(_pattern(p).search(text) for text in acted_texts)]
    assert not unsaid, acted_texts


def _is_for(mark: pytest.Mark, item: pytest.Item) -> bool:
    """Whether the JAX of a test prints these sentences."""
    if mark.kwargs.get("jax") is None:
        return True
    values = item.callspec.params if hasattr(item, "callspec") else {}
    version = jax_version(values.get("each_jax_python") or find_jax_pythons()[0])
    oldest, newer = mark.kwargs["jax"]
    return bool(oldest <= version < newer)


#: The versions of JAX that hash the path of the cache.
BOUND = ((0, 4, 36), (0, 11))
UNBOUND = ((0, 11), (1, 0))


def acts_on(
    *parts: str, jax: tuple[tuple[int, ...], tuple[int, ...]] | None = None
) -> pytest.MarkDecorator:
    """Say which sentences a test acts upon, by a part of each; ``…`` is what is filled in.

    Args:
        jax: the first version of JAX where they are printed, and the first where no longer.
    """
    return pytest.mark.acts_on(*parts, jax=jax)


def says(text: str, *parts: str) -> bool:
    """Note that a test acts upon this text, and return whether it holds these parts."""
    line = " ".join(text.split())
    acted_texts.append(line)
    return all(_pattern(part).search(line) for part in parts)


def _pattern(part: str) -> re.Pattern[str]:
    words = ".*?".join(re.escape(p) for p in " ".join(part.split()).split("…"))
    return re.compile(re.sub(r"(jaxcache\\ [a-z]+)", lambda m: m[0] + _NAMED, words))


def commands_in(text: str) -> list[str]:
    """Return every command that a text prints."""
    return _COMMAND.findall(text)


def with_settings(text: str, env: dict[str, str]) -> dict[str, str]:
    """Return an environment with what a text says to export or to unset."""
    says(text)
    exported = dict(re.findall(r"export (JAX_\w+)=([^\s;]+)", text))
    dropped = re.findall(r"unset (JAX_\w+)", text)
    assert exported or dropped, text
    return {n: v for n, v in env.items() if n not in dropped} | exported


def act(
    text: str,
    home: Path,
    filled: Mapping[str, str | Path] | None = None,
    *,
    until: str = "\n\n",
    code: int | None = 0,
    **env: str,
) -> "subprocess.CompletedProcess[str]":
    """Run the last command that a text prints, as a shell runs it; its exit code is checked.

    Args:
        text: what was printed.
        home: the directory to run it in, and the home of its user.
        filled: what a user would put in the place of words such as ``KEY`` and ``SCRIPT``.
        until: what of the sentence follows the command.
        code: the exit code; None where it does not matter.
        env: more variables.
    """
    says(text)
    commands = commands_in(text.partition(until)[0])
    assert commands, text
    command = commands[-1]
    for word, value in (filled or {}).items():
        command, count = re.subn(rf"\b{word}\b", str(value), command)
        assert count, (word, command)
    given = clean_environment(home) | {"PATH": path_of(sys.executable), **env}
    done = sh(command, shell=True, cwd=home, env=given)
    assert code in (None, done.returncode), (text, done)
    return done


def refused(run_cli: RunCli, code: int, *words: str | Path) -> str:
    """What jaxcache says where it ends with this code."""
    done = run_cli(*words)
    assert done.returncode == code, done
    return done.stderr


def path_of(python: str) -> str:
    """A PATH on which this Python comes first, and our command after it."""
    places = (Path(python).parent, Path(sys.executable).parent, os.environ["PATH"])
    return os.pathsep.join(map(str, places))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache that no setting names, so that each command must name it; no file is young."""
    return old_copy(tmp_path / "a cache", CORPUS / "0.12.0.1-cpu-zstd")


def plain_hits(python: str, source: str, home: Path, env: Mapping[str, str]) -> int:
    """Run a program in plain JAX, and return its hits as JAX counts them."""
    script = home / "counted.py"
    script.write_text(source)
    counts = count_plain(python, script, clean_environment(home) | env)
    assert counts is not None, source
    return counts.hits


PROGRAM = """
import os
import jax
import numpy as np
jax.jit(lambda x: x * 2)(np.ones(3))
{code}
jax.jit(lambda x: x @ x)(np.ones((3, 3)))
"""


class Program:
    """A program in a directory of its own, with an environment."""

    def __init__(self, home: Path, run_cli: RunCli, env: dict[str, str]) -> None:
        self.home = home
        self._run_cli = run_cli
        self.python = find_jax_pythons()[0]
        self.script = home / "program.py"
        self.write()
        (home / "cache").mkdir()
        self.env = {
            "PYTHONWARNINGS": "",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_COMPILATION_CACHE_DIR": str(home / "cache"),
            **env,
        }

    def write(self, code: str = "") -> None:
        self.script.write_text(PROGRAM.format(code=code))

    def printed(self, *words: str, code: int = 0) -> str:
        """Return everything that jaxcache prints."""
        done = self._run_cli(*words, env=self.env, cwd=self.home)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    def told(self, *words: str, code: int = 0) -> str:
        """Return everything that jaxcache prints, in one line."""
        return " ".join(self.printed(*words, code=code).split())

    def doctor(self, code: int = 0) -> str:
        """Return what ``doctor`` prints of the environment."""
        return self.told("doctor", "--python", self.python, code=code)

    def run(self) -> Counts | None:
        env = clean_environment(self.home) | self.env
        return count_plain(self.python, self.script, env, self.home)

    @property
    def ways(self) -> dict[str, tuple[str, ...]]:
        command = ("--", self.python, "program.py")
        return {
            "warm": ("warm", "--python", self.python, "program.py"),
            "run": ("run", *command),
            "explain": ("explain", "--json", "--python", self.python, "program.py"),
            "doctor": ("doctor", *command),
        }


@pytest.fixture
def program(tmp_path: Path, run_cli: RunCli) -> "type[Program]":
    return lambda **env: Program(tmp_path, run_cli, env)  # type: ignore[return-value]


#: A Python that passes requests on to the real one, and dies of a real signal at one payload.
FRAGILE = """#!{own}
import json, os, signal, subprocess, sys
answers = int(sys.argv[3])
real = subprocess.Popen([{real!r}, *sys.argv[1:]], stdin=subprocess.PIPE, pass_fds=(answers,))
os.close(answers)
while line := sys.stdin.buffer.readline():
    payload = sys.stdin.buffer.read(json.loads(line)["size_bytes"])
    if {module!r} in payload:
        real.kill()
        real.wait()
        os.kill(os.getpid(), signal.SIGSEGV)
    real.stdin.write(line + payload); real.stdin.flush()
"""


def fragile_python(directory: Path, python: str, module: str) -> Path:
    """Make a Python that dies where it loads an entry of this module."""
    path = directory / "fragile"
    path.write_text(FRAGILE.format(own=sys.executable, real=python, module=module.encode()))
    path.chmod(0o755)
    return path


def make_wheel(directory: Path, name: str, more: str = "", code: str = "") -> Path:
    """Make a wheel of a package that has this code alone.

    Args:
        more: lines of its metadata.
    """
    about = f"{name}-99.dist-info"
    path = directory / f"{name}-99-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", code)
        about_it = f"Metadata-Version: 2.1\nName: {name}\nVersion: 99\n{more}"
        archive.writestr(f"{about}/METADATA", about_it)
        tags = "Root-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\n{tags}")
        archive.writestr(f"{about}/RECORD", "")
    return path
