"""What is told beforehand of entries, by the manifest and a probe alone."""

from dataclasses import replace
from typing import Any

import pytest

from jaxcache.cache.bundle.compat import (
    Compatibility,
    Forecast,
    ForecastOutcome,
    Host,
    forecast,
)
from jaxcache.cache.bundle.format import BundleItem, Manifest, Origin
from jaxcache.cache.ledger.record import Event
from jaxcache.core.machine import CACHE_PATH, Machine

KEY = "jit_f-" + "a" * 64
ALONE: dict[str, Any] = {"key_settings": {}, "device_count": 1, "process_count": 1}
CPU = Origin(
    platform="cpu",
    target="zen4",
    cpu_name="zen4",
    cpu_features=("+avx2", "+fma", "-amx"),
    ifrt_version=3,
    container="ifrt+proto",
    like_jaxlib="0.12.0.1",
)
DEFAULTS = {"jax_enable_x64": False, "jax_default_matmul_precision": None}
GPU = Origin(
    platform="gpu",
    target="sm_90a",
    device_name="NVIDIA H200",
    compute_capability="9.0a",
    toolkit="12.8.0",
    cudnn="9.10.0",
    ifrt_version=3,
    container="ifrt+riegeli+riegeli(snappy)",
    like_jaxlib="0.12.0.1",
)


def told(
    origin: Origin,
    mine: Origin | None,
    *,
    jax: str = "0.12.0.1",
    where: str = "/here",
    flags: tuple[str, ...] = (),
    filled: dict[str, Any] = ALONE,
    here: dict[str, Any] | None = None,
    ledger: tuple[Event, ...] = (),
    **item: Any,
) -> Forecast:
    values: dict[str, Any] = {
        "key": KEY,
        "legacy": False,
        "codec": "zstd",
        "compile_seconds": 1,
        "size_bytes": 1,
        "payload_bytes": 1,
        "payload_sha256": "0" * 64,
        "created_ns": 1,
        "atime_ns": None,
        "origin": 0,
        "ledger": (Event(KEY, "compile", 0, filled), *ledger),
    }
    manifest = Manifest((BundleItem(**values | item),), (), (origin,), "0" * 64, 1)
    machine = Machine(jax_version=jax, jaxlib_version=jax, codec="zstd", xla_flags=flags)
    machine = machine._replace(device_count=1, process_count=1, settings={}, defaults=DEFAULTS)
    if mine is not None:
        features = mine.cpu_features and tuple(sorted(mine.cpu_features))
        platform = None if mine.platform == "unknown" else mine.platform
        machine = machine._replace(cpu_features=features, platform=platform, **here or {})
    host = None if mine is None else Host("python", machine, mine)
    (found,) = forecast(manifest, host, where).forecasts
    return found


def test_the_same_hits() -> None:
    assert told(CPU, CPU).outlook is ForecastOutcome.HIT
    assert told(GPU, GPU).outlook is ForecastOutcome.HIT


@pytest.mark.parametrize(
    ("origin", "mine", "word"),
    [
        (CPU, GPU, "compiled for cpu"),
        (CPU, replace(CPU, like_jaxlib="0.10.2"), "like 0.12.0.1"),
        (CPU, replace(CPU, cpu_features=("+avx2", "-fma", "-amx")), "with fma"),
        (CPU, replace(CPU, cpu_features=(*CPU.cpu_features, "+sha")), "another CPU"),
        (CPU, replace(CPU, container="proto"), "packed"),
        (GPU, replace(GPU, compute_capability="8.0"), "compute capability 9.0a"),
        (GPU, replace(GPU, device_name="NVIDIA H100"), "NVIDIA H200"),
        (GPU, replace(GPU, cudnn="9.1.0"), "cuDNN"),
    ],
)
def test_what_differs_misses_and_is_named(origin: Origin, mine: Origin, word: str) -> None:
    found = told(origin, mine)
    assert found.outlook is ForecastOutcome.MISS
    assert word in str(found.reason)
    assert found.restore_to is None


def test_the_ledger_knows_the_version_where_no_jax_was_asked() -> None:
    moved = replace(CPU, written_in_cache_dir="/there", like_jaxlib=None)

    def outlook(version: str) -> ForecastOutcome:
        event = Event(KEY, "compile", 1, {"jax_version": version})
        return told(moved, None, ledger=(event,)).outlook

    assert outlook("0.10.2") is ForecastOutcome.MISS
    assert outlook("0.12.0") is ForecastOutcome.UNKNOWN


