"""Traps of the Python that runs JAX, each set up in a real one."""

import json
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import pytest
from acting import acts_on, says
from conftest import RunCli, clean_environment, find_jax_pythons, jax_version
from plain_jax import Counts, count_plain, run_plain
from processes import sh
from terminal import run_on_terminal, without_style

WORKLOAD = Path(__file__).with_name("doctor_workload.py")
LOW = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
ABSENT = "raise ImportError('hidden for a test')\n"
#: The standard library's zstd of Python 3.14, in so far as JAX looks at it when it is imported.
PRESENT = ""
pytestmark = pytest.mark.jax


@pytest.fixture
def python_with(tmp_path: Path) -> Any:
    """A Python of the matrix in which some modules are hidden, or are there though they are not."""

    def make(python: str, **modules: str) -> str:
        directory = tmp_path / "modules"
        for name, text in modules.items():
            path = directory.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        script = tmp_path / "python"
        inner = f"PYTHONPATH={shlex.quote(str(directory))} exec {shlex.quote(python)}"
        script.write_text(f'#!/bin/sh\n{inner} "$@"\n')
        script.chmod(0o755)
        return str(script)

    return make


def compile_into(cache: Path, python: str, home: Path, **env: str) -> None:
    own = clean_environment(home) | {"PYTHONWARNINGS": ""} | env
    run_plain([python, WORKLOAD, cache], env=own)


@pytest.fixture
def doctor(run_cli: RunCli) -> Any:
    def examine(cache: Path, python: str, *args: str, **env: str) -> dict[str, Any]:
        own = LOW | {"PYTHONWARNINGS": "", "JAX_COMPILATION_CACHE_DIR": str(cache)} | env
        done = run_cli("doctor", "--json", "-C", cache, "--python", python, *args, env=own)
        assert done.returncode in (0, 1), done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["interpreter"] is not None, document["no_jax"]
        return document

    return examine


def traps(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f["trap"]: f for f in document["findings"]}


