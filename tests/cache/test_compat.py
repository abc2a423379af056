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
from jaxcache.cache.bundle.format import BundleItem, Manifest, Origin, SideFile
from jaxcache.cache.ledger.record import Event
from jaxcache.core.machine import Machine

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
    events = (Event(KEY, "compile", 0, filled), *ledger)
    held = replace(BundleItem(KEY, False, "zstd", 1, 1, 1, "0" * 64, 1, None, 0), ledger=events)
    manifest = Manifest((replace(held, **item),), (), (origin,), "0" * 64, 1)
    machine = Machine(jax_version=jax, jaxlib_version=jax, codec="zstd", xla_flags=flags)
    machine = machine._replace(device_count=1, process_count=1, settings={}, defaults=DEFAULTS)
    if mine is not None:
        features = mine.cpu_features and tuple(sorted(mine.cpu_features))
        platform = None if mine.platform == "unknown" else mine.platform
        machine = machine._replace(cpu_features=features, platform=platform, **here or {})
    host = None if mine is None else Host("python", machine, mine)
    (found,) = forecast(manifest, host, where).forecasts
    return found


def recorded(**facts: Any) -> dict[str, Any]:
    """A record of the ledger of how the entry was compiled."""
    return {"ledger": (Event(KEY, "compile", 1, facts),)}


HIT, MISS, UNKNOWN = ForecastOutcome.HIT, ForecastOutcome.MISS, ForecastOutcome.UNKNOWN
FOUR, SIX = (replace(CPU, cpu_features=tuple(f"+f{n}" for n in range(m))) for m in (4, 6))
NO_FEATURES = replace(CPU, cpu_features=())
ZERO, ONE, TRUE, ISA = (
    {"flags": (flag,)}
    for flag in ("--xla_a=0", "--xla_a=1", "--xla_a=true", "--xla_cpu_max_isa=AVX")
)
UNSET, SET = replace(CPU, xla_flags=()), replace(CPU, xla_flags=("--xla_a=1",))


@pytest.mark.parametrize(
    ("origin", "mine", "more", "outlook", "word"),
    [
        (CPU, CPU, {}, HIT, ""),
        (GPU, GPU, {}, HIT, ""),
        (CPU, GPU, {}, MISS, "compiled for cpu"),
        (CPU, replace(CPU, like_jaxlib="0.10.2"), {}, MISS, "like 0.12.0.1"),
        (CPU, replace(CPU, cpu_features=("+avx2", "-fma", "-amx")), {}, MISS, "with fma"),
        (CPU, replace(CPU, cpu_features=(*CPU.cpu_features, "+sha")), {}, MISS, "another CPU"),
        (CPU, NO_FEATURES, ISA, MISS, "xla_cpu_max_isa in XLA_FLAGS"),
        (SIX, NO_FEATURES, {}, MISS, "with f0, f1, f2, f3 and 2 more, which"),
        (FOUR, NO_FEATURES, {}, MISS, "with f0, f1, f2, f3, which"),
        (CPU, replace(CPU, container="proto"), {}, MISS, "packed"),
        (GPU, replace(GPU, compute_capability="8.0"), {}, MISS, "compute capability 9.0a"),
        (GPU, replace(GPU, device_name="NVIDIA H100"), {}, MISS, "NVIDIA H200"),
        (GPU, replace(GPU, cudnn="9.1.0"), {}, MISS, "cuDNN"),
        (CPU, CPU, {"codec": "zlib"}, MISS, ""),
        # The ledger knows the version better.
        (CPU, CPU, recorded(jaxlib_version="0.12.0.1"), HIT, ""),
        (CPU, CPU, recorded(jaxlib_version="0.12.1"), MISS, "jaxlib 0.12.1"),
        # Flags count as the ledger has them.
        (CPU, CPU, recorded(xla_flags="--xla_a=1") | ONE, HIT, ""),
        (CPU, CPU, recorded(xla_flags="--xla_a=1 --xla_dump_to=/x") | ONE, HIT, ""),
        (CPU, CPU, recorded(xla_flags="--xla_a=1") | TRUE, MISS, "here --xla_a=true is"),
        (CPU, CPU, recorded(xla_flags="") | ONE, MISS, "with no XLA flags, and here"),
        (CPU, CPU, recorded(xla_flags="--xla_a=1"), MISS, "--xla_a=1, and here no XLA flags are"),
        # Without a ledger, they count as the executable has them.
        (UNSET, UNSET, {}, HIT, ""),
        (SET, SET, TRUE, HIT, ""),
        (UNSET, SET, ONE, MISS, "compiled without --xla_a=1"),
        (SET, UNSET, {}, UNKNOWN, "if the program itself asks for it"),
        (UNSET, UNSET, ZERO, UNKNOWN, "with --xla_a=0 is not recorded"),
        (CPU, UNSET, ZERO, UNKNOWN, "with --xla_a=0 is not recorded"),
        # What could not be read prevents nothing.
        (CPU, Origin(), {}, HIT, ""),
        (CPU, replace(CPU, cpu_features=None), {}, HIT, ""),
        (replace(CPU, cpu_features=None), CPU, {}, HIT, ""),
        (GPU, replace(GPU, cudnn=None, device_name=None), {}, HIT, ""),
        (Origin(), CPU, {}, UNKNOWN, "its executable could not be read"),
    ],
)
def test_what_differs_misses_and_is_named(
    origin: Origin, mine: Origin, more: dict[str, Any], outlook: ForecastOutcome, word: str
) -> None:
    found = told(origin, mine, **more)
    assert found.outlook is outlook
    assert word in (found.reason or "")
    assert found.restore_to is None


