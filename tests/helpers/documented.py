"""The commands and files that the documentation shows, and running them as a reader would.

A page is run from top to bottom in one shell, in an empty directory. A block ``console`` holds
commands behind ``$`` and, where it has any, what they print; a block with ``title="NAME"`` is a
file that is written. HTML comments in front of a block say what a reader knows from the text:

* ``<!-- not run: REASON -->``: it needs hardware, a secret, a service, or minutes.
* ``<!-- before: COMMAND -->``: what lies there already, such as a file of the reader's own.
* ``<!-- exits N -->``: the last command of the block ends with that code.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

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
