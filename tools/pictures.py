"""Make the pictures of the site's first page from what the commands print: ``python tools/pictures.py``.

The program is the one of README.md. The pictures load no font, and nothing else, from elsewhere.
"""

import re
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from terminal import Terminal

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
_WIDTH = 84
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
#: What each picture shows; a command before it prepares and is not shown.
_SHOWN = {
    "table": ("true", ("jaxcache warm train.py", "jaxcache ls --sort compile --limit 4")),
    "explain": ("sed -i s/gelu/silu/ train.py", ("jaxcache explain train.py",)),
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
        (commands / "jaxcache").write_text(f'#!/bin/sh\nexec {sys.executable} -m jaxcache "$@"\n')
        (commands / "jaxcache").chmod(0o755)
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
            svg = draw(terminal.text.replace(name, "~").strip("\n"), picture)
            (directory / f"{picture}.svg").write_text(svg, "utf-8")


def draw(text: str, picture: str) -> str:
    """Return a terminal's text, with its colours, as an image."""
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text))
        return console.export_svg(title="", code_format=_FORMAT, unique_id=picture)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    make(PICTURES)
