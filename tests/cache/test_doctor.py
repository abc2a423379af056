"""Checks whose real cause takes another machine: run over real texts and real entries."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxcache.cache.doctor import directory, inputs, keys, writes
from jaxcache.cache.doctor.inputs import CacheFacts, Facts, HostFacts, Interpreter, Setting
from jaxcache.cache.doctor.run_checks import collect_cache_facts, filesystem_of
from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.core.machine import read_release
from jaxcache.entry.contents import Device, XlaCompileOptions
from jaxcache.model import Platform

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
61 27 0:52 / /home rw,relatime shared:1 - nfs4 filer:/vol/home rw,vers=4.2,hard
62 27 0:53 / /scratch\040big rw,noatime - lustre mds@tcp:/scratch rw,flock
63 27 0:54 / /home/me/local rw,relatime - xfs /dev/sdb1 rw
64 27 0:55 / /mnt/Größe rw,relatime - cifs //filer/big rw
"""
ODD_MOUNT = "65 27 0:56 / /mnt/\udcff rw,relatime - cifs //filer/odd rw\n"


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
    facts = Facts(CacheFacts(path), host=HostFacts(filesystem=kind))
    found = [kind in finding.seen for finding in directory.find_network_filesystem(facts)]
    assert found == [True] * (kind in ("nfs4", "lustre", "cifs"))


@pytest.fixture
def seen(corpus: Path) -> CacheFacts:
    """Real entries, which were compiled for a CPU with AVX-512."""
    return collect_cache_facts(str(corpus / "0.12.0.1-cpu-zstd"), max_decoded=None)


@pytest.mark.parametrize(
    ("features", "difference"),
    [
        (("+avx2", "-avx512f", "-prefer-no-gather"), "with avx512f"),
        (("+avx2", "+xop"), "without xop"),
        (("+avx2", "-xop"), None),  # the rest is not known to that jaxlib
        ("its own", None),
        (None, None),
    ],
)
def test_cpu_features(
    seen: CacheFacts, features: tuple[str, ...] | str | None, difference: str | None
) -> None:
    (own,) = {c.device.cpu_features for c in seen.contents.values()}
    here = python("0.12.0.1", cpu_features=own if features == "its own" else features)
    found = list(directory.find_other_cpus(Facts(seen, interpreter=here)))
    said = f"7 entries compiled for another CPU (rocketlake), {difference}"
    assert [(f.seen, len(f.files)) for f in found] == ([(said, 7)] if difference else [])


def test_keys_without_the_cpu_matter_where_a_cache_moves(seen: CacheFacts) -> None:
    key = next(iter(seen.contents))
    moved = replace(seen, records={key: LedgerRecord(key, arrived_ns=1)})
    shared = Facts(seen, interpreter=python("0.8.2"), host=HostFacts(filesystem="nfs4"))
    for facts in (Facts(moved, interpreter=python("0.6.2")), shared):
        (finding,) = directory.find_cpu_not_in_key(facts)
        assert "SIGILL" in finding.cost
    for facts in (
        Facts(moved, interpreter=python("0.8.3")),
        Facts(seen, interpreter=python("0.6.2")),
    ):
        assert not list(directory.find_cpu_not_in_key(facts))


def test_foreign_owner_of_the_directory(seen: CacheFacts) -> None:
    assert seen.root is not None
    for user, silent in ((seen.root.owner, True), (seen.root.owner + 1, seen.root.owner == 0)):
        found = list(directory.find_foreign_owners(Facts(seen, host=HostFacts(user=user))))
        assert (not found) is silent


def test_releases() -> None:
    assert read_release("0.12.0.1") == (0, 12, 0, 1)
    assert read_release("0.10.2.dev3") == (0, 10, 2)
    assert read_release("main") == ()


def with_device(seen: CacheFacts, **changes: Any) -> CacheFacts:
    """The cache with its first decoded entry changed: ``device``, ``compile_options``, …."""
    key, contents = next(iter(seen.contents.items()))
    return replace(seen, contents={**seen.contents, key: replace(contents, **changes)})


