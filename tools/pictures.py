"""Make the pictures of the site's first page from what the commands print: ``python tools/pictures.py``.

The program is the one of README.md; of ``start`` it is ``examples/train.py``, which compiles for
seconds. The pictures load no font, and nothing else, from elsewhere.
"""

import base64
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from browser import BROWSERS, open_browser
from terminal import Terminal

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
_WIDTH = 84
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
_PULL = 'jaxcache pull "$STORE/$(jaxcache ci key)" 2>&1 | tail -n 1'
_SERVE = "jaxcache run -- python train.py 2>&1 | head -n 3"
_WARM = "jaxcache warm train.py"
#: Of each report of a run in ``start`` so many lines are shown, and none of the program's own.
_EXCERPT = 4
#: What each picture shows; a command before it prepares and is not shown.
_SHOWN = {
    "explain": (
        f"{_WARM} > filled 2>&1; sed -i s/gelu/silu/ train.py",
        ("jaxcache explain train.py",),
    ),
    "kubernetes": (
        "export STORE=$PWD/store JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0; rm -r jax-cache",
        (
            "# the first pod, as in examples/kubernetes/init-container.yaml",
            _PULL,
            _SERVE,
            'jaxcache push "$STORE/$(jaxcache ci key)" 2>&1 | tail -n 1',
            "# the next pod",
            f"rm -r jax-cache; {_PULL}",
            _SERVE,
        ),
    ),
    "start": (
        f"cp {ROOT}/examples/train.py train.py; rm -r jax-cache",
        (_WARM, _WARM, "sed -i s/gelu/silu/ train.py", _WARM),
    ),
}


def make(directory: Path) -> None:
    """Write every picture into a directory."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        readme = (ROOT / "README.md").read_text("utf-8")
        program = re.search(r'```python title="train.py"\n(.*?)```', readme, re.DOTALL)
        assert program
        (home / "train.py").write_text(program[1])
        commands = home / "bin"
        commands.mkdir()
        for command, words in (("jaxcache", "-m jaxcache"), ("python", "")):
            (commands / command).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (commands / command).chmod(0o755)
        env = {
            "PATH": f"{commands}:/usr/bin:/bin",
            "PYTHONWARNINGS": "",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(home / "jax-cache"),
        }
        for picture, (before, shown) in _SHOWN.items():
            lines = [before, *(f"echo '$ {line}'; {line}" for line in shown)]
            terminal = Terminal(
                ["bash", "--norc", "-c", "\n".join(lines)], home=home, width=_WIDTH, env=env
            )
            terminal.finish()
            text = terminal.text.replace(name, "~").strip("\n")
            svg = draw(_excerpt(text) if picture == "start" else text, picture)
            (directory / f"{picture}.svg").write_text(svg, "utf-8")
        page = home / "report.html"
        subprocess.run([commands / "jaxcache", "report", page], env=env, check=True)
        page.write_text(page.read_text("utf-8").replace(name, "~"), "utf-8")
        if browser := next(filter(None, map(shutil.which, BROWSERS)), None):
            (directory / "report.webp").write_bytes(photograph(page, browser))


def _excerpt(text: str) -> str:
    """Return the commands of a terminal's text, and the first lines of each report of a run."""
    lines: list[str] = []
    left = 0
    for line in text.splitlines():
        if line.startswith("$ "):
            lines.append(line)
            left = 0
        elif re.search(r"\d of \d+ hits", line):
            left = _EXCERPT
        if left:
            lines.append(line)
            left -= 1
    return "\n".join(lines)


def photograph(page: Path, program: str) -> bytes:
    """Return the top of an HTML page, as a browser draws it."""
    with open_browser(program) as browser:
        browser.open(page.as_uri())
        shot = browser.call("Page.captureScreenshot", format="webp", quality=70)
        return base64.b64decode(shot["data"])


def draw(text: str, picture: str) -> str:
    """Return a terminal's text, with its colours, as an image."""
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text))
        return console.export_svg(title="", code_format=_FORMAT, unique_id=picture)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    make(PICTURES)
