"""The command that ``doctor`` names as a cure mends what it found."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acting import act, acts_on, plain_hits, says, with_settings
from conftest import CORPUS, GiveAway, RunCli, clean_environment, find_jax_pythons
from ways import old_copy

from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store

Make = Callable[[Path], dict[str, str]]
DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
LOW = {SECONDS: "0"}
#: Below the home of a user.
USUAL = ".cache/jax"


def examine(
    run_cli: RunCli, *words: str | Path, cwd: Path | None = None, **env: str
) -> tuple[dict[str, Any], str]:
    """What ``doctor`` finds, by the name of the trap, and the cache that it looked at."""
    done = run_cli("doctor", "--json", *words, env=LOW | env, cwd=cwd)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    return {finding["trap"]: finding for finding in document["findings"]}, document["cache_dir"]


def findings(
    run_cli: RunCli,
    cache: Path | str,
    cwd: Path | None = None,
    python: str = "/nonexistent",
    **env: str,
) -> dict[str, Any]:
    """What ``doctor`` finds in a cache, by the name of the trap."""
    return examine(run_cli, "-C", cache, "--python", python, cwd=cwd, **env)[0]


@pytest.fixture
def capped(tmp_path: Path) -> Path:
    """A cache with ``-atime`` files."""
    return old_copy(tmp_path / "a cache", CORPUS / "0.12.0.1-cpu-zstd-maxsize")


def change_a_byte(cache: Path) -> dict[str, str]:
    """Of an entry that is sealed."""
    path = next(cache.glob("*-cache"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, (1e9, 1e9))
    return {}


def without_atimes(cache: Path) -> dict[str, str]:
    for path in cache.glob("*-atime"):
        path.unlink()
    return {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000000"}


@pytest.mark.parametrize(
    ("trap", "make"),
    [
        pytest.param("damaged-entries", change_a_byte, marks=acts_on("jaxcache verify --fix -C …")),
        pytest.param(
            *("missing-atime", without_atimes),
            marks=acts_on("jaxcache verify --fix --atimes -C … writes them, dated to the last use"),
        ),
    ],
)
def test_the_cure_of_a_finding(
    run_cli: RunCli, capped: Path, tmp_path: Path, trap: str, make: Make
) -> None:
    assert run_cli("seal", "-C", capped).returncode == 0
    assert trap not in findings(run_cli, capped)
    env = make(capped)
    fix = findings(run_cli, capped, **env)[trap]["fix"]
    act(fix, tmp_path, until=" writes", code=None, **env)  # may find something else
    assert trap not in findings(run_cli, capped, **env)


@acts_on("cp -RL … … makes a cache of files")
def test_a_cache_of_links(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    for path in filled.iterdir():
        (links / path.name).symlink_to(path)
    finding = findings(run_cli, links)["links"]
    assert (len(finding["files"]), finding["severity"]) == (7, "note")
    says(finding["fix"])
    subprocess.run(finding["fix"].partition(" makes")[0], shell=True, check=True, cwd=tmp_path)
    made = {path.name: path for path in (tmp_path / "links-copy").iterdir()}
    assert made.keys() == {path.name for path in filled.iterdir()}
    assert not any(path.is_symlink() for path in made.values())


@acts_on("jaxcache doctor -C …")
def test_another_directory(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    env = {DIRECTORY: str(tmp_path / "chosen one")}
    (tmp_path / "chosen one").mkdir()
    fix = findings(run_cli, filled, **env)["other-directory"]["fix"]
    done = act(f"{fix} --json --python /nonexistent", tmp_path, **LOW, **env)
    told = json.loads(done.stdout)
    assert told["cache_dir"] == env[DIRECTORY]
    assert "other-directory" not in {f["trap"] for f in told["findings"]}


def act_in_shell(fix: str, home: Path, env: dict[str, str]) -> dict[str, str]:
    """Run the commands of a cure in a shell, and return the JAX_… variables that it then has."""
    says(fix)
    commands = re.search(r"(export JAX_\w+=|chmod ).*", fix)
    assert commands, fix
    env = clean_environment(home) | env
    printed = subprocess.check_output(f"{commands[0]} && env", shell=True, cwd=home, env=env)
    pairs = (line.split("=", 1) for line in printed.decode().splitlines())
    return {name: text for name, text in pairs if name.startswith("JAX_")}


def open_to_all(home: Path) -> dict[str, str]:
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    return {DIRECTORY: str(home / "open")}


#: A setting, its finding, and the directory that the user meant.
CURED: dict[str, tuple[Make, str, str]] = {
    "nothing": (lambda _: {}, "no-cache-dir", USUAL),
    "relative": (lambda _: {DIRECTORY: "c"}, "directory-spelling", "c"),
    "a user": (lambda h: {DIRECTORY: f"{h}/${{USER}}/c"}, "directory-spelling", "me/c"),
    "mktemp -d": (lambda h: {DIRECTORY: f"{h}/tmp.0Az9bcdEFg"}, "temporary-directory", USUAL),
    "tempfile": (lambda h: {DIRECTORY: f"{h}/tmpk3j_ab12/c"}, "temporary-directory", USUAL),
    "the threshold": (lambda h: {DIRECTORY: f"{h}/c", SECONDS: "1"}, "threshold", "c"),
    "chmod 777": (open_to_all, "unsafe-permissions", "open"),
}
SAID = {
    "no-cache-dir": acts_on("export JAX_COMPILATION_CACHE_DIR=…"),
    "temporary-directory": acts_on("export JAX_COMPILATION_CACHE_DIR=…"),
    "directory-spelling": acts_on("name the directory by one absolute path everywhere: export …"),
    "threshold": acts_on("export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"),
    "unsafe-permissions": acts_on("chmod -R go-w …"),
}


@pytest.mark.parametrize(
    ("set_up", "trap", "meant"),
    [pytest.param(*row, marks=SAID[row[1]], id=name) for name, row in CURED.items()],
)
def test_the_cure_of_a_setting(
    run_cli: RunCli, tmp_path: Path, set_up: Make, trap: str, meant: str
) -> None:
    env = {"USER": "me"} | set_up(tmp_path)
    (tmp_path / "c").mkdir()
    words = ("--python", "/nonexistent")
    found, _ = examine(run_cli, *words, **env)
    env |= act_in_shell(found[trap]["fix"], tmp_path, env)
    found, looked_at = examine(run_cli, *words, **env)
    assert (trap in found, looked_at) == (False, str(tmp_path / meant))


@acts_on("unset JAX_ENABLE_COMPILATION_CACHE")
@acts_on("unset JAX_COMPILATION_CACHE_CHECK_CONTENTS")
@acts_on("unset JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY")
def test_settings_that_are_to_be_unset(run_cli: RunCli, filled: Path) -> None:
    for trap, name, value in (
        ("cache-off", "JAX_ENABLE_COMPILATION_CACHE", "0"),
        ("contents-checked", "JAX_COMPILATION_CACHE_CHECK_CONTENTS", "1"),
        ("metadata-in-key", "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY", "1"),
    ):
        fix = findings(run_cli, filled, **{name: value})[trap]["fix"]
        assert trap not in findings(run_cli, filled, **with_settings(fix, {name: value}))


@acts_on("export JAX_COMPILATION_CACHE_MAX_SIZE=-1 for no cap, and run jaxcache prune --max-size")
def test_a_cap_over_many_entries(run_cli: RunCli, capped: Path, tmp_path: Path) -> None:
    entry = next(capped.glob("*-cache"))
    for number in range(5000):
        os.link(entry, capped / f"jit_f-{number:064x}-cache")
    env = {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000000000"}
    fix = findings(run_cli, capped, **env)["slow-cap"]["fix"]
    assert "slow-cap" not in findings(run_cli, capped, **with_settings(fix, env))
    command = fix.partition("and run ")[2].partition(" from time")[0]
    act(f"{command} --grace 0s --yes", tmp_path, {"SIZE": "100kB"})
    assert sum(path.stat().st_size for path in capped.glob("*-cache")) <= 100_000
    says(fix)


@acts_on("remove these: jaxcache rm …")
def test_entries_of_pmap(run_cli: RunCli, filled: Path, tmp_path: Path) -> None:
    entry = next(filled.glob("*-cache"))
    for number in range(6):
        shutil.copy(entry, filled / f"jit_call_wrapped-{number:064x}-cache")
    for _ in range(2):  # the first command names a few of them
        fix = findings(run_cli, filled)["pmap-churn"]["fix"]
        act(f"{fix.partition('; then')[0]} --yes", tmp_path)
    assert "pmap-churn" not in findings(run_cli, filled)
    assert len([*filled.glob("*-cache")]) == 7


@acts_on("chmod u+r …")
@acts_on("its owner should run: chmod -R go-w …")
def test_entries_that_may_not_be_read_or_are_of_another_user(
    run_cli: RunCli, give_away: GiveAway, request: pytest.FixtureRequest
) -> None:
    findings(run_cli, CORPUS / "0.12.0.1-cpu-zstd")  # once as the user who can read every module
    unprivileged = request.getfixturevalue("unprivileged")
    cache = unprivileged / "a cache"
    shutil.copytree(CORPUS / "0.12.0.1-cpu-zstd", cache, copy_function=shutil.copyfile)
    entry = next(cache.glob("*-cache"))
    entry.chmod(0o000)
    fix = findings(run_cli, cache, cwd=unprivileged)["unreadable-entries"]["fix"]
    says(fix)
    verified = run_cli("verify", "-C", cache, cwd=unprivileged)
    assert (verified.returncode, "--fix" in verified.stdout + verified.stderr) == (1, False)
    subprocess.run(fix, shell=True, check=True, cwd=unprivileged)
    assert "unreadable-entries" not in findings(run_cli, cache, cwd=unprivileged)

    entry.chmod(0o666)
    give_away(cache)
    found = findings(run_cli, cache, cwd=unprivileged)["unsafe-permissions"]
    assert entry.name in found["files"]
    says(found["fix"])
    if os.getresuid()[2] != 0:
        pytest.skip("only root can do what the owner should")
    os.seteuid(0)
    try:
        command = found["fix"].partition("run: ")[2]
        subprocess.run(command, shell=True, check=True, cwd=unprivileged, user=0)
    finally:
        os.seteuid(unprivileged.stat().st_uid)
    assert "unsafe-permissions" not in findings(run_cli, cache, cwd=unprivileged)


@acts_on("try it first (exit code 10: it does not exist): jaxcache stats -C …")
@acts_on("export JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none")
@acts_on("DIR; jaxcache pull … -C DIR")
def test_a_bucket(run_cli: RunCli, filled: Path, bucket: str, tmp_path: Path) -> None:
    found = findings(run_cli, filled, **{DIRECTORY: bucket})
    first, pull, push = [*map(str.strip, found["bucket-unchecked"]["fix"].split(":", 2)[2:])] * 3
    first = first.partition(";")[0]
    pull = pull.partition("directory: ")[2].partition(" before")[0]
    push = push.partition("before, ")[2].partition(" after")[0]
    act(first, tmp_path, code=10)
    act(push, tmp_path, {"DIR": f"'{filled}'"})
    act(first, tmp_path)
    act(pull, tmp_path, {"DIR": "pulled"})
    assert len([*(tmp_path / "pulled").glob("*-cache")]) == 7
    says(found["bucket-unchecked"]["fix"])

    set_none = with_settings(found["xla-caches-in-bucket"]["fix"], {DIRECTORY: bucket})
    assert "xla-caches-in-bucket" not in findings(run_cli, filled, **set_none)

    fix = findings(run_cli, bucket)["no-cache-dir"]["fix"]
    says(fix)
    other = tmp_path / "other"
    act(fix.partition("; ")[2], tmp_path, {"DIR": other})
    assert "no-cache-dir" not in findings(run_cli, other, **{DIRECTORY: str(other)})


@acts_on("if the other version is no longer used: jaxcache prune… --unused-for …")
@pytest.mark.jax
def test_entries_of_another_jax(run_cli: RunCli, jax_python: str, tmp_path: Path) -> None:
    cache = old_copy(tmp_path / "a cache")
    fix = findings(run_cli, cache, python=jax_python)["orphaned-generations"]["fix"]
    act(f"{fix} --yes", tmp_path)
    assert "orphaned-generations" not in findings(run_cli, cache, python=jax_python)


@acts_on("see what differs: jaxcache explain … … -C …")
def test_entries_that_were_brought_and_never_used(
    run_cli: RunCli, filled: Path, tmp_path: Path
) -> None:
    other = CORPUS / "0.10.2-cpu-zstd"
    own, brought = (next(cache.glob("jit_mlp-*-cache")).name for cache in (filled, other))
    store = open_store(str(filled))
    assert run_cli("copy", other, filled).returncode == 0
    assert "never-used" not in findings(run_cli, filled)
    append(store, [Event(own.removesuffix("-cache"), COMPILE, time.time_ns())])
    finding = findings(run_cli, filled)["never-used"]
    assert finding["files"] == [brought]
    assert "jaxlib" in act(finding["fix"], tmp_path).stdout
    append(store, [Event(brought.removesuffix("-cache"), HIT, time.time_ns())])
    assert "never-used" not in findings(run_cli, filled)
    says(finding["fix"])


@pytest.mark.jax
@acts_on("remove that line of the program, or export JAX_COMPILATION_CACHE_DIR=…")
def test_a_program_that_overrides_the_variable(run_cli: RunCli, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import jax\n"
        f"jax.config.update('jax_compilation_cache_dir', {str(tmp_path / 'own one')!r})\n"
        "print(jax.jit(lambda x: x + 1)(1.0))\n"
    )
    env = {DIRECTORY: str(tmp_path / "c")}
    words = ("--", find_jax_pythons()[0], program)
    found, _ = examine(run_cli, *words, **env)
    env |= act_in_shell(found["overridden"]["fix"], tmp_path, env)
    found, looked_at = examine(run_cli, *words, **env)
    assert ("overridden" in found, looked_at) == (False, str(tmp_path / "own one"))


PROGRAM = """
import jax, numpy
for n in range(2):
    jax.jit(lambda x: x * n)(numpy.ones(3)).block_until_ready()
