"""Write ``jaxcache/entry/xla_defaults.json``: the XLA options that each jaxlib sets by itself.

``python tools/xla_defaults.py PYTHON…`` compiles one function under each interpreter, with no
XLA_FLAGS set, reads the options out of the cache entry that this wrote, and replaces the rows of
those versions. Run it when a new jaxlib is to be known.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from jaxcache.entry.decode import find_debug_options, read_payload  # noqa: E402
from jaxcache.entry.options import PATHS_IN_CACHE, flag_values  # noqa: E402

TARGET = ROOT / "jaxcache" / "entry" / "xla_defaults.json"
_COMPILE = """
import sys, jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.jit(lambda x: x + 1)(1.0).block_until_ready()
print(jax.__version__)
"""


def read_defaults(python: str) -> tuple[str, dict[str, str | list[str]]]:
    """JAX's version, and option numbers to values as :func:`flag_values` writes them."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_"))}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [python, "-c", _COMPILE, directory],
            capture_output=True,
            text=True,
            check=True,
            env=env | {"JAX_PLATFORMS": "cpu"},
        )
        entries = [p for p in Path(directory).glob("jit*") if not p.name.endswith("-atime")]
        with open(entries[0], "rb") as file:
            payload = read_payload(file, entries[0].stat().st_size)
    values = flag_values(find_debug_options(payload))
    return done.stdout.strip(), {
        str(number): texts[0] if len(texts) == 1 else list(texts)
        for number, texts in sorted(values.items())
        if number not in PATHS_IN_CACHE
    }


def main(pythons: list[str]) -> None:
    """Replace the rows of the versions that these interpreters have."""
    known = json.loads(TARGET.read_text("utf-8"))
    known.update(read_defaults(python) for python in pythons)
    lines = [f"{json.dumps(v)}: {json.dumps(row)}" for v, row in known.items()]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
