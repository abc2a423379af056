"""What JAX is about to do, for whom, and what differs from what it did before.

Everything is read from the frames of the calling thread: JAX's ``cache_miss`` has the function and
its arguments, and its ``from_hlo`` what a module was lowered from, where nothing was called
(``.lower().compile()``, a half of ``grad``). Tried on JAX 0.4.38, 0.5.3, 0.6.2, 0.8.3, 0.10.2 and
0.12.0.1; where a frame has other names, the reason is unknown.
"""

import contextlib
import os
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..core.seams.tracing import JaxFunctions

#: Compiles of one function that are kept for comparison.
_KEPT = 64
_TEXT_CHARACTERS = 20_000
_SHOWN_CHARACTERS = 80
_SHARDING = "sharding of "
_STRUCTURE = "structure of "
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_BETWEEN = (contextlib.__file__, threading.__file__)


@dataclass(frozen=True)
class Value:
    """One argument, one leaf of it, or its structure."""

    kind: str
    """``array``, ``static``, ``sharding``, ``structure`` or ``empty`` (a pytree without leaves)."""
    text: str = field(compare=False)
    shape: "tuple[Any, ...]" = ()
    dtype: str = ""
    weak_type: bool = False
    digest: int = 0
    """What else distinguishes it from others: of its text, or of the object itself."""


#: The name of a value that differs, and both values.
ValueDifference = tuple[str, "Value | None", "Value | None"]


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

    values: "Mapping[str, Value]"
    configuration: "tuple[Any, ...] | None"


class CallHistory:
    """The newest compiles of each function, and of each place of the source."""

    def __init__(self, seams: JaxFunctions) -> None:
        """Begin with what JAX traced before the guard watched."""
        self.by_place: defaultdict[str, deque[EarlierCompile]] = defaultdict(_newest)
        #: A function that has died was made for one call.
        self.by_function: WeakKeyDictionary[Any, deque[EarlierCompile]] = WeakKeyDictionary()
        calls: list[tuple[str, Any, EarlierCompile]] = []
        for reference, info, signature, avals, context in seams.history():
            with contextlib.suppress(Exception):  # one call that cannot be compared with
                function = reference()
                values = _values_of_key(seams, info, signature, avals)
                compiled = EarlierCompile(values, tuple(context))
                calls.append((_source(info, function), function, compiled))
        # JAX's order differs from process to process.
        calls.sort(key=lambda call: [value.text for value in call[2].values.values()])
        for call in calls:
            self.add(*call)

    def add(self, place: str, function: Any, compiled: EarlierCompile) -> None:
        """Keep a compile; the function is None where it is not known."""
        self.by_place[place].append(compiled)
        if function is not None:
            self.by_function.setdefault(function, _newest()).append(compiled)


def _newest() -> "deque[EarlierCompile]":
    return deque(maxlen=_KEPT)