def test_the_ledger_knows_the_version_where_no_jax_was_asked() -> None:
    moved = replace(CPU, written_in_cache_dir="/there", like_jaxlib=None)
    for version, outlook in (("0.10.2", MISS), ("0.12.0", UNKNOWN)):
        assert told(moved, None, **recorded(jax_version=version)).outlook is outlook


TWO, PAIR = {"device_count": 2}, {"process_count": 2}


@pytest.mark.parametrize(
    ("filled", "here", "outlook", "reason"),
    [
        (ALONE | TWO, {}, MISS, "compiled in a process of 2 devices, and this one has 1"),
        (ALONE, TWO, MISS, "compiled in a process of 1 device, and this one has 2"),
        (ALONE, PAIR, MISS, "compiled by a program of 1 process, and this one has 2"),
        (
            *(ALONE | {"key_settings": {"jax_enable_x64": True}}, {}),
            *(MISS, "compiled with JAX_ENABLE_X64=true, and here with JAX_ENABLE_X64=false"),
        ),
        (
            *(ALONE, {"settings": {"jax_default_matmul_precision": "float32"}}, MISS),
            "compiled with JAX_DEFAULT_MATMUL_PRECISION=unset, and here with "
            "JAX_DEFAULT_MATMUL_PRECISION=float32",
        ),
        (ALONE | {"key_settings": {"jax_enable_x64": False}}, {}, HIT, None),
        (ALONE | {"components": {"accelerator_config": "a"}}, {"topology": "a"}, HIT, None),
        (
            *(ALONE | {"components": {"accelerator_config": "a"}}, {"topology": "b"}),
            *(MISS, "compiled for other devices, or another number of them"),
        ),
        # What nothing recorded prevents nothing.
        (
            *({}, {}, UNKNOWN),
            "who filled it did not record the number of devices and settings of JAX, such as x64",
        ),
        (
            *({"device_count": 1}, {}, UNKNOWN),
            "who filled it did not record settings of JAX, such as x64",
        ),
        (
            ALONE | PAIR,
            {},
            UNKNOWN,
            "compiled by a program of 2 processes, as which jax was not asked",
        ),
    ],
)
def test_devices_processes_and_settings_count_as_they_were_recorded(
    filled: dict[str, Any], here: dict[str, Any], outlook: ForecastOutcome, reason: str | None
) -> None:
    found = told(CPU, CPU, filled=filled, here=here)
    assert (found.outlook, found.reason) == (outlook, reason)
    assert Compatibility((found,), None).compatible == (outlook is not MISS)


THERE = replace(CPU, written_in_cache_dir="/there")
BUCKET = replace(CPU, written_in_cache_dir="gs://b/c")


@pytest.mark.parametrize(
    ("origin", "mine", "jax", "where", "expected"),
    [
        (THERE, THERE, "0.12.0.1", "/here", HIT),
        (THERE, THERE, "0.4.36", "/here", "/there"),
        (THERE, THERE, "0.10.2", "/here", "/there"),
        (THERE, THERE, "0.10.9", "/here", "/there"),
        (THERE, THERE, "0.11.0rc1", "/here", HIT),
        (THERE, THERE, "?", "/here", HIT),
        (THERE, THERE, "0.10.2", "/there", HIT),
        (THERE, THERE, "0.10.2", "/x/../there", HIT),
        (THERE, THERE, "0.4.35", "/here", HIT),
        (replace(THERE, kernel_cache=True), THERE, "0.12.0.1", "/here", "/there"),
        (replace(THERE, like_jaxlib="0.6.2"), None, "", "/here", "/there"),
        (THERE, None, "", "/here", UNKNOWN),
        (BUCKET, BUCKET, "0.10.2", "gs://b/c", HIT),
        (BUCKET, BUCKET, "0.10.2", "gs://b/x/../c", "gs://b/c"),  # it is spelt one way only
    ],
)
def test_the_directory_counts_where_jax_hashes_it(
    origin: Origin, mine: Origin | None, jax: str, where: str, expected: ForecastOutcome | str
) -> None:
    """A miss names the directory in which it would be a hit."""
    found = told(origin, mine, jax=jax, where=where)
    is_outlook = isinstance(expected, ForecastOutcome)
    assert found.outlook is (expected if is_outlook else MISS)
    assert found.restore_to == (None if is_outlook else expected)


@pytest.mark.parametrize(("jax", "is_portable"), [("0.10.2", True), ("0.12.0.1", False)])
def test_a_key_without_a_directory_is_portable(jax: str, is_portable: bool) -> None:
    result = told(CPU, replace(CPU, written_in_cache_dir="/here"), jax=jax)
    assert (result.outlook, result.portable) == (UNKNOWN if is_portable else HIT, is_portable)


def test_without_a_jax_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(CPU, like_jaxlib="0.10.2")
    assert told(old, None).portable
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")
    assert not told(old, None).portable
    moved = told(replace(old, written_in_cache_dir="/here"), None)
    assert (moved.outlook, moved.restore_to) == (MISS, None)


def test_a_version_of_thousands_of_digits_is_some_version() -> None:
    absurd = "9" * 5000
    moved = replace(CPU, written_in_cache_dir="/there", like_jaxlib=absurd)
    assert told(moved, None).outlook is UNKNOWN
    assert told(replace(moved, like_jaxlib=None), CPU, jax=absurd).outlook is HIT


def test_counts_are_by_outlook() -> None:
    side_file = SideFile("xla_gpu_kernel_cache_file", 3, "2" * 64, 9)  # of which nothing is said
    only = forecast(Manifest((), (side_file,), (CPU,), "0" * 64, 0), None, "/here")
    assert (only.forecasts, only.compatible) == ((), True)
    found = Compatibility((Forecast("a", HIT), Forecast("b", MISS)), None)
    assert (found.counts[HIT], found.counts[UNKNOWN], found.compatible) == (1, 0, False)
