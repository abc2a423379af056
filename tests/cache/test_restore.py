"""The name of a CI cache: what enters it, what does not, and which older names would do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxcache.cache.bundle.compat import Host
from jaxcache.cache.bundle.format import Origin
from jaxcache.cache.ci.restore import describe_environment, hash_files, item_seconds
from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.move.plan import Item, ItemFacts
from jaxcache.core.machine import Machine
from jaxcache.errors import UsageError

CPU = Host(
    python="python3",
    machine=Machine(
        jax_version="0.10.2",
        jaxlib_version="0.10.2",
        codec="zstd",
        cpu_features=("avx", "sse"),
        device_count=1,
        settings={},
    ),
    origin=Origin(platform="cpu", target="znver4"),
    key="jit_f-" + "a" * 64,
)


def digest(host: Host = CPU, **variables: str) -> str:
    return describe_environment(host, variables, cache_dir="/cache").digest


def with_facts(host: Host = CPU, **facts: Any) -> Host:
    return replace(host, machine=host.machine._replace(**facts))


def test_the_features_of_a_cpu_count() -> None:
    assert digest(with_facts(cpu_features=("avx",))) != digest()
    assert digest(with_facts(cpu_features=None)) != digest()
    gpu = replace(CPU, origin=Origin(platform="gpu", target="sm_90a"))
    assert digest(with_facts(gpu, cpu_features=("avx",))) == digest(gpu)


def test_settings_count_where_the_environment_changes_them() -> None:
    defaults = {"jax_enable_x64": False}
    assert digest(with_facts(settings={"jax_enable_x64": True}, defaults=defaults)) != digest()
    assert digest(with_facts(settings={"jax_enable_x64": False}, defaults=defaults)) == digest()
    assert digest(with_facts(process_count=2)) != digest()
    assert digest(with_facts(process_count=1)) == digest()


@pytest.mark.parametrize(
    ("version", "caches", "counts"),
    [
        ("0.10.2", None, True),
        ("0.10.2", "none", False),
        ("0.4.35", "all", False),
        ("0.11.0", None, False),
        ("0.11.0", "xla_gpu_per_fusion_autotune_cache_dir", False),
        ("0.11.0", "all", True),
        ("0.11.0", "xla_gpu_kernel_cache_file", True),
    ],
)
def test_the_directory_counts_where_jax_hashes_it(
    version: str, caches: str | None, counts: bool
) -> None:
    host = with_facts(jax_version=version)
    variables = {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": caches} if caches else {}
    digests = {describe_environment(host, variables, cache_dir=d).digest for d in ("/a", "/b")}
    assert (len(digests) == 2) == counts


def test_globs_add_files_and_take_them_out_again(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "sub/c.py", "sub/d.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)

    def names(*patterns: str) -> tuple[str, ...]:
        return hash_files(patterns, str(tmp_path)).names

    assert names("*.py") == ("a.py", "b.py")
    assert names("*.py", "sub/*") == ("a.py", "b.py", "sub/c.py", "sub/d.txt")
    assert names("**/*.py", "!b.py") == ("a.py", "sub/c.py")
    assert names("!b.py", "./*.py") == ("a.py", "b.py")
    with pytest.raises(UsageError, match=r"no file matches a\.py !a\.py"):
        names("a.py", "!a.py")


def test_names_and_contents_of_files_count(tmp_path: Path) -> None:
    digests = set()
    for name, text in (("a", "1"), ("a", "2"), ("b", "2")):
        (tmp_path / name).write_text(text)
        digests.add(hash_files([name], str(tmp_path)).digest)
    assert len(digests) == 3


# What a CI job is told of the entries that it got.


KEY = f"jit_f-{0:064x}"


def item(*told: object) -> Item:
    """An entry whose header says three seconds, and what a ledger said of it, in that order."""
    events = [Event(KEY, COMPILE, at, {"compile_seconds": s}) for at, s in enumerate(told)]
    facts = ItemFacts("0" * 64, 9, "zstd", 3)
    return Item(f"{KEY}-cache", KEY, 9, 0, facts=facts, events=(*events, Event(KEY, HIT, 99)))


def test_seconds_as_measured_count_more_than_the_header() -> None:
    assert [item_seconds(item(*told)) for told in ((), (2.5,), (2.5, 2.25))] == [3.0, 2.5, 2.25]


@pytest.mark.parametrize("absurd", [10**400, float("nan"), float("inf"), -1, True, "1", None])
def test_seconds_that_no_compile_took_are_not_added_up(absurd: object) -> None:
    assert (item_seconds(item(absurd)), item_seconds(item(2.5, absurd))) == (3.0, 2.5)
