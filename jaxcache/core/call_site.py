"""Where in a program something is compiled, by the stack while JAX lowers it.

Private names of JAX, tried on 0.4.30 to 0.12: ``backward_pass*``, ``linearize*``,
``direct_linearize`` and ``vjp`` of ``jax/_src/interpreters/ad.py``, and ``apply_primitive`` of
``jax/_src/dispatch.py``. Where a release has others, the kind is ``primal``.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from traceback import walk_stack
from typing import Any, NamedTuple

#: Frames that are looked at; a program that recurses deeper has no call site.
_MAX_FRAMES = 400
_DIFFERENTIATING = ("linearize", "direct_linearize", "vjp")


class CallSite(NamedTuple):
    """Where the user's code called what is compiled, and with what."""

    kind: str
    """``primal``, ``linearize``, ``backward`` or ``eager``."""
    file: str
    """Of the innermost frame of the user's own, else of the innermost outside of JAX."""
    line: int
    signature: str
    """Eight hexadecimal digits of what was passed."""


def is_library(file: str) -> bool:
    """Return whether a file is part of an installed package or of Python, and not the user's."""
    if file.startswith("<"):
        return not file.startswith("<ipython-input-")  # a cell is the user's
    path = file.replace("\\", "/")
    if "/site-packages/" in path or "/dist-packages/" in path:
        return True
    return "/" in path.rpartition("/lib/python3")[2] if "/lib/python3" in path else False


def find_call_site(called: "Mapping[str, Any]", lowered: "Mapping[str, Any]") -> CallSite:
    """Return the site of the lowering that goes on in this thread.

    Args:
        called: what :func:`.sketching.describe_call` returns.
        lowered: the arguments of ``lower_jaxpr_to_module`` by name, with ``arguments`` as the event
            of a compile has them.
    """
    kind = ""
    place = ("", 0)
    for frame, line in islice(walk_stack(sys._getframe(1)), _MAX_FRAMES):
        code = frame.f_code
        owner = _find_owner(code.co_filename)
        if owner == "ad":
            kind = kind or _kind_of(code.co_name)
        elif owner == "dispatch":
            kind = kind or ("eager" if code.co_name == "apply_primitive" else "")
        elif owner == "user":
            place = (code.co_filename, line or 0)
            break
        elif owner == "library" and not place[0]:
            place = (code.co_filename, line or 0)
    return CallSite(kind or "primal", *place, _sign(called, lowered))


@cache
def _find_owner(file: str) -> str:
    """Whose a file is: ``user``, ``library``, JAX's ``ad`` and ``dispatch``, or ``none``."""
    path = file.replace("\\", "/")
    if path.endswith("/jax/_src/interpreters/ad.py"):
        return "ad"
    if path.endswith("/jax/_src/dispatch.py"):
        return "dispatch"
    directories = [os.path.dirname(getattr(sys.modules.get("jax"), "__file__", None) or "/jax/")]
    directories.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if file.startswith(tuple(f"{d}{os.sep}" for d in directories)) or "/jaxlib/" in path:
        return "none"
    return "library" if is_library(file) else "user"


def _kind_of(function: str) -> str:
    if function.startswith("backward_pass"):
        return "backward"
    return "linearize" if function.startswith(_DIFFERENTIATING) else ""


def _sign(called: "Mapping[str, Any]", lowered: "Mapping[str, Any]") -> str:
    """Return a digest of types, places and donation of the arguments, and of the static values."""
    passed = called.get("passed") or lowered.get("arguments")
    texts: dict[Any, str] = {None: ""}
    shardings = [_text(s, texts) for s in lowered.get("arg_shardings") or ()]
    donated = list(lowered.get("donated_args") or ())
    facts = (passed, called.get("static"), shardings, donated)
    return hashlib.blake2b(repr(facts).encode("utf-8", "replace"), digest_size=4).hexdigest()


def _text(sharding: Any, texts: "dict[Any, str]") -> str:
    """Return a sharding as text, each only once: most arguments of a program share one."""
    try:
        if sharding not in texts:
            texts[sharding] = str(sharding)
        return texts[sharding]
    except TypeError:
        return str(sharding)


class NamedProgram(NamedTuple):
    """A program as people name it, and what distinguishes it from others of that name."""

    name: str
    """A script as it was named, or ``-m`` and a module; never an absolute path."""
    place: str
    """The real path of its script; else its name and its directory."""


def name_program(argv: "Sequence[str]", directory: str) -> NamedProgram:
    """Name the program of this process.

    Args:
        argv: its command line.
        directory: its working directory.
    """
    main = sys.modules.get("__main__")
    module = getattr(getattr(main, "__spec__", None), "name", None) or "__main__"
    word = argv[0] if argv else ""
    notebook = os.environ.get("JPY_SESSION_NAME")
    if notebook:  # a kernel, whose notebook Jupyter names
        return _named(os.path.basename(notebook), notebook)
    if word.endswith(".ipynb"):  # it runs in the notebook's directory
        return _named(os.path.basename(word), os.path.join(directory, os.path.basename(word)))
    if module.partition(".")[0] != "__main__" and module != "__mp_main__":
        return _named(f"-m {module.removesuffix('.__main__')}", directory)
    path = os.path.realpath(os.path.join(directory, word))
    is_command = os.path.dirname(os.path.abspath(word)) == os.path.dirname(sys.executable)
    if is_command or not os.path.exists(path) or path == directory:  # pytest; -c; a function
        return _named(os.path.basename(word) or "-", directory)
    return NamedProgram(os.path.basename(word) if word.startswith(os.sep) else word, path)


def _named(name: str, place: str) -> NamedProgram:
    return NamedProgram(name, f"{name}\0{place}")
