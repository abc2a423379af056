"""What JAX is about to do, for whom, and what differs from what it did before.

Everything is read from the frames of the calling thread: JAX's ``cache_miss`` has the function and
its arguments, and its ``from_hlo`` what a module was lowered from, where nothing was called
(``.lower().compile()``, a half of ``grad``).
"""

import os
import reprlib
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from .jax_functions import JaxFunctions

#: Compiles of one function that are kept for comparison.
_KEPT = 16
_TEXT_CHARACTERS = 200
_SHARDING = "sharding of "
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Value(NamedTuple):
    """One argument, or one leaf of it."""

    kind: str
    """``array``, ``static``, ``sharding`` or ``empty`` (a pytree without leaves)."""
    text: str
    shape: "tuple[Any, ...]" = ()
    dtype: str = ""
    weak_type: bool = False


class ArgumentChange(NamedTuple):
    """One difference between this call and the most similar earlier one."""

    name: str
    """The argument with the path of the leaf (``params['w']``), or the setting."""
    cause: str
    """As ``jaxcache explain`` names it: ``argument-shape``, ``static-argument``, ``config``, …"""
    before: "str | None"
    now: "str | None"

    def __str__(self) -> str:
        return f"{self.name}: {self.before or 'absent'} before, {self.now or 'absent'} now"


class EarlierCompile(NamedTuple):
    """An earlier compile of one place of the source."""

    function: Any
    """A weak reference; None where it is not known."""
    values: "Mapping[str, Value]"
    configuration: "tuple[Any, ...] | None"


def new_history() -> "defaultdict[str, deque[EarlierCompile]]":
    """Return an empty history: the newest few compiles by the place of their function."""
    return defaultdict(lambda: deque(maxlen=_KEPT))


def read_history(seams: JaxFunctions, history: "defaultdict[str, deque[EarlierCompile]]") -> None:
    """Add what JAX traced before anybody watched."""
    for reference, info, signature, avals, context in seams.history():
        try:
            values = _values_of_key(seams, info, signature, avals)
        except Exception:  # noqa: S112 - one call that cannot be compared with
            continue
        history[str(info.fun_sourceinfo)].append(EarlierCompile(reference, values, tuple(context)))


