"""Traps whose real cause takes another machine: judged over real texts and real entries."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxcache.cache.doctor import keys, place
from jaxcache.cache.doctor.facts import CacheFacts, Facts, Finding, Host
from jaxcache.cache.doctor.survey import features_of_cpu, filesystem_of, look_at_cache
from jaxcache.entry.releases import read_release

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
61 27 0:52 / /home rw,relatime shared:1 - nfs4 filer:/vol/home rw,vers=4.2,hard
62 27 0:53 / /scratch\040big rw,noatime - lustre mds@tcp:/scratch rw,flock
63 27 0:54 / /home/me/local rw,relatime - xfs /dev/sdb1 rw
64 27 0:55 / /mnt/Größe rw,relatime - cifs //filer/big rw
"""
ODD_MOUNT = "65 27 0:56 / /mnt/\udcff rw,relatime - cifs //filer/odd rw\n"

#: A Haswell, as Linux tells it.
HASWELL = """processor : 0
model name : Intel(R) Core(TM) i7-4790
flags : fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr \
sse sse2 ss ht syscall nx rdtscp lm pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes \
xsave avx f16c rdrand lahf_lm abm bmi1 avx2 bmi2 erms invpcid xsaveopt
bugs : cpu_meltdown
"""

Trap = Callable[[Facts], Iterator[Finding]]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/you/.cache/jax", "nfs4"),
        ("/home/me/local/jax", "xfs"),
        ("/scratch big/jax", "lustre"),
        ("/var/cache", "ext4"),
        ("/homework", "ext4"),
        ("/mnt/Größe/jax", "cifs"),
        ("/mnt/\udcff/jax", "cifs"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    assert filesystem_of(path, MOUNTS + ODD_MOUNT) == kind
    assert filesystem_of(path, "garbage\n\n - \n") is None


def test_network_filesystem() -> None:
    cache = CacheFacts("/home/you/.cache/jax")
    there = filesystem_of(cache.path, MOUNTS)
    (finding,) = place.find_network_filesystem(Facts(cache, host=Host(filesystem=there)))
    assert "nfs4" in finding.seen
    here = filesystem_of("/var/cache", MOUNTS)
    assert not list(place.find_network_filesystem(Facts(cache, host=Host(filesystem=here))))
    assert not list(place.find_network_filesystem(Facts(cache)))


@pytest.fixture
def seen(corpus: Path) -> CacheFacts:
    """Real entries, which were compiled for a CPU with AVX-512."""
    return look_at_cache(str(corpus / "0.12.0.1-cpu-zstd"), max_decoded=None, progress=None)


def test_cpu_features(seen: CacheFacts) -> None:
    host = Host(cpu_features=features_of_cpu(HASWELL))
    (finding,) = place.find_cpu_features(Facts(seen, host=host))
    assert "avx512f" in finding.seen
    assert "prefer" not in finding.seen
    assert len(finding.files) == 7


def test_cpu_features_are_silent_where_the_cpu_has_them(seen: CacheFacts) -> None:
    wanted = {
        feature[1:]
        for contents in seen.contents.values()
        for feature in contents.device.cpu_features or ()
        if feature.startswith("+")
    }
    host = Host(cpu_features=frozenset(wanted & place.TOLD_BY_SYSTEM.keys()))
    assert not list(place.find_cpu_features(Facts(seen, host=host)))
    assert features_of_cpu("processor : 0\nFeatures : fp asimd\n") is None
    assert not list(place.find_cpu_features(Facts(seen, host=Host())))


def test_foreign_owner_of_the_directory(seen: CacheFacts) -> None:
    assert seen.root is not None
    for user, silent in ((seen.root.owner, True), (seen.root.owner + 1, seen.root.owner == 0)):
        found = list(place.find_foreign_owners(Facts(seen, host=Host(user=user))))
        assert (not found) is silent


@pytest.mark.parametrize("trap", [keys.find_mixed_builds, keys.find_orphaned_generations])
def test_nothing_is_said_where_nothing_is_known(trap: Trap, seen: CacheFacts) -> None:
    assert not list(trap(Facts(seen)))


def test_releases() -> None:
    assert read_release("0.12.0.1") == (0, 12, 0, 1)
    assert read_release("0.10.2.dev3") == (0, 10, 2)
    assert read_release("main") == ()
