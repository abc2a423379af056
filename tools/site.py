"""What the site needs beyond mkdocs: links that leave ``docs/`` for the repository become text."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)[^)]*\)")
_EVIDENCE = re.compile(r"\[([^\]]+)\]\((evidence/[^)#\s]*)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name the file instead of linking to it: the site does not know where the repository is."""
    for pattern, folder in ((_OUTSIDE, ""), (_EVIDENCE, "docs/")):
        markdown = pattern.sub(rf"\1 (`{folder}\2` in the repository)", markdown)
    return markdown