def python(version: str, **facts: Any) -> Interpreter:
    return Interpreter("/python", "3.12", version, version, **facts)


def recorded(seen: CacheFacts, *records: tuple[str, str]) -> CacheFacts:
    """The cache with the version and the build of jaxlib in the records of its first entries."""
    pairs = zip([entry.key for entry in seen.entries], records, strict=False)
    made = {
        key: LedgerRecord(key, jaxlib_version=version or None, extra={"jaxlib_digest": build})
        for key, (version, build) in pairs
    }
    return replace(seen, records=made)


OWN = python("0.12.0.1", jaxlib_digest="aa")


@pytest.mark.parametrize(
    ("records", "interpreter", "builds"),
    [
        ([("0.0.1", "cc"), ("0.12.0.1", "aa"), ("0.12.0.1", "bb")], None, [1, 2]),
        ([("0.12.0.1", "aa"), ("0.0.1", "bb")], OWN, []),
        ([("0.12.0.1", "bb")], OWN, [0]),
        ([("0.12.0.1", "bb")], None, []),
        ([], OWN, []),
    ],
)
def test_mixed_builds(
    seen: CacheFacts,
    records: list[tuple[str, str]],
    interpreter: Interpreter | None,
    builds: list[int],
) -> None:
    facts = Facts(recorded(seen, *records), interpreter=interpreter)
    files = {file for finding in keys.find_mixed_builds(facts) for file in finding.files}
    assert files == {seen.entries[n].file for n in builds}


@pytest.mark.parametrize(
    ("versions", "orphans", "filters"),
    [
        (["0.12.0.1", "0.0.1", ""], [1], " --filter jaxlib=0.0.1"),
        (["0.0.1", "0.0.2"], [0, 1], ""),
        ([], [], ""),
    ],
)
def test_orphaned_generations(
    seen: CacheFacts, versions: list[str], orphans: list[int], filters: str
) -> None:
    cache = recorded(seen, *((version, "aa") for version in versions))
    found = [*keys.find_orphaned_generations(Facts(cache, interpreter=OWN))]
    assert [f.files for f in found] == [tuple(seen.entries[n].file for n in orphans)] * len(found)
    assert len(found) == bool(orphans)
    assert all(f"prune{filters} --unused-for" in finding.fix for finding in found)
    assert not [*keys.find_orphaned_generations(Facts(cache))]


def test_entries_that_were_written_under_another_path(corpus: Path, tmp_path: Path) -> None:
    cache = collect_cache_facts(str(corpus / "0.10.2-cpu-zstd"), max_decoded=1)
    (contents,) = cache.contents.values()
    old = contents.written_in_cache_dir
    assert old

    def fixes(written_in: str, setting: str | None = None, **facts: Any) -> list[str]:
        moved = replace(with_device(cache, written_in_cache_dir=written_in), **facts)
        chosen = Setting("jax_compilation_cache_dir", setting, "environment")
        return [f.fix for f in keys.find_cache_dir_in_key(Facts(moved, (chosen,)))]

    assert fixes(cache.path) == fixes(old, old, path=old) == []
    (fix,) = fixes(old)
    assert f": ln -s {cache.path} {old}; export JAX_COMPILATION_CACHE_DIR={old}. " in fix
    (fix,) = fixes(str(tmp_path))  # it is another directory
    assert f"export JAX_COMPILATION_CACHE_DIR={tmp_path}" not in fix
    link = tmp_path / "link"
    link.symlink_to(cache.path)
    (fix,) = fixes(str(link))  # it is the same one, spelt another way
    assert f": export JAX_COMPILATION_CACHE_DIR={link}. " in fix
    assert fixes(str(link), str(link)) == []
    url = "gs://team/jax"
    (fix,) = fixes(old, url, path=url, remote=True)
    assert fix.startswith(f"jaxcache pull {url} -C {old}. ")
    (fix,) = fixes(f"{url}-two", url, path=url, remote=True)
    assert fix.startswith(f"fill it under its own address: jaxcache warm -C {url} SCRIPT. ")


