"""``show`` as a view: everything inside entries."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from jaxcache import units
from jaxcache.cache.show import EntryDetails
from jaxcache.entry.contents import ArrayType, Contents, Device, Memory, short_type
from jaxcache.model import UNTUNED
from jaxcache.render import view

_LABEL_WIDTH = 12
#: The record that a time of last use comes from, in words.
USED_FROM = {
    "ledger": "{}, recorded by jaxcache",
    "atime-file": "{}, by JAX's -atime file",
    "fs-atime": "{}, by the file's access time",
    "arrival": "not since its arrival {}",
    "mtime": "not recorded (written {})",
}
#: Rows of a long list that the page or a pipe shows without ``--verbose``.
_SHOWN = 8
#: What a pipe gets only with ``--verbose``.
_LENGTHY = ("cpu_features", "opcodes", "globals", "key_components")

#: The labels of a page with the lines of each, by whether all is shown.
Sections = Iterator[tuple[str, Sequence[str]]]


def show_view(
    details: Sequence[Any],
    sections: "Callable[[Any, int, bool], Sections]",
    *,
    now_ns: int,
    verbose: bool,
) -> view.View:
    """Return the view of ``show``: of one entry, or of several with what they share only once.

    Args:
        sections: sets what is inside of one.
    """
    documents = [view.fields_of(s) for s in details]
    document = documents[0]
    if len(details) > 1:
        entries = [{n: v for n, v in d.items() if n != "cache_dir"} for d in documents]
        document = {"cache_dir": document["cache_dir"], "entries": entries}
    lines = [view.versioned(d) for d in documents]
    return view.View(
        document,
        (row for line in lines for row in _flat(view.to_document(line), verbose)),
        [view.Column("", itemgetter(0)), view.Column("", lambda row: _value(row[1]))],
        records=lines,
        page=_pages(details, sections, now_ns, verbose),
    )


def _flat(document: view.Document, verbose: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a document by their paths; without ``verbose`` less of what is long."""
    for name, value in document.items():
        path = f"{prefix}{name}"
        if name in _LENGTHY and not verbose:
            continue
        if isinstance(value, dict):
            yield from _flat(value, verbose, f"{path}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            shown = value if verbose else value[:_SHOWN]
            for index, item in enumerate(shown):
                yield from _flat(item, verbose, f"{path}[{index}].")
            if more := len(value) - len(shown):
                yield f"{path}.more", f"{more:,} (--verbose lists all)"
        else:
            yield path, value


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, float) else value


def _pages(
    details: Sequence[Any], sections: Callable[..., Sections], now_ns: int, verbose: bool
) -> Iterator[view.Block]:
    for number, shown in enumerate(details):
        if number:
            yield ""
        yield view.Line(shown.entry.key, style="bold")
        for label, texts in sections(shown, now_ns, verbose):
            style = "red" if label == "Problems" else ""
            for text in texts:
                yield view.Line(text, f"{label:<{_LABEL_WIDTH}}", style)
                label = ""


def cut(items: Sequence[str], verbose: bool) -> list[str]:
    """Return a list as it is shown, with how many more there are."""
    more = len(items) - _SHOWN
    if verbose or more <= 0:
        return [*items]
    return [*items[:_SHOWN], f"and {more:,} more (--verbose lists all)"]


def sections(shown: EntryDetails, now_ns: int, verbose: bool) -> Sections:
    """Yield the labels of an entry's page with their lines."""
    entry = shown.entry
    c = shown.contents
    if shown.problems:
        yield "Problems", [f"{p.kind}: {p.detail}" for p in shown.problems]
    elif entry.tuning == UNTUNED:
        remove = units.format_command("prune --untuned", shown.cache_dir)
        yield "Problems", [f"untuned: compiled without the GPU; to remove all such: {remove}"]
    elif entry.platform == "unknown":
        yield "Problems", ["its platform is unknown"]
    size = (
        f"{units.format_size(entry.size_bytes)}, {entry.codec}{', sealed' if entry.sealed else ''}"
    )
    if entry.payload_bytes is not None:
        size += f", {units.format_size(entry.payload_bytes)} decompressed"
    yield "Size", [size]
    yield "Compiled", [*_compiled_lines(shown, now_ns)]
    hits = shown.provenance.hits if shown.provenance else 0
    counted = f", {units.format_count(hits, 'hit')}" if hits else ""
    used = units.format_since(entry.last_used_ns, now_ns)
    yield "Used", [USED_FROM[entry.last_used_from].format(used) + counted]
    if shown.provenance and shown.provenance.pinned:
        yield "Pinned", ["prune and rm leave it"]
    yield "Target", [*_target_lines(c.device, verbose)]
    if c.source:
        places = [
            f"{s.file}:{s.line}" + (f" in {s.function}" if s.function else "") for s in c.source
        ]
        yield "Source", cut(places, verbose)
    if c.program:
        yield "Takes", [*_argument_lines(shown, c.program.parameters, verbose)]
        yield "Returns", [_arrays(c.program.results, verbose)]
        yield "Program", [*_program_lines(c, verbose)]
    yield "Memory", [_memory_line(c.memory)]
    if changed := c.compile_options.flags_changed:
        yield "Flags", [f"{n} = {'unset' if v is None else v}" for n, v in changed.items()]
    elif changed is None and c.program:
        yield "Flags", ["unknown: the defaults of the version that made it are not known here"]
    if c.written_in_cache_dir:
        yield "Written in", [c.written_in_cache_dir]
    layout = c.format
    lines = (
        ("container", layout.container),
        ("version of IFRT, XLA's runtime interface:", layout.ifrt_version),
        ("binary interface", layout.abi),
    )
    if verbose and (words := [f"{name} {value}" for name, value in lines if value is not None]):
        yield "Format", words


