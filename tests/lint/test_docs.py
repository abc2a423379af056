"""The documentation: commands and examples are run, links lead somewhere, every name is there.

A page is run from top to bottom in one shell, in an empty directory. A block ``console`` holds
commands behind ``$`` and, where it has any, what they print; a block with ``title="NAME"`` is a
file that is written. HTML comments in front of a block say what a reader knows from the text:

* ``<!-- not run: REASON -->``: it needs hardware, a secret, a service, or minutes.
* ``<!-- before: COMMAND -->``: what lies there already, such as a file of the reader's own.
* ``<!-- exits N -->``: the last command of the block ends with that code.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from processes import sh
from terminal import Terminal, without_style
from ways import old_copy

import jaxcache
from jaxcache.cli.commands import COMMANDS
from jaxcache.errors import EXIT_MEANINGS
from tools.generate.commands import read_command

_BLOCK = re.compile(
    r"(?P<notes>(?:^<!--(?:[^-]|-(?!->))*-->\n+)*)"
    r"^(?P<indent> *)```(?P<language>\w+)(?P<extra>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOTE = re.compile(r"<!-- (not run:|before:|exits) (.*?) -->", re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
#: Behind a command's output: its exit code between two of these.
MARK = "\x02"


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page, or one file that it shows."""

    line: int
    command: str
    expected: tuple[str, ...] = ()
    """What the page says that it prints; nothing where the page shows no output."""
    exit_code: int = 0


def read_steps(path: Path) -> list[Step]:
    """Return what a page asks a reader to do, but for what no test can run."""
    text = path.read_text("utf-8")
    steps: list[Step] = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        notes = _NOTE.findall(match["notes"])
        cut = len(match["indent"])
        body = [x[cut:] for x in match["body"].splitlines()]
        if any(kind == "not run:" for kind, _ in notes):
            continue
        steps += [Step(line, value) for kind, value in notes if kind == "before:"]
        code = next((int(value) for kind, value in notes if kind == "exits"), 0)
        if title := _TITLE.search(match["extra"]):
            steps.append(Step(line, _write(title[1], body)))
        elif match["language"] == "console":
            found = _commands(body, line, code)
            assert found, f"{path.name}:{line}: no command behind $ in this block"
            steps += found
    return steps


def needs_jax(steps: list[Step]) -> bool:
    """Whether they compile something."""
    starts = ("warm", "run", "explain", "ci", "compile", "target", "where", "doctor")
    words = (re.findall(r"(?:^|[|;&(] *)jaxcache +(\w+)", step.command) for step in steps)
    return any(word in starts for found in words for word in found)


def _write(name: str, body: list[str]) -> str:
    content = "\n".join(body) + "\n"
    return f"mkdir -p \"$(dirname {name})\" && printf '%s' {shlex.quote(content)} > {name}"


def _commands(body: list[str], line: int, exit_code: int) -> list[Step]:
    found: list[tuple[int, list[str], list[str]]] = []
    for number, text in enumerate(body, line + 1):
        if text.startswith("$ "):
            found.append((number, [text[2:]], []))
        elif found and found[-1][1][-1].endswith("\\") and not found[-1][2]:
            found[-1][1].append(text)
        elif found:
            found[-1][2].append(text)
    steps = [Step(n, "\n".join(command), tuple(shown)) for n, command, shown in found]
    if steps:
        steps[-1] = replace(steps[-1], exit_code=exit_code)
    return steps


_NUMBER = re.compile(r"<?\d[\d.,]*")
_HASH = re.compile(r"(?<=-)[0-9a-f]{7,64}\b|\b[0-9a-f]{12,64}\b")
_UNIT = re.compile(r"# ?(?:B|kB|MB|GB|ms|[smhd])\b(?: #[smh]\b)?")


def shape(line: str) -> str:
    """A line without what differs from run to run: hashes, numbers, units, the space between."""
    return " ".join(_UNIT.sub("#", _NUMBER.sub("#", _HASH.sub("HASH", line))).split())


def missing_line(expected: tuple[str, ...], shown: str) -> str | None:
    """The first line of the page that is not there, in order; ``…`` stands for any lines.

    The name of a machine or processor at the end of a row is no promise, nor is a path.
    """
    lines = iter([shape(x) for x in shown.splitlines() if x.strip()])
    for wanted in expected:
        want = shape(wanted)
        if want in ("", "…"):
            continue
        want = want.removesuffix("…").strip()
        if "HASH" in want and " now " in want:
            want = want.partition(" now ")[0]
        if not any(have.startswith(want) for have in lines):
            return wanted
    return None


DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
WITH_JAX = pytest.mark.skipif(not find_spec("jax"), reason="jax is not installed beside jaxcache")
PUBLISHED = "https://github.com/jaxcache/jaxcache/blob/main/"


def pages_with_commands() -> Iterator[Any]:
    """Yield the steps of each page as a case; all but README are slow: they take minutes."""
    for path in PAGES:
        name = path.relative_to(REPOSITORY).as_posix()
        if steps := read_steps(path):
            marks = [pytest.mark.jax, WITH_JAX] if needs_jax(steps) else []
            marks += [] if name == "README.md" else [pytest.mark.slow]
            yield pytest.param(steps, id=name, marks=marks)


@pytest.mark.parametrize("steps", list(pages_with_commands()))
def test_every_command_of_a_page(steps: list[Step], tmp_path: Path) -> None:
    """Each does what the page says, in an empty directory, with our own Python."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in (("jaxcache", "-m jaxcache"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (tools / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    runs = (f"eval {shlex.quote(s.command)}; printf '{MARK}%s{MARK}' $?\n" for s in steps)
    (home / "page.sh").write_text("".join(runs))
    for name in ("tests", "examples"):
        (home / name).symlink_to(REPOSITORY / name)
    env = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONWARNINGS": ""}
    env["JAX_PLATFORMS"] = "cpu"
    terminal = Terminal(["bash", "--norc", "page.sh"], home=home, width=100, env=env)
    terminal.finish()
    parts = without_style(terminal.text).split(MARK)
    assert len(parts) == 2 * len(steps) + 1, terminal.text[-2000:]
    for step, shown, code in zip(steps, parts[::2], parts[1::2], strict=False):
        where = f"line {step.line}: $ {step.command}\n{shown}"
        assert int(code) == step.exit_code, where
        assert missing_line(step.expected, shown) is None, where


def _links(path: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield each link of a page into the repository: as it is written, its file, its heading."""
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?", path.read_text("utf-8")):
        if link.startswith(PUBLISHED):  # README is also read where there are no files beside it
            yield link, REPOSITORY / link.removeprefix(PUBLISHED), anchor
        elif not re.match("[a-z]+:", link):
            yield link, path.parent / link if link else path, anchor


def test_links_lead_somewhere() -> None:
    lost = [
        f"{path.name}: {link}#{anchor}"
        for path in PAGES
        for link, target, anchor in _links(path)
        if not target.exists()
        or (anchor and target.suffix == ".md" and anchor not in _headings(target))
    ]
    assert lost == []


