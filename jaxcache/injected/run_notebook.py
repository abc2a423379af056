"""Run the code cells of a notebook in their order, as one program; runs in the user's Python.

The working directory is that of the notebook. Where IPython is installed its shell runs them, so
that magics work and cells may ``await``. Without it, lines with magics are left out. ``argv[1]`` is
the notebook, the rest are its arguments.
"""

import ast
import contextlib
import json
import os
import sys
from typing import Any

_CANNOT = 2


def read_cells(path: str) -> "list[str]":
    """The source of each code cell (nbformat 4)."""
    with open(path, encoding="utf-8") as file:
        cells = json.load(file)["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def without_magics(cell: str) -> "tuple[str, int]":
    """A cell as plain Python, and how many lines were left out."""
    with contextlib.suppress(SyntaxError):
        ast.parse(cell)
        return cell, 0
    lines = cell.splitlines()
    if lines and lines[0].startswith("%%"):
        if lines[0].split()[0] not in ("%%time", "%%capture", "%%jaxcache"):
            return "", len(lines)
        body, left_out = without_magics("\n".join(["", *lines[1:]]))
        return body, left_out + 1
    magics = [line.lstrip().startswith(("%", "!")) for line in lines]
    kept = [
        line[: len(line) - len(line.lstrip())] + "pass" if magic else line
        for line, magic in zip(lines, magics, strict=True)
    ]
    return "\n".join(kept), sum(magics)


def run_plainly(path: str, cells: "list[str]") -> int:
    """Run cells without IPython."""
    program = type(sys)("__main__")
    sys.modules["__main__"] = program
    left_out = 0
    for number, cell in enumerate(cells, 1):
        text, magics = without_magics(cell)
        left_out += magics
        exec(compile(text, f"{path}[{number}]", "exec"), program.__dict__)  # noqa: S102
    if left_out:
        print(
            f"jaxcache: {left_out} lines with magics left out of {path}: no IPython here",
            file=sys.stderr,
        )
    return 0


def run_in_shell(shell_class: Any, cells: "list[str]") -> int:
    """Run cells as a kernel would; the first that fails ends the program."""
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = shell_class.instance(config=config)
    for number, cell in enumerate(cells, 1):
        shell.execution_count = number
        if not shell.run_cell(cell).success:
            return 1
    return 0


def main() -> int:
    """Run the notebook."""
    path = sys.argv[1]
    sys.argv[:] = sys.argv[1:]
    directory = os.path.dirname(os.path.abspath(path))
    sys.path[0] = directory
    try:
        cells = read_cells(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"jaxcache: {path} is not a notebook of format 4: {error}", file=sys.stderr)
        return _CANNOT
    os.chdir(directory)  # as Jupyter and nbconvert start a kernel
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        return run_plainly(path, cells)
    return run_in_shell(InteractiveShell, cells)


if __name__ == "__main__":
    sys.exit(main())