@pytest.mark.parametrize(
    ("setting", "version", "effect", "absolute"),
    [
        ("/srv/jax", "0.10.2", None, ""),
        (None, "0.10.2", None, ""),
        ("gs://team/jax", "0.10.2", None, ""),
        ("LINK", "0.12.0", None, ""),
        ("LINK", "0.10.2", "it is a link or contains .., and leads to ", "LINK"),
        ("jax", "0.12.0", "each working directory has a cache of its own", "HERE/jax"),
        ("~/jax", "0.12.0", "JAX expands no ~ and no variable and keeps quotes", "/home/you/jax"),
        ("$HOME/jax", "0.12.0", "JAX expands no ~ and no variable", "/home/you/jax"),
        ("${HOME}/jax", "0.12.0", "JAX expands no ~ and no variable", "/home/you/jax"),
        ("'/srv/jax'", "0.12.0", "JAX expands no ~ and no variable", "/srv/jax"),
        ("file:///srv/jax", "0.12.0", "without etils JAX treats it as the path ", "/srv/jax"),
    ],
)
def test_directory_spelling(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str | None,
    version: str,
    effect: str | None,
    absolute: str,
) -> None:
    monkeypatch.setenv("HOME", "/home/you")
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "link"
    link.symlink_to("/usr")
    text = setting and setting.replace("LINK", str(link))
    chosen = Setting("jax_compilation_cache_dir", text, "environment")
    facts = Facts(CacheFacts("/srv/jax"), (chosen,), python(version))
    found = [*keys.find_directory_spelling(facts)]
    assert len(found) == (effect is not None)
    for finding in found:
        assert effect and finding.cost.startswith(effect)
        hashed = "JAX 0.4.36 to 0.10 hash this spelling into the key" in finding.cost
        assert hashed == (version == "0.10.2")
        path = absolute.replace("LINK", str(link)).replace("HERE", str(tmp_path))
        assert finding.fix.endswith(f"export JAX_COMPILATION_CACHE_DIR={path}")


def test_hosts_that_share_a_path_and_not_a_cpu(seen: CacheFacts) -> None:
    assert not list(directory.find_other_cpus(Facts(seen)))
    haswell = Device("cpu", cpu_name="haswell", cpu_features=("+avx", "-avx512f", "+evex512"))
    (finding,) = directory.find_other_cpus(Facts(with_device(seen, device=haswell)))
    assert finding.seen == "entries for 2 kinds of CPU (1, 6), which differ in avx512f"
    apart = f"export JAX_COMPILATION_CACHE_DIR={seen.path}/$key"
    assert finding.fix.endswith(f": key=$(jaxcache ci key -C {seen.path}) && {apart}")


@pytest.mark.parametrize(
    ("version", "logs"), [("0.8.3", True), ("0.10.1", True), ("0.10.2", False)]
)
def test_messages_of_preferences(seen: CacheFacts, version: str, logs: bool) -> None:
    found = list(directory.find_cpu_messages(Facts(seen, interpreter=python(version))))
    assert bool(found) is logs
    assert not list(directory.find_cpu_messages(Facts(seen)))


def test_large_programs_on_macos(seen: CacheFacts) -> None:
    program = next(iter(seen.contents.values())).program
    assert program
    large = with_device(seen, program=replace(program, instructions=1_001))
    mac = HostFacts(system="darwin")
    (finding,) = directory.find_large_on_macos(Facts(large, interpreter=python("0.9.2"), host=mac))
    assert len(finding.files) == 1
    for facts in (
        Facts(large, interpreter=python("0.10.0"), host=mac),
        Facts(large, interpreter=python("0.9.2")),
        Facts(seen, interpreter=python("0.9.2"), host=mac),
    ):
        assert not list(directory.find_large_on_macos(facts))