def test_what_jax_just_wrote_is_healthy(
    doctor: Any, each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    """Silent: every trap of keys; and pmap's where that version has it, after a second run."""
    compile_into(cache, each_jax_python, tmp_path)
    document = doctor(cache, each_jax_python)
    assert {n for n, f in traps(document).items() if f["severity"] == "problem"} == set()
    assert "orphaned-generations" not in traps(document)
    settings = {s["name"]: s for s in document["settings"]}
    assert settings["jax_compilation_cache_dir"]["origin"] == "environment"
    assert document["decoded"] == document["entries"] > 0
    compile_into(cache, each_jax_python, tmp_path)
    again = traps(doctor(cache, each_jax_python))
    assert ("pmap-churn" in again) is ((0, 8) <= jax_version(each_jax_python) < (0, 10))


CAP_10_MB = {"JAX_COMPILATION_CACHE_MAX_SIZE": "10000000"}


@acts_on("the codec's name is part of the key: one Python never hits the entries of the other")
def test_a_python_without_zstandard_misses_and_one_without_filelock_has_no_cap(
    doctor: Any, jax_python: str, python_with: Any, corpus: Path, cache: Path, tmp_path: Path
) -> None:
    without = python_with(jax_python, zstandard=ABSENT, compression=ABSENT, filelock=ABSENT)
    zlib = shutil.copytree(corpus / "0.4.38-cpu-zlib", tmp_path / "zlib")
    fits = traps(doctor(zlib, without)).keys()
    assert not {"zstandard-differs", "lock-library-missing"} & fits
    compile_into(cache, jax_python, tmp_path)
    found = traps(doctor(cache, without, **CAP_10_MB))
    fix = found["lock-library-missing"]["fix"]
    assert f"{without} -m pip install filelock, or uv pip" in fix
    assert f"uv pip install --python {without} filelock" in fix  # a venv of uv has no pip
    own = doctor(cache, jax_python)
    if own["interpreter"]["key_codec"] != "zstandard":
        pytest.skip("this Python has no zstandard")
    assert "zstandard-differs" not in traps(own)
    assert "has zstandard" in traps(doctor(zlib, jax_python))["zstandard-differs"]["seen"]
    finding = found["zstandard-differs"]
    assert "lacks zstandard" in finding["seen"]
    assert len(finding["files"]) == own["entries"]
    says(finding["cost"])
    compile_into(cache, jax_python, tmp_path, PYTHONPATH=str(tmp_path / "modules"))
    assert len([*cache.glob("jit_scale-*-cache")]) == 2


def test_codec_clash(
    doctor: Any, jax_python: str, python_with: Any, corpus: Path, tmp_path: Path
) -> None:
    cache = shutil.copytree(corpus / "0.12.0.1-cpu-zstd", tmp_path / "cache")
    present = dict.fromkeys(("compression____init__", "compression__zstd", "filelock"), PRESENT)
    document = doctor(cache, python_with(jax_python, **present), **CAP_10_MB)
    assert "lock-library-missing" not in traps(document)
    if jax_version(jax_python) < (0, 7, 1):
        assert "codec-clash" not in traps(document)
        pytest.skip("only JAX 0.7.1 and later looks for the standard library's zstd")
    assert "under keys that name zlib" in traps(document)["codec-clash"]["seen"]
    assert "codec-clash" not in traps(doctor(cache, jax_python))


#: Compiles one function; prints its result, and how many hits and warnings there were.
_PROGRAM = """
import sys, warnings
import jax
hits = []
jax.monitoring.register_event_listener(lambda e, **_: hits.append(e.endswith("cache_hits")))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(float(jax.jit(lambda x: x * float(sys.argv[1]))(2.0)))
print(sum(hits), sum("persistent compilation cache" in str(w.message) for w in caught))
"""


def run_program(
    python: str, cache: Path, home: Path, factor: int, **env: str
) -> tuple[list[str], str]:
    env |= LOW | {"JAX_COMPILATION_CACHE_DIR": str(cache), "PYTHONWARNINGS": ""}
    command = [python, "-c", _PROGRAM, str(factor)]
    done = run_plain(command, env=clean_environment(home) | env)
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize("orphan", ["-cache", pytest.param("-atime", marks=pytest.mark.slow)])
def test_what_an_orphan_does_to_writes_under_a_cap(
    each_jax_python: str, doctor: Any, cache: Path, tmp_path: Path, orphan: str
) -> None:
    """An ``-atime`` without its entry does nothing; the reverse stops JAX before 0.11.2."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "filelock").symlink_to(Path(filelock.__file__).parent)
    capped = CAP_10_MB | {"PYTHONPATH": str(tmp_path / "lib")}
    run_program(each_jax_python, cache, tmp_path, 3, **capped)
    if not list(cache.glob("*-cache")):
        pytest.skip("JAX before 0.4.31 writes no pairs")
    cache.joinpath(f"jit_f-{'0' * 64}{orphan}").write_bytes(bytes(8))
    document = doctor(cache, each_jax_python, **CAP_10_MB)
    entries = len(list(cache.glob("*-cache")))
    (_, _, warned), _ = run_program(each_jax_python, cache, tmp_path, 5, **capped)
    stops = orphan == "-cache" and jax_version(each_jax_python) < (0, 11, 2)
    assert ("missing-atime" in traps(document)) is stops
    assert (int(warned) > 0) is stops
    assert (len(list(cache.glob("*-cache"))) > entries) is not stops


def test_messages_of_preferences_do_no_harm(
    each_jax_python: str, doctor: Any, cache: Path, tmp_path: Path
) -> None:
    """JAX logs that ``+prefer-no-gather`` is not supported; the entry hits and runs the same."""
    assert run_program(each_jax_python, cache, tmp_path, 3)[0] == ["6.0", "0", "0"]
    (result, hits, warned), log = run_program(each_jax_python, cache, tmp_path, 3)
    assert (result, int(hits) > 0, warned) == ("6.0", True, "0")
    said = "cpu-messages" in traps(doctor(cache, each_jax_python))
    assert said is ("Target machine feature +prefer-" in log)


def test_two_kinds_of_cpu_in_one_directory_and_the_command_that_parts_them(
    doctor: Any, each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("features are told on x86 only")
    # The same machine twice, once as XLA sees an older one.
    own = clean_environment(tmp_path) | LOW | {"PYTHONWARNINGS": ""}
    machines = own, own | {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}

    def compile_one(place: Path, env: dict[str, str]) -> None:
        words = [each_jax_python, "-c", "import jax; jax.jit(lambda x: x * 2)(1.0)"]
        run_plain(words, env=env | {"JAX_COMPILATION_CACHE_DIR": str(place)})

    for env in machines:
        compile_one(cache, env)
    found = traps(doctor(cache, each_jax_python))["mixed-cpus"]
    assert "2 kinds of CPU" in found["seen"]
    ours = f"{sys.executable} -m jaxcache ci key --python {each_jax_python}"
    command = "key=" + found["fix"].partition("key=")[2].replace("jaxcache ci key", ours)
    for env in machines:
        line = f"{command}; printenv JAX_COMPILATION_CACHE_DIR"
        place = Path(sh(["sh", "-ec", line], env=env, check=True).stdout.strip())
        compile_one(place, env)
        assert (place.parent, len(list(place.glob("jit_*-cache")))) == (cache, 1)


# ``doctor -- COMMAND``: it runs a real program and examines the settings that the program had.


LONG_NAME = """
scale.__name__ = "scale_" + "x" * 300
jax.jit(scale)(jnp.ones(4))
"""
CALLBACK = """
jax.jit(lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((3,), x.dtype), x))(
    jnp.ones(3)
)
"""


def test_a_command_is_run_and_examined(
    run_cli: RunCli, each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    """Its own directory, settings and Python; and what it compiled that JAX cannot cache."""
    script = tmp_path / "script.py"
    script.write_text(f"{WORKLOAD.read_text()}{LONG_NAME}{CALLBACK}sys.exit(3)")
    command = (each_jax_python, str(script), str(cache))
    done = run_cli("doctor", "--json", "--", *command, env={"PYTHONWARNINGS": ""})
    assert (done.returncode, "ended with exit code 3" in done.stderr) == (1, True)
    document = json.loads(done.stdout)
    assert document["cache_dir"] == str(cache)
    assert document["interpreter"]["executable"] == each_jax_python
    settings = {s["name"]: (s["value"], s["origin"]) for s in document["settings"]}
    assert settings["jax_persistent_cache_min_compile_time_secs"] == (0.0, "script")
    assert settings["jax_compilation_cache_dir"] == (str(cache), "script")
    assert settings["jax_compilation_cache_max_size"] == (-1, "default")
    found = traps(document)
    assert "255 bytes" in found["name-too-long"]["seen"]
    assert ("host-callbacks" in found) is (jax_version(each_jax_python) < (0, 11))


def test_a_command_is_given_the_directory_of_the_option(
    each_jax_python: str, cache: Path, tmp_path: Path
) -> None:
    step = "import jax; jax.jit(lambda x: x * 2)(1.0)"
    words = ("doctor", "-C", cache.name, "--", each_jax_python, "-c", step)
    code, text = run_on_terminal(*words, home=tmp_path, width=120, env=LOW)
    assert code == 0, text
    assert "directory-spelling" not in text, "the program got the absolute path, as from warm -C"
    assert list(cache.glob("*-cache"))
    assert re.search(r"^[\d.]+ s = [\d.]+ import · ", without_style(text), re.MULTILINE)
    assert "overridden" not in text


# ``doctor`` exits with 0 if and only if a second run hits all that the first one meant to write.
# Plain JAX is the judge, in cache processes, by its own counters.


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
OFTEN = ("nothing else", f"{ON} 2", "program other_directory")


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


def test_a_command_that_a_signal_ended_got_the_directory_of_the_option(
    run_cli: RunCli, jax_python: str, cache: Path, tmp_path: Path
) -> None:
    cache.mkdir()
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "other")}
    words = ("-C", cache, "--", jax_python, "-c", "import os, jax; os.kill(os.getpid(), 15)")
    done = run_cli("doctor", *words, env=env)
    assert (done.returncode, "the command ended with signal 15" in done.stderr) == (1, True)
    assert "other" not in done.stdout  # no program chose it, and JAX did not use it