class PendingCall:
    """A call of a jitted function, an eager operation, or a lowered module, before its compile."""

    def __init__(self, seams: JaxFunctions, traced: "tuple[Any, ...] | None" = None) -> None:
        self._seams = seams
        self.refusable: list[tuple[Any, Any]] = []
        """Functions whose fast path an exception takes away, with JAX's info of each."""
        self.caller_file: str | None = None
        self.caller_line: int | None = None
        frames = self._walk()
        call = traced or frames.get("cache_miss") or (None, None, (), {})
        self.function_object, info, args, kwargs = call
        self.values: dict[str, Value] = {}
        lowered = frames.get("from_hlo", {})
        debug = getattr(lowered.get("all_args_info"), "debug_info", None)
        with contextlib.suppress(Exception):  # a call that cannot be described is met all the same
            if info is None:
                self._read_lowered(lowered, debug)
            else:
                self.values = _values_of_call(seams, info, args, kwargs or {})
            self.values |= _shardings(lowered, debug)
        lowered_source = getattr(debug, "func_src_info", None) or lowered.get("name") or ""
        self.origin = str(lowered_source) if info is None else _source(info, self.function_object)
        self.function, _, self.place = self.origin.partition(" at ")
        file, _, line = self.place.rpartition(":")
        self.file = file or self.caller_file
        self.line = int(line) if line.isdigit() else self.caller_line
        is_of_jax = self.place.startswith(seams.directory)
        is_pmap = is_of_jax and os.path.basename(file) == "pmap.py"
        if is_pmap:  # JAX 0.8 and later jit a wrapper of their own
            self.function = "pmap"
        if is_of_jax:
            self.file = self.caller_file
            self.line = self.caller_line
        #: An operation outside every jit, such as ``x[:n]``: JAX jits it by itself.
        self.is_eager = is_of_jax and not is_pmap
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

    def _read_lowered(self, lowered: "Mapping[str, Any]", debug: Any) -> None:
        """Read the arguments of a module that was lowered without a call."""
        avals = getattr(lowered.get("all_args_info"), "in_avals", None) or ()
        for name, aval in zip(getattr(debug, "arg_names", None) or (), avals, strict=False):
            self.values[str(name)] = _value(self._seams, aval)

    def record(self, history: CallHistory) -> None:
        """Keep this call, which JAX has compiled or loaded."""
        compiled = EarlierCompile(self.values, self.configuration)
        history.add(self.origin, self.function_object, compiled)

    def compare(self, history: CallHistory) -> "tuple[str, tuple[ArgumentChange, ...]]":
        """Return the reason for this compile, and the differences from the nearest earlier one."""
        earlier = history.by_place.get(self.origin)
        if self.is_eager:
            return "eager-operation", ()
        if not earlier:
            return "not-cached-before", ()
        if self.function_object is not None:
            earlier = history.by_function.get(self.function_object)
        if not earlier:
            return "new-function", ()
        nearest = min(reversed(earlier), key=self._distance)  # the newest of equals
        differences = self._differences(nearest)
        changes = tuple(
            ArgumentChange(name, _cause(before, now), *_texts(before, now))
            for name, before, now in differences
        )
        changes = changes or self._changed_settings(nearest.configuration)
        return (changes[0].cause if changes else "unknown"), changes

    def _distance(self, earlier: EarlierCompile) -> "tuple[int, int, bool, int]":
        """How far it is: arguments count before shardings, another rank twice; sizes last."""
        differences = self._differences(earlier)
        shardings = sum(name.startswith(_SHARDING) for name, _, _ in differences)
        ranks = sum(
            before is not None and now is not None and len(before.shape) != len(now.shape)
            for _, before, now in differences
        )
        arguments = len(differences) - shardings + ranks
        sizes = sum(_size_difference(before, now) for _, before, now in differences)
        return arguments, len(differences), earlier.configuration != self.configuration, sizes

    def _differences(self, earlier: EarlierCompile) -> "list[ValueDifference]":
        differences: list[ValueDifference] = []
        names = {**earlier.values, **self.values}
        for name in sorted(names, key=lambda name: name.startswith(_STRUCTURE)):
            before = earlier.values.get(name)
            now = self.values.get(name)
            if before == now or (name.startswith(_SHARDING) and None in (before, now)):
                continue  # shardings are known only of compiles that were watched
            leaves = tuple(name.removeprefix(_STRUCTURE) + mark for mark in "[.")
            if name.startswith(_STRUCTURE) and any(d[0].startswith(leaves) for d in differences):
                continue  # its leaves show it
            differences.append((name, before, now))
        return differences

    def _changed_settings(self, earlier: "tuple[Any, ...] | None") -> "tuple[ArgumentChange, ...]":
        mine = self.configuration
        if earlier is None or len(earlier) != len(mine):
            return ()
        names = self._seams.setting_names(len(mine))
        return tuple(
            ArgumentChange(name or "a setting of JAX", "config", _shown(before), _shown(now))
            for name, before, now in zip(names, earlier, mine, strict=True)
            if before is not now and before != now
        )