"""


#: What puts a name like that of an entry into a cache; the last stops the writes of every JAX.
NAMED: tuple[Callable[[Path], object], ...] = (
    lambda cache: (cache / "build-cache").mkdir(),
    lambda cache: (cache / f"._jit_f-{'ab' * 32}-cache").write_bytes(b"\0\5\x16\7"),
    lambda cache: (cache / "old-cache").symlink_to(cache / "nowhere"),
)


@acts_on("mv -n … …")
@pytest.mark.jax
def test_names_like_those_of_entries(run_cli, each_jax_python: str, tmp_path: Path) -> None:
    settings = {
        **LOW,
        "JAX_COMPILATION_CACHE_MAX_SIZE": "1000000000",
        "PYTHONWARNINGS": "ignore",
    }
    for number, put in enumerate(NAMED):
        cache = tmp_path / str(number)
        cache.mkdir()
        put(cache)
        env = {**settings, DIRECTORY: str(cache)}
        first, second = (plain_hits(each_jax_python, PROGRAM, tmp_path, env) for _ in range(2))
        done = run_cli("doctor", "--json", "--python", each_jax_python, env=env)
        found = {f["trap"]: f["fix"] for f in json.loads(done.stdout)["findings"]}
        assert first == 0
        assert (done.returncode == 0) is (second == 2), (number, second, done.stdout)
        assert "foreign-name" in found
    says(found["foreign-name"])
    subprocess.run(found["foreign-name"], shell=True, check=True, cwd=tmp_path)
    plain_hits(each_jax_python, PROGRAM, tmp_path, env)
    assert plain_hits(each_jax_python, PROGRAM, tmp_path, env) == 2
    assert run_cli("doctor", "--python", each_jax_python, env=env).returncode == 0
