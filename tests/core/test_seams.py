"""What is looked up in JAX's private names, held against what JAX itself says and does."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, clean_environment
from plain_jax import run_plain

from jaxcache.core.configuration import JAX_DEFAULTS
from jaxcache.core.seams import UnknownJaxError, describe_error, known_to
from jaxcache.core.seams.cache import make_cache

#: Prints facts of a process with plain JAX, in which a setting was changed.
FACTS = """
import json, sys
import jax
from jaxcache.core import configuration, seams
from jaxcache.core.seams import cache, compiling

before = seams.current_settings()
jax.config.update("jax_default_matmul_precision", "highest")
module = jax.jit(lambda x: x * 2 + 1).lower(1.0).compiler_ir()
programs = compiling.ZeroPrograms()
alone = seams.process_index()
jax._src.distributed.global_state.process_id = 3
print(json.dumps({
    "versions": seams.describe_versions(),
    "jax": [jax.__version__, jax.lib.__version__],
    "environment": seams.settings_of_environment(),
    "changed": seams.changed_settings(before, are_defaults_known=False),
    "in_keys": sorted(seams.key_settings()),
    "in_options": [*seams.settings_of_options()],
    "flags": seams.flags(),
    "hashed": [f for _, f in seams.flags() if seams.is_hashed(f)],
    "processes": [alone, seams.process_index()],
    "of_cache": {n: getattr(jax.config, n, d) for n, d in configuration.JAX_DEFAULTS.items()},
    "codecs": cache.codecs(),
    "more_than": [programs.has_more_operations(module, n) for n in (0, 1, 50)],
    # Last: it takes the variables out of the environment.
    "defaults": [before["jax_enable_x64"], seams.default_settings()["jax_enable_x64"]],
}))
"""


@pytest.mark.jax
def test_facts_are_those_of_jax(jax_python: str, tmp_path: Path) -> None:
    variables = {
        "JAX_ENABLE_X64": "1",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=true --xla_dump_to=/nowhere/x",
        "PYTHONPATH": str(REPOSITORY),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
    }
    env = clean_environment(tmp_path) | variables
    done = run_plain([jax_python, "-c", FACTS, "--xla_cpu_use_x=1", "other"], env=env)
    facts: dict[str, Any] = json.loads(done.stdout)
    assert [*facts["versions"].values()] == facts["jax"]
    assert facts["environment"] == {"jax_enable_x64": True}
    assert facts["defaults"] == [True, False]
    changed = {name: tuple(origin) for name, origin in facts["changed"].items()}
    assert changed["jax_default_matmul_precision"] == ("highest", "code")
    assert changed["jax_enable_x64"] == (True, "environment")
    assert {origin for _, origin in changed.values()} <= {"code", "environment", "unknown"}
    in_keys = {"jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl"}
    assert in_keys <= {*facts["in_keys"]}
    assert not {"jax_compilation_cache_dir", "jax_log_compiles"} & {*facts["in_keys"]}
    assert "jax_enable_x64" not in facts["in_options"] != []
    flags = variables["XLA_FLAGS"].split()
    assert facts["flags"] == [*(["XLA_FLAGS", f] for f in flags), ["argv", "--xla_cpu_use_x=1"]]
    assert facts["hashed"] == [flags[0], "--xla_cpu_use_x=1"]
    assert facts["processes"] == [0, 3]
    directory = {"jax_compilation_cache_dir": variables["JAX_COMPILATION_CACHE_DIR"]}
    assert facts["of_cache"] == JAX_DEFAULTS | directory
    assert {*facts["codecs"].values()} <= {"zstandard", "zstd", "zlib"}
    assert facts["more_than"] == [True, True, False]


def test_an_error_is_described_by_its_first_line() -> None:
    assert describe_error(ValueError("one\ntwo")) == "ValueError: one"
    assert describe_error(ValueError()) == "ValueError: ValueError"
    assert describe_error(ValueError("x" * 600)) == f"ValueError: {'x' * 500}"


class Base(dict[str, bytes]):
    """What JAX's own cache is to the layer: a place for entries, bounded by a size."""

    def __init__(self, path: str, max_size: int) -> None:
        super().__init__(k=b"of jax")
        self.bound = max_size

    put = dict.__setitem__


class Layer:
    """A layer that opens a directory in which nothing works, or none."""

    def __init__(self, error: Exception | None, *, opens: bool) -> None:
        self.error = error
        self.opens = opens
        self.troubles: list[Exception] = []
        self.preload = self

    def cache_opened(self, directory: Any) -> None:
        assert directory is self

    def locate(self, path: str) -> tuple[str, None]:
        return path, None

    def open(self, path: str, max_size: int, bucket: None) -> "Layer":
        if not self.opens:
            raise OSError("no directory")
        return self

    def get(self, key: str) -> bytes:
        return self._fail() or b"of the layer"

    def put(self, key: str, value: bytes) -> None:
        self._fail()

    def _fail(self) -> None:
        if self.error:
            raise self.error

    def trouble(self, error: Exception) -> None:
        self.troubles.append(error)


@pytest.mark.parametrize(
    ("layer", "bound", "found", "written", "troubles"),
    [
        (Layer(None, opens=True), -1, b"of the layer", False, 0),
        (Layer(ValueError(), opens=True), -1, b"of jax", True, 2),
        (Layer(None, opens=False), 5, b"of jax", True, 1),
    ],
    ids=["works", "fails", "opens-nothing"],
)
def test_where_the_layer_fails_jax_answers_within_its_own_bound(
    layer: Layer, bound: int, found: bytes, written: bool, troubles: int
) -> None:
    cache = make_cache(Base, layer)("/c", max_size=5)
    assert (cache.bound, cache.get("k")) == (bound, found)
    cache.put("new", b"")
    assert ("new" in cache, len(layer.troubles)) == (written, troubles)


def test_a_write_that_the_system_refuses_is_the_programs_to_see() -> None:
    cache = make_cache(Base, Layer(OSError(28, os.strerror(28)), opens=True))("/c")
    with pytest.raises(OSError, match=r"\[Errno 28\]"):
        cache.put("new", b"")
    assert cache == {"k": b"of jax"}


def test_a_name_of_jax_that_is_gone_is_said_with_what_to_do() -> None:
    jax = type("Jax", (), {"__version__": "9.9"})
    said = r"cannot listen to jax 9\.9 \(.*x.*\); known are 0\.4 to 0\.12: upgrade jaxcache, or use"
    with pytest.raises(UnknownJaxError, match=said), known_to("listen to", jax, "0.4 to 0.12"):
        raise AttributeError("x")
