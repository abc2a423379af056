"""Read AOTAutogradCache and FxGraphCache entries with the inert machine.

Source of the fields: ``AOTAutogradResult`` (``torch/_functorch/_aot_autograd``) and
``CompiledFxGraph`` (``torch/_inductor/output_code.py``), torch 2.13. A field that another version
lacks is None, never a guess.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxcache.layouts.torch.names import digest_of, digest_of_text
from jaxcache.layouts.torch.pickled import Global, Pickle, Record, Table, read_pickle, walk

Tier = Literal["aotautograd", "fxgraph"]

#: What unpickling an entry of each tier makes.
ROOTS: Mapping[Tier, str] = {
    "aotautograd": "torch._functorch._aot_autograd.aot_autograd_result.AOTAutogradResult",
    "fxgraph": "torch._inductor.output_code.CompiledFxGraph",
}
#: Roots of AOT entries that hold their FX graphs inside (``bundled_autograd_cache``).
_BUNDLED = "torch._functorch._aot_autograd.aot_autograd_result.BundledAOTAutogradResult"
#: Packages whose names torch's own entries hold. Not a list of what is harmless: reading a pickle
#: runs what it names, and torch has functions that run code. What is not here is remarkable.
EXPECTED_PACKAGES = frozenset({"torch", "sympy", "collections", "numpy", "triton"})
_EXPECTED_NAMES = frozenset(
    {
        "builtins.list",
        "builtins.dict",
        "builtins.set",
        "builtins.frozenset",
        "builtins.int",
        "builtins.float",
        "builtins.bool",
        "builtins.str",
        "builtins.bytes",
        "builtins.tuple",
        "builtins.complex",
        "builtins.slice",
        "builtins.range",
        "builtins.type",
        "builtins.object",
        "copyreg._reconstructor",
        "_codecs.encode",
        "functools.partial",
        "types.SimpleNamespace",
    }
)

_NS_PER_SECOND = 1e9
_FX_KEY = re.compile(r"f[a-z2-7]{51}")
_LINE = re.compile(r"\[([a-z2-7]{51})\] ([^:\n]{1,300}?): ?", re.DOTALL)
_VERSION = re.compile(r"^# torch version: ([\w.+-]{1,60})$", re.MULTILINE)
_FRAME = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\s,]{1,300})')
_TENSOR = re.compile(
    r"TensorMetadata\(dtype=torch\.(\w{1,30}), shape=torch\.Size\(\[([^\]]{0,300})\]"
)
_SHORT_DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b8",
    "complex64": "c64",
    "complex128": "c128",
}
#: Shown of a text from an entry, which may be as long as the entry.
_SHOWN_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Component:
    """One part of an FX key: what it is called, its hash, and what torch prints of it."""

    name: str
    hash: str
    text: str


@dataclass(frozen=True, slots=True)
class Graph:
    """One entry of either tier, as far as it tells."""

    tier: Tier
    root: str
    """The class that unpickling would make; torch fails if it is not that of its tier."""
    globals: tuple[str, ...]
    """Everything that unpickling would import."""
    seconds: float | None = None
    """FX: what Inductor took. AOT: forward and backward together, Inductor's part included."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    devices: tuple[str, ...] = ()
    guards: str | None = None
    """An expression over symbolic sizes under which the entry serves; None: it always does."""
    torch_version: str | None = None
    own_key: str | None = None
    """FX: the key that it was stored under."""
    source_key: str | None = None
    """FX: the generated ``.py``."""
    source_digest: str | None = None
    """FX: what the embedded ``.py`` hashes to; must be ``source_key`` without its letter."""
    references: tuple[str, ...] = ()
    """AOT: the FX keys of forward and backward."""
    bundled: bool = False
    """AOT: holds its FX graphs itself."""
    source: str | None = None
    """``FILE:LINE`` of the innermost frame that the graph was traced from."""
    function: str | None = None
    signature: str | None = None
    environment: tuple[str, ...] = ()
    """FX: names of environment variables whose values it embeds."""
    key_lines: tuple[str, ...] = field(default=(), repr=False)
    """FX: the parts of its key as torch logs them, ``[hash] name: text``."""

    @property
    def components(self) -> tuple[Component, ...]:
        """FX: the parts of its key."""
        return tuple(_components(self.key_lines))

    @property
    def unexpected_globals(self) -> tuple[str, ...]:
        """Names that no entry of torch's own holds."""
        return tuple(g for g in self.globals if not _is_expected(g))


def _is_expected(name: str) -> bool:
    return name in _EXPECTED_NAMES or name.partition(".")[0] in EXPECTED_PACKAGES


def decode_graph(data: bytes, tier: Tier) -> Graph:
    """Read an entry of that tier; of one with another root only root and globals are told.

    Raises:
        PickleError
    """
    found = read_pickle(data)
    root = found.root
    name = _class_of(root)
    if tier == "fxgraph" and name == ROOTS[tier]:
        return _fx(root, found)
    if tier == "aotautograd" and name in (ROOTS[tier], _BUNDLED):
        return _aot(root, found, bundled=name == _BUNDLED)
    return Graph(tier, name, found.globals)


