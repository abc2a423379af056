"""Generate completions, man pages and the command reference from the command line itself.

``python tools/gen.py`` writes ``completions/``, ``man/``, ``docs/configuration.md``, ``docs/schemas/``
and the types of keywords; ``--check`` writes nothing and fails where a file differs. What is written depends on the commands alone, not on Typer's version.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from jaxcache.cli.commands import COMMANDS  # noqa: E402
from tools.generate.commands import read_command  # noqa: E402
from tools.generate.completions import bash, fish, zsh  # noqa: E402
from tools.generate.configuration import configuration  # noqa: E402
from tools.generate.keywords import keywords  # noqa: E402
from tools.generate.pages import man_command, man_root, page_of  # noqa: E402
from tools.generate.releases import CHANGES  # noqa: E402
from tools.generate.schemas import schemas  # noqa: E402

#: Where the table of releases stands in its page.
_RELEASES = "<!-- releases: written by tools/gen.py from tools/generate/releases.py -->"
_END = "<!-- end -->"


def generate() -> dict[Path, str]:
    """Every generated file with its text."""
    commands = [read_command(name) for name in COMMANDS]
    files = {
        ROOT / "completions" / "jaxcache.bash": bash(commands),
        ROOT / "completions" / "_jaxcache": zsh(commands),
        ROOT / "completions" / "jaxcache.fish": fish(commands),
        ROOT / "man" / "jaxcache.1": man_root(commands),
        ROOT / "docs" / "configuration.md": configuration(),
        ROOT / "jaxcache" / "options" / "keywords.pyi": keywords(),
    }
    files |= {ROOT / "docs" / "schemas" / name: text for name, text in schemas().items()}
    explain = ROOT / "docs" / "explain.md"
    before, start, rest = explain.read_text("utf-8").partition(_RELEASES)
    after = rest[rest.index(_END) :]
    files[explain] = "\n".join((before + start, *_rules_table(), after))
    for command in commands:
        files[ROOT / "man" / f"{page_of(command)}.1"] = man_command(command)
    return files


def _rules_table() -> list[str]:
    """The changes between releases of JAX as lines of a Markdown table."""
    return [
        "| in | what | JAX | source in `jax/_src` |",
        "|---|---|---|---|",
        *(f"| `{c.part}` | {c.text} | {c.releases} | `{c.source}` |" for c in CHANGES),
    ]


def main() -> int:
    """Write the files, or with ``--check`` say which are out of step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    files = generate()
    present = {
        p
        for directory in ("completions", "man", "docs/schemas")
        for p in (ROOT / directory).glob("*")
    }
    stale = [p for p, text in files.items() if not p.exists() or p.read_text("utf-8") != text]
    surplus = sorted(present - set(files))
    for path in (*stale, *surplus):
        print(f"{'out of step' if check else 'updated'}: {path.relative_to(ROOT)}")
    if check:
        return 1 if stale or surplus else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path], "utf-8")
    for path in surplus:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