def _compiled_lines(shown: EntryDetails, now_ns: int) -> Iterator[str]:
    """Yield how long compiling took, when, by what and for which script, as far as is known."""
    entry = shown.entry
    record = shown.provenance
    seconds = entry.compile_seconds
    took = "unknown time" if seconds is None else "under 1 s" if not seconds else ""
    took = took or units.format_compile(seconds)
    if seconds and not (record and record.compile_seconds is not None):
        took += " (JAX stores whole seconds)"
    line = f"in {took}, written {units.format_since(entry.created_ns, now_ns)}"
    if record and record.jax_version:
        line += f" by jax {record.jax_version}"
        line += f" and jaxlib {record.jaxlib_version}" if record.jaxlib_version else ""
    if record and record.device_kind:
        line += f" on {record.device_kind}"
    yield line
    if record and record.script:
        yield f"in {record.script}" + (f", function {record.function}" if record.function else "")
    if record and record.xla_flags:
        yield f"XLA_FLAGS {record.xla_flags}"


def _argument_lines(
    shown: EntryDetails, parameters: Sequence[ArrayType], verbose: bool
) -> Iterator[str]:
    """Yield the arguments in which entries of the module differ, and then all of them."""
    every = _arrays(parameters, verbose)
    if shown.differing_arguments in ((), (0,)):
        yield every
        return
    apart = [f"argument {n} {short_type(parameters[n])}" for n in shown.differing_arguments]
    verb = "differs" if len(apart) == 1 else "differ"
    yield f"{', '.join(cut(apart, verbose))}, which {verb} in other entries of the module"
    yield f"all: {every}"


def _arrays(arrays: Sequence[ArrayType], verbose: bool) -> str:
    return ", ".join(cut([short_type(a) for a in arrays], verbose)) or "nothing"


def _program_lines(c: Contents, verbose: bool) -> Iterator[str]:
    program = c.program
    options = c.compile_options
    if program is None:
        return
    line = f"{units.format_count(program.instructions, 'instruction')} in " + units.format_count(
        program.computations, "computation"
    )
    if options.num_replicas is not None and options.num_partitions is not None:
        line += f"; {units.format_count(options.num_replicas, 'replica')} × "
        line += units.format_count(options.num_partitions, "partition")
    if options.device_assignment:
        devices = [str(d) for row in options.device_assignment for d in row]
        shown = ", ".join(devices[:16]) + (", …" if len(devices) > 16 else "")
        line += f" on {'device' if len(devices) == 1 else 'devices'} {shown}"
    yield f"{line}; guided by a profile (PGLE)" if options.profile_guided else line
    limit = None if verbose else _SHOWN
    words = [f"{n} {op}" for op, n in islice(program.opcodes.items(), limit)]
    more = sum(program.opcodes.values()) - sum([*program.opcodes.values()][:limit])
    yield " · ".join([*words, *([f"{more} others"] if more else [])])
    if program.custom_calls:
        yield "calls " + " · ".join(f"{n} {op}" for op, n in program.custom_calls.items())


def _memory_line(memory: Memory) -> str:
    parts = [
        (name, getattr(memory, f"{name}_bytes"))
        for name in ("argument", "output", "temp", "alias", "constant", "code")
    ]
    sizes = [f"{name} {units.format_size(size)}" for name, size in parts if size]
    if memory.total_bytes is not None:
        sizes.insert(0, f"{units.format_size(memory.total_bytes)} in all")
    return " · ".join(sizes) or "not recorded in entries of this kind"


def _target_lines(device: Device, verbose: bool) -> Iterator[str]:
    words = [device.name, device.target if device.target != device.name else None]
    if device.toolkit:
        words.append(f"CUDA {device.toolkit}")
    if device.cudnn:
        words.append(f"cuDNN {device.cudnn}")
    if device.platform == "cpu" and device.cpu_triple:
        words.append(device.cpu_triple)
    shown = [w for w in words if w]
    yield f"{device.platform}: " + (", ".join(shown) or "not recorded in entries of this version")
    if device.platform == "gpu" and device.cpu_triple:
        yield f"host {device.cpu_name or 'CPU'}, {device.cpu_triple}"
    if device.cpu_features and verbose:
        on = [f[1:] for f in device.cpu_features if f.startswith("+")]
        yield f"{len(on)} CPU features: {' '.join(on)}"
