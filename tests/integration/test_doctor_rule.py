"""``doctor`` exits with 0 if and only if a second run hits all that the first one meant to write.

Plain JAX is the judge, in fresh processes, by its own counters.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import RunCli, clean_environment, find_jax_pythons
from plain_jax import Counts, count_plain

pytestmark = pytest.mark.jax

PROGRAM = """
import os
import jax
import numpy as np
{code}
jax.jit(lambda x: x * 2)(np.ones(3))
jax.jit(lambda x: x @ x)(np.ones((3, 3)))
"""


@dataclass(frozen=True)
class Row:
    """An environment, or a program that makes one."""

    env: dict[str, str] = field(default_factory=dict)
    code: str = ""
    prepare: Callable[[Path], object] = Path.mkdir
    """Makes the directory."""
    damage: Callable[[Path], object] = lambda _: None
    """Done to the directory after the first run."""
    plain: bool = True
    """Whether ``doctor`` can judge it without running the program."""


def set_to(name: str, *texts: str) -> dict[str, Row]:
    return {f"{name} {text or 'empty'}": Row({f"JAX_{name.upper()}": text}) for text in texts}


def program(**code: str) -> dict[str, Row]:
    return {f"program {name}": Row(code=text, plain=False) for name, text in code.items()}


def cut(directory: Path) -> None:
    for path in directory.glob("*-cache"):
        path.write_bytes(path.read_bytes()[:-9])


def link(directory: Path) -> None:
    directory.with_name("real").mkdir()
    directory.symlink_to("real")


UPDATE = "jax.config.update('jax_{}', {})"
FAST = "persistent_cache_min_compile_time_secs"
SMALL = "persistent_cache_min_entry_size_bytes"
CAP = "compilation_cache_max_size"
ON = "enable_compilation_cache"
DIRECTORY = "compilation_cache_dir"
ROWS = {
    "nothing else": Row(),
    **set_to(FAST, "1.0", "inf", "nan", "-1", "1e-9", "1s", ""),
    **set_to(SMALL, "-1", "100", "100000000", "1kB", "1.5"),
    **set_to(CAP, "-1", "10000000", "0", "-5", "100", "10MB"),
    f"{CAP} 4000": Row({f"JAX_{CAP.upper()}": "4000"}, plain=False),
    **set_to(ON, "1", "YES", "t", "0", "False", "off", "N", "2", ""),
    **set_to("compilation_cache_check_contents", "1"),
    **set_to("compilation_cache_include_metadata_in_key", "1"),
    **set_to("raise_persistent_cache_errors", "1"),
    **set_to("explain_cache_misses", "1"),
    **set_to("share_binary_between_hosts", "1"),
    **set_to("persistent_cache_enable_xla_caches", "none", "all"),
    **set_to("enable_x64", "1", "maybe"),
    "XLA_FLAGS known": Row({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}),
    "XLA_FLAGS unknown": Row({"XLA_FLAGS": "--xla_no_such_flag=1"}),
    **{
        f"directory {path}": Row({"JAX_COMPILATION_CACHE_DIR": path}, plain=False)
        for path in ("a b/c", "~/c", "program.py/c", "s3://nowhere/c", "file:///srv/c", "")
    },
    "directory is a link": Row(prepare=link),
    "directory is a dangling link": Row(prepare=lambda path: path.symlink_to("nowhere")),
    "directory is a file": Row(prepare=Path.touch),
    "damaged entries": Row(damage=cut),
    **program(
        off=UPDATE.format(ON, False),
        off_as_text=UPDATE.format(ON, "'False'"),
        cap=UPDATE.format(CAP, 0),
        large_cap=UPDATE.format(CAP, 10**7),
        size=UPDATE.format(SMALL, 10**9),
        slow=UPDATE.format(FAST, 5),
        directory=UPDATE.format(DIRECTORY, "os.path.abspath('own')"),
        other_directory="jax.jit(lambda x: x - 1)(np.ones(4)); "
        + UPDATE.format(DIRECTORY, "os.path.abspath('own')"),
        moved="os.makedirs('x', exist_ok=True); os.chdir('x')",
    ),
}
#: A tenth, tried with every other test.
OFTEN = (
    "nothing else",
    f"{CAP} 0",
    f"{SMALL} 100000000",
    f"{ON} 2",
    "program other_directory",
    f"{CAP} 4000",
)


class Home:
    """A directory with the program and its cache."""

    def __init__(self, path: Path, row: Row) -> None:
        self.path = path
        self.cache = path / "cache"
        path.mkdir()
        (path / "program.py").write_text(PROGRAM.format(code=row.code))
        row.prepare(self.cache)
        self.env = {
            "PYTHONWARNINGS": "",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
            **row.env,
        }

    def run(self) -> "Counts | None":
        env = clean_environment(self.path) | self.env
        return count_plain(find_jax_pythons()[0], self.path / "program.py", env, self.path)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in OFTEN else [pytest.mark.slow]) for n in ROWS]
)
def test_the_exit_code_foretells_the_second_run(name: str, run_cli: RunCli, tmp_path: Path) -> None:
    row = ROWS[name]
    home = Home(tmp_path / "plain", row)
    first = home.run()
    row.damage(home.cache)
    second = home.run()
    hits = second is not None and second.hits > 0 and second.writes == 0
    python = find_jax_pythons()[0]
    for kind, command in (("command", ("--", python, "program.py")), ("settings", ())):
        if command or row.plain:
            home = Home(tmp_path / kind, row)
            if row.damage is cut:
                home.run()
                cut(home.cache)
            told = run_cli("doctor", "--python", python, *command, env=home.env, cwd=home.path)
            assert (told.returncode == 0) is hits, (kind, first, second, told)
