"""The documentation: commands and examples are run, links lead somewhere, every name is there.

A page is run from top to bottom in one shell, in an empty directory. A block ``console`` holds
commands behind ``$`` and, where it has any, what they print; a block with ``title="NAME"`` is a
file that is written. HTML comments in front of a block say what a reader knows from the text:

* ``<!-- not run: REASON -->``: it needs hardware, a secret, a service, or minutes.
* ``<!-- before: COMMAND -->``: what lies there already, such as a file of the reader's own.
* ``<!-- exits N -->``: the last command of the block ends with that code.
"""

import doctest
import importlib.util
import os
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import time
import xml.dom.minidom
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import sh
from terminal import Terminal, without_style

import jaxcache
from jaxcache.cli.commands import COMMANDS
from jaxcache.core.machine import CACHE_PATH
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


@dataclass(frozen=True, slots=True)
class Page:
    """What a page asks a reader to do."""

    path: Path
    steps: tuple[Step, ...]
    not_run: tuple[tuple[int, str], ...]
    """(line, reason) of each block that no test can run."""

    @property
    def needs_jax(self) -> bool:
        """Whether it compiles something."""
        starts = ("warm", "run", "explain", "ci", "compile", "target", "where", "doctor")
        words = (re.findall(r"(?:^|[|;&(] *)jaxcache +(\w+)", s.command) for s in self.steps)
        return any(word in starts for found in words for word in found)

    def script(self) -> str:
        """A shell script that does it all."""
        lines = []
        for step in self.steps:
            quoted = shlex.quote(step.command)
            lines.append(f"eval {quoted}; printf '{MARK}%s{MARK}' $?")
        return "\n".join(lines) + "\n"


def read_page(path: Path) -> Page:
    """Read a page's blocks."""
    text = path.read_text("utf-8")
    steps: list[Step] = []
    not_run: list[tuple[int, str]] = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        notes = [(kind, value) for kind, value in _NOTE.findall(match["notes"])]
        cut = len(match["indent"])
        body = [x[cut:] for x in match["body"].splitlines()]
        if reasons := [value for kind, value in notes if kind == "not run:"]:
            not_run.append((line, reasons[0]))
            continue
        steps += [Step(line, value) for kind, value in notes if kind == "before:"]
        code = next((int(value) for kind, value in notes if kind == "exits"), 0)
        if title := _TITLE.search(match["extra"]):
            steps.append(Step(line, _write(title[1], body)))
        elif match["language"] == "console":
            if not (found := _commands(body, line, code)):
                raise ValueError(f"{path.name}:{line}: no command behind $ in this block")
            steps += found
    return Page(path, tuple(steps), tuple(not_run))


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
    if steps and exit_code:
        last = steps[-1]
        steps[-1] = Step(last.line, last.command, last.expected, exit_code)
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
WITH_COMMANDS = [page for path in PAGES if (page := read_page(path)).steps]
#: What every change is tested against; the other pages take minutes together.
_ALWAYS = {"README.md"}


def page_id(page: Page) -> str:
    return page.path.relative_to(REPOSITORY).as_posix()


def page_marks(page: Page) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.jax] if page.needs_jax else []
    return marks if page_id(page) in _ALWAYS else [*marks, pytest.mark.slow]


PUBLISHED = "https://github.com/jaxcache/jaxcache/blob/main/"
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=page_id(p), marks=page_marks(p))
        for p in WITH_COMMANDS
        if p.path != TUTORIAL
    ],
)
def test_every_command_of_a_page(page: Page, tmp_path: Path) -> None:
    if page.needs_jax and not importlib.util.find_spec("jax"):
        pytest.skip("jax is not installed beside jaxcache")
    follow(page, tmp_path)


@pytest.mark.jax
def test_the_tutorial_ends_in_hits_after_the_move(each_jax_python: str, tmp_path: Path) -> None:
    shown = follow(read_page(TUTORIAL), tmp_path, each_jax_python)
    moved = shown["jaxcache warm --portable --fail-on-miss -C elsewhere train.py"]
    assert re.search(r"jit_step .*?hit", moved)
    assert not re.search(r"jit_step \S+ written", moved)
    version = subprocess.check_output(
        [each_jax_python, "-c", "import jaxlib.version as v; print(v.__version__)"], text=True
    )
    said = "contain the cache's path" in shown["jaxcache export cache.jxb"]
    assert said is CACHE_PATH.holds(version)
    assert "contain the cache's path" not in shown["jaxcache export portable.jxb -C portable"]


#: Gives the commands that start a Python the one that is to have jax.
_JAXCACHE = """#!/bin/sh
case "$1" in
  warm|import) command=$1; shift; set -- "$command" --python {jax} "$@" ;;
esac
exec {python} -m jaxcache "$@"
"""


