"""What the site needs beyond mkdocs.

The page of all commands and the tables of all JSON fields are written when the site is built, and
links that leave ``docs/`` for the repository become text.
"""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))

from jaxcache.cli.commands import COMMANDS
from tools.generate.commands import read_command
from tools.generate.pages import reference
from tools.generate.schemas import field_tables

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)[^)]*\)")
_EVIDENCE = re.compile(r"\[([^\]]+)\]\((evidence/[^)#\s]*)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the page of all commands."""
    page = reference([read_command(name) for name in COMMANDS])
    files.append(File.generated(config, "commands.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Add the fields of JSON; name files outside, since the site does not know the repository."""
    if page.file.src_uri == "json.md":
        markdown += "\n" + field_tables()
    for pattern, directory in ((_OUTSIDE, ""), (_EVIDENCE, "docs/")):
        markdown = pattern.sub(rf"\1 (`{directory}\2` in the repository)", markdown)
    return markdown
