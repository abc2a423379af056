"""Sketch the programs that a process compiles, while JAX compiles them.

Printing a module is C++, and takes one percent of its compile. Reading the text is Python, and is
done by a thread of its own, mostly while XLA compiles, which needs no Python.

Private names of JAX, tried on 0.4.30 to 0.12: the functions ``cache_miss`` and ``jit_lower`` of
``jax/_src/pjit.py`` with their local names ``args``, ``kwargs``, ``jit_info`` and ``jit_func``;
``_resolve_and_lower`` there, with ``jaxpr``. Where a release has others, a sketch has no static
values.
"""

import contextlib
import enum
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from traceback import walk_stack
from typing import Any

from .seams import current_settings
from .threads import Background

#: Text that waits for the thread; a module beyond it has no sketch.
_MAX_WAITING_CHARACTERS = 256 << 20
#: A constant with more elements is left out of the text.
_MAX_ELEMENTS = 8
_MAX_STATIC_CHARACTERS = 64
_MAX_STATIC = 32
_MAX_FIELDS_CHARACTERS = 512

Take = Callable[[str], Any]


class Sketcher:
    """A thread that makes sketches, begun with the first of them."""

    def __init__(self) -> None:
        self._background = Background("sketches", lambda _: None)  # a module without a sketch
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._background.reset()
        self._lock = threading.RLock()
        self._waiting_characters = 0

    def sketch(self, computation: Any, facts: "dict[str, Any]", take: Take) -> None:
        """Have a module sketched; ``take`` gets the sketch in another thread.

        Args:
            computation: the MLIR module, before it is compiled.
        """
        text = computation.operation.get_asm(
            enable_debug_info=True, print_generic_op_form=True, large_elements_limit=_MAX_ELEMENTS
        )
        with self._lock:
            if self._waiting_characters + len(text) > _MAX_WAITING_CHARACTERS:
                return
            self._waiting_characters += len(text)
        self._background.submit(functools.partial(self._make, text, facts, take))

    def _make(self, text: str, facts: "dict[str, Any]", take: Take) -> None:
        from .sketch import make_sketch  # 15 ms that a program without misses is spared

        try:
            if blob := make_sketch(text, facts):
                take(blob)
        finally:
            with self._lock:
                self._waiting_characters -= len(text)

    def finish(self, seconds: float) -> None:
        """Wait until all sketches are made, at most this many seconds."""
        self._background.finish(seconds)


def describe_process() -> "dict[str, Any]":
    """Return the settings and the hash seed, which programs of this process depend on."""
    described: dict[str, Any] = {"hash_seed": hash_seed()}
    with contextlib.suppress(Exception):  # a JAX whose registry of settings is another
        described["config"] = {name: value for name, value in current_settings().items() if value}
    return described


def hash_seed() -> str:
    """Return ``PYTHONHASHSEED`` of this process; ``random`` where Python chose it."""
    seed = os.environ.get("PYTHONHASHSEED") or "random"
    return seed if sys.flags.hash_randomization else "0"


def describe_call() -> "dict[str, Any]":
    """Return the static values and all arguments of the ``jit`` that is called in this thread."""
    described: dict[str, Any] = {}
    for frame, _ in walk_stack(sys._getframe(1)):
        code = frame.f_code
        if code.co_name in _FRAMES and code.co_filename.endswith(("pjit.py", "stages.py")):
            values = frame.f_locals
            if code.co_name == "_resolve_and_lower":
                described.setdefault("passed", _passed(values.get("jaxpr")))
            else:
                info = values.get("jit_info") or getattr(values.get("jit_func"), "_jit_info", None)
                described["static"] = _static(info, values.get("args"), values.get("kwargs"))
                break
    return described


_FRAMES = frozenset({"cache_miss", "jit_lower", "_resolve_and_lower"})


def _static(info: Any, args: Any, kwargs: Any) -> "dict[str, str]":
    """Return the static arguments by name, those that are small values."""
    signature = getattr(info, "fun_signature", None)
    names = list(signature.parameters) if signature else []
    values = {
        names[number] if 0 <= number < len(names) else str(number): args[number]
        for number in info.static_argnums
        if -len(args) <= number < len(args)
    }
    values.update({name: kwargs[name] for name in info.static_argnames if name in kwargs})
    return {name: _value(value) for name, value in list(values.items())[:_MAX_STATIC]}


def _value(value: Any) -> str:
    """Return a value of Python's own as text, of an object its fields, of any other its type."""
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)[:_MAX_STATIC_CHARACTERS]
    if type(value) is tuple and len(value) <= 8:
        return f"({', '.join(map(_value, value))})"[:_MAX_STATIC_CHARACTERS]
    name = type(value).__name__
    if isinstance(value, enum.Enum):
        return f"{name}.{value.name}"
    names = getattr(value, "__dataclass_fields__", None) or getattr(value, "_fields", None)
    if not names:
        return name
    fields = ((n, getattr(value, n, None)) for n in names)
    shown = ", ".join(f"{n}={_digest(v) if type(v) is str else _value(v)}" for n, v in fields)
    return f"{name}({shown})"[:_MAX_FIELDS_CHARACTERS]


def _digest(text: str) -> str:
    """Return a text of an object's as a digest: it may be a path, or a secret."""
    return "#" + hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()


def _passed(jaxpr: Any) -> "list[list[Any]]":
    """Return name, type and whether it is weak of each argument, used or not."""
    avals = jaxpr.in_avals
    names = getattr(jaxpr.jaxpr.debug_info, "arg_names", None) or [""] * len(avals)
    return [
        [
            str(name or ""),
            aval.str_short(short_dtypes=True),
            bool(getattr(aval, "weak_type", False)),
        ]
        for name, aval in zip(names, avals, strict=False)
    ]