@pytest.mark.parametrize(
    ("platform", "devices", "halts"),
    [("tpu", ((2, 3),), True), ("tpu", ((0, 1),), False), ("cpu", ((2, 3),), False)],
)
def test_tpu_without_device_0(
    seen: CacheFacts, platform: Platform, devices: tuple[tuple[int, ...], ...], halts: bool
) -> None:
    options = XlaCompileOptions(device_assignment=devices)
    facts = Facts(with_device(seen, device=Device(platform), compile_options=options))
    assert bool(list(directory.find_tpu_without_first(facts))) is halts


#: Of JAX's own caches, what is on by default.
DEFAULT = "xla_gpu_per_fusion_autotune_cache_dir"


def with_bucket(cache: CacheFacts, xla_caches: str, **more: Any) -> Facts:
    chosen = Setting("jax_compilation_cache_dir", "gs://team/jax", "environment")
    xla = Setting("jax_persistent_cache_enable_xla_caches", xla_caches, "default")
    return Facts(cache, (chosen, xla), **more)


def test_caches_of_xla_in_a_bucket(seen: CacheFacts, corpus: Path) -> None:
    gpu = collect_cache_facts(str(corpus / "0.12.0.1-cuda13-h200-zstd"), max_decoded=None)
    for cache, severity in ((seen, "note"), (gpu, "problem")):
        (finding,) = directory.find_xla_caches_in_bucket(with_bucket(cache, DEFAULT))
        assert finding.severity == severity
        assert not list(directory.find_xla_caches_in_bucket(with_bucket(cache, "none")))
    assert not list(directory.find_xla_caches_in_bucket(Facts(gpu)))
    assert list(directory.find_autotune_incomplete(with_bucket(gpu, DEFAULT)))
    assert not list(directory.find_autotune_incomplete(with_bucket(gpu, "none")))
    assert not list(directory.find_autotune_incomplete(with_bucket(seen, DEFAULT)))


def test_a_cache_of_kernels_that_is_on(seen: CacheFacts, corpus: Path) -> None:
    plain = collect_cache_facts(str(corpus / "0.12.0.1-cuda13-h200-zstd"), max_decoded=None)
    filled = collect_cache_facts(str(corpus / "0.10.2-cuda13-h200-kernelcache"), max_decoded=None)
    for cache, chosen, severity in (
        (seen, "all", "note"),
        (plain, "xla_gpu_kernel_cache_file", "note"),
        (filled, DEFAULT, "problem"),
        (replace(filled, inventory=plain.inventory), DEFAULT, "problem"),
    ):
        (finding,) = directory.find_kernel_cache(with_bucket(cache, chosen))
        assert (finding.severity, finding.trap) == (severity, "kernel-cache")
    for cache in (seen, plain):
        assert not list(directory.find_kernel_cache(with_bucket(cache, DEFAULT)))


def test_a_bucket_that_jax_uses_itself(seen: CacheFacts) -> None:
    (finding,) = directory.find_bucket_unchecked(with_bucket(seen, "none"))
    assert "jaxcache stats -C gs://team/jax" in finding.fix
    assert not list(directory.find_bucket_unchecked(Facts(seen)))
    for has_epath in (True, False):
        facts = with_bucket(seen, "none", interpreter=python("0.12.0", has_epath=has_epath))
        assert bool(list(writes.find_bucket_library_missing(facts))) is not has_epath


def test_the_page_of_traps_names_each_with_its_reports() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text("utf-8")
    lines = (line for line in page.splitlines() if line.startswith("| `"))
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    rules = inputs.read_rules(str(inputs.__file__))
    written = {row.get("trap", name): row.get("upstream", "") for name, row in rules.items()}
    assert {row[1].split("`")[1]: row[3] for row in rows} == written
    assert all(row[2] for row in rows)