class PendingCall:
    """A call of a jitted function, an eager operation, or a lowered module, before its compile."""

    def __init__(self, seams: JaxFunctions, traced: "tuple[Any, ...] | None" = None) -> None:
        self._seams = seams
        self.refusable: list[tuple[Any, Any]] = []
        """Functions whose fast path an exception takes away, with JAX's info of each."""
        self.caller_file: str | None = None
        self.caller_line: int | None = None
        frames = self._walk()
        function, info, args, kwargs = traced or frames.get("cache_miss") or (None, None, (), {})
        self.function_object = function
        if function is not None:
            source = str(info.fun_sourceinfo or "")
            self.values = _values_of_call(seams, info, args, kwargs or {})
        else:
            source, self.values = self._read_lowered(frames.get("from_hlo", {}))
        self.values |= _shardings(frames.get("from_hlo", {}))
        self.origin = source
        self.function, _, self.place = source.partition(" at ")
        file, _, line = self.place.rpartition(":")
        self.file = file or self.caller_file
        self.line = int(line) if line.isdigit() else self.caller_line
        is_pmap = os.path.basename(file) == "pmap.py" and self.place.startswith(seams.directory)
        if is_pmap:  # JAX 0.8 and later jit a wrapper of their own
            self.function = "pmap"
            self.file = self.caller_file
            self.line = self.caller_line
        #: An operation outside every jit, such as ``x[:n]``: JAX jits it by itself.
        self.is_eager = self.place.startswith(seams.directory) and not is_pmap
        self.configuration = seams.configuration()

    def _walk(self) -> "dict[str, Any]":
        """Find the caller, and JAX's frames that know what is compiled; the innermost first."""
        leaves: dict[str, Any] = {}
        frame: Any = sys._getframe(2)
        while frame is not None:
            path = frame.f_code.co_filename
            name = frame.f_code.co_name
            if path.startswith(self._seams.directory):
                if name == "cache_miss" and "jit_info" in frame.f_locals:
                    here = [frame.f_locals.get(n) for n in ("fun", "jit_info", "args", "kwargs")]
                    self.refusable.append((here[0], here[1]))
                    leaves.setdefault("cache_miss", here)
                elif name == "call_impl_cache_miss":
                    leaves.setdefault(name, True)
                elif name == "from_hlo":
                    leaves.setdefault(name, frame.f_locals)
            elif self.caller_file is None and _is_users(path):
                self.caller_file = path
                self.caller_line = frame.f_lineno
            frame = frame.f_back
        if "call_impl_cache_miss" in leaves:
            self.refusable.append((None, None))
        return leaves

    def _read_lowered(self, lowered: "Mapping[str, Any]") -> "tuple[str, dict[str, Value]]":
        """Source and arguments of a module that was lowered without a call."""
        arguments = lowered.get("all_args_info")
        debug = getattr(arguments, "debug_info", None)
        names = getattr(debug, "arg_names", None) or ()
        avals = getattr(arguments, "in_avals", None) or ()
        values = {
            str(name): _value(self._seams, aval) for name, aval in zip(names, avals, strict=False)
        }
        return str(getattr(debug, "func_src_info", None) or lowered.get("name") or ""), values

    @property
    def compiled(self) -> EarlierCompile:
        """This call as the history keeps it."""
        function = self.function_object
        return EarlierCompile(
            weakref.ref(function) if function else None, self.values, self.configuration
        )

    def compare(
        self, history: "Mapping[str, deque[EarlierCompile]]"
    ) -> "tuple[str, tuple[ArgumentChange, ...]]":
        """Return the reason for this compile, and the differences from the nearest earlier one."""
        earlier = history.get(self.origin) or ()
        if self.is_eager:
            return "eager-operation", ()
        if not earlier:
            return "not-cached-before", ()
        mine = [
            c
            for c in earlier
            if self.function_object is None
            or (c.function is not None and c.function() is self.function_object)
        ]
        if not mine:
            return "new-function", ()
        differences = (self._differences(c) for c in mine)
        changes = min(differences, key=_distance)
        return (changes[0].cause if changes else "unknown"), changes

    def _differences(self, earlier: EarlierCompile) -> "tuple[ArgumentChange, ...]":
        changes = []
        for name in {**earlier.values, **self.values}:
            before = earlier.values.get(name)
            now = self.values.get(name)
            if name.startswith(_SHARDING) and (before is None or now is None):
                continue  # known only of compiles that were watched
            if before != now:
                texts = (before and before.text, now and now.text)
                changes.append(ArgumentChange(name, _cause(before, now), *texts))
        return tuple(changes) or self._changed_settings(earlier.configuration)

    def _changed_settings(self, earlier: "tuple[Any, ...] | None") -> "tuple[ArgumentChange, ...]":
        mine = self.configuration
        if earlier is None or len(earlier) != len(mine):
            return ()
        names = self._seams.setting_names(len(mine))
        return tuple(
            ArgumentChange(name or "a setting of JAX", "config", _short(before), _short(now))
            for name, before, now in zip(names, earlier, mine, strict=True)
            if before is not now and before != now
        )


def _distance(changes: "tuple[ArgumentChange, ...]") -> "tuple[int, int]":
    """How far another call is: arguments count before shardings, and another rank twice."""
    shardings = sum(change.cause == "argument-sharding" for change in changes)
    ranks = sum(
        change.cause == "argument-shape"
        and (change.before or "").count(",") != (change.now or "").count(",")
        for change in changes
    )
    return len(changes) - shardings + ranks, len(changes)


