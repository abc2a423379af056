"""A target profile as a view."""

from collections.abc import Iterator, Sequence

from jaxcache.render.view import Block, Line, View, fields_of, versioned
from jaxcache.units import format_count
from jaxcache.warm.crosshost.target_profile import ProfileDifference, TargetCheck, TargetProfile

_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def profile_view(
    profile: TargetProfile, differences: Sequence[ProfileDifference] | None, cache_dir: str
) -> View:
    """Return the view of ``target show``; ``differences`` is None without a jax to compare with.

    In a difference ``left`` is the target, ``right`` is here.
    """
    shown = differences or ()
    document = {"cache_dir": cache_dir, "profile": profile.to_json(), "differences": differences}
    rows: list[tuple[object, ...]] = [row[:2] for row in _rows(profile)]
    rows += [
        ("differs" if d.here else "unknown", d.component, d.target, d.here, d.fix) for d in shown
    ]
    page = _page(profile, differences)
    return View(document, rows, records=[versioned(document)], page=page)


def check_view(check: TargetCheck, cache_dir: str) -> View:
    """Return the view of ``target check``."""
    line = (
        f"this host makes the keys of {check.looked_up:,} of "
        f"{format_count(check.entries, 'entry')}; {check.for_target:,} were made for this profile"
    )
    names = ("entries", "for_target", "looked_up")
    rows: list[tuple[object, ...]] = [(name, getattr(check, name)) for name in names]
    rows += [("differs", d.component, d.target, d.here, d.fix) for d in check.differences]
    document = {"cache_dir": cache_dir, **fields_of(check)}
    page: list[Block] = [line, *_shown(check.differences)]
    return View(document, rows, records=[versioned(document)], page=page)


def _shown(differences: Sequence[ProfileDifference]) -> Iterator[Line]:
    for d in differences:
        yield Line(f"{d.component}: {d.target}" + (f", here {d.here}" if d.here else ""), "  ")
        yield Line(d.meaning + (f"; {d.fix}" if d.fix else ""), "      ")


def _rows(profile: TargetProfile) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, what it does) of everything in a profile."""
    p = profile
    yield "devices", p.devices, ""
    if p.process_count > 1:
        yield "process", f"{p.process_index} of {p.process_count}", ""
    yield "platform", p.platform, "in keys"
    if p.lowering_platform != p.platform:
        yield "lowers for", p.lowering_platform, "programs are lowered for it"
    yield "platform_version", " ".join(p.platform_version.split()), "in keys"
    yield "topology fingerprint", p.topology_fingerprint or "none", "in keys"
    topology = "none" if p.topology is None else f"{len(p.topology)} bytes"
    yield "topology", topology, "compiled for"
    if p.target_config is not None:
        yield "target config", f"{len(p.target_config)} characters", "of the GPU"
    yield "jax", p.jax_version, "traces and lowers"
    yield "jaxlib", p.jaxlib_version, "in keys"
    for name, version in p.plugins.items():
        yield name, version, ""
    yield "compression", p.key_codec, f"in keys; entries are written with {p.codec}"
    for name, value in p.environment.items():
        yield name, value, "literally in keys" if name in _FLAGS else "in programs"
    for name, setting in p.settings.items():
        if setting is not None:
            yield name, str(setting), "in compile options"
    features = f", {len(p.cpu.features)} features" if p.cpu.features else ""
    yield "host CPU", f"{p.cpu.name or p.cpu.machine}{features}", ""
    yield "python", p.python_version, ""
    yield "captured", p.captured_at, ""


def _page(
    profile: TargetProfile, differences: Sequence[ProfileDifference] | None
) -> Iterator[Block]:
    rows = list(_rows(profile))
    wide = max(len(name) for name, _, _ in rows)
    for name, value, meaning in rows:
        yield Line(value + (f"  ({meaning})" if meaning else ""), f"{name:<{wide}}  ")
    if differences is None:
        return
    yield ""
    yield "here differs:" if any(d.here for d in differences) else "nothing differs here"
    yield from _shown(differences)
    if any(d.prevents for d in differences):
        yield "nothing can be warmed for this target from here"
