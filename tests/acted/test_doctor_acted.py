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

from jaxcache.cache.ledger.record import COMPILE, HIT, Event
from jaxcache.cache.ledger.write import append
from jaxcache.store import open_store

Make = Callable[[Path], dict[str, str]]
Copy = Callable[..., Path]
DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
LOW = {SECONDS: "0"}


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
def copy(tmp_path: Path) -> Copy:
    def make(name: str = "0.12.0.1-cpu-zstd") -> Path:
        target = tmp_path / "a cache"
        shutil.copytree(CORPUS / name, target, copy_function=shutil.copy)
        target.chmod(0o755)
        for path in target.iterdir():
            path.chmod(0o644)
        return target

    return make


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
    run_cli: RunCli, copy: Copy, tmp_path: Path, trap: str, make: Make
) -> None:
    cache = copy("0.12.0.1-cpu-zstd-maxsize")
    assert run_cli("seal", "-C", cache).returncode == 0
    assert trap not in findings(run_cli, cache)
    env = make(cache)
    fix = findings(run_cli, cache, **env)[trap]["fix"]
    act(fix, tmp_path, until=" writes", **env)  # may find something else
    assert trap not in findings(run_cli, cache, **env)


@acts_on("cp -RL … … makes a cache of files")
def test_a_cache_of_links(run_cli: RunCli, copy: Copy, tmp_path: Path) -> None:
    cache = copy()
    links = tmp_path / "links"
    links.mkdir()
    for path in cache.glob("*-cache"):
        (links / path.name).symlink_to(path)
    finding = findings(run_cli, links)["links"]
    assert (len(finding["files"]), finding["severity"]) == (7, "note")
    fix = finding["fix"]
    says(fix)
    command = fix.partition(" makes")[0]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    made = tmp_path / "links-copy"
    assert run_cli("verify", "-C", made).returncode == 0
    assert len(list(made.glob("*-cache"))) == len(list(cache.glob("*-cache")))
    assert not any(path.is_symlink() for path in made.iterdir())


@acts_on("jaxcache doctor -C …")
def test_another_directory(run_cli: RunCli, copy: Copy, tmp_path: Path) -> None:
    cache = copy()
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "chosen one")}
    (tmp_path / "chosen one").mkdir()
    fix = findings(run_cli, cache, **env)["other-directory"]["fix"]
    done = act(f"{fix} --json --python /nonexistent", tmp_path, **LOW, **env)
    told = json.loads(done.stdout)
    assert told["cache_dir"] == str(tmp_path / "chosen one")
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


SPELLING = acts_on("name the directory by one absolute path everywhere: export …")
OTHER = acts_on("export JAX_COMPILATION_CACHE_DIR=…")


#: A setting, its finding, and the directory that the user meant.
CURED: dict[str, tuple[Make, str, str, pytest.MarkDecorator]] = {
    "nothing": (lambda _: {}, "no-cache-dir", ".cache/jax", OTHER),
    "relative": (lambda _: {DIRECTORY: "c"}, "directory-spelling", "c", SPELLING),
    "a user": (lambda h: {DIRECTORY: f"{h}/${{USER}}/c"}, "directory-spelling", "me/c", SPELLING),
    "mktemp -d": (
        *(lambda h: {DIRECTORY: f"{h}/tmp.0Az9bcdEFg"}, "temporary-directory"),
        *(".cache/jax", OTHER),
    ),
    "tempfile": (
        *(lambda h: {DIRECTORY: f"{h}/tmpk3j_ab12/c"}, "temporary-directory"),
        *(".cache/jax", OTHER),
    ),
    "the threshold": (
        *(lambda h: {DIRECTORY: f"{h}/c", SECONDS: "1"}, "threshold", "c"),
        acts_on("export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"),
    ),
    "chmod 777": (open_to_all, "unsafe-permissions", "open", acts_on("chmod -R go-w …")),
}


