"""Results that print as text, and as HTML in a notebook."""

import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxcache.render.view import Block


class Shown:
    """A result that prints as its command prints it."""

    def _blocks(self) -> "Iterable[Block]":
        raise NotImplementedError

    def __str__(self) -> str:
        from jaxcache.render.typeset import set_blocks

        width = shutil.get_terminal_size((100, 24)).columns
        return "\n".join(set_blocks(self._blocks(), width=width, color=False))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from jaxcache.render.html import set_html

        return set_html(self._blocks())