def _headings(page: Path) -> set[str]:
    """The anchors of a page, as its renderers make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", each) for each in words}


def test_a_page_of_evidence_begins_with_its_circumstances() -> None:
    pages = [path for path in (DOCS / "evidence").glob("*.md") if path.stem != "README"]
    first = {
        path.name: re.findall(r"^\| (\w+) \| \S", path.read_text("utf-8"), re.MULTILINE)[:6]
        for path in pages
    }
    required = ["field", "date", "command", "commit", "machine", "load"]
    assert {name: fields for name, fields in first.items() if fields != required} == {}


def test_no_printed_line_goes_on_with_a_name_that_could_not_be_made() -> None:
    """The exit code of ``$(…)`` is kept by an assignment alone."""
    examples = [p for p in (REPOSITORY / "examples").rglob("*") if p.is_file()]
    lost = [
        f"{path.name}: {line.strip()}"
        for path in (*PAGES, *examples)
        for line in path.read_text("utf-8").splitlines()
        if "$(jaxcache ci key" in line
        and not re.search(r"(^|[\s`;])\w+=[^\s=]*\$\(jaxcache ci key", line)
    ]
    assert not lost


def test_pages_name_options_that_their_commands_have() -> None:
    options = {name: {n for o in read_command(name).options for n in o.names} for name in COMMANDS}
    known = set().union(*options.values())
    of_command = re.compile(r"(?:jaxcache |`)((?:ci |target |trust )?[a-z-]+)( [^`\n|]*)")
    wrong = [
        f"{path.name}: {command} {option}"
        for path in PAGES
        for command, words in of_command.findall(path.read_text("utf-8"))
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", words.partition(" -- ")[0])
        if command in options and option in known - options[command]
    ]
    assert wrong == []


def test_the_page_on_exit_codes_has_each() -> None:
    page = (DOCS / "exit-codes.md").read_text("utf-8")
    assert [int(c) for c in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == list(EXIT_MEANINGS)


def test_the_reader_sees_a_difference() -> None:
    """The comparison above can fail."""
    shown = "KEY   SIZE\njit_f-0123456789ab   1.2 kB   3 s\n2 entries, 5 kB\n"
    assert missing_line(("KEY  SIZE", "…", "7 entries, 9 kB"), shown) is None
    assert missing_line(("jit_f-ba9876543210  4.4 MB  1m 2s",), shown) is None
    assert missing_line(("jit_g-ba9876543210  4.4 MB  12 s",), shown) is not None
    assert missing_line(("2 entries, 5 kB", "KEY SIZE"), shown) == "KEY SIZE"


@pytest.mark.jax
@pytest.mark.slow
@WITH_JAX
def test_the_pictures_show_what_their_commands_print(tmp_path: Path) -> None:
    make = "import sys; from tools.pictures import Path, make; make(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", make, tmp_path], cwd=REPOSITORY, check=True)
    for made in tmp_path.glob("*.svg"):
        shown, fresh = (
            set(re.findall(r"[A-Za-z_]{4,}", " ".join(re.findall(r"<text [^>]*>([^<]*)<", text))))
            for text in (
                (directory / made.name).read_text("utf-8").replace("&#160;", " ")
                for directory in (DOCS / "pictures", tmp_path)
            )
        )
        assert len(shown - fresh) < 0.1 * len(shown), (made.name, shown - fresh)


@pytest.mark.slow
def test_the_site_builds_strictly_and_asks_nobody(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: the group docs")
    build = (sys.executable, "-W", "default", "-m", "mkdocs", "build", "--strict", "--quiet")
    done = sh(
        [*build, "--site-dir", tmp_path / "site"],
        cwd=REPOSITORY,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(list(DOCS.glob("*.md")))  # evidence is for readers of the repository
    loads = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(?:https?:)?//|"
        r"<link[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon)[^>]*href=[\"']?(?:https?:)?//"
    )
    assert not [page for page in pages if loads.search(page.read_text("utf-8"))]
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text("utf-8"))


# The Python interface: its page, its help, each example.


def test_the_page_about_it_is_true(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_copy(tmp_path / "cache", corpus / "0.12.0.1-cuda13-h200-zstd")
    monkeypatch.chdir(tmp_path)
    page = str(DOCS / "api.md")
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(page, module_relative=False, optionflags=flags)
    assert (failed, tried > 15) == (0, True)


def test_every_command_has_a_counterpart_that_is_there() -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (`.*?) \| (`.*?) \|$", page, re.MULTILINE))
    named = {word for cell in rows for word in re.findall(r"`([a-z -]+)`", cell)}
    assert named == set(COMMANDS) - {"completion"}
    for cell in rows.values():
        for call in re.findall(r"`([A-Za-z_.]+)`", cell):
            module, _, name = call.rpartition(".")
            owner = import_module(module) if module else jaxcache.Cache
            assert hasattr(owner, name), call


_PROGRAM = """\
import jax

def double(x):
    return x + x

if __name__ == "__main__":
    print(jax.jit(double)(jax.numpy.ones(3)))
"""
#: These run the user's jax: two of them in each test of a change, for all take seconds.
_RUNS_JAX = {
    *("warm", "warm_function", "run", "compile", "explain_script", "diagnose", "examine"),
    *("hlo", "open_recipe"),
}
_ALWAYS = {"warm", "hlo"}


def methods() -> Iterator[Any]:
    """Yield each function of the interface that works on a cache, as a case."""
    for name in ("open", *(name for name in dir(jaxcache.Cache) if not name.startswith("_"))):
        method = jaxcache.open if name == "open" else getattr(jaxcache.Cache, name)
        marks = [pytest.mark.jax, WITH_JAX] if name in _RUNS_JAX else []
        marks += [pytest.mark.slow] if name in _RUNS_JAX - _ALWAYS else []
        if callable(method):
            yield pytest.param(method, id=name, marks=marks)


@pytest.mark.parametrize("method", list(methods()))
def test_the_example_of_each_method_is_true(
    method: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.chdir(tmp_path)
    old_copy(Path("cache"), corpus / "0.10.2-cpu-zstd")
    Path("train.py").write_text(_PROGRAM)
    other = jaxcache.open("other", create=True)
    known = {"sys": sys, "jaxcache": jaxcache, "cache": jaxcache.open("cache"), "other": other}
    (found,) = doctest.DocTestFinder(recurse=False).find(method, globs=known, module=False)
    printed: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=printed.append)
    assert found.examples and printed == []