@pytest.mark.parametrize(
    ("set_up", "trap", "meant"),
    [pytest.param(*values, marks=mark, id=name) for name, (*values, mark) in CURED.items()],
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
def test_settings_that_are_to_be_unset(run_cli: RunCli, copy: Copy) -> None:
    cache = copy()
    for trap, name, value in (
        ("cache-off", "JAX_ENABLE_COMPILATION_CACHE", "0"),
        ("contents-checked", "JAX_COMPILATION_CACHE_CHECK_CONTENTS", "1"),
        ("metadata-in-key", "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY", "1"),
    ):
        env = {name: value}
        fix = findings(run_cli, cache, **env)[trap]["fix"]
        assert trap not in findings(run_cli, cache, **with_settings(fix, env))


@acts_on("export JAX_COMPILATION_CACHE_MAX_SIZE=-1 for no cap, and run jaxcache prune --max-size")
def test_a_cap_over_many_entries(run_cli: RunCli, copy: Copy, tmp_path: Path) -> None:
    cache = copy("0.12.0.1-cpu-zstd-maxsize")
    entry = next(cache.glob("*-cache"))
    for number in range(5000):
        os.link(entry, cache / f"jit_f-{number:064x}-cache")
    env = {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000000000"}
    fix = findings(run_cli, cache, **env)["slow-cap"]["fix"]
    assert "slow-cap" not in findings(run_cli, cache, **with_settings(fix, env))
    command = fix.partition("and run ")[2].partition(" from time")[0]
    assert act(f"{command} --grace 0s --yes", tmp_path, {"SIZE": "100kB"}).returncode == 0
    assert sum(path.stat().st_size for path in cache.glob("*-cache")) <= 100_000
    says(fix)


@acts_on("remove these: jaxcache rm …")
def test_entries_of_pmap(run_cli: RunCli, copy: Copy, tmp_path: Path) -> None:
    cache = copy()
    entry = next(cache.glob("*-cache"))
    for number in range(6):
        shutil.copy(entry, cache / f"jit_call_wrapped-{number:064x}-cache")
    for _ in range(2):  # the first command names a few of them
        fix = findings(run_cli, cache)["pmap-churn"]["fix"]
        assert act(f"{fix.partition('; then')[0]} --yes", tmp_path).returncode == 0
    assert "pmap-churn" not in findings(run_cli, cache)
    assert len([*cache.glob("*-cache")]) == 7


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
def test_a_bucket(run_cli: RunCli, copy: Copy, bucket: str, tmp_path: Path) -> None:
    cache = copy()
    env = {"JAX_COMPILATION_CACHE_DIR": bucket}
    found = findings(run_cli, cache, **env)
    first, pull, push = [*map(str.strip, found["bucket-unchecked"]["fix"].split(":", 2)[2:])] * 3
    first = first.partition(";")[0]
    pull = pull.partition("directory: ")[2].partition(" before")[0]
    push = push.partition("before, ")[2].partition(" after")[0]
    assert act(first, tmp_path).returncode == 10
    assert act(push, tmp_path, {"DIR": f"'{cache}'"}).returncode == 0
    assert act(first, tmp_path).returncode == 0
    assert act(pull, tmp_path, {"DIR": "pulled"}).returncode == 0
    assert len([*(tmp_path / "pulled").glob("*-cache")]) == 7
    says(found["bucket-unchecked"]["fix"])

    set_none = with_settings(found["xla-caches-in-bucket"]["fix"], env)
    assert "xla-caches-in-bucket" not in findings(run_cli, cache, **set_none)

    unset = findings(run_cli, bucket)["no-cache-dir"]["fix"].replace("DIR", "other")
    says(unset.replace("other", "DIR"))
    done = act(unset.partition("; ")[2], tmp_path)
    assert done.returncode == 0, (unset, done)
    chosen = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "other")}
    assert "no-cache-dir" not in findings(run_cli, tmp_path / "other", **chosen)


@acts_on("if the other version is no longer used: jaxcache prune… --unused-for …")
@pytest.mark.jax
def test_entries_of_another_jax(
    run_cli: RunCli, copy: Copy, jax_python: str, tmp_path: Path
) -> None:
    cache = copy("0.4.38-cpu-zstd")
    for path in cache.iterdir():
        os.utime(path, (1e9, 1e9))
    fix = findings(run_cli, cache, python=jax_python)["orphaned-generations"]["fix"]
    assert act(f"{fix} --yes", tmp_path).returncode == 0
    assert "orphaned-generations" not in findings(run_cli, cache, python=jax_python)


@acts_on("see what differs: jaxcache explain … … -C …")
def test_entries_that_were_brought_and_never_used(
    run_cli: RunCli, copy: Copy, tmp_path: Path
) -> None:
    cache = copy()
    other = CORPUS / "0.10.2-cpu-zstd"
    assert run_cli("copy", other, cache).returncode == 0
    assert "never-used" not in findings(run_cli, cache)
    (own,) = (p.name for p in (CORPUS / "0.12.0.1-cpu-zstd").glob("jit_mlp-*-cache"))
    append(open_store(str(cache)), [Event(own.removesuffix("-cache"), COMPILE, time.time_ns())])
    finding = findings(run_cli, cache)["never-used"]
    (brought,) = finding["files"]
    assert (other / brought).exists()
    explained = act(finding["fix"], tmp_path)
    assert "jaxlib" in explained.stdout
    (brought_key,) = (p.name.removesuffix("-cache") for p in other.glob("jit_mlp-*-cache"))
    append(open_store(str(cache)), [Event(brought_key, HIT, time.time_ns())])
    assert "never-used" not in findings(run_cli, cache)
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
