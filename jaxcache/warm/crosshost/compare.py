"""Capture the profile of this host, and compare it with that of a target."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from jaxcache.cache.allow_lists import kept_flags
from jaxcache.cache.doctor.inputs import read_rules
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.warm.child.child import find_python, query_once
from jaxcache.warm.crosshost.target_profile import ProfileError, TargetProfile, make_profile

_TIMEOUT_SECONDS = 300


def capture_profile(python: str | None = None, *, now_ns: int, pod: bool = False) -> TargetProfile:
    """The profile of this host, as the jax of one Python sees it.

    Args:
        python: an interpreter that has jax; our own by default.
        pod: join the processes on other hosts first, which capture at the same time.

    Raises:
        NoJaxError: it has none, cannot run, or finds no device.
        ProfileError: ``several-processes`` if hosts work together and ``pod`` is not set;
            ``no-pod`` if the other hosts cannot be determined.
    """
    python = find_python(python)
    facts = query_once(
        python, "describe.capture", *(["pod"] if pod else []), seconds=_TIMEOUT_SECONDS
    )
    if "no_pod" in facts:
        raise ProfileError(
            f"this process could not join the others of its pod: {facts['no_pod']}",
            code="no-pod",
            hint="start it on every host as the program is started; without a cluster manager, "
            "set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID",
        )
    if facts.get("process_count", 1) != 1 and not pod:
        raise ProfileError(
            "several hosts work together here, and each needs a profile of its own",
            code="several-processes",
            hint="on every host: jaxcache target capture DIR/",
        )
    return make_profile(facts, now_ns=now_ns)


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """One thing that is otherwise here."""

    component: str
    """The component of the key, as JAX names it, or what else it is about."""
    target: str
    here: str
    meaning: str
    fix: str | None = None
    """A remedy; None where nothing needs to be done."""
    prevents: bool = False
    """Whether nothing can be warmed for the target from here."""


def compare_profiles(target: TargetProfile, here: TargetProfile) -> tuple[ProfileDifference, ...]:
    """Every difference that matters when warming here for the target, what prevents it first."""
    return tuple(sorted(_differences(target, here), key=lambda d: not d.prevents))


def _differences(target: TargetProfile, here: TargetProfile) -> Iterator[ProfileDifference]:
    rules = read_rules(__file__)

    def differ(
        rule: str, there: str, own: str, differs: bool | None = None, **values: Any
    ) -> Iterator[ProfileDifference]:
        if there != own if differs is None else differs:
            row = rules[rule]
            fields: dict[str, Any] = {"fix": None, "prevents": False, **row}
            for name in ("meaning", "fix"):
                text = row.get(name)
                fields[name] = text and text.format(target=target, here=here, **values)
            yield ProfileDifference(target=there, here=own, **fields)

    yield from differ("jaxlib", target.jaxlib_version, here.jaxlib_version)
    same_jaxlib = target.jaxlib_version == here.jaxlib_version
    builds = same_jaxlib and target.jaxlib_digest != here.jaxlib_digest
    digests = (_short(target.jaxlib_digest), _short(here.jaxlib_digest))
    yield from differ("binaries", *digests, builds)
    yield from differ("jax", f"jax {target.jax_version}", f"jax {here.jax_version}")
    yield from differ("topology", "not recorded", "", not target.is_complete)
    # The compiler makes the fingerprint.
    comparable = same_jaxlib and target.topology_fingerprint is not None
    described = attrgetter("topology_fingerprint" if comparable else "devices")
    fingerprints = (target.topology_fingerprint or "?", here.topology_fingerprint or "?")
    yield from differ("devices", *fingerprints, described(target) != described(here))
    for name, version in target.plugins.items():
        if _compiles(name) and here.plugins.get(name) != version:
            own = here.plugins.get(name, "missing")
            for found in differ("plugin", f"{name} {version}", own, plugin=f"{name}=={version}"):
                yield replace(found, prevents=name not in here.plugins)
    yield from differ("backend", target.platform_version, here.platform_version)
    codecs = target.key_codec != here.key_codec or target.codec != here.codec
    yield from differ("compression", target.key_codec, here.key_codec, codecs)
    for name in sorted({*target.environment, *here.environment}):
        rule = "flags" if name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") else "environment"
        yield from differ(rule, _assigned(name, target), _assigned(name, here))
    releases = [p.python_version.split(".")[:2] for p in (target, here)]
    pythons = (target.python_version, here.python_version)
    yield from differ("python", *pythons, releases[0] != releases[1])


#: What a key is made of, in :class:`ProfileDifference`; packages and builds are not.
_IN_KEYS = (
    *("jax_lib version", "computation", "accelerator_config", "backend version"),
    *("compression", "XLA flags", "environment"),
)


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """The entries of a cache that this host, as the target itself, would look up."""

    entries: int
    for_target: int
    """Entries that were made for the profile, as the ledger knows."""
    looked_up: int
    """Those of them whose keys this host makes, for the programs that they were made of."""
    differences: tuple[ProfileDifference, ...]
    """Parts of keys in which this host differs from the profile."""


def check_target(
    targets: Sequence[TargetProfile],
    here: TargetProfile,
    keys: Iterable[str],
    records: Iterable[LedgerRecord],
) -> TargetCheck:
    """Count the entries that this host would look up, from their records in the ledger.

    Args:
        targets: one profile, or one for each process of a pod.
        keys: of the entries that are there.

    Raises:
        ProfileError: ``mixed-pod`` where the pod here has another number of processes.
    """
    if here.process_count != len(targets):
        raise ProfileError(
            f"the profiles are of {len(targets)} processes, and here are {here.process_count}",
            code="mixed-pod",
            hint="capture the profiles again, and warm with them",
        )
    target = targets[here.process_index]
    here = replace(here, environment=_with_kept_flags(here))
    expected = replace(target, environment=_with_kept_flags(target))
    present = set(keys)
    for_target = sum(_is_made_for(r, target) for r in records if r.key in present)
    differences = tuple(
        replace(
            d,
            meaning="in the key: this host looks for other entries",
            fix="capture the profile again here, and warm with it; or use the same setting on both",
            prevents=True,
        )
        for d in _differences(expected, here)
        if d.component in _IN_KEYS and d.here
    )
    return TargetCheck(len(present), for_target, 0 if differences else for_target, differences)


def _is_made_for(record: LedgerRecord, profile: TargetProfile) -> bool:
    return (
        record.jaxlib_version == profile.jaxlib_version
        and record.platform_version == profile.platform_version
        and record.extra.get("topology_fingerprint") == profile.topology_fingerprint
    )


def _with_kept_flags(profile: TargetProfile) -> dict[str, str]:
    """The environment with the flags that enter keys only."""
    environment = dict(profile.environment)
    flags = kept_flags(environment.pop("XLA_FLAGS", "").split())
    return environment | ({"XLA_FLAGS": " ".join(flags)} if flags else {})


def _assigned(name: str, profile: TargetProfile) -> str:
    value = profile.environment.get(name)
    return f"{name} is not set" if value is None else f"{name}={value}"


def _compiles(name: str) -> bool:
    """Whether a package is needed to compile for its platform; CUDA's libraries are not."""
    return name == "libtpu" or name.endswith(("-pjrt", "-plugin"))


def _short(digest: str | None) -> str:
    return "?" if digest is None else digest[:12]
