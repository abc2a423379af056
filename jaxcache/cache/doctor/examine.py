"""Ask every trap."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxcache.cache.doctor import keys, place, writes
from jaxcache.cache.doctor.facts import Facts
from jaxcache.cache.doctor.findings import Finding

#: Every trap that is known, in the order of the report.
TRAPS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    writes.find_live_off,
    writes.find_cache_off,
    writes.find_not_writable,
    writes.find_disk_full,
    writes.find_lock_library_missing,
    writes.find_missing_atime,
    writes.find_lock_held,
    writes.find_threshold,
    writes.find_damage,
    writes.find_long_names,
    writes.find_uncacheable,
    writes.find_slow_cap,
    writes.find_capped_bucket,
    keys.find_cache_dir_in_key,
    keys.find_codec_missing,
    keys.find_codec_clash,
    keys.find_pmap_churn,
    keys.find_mixed_builds,
    keys.find_orphaned_generations,
    place.find_cpu_features,
    place.find_open_permissions,
    place.find_foreign_owners,
    place.find_network_filesystem,
    place.find_noatime,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What ``doctor`` says."""

    facts: Facts
    findings: tuple[Finding, ...]
    """Problems first."""
    mended: tuple[str, ...] = ()
    """What ``--fix`` did, or would do, one sentence each."""
    no_jax: str | None = None
    """Why no Python with jax was asked."""

    @property
    def wrong(self) -> bool:
        """Whether there is a problem, not only something worth knowing."""
        return any(f.severity == "problem" for f in self.findings)


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Every trap that is present, problems first."""
    found = [finding for trap in TRAPS for finding in trap(facts)]
    return tuple(sorted(found, key=lambda f: f.severity != "problem"))
