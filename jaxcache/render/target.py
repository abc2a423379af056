"""A target profile as a document and as a page."""

from collections.abc import Iterator, Sequence

from jaxcache.entry.names import printable
from jaxcache.render.document import SCHEMA_VERSION, Document
from jaxcache.warm.crosshost.compare import ProfileDifference
from jaxcache.warm.crosshost.profile import Profile


def profile_document(
    profile: Profile, differences: Sequence[ProfileDifference] | None, cache_dir: str
) -> Document:
    """Make the document of ``target show``; ``differences`` is null without a jax to compare."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cache_dir": printable(cache_dir),
        "profile": profile.to_json(),
        "differences": None
        if differences is None
        else [difference_document(d) for d in differences],
    }


def difference_document(difference: ProfileDifference) -> Document:
    """One of ``differences[]``; ``left`` is the target, ``right`` is here."""
    return {
        "component": difference.component,
        "left": difference.target,
        "right": difference.here,
        "meaning": difference.meaning,
        "fix": difference.fix,
        "prevents": difference.prevents,
    }


def profile_rows(profile: Profile) -> Iterator[tuple[str, str, str]]:
    """(name, value, what it does) of everything in a profile."""
    p = profile
    yield "devices", p.devices, ""
    yield "platform", p.platform, "in keys"
    if p.lowering_platform != p.platform:
        yield "lowers for", p.lowering_platform, "programs are lowered for it"
    yield "platform_version", " ".join(p.platform_version.split()), "in keys"
    yield "topology fingerprint", p.topology_fingerprint or "none", "in keys"
    topology = "none" if p.topology is None else f"{len(p.topology)} bytes"
    yield "topology", topology, "what is compiled for"
    if p.target_config is not None:
        yield "target config", f"{len(p.target_config)} characters", "of the GPU"
    yield "jax", p.jax_version, "traces and lowers"
    yield "jaxlib", p.jaxlib_version, "in keys"
    for name, version in p.plugins.items():
        yield name, version, ""
    yield "compression", p.key_codec, f"in keys; entries are written with {p.codec}"
    for name, value in p.environment.items():
        yield name, value, "literally in keys" if name in _FLAGS else "in programs"
    for name, value in p.settings.items():
        if value is not None:
            yield name, str(value), "in compile options"
    features = f", {len(p.cpu.features)} features" if p.cpu.features else ""
    yield "host CPU", f"{p.cpu.name or p.cpu.machine}{features}", ""
    yield "python", p.python_version, ""
    yield "captured", p.captured_at, ""


_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def profile_page(profile: Profile, differences: Sequence[ProfileDifference] | None) -> str:
    """A profile for people, and what here differs from it."""
    rows = [tuple(map(printable, row)) for row in profile_rows(profile)]
    wide = max(len(name) for name, _, _ in rows)
    lines = [
        f"{name:<{wide}}  {value}" + (f"  ({meaning})" if meaning else "")
        for name, value, meaning in rows
    ]
    if differences is None:
        return "\n".join(lines)
    lines.append("")
    lines.append("here differs:" if differences else "nothing differs here")
    for d in differences:
        here = f", here {printable(d.here)}" if d.here else ""
        lines.append(f"  {printable(d.component)}: {printable(d.target)}{here}")
        lines.append(f"      {printable(d.meaning)}" + (f"; {printable(d.fix)}" if d.fix else ""))
    if any(d.prevents for d in differences):
        lines.append("nothing can be warmed for this target from here")
    return "\n".join(lines)


def profile_tsv(profile: Profile, differences: Sequence[ProfileDifference] | None) -> Iterator[str]:
    """One line per fact: name, value; then ``differs``, component, target, here, fix."""
    for name, value, _ in profile_rows(profile):
        yield f"{printable(name)}\t{printable(value)}"
    for d in differences or ():
        cells = (d.component, d.target, d.here, d.fix or "")
        yield "\t".join(("differs", *map(printable, cells)))
