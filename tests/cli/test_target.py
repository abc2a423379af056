"""``target``: what a host's keys depend on, as a file."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from bundling import first_entry, payload_of
from command_line import error_of
from conftest import CORPUS, RunCli, StepRuns, clean_environment, jax_version
from hypothesis import given
from hypothesis import strategies as st
from plain_jax import count_plain
from ways import OLD_NS, SMALL, old_copy

from jaxcache.cache.ledger.record import LedgerRecord
from jaxcache.entry.names import key_of
from jaxcache.errors import JaxcacheError
from jaxcache.options.run import CompileOptions
from jaxcache.render.target import check_view, profile_view
from jaxcache.render.typeset import set_blocks
from jaxcache.store.local import LocalStore
from jaxcache.warm.crosshost.cross_target import CrossTarget, Delivery
from jaxcache.warm.crosshost.target_profile import (
    MAX_PROFILE_BYTES,
    ProfileDifference,
    ProfileError,
    TargetProfile,
    check_target,
    compare_profiles,
    parse_profile,
    pod_file,
    read_profile,
    read_profiles,
)

XLA_CACHES = "jax_persistent_cache_enable_xla_caches"
#: A host with eight GPUs, and one with a CPU.
H200 = read_profile(str(CORPUS.parent / "golden" / "inputs" / "h200.json"))
HERE = replace(
    H200,
    platform="cpu",
    lowering_platform="cpu",
    platform_version="cpu",
    device_kinds=("cpu",),
    device_ids=(0,),
    topology_fingerprint="7",
    target_config=None,
    plugins={},
    key_codec="zlib",
    codec="zlib",
    environment={},
)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    ),
    st.sampled_from(sorted(json.loads(H200.to_bytes()))),
)
def test_no_field_can_break_the_reader(value: Any, name: str) -> None:
    document = json.loads(H200.to_bytes())
    with contextlib.suppress(ProfileError):
        parse_profile({**document, name: value}, "it")


def test_files_that_are_no_profiles(tmp_path: Path, run_cli: RunCli) -> None:
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(MAX_PROFILE_BYTES + 1)
    deep = tmp_path / "deep"
    deep.write_text("[" * 100_000)
    for path, code in ((large, "bad-profile"), (deep, "bad-profile"), ("missing", "no-profile")):
        done = run_cli("target", "show", "--json", path)
        assert (done.returncode, error_of(done)) == (2, code)
    (tmp_path / "pod").mkdir()
    done = run_cli("target", "check", "pod")
    assert (done.returncode, "no profile is in pod [incomplete-pod]" in done.stderr) == (2, True)
    for args in ((), ("show",), ("forget", "x"), ("capture", "x", "y")):
        assert run_cli("target", *args).returncode == 2


def test_what_prevents_comes_first_and_names_what_to_install() -> None:
    found = compare_profiles(H200, replace(HERE, jaxlib_version="0.11.2"))
    assert [(d.component, d.fix) for d in found if d.prevents] == [
        ("jax_lib version", "install jaxlib 0.12.0.1 here"),
        ("plugin", "install jax-cuda13-pjrt==0.12.0.1 here"),
    ]
    assert [d.component for d in found[2:]] == [
        "accelerator_config",
        "backend version",
        "compression",
        "XLA flags",
    ]
    assert compare_profiles(H200, H200) == ()
    before_011 = replace(H200, topology=None)
    assert [d.prevents for d in compare_profiles(before_011, before_011)] == [True]


def shown(profile: TargetProfile, differences: Sequence[ProfileDifference] | None) -> str:
    """The page of ``target show``."""
    page = profile_view(profile, differences, "cache").page or ()
    return "\n".join(set_blocks(page, width=None, color=False))


def test_a_page_says_what_enters_keys() -> None:
    hostile = replace(H200, device_kinds=("\x1b[31mH200",), device_ids=(0,))
    page = shown(hostile, compare_profiles(hostile, HERE))
    assert "\x1b" not in page
    assert "cuda 13000  (in keys)" in page
    assert "nothing can be warmed for this target from here" in page


def test_check_counts_what_the_host_looks_up() -> None:
    facts: dict[str, Any] = {
        "jaxlib_version": H200.jaxlib_version,
        "platform_version": H200.platform_version,
        "extra": {"topology_fingerprint": H200.topology_fingerprint},
    }
    records = [LedgerRecord("a", **facts), LedgerRecord("b", jaxlib_version="0.1")]
    entries = 3
    there = check_target([H200], H200, entries, records)
    assert (there.entries, there.for_target, there.looked_up) == (3, 1, 1)
    assert there.differences == ()
    # A flag that JAX leaves out of keys matters not; another driver does.
    counted = {"XLA_FLAGS": f"{H200.environment['XLA_FLAGS']} --xla_dump_to=/tmp/x"}
    assert check_target([replace(H200, environment=counted)], H200, 0, []).differences == ()
    (flags,) = check_target([H200], replace(H200, environment={}), 0, []).differences
    assert flags.component == "XLA flags"
    other = check_target([H200], replace(H200, platform_version="cuda 13010"), entries, records)
    assert (other.for_target, other.looked_up) == (1, 0)
    assert [d.component for d in other.differences] == ["backend version"]
    view = check_view(other, "/cache")
    assert view.document["looked_up"] == 0
    said = "this host makes the keys of 0 of 3 entries; 1 were made for this profile"
    assert said in str(view.page)


@pytest.mark.jax
def test_capture_and_show(run_cli: RunCli, each_jax_python: str, tmp_path: Path) -> None:
    fake = "--xla_force_host_platform_device_count=4"
    env = {"XLA_FLAGS": fake, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    python = ("--python", each_jax_python)
    printed = run_cli("target", "capture", *python, env=env)  # to standard output
    (tmp_path / "four.json").write_text(printed.stdout)
    profile = read_profile(str(tmp_path / "four.json"))
    version = jax_version(each_jax_python)
    assert profile.devices == "4 × cpu"
    assert profile.environment == {"XLA_FLAGS": fake, "JAX_ENABLE_X64": "1"}
    assert (profile.topology_fingerprint is not None) == (version >= (0, 10))

    done = run_cli("target", "show", "four.json", *python, "--json")
    assert done.returncode == (version < (0, 11))
    components = {d["component"] for d in json.loads(done.stdout)["differences"]}
    own = {"accelerator_config", "XLA flags", "environment"}
    assert components == own | ({"topology"} if version < (0, 11) else set())


@pytest.mark.jax
def test_check_counts_what_plain_jax_hits(
    run_cli: RunCli, each_jax_python: str, step_runs: StepRuns, cache: Path, tmp_path: Path
) -> None:
    """The cache has path-free keys and, where this JAX makes others, those of its own path."""
    python, script = ("--python", each_jax_python), step_runs.directory / "script.py"
    assert run_cli("target", "capture", "here.json", *python).returncode == 0
    if read_profile(str(tmp_path / "here.json")).topology_fingerprint is None:
        pytest.skip("the ledger knows for which devices an entry is since JAX 0.10")
    shutil.copytree(step_runs.directory / "cache", cache)
    run_cli("warm", *python, "-C", cache, script)
    shutil.copytree(cache, tmp_path / "moved")
    entries = len([*cache.glob("*-cache")])
    without = {XLA_CACHES.upper(): "none"}
    rows: list[tuple[str, dict[str, str]]] = [("cache", {}), ("moved", {}), ("moved", without)]
    for name, xla_caches in rows:
        words = ("target", "check", "here.json", *python, "-C", name, "--json")
        done = run_cli(*words, env=xla_caches)
        env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / name), **xla_caches}
        counts = count_plain(each_jax_python, script, clean_environment(tmp_path) | env)
        assert counts is not None
        checked = json.loads(done.stdout)
        assert (checked["for_target"], checked["looked_up"]) == (entries, counts.hits), name
        found = (done.returncode, bool(checked["differences"]))
        assert found == (not counts.hits, counts.hits < entries)


#: What is no profile, or sets what it may not.
REFUSED: list[dict[str, Any]] = [
    {"format": "other"},
    {"version": 2},
    {"platform": ""},
    {"topology": "not base64!"},
    {"topology_fingerprint": "-1"},
    {"topology_fingerprint": str(2**64)},
    {"topology_fingerprint": "1" * 5000},
    {"device_ids": []},
    {"device_ids": [0]},
    {"device_ids": ["0"] * 8},
    {"codec": "lzma"},
    {"key_codec": "../zlib"},
    {"environment": {"A": "\0"}},
    {"cpu": None},
    {"platform_version": "x" * (1 << 20)},
    {"environment": {"LD_PRELOAD": "/tmp/x.so"}},
    {"environment": {"PYTHONWARNINGS": "all:0:antigravity.x:0:0"}},
    {"environment": {"JAX_PJRT_CLIENT_CREATE_OPTIONS": "x:1"}},
    {"environment": {"JAX_NUM_CPU_DEVICES": "100000"}},
    {"environment": {"jax_enable_x64": "1"}},
    {"environment": {"XLA_FLAGS": "/tmp/flags"}},
    {"environment": {"XLA_FLAGS": "--xla_gpu_ptx_file=x"}},
    {"environment": {"XLA_FLAGS": "--xla_gpu_dump_autotune_results_to=x"}},
    {"environment": {"XLA_FLAGS": "--xla_never_heard_of=1"}},
    {"environment": {"XLA_FLAGS": "--xla_cpu_max_isa=../x"}},
    {"environment": {"XLA_FLAGS": "--xla_backend_extra_options=-ir-dump-directory=x"}},
    {"environment": {"LIBTPU_INIT_ARGS": "--xla_mosaic_dump_to=x"}},
    {"environment": {"LIBTPU_INIT_ARGS": "--log_dir=x"}},
    {"settings": {"pythonwarnings": "all:0:antigravity.x:0:0", "browser": "/bin/sh -c id #%s"}},
    {"settings": {XLA_CACHES: "../x"}},
    {"settings": {"jax_pjrt_client_create_options": "x"}},
    {"platform": "../x"},
    {"device_ids": list(range(10_000)), "device_kinds": ["cpu"] * 10_000},
]


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: str(change)[:60])
def test_what_is_no_profile_or_sets_what_it_may_not_is_refused(
    change: dict[str, Any], run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "p.json").write_text(json.dumps({**json.loads(H200.to_bytes()), **change}))
    done = run_cli("target", "show", "p.json", "--json")
    code = "newer-profile" if change == {"version": 2} else "bad-profile"
    assert (done.returncode, error_of(done)) == (2, code)
    for name in ("environment", "settings"):
        if change.get(name):
            assert next(iter(change[name])) in done.stderr


def test_show_tells_all_that_is_applied(tmp_path: Path) -> None:
    profile = replace(
        H200,
        environment={
            "XLA_FLAGS": "--xla_gpu_autotune_level=2 --xla_dump_to=/tmp/x --xla_cpu_max_isa=AVX2",
            "LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=98304",
            "JAX_ENABLE_X64": "True",
            "JAX_DEFAULT_MATMUL_PRECISION": "tensorfloat32",
        },
        settings={"jax_compilation_cache_dir": "/cache", XLA_CACHES: "all"},
    )
    (tmp_path / "p.json").write_bytes(profile.to_bytes())
    assert read_profile(str(tmp_path / "p.json")) == profile
    page = shown(profile, None)
    assert "8 × NVIDIA H200" in page
    applied = CrossTarget((profile,), CompileOptions()).environment(devices=None)
    for name, value in {**profile.environment, **profile.settings}.items():
        assert value in page and name.upper() in applied
    assert applied["XLA_FLAGS"].startswith("--xla_gpu_autotune_level=2 --xla_cpu_max_isa=AVX2")
    assert not any("dump" in v for v in applied.values())


def test_the_profiles_of_a_pod_go_together(tmp_path: Path, run_cli: RunCli) -> None:
    zero = replace(H200, process_count=2, device_processes=(0,) * 4 + (1,) * 4)
    one = replace(zero, process_index=1, topology=b"other", topology_fingerprint="2")
    assert zero.device_count == one.device_count == 4
    pod = tmp_path / "pod"
    pod.mkdir()
    (pod / "notes.txt").write_text("not a profile")
    names = [Path(pod_file(str(pod), p)).name for p in (zero, one)]
    assert names == ["process-0-of-2.json", "process-1-of-2.json"]

    def written(*profiles: TargetProfile) -> str:
        for number, profile in enumerate(profiles):
            (pod / f"{9 - number}.json").write_bytes(profile.to_bytes())
        try:
            return str([p.process_index for p in read_profiles(str(pod))])
        except ProfileError as error:
            return error.code
        finally:
            for path in pod.glob("*.json"):
                path.unlink()

    assert written(one, zero) == "[0, 1]"
    assert written() == written(zero) == written(zero, zero) == "incomplete-pod"
    assert written(zero, one, H200) == "incomplete-pod"
    assert written(zero, replace(one, environment={})) == "mixed-pod"
    mixed = (0, 1) * 4
    order = [replace(p, device_processes=mixed) for p in (zero, one)]
    assert written(*order) == "mixed-pod"  # CPU devices could not stand for these
    (tmp_path / "one.json").write_bytes(one.to_bytes())
    done = run_cli("warm", "--target", "one.json", "x.py")
    assert (done.returncode, "process 1 of 2" in done.stderr) == (2, True)
    assert "process" in shown(one, None) and "1 of 2" in shown(one, None)
    with pytest.raises(ProfileError, match="of 2 processes, and here are 1"):
        check_target([zero, one], H200, 0, [])


def test_portable_keys_for_a_target_hold_no_path_of_its_caches(
    run_cli: RunCli, tmp_path: Path
) -> None:
    profile = tmp_path / "p.json"
    profile.write_bytes(replace(H200, settings={XLA_CACHES: "all"}).to_bytes())
    for options, shown in (([], "all\n"), (["--portable"], "none\n")):
        target = ("--target", profile, *options, "-C", tmp_path / "cache")
        done = run_cli("run", *target, "--", "sh", "-c", f"echo ${XLA_CACHES.upper()}")
        assert (done.returncode, done.stdout) == (0, shown), done.stderr


def test_what_does_not_go_with_a_target(run_cli: RunCli) -> None:
    for args in (
        ("--target", "missing.json"),
        ("--target", "x", "--record", "x.recipe"),
        ("--target", "x", "--autotune-from", "nowhere"),
    ):
        assert run_cli("warm", *args, "script.py").returncode == 2, args


# What a child has made for a target comes into the cache whole and once.


def test_a_truncated_entry_is_none_that_compile_may_keep(tmp_path: Path) -> None:
    there = old_copy(tmp_path / "there")
    torn, empty, *_ = sorted(there.glob("*-cache"))
    good = {path: path.read_bytes() for path in (torn, empty)}
    torn.write_bytes(good[torn][:-20])
    empty.write_bytes(b"")
    for path in good:
        os.utime(path, ns=(OLD_NS, OLD_NS))
    delivery = Delivery(LocalStore(there))
    for path, data in good.items():
        key = key_of(path.name) or ""
        assert not delivery.has(key)
        assert delivery.take(path.name, io.BytesIO(data), key) is not None
        assert delivery.has(key)
        assert payload_of(path) == zstandard.decompress(data, max_output_size=1 << 24)[4:]


def test_a_directory_is_no_entry_that_compile_may_keep(here: Path) -> None:
    entry = first_entry(SMALL)
    (here / entry.name).mkdir(parents=True)
    delivery, key = Delivery(LocalStore(here)), key_of(entry.name) or ""
    assert not delivery.has(key)
    with pytest.raises(JaxcacheError, match="a dir has its name"):
        delivery.take(entry.name, io.BytesIO(entry.read_bytes()), key)
    (here / entry.name).rmdir()
    shutil.copy(entry, here)
    assert delivery.take(entry.name, io.BytesIO(entry.read_bytes()), key) is None
