"""``show`` as a document, TSV, and a page for people."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from jaxcache.cache.ledger.record import Record
from jaxcache.cache.ledger.tuning import UNTUNED
from jaxcache.cache.show import Shown, ShownKernels
from jaxcache.entry.contents import ArrayType, Contents, Device, Memory, Program
from jaxcache.entry.names import printable
from jaxcache.entry.shapes import signature
from jaxcache.render.document import Document, entry_document, envelope, problem_document
from jaxcache.render.prose import wrap
from jaxcache.render.table import Column, render_table
from jaxcache.units import (
    format_count,
    format_duration,
    format_since,
    format_size,
    rfc3339,
)

_LABEL_WIDTH = 12
_SHOWN_OPCODES = 12
_SHOWN_LINES = 8
#: As wide as a blank, and no place to break a line.
_GLUE = "\xa0"


def show_document(shown: Shown) -> Document:
    """Return the document of ``show --json``."""
    return {**envelope(shown.cache_dir), **entry_contents(shown)}


def entry_contents(shown: Shown) -> Document:
    """One entry and everything in it, without the envelope."""
    c = shown.contents
    options = c.compile_options
    return {
        "entry": entry_document(shown.entry),
        "program": c.program and _program(c.program),
        "source": [
            {
                "file": printable(s.file),
                "line": s.line,
                "function": s.function and printable(s.function),
            }
            for s in c.source
        ],
        "memory": {**_plain(c.memory), "total_bytes": c.memory.total_bytes},
        "device": _plain(c.device),
        "compile_options": {
            **_plain(options),
            "device_assignment": options.device_assignment
            and [list(row) for row in options.device_assignment],
        },
        "format": _plain(c.format),
        "written_in_cache_dir": c.written_in_cache_dir and printable(c.written_in_cache_dir),
        "provenance": shown.provenance and _record(shown.provenance),
        "problems": [problem_document(p) for p in shown.problems],
    }


def kernels_document(shown: ShownKernels) -> Document:
    """Return the document of ``show --json`` for a kernel cache."""
    return {
        **envelope(shown.cache_dir),
        "side_cache": {
            "kind": "kernel-cache",
            "file": printable(shown.file),
            "size_bytes": shown.size_bytes,
            "version": shown.cache.version,
            "problem": shown.cache.problem,
            "kernels": [_plain(k) for k in shown.cache.kernels],
        },
    }


def show_tsv(document: Document, prefix: str = "") -> Iterator[str]:
    """One line per value of a document: its path, a tab, the value; null is empty."""
    for name, value in document.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from show_tsv(value, f"{path}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, item in enumerate(value):
                yield from show_tsv(item, f"{path}[{index}].")
        else:
            yield f"{path}\t{_cell(value)}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def show_page(shown: Shown, *, now_ns: int, width: int, color: bool) -> str:
    """A page for people."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if color else ("", "")
    lines = [f"{bold}{printable(shown.entry.key)}{plain}"]
    if program := shown.contents.program:
        arrow = signature(program.parameters, program.results)
        lines += wrap(arrow, width, first="  ", rest="    ")
    lines.append("")
    for label, texts in _sections(shown, now_ns):
        for text in texts:
            lines += labelled_lines(printable(text), label, width)
            label = ""
    return "\n".join(lines)


def labelled_lines(text: str, label: str, width: int) -> list[str]:
    """The lines of a labelled text; things joined by a dot are not broken inside."""
    glued = " · ".join(part.replace(" ", _GLUE) for part in text.split(" · "))
    lead = f"{label:<{_LABEL_WIDTH}}"
    wrapped = wrap(glued if "·" in text else text, width, first=lead, rest=" " * _LABEL_WIDTH)
    return [line.replace(_GLUE, " ") for line in wrapped]


def _sections(shown: Shown, now_ns: int) -> Iterator[tuple[str, list[str]]]:
    entry, c = shown.entry, shown.contents
    if c.program:
        yield "Program", list(_program_lines(c))
    if c.source:
        places = [
            f"{s.file}:{s.line}" + (f" in {s.function}" if s.function else "") for s in c.source
        ]
        more = len(places) - _SHOWN_LINES
        yield "Source", places[:_SHOWN_LINES] + ([f"and {more} more lines"] if more > 0 else [])
    yield "Memory", [_memory_line(c.memory)]
    yield "Target", list(_target_lines(c.device))
    if changed := c.compile_options.flags_changed:
        yield "Flags", [f"{n} = {'unset' if v is None else v}" for n, v in changed.items()]
    elif changed is None and c.program:
        yield "Flags", ["not known: made by a version whose defaults are not known here"]
    if c.written_in_cache_dir:
        yield "Written in", [c.written_in_cache_dir]
    yield "File", list(_file_lines(shown, now_ns))
    if shown.provenance:
        yield "Known", list(_known_lines(shown.provenance))
    if shown.problems:
        yield "Problems", [f"{p.kind}: {p.detail}" for p in shown.problems]
    elif entry.tuning == UNTUNED:
        yield "Problems", ["untuned: compiled without the GPU; jaxcache prune --untuned drops it"]
    elif entry.platform == "unknown":
        yield "Problems", ["its platform cannot be told"]


def _known_lines(record: Record) -> Iterator[str]:
    """Return the lines of the ledger's record, without hashes, which the documents hold."""
    parts = []
    if record.jax_version:
        parts.append(f"jax {record.jax_version}, jaxlib {record.jaxlib_version or '?'}")
    if record.device_kind:
        parts.append(f"on {record.device_kind}")
    if record.compile_seconds is not None:
        parts.append(f"compiled in {record.compile_seconds:.2f} s")
    if record.hits:
        parts.append(f"{format_count(record.hits, 'hit')} recorded")
    if record.pinned:
        parts.append("pinned")
    if parts:
        yield " · ".join(parts)
    if record.script:
        yield f"{record.script}" + (f", function {record.function}" if record.function else "")
    if record.xla_flags:
        yield f"XLA_FLAGS {record.xla_flags}"


