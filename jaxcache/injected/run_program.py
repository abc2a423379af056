"""Run one function or one notebook in the user's Python.

Started by path as a script, with the listener in it: what the compile does to the cache is reported
as for any script. ``argv[1]`` is ``call`` or ``notebook``.

A function is lowered and compiled for arguments of which only shapes are known; see
``warm/programs.py`` for the form of the call. The parent gets a mistake in the call as
``no-function``.

The code cells of a notebook run in their order, as one program, in the notebook's directory and in
IPython's shell, so that magics work and cells may ``await``.
"""

import importlib
import importlib.util
import json
import os
import sys
from typing import Any

_CANNOT = 2


class CallError(Exception):
    """The call cannot be made; the text gives the reason."""


def find_function(name: str) -> Any:
    """Return the object that ``MODULE:NAME`` or ``FILE.py:NAME`` names; names may have dots."""
    module_name, _, path = name.rpartition(":")
    try:
        if module_name.endswith(".py"):
            member: Any = _load_file(module_name)
        else:
            member = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise CallError(f"cannot import {module_name}: {error}") from error
    for part in path.split("."):
        try:
            member = getattr(member, part)
        except AttributeError as error:
            raise CallError(f"no {path} in {module_name}") from error
    if not callable(member):
        raise CallError(f"{name} is not a function")
    return member


def _load_file(path: str) -> Any:
    path = os.path.abspath(path)
    name = os.path.splitext(os.path.basename(path))[0]
    if not os.path.isfile(path):
        raise CallError(f"no such file: {path}")
    if name in sys.modules:
        return sys.modules[name]
    sys.path[0] = os.path.dirname(path)  # as for a script
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CallError(f"{path} is not a Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Arguments:
    """Builds arguments from JSON.

    Args:
        committed: give arrays the sharding that ``device_put(x, device)`` gives.
    """

    def __init__(self, jax: Any, *, committed: bool) -> None:
        self._jax = jax
        self._more = {}
        if committed:
            device = jax.devices()[0]
            self._more["sharding"] = jax.sharding.SingleDeviceSharding(device)

    def build(self, node: "dict[str, Any]") -> Any:
        """One argument."""
        ((kind, value),) = node.items()
        if kind == "array":
            name, shape = value
            # As a call would: without jax_enable_x64, types have 32 bits.
            dtype = self._jax.dtypes.canonicalize_dtype(name)
            return self._jax.ShapeDtypeStruct(tuple(shape), dtype, **self._more)
        if kind == "key":
            key = self._jax.eval_shape(lambda: self._jax.random.key(0))
            return self._jax.ShapeDtypeStruct(tuple(value), key.dtype, **self._more)
        if kind in ("list", "tuple"):
            items = [self.build(item) for item in value]
            return items if kind == "list" else tuple(items)
        if kind == "dict":
            return {name: self.build(item) for name, item in value.items()}
        return self._call(value) if kind == "call" else value

    def _call(self, call: "dict[str, Any]") -> Any:
        """The shapes of what a function returns."""
        function, args, kwargs, static = read_call(call, self)
        shapes = self._jax.eval_shape(lambda a, k: function(*a, **k, **static), args, kwargs)
        if not self._more:
            return shapes
        commit = self._jax.ShapeDtypeStruct
        return self._jax.tree_util.tree_map(
            lambda leaf: commit(leaf.shape, leaf.dtype, **self._more), shapes
        )


def read_call(call: "dict[str, Any]", arguments: Arguments) -> "tuple[Any, Any, Any, Any]":
    """The function of a call, and its arguments: positional, by keyword, static."""
    return (
        find_function(call["function"]),
        [arguments.build(node) for node in call["args"]],
        {name: arguments.build(node) for name, node in call["kwargs"].items()},
        {name: arguments.build(node) for name, node in call["static"].items()},
    )


def lower(call: "dict[str, Any]") -> Any:
    """Lower a call; a function that is not jitted yet is, with its static arguments."""
    import jax

    function, args, kwargs, static = read_call(call, Arguments(jax, committed=call["committed"]))
    if not hasattr(function, "lower"):
        function = jax.jit(function, static_argnames=tuple(static) or None)
    observer = _target()
    if observer is None:
        return function.lower(*args, **kwargs, **static)
    # Tracing may compute constants here; what it yields is for the target alone.
    traced = function.trace(*args, **kwargs, **static)
    return observer.lower_for_target_only(traced.lower)


def _target() -> Any:
    """The compiler for a host that is not here, where the parent asks for one."""
    observer = sys.modules.get("_jaxcache.injected.cross_observer")
    return observer.OBSERVER if observer else None


def call_function() -> int:
    """Compile the function of the call that is ``argv[1]``, as JSON."""
    call = json.loads(sys.argv[1])
    sys.argv[:] = [call["function"]]  # what the program sees, and what the ledger learns
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # our own directory, whose names must not hide the user's modules
    sys.path.insert(0, os.getcwd())
    try:
        lowered = lower(call)
    except CallError as error:
        # What put the listener into this Python; jax may not have been imported yet.
        sys.modules["_jaxcache_hook"].report({"event": "no-function", "detail": str(error)})
        return _CANNOT
    observer = _target()
    if observer is None:
        lowered.compile()
    else:
        observer.make(lowered._lowering)
    return 0


def read_cells(path: str) -> "list[str]":
    """The source of each code cell (nbformat 4)."""
    with open(path, encoding="utf-8") as file:
        cells = json.load(file)["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


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


def run_notebook() -> int:
    """Run the notebook that is ``argv[1]``; the rest are its arguments."""
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
        print(f"jaxcache: {path} needs IPython: {sys.executable} has none", file=sys.stderr)
        return _CANNOT
    return run_in_shell(InteractiveShell, cells)


if __name__ == "__main__":
    sys.exit(call_function() if sys.argv.pop(1) == "call" else run_notebook())