def _is_users(path: str) -> bool:
    is_ours = path.startswith(_HERE) or "jaxcache" + os.sep in path
    return not (is_ours or path.startswith("<") or path.endswith(("contextlib.py", "threading.py")))


def _cause(before: "Value | None", now: "Value | None") -> str:
    """The name that ``explain`` has for a difference."""
    if "static" in (before and before.kind, now and now.kind):
        return "static-argument"
    if before is None or now is None or before.kind != now.kind:
        return "argument-structure"
    if now.kind == "sharding":
        return "argument-sharding"
    if before.shape != now.shape:
        return "argument-shape"
    return "argument-dtype" if before.dtype != now.dtype else "argument-weak-type"


def _values_of_call(
    seams: JaxFunctions, info: Any, args: "tuple[Any, ...]", kwargs: "Mapping[str, Any]"
) -> "dict[str, Value]":
    """Describe the arguments of a call, one value for each leaf."""
    names = list(info.fun_signature.parameters) if info.fun_signature else []
    values: dict[str, Value] = {}
    named = [
        (n, names[n] if n < len(names) else f"args[{n}]", value) for n, value in enumerate(args)
    ]
    for position, name, value in [*named, *((None, n, value) for n, value in kwargs.items())]:
        if position in info.static_argnums or name in info.static_argnames:
            values[name] = Value("static", _short(value))
            continue
        leaves = seams.leaves(value)
        for path, leaf in leaves:
            values[name + path] = _value(seams, leaf)
        if not leaves:
            values[name] = Value("empty", "no arrays")
    return values


def _values_of_key(
    seams: JaxFunctions, info: Any, signature: Any, avals: Any
) -> "dict[str, Value]":
    """The same from a key of JAX's, which holds avals, tree structures and static values."""
    avals = iter(avals)
    static = list(signature.static_args)
    names = list(signature.dynamic_arg_names)
    dynamic = [seams.unflatten(treedef, avals) for treedef in signature.dynamic_arg_treedefs]
    kwargs = dict(zip(names, dynamic[len(dynamic) - len(names) :], strict=True))
    static_names = list(signature.static_arg_names)
    kwargs |= zip(static_names, static[len(static) - len(static_names) :], strict=True)
    count = len(dynamic) + len(static) - len(kwargs)
    positions = {n % count for n in info.static_argnums if -count <= n < count}
    arguments = iter(dynamic)
    statics = iter(static)
    args = [next(statics if n in positions else arguments) for n in range(count)]
    return _values_of_call(seams, info, tuple(args), kwargs)


def _value(seams: JaxFunctions, leaf: Any) -> Value:
    try:
        aval = seams.abstract(leaf)
        weak = bool(getattr(aval, "weak_type", False))
        text = f"{aval.str_short()}{' (weak type)' if weak else ''}"
        return Value("array", text, tuple(aval.shape), str(aval.dtype), weak)
    except Exception:  # a token, or an object that JAX refuses by itself
        return Value("array", type(leaf).__name__)


def _shardings(lowered: "Mapping[str, Any]") -> "dict[str, Value]":
    """The sharding of each argument that the module kept; known while JAX compiles."""
    debug = getattr(lowered.get("all_args_info"), "debug_info", None)
    names = getattr(debug, "arg_names", None) or ()
    kept = lowered.get("kept_var_idx")
    if not names or kept is None:
        return {}
    kept_names = [name for n, name in enumerate(names) if n in kept]
    shardings = lowered.get("in_shardings") or ()
    return {
        f"{_SHARDING}{name}": Value("sharding", _short(sharding))
        for name, sharding in zip(kept_names, shardings, strict=False)
    }


def _short(value: Any) -> str:
    """A value as short text; a ``repr`` of the user's may fail."""
    try:
        return reprlib.repr(value)[:_TEXT_CHARACTERS]
    except Exception:
        return f"<{type(value).__name__}>"