def _program_lines(c: Contents) -> Iterator[str]:
    program, options = c.program, c.compile_options
    if program is None:
        return
    line = f"{format_count(program.instructions, 'instruction')} in " + format_count(
        program.computations, "computation"
    )
    if options.num_replicas is not None and options.num_partitions is not None:
        line += f"; {format_count(options.num_replicas, 'replica')} × "
        line += format_count(options.num_partitions, "partition")
    if options.device_assignment:
        devices = [str(d) for row in options.device_assignment for d in row]
        noun = "device" if len(devices) == 1 else "devices"
        shown = ", ".join(devices[:16]) + (", …" if len(devices) > 16 else "")
        line += f" on {noun} {shown}"
    yield line
    top = list(program.opcodes.items())
    rest = sum(n for _, n in top[_SHOWN_OPCODES:])
    words = [f"{n} {op}" for op, n in top[:_SHOWN_OPCODES]] + ([f"{rest} others"] if rest else [])
    yield " · ".join(words)
    if program.custom_calls:
        yield "calls " + " · ".join(f"{n} {op}" for op, n in program.custom_calls.items())


def _memory_line(memory: Memory) -> str:
    parts = [
        (name, getattr(memory, f"{name}_bytes"))
        for name in ("argument", "output", "temp", "alias", "constant", "code")
    ]
    known = [f"{name} {format_size(size)}" for name, size in parts if size is not None]
    if memory.total_bytes is not None:
        known.append(f"in all {format_size(memory.total_bytes)}")
    return " · ".join(known) or "not told by entries of this kind"


def _target_lines(device: Device) -> Iterator[str]:
    words = [device.name, device.target if device.target != device.name else None]
    if device.platform == "gpu" and device.compute_capability:
        words.append(f"compute capability {device.compute_capability}")
    if device.toolkit:
        words.append(f"CUDA {device.toolkit}")
    if device.cudnn:
        words.append(f"cuDNN {device.cudnn}")
    if device.platform == "cpu" and device.cpu_triple:
        words.append(device.cpu_triple)
    known = [w for w in words if w]
    yield f"{device.platform}: " + (", ".join(known) or "not told by entries of this version")
    if device.platform == "gpu" and device.cpu_triple:
        yield f"host {device.cpu_name or 'CPU'}, {device.cpu_triple}"
    if device.cpu_features:
        on = [f[1:] for f in device.cpu_features if f.startswith("+")]
        yield f"{len(on)} CPU features: {' '.join(on)}"


def _file_lines(shown: Shown, now_ns: int) -> Iterator[str]:
    entry, layout = shown.entry, shown.contents.format
    line = f"{format_size(entry.size_bytes)}, {entry.codec}{', sealed' if entry.sealed else ''}"
    if entry.payload_bytes is not None:
        line += f", {format_size(entry.payload_bytes)} decompressed"
    if entry.compile_seconds is not None:
        took = format_duration(entry.compile_seconds) if entry.compile_seconds else "under 1 s"
        line += f"; compiled in {took}"
    yield line
    yield (
        f"created {format_since(entry.created_ns, now_ns)}, "
        f"used {format_since(entry.last_used_ns, now_ns)} (by {entry.last_used_from})"
    )
    words = [layout.container]
    if layout.ifrt_version is not None:
        words.append(f"IFRT {layout.ifrt_version}")
    words.append(layout.abi)
    if known := [w for w in words if w]:
        yield ", ".join(known)


def kernels_page(shown: ShownKernels, *, width: int, color: bool) -> str:
    """A table of kernels for people."""
    columns = [
        Column("KERNEL", elastic=True),
        Column("BLOCKS", right=True),
        Column("THREADS", right=True),
        Column("SHARED", right=True),
        Column("CODE", right=True),
    ]
    rows = [
        [
            printable(k.name),
            "?" if k.blocks is None else str(k.blocks),
            "?" if k.threads is None else str(k.threads),
            format_size(k.shared_memory_bytes),
            format_size(k.code_bytes),
        ]
        for k in shown.cache.kernels
    ]
    foot = f"{format_count(len(rows), 'kernel')}, {format_size(shown.size_bytes)}"
    if shown.cache.problem:
        foot += f"; damaged: {shown.cache.problem}"
    return f"{render_table(columns, rows, width=width, color=color)}\n{foot}"


def _program(program: Program) -> Document:
    return {
        "module": printable(program.module),
        "parameters": [_array(a) for a in program.parameters],
        "results": [_array(a) for a in program.results],
        "instructions": program.instructions,
        "computations": program.computations,
        "opcodes": {printable(k): n for k, n in program.opcodes.items()},
        "custom_calls": {printable(k): n for k, n in program.custom_calls.items()},
    }


def _array(array: ArrayType) -> Document:
    return {"dtype": array.dtype, "shape": list(array.shape)}


def _plain(value: Any) -> Document:
    """A flat dataclass as a document, its text made printable."""
    return {f.name: _plain_value(getattr(value, f.name)) for f in fields(value)}


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(k): _plain_value(v) for k, v in value.items()}
    return [_plain_value(v) for v in value] if isinstance(value, tuple) else value


def _record(record: Record) -> Document:
    """Return the ledger's record, times as RFC 3339."""
    document: Document = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name == "key":
            continue
        if field.name.endswith("_ns"):
            document[f"{field.name[:-3]}_at"] = None if value is None else rfc3339(value)
        else:
            document[field.name] = (
                dict(value) if isinstance(value, Mapping) else _plain_value(value)
            )
    return document
