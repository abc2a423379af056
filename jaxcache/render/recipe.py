"""What is in a recipe, as documents, as lines, and as pages for people."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from jaxcache.cache.recipe.format import RecipeFile
from jaxcache.cache.recipe.listing import Listed
from jaxcache.cache.recipe.model import Environment
from jaxcache.cache.recipe.refusals import REFUSALS
from jaxcache.entry.names import printable
from jaxcache.render.document import Document, envelope
from jaxcache.render.table import Column, render_table, short_key
from jaxcache.units import format_duration, format_size


def recipe_document(file: RecipeFile, found: Sequence[Listed]) -> Document:
    """What ``ls --json`` and ``show --json`` print of a recipe."""
    return {
        **envelope(file.path),
        "recipe": {
            "size_bytes": file.size_bytes,
            "digest": file.digest,
            "environments": [_environment_document(e) for e in file.recipe.environments],
            "notes": [printable(n) for n in file.recipe.notes],
        },
        "modules": [listed_document(x) for x in found],
        "summary": {
            "modules": len(file.recipe.requests),
            "bytecode_bytes": sum(x.bytecode_bytes for x in found),
            "compile_seconds": sum(x.request.compile_seconds or 0.0 for x in found),
        },
    }


def _environment_document(environment: Environment) -> Document:
    values = asdict(environment)
    return {
        n: printable(v)
        if isinstance(v, str)
        else [printable(x) for x in v]
        if isinstance(v, tuple)
        else v
        for n, v in values.items()
    }


def listed_document(listed: Listed) -> Document:
    """One of ``modules[]``."""
    r = listed.request
    options = listed.options
    return {
        "module": printable(r.module),
        "key": r.key,
        "hash": r.hash,
        "bytecode_bytes": listed.bytecode_bytes,
        "compile_seconds": r.compile_seconds,
        "occurrences": r.occurrences,
        "platform": printable(listed.environment.platform),
        "environment": r.environment,
        "process_id": listed.environment.process_id,
        "device_ids": list(r.device_ids),
        "device_shape": list(r.device_shape),
        "executable_device_ids": r.executable_device_ids and list(r.executable_device_ids),
        "callbacks": r.callbacks,
        "refusal": listed.refusal,
        "doubts": [printable(d) for d in r.doubts],
        "stubbed": r.stubbed,
        "function": r.function and printable(r.function),
        "file": r.file and printable(r.file),
        "line": r.line,
        "components": {printable(n): printable(v) for n, v in r.components.items()},
        "compile_options": options
        and {
            "num_replicas": options.num_replicas,
            "num_partitions": options.num_partitions,
            "flags_changed": options.flags_changed,
        },
    }


def listed_tsv(found: Sequence[Listed]) -> Iterator[str]:
    """One line per module: key, bytes of bytecode, compile seconds, platform, what is wrong."""
    for x in found:
        seconds = "" if x.request.compile_seconds is None else f"{x.request.compile_seconds:g}"
        yield (
            f"{printable(x.key)}\t{x.bytecode_bytes}\t{seconds}"
            f"\t{printable(x.environment.platform)}\t{printable(_trouble(x))}"
        )


def recipe_table(found: Sequence[Listed], *, width: int, color: bool) -> str:
    """A table of modules, ``width`` columns wide at the most."""
    columns = [
        Column("KEY", elastic=True),
        Column("BYTECODE", right=True),
        Column("COMPILE", right=True),
        Column("DEVICES", right=True),
        Column("PLATFORM"),
    ]
    if any(_trouble(x) for x in found):
        columns.append(Column("TROUBLE", elastic=True, style="red"))
    rows = [
        [
            short_key(x.module, x.hash) if x.hash else printable(x.module),
            format_size(x.bytecode_bytes),
            "?"
            if x.request.compile_seconds is None
            else format_duration(x.request.compile_seconds),
            str(len(x.request.device_ids)),
            printable(x.environment.platform),
            printable(_trouble(x)),
        ]
        for x in found
    ]
    return render_table(columns, rows, width=width, color=color)


def _trouble(listed: Listed) -> str:
    return ", ".join([*([listed.refusal] if listed.refusal else []), *listed.request.doubts])


def recipe_footer(file: RecipeFile, found: Sequence[Listed]) -> str:
    """One line: ``18 modules, 14 s of compiling, 19.8 kB``."""
    recipe = file.recipe
    noun = "module" if len(recipe.requests) == 1 else "modules"
    line = (
        f"{len(recipe.requests)} {noun}, {format_duration(recipe.compile_seconds)} of compiling, "
        f"{format_size(file.size_bytes)}"
    )
    hidden = len(recipe.requests) - len(found)
    return line + (f" ({hidden} not shown)" if hidden else "")


def recipe_page(file: RecipeFile, found: Sequence[Listed]) -> str:
    """The recipe as a whole, for people."""
    lines = [printable(file.path), f"  digest {file.digest}", f"  {recipe_footer(file, found)}"]
    for number, e in enumerate(file.recipe.environments):
        count = sum(r.environment == number for r in file.recipe.requests)
        lines += [f"  {line}" for line in _environment_lines(e, count)]
    lines += [f"  note: {printable(n)}" for n in file.recipe.notes]
    return "\n".join(lines)


def _environment_lines(e: Environment, count: int) -> Iterator[str]:
    devices = f"{e.device_count} {e.platform} device{'' if e.device_count == 1 else 's'}"
    process = f", process {e.process_id} of {e.process_count}" if e.process_count > 1 else ""
    yield printable(
        f"{count} modules of jax {e.jax_version}, jaxlib {e.jaxlib_version}: {devices}{process}"
    )
    flags = (*e.xla_flags, *e.libtpu_init_args, *e.argv_flags)
    settings = (f"{n}={v}" for n, v in e.settings.items())
    for title, text in (
        ("recorded in", e.cache_dir),
        ("flags", " ".join(flags)),
        ("settings", " ".join(settings)),
        ("device", e.device_kind),
        ("platform", e.platform_version),
    ):
        if text and (title, text) != ("platform", e.platform):
            yield f"  {title}: {printable(' '.join(text.split()))}"


def listed_page(listed: Listed) -> str:
    """One module, for people."""
    r, e = listed.request, listed.environment
    rows = {
        "Key": r.key or "none: the run ended before",
        "Function": f"{r.function} ({r.file}:{r.line})" if r.function else None,
        "Compile": None if r.compile_seconds is None else format_duration(r.compile_seconds),
        "Asked for": f"{r.occurrences} times" if r.occurrences > 1 else None,
        "Bytecode": f"{format_size(listed.bytecode_bytes)}, SHA-256 {r.bytecode}",
        "Devices": f"{', '.join(map(str, r.device_ids))} in {' × '.join(map(str, r.device_shape))}",
        "Recorded by": f"jax {e.jax_version}, jaxlib {e.jaxlib_version} on {e.platform}",
        "Callbacks": str(r.callbacks) if r.callbacks else None,
        "Refused": f"{listed.refusal}: {REFUSALS[listed.refusal]}" if listed.refusal else None,
        "Doubts": ", ".join(r.doubts) or None,
        "Stubbed": "answered with zeros, never compiled" if r.stubbed else None,
        **{f"  {name}": digest for name, digest in r.components.items()},
    }
    width = max(len(name) for name, text in rows.items() if text)
    return "\n".join(
        f"{printable(name):<{width}}  {printable(text)}" for name, text in rows.items() if text
    )