def _class_of(root: Any) -> str:
    """Return the class that unpickling would make, by name.

    Only a global has one: printing whatever else stands there could take 2^100 steps.
    """
    if not isinstance(root, Record):
        return type(root).__name__
    return str(root.callee) if isinstance(root.callee, Global) else "an object of no class"


def _fx(root: Record, found: Pickle) -> Graph:
    source = _text(root.get("source_code"))
    lines = _lines(root.get("_fx_graph_cache_debug_lines"))
    runnable = _text(root.get("runnable_graph_str")) or ""
    version = _VERSION.search(runnable)
    where, function = _frame(root.get("cache_linemap"))
    return Graph(
        tier="fxgraph",
        root=str(root.callee),
        globals=found.globals,
        seconds=_seconds(root.get("_time_taken_ns")),
        devices=tuple(_texts(root.get("device_types"))),
        guards=_guards(root),
        torch_version=version[1] if version else None,
        own_key=_text(root.get("_fx_graph_cache_key")),
        source_key=_text(root.get("cache_key")),
        source_digest=None if source is None else digest_of_text(_encode(source)),
        source=where,
        function=function,
        signature=_signature(lines),
        environment=tuple(dict.fromkeys(re.findall(r"os\.environ\['(\w{1,100})'\] = ", runnable))),
        key_lines=lines,
    )


def _aot(root: Record, found: Pickle, *, bundled: bool) -> Graph:
    references: list[str] = []
    lines: tuple[str, ...] = ()
    for part in ("compiled_fw", "compiled_bw"):
        compiled = root.get(part)
        info = compiled.get("fx_graph_cache_info") if isinstance(compiled, Record) else None
        if isinstance(info, tuple) and info and isinstance(info[0], str):
            references += [info[0]] if _FX_KEY.fullmatch(info[0]) else []
            if part == "compiled_fw" and len(info) > 1:
                lines = _lines(info[1])
    forward = _seconds(root.get("forward_time_taken_ns"))
    backward = _seconds(root.get("backward_time_taken_ns"))
    where, function = _frame(root)
    taken = [s for s in (forward, backward) if s is not None]
    return Graph(
        tier="aotautograd",
        root=str(root.callee),
        globals=found.globals,
        seconds=sum(taken) if taken else None,
        forward_seconds=forward,
        backward_seconds=backward,
        devices=_devices(lines),
        guards=_guards(root),
        references=tuple(dict.fromkeys(references)),
        bundled=bundled,
        source=where,
        function=function,
        signature=_signature(lines),
    )


def _lines(value: Any) -> tuple[str, ...]:
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


def _components(lines: Iterable[str]) -> Iterator[Component]:
    for line in lines:
        if match := _LINE.match(line):
            yield Component(match[2], match[1], line[match.end() :][:_SHOWN_CHARACTERS])


def _inputs(lines: Iterable[str]) -> Iterator[str]:
    """Return the text that torch printed of each example input."""
    for line in lines:
        if line[53:].startswith(" example_inputs["):
            yield line[53:].partition(": ")[2]


def _signature(lines: Iterable[str]) -> str | None:
    """``f32[8,8], f32[8]``: the example inputs, as far as they are tensors."""
    shown = []
    for text in _inputs(lines):
        match = _TENSOR.match(text)
        dtype = _SHORT_DTYPES.get(match[1], match[1]) if match else ""
        shown.append(f"{dtype}[{match[2].replace(' ', '')}]" if match else text[:40])
    return ", ".join(shown)[:_SHOWN_CHARACTERS] if shown else None


def _devices(lines: Iterable[str]) -> tuple[str, ...]:
    found = (re.search(r"device\(type='(\w{1,20})'", text) for text in _inputs(lines))
    return tuple(dict.fromkeys(match[1] for match in found if match))


def _frame(value: Any) -> tuple[str | None, str | None]:
    """``FILE:LINE`` and function of the first stack trace in a value."""
    for part in walk(value):
        if isinstance(part, str) and 'File "' in part and (match := _FRAME.search(part)):
            return f"{match[1]}:{match[2]}", match[3]
    return None, None


def _guards(root: Record) -> str | None:
    value = _text(root.get("guards_expr"))
    if not value or len(value) <= _SHOWN_CHARACTERS:
        return value or None
    # Two files of one key are told apart by it: what is left out must count, too.
    return f"{value[:_SHOWN_CHARACTERS]} … [{digest_of(_encode(value))}]"


def _seconds(value: Any) -> float | None:
    if type(value) is not int or not 0 <= value < 1 << 63:
        return None
    return value / _NS_PER_SECOND


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> Iterator[str]:
    """The short texts in a set or list."""
    for part in walk(value) if isinstance(value, Record | Table | list | tuple) else ():
        if isinstance(part, str) and len(part) < 50:
            yield part


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
