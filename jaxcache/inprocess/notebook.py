"""``%load_ext jaxcache``: ``%jaxcache``, ``%jaxcache report`` and ``%%jaxcache`` in IPython."""

import ast
import os
import sys
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from jaxcache.inprocess import watch

if TYPE_CHECKING:
    from jaxcache.render.view import Block

_REPORT_PIXELS = 900


def load_ipython_extension(shell: Any) -> None:
    """Add the magics, and begin to watch the kernel."""
    kernel = watch.Observation().start()
    watch.remember(kernel)

    def magic(line: str, cell: "str | None" = None) -> Any:
        if cell is not None:
            kernel.record()  # the cells before, which the next may have edited
            return run_cell(shell, cell)
        if line.strip() == "report":
            return _picture()
        if line.strip():
            from IPython.core.error import UsageError

            raise UsageError(f"%jaxcache accepts report or no argument (got {line.strip()})")
        return Status(kernel)

    shell.register_magic_function(magic, "line_cell", "jaxcache")


class Status(watch.Printable):
    """The cache of this kernel, and what the kernel has done with it since ``%load_ext``."""

    def __init__(self, kernel: watch.Observation) -> None:
        self._kernel = kernel

    def _blocks(self) -> "Iterable[Block]":
        from jaxcache.render.view import Line
        from jaxcache.render.warm import headline

        directory = _directory()
        if not directory:
            yield "JAX has no cache directory; jaxcache.enable() sets one"
        else:
            yield Line(directory, "cache   ")
            if "://" not in directory:
                yield Line(_contents(directory), "holds   ")
        layer = getattr(sys.modules.get("jaxcache.live.layer"), "LAYER", None)
        yield Line("off" if layer is None else "on", "live    ")
        yield Line(headline(self._kernel.report), "kernel  ")


def _directory() -> str:
    """The directory that JAX is set to use; empty without one."""
    jax = sys.modules.get("jax")
    return str(getattr(jax.config, "jax_compilation_cache_dir", None) or "") if jax else ""


def _contents(directory: str) -> str:
    """How many entries a local directory has, read with the standard library alone."""
    from jaxcache.core.names import CACHE_SUFFIX, is_key
    from jaxcache.units import format_count, format_size

    try:
        with os.scandir(directory) as files:
            sizes = [
                file.stat().st_size
                for file in files
                if is_key(file.name.removesuffix(CACHE_SUFFIX))
            ]
    except OSError as error:
        return f"nothing that can be read: {error.strerror}"
    return f"{format_count(len(sizes), 'entry')}, {format_size(sum(sizes))}"


def _picture() -> Any:
    """The page of ``jaxcache report`` in a frame, without the script that draws charts."""
    from IPython.core.error import UsageError
    from IPython.display import HTML

    from jaxcache.api import open as open_cache
    from jaxcache.errors import JaxcacheError

    try:
        page = open_cache(_directory() or None).report(charts=False)
    except JaxcacheError as error:
        raise UsageError(
            f"{error.message}; {error.hint}" if error.hint else error.message
        ) from None
    style = f"width:100%;height:{_REPORT_PIXELS}px;border:0"
    frame = f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'
    return HTML(f"<div>{frame}</div>")  # IPython warns of a bare frame


def run_cell(shell: Any, cell: str) -> Any:
    """Run a cell as if it had no magic, and show what it compiled; an error of it is raised."""
    from IPython.display import display

    running = shell.displayhook.exec_result
    # IPython 9 raises execution_count before the cell runs; IPython 8 does so after it, and there
    # the result has a number only where the cell is kept in the history.
    number = getattr(running, "execution_count", None) or shell.execution_count
    # Lines are those of the whole cell, with the line of the magic.
    raw_cell = running.info.raw_cell if running else f"\n{cell}"
    above = "\n" * (raw_cell.rstrip().count("\n") - cell.rstrip().count("\n"))
    tree = shell.transform_ast(shell.compile.ast_parse(above + shell.transform_cell(cell)))
    name = shell.compile.cache(above + cell, number)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    observation = watch.Observation().start()
    watch.remember(observation)
    try:
        exec(shell.compile(tree, name, "exec"), shell.user_ns)  # noqa: S102
        if last is not None and not cell.rstrip().endswith(";"):
            value = eval(  # noqa: S307
                shell.compile(ast.Expression(last.value), name, "eval"), shell.user_ns
            )
        elif last is not None:
            exec(shell.compile(ast.Module([last], []), name, "exec"), shell.user_ns)  # noqa: S102
    finally:
        observation.stop()
        display(observation)
    return value
