"""Read and check AOTAutogradCache and FxGraphCache entries with the pickle interpreter.

Source of the fields: ``AOTAutogradResult`` (``torch/_functorch/_aot_autograd``) and
``CompiledFxGraph`` (``torch/_inductor/output_code.py``), torch 2.13. A field that another version
lacks is None, never a guess.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jaxcache.entry.names import TorchTier
from jaxcache.layouts.torch import pickled
from jaxcache.layouts.torch.names import GraphFile, digest_of, digest_of_text
from jaxcache.model import ProblemKind
from jaxcache.store.base import Store, StoreError
from jaxcache.units import join_some

#: The kind of a problem, and its detail.
Found = tuple[ProblemKind, str]

#: What unpickling an entry of each tier makes; the second is that of torch 2.9.
ROOTS: Mapping[TorchTier, tuple[str, ...]] = {
    "aotautograd": (
        "torch._functorch._aot_autograd.aot_autograd_result.AOTAutogradResult",
        "torch._functorch._aot_autograd.autograd_cache.AOTAutogradCacheEntry",
    ),
    "fxgraph": ("torch._inductor.output_code.CompiledFxGraph",),
    "dynamo": ("torch._dynamo.package.PrecompileCacheEntry",),
}
#: Roots of AOT entries that hold their FX graphs inside (``bundled_autograd_cache``).
_BUNDLED = (
    "torch._functorch._aot_autograd.aot_autograd_result.BundledAOTAutogradResult",
    "torch._functorch._aot_autograd.autograd_cache.BundledAOTAutogradCacheEntry",
)
#: Where the classes of each tier are: another torch may call them otherwise.
_HOMES: Mapping[TorchTier, str] = {
    "aotautograd": "torch._functorch._aot_autograd.",
    "fxgraph": "torch._inductor.",
    "dynamo": "torch._dynamo.",
}
#: Packages whose names torch's own entries hold. Not a list of what is harmless: reading a pickle
#: runs what it names, and torch has functions that run code. What is not here is remarkable.
EXPECTED_PACKAGES = frozenset({"torch", "sympy", "collections", "numpy", "triton"})
_EXPECTED_NAMES = re.compile(
    r"builtins\.(list|dict|set|frozenset|int|float|bool|str|bytes|tuple|complex|slice|range|type|object)"
    r"|copyreg\._reconstructor|_codecs\.encode|functools\.partial|types\.SimpleNamespace"
)
_GUARD_NAMES = ("builtins.getattr", "traceback.StackSummary", "traceback.FrameSummary")

_NS_PER_SECOND = 1e9
_FX_KEY = re.compile(r"f[a-z2-7]{51}")
_LINE = re.compile(r"\[([a-z2-7]{51})\] ([^:\n]{1,300}?): ?", re.DOTALL)
_VERSION = re.compile(r"^# torch version: ([\w.+-]{1,60})$", re.MULTILINE)
_FRAME = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\s,]{1,300})')
_TENSOR = re.compile(
    r"TensorMetadata\(dtype=torch\.(\w{1,30}), shape=torch\.Size\(\[([^\]]{0,300})\]"
)
_SHORT_DTYPES = re.compile(r"(float|bfloat|int|uint|complex)(\d+)")
#: Names of a hostile pickle's globals that a finding shows.
_SHOWN_GLOBALS = 5
#: Shown of a text from an entry, which may be as long as the entry.
_SHOWN_CHARACTERS = 2_000
#: Of the name of a device, such as ``cuda``.
_DEVICE_CHARACTERS = 50
#: Kept of a part of a key, such as the program: enough for the graph of a large model.
_COMPONENT_CHARACTERS = 4 << 20


@dataclass(frozen=True, slots=True)
class Component:
    """One part of an FX key: what it is called, its hash, and what torch prints of it."""

    name: str
    hash: str
    text: str


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The facts of an entry that a listing shows and an index keeps."""

    seconds: float | None = None
    """FX: what Inductor took. AOT: forward and backward together, Inductor's part included."""
    devices: tuple[str, ...] = ()
    guards: str | None = None
    """An expression over symbolic sizes under which the entry serves; None: it always does."""
    torch_version: str | None = None
    references: tuple[str, ...] = ()
    """AOT: the FX keys of forward and backward; if it is bundled, the keys of their code."""
    bundled: bool = False
    """AOT: holds its FX graphs itself."""
    source_key: str | None = None
    """FX: the generated ``.py``."""
    source: str | None = None
    """``FILE:LINE`` of the innermost frame that the graph was traced from."""
    function: str | None = None
    signature: str | None = None
    environment: tuple[str, ...] = ()
    """FX: names of environment variables whose values it embeds."""
    problems: tuple[Found, ...] = ()
    gone: bool = False
    """The file vanished after it was listed."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The keys of all that it needs directly."""
        return (*self.references, *([self.source_key] if self.source_key else []))

    def facts(self) -> "GraphFacts":
        """Only what a listing needs."""
        return GraphFacts(**{field.name: getattr(self, field.name) for field in fields(GraphFacts)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(GraphFacts):
    """The decoded facts of one entry of either tier."""

    tier: TorchTier
    root: str
    """The class that unpickling would create; torch fails if it is not the class of its tier."""
    globals: tuple[str, ...]
    """Everything that unpickling would import."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    own_key: str | None = None
    """FX: the key that it was stored under."""
    source_digest: str | None = None
    """FX: what the embedded ``.py`` hashes to; must be ``source_key`` without its letter."""
    key_lines: tuple[str, ...] = field(default=(), repr=False)
    """FX: the parts of its key as torch logs them, ``[hash] name: text``."""

    @property
    def components(self) -> tuple[Component, ...]:
        """FX: the parts of its key."""
        matches = ((line, _LINE.match(line)) for line in self.key_lines)
        return tuple(
            Component(match[2], match[1], line[match.end() :][:_COMPONENT_CHARACTERS])
            for line, match in matches
            if match
        )

    @property
    def unexpected_globals(self) -> tuple[str, ...]:
        """Names that no entry of torch's own holds."""
        names = [g for g in self.globals if not _is_expected(g)]
        if self.tier == "dynamo":  # guards hold the program's own classes
            names = [g for g in names if g.partition(".")[0] in sys.stdlib_module_names]
            names = [g for g in names if g not in _GUARD_NAMES]
        return tuple(names)


def _is_expected(name: str) -> bool:
    return bool(_EXPECTED_NAMES.fullmatch(name)) or name.partition(".")[0] in EXPECTED_PACKAGES


def read_graph_file(store: Store, file: GraphFile) -> GraphFacts:
    """Read and check one file: a :class:`Graph`, or its problems where it cannot be read.

    Raises:
        MissingError: it is gone.
    """
    size = file.info.size_bytes
    if size > pickled.MAX_BYTES:
        return GraphFacts(problems=(("unreadable", f"{size:,} bytes are too many to be read"),))
    try:
        data = store.read(file.info.name, limit=pickled.MAX_BYTES + 1)
    except StoreError as error:
        if error.code == "missing":
            raise
        return GraphFacts(problems=(("unreadable", error.reason),))
    return read_graph(data, file.tier, file.key, file.digest)


def read_graph(data: bytes, tier: TorchTier, key: str, digest: str) -> GraphFacts:
    """Judge the bytes of a graph that is stored under a key and a digest."""
    if not data:
        return GraphFacts(problems=(("empty", "empty: torch fails to load it"),))
    whole = not digest or digest_of(data) == digest
    try:
        graph = decode_graph(data, tier)
    except pickled.PickleError as error:
        kind: ProblemKind = "truncated" if error.truncated else "bad-payload"
        return GraphFacts(problems=((kind, error.detail),))
    problems = _problems(graph, tier, key)
    if not whole:
        problems.insert(0, ("digest-mismatch", "its bytes are not the ones that it is named by"))
    return replace(graph, problems=tuple(problems))


def _problems(graph: Graph, tier: TorchTier, key: str) -> list[Found]:
    problems: list[Found] = []
    if unexpected := graph.unexpected_globals:
        names = join_some([name[:80] for name in unexpected], _SHOWN_GLOBALS)
        problems.append(("foreign-globals", f"torch would import {names} to read it"))
    if not graph.root.startswith(_HOMES[tier]):
        detail = f"holds {graph.root[:120]}, which torch cannot use there"
        problems.append(("wrong-class", detail))
        return problems
    if tier == "fxgraph" and graph.own_key is not None and graph.own_key != key:
        problems.append(("key-mismatch", f"was stored under {graph.own_key[:60]}"))
    if graph.source_key and graph.source_digest and graph.source_key[1:] != graph.source_digest:
        detail = f"its code is not the {graph.source_key[:60]} that it names"
        problems.append(("source-mismatch", detail))
    return problems


def decode_graph(data: bytes, tier: TorchTier) -> Graph:
    """Read an entry of that tier; for one with another root, return only its root and globals.

    Raises:
        PickleError
    """
    pickle = pickled.read_pickle(data)
    root = pickle.root
    name = _class_of(root)
    if tier == "fxgraph" and name in ROOTS[tier]:
        return _fx(root, pickle)
    if tier == "aotautograd" and name in (*ROOTS[tier], *_BUNDLED):
        return _aot(root, pickle, bundled=name in _BUNDLED)
    if tier == "dynamo" and name in ROOTS[tier]:
        return _precompiled(root, pickle)
    return Graph(tier=tier, root=name, globals=pickle.globals)


def _precompiled(root: pickled.PickledRecord, pickle: pickled.Pickle) -> Graph:
    """What torch keeps of a function; its guards are pickles inside, which torch unpickles, too."""
    tables = [part for part in pickled.walk(root) if isinstance(part, pickled.PickledTable)]
    pairs = [(name, value) for table in tables for name, value in table.items if type(name) is str]
    names = dict.fromkeys(pickle.globals)
    operations_left = pickled.MAX_OPERATIONS - pickle.operations
    for guards in {id(v): v for n, v in pairs if n == "guards_state" and type(v) is bytes}.values():
        inner = pickled.read_pickle(guards, max_operations=operations_left)
        operations_left -= inner.operations
        names |= dict.fromkeys(inner.globals)
    texts = {n: v[:_SHOWN_CHARACTERS] for n, v in reversed(pairs) if type(v) is str}
    keys = (v for n, v in pairs if n == "cache_key" and type(v) is str)
    return Graph(
        tier="dynamo",
        root=str(root.callee),
        globals=tuple(names),
        devices=tuple(filter(None, [texts.get("device_type")])),
        function=texts.get("fn_name"),
        references=tuple(dict.fromkeys(keys)),
        bundled=True,
    )


def _class_of(root: Any) -> str:
    """Return the class that unpickling would make, by name.

    Only a global has a name: printing any other object could take 2^100 steps.
    """
    if not isinstance(root, pickled.PickledRecord):
        return type(root).__name__
    return str(root.callee) if isinstance(root.callee, pickled.Global) else "an object of no class"


def _fx(root: pickled.PickledRecord, pickle: pickled.Pickle) -> Graph:
    source = _text(root.get("source_code"))
    lines = _lines(root.get("_fx_graph_cache_debug_lines"))
    runnable = _text(root.get("runnable_graph_str")) or ""
    version = _VERSION.search(runnable)
    where, function = _frame(root.get("cache_linemap"))
    devices = (d for d in pickled.walk(root.get("device_types")) if isinstance(d, str))
    return Graph(
        tier="fxgraph",
        root=str(root.callee),
        globals=pickle.globals,
        seconds=_seconds(root.get("_time_taken_ns")),
        devices=tuple(d for d in devices if len(d) < _DEVICE_CHARACTERS),
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


def _aot(root: pickled.PickledRecord, pickle: pickled.Pickle, *, bundled: bool) -> Graph:
    references: list[str] = []
    lines: tuple[str, ...] = ()
    for part in ("compiled_fw", "compiled_bw"):
        compiled = root.get(part)
        if not isinstance(compiled, pickled.PickledRecord):
            continue
        result = compiled.get("result")
        if bundled and isinstance(result, pickled.PickledRecord):
            references += filter(None, [_text(result.get("cache_key"))])
        info = compiled.get("fx_graph_cache_info")
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
        globals=pickle.globals,
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
        dtype = _short_dtype(match[1]) if match else ""
        shown.append(f"{dtype}[{match[2].replace(' ', '')}]" if match else text[:40])
    return ", ".join(shown)[:_SHOWN_CHARACTERS] if shown else None


def _short_dtype(dtype: str) -> str:
    """``f32``, ``bf16``, ``u8``, ``b8``: as torch's own type annotations write it."""
    if dtype == "bool":
        return "b8"
    match = _SHORT_DTYPES.fullmatch(dtype)
    return f"{'bf' if match[1] == 'bfloat' else match[1][0]}{match[2]}" if match else dtype


def _devices(lines: Iterable[str]) -> tuple[str, ...]:
    matches = (re.search(r"device\(type='(\w{1,20})'", text) for text in _inputs(lines))
    return tuple(dict.fromkeys(match[1] for match in matches if match))


def _frame(value: Any) -> tuple[str | None, str | None]:
    """``FILE:LINE`` and function of the first stack trace in a value."""
    for part in pickled.walk(value):
        if isinstance(part, str) and 'File "' in part and (match := _FRAME.search(part)):
            return f"{match[1]}:{match[2]}", match[3]
    return None, None


def _guards(root: pickled.PickledRecord) -> str | None:
    value = _text(root.get("guards_expr"))
    if not value or len(value) <= _SHOWN_CHARACTERS:
        return value or None
    # It distinguishes two files of one key, so the part that is left out must count, too.
    return f"{value[:_SHOWN_CHARACTERS]} … [{digest_of(_encode(value))}]"


def _seconds(value: Any) -> float | None:
    if type(value) is not int or not 0 <= value < 1 << 63:
        return None
    return value / _NS_PER_SECOND


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