def test_only_a_few_lacking_features_are_named() -> None:
    many = replace(CPU, cpu_features=tuple(f"+f{n}" for n in range(6)))
    four = replace(CPU, cpu_features=tuple(f"+f{n}" for n in range(4)))
    none = replace(CPU, cpu_features=())
    assert "with f0, f1, f2, f3 and 2 more, which" in str(told(many, none).reason)
    assert "with f0, f1, f2, f3, which" in str(told(four, none).reason)


def test_the_codec_counts() -> None:
    assert told(CPU, CPU, codec="zlib").outlook is ForecastOutcome.MISS


def test_the_ledger_knows_the_version_better() -> None:
    def ledger(version: str) -> tuple[Event, ...]:
        return (Event(KEY, "compile", 1, {"jaxlib_version": version}),)

    assert told(CPU, CPU, ledger=ledger("0.12.0.1")).outlook is ForecastOutcome.HIT
    assert "jaxlib 0.12.1" in str(told(CPU, CPU, ledger=ledger("0.12.1")).reason)


@pytest.mark.parametrize(
    ("filled", "here", "reason"),
    [
        ({"device_count": 2}, {}, "compiled in a process of 2 devices, and this one has 1"),
        ({}, {"device_count": 2}, "compiled in a process of 1 device, and this one has 2"),
        ({}, {"process_count": 2}, "compiled by a program of 1 process, and this one has 2"),
        (
            {"key_settings": {"jax_enable_x64": True}},
            {},
            "compiled with JAX_ENABLE_X64=true, and here with JAX_ENABLE_X64=false",
        ),
        (
            {},
            {"settings": {"jax_default_matmul_precision": "float32"}},
            "compiled with JAX_DEFAULT_MATMUL_PRECISION=unset, and here with "
            "JAX_DEFAULT_MATMUL_PRECISION=float32",
        ),
        ({"key_settings": {"jax_enable_x64": False}}, {}, None),
        ({"components": {"accelerator_config": "a"}}, {"topology": "a"}, None),
        (
            {"components": {"accelerator_config": "a"}},
            {"topology": "b"},
            "compiled for other devices, or another number of them",
        ),
    ],
)
def test_devices_processes_and_settings_count_as_they_were_recorded(
    filled: dict[str, Any], here: dict[str, Any], reason: str | None
) -> None:
    found = told(CPU, CPU, filled=ALONE | filled, here=here)
    assert found.outlook is (ForecastOutcome.MISS if reason else ForecastOutcome.HIT)
    assert found.reason == reason


@pytest.mark.parametrize(
    ("filled", "words"),
    [
        (
            {},
            "who filled it did not record the number of devices and settings of JAX, such as x64",
        ),
        ({"device_count": 1}, "who filled it did not record settings of JAX, such as x64"),
        (
            ALONE | {"process_count": 2},
            "compiled by a program of 2 processes, as which jax was not asked",
        ),
    ],
)
def test_what_nothing_recorded_is_unknown_and_prevents_nothing(
    filled: dict[str, Any], words: str
) -> None:
    found = told(CPU, CPU, filled=filled)
    assert (found.outlook, found.reason) == (ForecastOutcome.UNKNOWN, words)
    assert Compatibility((found,), None).compatible


@pytest.mark.parametrize(
    ("recorded", "here", "outlook", "word"),
    [
        ("--xla_a=1", ("--xla_a=1",), ForecastOutcome.HIT, ""),
        ("--xla_a=1 --xla_dump_to=/x", ("--xla_a=1",), ForecastOutcome.HIT, ""),
        ("--xla_a=1", ("--xla_a=true",), ForecastOutcome.MISS, "here --xla_a=true is set"),
        ("", ("--xla_a=1", "--xla_b=1"), ForecastOutcome.MISS, "with no XLA flags, and here"),
        ("--xla_a=1", (), ForecastOutcome.MISS, "with --xla_a=1, and here no XLA flags are set"),
    ],
)
def test_flags_count_as_the_ledger_has_them(
    recorded: str, here: tuple[str, ...], outlook: ForecastOutcome, word: str
) -> None:
    event = Event(KEY, "compile", 1, {"xla_flags": recorded})
    found = told(CPU, CPU, flags=here, ledger=(event,))
    assert found.outlook is outlook
    assert word in (found.reason or "")