def follow(page: Page, tmp_path: Path, jax: str | None = None) -> dict[str, str]:
    """Do what a page says, in an empty directory; return what each command printed.

    Args:
        jax: the Python that has jax; by default our own, without saying so.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in (("jaxcache", "-m jaxcache"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (tools / name).chmod(0o755)
    if jax:
        (tools / "jaxcache").write_text(_JAXCACHE.format(jax=jax, python=sys.executable))
    home = tmp_path / "home"
    home.mkdir()
    (home / "page.sh").write_text(page.script())
    for name in ("tests", "examples"):
        (home / name).symlink_to(REPOSITORY / name)
    terminal = Terminal(
        ["bash", "--norc", "page.sh"],
        home=home,
        width=100,
        env={
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONWARNINGS": "",
            "HOME": str(home),
            "JAX_PLATFORMS": "cpu",
        },
    )
    terminal.finish(timeout=600)
    parts = without_style(terminal.text).split(MARK)
    assert len(parts) == 2 * len(page.steps) + 1, terminal.text[-2000:]
    for step, shown, code in zip(page.steps, parts[::2], parts[1::2], strict=False):
        where = f"{page.path.name}:{step.line}: $ {step.command}\n{shown}"
        assert int(code) == step.exit_code, where
        assert missing_line(step.expected, shown) is None, where
    return {
        step.command: " ".join(shown.split())
        for step, shown in zip(page.steps, parts[::2], strict=False)
    }


def test_what_is_not_run_has_a_reason() -> None:
    reasons = [(path.name, reason) for path in PAGES for _, reason in read_page(path).not_run]
    assert [each for each in reasons if len(each[1].split()) < 2] == []


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
    places = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    places += [p for p in (REPOSITORY / "examples").rglob("*") if p.is_file()]
    lost = [
        f"{path.name}: {line.strip()}"
        for path in places
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


def test_the_first_page_shows_every_picture_and_each_is_small_and_loads_nothing() -> None:
    pictures = {picture.name: picture for picture in (DOCS / "pictures").iterdir()}
    assert pictures.keys() == {"start.svg", "explain.svg", "report.webp", "kubernetes.svg"}
    page = (DOCS / "index.md").read_text("utf-8")
    assert {*re.findall(r"\]\(pictures/([^)]*)\)", page)} == pictures.keys()
    for name, picture in pictures.items():
        assert picture.stat().st_size < 60_000, name
        if picture.suffix == ".svg":
            text = picture.read_text("utf-8")
            assert xml.dom.minidom.parseString(text).documentElement.tagName == "svg", name
            assert not re.search(r"(?:url\(|href=)[\"']?(?!#|[\"']?#)", text), name


@pytest.mark.jax
@pytest.mark.slow
def test_the_pictures_show_what_their_commands_print(tmp_path: Path) -> None:
    if not importlib.util.find_spec("jax"):
        pytest.skip("jax is not installed beside jaxcache")
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
    for page in pages:
        assert not loads.search(page.read_text("utf-8")), page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text("utf-8"))


# The Python interface: its page, its help, each example.


def test_help_begins_with_what_a_user_needs() -> None:
    text = pydoc.render_doc(jaxcache, renderer=pydoc.plaintext)
    start = text.partition("PACKAGE CONTENTS")[0]
    assert "PYTEST" not in start.partition("help(jaxcache.open)")[0]
    assert all(f"\n    {name}" in start for name in ("open(", "watch(", "enable(", "JaxcacheError"))
    shown = pydoc.render_doc(jaxcache.watch, renderer=pydoc.plaintext)
    with jaxcache.watch() as report:
        names = dir(report)
    for name in ("compile_requests", "hits", "compile_seconds", "modules", "functions", "notes"):
        assert f"``{name}``" in shown
        assert name in names


def test_the_page_about_it_is_true(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(corpus / "0.12.0.1-cuda13-h200-zstd", tmp_path / "cache")
    make_older(tmp_path / "cache")
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
#: These run the user's jax.
_RUNS_JAX = {
    *("warm", "warm_function", "run", "compile", "explain_script", "diagnose", "examine"),
    *("hlo", "open_recipe"),
}


def make_older(cache: Path) -> None:
    """Make the entries of a cache a day old."""
    dated_ns = time.time_ns() - 86_400 * 10**9
    for file in cache.iterdir():
        os.utime(file, ns=(dated_ns, dated_ns))


def public_methods() -> list[str]:
    names = [name for name in dir(jaxcache.Cache) if not name.startswith("_")]
    return [name for name in names if callable(getattr(jaxcache.Cache, name))]


@pytest.mark.parametrize(
    "with_jax", [False, pytest.param(True, marks=pytest.mark.jax)], ids=["alone", "with jax"]
)
def test_the_example_of_each_method_is_true(
    with_jax: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_jax:
        pytest.importorskip("jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    wrong = {}
    for name in (*public_methods(), "open"):
        if (name in _RUNS_JAX) == with_jax:
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            make_older(shutil.copytree(corpus / "0.10.2-cpu-zstd", Path("cache")))
            Path("train.py").write_text(_PROGRAM)
            wrong[name] = fault_of_example(name)
    assert {name: fault for name, fault in wrong.items() if fault} == {}


def fault_of_example(name: str) -> str:
    """What is wrong with the example of a method, run here; empty if it is true."""
    known = {
        "sys": sys,
        "jaxcache": jaxcache,
        "cache": jaxcache.open("cache"),
        "other": jaxcache.open("other", create=True),
    }
    method = jaxcache.open if name == "open" else getattr(jaxcache.Cache, name)
    found = doctest.DocTestFinder(recurse=False).find(method, name, globs=known, module=False)
    if not found or not found[0].examples:
        return "no example"
    printed: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found[0], out=printed.append)
    return "".join(printed)