def _size_difference(before: "Value | None", now: "Value | None") -> int:
    """How far two shapes of one rank are apart."""
    pairs = zip(before.shape, now.shape, strict=False) if before and now else ()
    return sum(abs(a - b) for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def _is_users(path: str) -> bool:
    return not (path.startswith(("<frozen ", _PACKAGE)) or path in _BETWEEN)


def _cause(before: "Value | None", now: "Value | None") -> str:
    """The name that ``explain`` has for a difference."""
    if "static" in (before and before.kind, now and now.kind):
        return "static-argument"
    if before is None or now is None or before.kind != now.kind or now.kind == "structure":
        return "argument-structure"
    if now.kind == "sharding":
        return "argument-sharding"
    if before.shape != now.shape:
        return "argument-shape"
    if before.dtype != now.dtype:
        return "argument-dtype"
    if before.weak_type != now.weak_type:
        return "argument-weak-type"
    return "argument-sharding"  # in its type, where the axes of its mesh are explicit


def _texts(before: "Value | None", now: "Value | None") -> "tuple[str | None, str | None]":
    """Return both texts, from shortly before where long ones differ."""
    texts = [value.text for value in (before, now) if value]
    start = 0
    if len(texts) == 2 and max(map(len, texts)) > _SHOWN_CHARACTERS:
        pairs = enumerate(zip(*texts, strict=False))
        common = next((n for n, (one, other) in pairs if one != other), min(map(len, texts)))
        start = max(0, common - _SHOWN_CHARACTERS // 2)
    before_text = None if before is None else _cut(before, start)
    return before_text, None if now is None else _cut(now, start)


def _cut(value: Value, start: int) -> str:
    text = value.text[start : start + _SHOWN_CHARACTERS]
    more = len(value.text) > start + len(text)
    return f"{'...' * (start > 0)}{text}{'...' * more}"


def _source(info: Any, function: Any) -> str:
    """Name the function and its place: ``step at /srv/train.py:12``, or the type of an object."""
    source = str(info.fun_sourceinfo or "")
    return source if " at " in source else type(function).__qualname__


def _argument_names(info: Any, count: int) -> "list[str]":
    """Name the first positional arguments as JAX does: ``x``, ``rest[0]``."""
    parameters = info.fun_signature.parameters.values() if info.fun_signature else ()
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    names = [p.name for p in parameters if p.kind < p.VAR_POSITIONAL]
    return [*names, *(f"{variadic}[{n}]" for n in range(count - len(names)))]


def _static_positions(info: Any, count: int) -> "set[int]":
    """Which positional arguments are static; JAX may count from the last one."""
    return {n % count for n in info.static_argnums if -count <= n < count}


def _values_of_call(
    seams: JaxFunctions, info: Any, args: "tuple[Any, ...]", kwargs: "Mapping[str, Any]"
) -> "dict[str, Value]":
    """Describe the arguments of a call, one value for each leaf."""
    names = _argument_names(info, len(args))
    positions = _static_positions(info, len(args))
    static = {names[n] for n in positions} | set(info.static_argnames)
    values: dict[str, Value] = {}
    for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
        if name in static:
            values[name] = _object("static", value)
            continue
        leaves, structure = seams.leaves(value)
        for path, leaf in leaves:
            values[name + path] = _value(seams, leaf)
        if not leaves:
            values[name] = Value("empty", "no arrays")
        elif structure.num_nodes > 1:
            values[f"{_STRUCTURE}{name}"] = _object("structure", structure)
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
    positions = _static_positions(info, count)
    arguments = iter(dynamic)
    statics = iter(static)
    args = [next(statics if n in positions else arguments) for n in range(count)]
    return _values_of_call(seams, info, tuple(args), kwargs)


def _value(seams: JaxFunctions, leaf: Any) -> Value:
    try:
        aval = seams.abstract(leaf)
        weak = bool(getattr(aval, "weak_type", False))
        text = f"{aval.str_short()}{' (weak type)' if weak else ''}"
        return Value("array", text, tuple(aval.shape), str(aval.dtype), weak, hash(text))
    except Exception:  # a token, or an object that JAX refuses by itself
        return Value("array", type(leaf).__name__)


def _shardings(lowered: "Mapping[str, Any]", debug: Any) -> "dict[str, Value]":
    """The sharding of each argument that the module kept; known while JAX compiles."""
    kept = lowered.get("kept_var_idx")
    if kept is None:
        return {}
    names = enumerate(getattr(debug, "arg_names", None) or ())
    kept_names = [f"{_SHARDING}{name}" for n, name in names if n in kept]
    shardings = (_object("sharding", s) for s in lowered.get("in_shardings") or ())
    return dict(zip(kept_names, shardings, strict=False))


def _object(kind: str, value: Any) -> Value:
    """Return a value that is compared as a whole; a text with an address differs for equal ones."""
    text = _text(value)
    has_address = kind == "static" and " at 0x" in text
    return Value(kind, text, digest=hash((hash(value), "" if has_address else text)))


def _shown(value: Any) -> str:
    return _text(value)[:_SHOWN_CHARACTERS]


def _text(value: Any) -> str:
    """A value as text; a ``repr`` of the user's may fail."""
    try:
        return repr(value)[:_TEXT_CHARACTERS]
    except Exception:
        return f"<{type(value).__name__}>"