@pytest.mark.parametrize(
    ("recorded", "here", "flags", "outlook", "word"),
    [
        ((), (), (), ForecastOutcome.HIT, ""),
        (("--xla_a=1",), ("--xla_a=1",), ("--xla_a=true",), ForecastOutcome.HIT, ""),
        ((), ("--xla_a=1",), ("--xla_a=1",), ForecastOutcome.MISS, "compiled without --xla_a=1"),
        (("--xla_a=1",), (), (), ForecastOutcome.UNKNOWN, "if the program itself asks for it"),
        ((), (), ("--xla_a=0",), ForecastOutcome.UNKNOWN, "with --xla_a=0 is not recorded"),
        (None, None, (), ForecastOutcome.HIT, ""),
        (None, (), ("--xla_a=0",), ForecastOutcome.UNKNOWN, "with --xla_a=0 is not recorded"),
    ],
)
def test_without_a_ledger_flags_count_as_the_executable_has_them(
    recorded: tuple[str, ...] | None,
    here: tuple[str, ...] | None,
    flags: tuple[str, ...],
    outlook: ForecastOutcome,
    word: str,
) -> None:
    theirs, mine = (replace(CPU, xla_flags=f) for f in (recorded, here))
    found = told(theirs, mine, flags=flags)
    assert found.outlook is outlook
    assert word in (found.reason or "")


def test_the_directory_counts_where_jax_hashes_it() -> None:
    there = replace(CPU, written_in_cache_dir="/there")
    assert told(there, there).outlook is ForecastOutcome.HIT
    for version in ("0.4.36", "0.10.2"):
        found = told(there, there, jax=version)
        assert (found.outlook, found.restore_to) == (ForecastOutcome.MISS, "/there")
        assert told(there, there, jax=version, where="/there").outlook is ForecastOutcome.HIT
        assert told(there, there, jax=version, where="/x/../there").outlook is ForecastOutcome.HIT
    assert told(there, there, jax="0.4.35").outlook is ForecastOutcome.HIT
    old = replace(there, like_jaxlib="0.6.2")
    assert told(old, None).outlook is ForecastOutcome.MISS
    assert told(there, None).outlook is ForecastOutcome.UNKNOWN
    kernels = replace(there, kernel_cache=True)
    assert told(kernels, there).restore_to == "/there"


@pytest.mark.parametrize(("jax", "is_portable"), [("0.10.2", True), ("0.12.0.1", False)])
def test_a_key_without_a_directory_is_portable_where_jax_hashes_it(
    jax: str, is_portable: bool
) -> None:
    expected = ForecastOutcome.UNKNOWN if is_portable else ForecastOutcome.HIT
    mine = replace(CPU, written_in_cache_dir="/here")
    result = told(CPU, mine, jax=jax)
    assert (result.outlook, result.portable) == (expected, is_portable)


def test_without_a_jax_the_variable_tells_whether_keys_are_portable_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = replace(CPU, like_jaxlib="0.10.2")
    assert told(old, None).portable
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")
    assert not told(old, None).portable
    moved = told(replace(old, written_in_cache_dir="/here"), None)
    assert (moved.outlook, moved.restore_to) == (ForecastOutcome.MISS, None)


def test_versions() -> None:
    versions = ("0.4.35", "0.4.36", "0.10.9", "0.11.0", "0.11.0rc1", "?")
    assert [v for v in versions if CACHE_PATH.holds(v)] == ["0.4.36", "0.10.9"]


def test_a_version_of_thousands_of_digits_is_some_version() -> None:
    absurd = "9" * 5000
    moved = replace(CPU, written_in_cache_dir="/there", like_jaxlib=absurd)
    assert told(moved, None).outlook is ForecastOutcome.UNKNOWN
    assert told(replace(moved, like_jaxlib=None), CPU, jax=absurd).outlook is ForecastOutcome.HIT


def test_what_could_not_be_read_is_unknown() -> None:
    found = told(Origin(), CPU)
    assert (found.outlook, found.reason) == (
        ForecastOutcome.UNKNOWN,
        "its executable could not be read",
    )
    assert told(CPU, Origin()).outlook is ForecastOutcome.HIT
    assert told(CPU, replace(CPU, cpu_features=None)).outlook is ForecastOutcome.HIT
    assert told(replace(CPU, cpu_features=None), CPU).outlook is ForecastOutcome.HIT
    assert told(GPU, replace(GPU, cudnn=None, device_name=None)).outlook is ForecastOutcome.HIT


def test_counts_are_by_outlook() -> None:
    manifest = Manifest((), (), (CPU,), "0" * 64, 0)
    assert forecast(manifest, None, "/here").compatible
    found = Compatibility(
        (Forecast("a", ForecastOutcome.HIT), Forecast("b", ForecastOutcome.MISS)), None
    )
    assert (found.counts[ForecastOutcome.HIT], found.counts[ForecastOutcome.UNKNOWN]) == (1, 0)
    assert not found.compatible


def test_a_bucket_is_spelt_one_way_only() -> None:
    there = replace(CPU, written_in_cache_dir="gs://b/cache")
    assert told(there, there, jax="0.10.2", where="gs://b/cache").outlook is ForecastOutcome.HIT
    assert (
        told(there, there, jax="0.10.2", where="gs://b/x/../cache").outlook is ForecastOutcome.MISS
    )
